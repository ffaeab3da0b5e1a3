"""A Ray cluster whose nodes are separate groups of processes of this machine, as on real machines.

The head has no processors, so that it survives when nodes with workers are killed.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from helpers.child_processes import wait_until

HOST = "127.0.0.1"
HIDE_NANOSET = """
import sys
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "nanoset_core":
            raise ModuleNotFoundError("No module named 'nanoset_core'", name=name)
sys.meta_path.insert(0, Finder())
"""
"""Code after which Python does not find nanoset."""


def free_port() -> int:
    """Return a port at which nothing listens at the moment."""
    with socket.create_server((HOST, 0)) as server:
        return int(server.getsockname()[1])


class RayNode:
    """One node of a cluster: a group of processes that Ray has started."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process
        """`ray start --block`, the ancestor of all processes of the node."""

    def pids(self) -> list[int]:
        """Return the ids of all processes of the node."""
        import psutil

        if self._process.poll() is not None:
            return []
        processes = psutil.Process(self._process.pid).children(recursive=True)
        return [self._process.pid, *(process.pid for process in processes)]

    def worker_pids(self) -> list[int]:
        """Return the ids of the processes that run tasks, or have run some."""
        workers = []
        for pid in self.pids():
            with contextlib.suppress(OSError):
                environment = Path(f"/proc/{pid}/environ").read_bytes()
                if b"\0RAY_JOB_ID=" in environment:
                    workers.append(pid)
        return workers

    def kill(self) -> None:
        """Kill all processes at once, as when a machine loses its power."""
        for pid in self.pids():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self._process.wait()


class RayNodes:
    """A running head, and the nodes that were started for it."""

    def __init__(self, folder: Path, *, has_nanoset: bool = True) -> None:
        """Start the head.

        Args:
            folder: A folder with a short path, because sockets are in it.
            has_nanoset: Whether the head can import nanoset.
        """
        self.folder = folder
        self._port = free_port()
        self._client_port = free_port()
        self.address = f"ray://{HOST}:{self._client_port}"
        """The address of the client server."""
        self.nodes: list[RayNode] = []
        self.temporary_folder = folder / "tmp"
        """The folder of the workers for temporary files."""
        self.temporary_folder.mkdir()
        self.head = self._start(
            "--head",
            f"--port={self._port}",
            f"--ray-client-server-port={self._client_port}",
            f"--temp-dir={folder}",
            "--include-dashboard=false",
            n_cpus=0,
            has_nanoset=has_nanoset,
        )
        # It imports ray, which takes more than a minute on a machine that is busy with other tests.
        assert wait_until(self._listens, 180), self.log()

    def _listens(self) -> bool:
        """Return whether the client server accepts connections."""
        try:
            with socket.create_connection((HOST, self._client_port), timeout=1):
                return True
        except OSError:
            return False

    def add_node(self, n_cpus: int = 2, *, has_nanoset: bool = True) -> RayNode:
        """Start a node, which may run as many tasks at a time as it has processors.

        Args:
            n_cpus: Number of processors.
            has_nanoset: Whether its workers can import nanoset.
        """
        address = f"--address={HOST}:{self._port}"
        node = self._start(address, n_cpus=n_cpus, has_nanoset=has_nanoset)
        self.nodes.append(node)
        # Nodes that start at the same time may choose the same ports. The head counts as one, too.
        n_nodes = 1 + len(self.nodes)
        assert wait_until(lambda: self.n_started_nodes() == n_nodes, 180), self.log()
        return node

    def n_started_nodes(self) -> int:
        """Return how many nodes, including the head, have reported that they are running."""
        return self.log().count("Ray runtime started")

    def _start(self, *options: str, n_cpus: int, has_nanoset: bool) -> RayNode:
        """Start a node by `ray start`."""
        # Processes of Ray have other current folders, which an empty path stands for.
        python_path = [str(Path(__file__).parents[2]), *(path for path in sys.path if path)]
        if not has_nanoset:
            # Python imports this module when it starts.
            module = self.folder / "hidden" / "sitecustomize.py"
            module.parent.mkdir(exist_ok=True)
            module.write_text(HIDE_NANOSET)
            python_path.insert(0, str(module.parent))
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(python_path),
            "TMPDIR": str(self.temporary_folder),
            "RAY_USAGE_STATS_ENABLED": "0",
            # By default, workers give way to all other processes of a machine.
            "RAY_worker_niceness": "0",
            "RAY_AUTH_MODE": "disabled",
        }
        command = [sys.executable, "-m", "ray.scripts.scripts", "start", "--block"]
        command += [f"--num-cpus={n_cpus}", "--object-store-memory=80000000"]
        # 0 stands for any free port.
        command += ["--min-worker-port=0", "--max-worker-port=0"]
        command += ["--dashboard-agent-listen-port=0", *options]
        with (self.folder / "log").open("ab") as log:
            process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return RayNode(process)

    def log(self) -> str:
        """Return what the nodes printed."""
        return (self.folder / "log").read_text()

    def end(self) -> None:
        """Kill all nodes."""
        for node in [*self.nodes, self.head]:
            node.kill()


@contextmanager
def running(*, has_nanoset: bool = True) -> Iterator[RayNodes]:
    """Run a cluster, at first without workers, until the block ends.

    Args:
        has_nanoset: Whether the head can import nanoset.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-", dir="/tmp"))
    try:
        nodes = RayNodes(folder, has_nanoset=has_nanoset)
        try:
            yield nodes
        finally:
            nodes.end()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
