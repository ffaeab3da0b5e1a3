"""How a run opens its project: who hears of its progress, and which process it belongs to."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import dagster as dg

from nanoset_assets.hosted import HostedProject
from nanoset_assets.runs import is_run_process, owner_tag
from nanoset_core.execution.progress import Progress, ProgressCallback
from nanoset_core.outputs.root import Seen
from nanoset_core.pipeline.project import Project

REBUILD_TAG = "nanoset/rebuild"
LOG_SECONDS = 15.0
WORKERS_POOL = "workers"
"""Runs of assets that start worker processes; dagster.yaml limits how many of a pool run at once."""

_seen: ContextVar[Seen | None] = ContextVar("seen", default=None)
_terminal: ContextVar[ProgressCallback | None] = ContextVar("terminal", default=None)


def open_in_run(hosted: HostedProject, context: dg.AssetExecutionContext) -> Project:
    """The project as it is configured now; progress goes to the terminal that listens, or else to the run's log.

    A run tagged `nanoset/rebuild: "true"` makes its outputs again even where they are complete.
    """
    if is_run_process():
        context.instance.add_run_tags(context.run.run_id, owner_tag(hosted.names, context.run.run_id))
    listener = _terminal.get() or LogListener(context)
    return hosted.load(listener, rebuild=context.run.tags.get(REBUILD_TAG) == "true", seen=_seen.get())


def open_in_check(hosted: HostedProject) -> Project:
    """As `open_in_run`, for a check of what was just made."""
    return hosted.load(seen=_seen.get())


@contextmanager
def terminal(project: Project) -> Iterator[None]:
    """Within this block, runs in this process tell their progress to the project's listener, and see what it has seen.

    They follow one another closely: of outputs in a bucket, what one found a moment ago the next need not ask for.
    """
    token, seen = _terminal.set(project.listener), _seen.set(project.seen)
    try:
        yield
    finally:
        _terminal.reset(token)
        _seen.reset(seen)


class LogListener:
    """Writes progress into the run's log: the first news, then every few seconds, then the last."""

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
    """One line: how far, how fast, how long still."""
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
