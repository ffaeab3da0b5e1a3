"""Estimate how fast work is and how long it will still take, from the progress that it reports."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass

from nanoset_core.execution.progress import Progress
from nanoset_core.records.text import format_age
from nanoset_core.untrusted import visible


def step_count(progress: Progress) -> str:
    """Return the number of a step of a build as lines begin with it: `[3/25] `.

    Returns "" before the first step.
    """
    if not progress.total:
        return ""
    return f"[{progress.done}/{progress.total}] "


def work_label(progress: Progress) -> str:
    """Return what is being done, and to what."""
    return visible(f"{progress.stage} {progress.name}")


@dataclass(frozen=True, slots=True)
class _Start:
    """The first report on a piece of work."""

    time: float
    """As of `time.monotonic`."""
    done: int
    """Units that were done by then."""


class Watch:
    """Remembers when each piece of work was first reported, and which notes were printed."""

    def __init__(self) -> None:
        self._start_by_label: dict[str, _Start] = {}
        self._printed: set[str] = set()

    def is_new(self, note: Progress) -> bool:
        """Return whether a note was not printed before, and remember that it is printed now."""
        is_new = note.name not in self._printed
        self._printed.add(note.name)
        return is_new

    def observe(self, progress: Progress) -> None:
        """Take note of a report: the first one on a piece of work starts its clock."""
        self._start(progress)

    def describe(self, progress: Progress) -> str:
        """Return one line with the progress and speed of work, and the time it still needs."""
        share = progress.done / progress.total if progress.total else 1.0
        label = work_label(progress)
        line = f"{label}: {share:.0%}, {self.figures(progress)}"
        remaining = self.seconds_left(progress)
        if remaining is not None:
            line += f", {format_age(remaining)} left"
        return line

    def figures(self, progress: Progress) -> str:
        """Return how fast work is, and what has been counted so far."""
        start = self._start(progress)
        if progress.unit == "bytes":
            seconds = max(time.monotonic() - start.time, 1e-3)
            megabytes = (progress.done - start.done) / 1e6
            figures = [f"{megabytes / seconds:,.1f} MB/s"]
        else:
            figures = [f"{progress.done:,} of {progress.total:,} {progress.unit}"]
        if progress.documents or progress.tokens:
            figures.append(f"{progress.documents:,} documents")
            figures.append(f"{progress.tokens:,} tokens")
        return ", ".join(figures)

    def seconds(self, progress: Progress) -> float:
        """Return the seconds since the first report on a piece of work."""
        start = self._start(progress)
        return time.monotonic() - start.time

    def seconds_left(self, progress: Progress) -> int | None:
        """Return the seconds that work is expected to take still.

        Returns None if it has not advanced, or is done.
        """
        start = self._start(progress)
        seconds = time.monotonic() - start.time
        units_done = progress.done - start.done
        units_left = progress.total - progress.done
        if units_done <= 0 or units_left <= 0:
            return None
        return math.ceil(seconds * units_left / units_done)

    def _start(self, progress: Progress) -> _Start:
        """Return the first report on a piece of work: this one, if the work has just begun."""
        label = work_label(progress)
        start = self._start_by_label.get(label)
        if start is None or progress.done < start.done:
            start = _Start(time.monotonic(), progress.done)
            self._start_by_label[label] = start
        return start
