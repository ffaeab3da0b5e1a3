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


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is, however long: names and messages of others may hold what looks like markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON; all of it in ASCII where the output is not in UTF-8."""
    other = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    click.echo(json.dumps(value, indent=1, ensure_ascii=ensure_ascii or other))
