"""Show the progress of a build in the log of its run, which Dagster's UI displays."""

from __future__ import annotations

import time

import dagster as dg

from nanoset_core.execution.progress import Display, RunningWork
from nanoset_core.untrusted import visible

LOG_SECONDS = 15.0
"""Seconds between two lines of progress in a run's log."""


class RunLog(Display):
    """Shows progress in the log of a run: work at its start, every few seconds, and at its end."""

    def __init__(self, log: dg.DagsterLogManager) -> None:
        self._log = log
        self._logged_at = -LOG_SECONDS

    def note(self, text: str) -> None:
        self._log.info(visible(text))

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        now = time.monotonic()
        if now - self._logged_at >= LOG_SECONDS or work.is_finished:
            self._logged_at = now
            self._log.info(visible(work.description))
