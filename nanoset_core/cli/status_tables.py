"""What `nanoset status` prints."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from nanoset_core.cli import tables
from nanoset_core.serialization.text import format_age, format_bytes
from nanoset_core.versions.status import Row

if TYPE_CHECKING:
    from rich.table import Table

_STYLES = {"up to date": "green", "stale": "yellow", "missing": "yellow", "failing": "bold red", "not read": "yellow"}
_DONE = ("up to date", "not read")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "corpus": ("files", "documents", "tokens", "rejected"),
    "nanoset": ("samples", "tokens"),
    "webdataset": ("shards", "sequences", "tokens"),
    "packed": ("documents", "tokens"),
}
_REJECT_FILES = 3
_UNBUILT_SHOWN = 50
"""Rows of one table that would hold a name and dashes; more are only named below it, with the reason."""


def print_json(rows: Iterable[Row]) -> bool:
    """Print all rows as one JSON list; → whether everything is up to date."""
    found = list(rows)
    tables.print_json([row.to_json() for row in found])
    return all(row.state in _DONE for row in found)


def print_tables(rows: Iterable[Row], seconds: Mapping[tuple[str, str, str | None], float] | None = None) -> bool:
    """Print a table for each kind, warnings, where rejected lines are, and a count of the states.

    Args:
        rows: what is told.
        seconds: how long a build worked on a kind, name and part; shown in place of the age.

    Returns:
        Whether all is up to date.
    """
    console = tables.wide_console()
    with console.status("looking"):
        found = list(rows)
    for kind in dict.fromkeys([*_COLUMNS, *(row.kind for row in found)]):
        if some := [row for row in found if row.kind == kind and row.state != "not read"]:
            built = [row for row in some if row.figures or row.made_at is not None]
            shown = built if len(some) - len(built) > _UNBUILT_SHOWN else some
            if shown:
                tables.print_table(console, _table(kind, shown, seconds))
            if len(shown) < len(some):
                console.print(f"{kind}: {len(some) - len(shown):,} of {len(some):,} not built yet, named below")
    for row in found:
        for reason in row.why:
            style = "yellow" if row.state == "not read" else None
            tables.print_line(console, f"{row.state}: {row.label}: {reason}", style)
        for notice in row.notices:
            tables.print_line(console, f"notice: {row.label}: {notice.text}", "yellow")
    for row in found:
        for warning in row.warnings:
            tables.print_line(console, f"warning: {row.label}: {warning}", "bold yellow")
    for row in found:
        if row.rejects:
            tables.print_line(console, _rejects(row), "yellow")
    counts = {state: sum(row.state == state for row in found) for state in _STYLES}
    console.print(", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or "nothing to build")
    return sum(counts[state] for state in _DONE) == len(found)


def _table(kind: str, rows: list[Row], seconds: Mapping[tuple[str, str, str | None], float] | None) -> Table:
    from rich.text import Text

    columns = _COLUMNS.get(kind) or _figures(rows)
    details = tuple(dict.fromkeys(name for row in rows for name in row.details))
    rest = ("state", *columns, *details, "size", "age" if seconds is None else "seconds")
    table = tables.make_table(kind, *rest, left=["state"], whole=rest)
    now = time.time()
    for row in rows:
        state = Text(row.state + (", being built" if row.busy else ""), style=_STYLES[row.state])
        counts = [f"{row.figures[name]:,}" if name in row.figures else "-" for name in columns]
        counts += [row.details.get(name, "-") for name in details]
        size = format_bytes(row.figures["bytes"]) if "bytes" in row.figures else "-"
        last = "-" if row.made_at is None else format_age(now - row.made_at)
        if seconds is not None:
            spent = seconds.get((row.kind, row.name, row.part), 0)
            last = f"{spent:.1f}" if spent else "-"
        table.add_row(row.name + (f" {row.part}" if row.part else ""), state, *counts, size, last)
    return table


def _figures(rows: list[Row]) -> tuple[str, ...]:
    """Names of the counts of a kind that is not ours."""
    return tuple(dict.fromkeys(name for row in rows for name in row.figures if name != "bytes"))


def _rejects(row: Row) -> str:
    more = len(row.rejects) - _REJECT_FILES
    files = ", ".join(row.rejects[:_REJECT_FILES]) + (f" and {more:,} more" if more > 0 else "")
    return f"rejected lines of {row.name}: {files}"
