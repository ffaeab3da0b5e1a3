"""What `nanoset status` prints."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.sizes import spelled_age, spelled_size
from nanoset_core.cli.terminal import wide_console
from nanoset_core.versions.rows import Row

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"up to date": "green", "stale": "yellow", "missing": "yellow", "failing": "bold red"}
_COLUMNS = {
    "corpus": ("files", "documents", "tokens", "rejected"),
    "nanoset": ("samples", "tokens"),
    "webdataset": ("shards", "sequences", "tokens"),
    "packed": ("documents", "tokens"),
}
_REJECT_FILES = 3


def print_json(rows: Iterable[Row]) -> bool:
    """Print all rows as one JSON list; → whether everything is up to date."""
    found = list(rows)
    click.echo(json.dumps([row.to_json() for row in found], indent=1))
    return all(row.state == "up to date" for row in found)


def print_tables(rows: Iterable[Row]) -> bool:
    """Print a table for each kind, where rejected lines are, and a count of the states; → whether all is up to date."""
    console = wide_console()
    with console.status("looking"):
        found = list(rows)
    for kind in _COLUMNS:
        if some := [row for row in found if row.kind == kind]:
            console.print(_table(kind, some))
    for row in found:
        for reason in row.why:
            console.print(f"{row.state}: {row.label}: {reason}", markup=False, highlight=False, soft_wrap=True)
    for row in found:
        if row.rejects:
            console.print(_rejects(row), style="yellow", markup=False, highlight=False, soft_wrap=True)
    counts = {state: sum(row.state == state for row in found) for state in _STYLES}
    console.print(", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or "nothing to build")
    return counts["up to date"] == len(found)


def _table(kind: str, rows: list[Row]) -> Table:
    from rich.table import Table
    from rich.text import Text

    columns = _COLUMNS[kind]
    table = Table()
    table.add_column(kind, overflow="fold", min_width=12)
    table.add_column("state", no_wrap=True)
    for name in (*columns, "size", "age"):
        table.add_column(name, justify="right", no_wrap=True)
    now = time.time()
    for row in rows:
        state = Text(row.state + (", being built" if row.busy else ""), style=_STYLES[row.state])
        counts = [f"{row.figures[name]:,}" if name in row.figures else "-" for name in columns]
        size = spelled_size(row.figures["bytes"]) if "bytes" in row.figures else "-"
        age = "-" if row.made_at is None else spelled_age(now - row.made_at)
        table.add_row(row.name + (f" {row.part}" if row.part else ""), state, *counts, size, age)
    return table


def _rejects(row: Row) -> str:
    more = len(row.rejects) - _REJECT_FILES
    files = ", ".join(row.rejects[:_REJECT_FILES]) + (f" and {more:,} more" if more > 0 else "")
    return f"rejected lines of {row.name}: {files}"
