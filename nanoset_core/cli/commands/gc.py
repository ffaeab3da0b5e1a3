"""`nanoset gc`: remove old versions that nothing needs.

Each build of an output gets a folder of its own, and earlier versions stay until they are removed.
The command lists the versions that no current output was made from, with their size. It only
removes them with `--yes`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, JSON_OPTION, NumberRange, flag, option
from nanoset_core.cli.terminal import Row, print_json, print_rows
from nanoset_core.records.text import format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.garbage import Garbage, GarbageCollection
    from nanoset_core.project.project import Project

_MAX_SHOWN = 50
"""Largest number of outputs in the table."""


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
@flag("--unfinished", "Also remove outputs that an interrupted build had finished.")
@flag("--no-locks", "Has no effect any more; kept for old scripts.", expose_value=False)
@flag("--copies", "Instead, remove this machine's cached copies of a bucket's outputs.")
@JSON_OPTION
def command(config: Path, yes: bool, copies: bool, as_json: bool, **policy: Any) -> None:
    """List old versions of outputs that nothing needs any more; with --yes, remove them.

    `nanoset gc` keeps the current version of every output, and the older versions from which it was
    made or whose files it uses. It also keeps what a running build uses, and all files that nanoset
    did not write. If you need a removed version again, you can rebuild it.
    """
    from nanoset_core.project.gc import collect, plan_gc
    from nanoset_core.project.project import Project

    project = Project.open(config)
    if copies:
        _clear_copies(project, is_removal=yes, as_json=as_json)
        return

    # The policy consists of --keep, --older-than and --unfinished.
    collection = collect(project, **policy) if yes else plan_gc(project, **policy)
    if as_json:
        print_json({"removed": yes, **_to_json(collection)})
    else:
        _print_collection(collection, is_removed=yes)
    # Fail if the system refused to remove something.
    if any(item.refused for item in collection.left_alone):
        sys.exit(1)


def _clear_copies(project: Project, *, is_removal: bool, as_json: bool) -> None:
    """List, or remove, the copies that this machine keeps of a bucket's outputs.

    Args:
        project: The project, whose outputs are in a bucket.
        is_removal: Whether to remove the copies. If not, they are only listed.
        as_json: Whether to print JSON.
    """
    from nanoset_core.project.bucket_copies import find_copies

    size_by_path = find_copies(project, remove=is_removal)
    size = sum(size_by_path.values())
    if as_json:
        paths = [str(path) for path in size_by_path]
        print_json({"removed": is_removal, "bytes": size, "copies": paths})
        return
    copies = f"{len(size_by_path):,} copies of files in the bucket, {format_bytes(size)}"
    _print_total(copies, is_removed=is_removal, is_empty=not size_by_path)


def _print_total(text: str, *, is_removed: bool, is_empty: bool) -> None:
    """Print how much was removed; or how much would be removed, and how to remove it.

    Args:
        text: The total, as a clause.
        is_removed: Whether it was removed.
        is_empty: Whether there is nothing to remove.
    """
    if is_removed:
        echo(f"removed: {text}")
        return
    echo(f"to be removed: {text}")
    if not is_empty:
        echo("nothing was removed yet: add --yes to remove it")


def _to_json(collection: GarbageCollection) -> dict[str, Any]:
    """Return what a collection removes, and what it leaves alone and why, as plain values."""
    return {
        "bytes": collection.size,
        "garbage": [_garbage_to_json(item) for item in collection.garbage],
        "left_alone": [
            {"path": str(entry.path), "why": entry.why} for entry in collection.left_alone
        ],
        "unfinished": [str(path) for path in collection.unfinished],
    }


def _garbage_to_json(item: Garbage) -> dict[str, Any]:
    """Return a version or file that is removed as plain values."""
    return {
        "path": str(item.path),
        "output": item.output,
        "kind": item.kind,
        "bytes": item.size,
    }


def _print_collection(collection: GarbageCollection, *, is_removed: bool) -> None:
    """Print what is removed, what is kept and why, and the total.

    Args:
        collection: The versions and files to remove, and those that are kept.
        is_removed: Whether they were removed; if not, they are only listed.
    """
    _print_outputs(collection)
    for item in collection.left_alone:
        echo(f"kept: {item.path}: {item.why}", fg="yellow")
    # A sentence on builds that cannot be noticed, such as on a machine that is cut off.
    if collection.unseen is not None:
        echo(collection.unseen)

    total = f"{len(collection.garbage):,} versions and files, {format_bytes(collection.size)}"
    if collection.unfinished:
        total += f"; {_unfinished_total(collection.unfinished, is_removed=is_removed)}"
    is_empty = not collection.garbage and not collection.unfinished
    _print_total(total, is_removed=is_removed, is_empty=is_empty)


def _unfinished_total(unfinished: Sequence[Path], *, is_removed: bool) -> str:
    """Return the number of unfinished outputs, and their size as long as they exist.

    Args:
        unfinished: The folders of outputs that an interrupted build began.
        is_removed: Whether they were removed.

    Returns:
        A text such as "2 unfinished outputs (1.2 GB), of processes that have ended".
    """
    count = format_count(len(unfinished), "unfinished output")
    if is_removed:
        return count
    size = format_bytes(_size_of_folders(unfinished))
    return f"{count} ({size}), of processes that have ended"


def _size_of_folders(folders: Sequence[Path]) -> int:
    """Return the size of all folders together, in bytes; other processes may delete some."""
    from nanoset_core.project.gc import folder_size

    return sum(folder_size(folder) for folder in folders if folder.exists())


def _print_outputs(collection: GarbageCollection) -> None:
    """Print a table of the outputs, those with the most bytes to remove first.

    Args:
        collection: What is removed: versions of outputs, and single files.
    """
    items_by_output = collection.by_output()
    outputs = sorted(items_by_output, key=lambda name: _size(items_by_output[name]), reverse=True)
    print_rows([_output_row(output, items_by_output[output]) for output in outputs[:_MAX_SHOWN]])
    n_unlisted = len(outputs) - _MAX_SHOWN
    if n_unlisted > 0:
        echo(f"… and {format_count(n_unlisted, 'smaller output')} (--json lists all)")


def _output_row(output: str, items: Sequence[Garbage]) -> Row:
    """Return the row of an output: how many versions and files of it are removed, and their size.

    Args:
        output: Name of the output.
        items: What is removed of it.

    Returns:
        Heading → number or text.
    """
    n_versions = sum(item.kind in ("version", "unfinished") for item in items)
    return {
        "output": output,
        "versions": n_versions,
        "files": len(items) - n_versions,
        "size": format_bytes(_size(items)),
    }


def _size(items: Sequence[Garbage]) -> int:
    """Return the size of all items together, in bytes."""
    return sum(item.size for item in items)
