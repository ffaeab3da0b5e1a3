"""`nanoset gc`: remove old versions that nothing needs."""

from __future__ import annotations

import sys
from collections.abc import Sized
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, NumberRange, flag, option
from nanoset_core.cli.terminal import print_json, print_rows
from nanoset_core.records.text import format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.garbage import GarbageCollection

_SHOWN = 50
"""Outputs in the table."""


@click.command("gc", short_help="List, or remove, old versions that nothing needs.")
@CONFIG_OPTION
@flag("--yes", "Remove what is listed; without this, nothing is removed.")
@option(
    "--keep",
    "How many old versions of each output to keep.",
    type=click.IntRange(0),
    default=0,
    show_default=True,
)
@option(
    "--older-than older_than_days",
    "Remove only what is older than this.",
    type=NumberRange(0),
    metavar="DAYS",
)
@flag("--unfinished", "Also outputs that an interrupted build had finished.")
@flag("--no-locks", "Has no effect any more; kept for old scripts.", expose_value=False)
@flag("--copies", "Instead: this machine's cached copies of a bucket's outputs.")
@JSON_OPTION
def command(config: Path, yes: bool, copies: bool, as_json: bool, **policy: Any) -> None:
    """List, or with --yes remove, old versions of outputs and index files that nothing needs any
    more.

    Kept are the current version of every output and all that it was made from or points at, what a
    running build works on, and every file that nanoset did not make. What is removed can be built
    again.
    """
    from nanoset_core.project.bucket_copies import find_copies
    from nanoset_core.project.gc import collect, folder_size, plan_gc
    from nanoset_core.project.project import Project

    project = Project.open(config)
    if copies:
        there = find_copies(project, remove=yes)
        size, paths = sum(there.values()), [str(path) for path in there]
        if as_json:
            print_json({"removed": yes, "bytes": size, "copies": paths})
        else:
            _print_total(
                f"{len(there):,} copies of files in the bucket, {format_bytes(size)}", yes, there
            )
        return
    found = (collect if yes else plan_gc)(project, **policy)
    if as_json:
        items = [
            {"path": str(item.path), "output": item.output, "kind": item.kind, "bytes": item.size}
            for item in found.garbage
        ]
        left = [{"path": str(item.path), "why": item.why} for item in found.left_alone]
        paths = list(map(str, found.unfinished))
        print_json(
            {
                "removed": yes,
                "bytes": found.size,
                "garbage": items,
                "left_alone": left,
                "unfinished": paths,
            }
        )
    else:
        _print_collection(found)
        counted = f"{len(found.garbage):,} versions and files, {format_bytes(found.size)}"
        if found.unfinished:
            size = (
                0 if yes else sum(folder_size(path) for path in found.unfinished if path.exists())
            )
            owners = "" if yes else f" ({format_bytes(size)}), of processes that have ended"
            counted += f"; {format_count(len(found.unfinished), 'unfinished output')}{owners}"
        _print_total(counted, yes, found.garbage or found.unfinished)
    if any(item.refused for item in found.left_alone):
        sys.exit(1)


def _print_total(counted: str, is_done: bool, there: Sized) -> None:
    echo(f"{'removed' if is_done else 'to be removed'}: {counted}")
    if there and not is_done:
        echo("nothing was removed yet: add --yes to remove it")


def _print_collection(found: GarbageCollection) -> None:
    """Print a table of the outputs with most to remove, and what was left alone and why."""
    outputs = sorted(found.by_output().items(), key=lambda row: -sum(item.size for item in row[1]))
    rows = [
        {
            "output": output,
            "versions": (versions := sum(item.kind in ("version", "unfinished") for item in items)),
            "files": len(items) - versions,
            "size": format_bytes(sum(item.size for item in items)),
        }
        for output, items in outputs[:_SHOWN]
    ]
    print_rows(rows)
    if len(outputs) > _SHOWN:
        echo(f"… and {len(outputs) - _SHOWN:,} outputs more, with less each (--json lists all)")
    for item in found.left_alone:
        echo(f"kept: {item.path}: {item.why}", fg="yellow")
    if found.unseen is not None:
        echo(found.unseen)
