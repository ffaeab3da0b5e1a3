"""Name the process that holds a lease or a lock, so that a user who waits can find and end it."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from nanoset_core.untrusted import safe_logger

logger = safe_logger(__name__)
NOTICE_SECONDS = 1.0
"""How long a process waits for a lock before it logs which process has it."""
_FIRST_PAUSE_SECONDS = 0.01
"""Pause between the first attempts to take a lock; it doubles each time."""
_MAX_PAUSE_SECONDS = 0.2
"""Longest pause between two attempts to take a lock."""
_SUSPENDED_STATES = "Tt"
"""States of a process that was suspended, by a signal or by a debugger."""


@dataclass(frozen=True, slots=True)
class Owner:
    """A process that works on an output, or holds a lock."""

    host: str
    """Name of its machine."""
    pid: int | None = None
    """Its process id on that machine, if known."""
    since: float | None = None
    """When its work began, by the clock of its machine, in seconds since 1970, if known."""
    is_here: bool = False
    """Whether it is a process of this machine, so that its state can be looked up."""

    @staticmethod
    def of_pid(pid: int) -> Owner:
        """Return a process of this machine as an owner, with the time at which it was started.

        Args:
            pid: Its process id.
        """
        return Owner(platform.node(), pid, started_at(pid), is_here=True)

    def __str__(self) -> str:
        """Return a text such as `process 123 on host, since 2026-03-01 12:03:04`."""
        process = "a process" if self.pid is None else f"process {self.pid}"
        since = ""
        if self.since is not None:
            local_time = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(self.since))
            since = f", since {local_time}"
        return f"{process} on {self.host}{since}"

    @property
    def is_stopped(self) -> bool:
        """Whether the process is known to be suspended, as by Ctrl-Z or the signal SIGSTOP."""
        return (
            self.is_here and self.pid is not None and process_state(self.pid) in _SUSPENDED_STATES
        )

    def remedy(self) -> str:
        """Return how to end the process, or how to continue it if it is suspended.

        A user who waits for a lock of this process reads one of these clauses:

            `kill 123` ends it
            `kill 123` on node-3 ends it                         it runs on another machine
            it is stopped: `kill -CONT 123` continues it, ...    somebody has pressed Ctrl-Z
            end it on node-3 if it hangs                         its id is not known
        """
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


class ProcessStat(NamedTuple):
    """What the system says about a running process of this machine."""

    state: str
    """One letter, such as R (running), S (sleeping), T (suspended) or Z (ended)."""
    start_ticks: str
    """When the process was started, in clock ticks since the machine was."""


def process_stat(pid: int) -> ProcessStat | None:
    """Return what the system says about a process of this machine: its state, and when it was
    started.

    Only Linux has this information, in the file /proc/PID/stat, which is a line such as:

        4711 (python3) S 4700 4711 4700 ... 89034412 ...

    Args:
        pid: Its process id.

    Returns:
        Its state, here S (sleeping), and start; None if there is no such process, or the system is
        not Linux.
    """
    try:
        line = Path("/proc", str(pid), "stat").read_text(encoding="latin1")
    except OSError:
        return None
    # The name, here "python3", may contain spaces and parentheses. So begin after the last one.
    fields = line.rpartition(")")[2].split()  # ["S", "4700", ...]
    return ProcessStat(state=fields[0], start_ticks=fields[19])


def process_state(pid: int) -> str:
    """Return the state of a process of this machine as one letter.

    Args:
        pid: Its process id.

    Returns:
        A letter of `ProcessStat.state`, such as R (running) or T (suspended); a space if the state
        is not known.
    """
    process = process_stat(pid)
    return " " if process is None else process.state


def started_at(pid: int) -> float | None:
    """Return when a process of this machine was started.

    Linux counts from the start of the machine, in clock ticks of usually 1/100 s. For example, a
    machine that was started at 1,767,000,000 (seconds since 1970), and 500 ticks, give
    1,767,000,005.

    Args:
        pid: Its process id.

    Returns:
        Seconds since 1970; None if there is no such process, or the system is not Linux.
    """
    process = process_stat(pid)
    boot_time = _boot_time()
    if process is None or boot_time is None:
        return None
    ticks_per_second = os.sysconf("SC_CLK_TCK")
    return boot_time + int(process.start_ticks) / ticks_per_second


def _boot_time() -> int | None:
    """Return when this machine was started, in seconds since 1970, or None if it is not known."""
    try:
        text = Path("/proc/stat").read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        if line.startswith("btime "):
            return int(line.split()[1])
    return None


def wait_for_lock(descriptor: int, try_lock: Callable[[], None], path: Path) -> None:
    """Wait until a lock is free, and take it.

    Try to take it again and again, with pauses of up to 0.2 s. After a second, log a warning, so
    that the user knows what this process waits for: "waits for process 123 on host, which keeps
    web.bin locked; `kill 123` ends it".

    Args:
        descriptor: Descriptor of the open file or folder that is locked.
        try_lock: Takes the lock, or raises BlockingIOError at once.
        path: Path of the file or folder, for the warning.
    """
    started = time.monotonic()
    pause = _FIRST_PAUSE_SECONDS
    last_message = ""
    while True:
        try:
            try_lock()
            return
        except BlockingIOError:
            pass  # Another process holds the lock.
        if time.monotonic() - started >= NOTICE_SECONDS:
            message = _waiting_message(descriptor, path)
            # Warn again if the process was suspended, or if another one has the lock now.
            if message != last_message:
                logger.warning("%s", message)
                last_message = message
        time.sleep(pause)
        pause = min(2 * pause, _MAX_PAUSE_SECONDS)


def _waiting_message(descriptor: int, path: Path) -> str:
    """Return the warning about a lock that another process holds.

    Args:
        descriptor: Descriptor of the open file or folder that is locked.
        path: Its path.
    """
    owner = lock_owner(os.fstat(descriptor))
    if owner is None:
        return f"waits for another process, which keeps {path} locked; end that process if it hangs"
    return f"waits for {owner}, which keeps {path} locked; {owner.remedy()}"


class _Lock(NamedTuple):
    """A line of Linux's list of locks, /proc/locks."""

    pid: int
    """Id of the process; 0 or less if it is not one of this machine or container."""
    inode: int
    """Number of the file within its file system."""
    is_waiting: bool
    """Whether the process waits for the lock, which another one holds."""

    @classmethod
    def of_line(cls, line: str) -> _Lock:
        """Read a line such as "1: -> FLOCK  ADVISORY  WRITE 456 08:01:4711 0 EOF".

        The arrow, which only some lines have, shifts what follows it. So fields are counted from
        the end of the line.
        """
        fields = line.split()
        inode = fields[-3].rpartition(":")[2]  # "4711", from "08:01:4711"
        return cls(pid=int(fields[-4]), inode=int(inode), is_waiting="->" in fields)


def lock_owner(status: os.stat_result) -> Owner | None:
    """Return another process of this machine that holds a lock on a file, or None.

    Linux lists all locks in /proc/locks, one on each line:

        1: FLOCK  ADVISORY  WRITE 123 08:01:4711 0 EOF       process 123 has locked the inode 4711
        1: -> FLOCK  ADVISORY  WRITE 456 08:01:4711 0 EOF    process 456 waits for that lock

    The file itself is not opened: to close it again would release the locks that this process has
    on it.

    Args:
        status: Result of `os.stat` for the file.
    """
    try:
        lines = Path("/proc/locks").read_text(encoding="ascii", errors="replace").splitlines()
    except OSError:
        return None
    for line in lines:
        lock = _Lock.of_line(line)
        is_other_process = lock.pid > 0 and lock.pid != os.getpid()
        # The device is not compared: file systems such as overlayfs and Btrfs show another one
        # here than `os.stat` does.
        is_this_file = lock.inode == status.st_ino
        if is_this_file and is_other_process and not lock.is_waiting:
            return Owner.of_pid(lock.pid)
    return None
