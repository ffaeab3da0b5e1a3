"""Look up the processes of this machine, as the file /proc/PID/stat of Linux describes them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class ProcessKey(NamedTuple):
    """Identifies a process: its id alone may be used again by another one."""

    pid: int
    start_ticks: int
    """When it was started, in clock ticks."""


class ProcessRow(NamedTuple):
    """A process that has not ended."""

    key: ProcessKey
    parent: int
    """The id of its parent."""
    group: int
    session: int


def living_process(pid: int) -> ProcessRow | None:
    """Return what is known about a process, or None if it has ended.

    A process that has ended, but whose parent has not noticed (a zombie), also gives None.
    """
    try:
        line = Path(f"/proc/{pid}/stat").read_text(encoding="latin1")
    except OSError:
        return None
    # A line such as `4711 (python3) S 4700 4711 4700 …`. The name of the program may contain
    # spaces and brackets, so begin after its closing bracket.
    state, parent, group, session, *others = line.rpartition(")")[2].split()
    if state == "Z":
        return None
    key = ProcessKey(pid, start_ticks=int(others[15]))
    return ProcessRow(key, int(parent), int(group), int(session))


def living_processes() -> list[ProcessRow]:
    """Return all processes of this machine that have not ended."""
    rows = []
    for folder in Path("/proc").glob("[0-9]*"):
        row = living_process(int(folder.name))
        if row is not None:
            rows.append(row)
    return rows
