"""What commands print: tables of rows, JSON, and notices.

A table is a list of rows, such as `{"corpus": "web", "documents": 1200}`. It shows all numbers in
full: on a narrow terminal its frame is dropped, and its lines are wrapped, but nothing is cut off.
Ids and names of files come from strangers, so characters that could control a terminal are escaped.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from nanoset_core.cli.echo import echo
from nanoset_core.untrusted import escaped, visible_json
from nanoset_core.wording import format_cell, format_count

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


class StyledText(NamedTuple):
    """The text of a cell, and how it looks on a terminal."""

    text: str
    style: str
    """A style of rich's, such as `bold red`."""


Row = dict[str, Any]
"""Heading → integer, text or `StyledText`."""
FILE_COLUMNS = 120
"""Width of tables that go to a file or a pipe, in characters."""
_MIN_TEXT_COLUMNS = 12
"""Width below which a column of text is hard to read."""
WEBDATASET_WORDS = {"shards": "tars", "sequences": "contexts"}
"""Names of facts that mean something else of corpora → what to call them of webdatasets."""


def wide_console() -> Console:
    """Return rich's console for tables: as wide as the terminal, or 120 columns for a file or pipe.

    rich is a library that draws tables. By default it takes "[bold]" in a text for a style, and
    colours numbers. Both is turned off here, since ids of documents may contain such text by
    chance.
    """
    from rich.console import Console

    # Ids and file names may look like markup of rich, but must be printed unchanged.
    console = Console(markup=False, highlight=False)
    # Not `console.is_terminal`: it is also true for a file if FORCE_COLOR is set.
    if not sys.stdout.isatty():
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
    """Print rows as a table that shows every column, and every number in full.

    For example, [{"corpus": "web", "documents": 1200}, {"corpus": "code", "documents": 300}] is
    printed as

        corpus   documents
        web          1,200
        code           300

    with a frame. If the terminal is too narrow for that, the frame is left out.

    Args:
        rows: Heading → integer, text or `StyledText`. The first row decides the columns. Without
            rows, nothing is printed.
        text: Headings of columns whose cells may be wrapped to several lines. The first column
            always may. Cells of all other columns stay on one line.
        title: Printed above the table.
        total: A last row, separated from the others by a line.
        console: Where to print; default: a new `wide_console`.
    """
    if not rows:
        return
    headings = list(rows[0])  # all rows have the columns of the first one
    text_headings = {*headings[:1], *text}
    text_rows = [_cells(row, headings) for row in rows]
    total_row = _cells(total, headings) if total else None

    escaped_title = None if title is None else escaped(title)
    table = _table(escaped_title, headings, text_headings, text_rows, total_row)
    _print_in_full(table, console or wide_console())


def _table(
    title: str | None,
    headings: Sequence[str],
    text_headings: Collection[str],
    rows: Sequence[Sequence[Text | str]],
    total_row: Sequence[Text | str] | None,
) -> Table:
    """Return a table of the library rich, whose columns are wide enough for their cells.

    Args:
        title: Printed above the table; None for no title.
        headings: The heading of each column, such as ["corpus", "documents"].
        text_headings: Headings of columns whose cells may be wrapped to several lines.
        rows: The cells of each row, one for each column, such as [["web", "1,200"]].
        total_row: The cells of a last row, separated from the others by a line; None without one.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    all_rows = rows if total_row is None else [*rows, total_row]
    for heading, cells in zip(headings, zip(*all_rows, strict=True), strict=True):
        _add_column(table, escaped(heading), cells, may_wrap=heading in text_headings)
    for row in rows:
        table.add_row(*row)
    if total_row is not None:
        table.add_section()
        table.add_row(*total_row)
    return table


def _cells(row: Mapping[str, Any], headings: Iterable[str]) -> list[Text | str]:
    """Return the cells of a row of a table as they are printed, in the order of the headings.

    For example, {"corpus": "web", "documents": 1200} becomes ["web", "1,200"].

    Args:
        row: Heading → value; a missing value becomes an empty cell.
        headings: The headings of the table.
    """
    return [_cell(row.get(heading, "")) for heading in headings]


def _cell(value: Any) -> Text | str:
    """Return a value as text: numbers with separators, text without control characters."""
    from rich.text import Text

    if isinstance(value, StyledText):
        return Text(escaped(value.text), value.style)
    number = format_cell(value)
    return escaped(value) if number is None else number


def _add_column(table: Table, heading: str, cells: Iterable[Text | str], *, may_wrap: bool) -> None:
    """Add a column to a table, and tell rich, which draws it, how narrow the column may become.

        documents    numbers: as wide as the widest one, since they must not be wrapped
        why          texts: 12 characters or more, since longer texts may be wrapped

    Args:
        table: The table, which is changed.
        heading: Printed above the column.
        cells: The cells that the column will have.
        may_wrap: Whether a cell may be wrapped. Such columns are aligned at the left, others at the
            right.
    """
    from rich.cells import cell_len

    # A column has to be as wide as its widest cell, or _MIN_TEXT_COLUMNS if its cells may wrap.
    widths = [cell_len(str(cell)) for cell in cells]
    min_width = max([cell_len(heading), *widths])
    if may_wrap and min_width > _MIN_TEXT_COLUMNS:
        min_width = _MIN_TEXT_COLUMNS
    table.add_column(
        heading,
        justify="left" if may_wrap else "right",
        overflow="fold",
        no_wrap=not may_wrap,
        min_width=min_width,
    )


def _print_in_full(table: Table, console: Console) -> None:
    """Print a table without cutting it, even if it is wider than the terminal.

    Args:
        table: The table. Each of its columns has a smallest width.
        console: Where to print it.
    """
    terminal_width = console.width
    if _width_with_frame(table) > terminal_width:
        table.box = None
        table.pad_edge = False

    # rich cuts what exceeds the width of the console. So change the width while this table is
    # printed: the terminal itself then wraps its lines.
    console.width = max(terminal_width, _width_without_frame(table))
    console.print(table, crop=False)
    console.width = terminal_width


def _width_with_frame(table: Table) -> int:
    """Return how many characters wide a table is at least, with a frame around its cells.

    The frame is one line before each column and one after the last. Each cell has a space on both
    sides.

    Args:
        table: The table. Each of its columns has a smallest width.
    """
    return _content_width(table) + 3 * len(table.columns) + 1


def _width_without_frame(table: Table) -> int:
    """Return how many characters wide a table without a frame is at least.

    At most two spaces follow each column.

    Args:
        table: The table. Each of its columns has a smallest width.
    """
    return _content_width(table) + 2 * len(table.columns)


def _content_width(table: Table) -> int:
    """Return the smallest width of all columns of a table together, without the space between."""
    return sum(column.min_width or 0 for column in table.columns)


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON.

    Args:
        value: Dictionaries, lists, texts, numbers, booleans and None.
        ensure_ascii: Whether to escape all characters that are not ASCII. They are also escaped if
            standard output is not encoded in UTF-8.
    """
    is_utf8 = (sys.stdout.encoding or "").lower() in ("utf-8", "utf8")
    text = json.dumps(value, indent=1, ensure_ascii=ensure_ascii or not is_utf8)
    click.echo(visible_json(text))


def print_notices(notices: Iterable[str]) -> None:
    """Print notices to standard error, for example about input files that are not read.

    Args:
        notices: Sentences, each of which is printed as a line that begins with "notice: ".
    """
    for notice in notices:
        echo(f"notice: {notice}", fg="yellow", err=True)


def print_made(text: str, *, is_new: bool, lost: str = "", err: bool = False) -> None:
    """Print what a command made, such as `1,200 documents; 3 lines rejected (already exists)`.

    Args:
        text: What was made.
        is_new: Whether this command made it; if not, it existed already.
        lost: What could not be taken over, such as rejected lines; printed in bold.
        err: Whether to print to standard error.
    """
    echo(text, err=err, nl=False)
    if lost:
        echo("; ", err=err, nl=False)
        echo(lost, err=err, nl=False, fg="yellow", bold=True)
    echo("" if is_new else " (already exists)", err=err)


def rejected_text(rejected: int, faults: int) -> str:
    """Return how many lines were rejected, and how many files could not be read to their end.

    Args:
        rejected: Rejected lines, each unreadable file counted as one of them.
        faults: Unreadable files.

    Returns:
        A clause such as "3 lines rejected" or "3 lines and 1 file rejected".
    """
    lines = format_count(rejected - faults, "line")
    if faults:
        return f"{lines} and {format_count(faults, 'file')} rejected"
    return f"{lines} rejected"
