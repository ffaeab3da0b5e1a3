"""What commands print: tables, lines as they are, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

FILE_COLUMNS = 120
"""Width of tables that go to a file or a pipe, in characters."""
_LEAST_TEXT = 12
"""Width below which a column of text is hard to read."""


def wide_console() -> Console:
    """Where tables are printed: as wide as the terminal, and wide where there is none."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_COLUMNS)
    return console


def make_table(
    *columns: str, left: Collection[str] = (), whole: Collection[str] = (), title: str | None = None
) -> Table:
    """An empty table whose first column is text, and whose others are numbers.

    Args:
        columns: their headings.
        left: headings of further columns that are text, and start at the left.
        whole: headings of columns whose cells stay on one line.
        title: above the table.
    """
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    for number, column in enumerate(columns):
        justify = "left" if number == 0 or column in left else "right"
        table.add_column(column, justify=justify, overflow="fold", no_wrap=column in whole)  # type: ignore[arg-type]
    return table


def print_table(console: Console, table: Table) -> None:
    """Print a table with every column and no number cut in two: on a narrow terminal without its frame."""
    from rich.cells import cell_len

    for column in table.columns:
        texts = [str(text) for text in (column.header, *column.cells)]
        is_number = column.justify == "right" and not column.no_wrap
        widest = max(map(cell_len, " ".join(texts).split() if is_number else texts), default=0)
        column.min_width = widest if is_number or column.no_wrap else min(widest, _LEAST_TEXT)
    least = sum(column.min_width or 0 for column in table.columns)
    width = console.width
    if least + 3 * len(table.columns) + 1 > width:
        table.box, table.pad_edge = None, False
    console.width = max(width, least + 2 * len(table.columns))
    console.print(table, crop=False)
    console.width = width


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is, however long: names and messages of others may hold what looks like markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON; all of it in ASCII where the output is not in UTF-8."""
    other = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    click.echo(json.dumps(value, indent=1, ensure_ascii=ensure_ascii or other))
