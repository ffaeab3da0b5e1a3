"""Find out how many processors and how much memory this process may use."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

_CONTROL_GROUPS = Path("/sys/fs/cgroup")
"""Folder in which Linux shows its control groups, which limit the memory of containers and jobs."""


def available_processors() -> int:
    """Return how many processors this process may use.

    Returns:
        At least 1. Where the system knows it, as Linux does, processors that the process is kept
        from, by `taskset` for example, are not counted.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Return how many bytes of memory this process can still allocate.

    It is the minimum of what the machine, the limit of this process (`ulimit -v`) and its control
    groups leave. The system's cache of files counts as free. Limits that the system does not report
    are ignored.
    """
    free = _free_on_machine()
    # Without a limit, or on another system than Linux, the files are missing or different.
    with suppress(OSError, ValueError, IndexError):
        limit = resource.getrlimit(resource.RLIMIT_AS)[0]
        if limit != resource.RLIM_INFINITY:
            free = min(free, limit - _address_space_bytes())
    with suppress(OSError, ValueError, IndexError):
        for group in _control_groups():
            with suppress(OSError, ValueError, KeyError):
                free = min(free, _free_in_group(group))
    return max(0, free)


def _free_on_machine() -> int:
    """Return the bytes of memory that the machine has left."""
    with suppress(OSError, ValueError, KeyError):
        return _read_counts(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _address_space_bytes() -> int:
    """Return the size of this process's address space, which RLIMIT_AS limits."""
    n_pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


def _control_groups() -> Iterator[Path]:
    """Yield the folders of the control group of this process, and of the groups around it."""
    # The last line is that of version 2: 0::/user.slice/session-1.scope
    last_line = Path("/proc/self/cgroup").read_text("utf-8").splitlines()[-1]
    group = _CONTROL_GROUPS / last_line.split(":", 2)[2].lstrip("/")
    yield group
    yield from group.parents


def _free_in_group(group: Path) -> int:
    """Return the bytes of memory that a control group has left.

    Raises:
        ValueError: The group has no limit; its file then contains the word `max`.
    """
    used = int((group / "memory.current").read_text("utf-8"))
    cached = _read_counts(group / "memory.stat")["file"]
    limit = int((group / "memory.max").read_text("utf-8"))
    return limit - (used - cached)


def _read_counts(path: Path) -> dict[str, int]:
    """Read a file that has a name and a count on each line, and return name → count."""
    counts = {}
    for line in path.read_text("utf-8").splitlines():
        name, count = line.split()[:2]
        counts[name] = int(count)
    return counts
