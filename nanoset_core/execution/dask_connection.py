"""Keep this process connected to a Dask cluster, for one run of tasks or for a whole build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import astuple
from typing import Any, TypeAlias

from nanoset_core.errors import ConfigError
from nanoset_core.execution.dask_scheduler import Client, DaskScheduler
from nanoset_core.execution.progress import Amount, PartReport, Progress, TaskNote, TaskReport
from nanoset_core.execution.slurm import SlurmJobs

DaskCluster: TypeAlias = DaskScheduler | SlurmJobs
"""What can be connected to; equal ones are the same cluster."""

Message: TypeAlias = TaskReport | str
"""What a task on a worker reports: progress, or a warning."""

TOPIC = "nanoset"
"""Topic of the events by which workers report.

All runs have the same topic, because a scheduler never forgets one.
"""


def encode_message(place: str, message: Message) -> list[Any]:
    """Return a message as an event of Dask, which consists of JSON's types.

    Args:
        place: Identifies the run: its folder in the store of the outputs.
        message: The message.
    """
    if isinstance(message, TaskNote):
        return [place, "note", message.text]
    if isinstance(message, PartReport):
        return [place, "part", message.part, *astuple(message.amount)]
    return [place, "warning", message]


def _decode_message(event: list[Any]) -> tuple[str, Message]:
    """Return (the run's place, the message) of an event."""
    place, kind, text, *amount = event
    if kind == "note":
        return place, TaskNote(text)
    if kind == "part":
        return place, PartReport(text, Amount(*amount))
    return place, text


class Connection:
    """A client of a cluster, and how long this process still waits for that cluster."""

    def __init__(self, cluster: DaskCluster) -> None:
        self.cluster = cluster
        self.wait_seconds = cluster.wait_seconds
        """0 once workers were waited for in vain: a build may have hundreds of outputs left."""
        self.receivers: dict[str, Callable[[Message], None]] = {}
        """Place of each run → the function that receives the messages of its tasks."""
        self._failure: ConfigError | None = None
        self._client: Client | None = None
        self._stack = ExitStack()

    def open(self, progress: Progress) -> Client:
        """Return the client, and connect if there is none, or if it has lost its scheduler.

        An attempt that failed is not repeated: its error is raised again.

        Raises:
            ConfigError: `distributed` is not installed, or the cluster cannot be reached.
        """
        if self._failure is not None:
            raise self._failure
        try:
            import distributed as _  # noqa: F401
        except ImportError as error:
            raise ConfigError(
                "the package `distributed` is not installed",
                where=self.cluster.where,
                found=str(error),
                remedy="pip install 'nanoset-platform[dask]'",
            ) from error
        if self._client is None or self._client.status != "running":
            self.close()
            self._client = self._connect(progress)
            self.wait_seconds = self.cluster.wait_seconds
        return self._client

    def _connect(self, progress: Progress) -> Client:
        """Connect to the cluster, and subscribe to the messages of its workers."""
        try:
            client = self.cluster.connect(self._stack, progress, self.cluster.wait_seconds)
        except ConfigError as error:
            self._failure = error
            raise
        self._stack.enter_context(client)
        client.subscribe_topic(TOPIC, self._receive)
        return client

    def _receive(self, event: tuple[float, list[Any]]) -> None:
        """Pass an event, a time and an encoded message, to the run that it belongs to."""
        place, message = _decode_message(event[1])
        if place in self.receivers:  # not an event of another process's run
            self.receivers[place](message)

    def close(self) -> None:
        """Disconnect."""
        self._client = None
        self._stack.close()


_kept: list[dict[DaskCluster, Connection]] = []
"""The connections of the outermost block of `connections_kept`; empty outside of one."""


@contextmanager
def connections_kept() -> Iterator[None]:
    """Connect to each cluster only once in a block, instead of once for each run of tasks."""
    if _kept:
        yield
        return
    connections: dict[DaskCluster, Connection] = {}
    _kept.append(connections)
    try:
        yield
    finally:
        _kept.remove(connections)
        for connection in connections.values():
            connection.close()


@contextmanager
def connected(cluster: DaskCluster) -> Iterator[Connection]:
    """Yield the connection of a block of `connections_kept`, or one that ends with this block."""
    with connections_kept():
        yield _kept[0].setdefault(cluster, Connection(cluster))
