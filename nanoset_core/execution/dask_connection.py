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
"""A cluster that this process can connect to; equal values mean the same cluster."""

Message: TypeAlias = TaskReport | str
"""What a task on a worker reports: progress, or a warning."""

TOPIC = "nanoset"
"""Topic of the events of Dask by which workers report.

All runs have the same topic, because a scheduler never forgets a topic.
"""


def encode_message(place: str, message: Message) -> list[Any]:
    """Return a message of a task as an event of Dask, for which it may have only JSON values.

    Args:
        place: Folder of the run in the store of the outputs, which identifies the run.
        message: The message.

    Returns:
        The place, the kind of the message, its text, and for the progress of a part the three
        numbers of its `Amount`.
    """
    if isinstance(message, TaskNote):
        return [place, "note", message.text]
    if isinstance(message, PartReport):
        return [place, "part", message.part, *astuple(message.amount)]
    return [place, "warning", message]


def _decode_message(event: list[Any]) -> tuple[str, Message]:
    """Return the place and the message that `encode_message` has made an event from."""
    place, kind, text, *amount = event
    if kind == "note":
        return place, TaskNote(text)
    if kind == "part":
        return place, PartReport(text, Amount(*amount))
    return place, text


class Connection:
    """The connection of this process to a cluster, which connects again if it was lost."""

    def __init__(self, cluster: DaskCluster) -> None:
        """Prepare a connection; `open` connects.

        Args:
            cluster: The cluster.
        """
        self.cluster = cluster
        self.wait_seconds = cluster.wait_seconds
        """How long to wait for the scheduler, and for workers.

        0 after workers were waited for in vain: a build may have hundreds of outputs left.
        """
        self.receivers: dict[str, Callable[[Message], None]] = {}
        """Place of each run → the function that receives the messages of its tasks."""
        self._failure: ConfigError | None = None
        self._client: Client | None = None
        self._stack = ExitStack()

    def open(self, progress: Progress) -> Client:
        """Return the client of the cluster, after connecting if necessary.

        An attempt that failed is not repeated: its error is raised again.

        Args:
            progress: Shows how long was waited.

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
        """Pass a message of a task to the run that the task belongs to.

        Args:
            event: A time, and the encoded message.
        """
        _, encoded_message = event
        place, message = _decode_message(encoded_message)
        # All runs have the same topic: leave out events of runs of other processes.
        if place in self.receivers:
            self.receivers[place](message)

    def close(self) -> None:
        """Disconnect from the cluster, and end the Slurm jobs that were started for it."""
        self._client = None
        self._stack.close()


_shared: list[dict[DaskCluster, Connection]] = []
"""The connections of the outermost block of `connections_kept`, as its only item.

It is empty outside of such a block.
"""


@contextmanager
def connections_kept() -> Iterator[None]:
    """Let all runs of tasks in the block use one connection to each cluster.

    Otherwise each run would connect to its cluster again. An inner block uses the connections of
    the outermost one.
    """
    if _shared:
        yield
        return
    connections: dict[DaskCluster, Connection] = {}
    _shared.append(connections)
    try:
        yield
    finally:
        _shared.remove(connections)
        for connection in connections.values():
            connection.close()


@contextmanager
def connected(cluster: DaskCluster) -> Iterator[Connection]:
    """Yield a connection to a cluster: that of `connections_kept`, or one that ends with the block.

    Args:
        cluster: The cluster.
    """
    with connections_kept():
        yield _shared[0].setdefault(cluster, Connection(cluster))
