"""Progress bars, notices and short phrases on the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.execution.progress import WAITING, Progress, ProgressCallback
from nanoset_core.serialization.text import format_age, format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

_REPEAT_SECONDS = 600.0


@contextmanager
def progress_bars() -> Iterator[tuple[ProgressCallback, Callable[[str], None]]]:
    """Yield a progress callback that draws bars, and a function that prints a line where there is no terminal."""
    # importing rich to ask it would take longer than a small job
    if not sys.stderr.isatty() and not {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        yield WaitingLines(), lambda line: click.echo(line, err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TaskProgressColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        *("{task.description}", BarColumn(), TaskProgressColumn(), "{task.fields[rate]}"),
        *(TimeElapsedColumn(), TimeRemainingColumn()),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[str, TaskID] = {}

        def listen(progress: Progress) -> None:
            label = f"{progress.stage} {progress.name}"
            if label not in tasks:
                tasks[label] = bars.add_task(label, rate="")
            bars.update(
                tasks[label],
                total=max(progress.total, 1),
                completed=progress.done,
                rate=rate(progress, bars.tasks[tasks[label]].elapsed or 1e-3),
                visible=progress.done < progress.total,
            )

        yield listen, lambda line: None if console.is_terminal else console.print(line, highlight=False, markup=False)


class WaitingLines:
    """A progress callback without bars: prints what is waited for, again every ten minutes, and its end."""

    def __init__(self) -> None:
        self._said: dict[str, float] = {}

    def __call__(self, progress: Progress) -> None:
        """Take one report of progress; see `ProgressCallback`."""
        if progress.stage != WAITING:
            return
        now, line = time.monotonic(), f"{progress.stage} {progress.name}"
        if progress.done >= progress.total:
            if self._said.pop(line, None) is not None:
                click.echo(f"{line}: no longer", err=True)
        elif now - self._said.get(line, float("-inf")) > _REPEAT_SECONDS:
            self._said[line] = now
            waited = format_age(progress.done)
            click.echo(f"{line}: {waited} so far, up to {format_age(progress.total)}", err=True)


def print_notices(notices: Iterable[str]) -> None:
    """Print notices on stderr, such as of input files that are not read."""
    for notice in notices:
        click.secho(f"notice: {notice}", fg="yellow", err=True)


def print_made(text: str, *, is_new: bool, lost: str = "", err: bool = False) -> None:
    """Print what was made, and in bold what was lost on the way; or that it was there already."""
    loss = f"; {click.style(lost, bold=True, fg='yellow')}" if lost else ""
    click.echo(f"{text}{loss}{'' if is_new else ' (there already)'}", err=err)


def rejected_text(rejected: int, faults: int) -> str:
    """Return counts of rejected lines and of files that could not be read to their end."""
    lines = format_count(rejected - faults, "line")
    return f"{lines} and {format_count(faults, 'file')} rejected" if faults else f"{lines} rejected"


def spread(lengths: NDArray[Any]) -> str:
    """Return the least, largest and median of lengths in tokens, shape (sequences,)."""
    import numpy as np

    return f"{lengths.min():,} to {lengths.max():,} tokens, {np.median(lengths):,.0f} in the middle"


def rate(progress: Progress, seconds: float) -> str:
    """Return how fast work goes, in the units that are counted."""
    if progress.tokens:
        return (
            f"{progress.documents / seconds:,.0f} documents/s, {progress.tokens / 1e6 / seconds:,.2f} M tokens/s, "
            f"{progress.done / 1e6 / seconds:,.1f} MB/s"
        )
    if progress.unit == "bytes":
        return f"{progress.done / 1e6 / seconds:,.0f} MB/s"
    return f"{progress.done:,} {progress.unit}"
