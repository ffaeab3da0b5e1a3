"""`nanoset status`: what is missing, stale or failing; its tables are also what `nanoset build` prints at its end."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli import terminal
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION
from nanoset_core.serialization.text import format_age, format_bytes

if TYPE_CHECKING:
    from nanoset_core.versions.status import Row

_STYLES = dict.fromkeys(("up to date", "being built", "stale", "missing", "failing", "not read"), "yellow")
_STYLES |= {"up to date": "green", "being built": "cyan", "failing": "bold red"}
_DONE = ("up to date", "not read")
_COLUMNS: dict[str, tuple[str, ...]] = {
    "corpus": ("files", "documents", "tokens", "rejected"),
    "nanoset": ("samples", "tokens"),
    "webdataset": ("shards", "sequences", "tokens"),
    "packed": ("documents", "tokens"),
    "export": ("documents", "tokens"),
}
_REJECT_FILES = 3
_UNBUILT_SHOWN = 50
"""Rows of one table that would hold a name and dashes; more are only named below it, with the reason."""
Seconds = Mapping[tuple[str, str, str | None], float]
"""(kind, name, part) → how long a build worked on it."""


@click.command("status", short_help="Show what is up to date, stale, missing or failing.")
@CONFIG_OPTION
@JSON_OPTION
def command(config: Path, as_json: bool) -> None:
    """Show what is up to date, stale (and why), missing or failing; exit code 1 unless everything is up to date.

    Nothing is built and no big file is read: files are known by size and time from the last build.
    """
    from nanoset_core.outputs.root import Seen
    from nanoset_core.pipeline.project import Project
    from nanoset_core.pipeline.tokenization import tokenizer_notices
    from nanoset_core.versions.status import project_status

    project = replace(Project.open(config), seen=Seen())
    with terminal.wide_console().status("looking"):
        rows = list(project_status(project))
    if as_json:
        terminal.print_json([row.to_json() for row in rows])
    else:
        print_tables(rows)
    terminal.print_notices(tokenizer_notices(project))
    if not all(row.state in _DONE for row in rows):
        sys.exit(1)


def print_tables(rows: Iterable[Row], seconds: Seconds | None = None) -> None:
    """Print a table for each kind, reasons and warnings, where rejected lines are, and a count of the states.

    Args:
        rows: the outputs to show.
        seconds: of a build; shown in place of the age.
    """
    found = list(rows)
    for kind in dict.fromkeys([*_COLUMNS, *(row.kind for row in found)]):
        _print_kind(kind, [row for row in found if row.kind == kind and row.state != "not read"], seconds)
    for line, colour in _remarks(found):
        echo(line, fg=colour)
    counts = {state: sum(row.state == state for row in found) for state in _STYLES}
    echo(", ".join(f"{count:,} {state}" for state, count in counts.items() if count) or "nothing to build")


def _print_kind(kind: str, rows: list[Row], seconds: Seconds | None) -> None:
    built = [row for row in rows if row.figures or row.made_at is not None]
    shown = built if len(rows) - len(built) > _UNBUILT_SHOWN else rows
    figures = dict.fromkeys(name for row in shown for name in row.figures if name != "bytes")
    columns = (*_COLUMNS.get(kind, figures), *dict.fromkeys(name for row in shown for name in row.details))
    terminal.print_rows([_cells(kind, row, columns, seconds) for row in shown], text=["state"])
    if len(shown) < len(rows):
        echo(f"{kind}: {len(rows) - len(shown):,} of {len(rows):,} not built yet, named below")


def _cells(kind: str, row: Row, columns: Iterable[str], seconds: Seconds | None) -> terminal.Row:
    busy = ", being built" if row.busy and row.state != "being built" else ""
    state = row.state + busy, _STYLES[row.state]
    found: terminal.Row = {kind: row.name + (f" {row.part}" if row.part else ""), "state": state}
    found |= {
        (terminal.WEBDATASET_WORDS if kind == "webdataset" else {}).get(name, name): row.figures.get(
            name, row.details.get(name, "-")
        )
        for name in columns
    }
    found["size"] = format_bytes(row.figures["bytes"]) if "bytes" in row.figures else "-"
    if seconds is None:
        return found | {"age": "-" if row.made_at is None else format_age(time.time() - row.made_at)}
    spent = seconds.get((row.kind, row.name, row.part), 0)
    return found | {"seconds": f"{spent:.1f}" if spent else "-"}


def _remarks(rows: list[Row]) -> Iterator[tuple[str, str | None]]:
    """Yield (line, its colour) of reasons and notices, then of warnings, then of files of rejected lines."""
    from nanoset_core.raw.contents import some

    for row in rows:
        colour = "yellow" if row.state == "not read" else None
        yield from ((f"{row.state}: {row.label}: {reason}", colour) for reason in row.why)
        yield from ((f"notice: {row.label}: {notice.text}", "yellow") for notice in row.notices)
    for row in rows:
        yield from ((f"warning: {row.label}: {warning}", "yellow") for warning in row.warnings)
    for row in rows:
        if row.rejects:
            yield f"rejected lines of {row.name}: {some(row.rejects, _REJECT_FILES)}", "yellow"
