"""What commands print: tables of rows, JSON, and notices."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.records.text import format_cell, format_count
from nanoset_core.untrusted import visible, visible_json, visible_value

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from rich.console import Console


Row = dict[str, Any]
"""Heading → integer, text, or text and its style."""
FILE_COLUMNS = 120
"""Width of tables that go to a file or a pipe, in characters."""
_LEAST_TEXT = 12
"""Width below which a column of text is hard to read."""
_CHUNK, _HALF = 1 << 20, 16
"""Lengths that are looked at together, and bits of the lower half of one."""
WEBDATASET_WORDS = {"shards": "tars", "sequences": "contexts"}
"""Names of facts that mean something else of corpora → what to call them of webdatasets."""


def wide_console() -> Console:
    """Return a console for tables: as wide as the terminal, and wide where there is none."""
    from rich.console import Console

    # names of others may hold what looks like markup
    console = Console(markup=False, highlight=False)
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
    """Print rows as a table, with every column and no number cut in two: on a narrow terminal
    without its frame.

    Args:
        rows: heading → integer, text, or (text, style of rich's); all with the keys of the first.
            None print nothing.
        text: headings of columns of text that may be folded, besides the first; others stay on one
            line.
        title: above the table.
        total: a last row, under a line.
        console: where to; default: a wide one.
    """
    from rich.cells import cell_len
    from rich.table import Table

    if not rows:
        return
    console, table = console or wide_console(), Table(title=title, title_justify="left")
    lines = [
        [_cell(row.get(heading, "")) for heading in rows[0]]
        for row in (*rows, *([total] if total else []))
    ]
    for heading, *column in zip(map(visible, rows[0]), *lines, strict=True):
        is_text = heading in text or not table.columns
        widest = max(map(cell_len, [heading, *map(str, column)]))
        least = min(widest, _LEAST_TEXT) if is_text else widest
        justify: Any = "left" if is_text else "right"
        table.add_column(
            heading, justify=justify, overflow="fold", no_wrap=not is_text, min_width=least
        )
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

    if isinstance(value, tuple):
        text, style = value
        return Text(visible(text), style)
    number = format_cell(value)
    return visible(value) if number is None else number


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON; all of it in ASCII where the output is not in UTF-8."""
    other = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    text = json.dumps(visible_value(value), indent=1, ensure_ascii=ensure_ascii or other)
    click.echo(visible_json(text))


def print_notices(notices: Iterable[str]) -> None:
    """Print notices on stderr, such as of input files that are not read."""
    for notice in notices:
        echo(f"notice: {notice}", fg="yellow", err=True)


def print_made(text: str, *, is_new: bool, lost: str = "", err: bool = False) -> None:
    """Print what was made, and in bold what was lost on the way; or that it was there already."""
    echo(text, err=err, nl=False)
    if lost:
        echo("; ", err=err, nl=False)
        echo(lost, err=err, nl=False, fg="yellow", bold=True)
    echo("" if is_new else " (there already)", err=err)


def rejected_text(rejected: int, faults: int) -> str:
    """Return counts of rejected lines and of files that could not be read to their end."""
    lines = format_count(rejected - faults, "line")
    return f"{lines} and {format_count(faults, 'file')} rejected" if faults else f"{lines} rejected"


def spread(lengths: NDArray[Any]) -> str:
    """Return the least, largest and median of lengths in tokens, none negative, shape (sequences,).

    Memory: a chunk, whatever their number.
    """
    import numpy as np

    parts = [lengths[begin : begin + _CHUNK] for begin in range(0, len(lengths), _CHUNK)]
    low, halves = (1 << _HALF) - 1, (int(lengths.max()) >> _HALF) + 1
    upper = sum(
        (np.bincount(part >> _HALF, minlength=halves) for part in parts), np.zeros(halves, np.int64)
    )
    ends = np.cumsum(upper)

    def ranked(rank: int) -> int:  # np.median would copy all of them
        half = int(np.searchsorted(ends, rank, side="right"))
        inside = (part[part >> _HALF == half] & low for part in parts)
        lower = sum(
            (np.bincount(values, minlength=low + 1) for values in inside),
            np.zeros(low + 1, np.int64),
        )
        within = rank - int(ends[half] - upper[half])
        return (half << _HALF) + int(np.searchsorted(np.cumsum(lower), within, side="right"))

    middle = {rank: ranked(rank) for rank in {(len(lengths) - 1) // 2, len(lengths) // 2}}
    median = sum(middle.values()) / len(middle)
    return f"{lengths.min():,} to {lengths.max():,} tokens, median {median:,.0f}"
