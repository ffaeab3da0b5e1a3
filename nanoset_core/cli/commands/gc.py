"""`nanoset gc`: remove old versions that nothing needs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli import tables
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, NumberRange
from nanoset_core.serialization.text import format_bytes

if TYPE_CHECKING:
    from nanoset_core.versions.gc import Collection

_SHOWN = 50
"""Outputs in the table."""


@click.command("gc", short_help="List, or remove, old versions that nothing needs.")
@CONFIG_OPTION
@click.option("--yes", is_flag=True, help="Remove it; without this, it is only listed.")
@click.option("--keep", type=click.IntRange(0), default=0, show_default=True, help="Older versions of each that stay.")
@click.option(
    "--older-than", "older_than_days", type=NumberRange(0), metavar="DAYS", help="Only what was made before that."
)
@click.option("--unfinished", is_flag=True, help="Also what a build that was cut short had finished.")
@click.option(
    "--no-locks", is_flag=True, expose_value=False, help="Without effect: builds are seen on any file system."
)
@click.option("--copies", is_flag=True, help="Instead: this machine's copies of outputs in a bucket.")
@JSON_OPTION
def command(config: Path, yes: bool, copies: bool, as_json: bool, **policy: Any) -> None:
    """List, or with --yes remove, old versions of outputs and index files that nothing needs any more.

    Kept are the current version of every output and all that it was made from or points at, what a running build
    works on, and whatever is not recognised as made by nanoset. What is removed can be built again.
    """
    from nanoset_core.pipeline.project import Project
    from nanoset_core.versions.copies import find_copies
    from nanoset_core.versions.gc import collect, plan_gc

    project = Project.open(config)
    if copies:
        there = find_copies(project, remove=yes)
        size, paths = sum(copy.size for copy in there), [str(copy.path) for copy in there]
        plain, counted = {"copies": paths}, f"{len(there):,} copies of files in the bucket, {format_bytes(size)}"
        is_refused = False
    else:
        found = (collect if yes else plan_gc)(project, **policy)
        size, plain, counted = found.size, _plain(found), "" if as_json else _counted(found, done=yes)
        is_refused = any(item.refused for item in found.left)
        if not as_json:
            _print_collection(found)
    if as_json:
        tables.print_json({"removed": yes, "bytes": size} | plain)
    else:
        tables.print_line(tables.wide_console(), f"{'removed' if yes else 'to be removed'}: {counted}")
        if not yes and any(plain.get(name) for name in ("copies", "garbage", "unfinished")):
            click.echo("nothing was removed yet: say --yes")
    if is_refused:
        sys.exit(1)


def _print_collection(found: Collection) -> None:
    """Print a table of the outputs with most to remove, and what was left alone and why."""
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


def _counted(found: Collection, *, done: bool) -> str:
    from nanoset_core.versions.gc import folder_size

    counted = f"{len(found.garbage):,} versions and files, {format_bytes(found.size)}"
    if not found.unfinished:
        return counted
    size = "" if done else format_bytes(sum(folder_size(path) for path in found.unfinished if path.exists()))
    owners = f" ({size}), where their owner is gone" if size else ""
    return f"{counted}; {len(found.unfinished):,} unfinished{owners}"


def _plain(found: Collection) -> dict[str, Any]:
    return {
        "garbage": [
            {"path": str(item.path), "output": item.output, "kind": item.kind, "bytes": item.size}
            for item in found.garbage
        ],
        "left_alone": [{"path": str(item.path), "why": item.why} for item in found.left],
        "unfinished": [str(path) for path in found.unfinished],
    }
