"""A Dask scheduler and workers in separate processes, as on real clusters.

A worker that dies is not restarted.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from helpers.child_processes import wait_until
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.storage.access import FileAccess

ALLOWED_DEATHS = 1
"""How many workers may die with a task before the scheduler gives it up."""


OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
"""Words before a shell command that let it see other file systems than this process does."""


def can_hide() -> bool:
    """Return whether this machine lets a process mount file systems that only it sees."""
    if shutil.which("unshare") is None:
        return False
    command = [*OWN_MOUNTS, "mount -t tmpfs none /mnt"]
    return subprocess.run(command, capture_output=True).returncode == 0


class Cluster:
    """A running scheduler, and the worker processes that were started for it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "scheduler.json"
        """Here the scheduler writes its address."""
        options = ["--host", "127.0.0.1", "--no-dashboard", "--no-show"]
        # Port 0 stands for any free port.
        options += ["--port", "0", "--scheduler-file", str(self._file)]
        self.scheduler = self._start("scheduler", *options)
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """The address at which the scheduler listens."""

        def is_written() -> bool:
            return self._file.exists() and self._file.read_bytes().endswith(b"}")

        assert wait_until(is_written, 20), self.log()
        return str(json.loads(self._file.read_bytes())["address"])

    def staff(
        self, count: int, *, hidden: Path | None = None, preload: str | None = None
    ) -> list[int]:
        """Start workers until `count` are alive, and return their process ids.

        Args:
            count: Number of workers.
            hidden: A folder that each new worker sees as an empty one of its own, with its home,
                temporary and scratch folders in it, as if it were on another machine.
            preload: A module that new workers import first.
        """
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < count:
            options = ["--no-nanny", "--no-dashboard", "--host", "127.0.0.1"]
            # A memory limit of 0 is none.
            options += ["--nthreads", "1", "--memory-limit", "0"]
            if preload is not None:
                options += ["--preload", preload]
            self.workers.append(self._start("worker", self.address, *options, hidden=hidden))
        assert wait_until(lambda: self._registered() == count, 60, pause=0.2), self.log()
        return [worker.pid for worker in self.workers]

    def dismiss(self) -> None:
        """Kill all workers, and wait until the scheduler has noticed."""
        for worker in self.workers:
            worker.kill()
            worker.wait()
        self.workers.clear()
        assert wait_until(lambda: self._registered() == 0, 60, pause=0.2), self.log()

    def _registered(self) -> int:
        """Return how many workers the scheduler knows, or -1 if it does not answer."""
        from distributed import Client

        try:
            with Client(self.address, set_as_default=False, timeout=5) as client:
                return len(client.nthreads())
        except (AssertionError, OSError):
            # The client raises AssertionError if a worker joins while it connects.
            return -1

    def _start(
        self, program: str, *arguments: str, hidden: Path | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a process of the cluster.

        Args:
            program: `scheduler` or `worker`.
            arguments: Its options.
            hidden: See `staff`.
        """
        # The process has another current folder: name the repository, and not the current folder,
        # for which `sys.path` contains an empty string.
        import_paths = [str(Path(__file__).parents[2])]
        import_paths += [path for path in sys.path if path]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(import_paths),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(ALLOWED_DEATHS),
        }
        command = [sys.executable, "-m", f"distributed.cli.dask_{program}", *arguments]

        # Mount an empty file system over the hidden folder. Then run the command, whose words are
        # the arguments "$0" and "$@" of the shell.
        if hidden is not None:
            for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME"):
                environment[name] = str(hidden / name)
            command += ["--local-directory", str(hidden / "scratch")]
            mount = f'mount -t tmpfs none "{hidden}"'
            make_folders = 'mkdir "$HOME" "$TMPDIR" "$XDG_CACHE_HOME"'
            script = f'{mount} && {make_folders} && exec "$0" "$@"'
            command = [*OWN_MOUNTS, script, *command]

        with (self.folder / "log").open("ab") as log:
            return subprocess.Popen(
                command,
                cwd=self.folder,
                env=environment,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def log(self) -> str:
        """Return what scheduler and workers printed."""
        return (self.folder / "log").read_text()

    def end(self) -> None:
        """Kill scheduler and workers."""
        for process in [*self.workers, self.scheduler]:
            process.kill()
            process.wait()


@contextmanager
def running(folder: Path) -> Iterator[Cluster]:
    """Run a cluster, at first without workers, until the block ends."""
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.end()


@contextmanager
def within(**options: Any) -> Iterator[Any]:
    """Run a scheduler in this process until the block ends; its workers would be threads."""
    import pytest

    distributed = pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    defaults = {
        "n_workers": 0,
        "processes": False,
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
        "protocol": "tcp",
        "host": "127.0.0.1",
    }
    with distributed.LocalCluster(**(defaults | options)) as cluster:
        yield cluster


def executor_on(
    folder: Path, *address: str, progress: Progress = SILENT, **settings: object
) -> ClusterExecutor:
    """Return an executor on the cluster of a scheduler.

    Args:
        folder: The folder that this process shares with the workers.
        address: Of the scheduler, unless `settings` names its file.
        progress: Shows what is waited for.
        settings: Of the scheduler.
    """
    return ClusterExecutor(
        DaskScheduler(*address, **settings), FileAccess(folder), progress=progress
    )
