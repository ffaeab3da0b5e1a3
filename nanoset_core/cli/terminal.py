"""What commands print: tables of rows, some of which the UI shows too, JSON, notices, and progress."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.execution.progress import WAITING, Progress, ProgressCallback
from nanoset_core.serialization.text import format_age, format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console

    from nanoset_core.lineage.documents import DocumentOrigin
    from nanoset_core.shuffling.plan import ShufflePlan

Row = dict[str, Any]
"""Heading → integer, text, or text and its style."""
FILE_COLUMNS = 120
"""Width of tables that go to a file or a pipe, in characters."""
_LEAST_TEXT = 12
"""Width below which a column of text is hard to read."""
_REPEAT_SECONDS = 600.0
_MEASURES = (
    ("neighbours from one source", "same_source", "{same_source_expected:.3g}"),
    ("neighbours that touch in their source", "neighbours", "{neighbours_expected:.3g}"),
    ("rank correlation with the sources", "rank_correlation", "0 ± {rank_correlation_error:.3g}"),
    ("mix of sources in a shard, mean deviation in standard errors", "mix_mean", "0.8"),
    ("largest of these", "mix_max", "about {mix_max_expected:.3g}"),
)


def wide_console() -> Console:
    """Return a console for tables: as wide as the terminal, and wide where there is none."""
    from rich.console import Console

    console = Console(markup=False, highlight=False)  # names of others may hold what looks like markup
    if not console.is_terminal:
        console.width = max(console.width, FILE_COLUMNS)
    return console


def print_rows(
    rows: Sequence[Mapping[str, Any]],
    *,
    text: Collection[str] = (),
    title: str | None = None,
    total: Mapping[str, Any] | None = None,
    console: Console | None = None,
) -> None:
    """Print rows as a table, with every column and no number cut in two: on a narrow terminal without its frame.

    Args:
        rows: heading → integer, text, or (text, style of rich's); all with the keys of the first. None print nothing.
        text: headings of columns of text that may be folded, besides the first; others stay on one line.
        title: above the table.
        total: a last row, under a line.
        console: where to; default: a wide one.
    """
    from rich.cells import cell_len
    from rich.table import Table

    if not rows:
        return
    console, table = console or wide_console(), Table(title=title, title_justify="left")
    lines = [[_cell(row.get(heading, "")) for heading in rows[0]] for row in (*rows, *([total] if total else []))]
    for heading, *column in zip(rows[0], *lines, strict=True):
        is_text = heading in text or not table.columns
        widest = max(map(cell_len, [heading, *map(str, column)]))
        least = min(widest, _LEAST_TEXT) if is_text else widest
        justify: Any = "left" if is_text else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=not is_text, min_width=least)
    for line in lines:
        if line is lines[-1] and total:
            table.add_section()
        table.add_row(*line)
    least, width = sum(column.min_width or 0 for column in table.columns), console.width
    if least + 3 * len(table.columns) + 1 > width:
        table.box, table.pad_edge = None, False
    console.width = max(width, least + 2 * len(table.columns))
    console.print(table, crop=False)
    console.width = width


def _cell(value: Any) -> Any:
    from rich.text import Text

    return Text(*value) if isinstance(value, tuple) else f"{value:,}" if isinstance(value, int) else value


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON; all of it in ASCII where the output is not in UTF-8."""
    other = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    click.echo(json.dumps(value, indent=1, ensure_ascii=ensure_ascii or other))


@contextmanager
def progress_bars() -> Iterator[tuple[ProgressCallback, Callable[[str], None]]]:
    """Yield a progress callback that draws bars, and a function that prints a line where there is no terminal."""
    # importing rich to ask it would take longer than a small job
    if not sys.stderr.isatty() and not {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        yield waiting_lines(), lambda line: click.echo(line, err=True)
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


def waiting_lines() -> ProgressCallback:
    """Return a callback without bars: it prints what is waited for, again every ten minutes, and its end."""
    said: dict[str, float] = {}

    def listen(progress: Progress) -> None:
        if progress.stage != WAITING:
            return
        now, line = time.monotonic(), f"{progress.stage} {progress.name}"
        if progress.done >= progress.total:
            if said.pop(line, None) is not None:
                click.echo(f"{line}: no longer", err=True)
        elif line not in said or now - said[line] > _REPEAT_SECONDS:
            said[line] = now
            click.echo(f"{line}: {format_age(progress.done)} so far, up to {format_age(progress.total)}", err=True)

    return listen


def rate(progress: Progress, seconds: float) -> str:
    """Return how fast work goes, in the units that are counted."""
    if progress.unit != "bytes" and not progress.tokens:
        return f"{progress.done:,} {progress.unit}"
    size = progress.done / 1e6 / seconds
    if not progress.tokens:
        return f"{size:,.0f} MB/s"
    return (
        f"{progress.documents / seconds:,.0f} documents/s, {progress.tokens / 1e6 / seconds:,.2f} M tokens/s, "
        f"{size:,.1f} MB/s"
    )


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


def member_rows(members: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return what a split takes of each corpus, and the tokens of an epoch, without columns that say nothing.

    Args:
        members: `corpus` and the JSON values of `MemberCoverage`.
    """
    rows = [
        {
            "corpus": member["corpus"],
            "asked": _percent(member["weight"]),
            "given": _percent(member["share"]),
            "samples": f"{member['samples_given']:,}",
            "surplus": f"{member['surplus']:,}",
            "epochs": f"{member['epochs']:.2f}",
            "limit": "none" if member["max_epochs"] is None else f"{member['max_epochs']:g}",
            "tokens": f"{member['tokens']:,}",
            "unseen": "by chance" if member["tokens_unseen"] is None else f"{member['tokens_unseen']:,}",
        }
        for member in members
    ]
    said = {"given": any(row["asked"] != row["given"] for row in rows)}
    said["limit"] = any(row["limit"] != "none" for row in rows)
    return [{name: value for name, value in row.items() if said.get(name, True)} for row in rows]


def _percent(share: float) -> str:
    return f"{100 * share:.4g}%"


def source_rows(plan: ShufflePlan, most: int) -> list[Row]:
    """Return what a plan does with each source (before contexts are left out for `even` shards), without columns that
    say nothing of any of the first `most` sources."""
    rows: list[Row] = [
        {
            "source": source.name,
            "tokens": source.tokens,
            "contexts": source.contexts,
            "share": f"{source.contexts / max(plan.table.contexts, 1):.2%}",
            "frequency": f"{source.frequency:.6g}",
            "dropped": source.tokens_dropped,
            "carried": source.tokens_carried,
            "padded": source.pad_tokens,
            "not_chosen": max(source.rows - source.contexts, 0),
        }
        for source in plan.table.sources[:most]
    ]
    always = ("source", "tokens", "contexts", "share")
    said = [key for key in rows[0] if key in always or any(row[key] not in (0, "1") for row in rows)]
    return [{key: row[key] for key in said} for row in rows]


def quality_rows(quality: Mapping[str, Any]) -> list[Row]:
    """Return the measures of an order beside what chance gives, from the JSON values of `ShuffleQuality`."""
    return [
        {"measure": label, "found": f"{quality[key]:.3g}", "by chance": expected.format(**quality)}
        for label, key, expected in _MEASURES
    ]


def place_of(origin: DocumentOrigin) -> str:
    """Return where a document came from, as `corpus/file:line`."""
    return f"{origin.corpus}/{origin.file}:{origin.line}"
