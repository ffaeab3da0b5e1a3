"""`nanoset gc`: remove old versions that nothing needs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli import tables
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, NumberRange
from nanoset_core.serialization.text import format_bytes

if TYPE_CHECKING:
    from nanoset_core.versions.copies import Copy
    from nanoset_core.versions.gc import Collection

_SHOWN = 50
"""Outputs in the table."""


@click.command("gc", short_help="List, or remove, old versions that nothing needs.")
@CONFIG_OPTION
@click.option("--yes", is_flag=True, help="Remove it; without this, it is only listed.")
@click.option("--keep", type=click.IntRange(0), default=0, show_default=True, help="Older versions of each that stay.")
@click.option("--older-than", type=NumberRange(0), metavar="DAYS", help="Only what was made before that.")
@click.option("--unfinished", is_flag=True, help="Also what a build that was cut short had finished.")
@click.option("--no-locks", is_flag=True, help="Without effect: builds are seen on any file system.")
@click.option("--copies", is_flag=True, help="Instead: this machine's copies of outputs in a bucket.")
@JSON_OPTION
def command(
    config: Path,
    yes: bool,
    keep: int,
    older_than: float | None,
    unfinished: bool,
    no_locks: bool,
    copies: bool,
    as_json: bool,
) -> None:
    """List, or with --yes remove, old versions of outputs and index files that nothing needs any more.

    Kept are the current version of every output and all that it was made from or points at, what a running build
    works on, and whatever is not recognised as made by nanoset. What is removed can be built again.
    """
    from nanoset_core.pipeline.project import Project
    from nanoset_core.versions.copies import find_copies, remove_copies
    from nanoset_core.versions.gc import collect, plan_gc

    project = Project.open(config)
    if copies:
        _print_copies(remove_copies(project) if yes else find_copies(project), done=yes, as_json=as_json)
        return
    if yes:
        found = collect(project, keep=keep, older_than_days=older_than, unfinished=unfinished)
    else:
        found = plan_gc(project, keep=keep, older_than_days=older_than, unfinished=unfinished)
    (_print_json if as_json else _print_collection)(found, done=yes)
    if any(item.refused for item in found.left):
        sys.exit(1)


def _print_collection(found: Collection, *, done: bool) -> None:
    """Print a table of the outputs with most to remove, what was left alone and why, and the total."""
    console = tables.wide_console()
    outputs = sorted(found.by_output().items(), key=lambda row: -sum(item.size for item in row[1]))
    rows = [
        {
            "output": output,
            "versions": (versions := sum(item.kind != "cache file" for item in items)),
            "files": len(items) - versions,
            "size": format_bytes(sum(item.size for item in items)),
        }
        for output, items in outputs[:_SHOWN]
    ]
    tables.print_rows(console, rows)
    if len(outputs) > _SHOWN:
        console.print(f"… and {len(outputs) - _SHOWN:,} outputs more, with less each (--json lists all)")
    for item in found.left:
        tables.print_line(console, f"left alone: {item.path}: {item.why}", "yellow")
    if found.unseen is not None:
        tables.print_line(console, found.unseen)
    tables.print_line(console, _total(found, done=done))


def _total(found: Collection, *, done: bool) -> str:
    from nanoset_core.versions.gc import folder_size

    verb, unfinished = ("removed", f"{len(found.unfinished):,} unfinished") if done else ("to be removed", "")
    if not done and found.unfinished:
        size = format_bytes(sum(folder_size(path) for path in found.unfinished if path.exists()))
        unfinished = f"{len(found.unfinished):,} unfinished ({size}), where their owner is gone"
    counted = f"{len(found.garbage):,} versions and files, {format_bytes(found.size)}"
    total = f"{verb}: {counted}" + (f"; {unfinished}" if found.unfinished else "")
    if not done and (found.garbage or found.unfinished):
        total += "\nnothing was removed yet: say --yes"
    return total


def _print_json(found: Collection, *, done: bool) -> None:
    """Print it as one JSON object."""
    value: dict[str, Any] = {
        "removed": done,
        "bytes": found.size,
        "garbage": [
            {"path": str(item.path), "output": item.output, "kind": item.kind, "bytes": item.size}
            for item in found.garbage
        ],
        "left_alone": [{"path": str(item.path), "why": item.why} for item in found.left],
        "unfinished": [str(path) for path in found.unfinished],
    }
    tables.print_json(value)


def _print_copies(found: Sequence[Copy], *, done: bool, as_json: bool) -> None:
    """Print the number and size of working copies."""
    size = sum(copy.size for copy in found)
    if as_json:
        tables.print_json({"removed": done, "bytes": size, "copies": [str(copy.path) for copy in found]})
        return
    verb = "removed" if done else "to be removed"
    click.echo(f"{verb}: {len(found):,} copies of files in the bucket, {format_bytes(size)}")
    if found and not done:
        click.echo("nothing was removed yet: say --yes")
