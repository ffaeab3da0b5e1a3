"""The progress of a command: bars on a terminal, lines with the time of day everywhere else."""

from __future__ import annotations

import math
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, TextIO

from nanoset_core.cli.echo import echo
from nanoset_core.cli.streams import stderr_duplicate
from nanoset_core.execution.progress import NOTE, STEP, WAITING, Progress, ProgressCallback
from nanoset_core.execution.watch import Watch, step_count, work_label
from nanoset_core.records.text import format_age
from nanoset_core.untrusted import visible

if TYPE_CHECKING:
    from rich.console import RenderableType

Say = Callable[[str], None]
"""Prints one line. A line that ends in `GOES_ON` names work that begins; it is shown until the next
line.
"""
GOES_ON = " …"
"""Ends a line on work that begins."""
LINE_SECONDS = 30.0
"""Time between two lines on one piece of work, if there is no terminal."""
FRAMES_PER_SECOND = 4
_REPEAT_SECONDS = 600.0
"""Time between two lines on something that is waited for, if there is no terminal."""
_BAR_COLUMNS = 20
_LABEL_COLUMNS = 12
"""A label is not made narrower than this to keep a bar."""
_UNKNOWN = "-:--:--"
"""Printed in place of a remaining time that cannot be estimated yet."""


@contextmanager
def progress_bars() -> Iterator[tuple[ProgressCallback, Say]]:
    """Yield a progress callback and a function that prints one line.

    Both draw on standard error: bars if it is a terminal, else lines without control characters.
    """
    with stderr_duplicate() as stream:
        shown: AbstractContextManager[tuple[ProgressCallback, Say]]
        shown = _bars(stream) if _is_interactive(stream) else _lines(stream)
        with shown as callbacks:
            yield callbacks


def _is_interactive(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which the cursor can be moved."""
    terminal_type = os.environ.get("TERM") or "dumb"
    return stream.isatty() and terminal_type not in ("dumb", "unknown")


@contextmanager
def _bars(stream: TextIO) -> Iterator[tuple[ProgressCallback, Say]]:
    """Yield the callbacks of `progress_bars` that draw on a terminal."""
    # Importing rich takes longer than a small job whose output is no terminal.
    from rich.console import Console, ConsoleDimensions
    from rich.live import Live

    console = Console(file=stream)
    bars = _Bars(lambda: console.width, is_unicode=console.encoding.startswith("utf"))

    def frame() -> RenderableType:
        # rich would ask descriptors 0 to 2 for the size; Dagster redirects two of them.
        columns, rows = _terminal_size(stream)
        if columns and rows:
            console.size = ConsoleDimensions(columns, rows)
        return bars.frame()

    def listen(progress: Progress) -> None:
        if progress.stage != NOTE:
            if bars.update(progress):
                live.refresh()  # short work would end before the next frame
        elif bars.watch.is_new(progress):
            console.print(visible(progress.name), highlight=False, markup=False, soft_wrap=True)

    def say(line: str) -> None:
        if line.endswith(GOES_ON):
            bars.begin(line.removesuffix(GOES_ON))
        else:
            bars.begin("")
            console.print(visible(line), highlight=False, markup=False, soft_wrap=True)
        live.refresh()

    live = Live(
        get_renderable=frame,
        console=console,
        refresh_per_second=FRAMES_PER_SECOND,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a pipe is not drawn above the bars
        vertical_overflow="crop",
    )
    with live:
        yield listen, say


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows of a terminal, or zeros if they are not known."""
    try:
        return os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0


class _Bars:
    """Running work as lines that fit the terminal: for each piece of work a bar and its figures."""

    def __init__(self, width: Callable[[], int], *, is_unicode: bool) -> None:
        """Create bars without any work.

        Args:
            width: Returns the columns of the terminal, which may change.
            is_unicode: Whether the terminal takes characters that are not ASCII.
        """
        self.watch = Watch()
        self._width = width
        self._is_unicode = is_unicode
        self._lock = threading.Lock()  # frames are drawn by another thread
        self._about = ""  # work that has begun, and has not reported progress yet
        self._count = ""  # number of the step of a build, which precedes labels
        self._since = time.monotonic()  # when the work or step began
        self._works: dict[str, Progress] = {}  # label of running work → last report on it

    def begin(self, about: str, count: str = "") -> None:
        """Show which work begins; it has no bar until its progress is reported.

        Args:
            about: What begins; nothing is shown if it is empty.
            count: The number of the step, before the labels of all work that is reported from now
                on.
        """
        with self._lock:
            self._about = visible(about)
            self._count = count
            self._since = time.monotonic()
            self._works.clear()

    def update(self, progress: Progress) -> bool:
        """Show how far a piece of work has come, or that a step of a build begins.

        Returns:
            Whether a step or a piece of work appears that was not shown before.
        """
        if progress.stage == STEP:
            count = step_count(progress)
            self.begin(f"{count}{progress.name}", count)
            return True

        label = work_label(progress)
        is_running = progress.done < progress.total
        with self._lock:
            self.watch.observe(progress)
            is_new = label not in self._works
            if is_running:
                self._works[label] = progress
            else:
                self._works.pop(label, None)
        return is_running and is_new

    def frame(self) -> RenderableType:
        """Return what the terminal shows now."""
        from rich.console import Group
        from rich.text import Text

        width = self._width()
        with self._lock:
            about = self._about
            count = self._count
            works = list(self._works.values())
            elapsed = time.monotonic() - self._since

        lines = []
        if about and not works:
            lines.append(bar_line(width, about, None, elapsed, None, is_unicode=self._is_unicode))
        for work in works:
            label = f"{count}{work_label(work)}"
            share = work.done / work.total
            seconds = self.watch.seconds(work)
            remaining = self.watch.seconds_left(work)
            lines.append(
                bar_line(width, label, share, seconds, remaining, is_unicode=self._is_unicode)
            )
            lines.append(_fitted(f"  {self.watch.figures(work)}", width))
        # One text a line, so that none is folded; the last column stays free, since some terminals
        # wrap after it.
        return Group(*(Text(line, no_wrap=True, overflow="crop") for line in lines))


def bar_line(
    width: int,
    label: str,
    share: float | None,
    elapsed: float,
    remaining: float | None,
    *,
    is_unicode: bool = True,
) -> str:
    """Return one line of progress that fits a terminal: `label ━━╌╌  50% 0:01:23 ETA 0:01:20`.

    On a narrow terminal, the bar is shortened first, then the label. The times are never cut.

    Args:
        width: Columns of the terminal.
        label: What is being done.
        share: How much of it is done, 0 to 1; None if that is not known.
        elapsed: Seconds so far.
        remaining: Seconds that are expected to remain; None if that is not known.
        is_unicode: Whether the terminal takes characters that are not ASCII.
    """
    from rich.cells import cell_len

    eta = _UNKNOWN if remaining is None else _clock(remaining)
    times = f"{_clock(elapsed)} ETA {eta}"
    if share is not None:
        times = f"{math.floor(100 * share):3d}% {times}"

    # Columns for the label and the bar. The last column of the terminal stays free, and a space
    # separates the times.
    available = width - 1 - len(times) - 1
    if available < _LABEL_COLUMNS:
        return _fitted(times, width)

    # The bar gets what the label leaves, but not so little that it would show nothing.
    bar = ""
    bar_columns = available - max(cell_len(label), _LABEL_COLUMNS) - 1
    if share is not None and bar_columns > 2:
        bar = _bar(share, min(bar_columns, _BAR_COLUMNS), is_unicode=is_unicode)
        available -= len(bar) + 1
    fitted_label = _fitted(label, available + 1, pad=True, is_unicode=is_unicode)
    return " ".join(part for part in (fitted_label, bar, times) if part)


def _bar(share: float, columns: int, *, is_unicode: bool) -> str:
    """Return a bar that is as wide as `columns`, filled up to a share."""
    n_filled = round(columns * min(share, 1))
    if is_unicode:
        return "━" * n_filled + "╌" * (columns - n_filled)
    return "#" * n_filled + "-" * (columns - n_filled)


def _fitted(text: str, width: int, *, pad: bool = False, is_unicode: bool = True) -> str:
    """Return a text that takes less than `width` columns; a mark replaces what was cut off.

    Args:
        text: The text.
        width: Columns that it must not reach.
        pad: Whether to fill a shorter text with spaces.
        is_unicode: Whether the terminal takes characters that are not ASCII.
    """
    from rich.cells import cell_len, set_cell_size

    columns = max(width - 1, 0)
    if cell_len(text) > columns:
        mark = "…" if is_unicode else "~"
        return set_cell_size(text, max(columns - 1, 0)) + mark[:columns]
    return set_cell_size(text, columns) if pad else text


def _clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: 0:01:23."""
    whole = max(int(seconds), 0)
    return f"{whole // 3600}:{whole // 60 % 60:02d}:{whole % 60:02d}"


@contextmanager
def _lines(stream: TextIO) -> Iterator[tuple[ProgressCallback, Say]]:
    """Yield the callbacks of `progress_bars` that print lines."""
    lines = Lines(stream)
    ticker = threading.Thread(target=lines.repeat, name="progress", daemon=True)
    ticker.start()
    try:
        yield lines.listen, lines.say
    finally:
        lines.ended.set()
        ticker.join()


class Lines:
    """Prints progress as lines, for logs.

    Notes, and what is waited for, are printed at once. While `repeat` runs, the progress of all
    work is printed every 30 seconds.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Create an idle printer.

        Args:
            stream: Where to print; default: standard error.
        """
        self.ended = threading.Event()
        self._stream = stream
        self._watch = Watch()
        self._waiting: dict[str, float] = {}  # line about a wait → when it was printed last
        self._works: dict[str, Progress] = {}  # label of running work → last report on it
        self._about = ""  # work that has begun, and has not reported progress yet
        self._since = 0.0  # when it began

    def listen(self, progress: Progress) -> None:
        """Print a report on progress at once if it is a note or a wait; otherwise remember it."""
        if progress.stage == WAITING:
            self._wait(progress)
        elif progress.stage == NOTE:
            if self._watch.is_new(progress):
                self._print(progress.name)
        elif progress.stage == STEP:
            self._begin(f"{step_count(progress)}{progress.name}")
        elif progress.done < progress.total:
            self._watch.observe(progress)
            self._works[work_label(progress)] = progress
        else:
            self._works.pop(work_label(progress), None)

    def _wait(self, progress: Progress) -> None:
        """Print what is waited for, at once and every ten minutes, and when the wait has ended."""
        now = time.monotonic()
        line = work_label(progress)
        if progress.done >= progress.total:
            if self._waiting.pop(line, None) is not None:
                self._print(f"{line}: no longer")
            return

        printed_at = self._waiting.get(line)
        if printed_at is None or now - printed_at >= _REPEAT_SECONDS:
            self._waiting[line] = now
            self._print(
                f"{line}: {format_age(progress.done)} so far, up to {format_age(progress.total)}"
            )

    def say(self, line: str) -> None:
        """Print a line; see `Say`."""
        about = ""
        if line.endswith(GOES_ON):
            about = line.removesuffix(GOES_ON)
        self._begin(about)
        self._print(line)

    def _begin(self, about: str) -> None:
        """Remember which work begins; `repeat` prints it until there is progress."""
        self._works.clear()
        self._about = about
        self._since = time.monotonic()

    def repeat(self) -> None:
        """Print progress every 30 seconds until the end."""
        while not self.ended.wait(LINE_SECONDS):
            works = list(self._works.values())
            for progress in works:
                self._print(self._watch.describe(progress))
            if self._about and not works:
                self._print(f"{self._about}: {format_age(time.monotonic() - self._since)} so far")

    def _print(self, text: str) -> None:
        echo(f"{time.strftime('%H:%M:%S')} {text}", file=self._stream or sys.stderr)
