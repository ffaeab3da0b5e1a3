"""Progress bars, notices and short phrases on the terminal."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import click

from nanoset_core.execution.progress import WAITING, Progress, ProgressCallback
from nanoset_core.serialization.text import format_age, format_count

_REPEAT_SECONDS = 600.0


@contextmanager
def progress_bars() -> Iterator[tuple[ProgressCallback, Callable[[str], None]]]:
    """Yield a progress callback that draws bars, and a function that prints a line where there is no terminal."""
    if not _may_draw():
        yield WaitingLines(), lambda line: click.echo(line, err=True)
        return
    from rich.console import Console
    from rich.progress import BarColumn, TaskID, TextColumn, TimeElapsedColumn, TimeRemainingColumn
    from rich.progress import Progress as Bars

    console = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.percentage:>3.0f}%"),
        TextColumn("{task.fields[rate]}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Bars(*columns, console=console, disable=not console.is_terminal) as bars:
        tasks: dict[tuple[str, str], tuple[TaskID, float]] = {}

        def listen(progress: Progress) -> None:
            key = (progress.stage, progress.name)
            if key not in tasks:
                tasks[key] = (bars.add_task(f"{progress.stage} {progress.name}", total=1, rate=""), time.monotonic())
            task, started = tasks[key]
            bars.update(
                task,
                total=max(progress.total, 1),
                completed=progress.done,
                rate=rate(progress, time.monotonic() - started),
                visible=progress.done < progress.total,
            )

        def say(line: str) -> None:
            if not console.is_terminal:
                console.print(line, highlight=False, markup=False)

        yield listen, say


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


def _may_draw() -> bool:
    """Whether bars can be seen; importing rich to ask would take longer than a small job."""
    return sys.stderr.isatty() or any(name in os.environ for name in ("FORCE_COLOR", "TTY_COMPATIBLE"))


def print_notices(notices: Iterable[str]) -> None:
    """Print notices on stderr, such as of input files that are not read."""
    for notice in notices:
        click.secho(f"notice: {notice}", fg="yellow", err=True)


def emphasis(lost: str) -> str:
    """Return what was lost in bold, to follow what was made; "" where nothing was lost."""
    return f"; {click.style(lost, bold=True, fg='yellow')}" if lost else ""


def rejected_text(rejected: int, faults: int) -> str:
    """Return counts of rejected lines and of files that could not be read to their end."""
    lines = format_count(rejected - faults, "line")
    return f"{lines} and {format_count(faults, 'file')} rejected" if faults else f"{lines} rejected"


def rate(progress: Progress, seconds: float) -> str:
    """Return the rate in the units that are counted."""
    seconds = max(seconds, 1e-3)
    if progress.tokens:
        return (
            f"{progress.documents / seconds:,.0f} documents/s, {progress.tokens / 1e6 / seconds:,.2f} M tokens/s, "
            f"{progress.done / 1e6 / seconds:,.1f} MB/s"
        )
    return (
        f"{progress.done / 1e6 / seconds:,.0f} MB/s"
        if progress.unit == "bytes"
        else f"{progress.done:,} {progress.unit}"
    )
