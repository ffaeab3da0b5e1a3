"""How a build is connected to a Dask cluster: it waits for the scheduler, and stays connected until it ends."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import ProgressCallback, Waiting
from nanoset_core.serialization.text import format_age

Client: TypeAlias = Any
"""distributed.Client; the package has no types."""

CONNECT_SECONDS = 8.0
"""After which an attempt to reach a scheduler is given up."""
_PAUSE_SECONDS = 0.5
"""Between two attempts."""
_ATTEMPTS = 10


class DaskCluster(Protocol):
    """A cluster to be connected to; equal ones are the same."""

    @property
    def wait_seconds(self) -> float:
        """How long scheduler and workers are waited for, one after the other."""
        ...

    @property
    def name(self) -> str:
        """What it is called in messages."""
        ...

    @property
    def start_workers(self) -> str:
        """What to do where there are no workers."""
        ...

    def connect(self, stack: ExitStack, listener: ProgressCallback, wait_seconds: float) -> Client:
        """Connect to it until a stack is closed; ConfigError where that cannot be."""
        ...


@dataclass(frozen=True, slots=True)
class DaskScheduler:
    """A Dask scheduler that runs elsewhere, and its workers."""

    address: str | None = None
    """Such as tcp://scheduler:8786; None where a file holds it."""
    file: Path | None = None
    """What `dask scheduler --scheduler-file` writes."""
    wait_seconds: float = 60.0
    """How long it is waited for, and then its workers."""
    where: str = "executor.address"
    """What names it, for messages."""

    @property
    def name(self) -> str:
        """Its address or its file."""
        return self.address or str(self.file)

    @property
    def start_workers(self) -> str:
        """The command that starts workers."""
        return f"start some with `dask worker {self.address or f'--scheduler-file {self.file}'} --nthreads 1`"

    def connect(self, stack: ExitStack, listener: ProgressCallback, wait_seconds: float) -> Client:
        """Connect to it, as soon as it is there.

        Raises:
            ConfigError: it is not there in time, refuses this client, or `distributed` is not installed.
        """
        check_installed(self.where)
        waiting = Waiting(listener, f"for the Dask scheduler {self.name}", wait_seconds)
        while True:
            try:
                client = _client_of(self._address())
                break
            except (OSError, ValueError, TypeError, RuntimeError) as error:  # TimeoutError is an OSError
                if _is_final(error) or not waiting.goes_on():
                    raise self._unreachable(error) from error
            time.sleep(_PAUSE_SECONDS)
        waiting.end()
        stack.enter_context(client)
        return client

    def _address(self) -> str:
        """Return the address; a file is read each time, since a scheduler that is started again writes it again."""
        if self.file is None:
            return self.address or ""
        text = self.file.read_text(encoding="utf-8")
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(text)["address"])
        raise FileNotFoundError(f"no address in the {len(text):,} characters of {self.file}")

    def _unreachable(self, error: Exception) -> ConfigError:
        found = str(error) or "it accepts connections, and does not greet"
        if self.file is not None and isinstance(error, FileNotFoundError):
            return ConfigError(
                "no Dask scheduler has written its file",
                where=self.where,
                found=f"{error.strerror}: {self.file}" if error.strerror else found,
                expected=f"the file within {format_age(self.wait_seconds)}",
                remedy=f"start it with `dask scheduler --scheduler-file {self.file}`, or set executor.wait to more",
            )
        return ConfigError(
            "no Dask scheduler answers at this address",
            where=self.where,
            found=f"{self.name}: {found}",
            expected=f"an answer within {format_age(max(self.wait_seconds, CONNECT_SECONDS))}",
            remedy="start it with `dask scheduler`, or correct the address; one of tls:// takes a client that Dask's "
            "configuration gives a certificate of the same authority",
        )


def check_installed(where: str) -> None:
    """Raise ConfigError where `distributed` is not installed."""
    try:
        import distributed as _  # noqa: F401
    except ImportError as error:
        what, remedy = "the package `distributed` is not installed", "pip install 'nanoset-platform[dask]'"
        raise ConfigError(what, where=where, found=str(error), remedy=remedy) from error


def _client_of(address: str) -> Client:
    """Return a client of the scheduler at an address, once that has greeted.

    The greeting is waited for in a thread of its own, since this one may run an event loop, as notebooks do.
    """
    with ThreadPoolExecutor(1) as thread:
        thread.submit(asyncio.run, _greet(address, CONNECT_SECONDS)).result()
    return open_client(address)


async def _greet(address: str, seconds: float) -> None:
    """Connect to an address and disconnect; TimeoutError where it accepts connections and does not greet.

    `distributed` bounds how long it connects, but waits for the greeting without end.
    """
    from distributed import Security
    from distributed import comm as untyped

    connect: Any = untyped.core.connect
    security: Any = Security()  # type: ignore[no-untyped-call, unused-ignore]
    encryption = security.get_connection_args("client")
    comm = await asyncio.wait_for(connect(address, timeout=seconds, **encryption), seconds + 1)
    await comm.close()


def open_client(scheduler: Any) -> Client:
    """Return a client of a scheduler at an address, or of a cluster of this process.

    `distributed` asserts that nothing comes with the scheduler's greeting, where also a worker's joining may come.
    """
    import distributed as untyped

    distributed: Any = untyped
    for _ in range(_ATTEMPTS):
        with suppress(AssertionError):
            return distributed.Client(scheduler, timeout=CONNECT_SECONDS, set_as_default=False, name="nanoset")
        time.sleep(_PAUSE_SECONDS)
    raise TimeoutError(f"workers were joining each time that this process wanted to, {_ATTEMPTS} times")


def _is_final(error: Exception) -> bool:
    """Return whether waiting would not help: a malformed address, a refusal by TLS."""
    from distributed.comm import core as untyped

    fatal: Any = untyped.FatalCommClosedError
    return not isinstance(error, OSError) or isinstance(error, fatal)


class Connection:
    """A client of a cluster, and how long this process still waits for that cluster."""

    def __init__(self, cluster: DaskCluster) -> None:
        self.cluster = cluster
        self.wait_seconds = cluster.wait_seconds
        """Nothing once the cluster was waited for in vain: hundreds of outputs may be to come."""
        self._client: Client | None = None
        self._stack = ExitStack()

    def open(self, listener: ProgressCallback) -> Client:
        """Return the client; a new one where there is none, or where the former has lost its scheduler."""
        if self._client is None or self._client.status != "running":
            self.close()
            patience, self.wait_seconds = self.wait_seconds, 0.0
            self._client = self.cluster.connect(self._stack, listener, patience)
            self.wait_seconds = self.cluster.wait_seconds
        return self._client

    def close(self) -> None:
        """Disconnect."""
        self._client = None
        self._stack.close()


_kept: list[dict[DaskCluster, Connection]] = []
"""The connections of a block of `connections_kept`; at most one."""


@contextmanager
def connections_kept() -> Iterator[None]:
    """Connect to a cluster once within this block, and not once for every call of `DaskExecutor.run`."""
    if _kept:
        yield
        return
    kept: dict[DaskCluster, Connection] = {}
    _kept.append(kept)
    try:
        yield
    finally:
        _kept.remove(kept)
        for connection in kept.values():
            connection.close()


@contextmanager
def connected(cluster: DaskCluster) -> Iterator[Connection]:
    """Yield a connection to a cluster: that of the block of `connections_kept`, or one for this block."""
    with connections_kept():
        yield _kept[0].setdefault(cluster, Connection(cluster))
