"""Connect to a Dask scheduler that runs elsewhere."""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.execution.connecting import connect_when_running
from nanoset_core.execution.dask import DaskClient
from nanoset_core.execution.progress import Progress
from nanoset_core.untrusted import shell_line
from nanoset_core.wording import format_age

CONNECT_SECONDS = 8.0
"""Time limit for one attempt to reach a scheduler."""
_MIN_CONNECT_SECONDS = 2.0
"""The same for the last attempt, however little time to wait is left."""
_PAUSE_SECONDS = 0.5
"""Time between two attempts."""
_MAX_CLIENT_ATTEMPTS = 10
"""Attempts to open a client, some of which may fail by accident: see `open_client`."""


@dataclass(frozen=True, slots=True)
class DaskScheduler:
    """A Dask scheduler that was started independently of this process, with its workers."""

    address: str | None = None
    """Its address, such as tcp://scheduler:8786; None if a file contains it."""
    file: Path | None = None
    """The file with its address, as `dask scheduler --scheduler-file` writes it."""
    wait_seconds: float = 60.0
    """How long to wait for the scheduler, and then for its workers."""
    where: str = "executor.address"
    """The setting that names the scheduler, for messages."""

    @property
    def software(self) -> str:
        """The program that the cluster consists of, for messages."""
        return "Dask"

    @property
    def name(self) -> str:
        """Its address or its file, for messages."""
        return self.address or str(self.file)

    @property
    def start_workers(self) -> str:
        """How to start workers, for messages."""
        scheduler_options: tuple[object, ...]
        if self.address is not None:
            scheduler_options = (self.address,)
        else:
            scheduler_options = ("--scheduler-file", self.file)
        command = shell_line("dask", "worker", *scheduler_options, "--nthreads", 1)
        return f"start some with `{command}`"

    def connect(self, stack: ExitStack, progress: Progress) -> DaskClient:
        """Connect to the scheduler as soon as it runs, and return a client.

        A scheduler may be started at the same time as this program, or later. So if nothing answers
        yet, this tries again twice a second. Other faults, such as a malformed address, are errors
        at once.

        Args:
            stack: When it is closed, the connection ends.
            progress: Shows the user how long was waited.

        Raises:
            ConfigError: Dask is not installed, or the scheduler does not run in time, or it refuses
                this client.
        """
        require_distributed(self.where)
        waiting = progress.wait(f"for the Dask scheduler {self.name}", self.wait_seconds)

        def try_to_connect() -> DaskClient:
            """Make one attempt, in the time that is left."""
            return self._try_to_connect(self._attempt_seconds(waiting.waited_seconds))

        started_at = time.monotonic()
        try:
            client = connect_when_running(try_to_connect, waiting, _is_refusal)
        except (OSError, ValueError, TypeError, RuntimeError) as error:
            tried_seconds = time.monotonic() - started_at
            raise self._unreachable(error, tried_seconds) from error
        stack.callback(client.close)
        return client

    def _attempt_seconds(self, waited_seconds: float) -> float:
        """Return how long one attempt to connect may take.

        An attempt takes time if a program accepts the connection but does not answer. It has 8
        seconds (CONNECT_SECONDS), or less if the time limit of the settings is near, but 2
        (_MIN_CONNECT_SECONDS) at least.

        Args:
            waited_seconds: How long the scheduler was waited for already.
        """
        remaining_seconds = self.wait_seconds - waited_seconds
        return min(CONNECT_SECONDS, max(remaining_seconds, _MIN_CONNECT_SECONDS))

    def _try_to_connect(self, seconds: float) -> DaskClient:
        """Try once to connect to the scheduler. If it does not run yet, the caller tries again.

        First, a connection that is closed again shows whether a scheduler answers: Dask's client
        would wait for ever for a program that accepts connections but is no scheduler.

        Args:
            seconds: How long a scheduler has time to answer. If nothing listens at the address,
                this fails at once.

        Raises:
            OSError: No scheduler answers at the address, or its file does not exist.
        """
        address = self._read_address()  # such as tcp://scheduler:8786
        _check_scheduler_answers(address, seconds)
        return DaskClient(open_client(address))

    def _read_address(self) -> str:
        """Return the address of the Dask scheduler, the process that workers connect to.

        Either the settings have the address, such as "tcp://10.0.0.5:8786". Or they name a file,
        which the scheduler writes when it starts: {"address": "tcp://10.0.0.5:8786", …}. A
        scheduler that is restarted may get another address and writes the file again. So the file
        is read at each attempt to connect.

        Raises:
            FileNotFoundError: There is no file, or it has no address, perhaps since the scheduler
                is just writing it. In both cases, the caller tries again.
        """
        if self.file is None:
            return self.address or ""  # one of `file` and `address` is always set
        text = self.file.read_text(encoding="utf-8")
        try:
            return str(json.loads(text)["address"])
        except (ValueError, KeyError, TypeError):
            problem = f"no address in the {len(text):,} characters of {self.file}"
            raise FileNotFoundError(problem) from None

    def _unreachable(self, error: Exception, tried_seconds: float) -> ConfigError:
        """Return the error for a scheduler that could not be reached in time, with what the user
        can do.

        Args:
            error: Why the last attempt failed, such as "Connection refused".
            tried_seconds: How long all attempts took. If the settings say not to wait, this may be
                longer than they say, and the message must not say "within 0 s".
        """
        if self.file is not None and isinstance(error, FileNotFoundError):
            return self._no_file_error(self.file, error)

        reason = str(error)
        if not reason:
            # Only a timeout has no text. It means that a server was connected, but stayed silent.
            reason = "it accepts the connection, but does not answer as a scheduler"
        limit_seconds = max(self.wait_seconds, tried_seconds)
        return ConfigError(
            "no Dask scheduler answers at this address",
            where=self.where,
            found=f"{self.name}: {reason}",
            expected=f"an answer within {format_age(limit_seconds)}",
            remedy="start it with `dask scheduler`, or correct the address; an address of tls:// "
            "needs a client certificate in Dask's configuration, from the authority that issued "
            "the certificate of the scheduler",
        )

    def _no_file_error(self, file: Path, error: FileNotFoundError) -> ConfigError:
        """Return the error for a scheduler that was to write its address into a file, and has not.

        For example, the file does not exist: "No such file or directory: /shared/scheduler.json".
        Or it has no address: then `error` has a text of its own.

        Args:
            file: The file.
            error: The error of the last attempt to read it.
        """
        found = str(error)
        if error.strerror:
            found = f"{error.strerror}: {file}"
        command = shell_line("dask", "scheduler", "--scheduler-file", file)
        return ConfigError(
            "no Dask scheduler has written its file",
            where=self.where,
            found=found,
            expected=f"the file within {format_age(self.wait_seconds)}",
            remedy=f"start it with `{command}`, or set executor.wait to more",
        )


def _is_refusal(error: OSError) -> bool:
    """Return whether a scheduler has refused this client, so that another attempt would fail, too.

        nothing answers at the address yet           no: the scheduler may still be starting
        its file does not exist yet                  no
        it refuses the certificate of this client    yes

    Args:
        error: Why the last attempt to connect failed.
    """
    from distributed.comm import core as untyped_core

    core: Any = untyped_core
    return isinstance(error, core.FatalCommClosedError)


def _check_scheduler_answers(address: str, seconds: float) -> None:
    """Check that a Dask scheduler answers at an address, by connecting and disconnecting.

    This uses an event loop, in another thread: this one may run a loop already, as notebooks do.

    Args:
        address: The address, such as tcp://scheduler:8786.
        seconds: How long to wait.

    Raises:
        OSError: Nothing accepts connections at the address.
        TimeoutError: A server accepts connections, but does not greet like a scheduler.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _connect_and_disconnect(address, seconds)).result()


async def _connect_and_disconnect(address: str, seconds: float) -> None:
    """Connect to a Dask scheduler, wait for its greeting, and disconnect.

    Dask limits the time to connect, and then waits for the greeting for ever. A program that is no
    scheduler never sends one, so the whole time is limited here, to a second more than that of
    Dask: if Dask cannot connect, its own error says why.

    Args:
        address: The address, such as tcp://scheduler:8786.
        seconds: Time limit to connect.
    """
    import distributed as untyped_distributed

    distributed: Any = untyped_distributed
    # For an address of tls://, the certificate of this client in Dask's configuration.
    certificate = distributed.Security().get_connection_args("client")
    connection = distributed.comm.core.connect(address, timeout=seconds, **certificate)
    comm = await asyncio.wait_for(connection, seconds + 1)
    await comm.close()


def require_distributed(where: str) -> None:
    """Check that Dask, the package `distributed`, is installed.

    Args:
        where: The setting that asks for it, such as "executor.address". The error names it.

    Raises:
        ConfigError: The package is not installed.
    """
    try:
        import distributed as _  # noqa: F401
    except ImportError as error:
        raise ConfigError(
            "the package `distributed` is not installed",
            where=where,
            found=str(error),
            remedy="pip install 'nanoset-platform[dask]'",
        ) from error


class _WithoutCancelledConnections(logging.Filter):
    """Drops the records of Dask on attempts to connect that were stopped since the client ended.

    If a scheduler is lost, Dask's client tries to connect to it again. When this package closes the
    client, Dask logs the end of the attempt with a traceback of 30 lines, as if it were an error.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        kind = record.exc_info[0] if record.exc_info else None
        return kind is not asyncio.CancelledError


_without_cancelled_connections = _WithoutCancelledConnections()


@contextmanager
def end_unlogged() -> Iterator[None]:
    """Log nothing of what Dask's scheduler reports in this block, in which the scheduler is ended.

    If the user ends a build while workers are busy, the scheduler may fail to close a connection,
    or miss a result that nobody waits for any more. It logs that with a traceback, as an error.
    """
    loggers = [logging.getLogger("distributed.core"), logging.getLogger("distributed.scheduler")]
    were_disabled = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, was_disabled in zip(loggers, were_disabled, strict=True):
            logger.disabled = was_disabled


def open_client(scheduler: Any) -> Any:
    """Return a new client of a Dask scheduler; try again if a fault of Dask prevents it.

    Dask asserts that the greeting of a scheduler arrives alone. But if a worker joins the cluster
    at this moment, a message about it arrives together with the greeting, and the assertion fails.
    Half a second later it will not.

    Args:
        scheduler: The address of a scheduler, or a cluster object of this process.

    Returns:
        The `distributed.Client`, which is connected.

    Raises:
        TimeoutError: The assertion failed at each of 10 attempts.
    """
    import distributed as untyped_distributed

    distributed: Any = untyped_distributed
    logging.getLogger("distributed.client").addFilter(_without_cancelled_connections)
    for _ in range(_MAX_CLIENT_ATTEMPTS):
        with suppress(AssertionError):
            return distributed.Client(
                scheduler, timeout=CONNECT_SECONDS, set_as_default=False, name="nanoset"
            )
        time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(f"a worker joined at each of the {_MAX_CLIENT_ATTEMPTS} attempts to connect")
