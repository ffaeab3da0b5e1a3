"""What `nanoset status` prints, and `nanoset build` at its end."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING

from nanoset_core.cli import tables
from nanoset_core.serialization.text import format_age, format_bytes
from nanoset_core.versions.status import Row

if TYPE_CHECKING:
    from rich.console import Console

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
Seconds = Mapping[tuple[str, str, str | None], float]
"""(kind, name, part) → how long a build worked on it."""


def print_json(rows: Iterable[Row]) -> bool:
    """Print all rows as one JSON list; return whether everything is up to date."""
    found = list(rows)
    tables.print_json([row.to_json() for row in found])
    return all(row.state in _DONE for row in found)


def print_tables(rows: Iterable[Row], seconds: Seconds | None = None) -> bool:
    """Print a table for each kind, reasons and warnings, where rejected lines are, and a count of the states.

    Args:
        rows: the outputs to show.
        seconds: of a build; shown in place of the age.

    Returns:
        Whether all is up to date.
    """
    console = tables.wide_console()
    with console.status("looking"):
        found = list(rows)
    for kind in dict.fromkeys([*_COLUMNS, *(row.kind for row in found)]):
        _print_kind(console, kind, [row for row in found if row.kind == kind and row.state != "not read"], seconds)
    for line, style in _remarks(found):
        tables.print_line(console, line, style)
    counts = {state: sum(row.state == state for row in found) for state in _STYLES}
    console.print(", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or "nothing to build")
    return sum(counts[state] for state in _DONE) == len(found)


def _print_kind(console: Console, kind: str, rows: list[Row], seconds: Seconds | None) -> None:
    built = [row for row in rows if row.figures or row.made_at is not None]
    shown = built if len(rows) - len(built) > _UNBUILT_SHOWN else rows
    figures = dict.fromkeys(name for row in shown for name in row.figures if name != "bytes")
    columns = (*_COLUMNS.get(kind, figures), *dict.fromkeys(name for row in shown for name in row.details))
    cells = [_cells(kind, row, columns, seconds) for row in shown]
    tables.print_rows(console, cells, text=["state"], whole=list(cells[0])[1:] if cells else ())
    if len(shown) < len(rows):
        console.print(f"{kind}: {len(rows) - len(shown):,} of {len(rows):,} not built yet, named below")


def _cells(kind: str, row: Row, columns: Iterable[str], seconds: Seconds | None) -> tables.Row:
    state = tables.styled(row.state + (", being built" if row.busy else ""), _STYLES[row.state])
    found: tables.Row = {kind: row.name + (f" {row.part}" if row.part else ""), "state": state}
    found |= {name: row.figures.get(name, row.details.get(name, "-")) for name in columns}
    found["size"] = format_bytes(row.figures["bytes"]) if "bytes" in row.figures else "-"
    if seconds is None:
        return found | {"age": "-" if row.made_at is None else format_age(time.time() - row.made_at)}
    spent = seconds.get((row.kind, row.name, row.part), 0)
    return found | {"seconds": f"{spent:.1f}" if spent else "-"}


def _remarks(rows: list[Row]) -> Iterator[tuple[str, str | None]]:
    """Yield (line, its style) of reasons and notices, then of warnings, then of files of rejected lines."""
    for row in rows:
        style = "yellow" if row.state == "not read" else None
        yield from ((f"{row.state}: {row.label}: {reason}", style) for reason in row.why)
        yield from ((f"notice: {row.label}: {notice.text}", "yellow") for notice in row.notices)
    for row in rows:
        yield from ((f"warning: {row.label}: {warning}", "bold yellow") for warning in row.warnings)
    for row in (row for row in rows if row.rejects):
        more = len(row.rejects) - _REJECT_FILES
        files = ", ".join(row.rejects[:_REJECT_FILES]) + (f" and {more:,} more" if more > 0 else "")
        yield f"rejected lines of {row.name}: {files}", "yellow"
