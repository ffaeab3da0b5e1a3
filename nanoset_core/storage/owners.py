"""The processes that hold a lease or a lock, named so that a user who has to wait for one can find
and end it.
"""

from __future__ import annotations

import logging
import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger(__name__)
NOTICE_SECONDS = 1.0
"""How long a lock is waited for before that is said."""
_MAX_PAUSE_SECONDS = 0.2
_STOPPED = "Tt"
"""States of a process that was stopped, by a signal or by a debugger."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that works on something, or holds a lock."""

    host: str
    """Its machine."""
    pid: int | None = None
    """Its process id on that machine, if known."""
    since: float | None = None
    """When its work began by the clock of its machine, seconds since 1970, if known."""
    is_here: bool = False
    """Whether it is a process of this machine, whose state can be looked up."""

    @staticmethod
    def of_pid(pid: int) -> Owner:
        """Return a process of this machine."""
        return Owner(platform.node(), pid, started_at(pid), is_here=True)

    def __str__(self) -> str:
        """`process 123 on host, since 2026-03-01 12:03:04`."""
        process = "a process" if self.pid is None else f"process {self.pid}"
        since = ""
        if self.since is not None:
            since = f", since {time.strftime('%Y-%m-%d %H:%M:%S', time.localtime(self.since))}"
        return f"{process} on {self.host}{since}"

    @property
    def is_stopped(self) -> bool:
        """Whether the process is suspended, as by Ctrl-Z or SIGSTOP; False if that cannot be looked
        up.
        """
        return self.is_here and self.pid is not None and process_state(self.pid) in _STOPPED

    def remedy(self) -> str:
        """Return how the process is ended, or continued if it is suspended, as a clause."""
        if self.pid is None:
            return f"end it on {self.host} if it hangs"
        if self.is_stopped:
            return (
                f"it is stopped: `kill -CONT {self.pid}` continues it, `kill -KILL {self.pid}` "
                "ends it"
            )
        if self.is_here:
            return f"`kill {self.pid}` ends it"
        return f"`kill {self.pid}` on {self.host} ends it"


def process_state(pid: int) -> str:
    """Return the state of a process of this machine as one letter; a space if it is not known."""
    fields = _stat_fields(pid)
    return fields[0] if fields else " "


def started_at(pid: int) -> float | None:
    """Return when a process of this machine was started, seconds since 1970; None if that is not
    known.
    """
    fields = _stat_fields(pid)
    try:
        booted = next(
            int(line.split()[1])
            for line in Path("/proc/stat")
            .read_text(encoding="ascii", errors="replace")
            .splitlines()
            if line.startswith("btime ")
        )
        return booted + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    except (OSError, StopIteration, IndexError, ValueError):
        return None


def _stat_fields(pid: int) -> list[str]:
    """Return the fields of /proc/PID/stat after the command's name; none if there is no such
    process.
    """
    try:
        text = Path("/proc", str(pid), "stat").read_text(encoding="latin1")
    except OSError:
        return []
    return text.rpartition(")")[2].split()


def wait_for_lock(descriptor: int, try_lock: Callable[[], None], path: Path) -> None:
    """Take a lock; if another process holds it for longer than a moment, log which one does, and
    how to end it.

    Args:
        descriptor: Of the open file or folder that is locked.
        try_lock: Takes the lock, or raises BlockingIOError at once.
        path: What is locked, for the message.
    """
    started = time.monotonic()
    pause = 0.01
    reported = ""
    while True:
        try:
            try_lock()
            return
        except BlockingIOError:
            pass
        if time.monotonic() - started >= NOTICE_SECONDS:
            owner = lock_owner(os.fstat(descriptor))
            who = "another process" if owner is None else str(owner)
            remedy = "end that process if it hangs" if owner is None else owner.remedy()
            message = f"waits for {who}, which keeps {path} locked; {remedy}"
            # also once that process is stopped, or another one has the lock
            if message != reported:
                logger.warning("%s", message)
                reported = message
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def lock_owner(status: os.stat_result) -> Owner | None:
    """Return another process of this machine that holds a lock on a file; None if that is not
    known.

    The file is not opened: closing it would drop the locks that this process has on it.

    Linux lists all locks in /proc/locks, each with the process that took it and the device and
    inode of its file.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    pids = []
    for line in lines:
        fields = line.split()
        is_waiting = "->" in fields
        inode = fields[-3].rpartition(":")[2]
        pid = int(fields[-4])
        # The device is not compared: file systems such as overlayfs and btrfs show another one than
        # fstat does.
        if not is_waiting and inode == str(status.st_ino) and pid > 0 and pid != os.getpid():
            pids.append(pid)
    return Owner.of_pid(pids[0]) if pids else None
