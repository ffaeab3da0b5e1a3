"""What commands print: tables of rows, lines as they are, and JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

Row = dict[str, Any]
"""Heading → integer, text or rich's Text."""
FILE_COLUMNS = 120
"""Width of tables that go to a file or a pipe, in characters."""
_LEAST_TEXT = 12
"""Width below which a column of text is hard to read."""


def wide_console() -> Console:
    """Return a console for tables: as wide as the terminal, and wide where there is none."""
    from rich.console import Console

    console = Console()
    if not console.is_terminal:
        console.width = max(console.width, FILE_COLUMNS)
    return console


def styled(text: str, style: str) -> Text:
    """Return a cell in a style of rich's."""
    from rich.text import Text

    return Text(text, style=style)


def print_rows(
    console: Console,
    rows: Sequence[Mapping[str, Any]],
    *,
    text: Collection[str] = (),
    whole: Collection[str] = (),
    title: str | None = None,
    total: Mapping[str, Any] | None = None,
) -> None:
    """Print rows as a table, with every column and no number cut in two: on a narrow terminal without its frame.

    Args:
        console: where to.
        rows: heading → integer, text or rich's Text; all with the keys of the first. No rows print nothing.
        text: headings of columns that are text, besides the first; all others are numbers.
        whole: headings of columns whose cells stay on one line.
        title: above the table.
        total: a last row, under a line.
    """
    from rich.cells import cell_len
    from rich.table import Table

    if not rows:
        return
    table = Table(title=title, title_justify="left")
    for number, heading in enumerate(rows[0]):
        is_text, on_one_line = number == 0 or heading in text, heading in whole
        column = [row.get(heading, "") for row in (*rows, *([total] if total else []))]
        cells = [heading, *(str(_cell(value)) for value in column)]
        is_number = not is_text and not on_one_line
        widest = max(map(cell_len, " ".join(cells).split() if is_number else cells))
        least = widest if is_number or on_one_line else min(widest, _LEAST_TEXT)
        justify: Any = "left" if is_text else "right"
        table.add_column(heading, justify=justify, overflow="fold", no_wrap=on_one_line, min_width=least)
    for row in rows:
        table.add_row(*map(_cell, row.values()))
    if total:
        table.add_section()
        table.add_row(*(_cell(total.get(heading, "")) for heading in rows[0]))
    least, width = sum(column.min_width or 0 for column in table.columns), console.width
    if least + 3 * len(table.columns) + 1 > width:
        table.box, table.pad_edge = None, False
    console.width = max(width, least + 2 * len(table.columns))
    console.print(table, crop=False)
    console.width = width


def _cell(value: Any) -> Any:
    return f"{value:,}" if isinstance(value, int) else value


def print_line(console: Console, text: str, style: str | None = None) -> None:
    """Print a line as it is, however long: names and messages of others may hold what looks like markup."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def print_json(value: object, *, ensure_ascii: bool = True) -> None:
    """Print plain values as JSON; all of it in ASCII where the output is not in UTF-8."""
    other = (sys.stdout.encoding or "").lower() not in ("utf-8", "utf8")
    click.echo(json.dumps(value, indent=1, ensure_ascii=ensure_ascii or other))
