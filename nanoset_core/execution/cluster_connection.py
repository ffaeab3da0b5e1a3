"""Keep this process connected to a cluster, for one run of tasks or for a whole build."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from nanoset_core.errors import ConfigError
from nanoset_core.execution.cluster import ClusterClient, Message, TaskCluster
from nanoset_core.execution.progress import Progress


class ClusterConnection:
    """The connection of this process to a cluster of workers. If it was lost, it connects again.

    Several runs of tasks may use it at the same time. Each message from a worker says which run it
    belongs to, and is passed to that run.
    """

    def __init__(self, cluster: TaskCluster) -> None:
        """Prepare a connection; `open` connects.

        Args:
            cluster: The cluster.
        """
        self.cluster = cluster
        self.wait_seconds = cluster.wait_seconds
        """How long to wait for the cluster, and for workers.

        0 after workers were waited for in vain: a build may have hundreds of outputs left.
        """
        self._receivers: dict[str, Callable[[Message], None]] = {}
        """Folder of each run → the function that receives the messages of its tasks."""
        self._failure: ConfigError | None = None
        self._client: ClusterClient | None = None
        self._stack = ExitStack()

    def open(self, progress: Progress) -> ClusterClient:
        """Connect to the cluster if necessary, and return the client, which hands out tasks.

            never connected                a new connection
            connected                      the same connection
            the connection was lost        a new connection
            an earlier attempt failed      its error again, without waiting

        The last case matters since a build makes hundreds of outputs, one after another, and would
        wait for a missing cluster each time.

        Args:
            progress: Shows the user how long was waited.

        Raises:
            ConfigError: A package is not installed, or the cluster cannot be reached.
        """
        if self._failure is not None:
            raise self._failure
        if self._client is None or not self._client.is_connected:
            self.close()
            self._client = self._connect(progress)
            self.wait_seconds = self.cluster.wait_seconds
        return self._client

    def _connect(self, progress: Progress) -> ClusterClient:
        """Connect to the cluster, and let it send the messages of its workers to this process.

        If this fails, the error is kept: a build may have hundreds of outputs, each of which would
        otherwise wait for the cluster again.

        Args:
            progress: Shows the user how long was waited.
        """
        try:
            client = self.cluster.connect(self._stack, progress)
        except ConfigError as error:
            self._failure = error
            raise
        client.receive_messages(self._receive)
        return client

    def _receive(self, run_folder: str, message: Message) -> None:
        """Pass a message of a worker to the run of tasks that it belongs to.

        Args:
            run_folder: A folder that each run has in the store of the outputs, such as
                ".workers/4c2e90". It identifies the run.
            message: Such as the progress of a task, or a warning.
        """
        # It may be a message to another process, or to a run that has ended.
        receive = self._receivers.get(run_folder)
        if receive is not None:
            receive(message)

    @contextmanager
    def messages_passed_to(
        self, receive: Callable[[Message], None], run_folder: str
    ) -> Iterator[None]:
        """Within the `with` block, pass the messages of the tasks of one run to a function.

        Several runs may share the connection, so each message has the folder of its run.

        Args:
            receive: The function.
            run_folder: The folder of the run, such as ".workers/4c2e90".
        """
        self._receivers[run_folder] = receive
        try:
            yield
        finally:
            del self._receivers[run_folder]

    def close(self) -> None:
        """Disconnect from the cluster, and end the Slurm jobs that were started for it."""
        self._client = None
        self._stack.close()


_kept_connections: dict[TaskCluster, ClusterConnection] | None = None
"""The connections of the outermost block of `connections_kept`; None outside of such a block."""


@contextmanager
def connections_kept() -> Iterator[None]:
    """Let all runs of tasks in the `with` block use one connection to each cluster.

        with connections_kept():
            tokenize(…)    # connects to the cluster
            shuffle(…)     # uses the same connection
                           # the connection is closed at the end of the block

    Without the block, each of the two would connect and disconnect.
    """
    global _kept_connections
    # An inner block uses the connections of the outermost one, which closes them.
    if _kept_connections is not None:
        yield
        return

    # `connected` adds the connections, when they are first needed.
    connections: dict[TaskCluster, ClusterConnection] = {}
    _kept_connections = connections
    try:
        yield
    finally:
        _kept_connections = None
        for connection in connections.values():
            connection.close()


@contextmanager
def connected(cluster: TaskCluster) -> Iterator[ClusterConnection]:
    """Yield a connection to a cluster of workers, such as Dask or Ray.

    The connection is closed at the end of this block, or, within a block of `connections_kept`, at
    the end of that. So several callers within that block use the same connection.

    Args:
        cluster: The cluster.
    """
    with connections_kept():  # does nothing within another block of it
        assert _kept_connections is not None  # set by `connections_kept`, which closes them
        if cluster not in _kept_connections:
            _kept_connections[cluster] = ClusterConnection(cluster)
        yield _kept_connections[cluster]
