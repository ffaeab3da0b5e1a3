"""How a run opens its project, reports its progress, and names its process.

A run whose process is gone would look as if it were under way forever: Dagster notices a killed run while its code
server lives, but not after a restart of everything, nor one inside `nanoset build`.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
import time
from pathlib import Path

import dagster as dg

from nanoset_assets.hosted import ProjectDefs
from nanoset_assets.names import Names
from nanoset_core.execution.progress import Progress
from nanoset_core.pipeline.project import Project

REBUILD_TAG = "nanoset/rebuild"
LOG_SECONDS = 15.0
WORKERS_POOL = "workers"
"""Runs of assets that start worker processes; dagster.yaml limits how many of a pool run at once."""
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


def open_in_run(hosted: ProjectDefs, context: dg.AssetExecutionContext, *, rebuild: bool) -> Project:
    """Open the project as it is configured now; progress goes to `nanoset build`, or else to the run's log.

    With `rebuild`, or in a run tagged `nanoset/rebuild: "true"`, outputs are made again even where they are complete.
    """
    if is_run_process():
        context.instance.add_run_tags(context.run.run_id, owner_tag(hosted.names, context.run.run_id))
    listener = LogListener(context) if hosted.process is None else hosted.process.listener
    return hosted.load(listener, rebuild=rebuild or context.run.tags.get(REBUILD_TAG) == "true")


def is_run_process() -> bool:
    """Return whether this process executes a run, and not one step of it, which ends before the run does."""
    return multiprocessing.parent_process() is None and "execute_step" not in sys.argv


def owner_tag(names: Names, run_id: str = "") -> dict[str, str]:
    """Return the tag for a run that this process executes.

    Its value is host:pid:begin:run, the begin in clock ticks since the machine started (0 where that is not known).
    The run may be left out for one that is yet to be created.
    """
    return {names.tag(OWNER_TAG): f"{socket.gethostname()}:{os.getpid()}:{_began(os.getpid())}:{run_id}"}


def close_abandoned_runs(instance: dg.DagsterInstance, names: Names) -> list[str]:
    """Report this project's runs as failed whose process on this machine is gone; return their ids."""
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


class LogListener:
    """Writes progress into the run's log: at once, then every few seconds, and at the end."""

    def __init__(self, context: dg.AssetExecutionContext) -> None:
        self._context = context
        self._started = time.monotonic()
        self._said = self._started - LOG_SECONDS

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._said < LOG_SECONDS and progress.done < progress.total:
            return
        self._said = now
        self._context.log.info(describe(progress, now - self._started))


def describe(progress: Progress, seconds: float) -> str:
    """Describe progress in one line: how far, how fast, how long still."""
    share = progress.done / progress.total if progress.total else 1.0
    parts = [f"{progress.stage} {progress.name}: {share:.0%}"]
    if progress.unit == "bytes":
        parts.append(f"{progress.done / 1e6:,.1f} of {progress.total / 1e6:,.1f} MB")
        parts.append(f"{progress.done / 1e6 / max(seconds, 1e-3):,.1f} MB/s")
    else:
        parts.append(f"{progress.done:,} of {progress.total:,} {progress.unit}")
    if progress.tokens:
        parts.append(f"{progress.documents:,} documents, {progress.tokens:,} tokens")
    if 0 < share < 1:
        parts.append(f"{seconds * (1 - share) / share:,.0f} s left")
    return ", ".join(parts)
