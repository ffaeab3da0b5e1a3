"""Which process executes a run, so that one whose process is gone does not look as if it were under way forever.

Dagster notices a killed run while its code server lives. After a restart of everything, or for a run inside
`nanoset build`, nobody would.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from pathlib import Path

import dagster as dg

from nanoset_assets.names import Names

OWNER_TAG = ".dagster/nanoset_process"
"""Dagster shows no tags of this prefix, and people have no use for it."""
_SHOWN_OWNER_TAG = "nanoset/process"
"""Its name in older runs."""
_UNFINISHED = [
    dg.DagsterRunStatus.NOT_STARTED,
    dg.DagsterRunStatus.STARTING,
    dg.DagsterRunStatus.STARTED,
    dg.DagsterRunStatus.CANCELING,
]


def is_run_process() -> bool:
    """Whether this process executes a run, and not one step of it: that one ends before the run does."""
    return multiprocessing.parent_process() is None and "execute_step" not in sys.argv


def owner_tag(names: Names, run_id: str = "") -> dict[str, str]:
    """The tag for a run that this process executes.

    Its value is host:pid:begin:run, the begin in clock ticks since the machine started (0 where that is not known).
    The run may be left out for one that is yet to be created.
    """
    return {names.tag(OWNER_TAG): f"{socket.gethostname()}:{os.getpid()}:{_began(os.getpid())}:{run_id}"}


def close_abandoned_runs(instance: dg.DagsterInstance, names: Names) -> list[str]:
    """Report this project's runs as failed whose process on this machine is gone; → their ids."""
    tags = (names.tag(OWNER_TAG), *([] if names.key_prefix else [_SHOWN_OWNER_TAG]))
    runs = instance.get_runs(dg.RunsFilter(statuses=_UNFINISHED))
    abandoned = [
        run for run in runs if _is_abandoned(run, next((run.tags[tag] for tag in tags if tag in run.tags), ""))
    ]
    for run in abandoned:
        instance.report_run_failed(run, "its process was killed; what it had finished is kept")
    return [run.run_id for run in abandoned]


def _is_abandoned(run: dg.DagsterRun, owner: str) -> bool:
    host, pid, began, run_id = (owner or ":::").split(":")
    # A run that is a retry of another one bears that one's tag until it starts.
    own = run_id == run.run_id or (not run_id and run.parent_run_id is None)
    return own and host == socket.gethostname() and not _is_alive(int(pid), int(began))


def _is_alive(pid: int, began: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # another user's
    return _began(pid) == began or began == 0


def _began(pid: int) -> int:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return 0
    return int(stat.rpartition(")")[2].split()[19])
