"""The progress of a command: bars on a terminal, lines with the time of day everywhere else.

A terminal shows, for each piece of work, a line such as `tokenizing ━━━╌╌╌  50% 0:01:23 ETA
0:01:20`, which is drawn again four times a second. A log gets a line every 30 seconds instead.
"""

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
from nanoset_core.execution.progress import GOES_ON, Display, Progress, RunningWork, Wait
from nanoset_core.untrusted import visible
from nanoset_core.wording import format_age

if TYPE_CHECKING:
    from rich.console import RenderableType

LINE_SECONDS = 30.0
"""Time between two lines on one piece of work, if there is no terminal."""
FRAMES_PER_SECOND = 4
SPINNER_FRAMES_PER_SECOND = 12.5
_BAR_COLUMNS = 20
_LABEL_COLUMNS = 12
"""A label is not made narrower than this to keep a bar."""
_UNKNOWN = "-:--:--"
"""Printed in place of a remaining time that cannot be estimated yet."""


@contextmanager
def shown_progress() -> Iterator[Progress]:
    """Within a `with` block, show the user how much of the work is done.

        with shown_progress() as progress:
            tokenize(files, progress)    # reports to `progress`

    On a terminal, this draws a bar for each piece of work. Elsewhere, such as in a log file, it
    prints a line every 30 seconds.

    Yields:
        The progress, to which work is reported.
    """
    with stderr_duplicate() as stream:
        shown: AbstractContextManager[Progress]
        shown = _bars(stream) if _is_interactive(stream) else _lines(stream)
        with shown as progress:
            yield progress


@contextmanager
def shown_spinner(text: str) -> Iterator[Callable[[str], None]]:
    """Within a `with` block, show on a terminal that the command is still working.

    For work that cannot be divided into parts with a bar for each:

        with shown_spinner("verifying") as show:
            show("verified corpora/web")    # replaces "verifying"

    Like the bars, this is drawn on standard error, since standard output may be a file, or JSON for
    another program. Nothing is drawn if standard error is not a terminal.

    Args:
        text: What the command does.

    Yields:
        A function that replaces the text.
    """
    if not _is_interactive(sys.stderr):
        yield lambda text: None
        return
    # Importing rich takes a moment, which a command without a terminal should not wait for.
    from rich.console import Console
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    def show(text: str) -> None:
        """Replace the text."""
        # As a Text, so that a name which looks like markup of rich is printed unchanged.
        spinner.update(text=Text(visible(text)))

    spinner = Spinner("dots", Text(visible(text)), style="status.spinner")
    with Live(
        spinner,
        console=Console(stderr=True),
        refresh_per_second=SPINNER_FRAMES_PER_SECOND,
        transient=True,
        redirect_stdout=sys.stdout.isatty(),  # what goes to a pipe is not drawn above the spinner
    ):
        yield show


def _is_interactive(stream: TextIO) -> bool:
    """Return whether a stream is a terminal on which lines can be drawn again.

    Not every terminal can do that: the environment variable TERM is "dumb" for one that only
    prints. rich is not asked, since it takes a file for a terminal if FORCE_COLOR is set, as many
    CI systems do.

    Args:
        stream: Such as standard error.
    """
    terminal_type = os.environ.get("TERM") or "dumb"
    return stream.isatty() and terminal_type not in ("dumb", "unknown")


@contextmanager
def _bars(stream: TextIO) -> Iterator[Progress]:
    """Within a `with` block, draw how much of the work is done on a terminal, as bars.

    Args:
        stream: The terminal.
    """
    bars = Bars(stream)
    with bars.live:
        yield bars.progress


class Bars(Display):
    """Draws running work on a terminal: for each piece of work a bar and its figures."""

    def __init__(self, stream: TextIO) -> None:
        """Prepare to draw on a terminal; `live` draws as long as it is entered.

        Args:
            stream: The terminal.
        """
        # Importing rich takes longer than a small job whose output is no terminal.
        from rich.console import Console
        from rich.live import Live

        self.progress = Progress(self)
        """What is drawn."""
        self._stream = stream
        self._console = Console(file=stream)
        self._is_unicode = self._console.encoding.startswith("utf")
        self.live = Live(
            get_renderable=self._frame,
            console=self._console,
            refresh_per_second=FRAMES_PER_SECOND,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),  # what goes to a pipe is not drawn above the bars
            vertical_overflow="crop",
        )
        """Draws the bars in a thread of its own."""

    def note(self, text: str) -> None:
        """Print a notice above the bars."""
        self._print(text)

    def say(self, line: str) -> None:
        """Print a line above the bars, unless it only says that a piece of work has begun.

        Args:
            line: What happened. It ends with `GOES_ON` if work begins, which a bar shows anyway.
        """
        if not line.endswith(GOES_ON):
            self._print(line)
        self.live.refresh()

    def step(self) -> None:
        self.live.refresh()

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        """Draw the bars at once if a piece of work has begun.

        Short work would end before the next frame, so that it would never be seen.

        Args:
            work: The work. It is not used here, since a frame shows all running work.
            is_new: Whether it has just begun.
        """
        if is_new:
            self.live.refresh()

    def _print(self, text: str) -> None:
        """Print a text above the bars."""
        self._console.print(visible(text), highlight=False, markup=False, soft_wrap=True)

    def _frame(self) -> RenderableType:
        """Return all lines that the terminal shows now, for the library rich, which draws them.

        rich calls this four times a second.
        """
        from rich.console import Group
        from rich.text import Text

        self._adopt_terminal_size()
        # rich must not fold a line that is too long, as it would if they were one text.
        lines = self._frame_lines(self._console.width)
        texts = [Text(line, no_wrap=True, overflow="crop") for line in lines]
        return Group(*texts)

    def _adopt_terminal_size(self) -> None:
        """Tell rich the size of the terminal that the stream is connected to, if it is known.

        By default, rich asks the file descriptors 0 to 2 for the size. Dagster redirects two of
        them to files.
        """
        from rich.console import ConsoleDimensions

        columns, rows = _terminal_size(self._stream)
        if columns and rows:
            self._console.size = ConsoleDimensions(columns, rows)

    def _frame_lines(self, width: int) -> list[str]:
        """Return the lines that the terminal shows now.

        For example, a build is at its step 3 of 25, which tokenizes the text collection web:

            [3/25] tokenizing web  ━━━━━╌╌╌╌╌  50% 0:01:23 ETA 0:01:20
              1,200 documents, 61,000 tokens

        Args:
            width: Columns of the terminal. Every line is narrower, since some terminals wrap after
                the last column.
        """
        state = self.progress.state()
        if state.works:  # the pieces of work that are being done
            lines: list[str] = []
            for work in state.works:
                lines += self._work_lines(work, state.step.count, width)
            return lines

        # Between two pieces of work, there is one line with the name of the step, and no bar.
        step_name = state.step.about
        if not step_name:
            return []
        step_line = bar_line(
            width,
            label=visible(step_name),
            share=None,
            elapsed=time.monotonic() - state.step.since,
            remaining=None,
            is_unicode=self._is_unicode,
        )
        return [step_line]

    def _work_lines(self, work: RunningWork, step_number: str, width: int) -> list[str]:
        """Return the two lines of a piece of work: its bar, and its figures.

            [3/25] tokenizing web  ━━━━━╌╌╌╌╌  50% 0:01:23 ETA 0:01:20
              1,200 documents, 61,000 tokens

        Args:
            work: The work, which knows how much of it is done.
            step_number: Number of its step, such as "[3/25] "; may be empty.
            width: Columns of the terminal.
        """
        bar = bar_line(
            width,
            label=f"{step_number}{work.label}",
            share=work.share,
            elapsed=work.seconds,
            remaining=work.seconds_left,
            is_unicode=self._is_unicode,
        )
        return [bar, _fitted(f"  {work.figures}", width)]


def _terminal_size(stream: TextIO) -> tuple[int, int]:
    """Return columns and rows of a terminal, or zeros if they are not known."""
    try:
        return os.get_terminal_size(stream.fileno())
    except (OSError, ValueError):
        return 0, 0


def bar_line(
    width: int,
    label: str,
    share: float | None,
    elapsed: float,
    remaining: float | None,
    *,
    is_unicode: bool = True,
) -> str:
    """Return a line that shows how much of a piece of work is done, and fits into a terminal.

    If the terminal is narrow, the bar is shortened first, then left out. After that the label is
    cut, but never the times:

        tokenizing web ━━━━╌╌╌╌╌  50% 0:01:23 ETA 0:01:20
        tokenizing web   50% 0:01:23 ETA 0:01:20
        tokenizing w…  50% 0:01:23 ETA 0:01:20
         50% 0:01:23 ETA 0:01:20

    Args:
        width: Columns of the terminal. The line is at least one column narrower.
        label: What is being done.
        share: How much of it is done, 0 to 1; None if not known. Then there is no bar.
        elapsed: Seconds so far.
        remaining: Seconds that are expected to remain; None if not known.
        is_unicode: Whether the terminal takes characters that are not ASCII.
    """
    from rich.cells import cell_len

    # Columns for the label and the bar: the last column of the terminal stays free, and a space
    # precedes the times.
    times = _times(share, elapsed, remaining)
    available = width - 1 - len(times) - 1
    if available < _LABEL_COLUMNS:
        return _fitted(times, width)  # a label of a few letters would say nothing

    # The bar gets the columns that the label leaves. A bar of one or two would show nothing.
    bar_columns = available - max(cell_len(label), _LABEL_COLUMNS) - 1
    if share is None or bar_columns <= 2:
        fitted_label = _fitted(label, available + 1, pad=True, is_unicode=is_unicode)
        return f"{fitted_label} {times}"
    bar = _bar(share, min(bar_columns, _BAR_COLUMNS), is_unicode=is_unicode)
    available -= len(bar) + 1  # the bar and the space before it
    fitted_label = _fitted(label, available + 1, pad=True, is_unicode=is_unicode)
    return f"{fitted_label} {bar} {times}"


def _times(share: float | None, elapsed: float, remaining: float | None) -> str:
    """Return the end of a line of progress, such as " 50% 0:01:23 ETA 0:01:20".

        0:01:23 ETA -:--:--    neither the share nor the remaining time is known

    Args:
        share: How much is done, 0 to 1; None if not known.
        elapsed: Seconds so far.
        remaining: Seconds that are expected to remain; None if not known.
    """
    eta = _UNKNOWN if remaining is None else _clock(remaining)
    times = f"{_clock(elapsed)} ETA {eta}"
    if share is None:
        return times
    percent = math.floor(100 * share)  # rounded down: 100 % only once all is done
    return f"{percent:3d}% {times}"


def _bar(share: float, columns: int, *, is_unicode: bool) -> str:
    """Return a bar that is filled up to a share, such as "━━━━╌╌╌╌" for a half.

    Args:
        share: From 0 to 1. More is shown as 1, since an estimate may be exceeded.
        columns: Width of the bar in characters.
        is_unicode: Whether the terminal takes characters that are not ASCII. If not, the bar looks
            like "####----".
    """
    n_filled = round(columns * min(share, 1))
    if is_unicode:
        return "━" * n_filled + "╌" * (columns - n_filled)
    return "#" * n_filled + "-" * (columns - n_filled)


def _fitted(text: str, width: int, *, pad: bool = False, is_unicode: bool = True) -> str:
    """Return a text that is cut, if necessary, to fit into a line of a terminal.

    The last column stays free, since some terminals wrap after it. For example, a line of 8 columns
    has room for 7: "tokenizing" becomes "tokeni…".

    Args:
        text: The text.
        width: Columns of the line.
        pad: Whether to fill a shorter text with spaces.
        is_unicode: Whether the terminal takes characters that are not ASCII.
    """
    from rich.cells import cell_len, set_cell_size

    # `cell_len` returns the columns of a text: a Chinese character takes two. `set_cell_size` cuts
    # a text, or adds spaces, to a number of columns.
    max_columns = max(width - 1, 0)
    if cell_len(text) <= max_columns:
        return set_cell_size(text, max_columns) if pad else text
    if max_columns == 0:
        return ""
    mark = "…" if is_unicode else "~"
    return set_cell_size(text, max_columns - len(mark)) + mark


def _clock(seconds: float) -> str:
    """Return a time as hours, minutes and seconds: 0:01:23 for 83 seconds."""
    minutes, whole_seconds = divmod(max(int(seconds), 0), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{whole_seconds:02d}"


@contextmanager
def _lines(stream: TextIO) -> Iterator[Progress]:
    """Within a `with` block, print how much of the work is done as lines, for a log.

    A thread prints a line every 30 seconds, until the block ends.

    Args:
        stream: Where to print.
    """
    lines = Lines(stream)
    ticker = threading.Thread(target=lines.repeat, name="progress", daemon=True)
    ticker.start()
    try:
        yield lines.progress
    finally:
        lines.is_command_done.set()
        ticker.join()


class Lines(Display):
    """Prints progress as lines with the time of day, for logs.

        14:03:27 tokenizing web: 50%, 1,200 documents, …

    What happens at once, such as a message, is printed at once. How much of the work is done is
    printed every 30 seconds by the method `repeat`, which another thread runs.
    """

    def __init__(self, stream: TextIO | None = None) -> None:
        """Prepare to print the progress of a command. Nothing is running yet, so print nothing.

        Args:
            stream: Where to print; default: standard error.
        """
        self.progress = Progress(self)
        """Which work is running. The command reports to this object, and its lines are printed."""
        self.is_command_done = threading.Event()
        """Set when the command ends, so that the thread which runs `repeat` ends, too."""
        self._stream = stream
        self._printed_waits: set[str] = set()
        """What the command waits for, if a line has said so: {"waiting for workers"}."""

    def note(self, text: str) -> None:
        """Print a notice."""
        self._print(text)

    def say(self, line: str) -> None:
        """Print a line on what happened."""
        self._print(line)

    def work(self, work: RunningWork, *, is_new: bool) -> None:
        """Print at once that the command begins to wait for something, and that this has ended.

        For example, a build waits until the first worker of a cluster has started. In between, and
        for all other work, `repeat` prints how far it is.

        Args:
            work: Running work, which was reported just now.
            is_new: Whether it has just begun. Not used here; other displays need it.
        """
        if not isinstance(work, Wait):
            return
        was_printed = work.label in self._printed_waits
        if work.is_finished and was_printed:
            self._printed_waits.discard(work.label)  # another thread may have removed it
            self._print(work.description)
        if not work.is_finished and not was_printed:
            self._printed_waits.add(work.label)
            self._print(work.description)

    def repeat(self) -> None:
        """Print every 30 seconds how much of the work is done, until the command ends.

        14:03:27 tokenizing web: 50%, 85.2 MB/s, 12,000 documents, 600,000 tokens, 2 min left
        """
        # `wait` returns False after 30 seconds, and True as soon as the command has ended.
        while not self.is_command_done.wait(LINE_SECONDS):
            self._print_state()

    def _print_state(self) -> None:
        """Print a line for each piece of work that is under way, or else for the step of the build.

        Waiting for something, such as a cluster, is also reported as work. The other work stands
        still meanwhile, and its figures would only hide why. So then only the waiting is printed.
        """
        state = self.progress.state()
        waits = [work for work in state.works if isinstance(work, Wait)]
        for work in waits or state.works:
            self._print(work.description)
        if not state.works and state.step.about:
            seconds = time.monotonic() - state.step.since
            self._print(f"{state.step.about}: {format_age(seconds)} so far")

    def _print(self, text: str) -> None:
        """Print a line that begins with the time of day, such as "14:03:27 tokenizing web"."""
        line = f"{time.strftime('%H:%M:%S')} {text}"
        echo(line, err=True, file=self._stream or sys.stderr)  # err: secrets are hidden
