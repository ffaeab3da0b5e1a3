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

from nanoset_core.storage.in_use.leases import at_work
from nanoset_core.untrusted import visible
from nanoset_core.wording import format_age

GOES_ON = " …"
"""End of a line about work that begins, such as `merging web …`."""
WAITING = "waiting"
"""Stage of work that consists of waiting for other programs."""
_ESTIMATED_SHARE = 0.01
"""Share of the work after which the remaining time is estimated."""
_ESTIMATED_BYTES = 1_000_000
"""Bytes of text after which it is estimated even if that is a smaller share."""


class Display:
    """Base of the classes that show progress; each overrides the methods for what it shows."""

    def note(self, text: str) -> None:
        """Show a message about the work, such as a warning."""

    def say(self, line: str) -> None:
        """Show a line that a command prints; one that ends in `GOES_ON` names work that begins."""

    def step(self) -> None:
        """Show that a step of the command has begun; `Progress.state` returns which one."""

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        """Show that a piece of work has advanced.

        Args:
            work: The work, which may be finished.
            is_new: Whether the work is running and was not shown before.
        """


@dataclass(frozen=True, slots=True)
class BegunStep:
    """A step of a command, such as one output of a build, that has begun."""

    about: str = ""
    """What the step does, or "" for nothing in particular."""
    count: str = ""
    """Number of the step, such as `[3/25] `, which precedes the labels of its work."""
    since: float = 0.0
    """When it began, by the monotonic clock."""


@dataclass(frozen=True, slots=True)
class ProgressState:
    """What a command is doing at one moment."""

    step: BegunStep
    works: list[RunningWork]
    """The running work, in the order in which it was first reported."""


class Progress:
    """What a command or a run is doing, and how far it has come.

    Several threads may use it at the same time. A copy that is pickled into another process shows
    nothing.
    """

    def __init__(self, display: Display | None = None) -> None:
        """Begin without any work.

        Args:
            display: Shows the progress; None if nobody looks at it.
        """
        self._display = display
        self._lock = threading.Lock()
        self._step = BegunStep(since=time.monotonic())
        self._works: dict[str, RunningWork] = {}  # label → running work
        self._notes: set[str] = set()  # notes that were shown

    def __reduce__(self) -> tuple[Callable[[], Progress], tuple[()]]:
        """Pickle this object as one that shows nothing."""
        return _silent, ()

    def work(self, stage: str, name: str, total: int, unit: str = "bytes") -> RunningWork:
        """Begin to show a piece of long work, such as tokenizing a file.

            work = progress.work("tokenize", "web", total=1_000_000)    # bytes of the corpus web
            work.advance(4096)                                          # a terminal shows a bar

        Args:
            stage: What is being done, such as "tokenize".
            name: What it is done to, such as the name of a corpus (a collection of texts).
            total: Size of the whole work, in units.
            unit: What is counted: `bytes`, `documents` and so on.

        Returns:
            The work, with nothing done yet. It is shown as soon as it reports that it has advanced.
        """
        return RunningWork(self, stage, name, total, unit)

    def wait(self, name: str, limit: float) -> Wait:
        """Return an object that limits and shows how long something is waited for.

        Args:
            name: What is waited for, such as "for workers".
            limit: How long to wait at most, in seconds.

        Returns:
            The object. The caller calls its `has_time_left` as long as the thing is not available.
        """
        return Wait(self, name, limit)

    def note(self, text: str) -> None:
        """Show a message to the user, such as a warning, but each text only once.

        Many tasks may find the same problem, perhaps in several threads or on several machines. One
        line on the terminal is enough for all of them.

        Args:
            text: The message, in one line.
        """
        if self._display is None:
            return
        with self._lock:
            is_new = text not in self._notes
            self._notes.add(text)
        if is_new:
            self._display.note(text)

    def say(self, line: str) -> None:
        """Show a line that a command prints, and note which step has begun.

            merging web …      a step begins, which is named "merging web" until the next line
            merged 4 files     a step has ended; what comes next has no name

        Commands print a line that ends in " …" (GOES_ON) before a step that takes long, so the
        ending tells the two cases apart.

        Args:
            line: The line.
        """
        about = ""
        if line.endswith(GOES_ON):
            about = line.removesuffix(GOES_ON)  # "merging web"
        self._begin(BegunStep(about, since=time.monotonic()))
        if self._display is not None:
            self._display.say(line)

    def step(self, about: str, number: int = 0, total: int = 0) -> None:
        """Show that a step of a command begins, such as "[3/25] corpus web".

        Args:
            about: What the step does: "corpus web".
            number: Number of the step, from 1.
            total: Number of all steps; 0 if they are not counted, so that there is no "[3/25] ".
        """
        count = step_count(number, total)
        self._begin(BegunStep(f"{count}{about}", count, time.monotonic()))
        if self._display is not None:
            self._display.step()

    def state(self) -> ProgressState:
        """Return which step and which pieces of work are running now.

        Returns:
            A copy of the list, which does not change when work begins or ends later. Each piece of
            work does change.
        """
        with self._lock:
            return ProgressState(self._step, list(self._works.values()))

    def receive(self, report: TaskReport) -> None:
        """Show a message that a task has sent; each text is shown once.

        Args:
            report: What the task has sent. If it says how much of the task is done, it is not for
                this method, but for the `RunningWork` that the task is a part of.
        """
        if isinstance(report, TaskNote):
            self.note(report.text)

    def update(self, work: RunningWork) -> None:
        """Show that a piece of work, such as tokenizing a corpus, has advanced or is finished.

        The user sees it on the terminal: "tokenize web: 42%, …". It is also written to a file, for
        other processes that wait for the output of this work.

        Args:
            work: The work, which calls this method when it has counted what is done.
        """
        share_done = None if isinstance(work, Wait) else work.share  # 0.42
        at_work(f"{work.stage} {work.name}", share_done)
        if self._display is not None:
            is_new = self._update_list(work)
            self._display.work(work, is_new=is_new)

    def _update_list(self, work: RunningWork) -> bool:
        """Add work to the list of running work, or remove it if it is finished.

        Tasks in several threads may report at the same time.

        Args:
            work: The work.

        Returns:
            Whether it is new in the list.
        """
        with self._lock:
            if work.is_finished:
                self._works.pop(work.label, None)
                return False
            is_new = work.label not in self._works
            self._works[work.label] = work
            return is_new

    def _begin(self, step: BegunStep) -> None:
        """Note which step has begun. Work of the previous step is not shown any more.

        It is shown again if it reports that it has advanced.

        Args:
            step: The step.
        """
        with self._lock:
            self._step = step
            self._works.clear()


SILENT = Progress()
"""Progress that nobody looks at."""


def _silent() -> Progress:
    """Return what an unpickled `Progress` becomes in another process."""
    return SILENT


def step_count(number: int, total: int) -> str:
    """Return the number of a step as it begins a line, such as `[3/25] `.

    Args:
        number: Number of the step, from 1.
        total: Number of all steps; if it is 0, steps are not counted, and the result is "".

    Returns:
        Text such as `[3/25] `, with a space at its end.
    """
    return f"[{number}/{total}] " if total else ""


@dataclass(frozen=True, slots=True)
class Amount:
    """How much of a piece of work is done."""

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
    """A piece of long work: how much of it is done, how fast, and how long the rest will take.

    Its parts may be done by several tasks at the same time, each of which reports by itself, and
    perhaps in a thread of its own.
    """

    def __init__(
        self, progress: Progress, stage: str, name: str, total: int, unit: str = "bytes"
    ) -> None:
        """Begin with nothing done.

        Args:
            progress: Shows the work.
            stage: What is being done, such as `tokenize`.
            name: What it is done to, such as the name of a corpus.
            total: Size of the whole work, in units.
            unit: What is counted: `bytes`, `documents` and so on.
        """
        self.stage = stage
        self.name = name
        self.total = total
        self.unit = unit
        self.label = visible(f"{stage} {name}")
        """What is being done, and to what."""
        self.done = Amount()
        """How much is done, including what is done of unfinished parts."""
        self._progress = progress
        self._lock = threading.Lock()
        """Held while the attributes below are read and changed."""
        self._finished = Amount()
        """How much is done, without unfinished parts."""
        self._amount_by_part: dict[str, Amount] = {}
        """Unfinished part → how much of it is done."""
        # Speed is measured from the first report on: what was done before it took no time.
        self._first_report_at: float | None = None
        self._done_at_first_report = 0

    def advance(self, units: int, documents: int = 0, tokens: int = 0) -> None:
        """Report that more is done.

        Args:
            units: Additional units.
            documents: Additional documents, if they are counted.
            tokens: Additional tokens, if they are counted.
        """
        with self._lock:
            self._finished += Amount(units, documents, tokens)
        self.report()

    def add_existing(self, amount: Amount) -> None:
        """Count what earlier builds have done of this work. It is shown with the next report.

        For example, a build was interrupted at 60 %. The next one adds these 60 % first, and
        continues.

        Args:
            amount: What was done. If it is added before the first report, it does not count for the
                speed, since it took no time now.
        """
        with self._lock:
            self._finished += amount

    def advance_part(self, part: str, amount: Amount) -> None:
        """Report that a part of the work is finished, which a task has done.

        While the task was running, it may have reported 10 % and 50 % of its part. These reports
        are replaced by the whole part.

        Args:
            part: Name of the part.
            amount: Bytes, documents and tokens of the whole part.
        """
        with self._lock:
            self._amount_by_part.pop(part, None)
            self._finished += amount
        self.report()

    def receive(self, report: TaskReport) -> None:
        """Show what a task reports: how much of its part of this work is done, or a message.

        Args:
            report: The report. If a task reports 10 % and then 50 % of its part, only the last one
                counts.
        """
        if isinstance(report, PartReport):
            with self._lock:
                self._amount_by_part[report.part] = report.amount
            self.report()
        else:
            self._progress.receive(report)

    def report(self) -> None:
        """Show how much is done."""
        with self._lock:
            self.done = sum(self._amount_by_part.values(), self._finished)
            if self._first_report_at is None:
                self._first_report_at = time.monotonic()
                self._done_at_first_report = self.done.units
        # Without the lock: a display may take long.
        self._progress.update(self)

    @property
    def is_finished(self) -> bool:
        """Whether all units are done."""
        return self.done.units >= self.total

    @property
    def share(self) -> float:
        """Fraction of the units that is done, from 0 to 1."""
        return self.done.units / self.total if self.total else 1.0

    @property
    def seconds(self) -> float:
        """Seconds since the first report."""
        return 0.0 if self._first_report_at is None else time.monotonic() - self._first_report_at

    @property
    def seconds_left(self) -> int | None:
        """Seconds that the rest is expected to take; None if too little was done yet, or all is."""
        units_done = self.done.units - self._done_at_first_report
        units_left = self.total - self.done.units
        # The first document of a text says nothing about the speed.
        least_units = min(self.total * _ESTIMATED_SHARE, _ESTIMATED_BYTES)
        if units_done <= 0 or units_done < least_units or units_left <= 0:
            return None
        return math.ceil(self.seconds * units_left / units_done)

    @property
    def figures(self) -> str:
        """How fast the work is, and how much is done: `85.2 MB/s, 12,000 documents, …`."""
        if self.unit == "bytes":
            megabytes = (self.done.units - self._done_at_first_report) / 1e6
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
    """Limits how long something is waited for, such as a worker, and shows the seconds so far.

    The caller looks again and again whether the thing is available. As long as it is not, the
    caller calls `has_time_left`.

    It is shown like other work: a wait of 60 seconds is work of 60 units, and 12 are done after 12
    seconds.
    """

    def __init__(self, progress: Progress, name: str, limit: float) -> None:
        """Prepare to wait; the time is measured from `start` or the first `has_time_left` on.

        Args:
            progress: Shows the time.
            name: What is waited for, such as "for workers".
            limit: How long to wait at most, in seconds.
        """
        super().__init__(progress, WAITING, name, _whole_seconds(limit), "seconds")
        self._limit = limit
        self._wait_started_at: float | None = None
        """When waiting began, by the monotonic clock; None while nothing is waited for. (It is
        shown later, so this differs from the time of the first report.)
        """
        self._is_shown = False
        """Whether the user has seen that this is waited for."""
        self._ending = ""
        """How the last wait has ended, such as "found after 12 s"."""

    def start(self) -> None:
        """Measure the time from now on, without showing it.

        A caller that first tries for some seconds, and then calls `has_time_left`, counts these
        seconds, too.
        """
        self._wait_started_at = time.monotonic()

    @property
    def waited_seconds(self) -> float:
        """How long this was waited for so far; 0 while nothing is waited for."""
        return 0.0 if self._wait_started_at is None else time.monotonic() - self._wait_started_at

    def has_time_left(self) -> bool:
        """Return whether to wait any longer, after showing how long was waited so far.

        For example, with a limit of 60 seconds, for a caller that looks every 20 seconds:

            call at second    0      20     40     60
            result            True   True   True   False

        After False, the next call begins to wait again.

        Returns:
            True until the limit is reached. With a limit of 0, always False.
        """
        if self._wait_started_at is None:
            self.start()
        if self.waited_seconds >= self._limit:
            self._end("given up")
            return False
        self._show(int(self.waited_seconds))
        return True

    def end(self) -> None:
        """Show that waiting has ended, since the thing is available."""
        self._end("found")

    def restart(self, limit: float) -> None:
        """Show that waiting has ended, and prepare to wait again if the thing gets lost.

        For example, a worker has joined a cluster, and may leave it later.

        Args:
            limit: How long to wait at most the next time, in seconds.
        """
        self.end()
        self._limit = limit
        self.total = _whole_seconds(limit)

    def _end(self, outcome: str) -> None:
        """Show that waiting has ended, if the user has seen that it began. Prepare to wait again.

        For example, a worker has joined after 12 of at most 60 seconds. The user then sees the line
        "waiting for workers: found after 12 s".

        Args:
            outcome: Why it has ended: "found" or "given up".
        """
        if self._is_shown:
            self._ending = f"{outcome} after {format_age(self.waited_seconds)}"
            # Work is finished when all of its units, here seconds, are done.
            self._show(seconds=self.total)

        self._is_shown = False
        self._wait_started_at = None
        self._first_report_at = None

    def _show(self, seconds: int) -> None:
        """Show how many seconds are over; as many as the limit mean that waiting has ended."""
        self._is_shown = True
        self._finished = Amount(seconds)
        self.report()

    @property
    def description(self) -> str:
        """One line with what is waited for, for how long, and how long at most."""
        if self.is_finished:
            return f"{self.label}: {self._ending}"
        so_far = format_age(self.done.units)
        return f"{self.label}: {so_far} so far, up to {format_age(self.total)}"


def _whole_seconds(limit: float) -> int:
    """Return a time limit in whole seconds, rounded up: 3 for 2.5. It is at least 1.

    Args:
        limit: The limit, in seconds.
    """
    return max(math.ceil(limit), 1)


# Tasks often run in other processes than the `Progress` that shows their work. They pass reports to
# the receiver of their context (`report_progress`). In a worker process, the receiver sends reports
# to the process that handed out the task, where a receiver passes them to a `RunningWork`.


@dataclass(frozen=True, slots=True)
class TaskNote:
    """A message of a task to the user; equal messages are shown once."""

    text: str


@dataclass(frozen=True, slots=True)
class PartReport:
    """How much a task has done of the part of the work that was handed out to it."""

    part: str
    """Name of the part."""
    amount: Amount
    """How much of the part is done, from its beginning."""


TaskReport: TypeAlias = TaskNote | PartReport
"""What a task reports."""
Receive: TypeAlias = Callable[[TaskReport], None]
"""Function that receives the reports of tasks."""


def _ignore(report: TaskReport) -> None:
    """Receive a report that nobody looks at."""


_receiver: ContextVar[Receive] = ContextVar("receive", default=_ignore)
"""The receiver of the current context."""


def report_progress(report: TaskReport) -> None:
    """Report from within a task how much of it is done. The task may run in any process.

    Args:
        report: How much is done, or a message to the user. It is lost if nobody has asked for
            reports by `progress_reported_to`.
    """
    receive = _receiver.get()
    receive(report)


@contextmanager
def progress_reported_to(receive: Receive) -> Iterator[None]:
    """Within the `with` block, pass what tasks report to a function.

        with progress_reported_to(print):
            tokenize(part)    # calls report_progress(…), and so print(…)

    Args:
        receive: The function, which is called for each report, in the process and thread of the
            task.
    """
    token = _receiver.set(receive)
    try:
        yield
    finally:
        _receiver.reset(token)


def set_progress_receiver(receive: Receive) -> None:
    """From now on, pass what tasks of this worker process report to a function.

    Args:
        receive: The function. It sends the reports to the process that hands out the tasks.
    """
    _receiver.set(receive)
