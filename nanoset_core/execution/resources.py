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
    """Return how many processors this process may use, at least 1.

    A machine may have 64, of which a batch system gives only 8 to this process (by `taskset`, for
    example). On Linux the result is 8 then. Other systems do not say this, and the result is 64.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def free_memory() -> int:
    """Return how many bytes of memory this process can still allocate.

    There are up to three limits, and the smallest one counts. For example:

        the machine                               50 GB free
        the limit of this process (`ulimit -v`)   no limit
        its control groups (of a container)       8 GB allowed, 2 GB used: 6 GB free

    Memory in which the system caches files counts as free. Limits that the system does not report
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
    """Return how many bytes of memory the machine has left.

    Linux says it in /proc/meminfo, in a line such as "MemAvailable: 48828125 kB". Elsewhere, only
    the pages that are entirely unused are counted.
    """
    with suppress(OSError, ValueError, KeyError):
        return _read_counts(Path("/proc/meminfo"))["MemAvailable:"] * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _address_space_bytes() -> int:
    """Return the size of this process's address space in bytes, which `ulimit -v` limits.

    /proc/self/statm begins with it, in pages of usually 4,096 bytes.
    """
    n_pages = int(Path("/proc/self/statm").read_text("utf-8").split()[0])
    return n_pages * os.sysconf("SC_PAGE_SIZE")


def _control_groups() -> Iterator[Path]:
    """Yield the folders in which Linux shows the limits of this process's control groups.

    A control group limits the memory of a container or of a batch job. Groups are nested, and the
    limit of each one counts: /sys/fs/cgroup/jobs/17, /sys/fs/cgroup/jobs, and so on up to "/".
    """
    # The last line is that of version 2: "0::/jobs/17"
    last_line = Path("/proc/self/cgroup").read_text("utf-8").splitlines()[-1]
    group_name = last_line.split(":", 2)[2].lstrip("/")  # "jobs/17"
    group = _CONTROL_GROUPS / group_name
    yield group
    yield from group.parents


def _free_in_group(group: Path) -> int:
    """Return how many bytes of memory a control group (a container or batch job) has left.

    For example, of a limit of 8 GB, 5 GB are used. 3 GB of these are a cache of files, which the
    system drops when it needs memory. So 6 GB are left.

    Args:
        group: The folder in which Linux shows the group.

    Raises:
        ValueError: The group has no limit; its file then contains the word `max`.
    """
    limit = int((group / "memory.max").read_text("utf-8"))  # 8 GB in the example
    used = int((group / "memory.current").read_text("utf-8"))  # 5 GB
    cached = _read_counts(group / "memory.stat")["file"]  # 3 GB
    return limit - (used - cached)


def _read_counts(path: Path) -> dict[str, int]:
    """Read a file that has a name and a count on each line, such as "file 3221225472".

    Args:
        path: The file, one of those in which Linux shows its state.

    Returns:
        Name → count, such as {"file": 3221225472, …}.
    """
    counts = {}
    for line in path.read_text("utf-8").splitlines():
        name, count = line.split()[:2]
        counts[name] = int(count)
    return counts
