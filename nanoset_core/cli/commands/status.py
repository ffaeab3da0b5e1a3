"""`nanoset status`: what is missing, stale or failing; its tables are also what `nanoset build`
prints at its end.
"""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli import terminal
from nanoset_core.cli.echo import echo
from nanoset_core.cli.known_warnings import print_warnings
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, flag
from nanoset_core.errors import NanosetError
from nanoset_core.records.text import format_age, format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.project import Project
    from nanoset_core.project.status import StatusRow

_STYLES = dict.fromkeys(
    ("up to date", "being built", "stale", "missing", "failing", "not read"), "yellow"
)
_STYLES |= {"up to date": "green", "being built": "cyan", "failing": "bold red"}
DONE = ("up to date", "not read")
"""States of which no build would make anything."""
_COLUMNS: dict[str, tuple[str, ...]] = {
    "corpus": ("files", "documents", "tokens", "rejected"),
    "nanoset": ("samples", "tokens"),
    "webdataset": ("shards", "sequences", "tokens"),
    "packed": ("documents", "tokens"),
    "export": ("documents", "tokens"),
}
_REJECT_FILES = 3
_UNBUILT_SHOWN = 50
"""Rows of one table that would hold a name and dashes; more are only named below it, with the
reason.
"""
Seconds = Mapping[tuple[str, str, str | None], float]
"""(kind, name, part) → how long a build worked on it."""


@click.command("status", short_help="Show what is up to date, stale, missing or failing.")
@CONFIG_OPTION
@flag("--warnings only_warnings", "Print only the warnings, also those that you have seen before.")
@JSON_OPTION
def command(config: Path, only_warnings: bool, as_json: bool) -> None:
    """Show what is up to date, stale (and why), missing or failing; exit code 1 unless everything
    is up to date.

    Nothing is built and no big file is read: files are known by size and time from the last build.
    Warnings that were printed once in your terminal, or by --warnings, are counted afterwards.
    """
    from nanoset_core.outputs.root import Seen
    from nanoset_core.project.project import Project
    from nanoset_core.project.status import project_status
    from nanoset_core.stages.shards.options import tokenizer_notices

    project = replace(Project.open(config), seen=Seen())
    with terminal.wide_console().status("looking"):
        rows = list(project_status(project))
    notices = tokenizer_notices(project)
    if as_json:
        terminal.print_json([row.to_json() for row in rows])
        terminal.print_notices(notices)
    elif only_warnings:
        _print_all_warnings(project, rows, notices)
    else:
        print_tables(rows, project=project, notices=notices)
        print_old_versions(project)
    if not all(row.state in DONE for row in rows):
        sys.exit(1)


def _print_all_warnings(
    project: Project, rows: Sequence[StatusRow], notices: Iterable[str]
) -> None:
    lines = warning_lines(rows, notices)
    print_warnings(project, lines, show_known=True)
    echo(
        f"{format_count(len(lines), 'warning')}; other commands count them from now on"
        if lines
        else "no warning"
    )


def print_old_versions(project: Project, *, more_than: int = 0) -> None:
    """Print how many old versions there are, their size, and the command that removes them.

    Args:
        project: The project.
        more_than: Nothing is printed unless they take more bytes than this.
    """
    from nanoset_core.project.gc import old_versions

    try:
        count, size = old_versions(project)
    except NanosetError:  # the tables name the output that is damaged
        return
    if size > more_than:
        what = "old version or index file" if count == 1 else "old versions and index files"
        echo(f"{count:,} {what}, {format_bytes(size)}, that nothing needs: `nanoset gc` lists them")


def print_tables(
    rows: Iterable[StatusRow],
    seconds: Seconds | None = None,
    *,
    project: Project | None = None,
    notices: Iterable[str] = (),
) -> None:
    """Print a table for each kind, reasons and warnings, where rejected lines are, and a count of
    the states.

    Args:
        rows: the outputs to show.
        seconds: of a build; shown in place of the age.
        project: The project whose known warnings are only counted; default: all are printed in
            full.
        notices: Notices on the whole project.
    """
    found = list(rows)
    for kind in dict.fromkeys([*_COLUMNS, *(row.kind for row in found)]):
        _print_kind(
            kind, [row for row in found if row.kind == kind and row.state != "not read"], seconds
        )
    for row in found:
        if row.state != "not read":
            for reason in row.why:
                echo(f"{row.state}: {row.label}: {reason}")

    lines = warning_lines(found, notices)
    if project is not None:
        print_warnings(project, lines)
    else:
        for line in lines:
            echo(line, fg="yellow")
    echo(state_counts(found))


def state_counts(rows: Sequence[StatusRow]) -> str:
    """Return how many outputs are in each state, in words: `3 up to date, 1 stale`."""
    counts: Counter[str] = Counter(row.state for row in rows)
    return (
        ", ".join(f"{counts[state]:,} {state}" for state in _STYLES if counts[state])
        or "nothing to build"
    )


def _print_kind(kind: str, rows: list[StatusRow], seconds: Seconds | None) -> None:
    built = [row for row in rows if row.figures or row.made_at is not None]
    shown = built if len(rows) - len(built) > _UNBUILT_SHOWN else rows
    figures = dict.fromkeys(name for row in shown for name in row.figures if name != "bytes")
    columns = (
        *_COLUMNS.get(kind, figures),
        *dict.fromkeys(name for row in shown for name in row.details),
    )
    terminal.print_rows([_cells(kind, row, columns, seconds) for row in shown], text=["state"])
    if len(shown) < len(rows):
        echo(f"{kind}: {len(rows) - len(shown):,} of {len(rows):,} not built yet, named below")


def _cells(
    kind: str, row: StatusRow, columns: Iterable[str], seconds: Seconds | None
) -> terminal.Row:
    busy = ", being built" if row.busy and row.state != "being built" else ""
    state = row.state + busy, _STYLES[row.state]
    found: terminal.Row = {kind: row.name + (f" {row.part}" if row.part else ""), "state": state}
    found |= {
        (terminal.WEBDATASET_WORDS if kind == "webdataset" else {}).get(
            name, name
        ): row.figures.get(name, row.details.get(name, "-"))
        for name in columns
    }
    found["size"] = format_bytes(row.figures["bytes"]) if "bytes" in row.figures else "-"
    if seconds is None:
        return found | {
            "age": "-" if row.made_at is None else format_age(time.time() - row.made_at)
        }
    spent = seconds.get((row.kind, row.name, row.part), 0)
    return found | {"seconds": f"{spent:.1f}" if spent else "-"}


def warning_lines(rows: Iterable[StatusRow], notices: Iterable[str] = ()) -> list[str]:
    """Return the warnings of a project, one line each: about files, outputs, and rejected lines.

    Args:
        rows: The outputs.
        notices: Notices on the whole project.
    """
    from nanoset_core.text.notices import abbreviated

    about_files: list[str] = []
    about_outputs: list[str] = []
    about_rejects: list[str] = []
    for row in rows:
        if row.state == "not read":
            about_files += [f"{row.state}: {row.label}: {reason}" for reason in row.why]
        about_files += [f"notice: {row.label}: {notice.text}" for notice in row.notices]
        about_outputs += [f"warning: {row.label}: {warning}" for warning in row.warnings]
        if row.rejects:
            about_rejects.append(
                f"rejected lines of {row.name}: {abbreviated(row.rejects, _REJECT_FILES)}"
            )
    about_project = [f"notice: {notice}" for notice in notices]
    return about_files + about_outputs + about_rejects + about_project
