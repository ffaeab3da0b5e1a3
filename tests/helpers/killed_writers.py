"""Kill workers in the middle of their work."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from helpers.child_processes import wait_until


def process_that_writes_to(folder: Path, pids: Iterable[int]) -> int | None:
    """Return which of some processes has an unfinished file of a folder open."""
    for pid in pids:
        # The process, or one of its files, may be closed at any moment.
        with contextlib.suppress(FileNotFoundError):
            for descriptor in Path(f"/proc/{pid}/fd").iterdir():
                path = descriptor.readlink()
                if path.parent == folder and path.name.startswith(".tmp-"):
                    return pid
    return None


def kill_first_writer(
    build: Callable[[], object],
    folder: Path,
    worker_pids: Callable[[], Iterable[int]],
    kill: Callable[[int], None] = lambda pid: os.kill(pid, signal.SIGKILL),
) -> int:
    """Run a build, and kill the worker that first writes to a folder.

    Args:
        build: Runs the build.
        folder: The folder.
        worker_pids: Returns the ids of the processes that are workers at the moment.
        kill: Kills the worker with an id.

    Returns:
        The id of the killed process, after the build has ended.
    """
    killed_pids: list[int] = []

    def kill_writer() -> bool:
        """Kill the worker that writes to the folder, and return whether there is one."""
        # Looking at the folder is quick, whereas listing the workers takes a while.
        if not any(folder.glob(".tmp-*")):
            return False
        pid = process_that_writes_to(folder, worker_pids())
        if pid is None:
            return False

        # Stop the worker first: it could finish the file before `kill` reaches it, as killing a
        # whole node takes a while. It may even have finished it before it stops.
        os.kill(pid, signal.SIGSTOP)
        if process_that_writes_to(folder, [pid]) is None:
            os.kill(pid, signal.SIGCONT)
            return False

        kill(pid)
        killed_pids.append(pid)
        return True

    thread = threading.Thread(target=build)
    thread.start()
    assert wait_until(kill_writer, seconds=180, pause=0.001), "no worker was seen writing a file"
    assert list(folder.glob(".tmp-*")), "the worker was not in the middle of an output"
    thread.join(timeout=120)
    assert not thread.is_alive()
    return killed_pids[0]
