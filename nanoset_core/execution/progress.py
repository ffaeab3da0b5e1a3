"""The progress of long work: one object, from the worker that does the work to what shows it.

A command or a run of Dagster has one `Progress`, and whatever takes long gets it as a parameter:

    work = progress.work("merge", "web", total=size_bytes)
    work.advance(block_bytes)

A `Display` shows it: a terminal, lines in a log, or the log of a run in Dagster. Displays keep no
figures of their own. They ask `Progress` which work is running, and `RunningWork` how fast it is.

Tasks in worker processes cannot reach this object. They call `report_progress`, and the process
that runs them receives the report, on whatever machine it is: see `progress_reported_to`.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TypeAlias

from nanoset_core.records.text import format_age
from nanoset_core.storage.leases import at_work
from nanoset_core.untrusted import visible

GOES_ON = " …"
"""Ends a line on work that begins."""
WAITING = "waiting"
"""Stage of work that consists of waiting."""


class Display:
    """Shows progress. This one shows nothing; the others override what they show."""

    def note(self, text: str) -> None:
        """Show a message."""

    def say(self, line: str) -> None:
        """Show a line that a command prints; one that ends in `GOES_ON` names work that begins."""

    def step(self) -> None:
        """Show that a step began: see `Progress.state`."""

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        """Show that work has advanced.

        Args:
            work: The work, which may be finished.
            is_new: Whether it is running and was not shown before.
        """


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A part of a command, which has begun."""

    about: str = ""
    """What has begun, or "" for nothing in particular."""
    count: str = ""
    """Number of the step of a build, such as `[3/25] `, which precedes the labels of its work."""
    since: float = 0.0
    """When it began, as of `time.monotonic`."""


@dataclass(frozen=True, slots=True)
class ProgressState:
    """What is being done at one moment."""

    step: BegunStep
    works: list[RunningWork]
    """The running work, in the order in which it was first reported."""


class Progress:
    """What a command or a run is doing, how far it has come, and what it has to say about that.

    Several threads may use it at once. A copy that is pickled into another process shows nothing.
    """

    def __init__(self, display: Display | None = None) -> None:
        """Begin without any work.

        Args:
            display: Shows the progress; default: nothing does.
        """
        self._display = display
        self._lock = threading.Lock()
        self._step = BegunStep(since=time.monotonic())
        self._works: dict[str, RunningWork] = {}  # label → running work
        self._notes: set[str] = set()  # notes that were shown

    def __reduce__(self) -> tuple[Callable[[], Progress], tuple[()]]:
        return _silent, ()

    def work(self, stage: str, name: str, total: int, unit: str = "bytes") -> RunningWork:
        """Return a new piece of work, which is shown as soon as it reports.

        Args:
            stage: What is being done, such as tokenization.
            name: What it is done to: a corpus, a nanoset, a webdataset.
            total: Units in all.
            unit: What is counted.
        """
        return RunningWork(self, stage, name, total, unit)

    def wait(self, name: str, limit: float) -> Wait:
        """Return a limited time of waiting, which is shown as long as it lasts.

        Args:
            name: What is waited for, such as "for workers".
            limit: How long to wait at most, in seconds.
        """
        return Wait(self, name, limit)

    def note(self, text: str) -> None:
        """Show a message, unless it was shown before."""
        if self._display is None:
            return
        with self._lock:
            is_new = text not in self._notes
            self._notes.add(text)
        if is_new:
            self._display.note(text)

    def say(self, line: str) -> None:
        """Show a line; if it ends in `GOES_ON`, it names work that begins."""
        about = line.removesuffix(GOES_ON) if line.endswith(GOES_ON) else ""
        self._begin(BegunStep(about, since=time.monotonic()))
        if self._display is not None:
            self._display.say(line)

    def step(self, about: str, number: int = 0, total: int = 0) -> None:
        """Show that a step of a command begins.

        Args:
            about: What begins.
            number: Number of the step, from 1.
            total: How many steps there are; 0 if they are not counted.
        """
        count = step_count(number, total)
        self._begin(BegunStep(f"{count}{about}", count, time.monotonic()))
        if self._display is not None:
            self._display.step()

    def state(self) -> ProgressState:
        """Return what is being done now."""
        with self._lock:
            return ProgressState(self._step, list(self._works.values()))

    def receive(self, report: TaskReport) -> None:
        """Show what a task reported that is not part of any work of this process."""
        if isinstance(report, TaskNote):
            self.note(report.text)

    def update(self, work: RunningWork) -> None:
        """Show that work has advanced, and store it in the lease, for machines that wait."""
        share = None if isinstance(work, Wait) else work.share
        at_work(f"{work.stage} {work.name}", share)
        if self._display is None:
            return
        with self._lock:
            is_running = not work.is_finished
            is_new = is_running and work.label not in self._works
            if is_running:
                self._works[work.label] = work
            else:
                self._works.pop(work.label, None)
        self._display.work(work, is_new=is_new)

    def _begin(self, step: BegunStep) -> None:
        """Begin a step: work of the step before is no longer shown until it reports again."""
        with self._lock:
            self._step = step
            self._works.clear()


SILENT = Progress()
"""Progress that nobody sees."""


def _silent() -> Progress:
    """Return the progress of a copy in another process."""
    return SILENT


def step_count(number: int, total: int) -> str:
    """Return the number of a step as lines begin with it, such as `[3/25] `, or "" of no steps."""
    return f"[{number}/{total}] " if total else ""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much was done."""

    units: int = 0
    """Units of the work, such as bytes."""
    documents: int = 0
    """Documents, or 0 if they are not counted."""
    tokens: int = 0
    """Tokens, or 0 if they are not counted."""

    def __add__(self, other: Amount) -> Amount:
        return Amount(
            self.units + other.units,
            self.documents + other.documents,
            self.tokens + other.tokens,
        )


class RunningWork:
    """One piece of long work: how much of it is done, how fast, and how long the rest will take."""

    def __init__(
        self, progress: Progress, stage: str, name: str, total: int, unit: str = "bytes"
    ) -> None:
        """Begin with nothing done; see `Progress.work` for the parameters."""
        self.stage = stage
        self.name = name
        self.total = total
        self.unit = unit
        self.label = visible(f"{stage} {name}")
        """What is being done, and to what."""
        self.done = Amount()
        """What is done, unfinished parts included."""
        self._progress = progress
        self._finished = Amount()
        self._amount_by_part: dict[str, Amount] = {}  # unfinished part → what is done of it
        # Speed is measured from the first report on: what was done before it took no time.
        self._started_at: float | None = None
        self._done_at_start = 0

    def advance(self, units: int, documents: int = 0, tokens: int = 0) -> None:
        """Report that this much more is done."""
        self._finished += Amount(units, documents, tokens)
        self.report()

    def add_existing(self, amount: Amount) -> None:
        """Count what was done by earlier builds; the next report contains it."""
        self._finished += amount

    def advance_part(self, part: str, amount: Amount) -> None:
        """Report that a part is finished.

        Args:
            part: Name of the part.
            amount: All of it, whatever was reported on the part before.
        """
        self._amount_by_part.pop(part, None)
        self._finished += amount
        self.report()

    def receive(self, report: TaskReport) -> None:
        """Take a report of a task: on one part of this work, or a message."""
        if isinstance(report, PartReport):
            self._amount_by_part[report.part] = report.amount
            self.report()
        else:
            self._progress.receive(report)

    def report(self) -> None:
        """Show what is done."""
        self.done = sum(self._amount_by_part.values(), self._finished)
        if self._started_at is None:
            self._started_at = time.monotonic()
            self._done_at_start = self.done.units
        self._progress.update(self)

    @property
    def is_finished(self) -> bool:
        """Whether all units are done."""
        return self.done.units >= self.total

    @property
    def share(self) -> float:
        """How much is done, 0 to 1."""
        return self.done.units / self.total if self.total else 1.0

    @property
    def seconds(self) -> float:
        """Seconds since the first report."""
        return 0.0 if self._started_at is None else time.monotonic() - self._started_at

    @property
    def seconds_left(self) -> int | None:
        """Seconds that the rest is expected to take; None if nothing was done yet, or all is."""
        units_done = self.done.units - self._done_at_start
        units_left = self.total - self.done.units
        if units_done <= 0 or units_left <= 0:
            return None
        return math.ceil(self.seconds * units_left / units_done)

    @property
    def figures(self) -> str:
        """How fast the work is, and what has been counted so far."""
        if self.unit == "bytes":
            megabytes = (self.done.units - self._done_at_start) / 1e6
            speed = megabytes / max(self.seconds, 1e-3)
            figures = [f"{speed:,.1f} MB/s"]
        else:
            figures = [f"{self.done.units:,} of {self.total:,} {self.unit}"]
        if self.done.documents or self.done.tokens:
            figures.append(f"{self.done.documents:,} documents")
            figures.append(f"{self.done.tokens:,} tokens")
        return ", ".join(figures)

    @property
    def description(self) -> str:
        """One line with what is done, the speed, and the time that the rest will take."""
        line = f"{self.label}: {self.share:.0%}, {self.figures}"
        remaining = self.seconds_left
        if remaining is not None:
            line += f", {format_age(remaining)} left"
        return line


class Wait(RunningWork):
    """Limits how long other programs are waited for, and reports the seconds so far."""

    def __init__(self, progress: Progress, name: str, limit: float) -> None:
        """Begin to wait at the first call of `has_time_left`; see `Progress.wait`."""
        super().__init__(progress, WAITING, name, _whole_seconds(limit), "seconds")
        self._limit = limit
        self._since: float | None = None

    def has_time_left(self) -> bool:
        """Report that it is still missing; return whether there is time left to wait for it."""
        now = time.monotonic()
        seconds = 0.0 if self._since is None else now - self._since
        if seconds >= self._limit:
            self.end()
            return False
        self._since = now - seconds
        self._show(int(seconds))
        return True

    def end(self) -> None:
        """Report that it was found, or is waited for no longer."""
        if self._since is not None:
            self._show(self.total)
        self._since = None
        self._started_at = None

    def restart(self, limit: float) -> None:
        """Report that it was found; if it gets lost, wait again, up to a limit in seconds."""
        self.end()
        self._limit = limit
        self.total = _whole_seconds(limit)

    def _show(self, seconds: int) -> None:
        self._finished = Amount(seconds)
        self.report()

    @property
    def description(self) -> str:
        """One line with what is waited for, for how long, and how long at most."""
        if self.is_finished:
            return f"{self.label}: no longer"
        so_far = format_age(self.done.units)
        return f"{self.label}: {so_far} so far, up to {format_age(self.total)}"


def _whole_seconds(limit: float) -> int:
    """Return a limit in seconds as the total of a wait, which is at least 1."""
    return max(math.ceil(limit), 1)


# Tasks run in other processes, far from the `Progress` of the process that waits for them. They
# report to the receiver of their context; workers pass what it receives on to the owner of the run.


@dataclass(frozen=True, slots=True)
class TaskNote:
    """A message of a task, which is shown once."""

    text: str


@dataclass(frozen=True, slots=True)
class PartReport:
    """How much a task has done of its part of some work."""

    part: str
    """Name of the part."""
    amount: Amount
    """All that is done of it."""


TaskReport: TypeAlias = TaskNote | PartReport
"""What a task reports."""
Receive: TypeAlias = Callable[[TaskReport], None]
"""Receives the reports of tasks."""


def _drop(report: TaskReport) -> None:
    """Ignore a report."""


_receive: ContextVar[Receive] = ContextVar("receive", default=_drop)


def report_progress(report: TaskReport) -> None:
    """Report from within a task, in any process, to the `progress_reported_to` around its run."""
    _receive.get()(report)


@contextmanager
def progress_reported_to(receive: Receive) -> Iterator[None]:
    """Pass the reports of tasks that are run in the block to a function."""
    token = _receive.set(receive)
    try:
        yield
    finally:
        _receive.reset(token)


def set_progress_receiver(receive: Receive) -> None:
    """Pass the reports of all later tasks of this process, a worker, to a function."""
    _receive.set(receive)
