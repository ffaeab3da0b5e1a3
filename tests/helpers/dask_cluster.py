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

ALLOWED_DEATHS = 1
"""How many workers may die with a task before the scheduler gives it up."""


OWN_MOUNTS = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
"""Words before a shell command that let it see other file systems than this process does."""


def can_hide() -> bool:
    """Return whether this machine lets a process mount file systems that only it sees."""
    command = [*OWN_MOUNTS, "mount -t tmpfs none /mnt"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, capture_output=True).returncode == 0
    )


class Cluster:
    """A running scheduler, and the worker processes that were started for it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._file = folder, folder / "scheduler.json"
        options = [
            "--port",
            "0",
            "--no-dashboard",
            "--no-show",
            "--scheduler-file",
            str(self._file),
        ]
        self.scheduler = self._start("scheduler", "--host", "127.0.0.1", *options)
        self.workers: list[subprocess.Popen[bytes]] = []

    @property
    def address(self) -> str:
        """Return the address at which the scheduler listens."""
        assert wait_until(
            lambda: self._file.exists() and self._file.read_bytes().endswith(b"}"), 20
        ), self.log()
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
            options = [
                "--no-nanny",
                "--nthreads",
                "1",
                "--no-dashboard",
                "--host",
                "127.0.0.1",
                "--memory-limit",
                "0",
            ]
            if preload is not None:
                options += ["--preload", preload]
            self.workers.append(self._start("worker", self.address, *options, hidden=hidden))
        assert wait_until(lambda: self._registered() == count, 60, pause=0.2), self.log()
        return [worker.pid for worker in self.workers]

    def _registered(self) -> int:
        from distributed import Client

        try:
            with Client(self.address, set_as_default=False, timeout=5) as client:
                return len(client.nthreads())
        except (
            AssertionError,
            OSError,
        ):  # a worker joined at this very moment, or no answer came: asked again
            return -1

    def _start(
        self, what: str, *arguments: str, hidden: Path | None = None
    ) -> subprocess.Popen[bytes]:
        # not through the current folder, which is another
        paths = [str(Path(__file__).parents[2]), *sys.path]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join(path for path in paths if path),
            "DASK_DISTRIBUTED__SCHEDULER__ALLOWED_FAILURES": str(ALLOWED_DEATHS),
        }
        with (self.folder / "log").open("ab") as log:
            command = [sys.executable, "-m", f"distributed.cli.dask_{what}", *arguments]
            if hidden is not None:
                environment |= {
                    name: str(hidden / name) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")
                }
                command += ["--local-directory", str(hidden / "scratch")]
                folders = 'mkdir "$HOME" "$TMPDIR" "$XDG_CACHE_HOME"'
                command = [
                    *OWN_MOUNTS,
                    f'mount -t tmpfs none "{hidden}" && {folders} && exec "$0" "$@"',
                    *command,
                ]
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
    given = {
        "n_workers": 0,
        "processes": False,
        "threads_per_worker": 1,
        "dashboard_address": "127.0.0.1:0",
    }
    with distributed.LocalCluster(
        **given | {"protocol": "tcp", "host": "127.0.0.1"} | options
    ) as cluster:
        yield cluster
