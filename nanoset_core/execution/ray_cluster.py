"""Connect to a Ray cluster that runs elsewhere."""

from __future__ import annotations

import logging
import os
import socket
import time
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from urllib.parse import urlsplit

from nanoset_core.errors import ConfigError
from nanoset_core.execution.connecting import connect_when_running
from nanoset_core.execution.interruption import handlers_restored
from nanoset_core.execution.progress import Progress
from nanoset_core.execution.ray import RayClient
from nanoset_core.wording import format_age

_REACH_SECONDS = 8.0
"""Time limit to reach the port of the client server."""


@dataclass(frozen=True, slots=True)
class RayCluster:
    """A Ray cluster that was started independently of this process."""

    address: str
    """Address of the client server on its head node, such as ray://head:10001."""
    wait_seconds: float = 60.0
    """How long to wait for the client server, and then for workers."""
    where: str = "executor.address"
    """The setting that names the cluster, for messages."""

    @property
    def software(self) -> str:
        """The program that the cluster consists of, for messages."""
        return "Ray"

    @property
    def name(self) -> str:
        """The address, for messages."""
        return self.address

    @property
    def start_workers(self) -> str:
        """How to start workers, for messages."""
        host = urlsplit(self.address).hostname
        return f"add a machine with `ray start --address={host}:6379`"

    def connect(self, stack: ExitStack, progress: Progress) -> RayClient:
        """Connect to the cluster as soon as it runs.

        The cluster may be started at the same time as this program, or later. So if nothing answers
        yet, this tries again twice a second. If the cluster answers, but refuses this program, that
        is an error at once.

        Args:
            stack: When it is closed, the connection ends.
            progress: Shows the user how long was waited.

        Raises:
            ConfigError: Ray is not installed, or the cluster does not answer in time, or it refuses
                this program.
        """
        self._check_process()
        waiting = progress.wait(f"for the Ray cluster {self.name}", self.wait_seconds)
        started_at = time.monotonic()
        try:
            client = connect_when_running(self._try_to_connect, waiting)
        except OSError as error:
            tried_seconds = time.monotonic() - started_at
            raise self._unreachable(error, tried_seconds) from error
        except (RuntimeError, ValueError, ImportError) as error:
            raise self._refused(error) from error
        stack.callback(client.close)
        return client

    def _check_process(self) -> None:
        """Check that this process can connect to a Ray cluster, which runs tasks on other machines.

        Ray must be installed, with the part that connects to a distant cluster. And Ray allows only
        one connection per process. If there is one already, other code uses it, such as the user's
        own in a notebook, and must not be disturbed.

        Raises:
            ConfigError: Ray is not installed, or the process is already connected to a cluster.
        """
        # If a connection is lost, Ray would otherwise start a cluster on this machine.
        os.environ.setdefault("RAY_ENABLE_AUTO_CONNECT", "0")
        try:
            import grpc as _  # noqa: F401
            import ray
        except ImportError as error:
            raise ConfigError(
                "the package `ray` with its extra `client` is not installed",
                where=self.where,
                found=str(error),
                remedy="pip install 'nanoset-platform[ray]'",
            ) from error
        if ray.is_initialized():
            raise ConfigError(
                "this process is already connected to a Ray cluster",
                where=self.where,
                remedy="call `ray.shutdown()` first, or run `nanoset build` as a separate process",
            )

    def _try_to_connect(self) -> RayClient:
        """Connect to a Ray cluster, or fail within seconds if it does not run.

        Programs connect to the client server, a process on the main machine of the cluster, such as
        ray://10.0.0.5:10001. The caller tries again after an OSError, since the cluster may be
        starting.

        Raises:
            OSError: No client server answers at the address.
            RuntimeError: The cluster has another version of Ray or of Python.
            ImportError: The main machine of the cluster cannot import this package.
        """
        import ray

        self._check_port_answers()
        # Ray's handler of SIGTERM would end this process without cleaning up.
        with handlers_restored(), _silenced():
            ray.init(self.address, log_to_driver=False, logging_level=logging.ERROR)
            try:
                return RayClient()
            except BaseException:
                ray.shutdown()
                raise

    def _check_port_answers(self) -> None:
        """Check that a program accepts connections at the address of the cluster.

        Ray itself takes half a minute to find out that none does.

        Raises:
            OSError: None does.
        """
        parts = urlsplit(self.address)
        with socket.create_connection((parts.hostname, parts.port), timeout=_REACH_SECONDS):
            pass

    def _unreachable(self, error: OSError, tried_seconds: float) -> ConfigError:
        """Return the error for a cluster that did not answer in time, with what the user can do.

        Args:
            error: Why the last attempt failed, such as "Connection refused".
            tried_seconds: How long all attempts took. If the settings say not to wait, this may be
                longer than they say, and the message must not say "within 0 s".
        """
        limit_seconds = max(self.wait_seconds, tried_seconds)
        return ConfigError(
            "no Ray cluster answers at this address",
            where=self.where,
            found=f"{self.address}: {error}",
            expected=f"an answer of Ray's client server within {format_age(limit_seconds)}",
            remedy="start the cluster with `ray start --head`, or correct the address: the port is "
            "that of --ray-client-server-port, by default 10001; a cluster with token "
            "authentication also needs RAY_AUTH_MODE=token and its token here",
        )

    def _refused(self, error: Exception) -> ConfigError:
        """Return the error for a cluster that does not accept this program, with what the user can
        do.

        Usually it has another version of Ray or of Python.

        Args:
            error: The error of Ray.
        """
        return ConfigError(
            "the Ray cluster refuses the connection",
            where=self.where,
            found=f"{self.address}: {error}",
            expected="nanoset-platform, Ray and Python in the same versions on all machines",
            remedy="install the same versions here and on all machines of the cluster, also on its "
            "head, and start it again",
        )


@contextmanager
def _silenced() -> Iterator[None]:
    """Within the block, which connects to a cluster, print nothing of what Ray warns of or logs.

    If the connection times out, a warning of Ray says so. The caller raises an error that says the
    same. And what the client server logs is for the administrator of the cluster.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        logging.getLogger("ray").setLevel(logging.ERROR)
        logging.getLogger("ray.util.client.logsclient").addHandler(logging.NullHandler())
        yield
