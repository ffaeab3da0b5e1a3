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
from nanoset_core.cli.purge_warnings import print_interrupted_purges
from nanoset_core.cli.terminal import Row, print_json, print_rows
from nanoset_core.wording import format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.gc.garbage import Garbage, GarbageCollection
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
    "Remove only versions that were replaced by newer ones, and logs that were last written to, "
    "more than this many days ago.",
    type=NumberRange(0),
    metavar="DAYS",
)
@flag("--unfinished", "Also remove outputs that an interrupted build had finished.")
@flag("--no-locks", "Has no effect any more; kept for old scripts.", expose_value=False)
@flag("--copies", "Instead, list or remove this machine's copies of a bucket's outputs.")
@JSON_OPTION
def command(
    config: Path,
    yes: bool,
    keep: int,
    older_than_days: float | None,
    unfinished: bool,
    copies: bool,
    as_json: bool,
) -> None:
    """List old versions of outputs that nothing needs any more; with --yes, remove them.

    `nanoset gc` keeps the current version of every output, and the older versions from which it was
    made or whose files it uses. It also keeps what a running build uses, and all files that nanoset
    did not write. If you need a removed version again, you can rebuild it.

    The command also lists logs of Slurm jobs that have ended; with --yes, it removes them.
    """
    from nanoset_core.project.gc.collect import collect, plan_gc
    from nanoset_core.project.gc.garbage import Policy
    from nanoset_core.project.project import Project

    project = Project.open(config)
    if copies:
        _clear_copies(project, is_removal=yes, as_json=as_json)
        return

    policy = Policy(keep, older_than_days, unfinished)
    collection = collect(project, policy) if yes else plan_gc(project, policy)
    if as_json:
        print_json({"removed": yes, **_to_json(collection)})
    else:
        _print_collection(collection, is_removed=yes)
    print_interrupted_purges(project, err=as_json)
    # Fail if the system refused to remove something.
    if any(item.refused for item in collection.left_alone):
        sys.exit(1)


def _clear_copies(project: Project, *, is_removal: bool, as_json: bool) -> None:
    """List, or remove, the copies that this machine keeps of files in a bucket.

    If the outputs of a project are in a bucket, the files that were read are kept on the local
    disk, to be faster the next time. They can be removed at any time:

        removed: 12 copies of files in the bucket, 3.4 GB; 2 of files that it no longer has, 1.1 GB

    Args:
        project: The project, whose outputs are in a bucket.
        is_removal: Whether to remove the copies. If not, they are only listed.
        as_json: Whether to print JSON.
    """
    from nanoset_core.project.gc.bucket_copies import find_copies

    copies = find_copies(project, remove=is_removal)
    if as_json:
        paths = [str(copy.path) for copy in copies]
        size = sum(copy.size for copy in copies)
        print_json({"removed": is_removal, "bytes": size, "copies": paths})
        return

    current_sizes = [copy.size for copy in copies if copy.is_in_bucket]
    deleted_sizes = [copy.size for copy in copies if not copy.is_in_bucket]
    text = (
        f"{len(current_sizes):,} copies of files in the bucket, {format_bytes(sum(current_sizes))}"
    )
    if deleted_sizes:
        total_size = format_bytes(sum(deleted_sizes))
        text += f"; {len(deleted_sizes):,} of files that it no longer has, {total_size}"
    _print_total(text, is_removed=is_removal, is_empty=not copies)


def _print_total(text: str, *, is_removed: bool, is_empty: bool) -> None:
    """Print how much was removed; or how much would be removed, and how to remove it.

        removed: 14 versions and files, 1.2 GB

        to be removed: 14 versions and files, 1.2 GB
        nothing was removed yet: add --yes to remove it

    Args:
        text: The total, such as "14 versions and files, 1.2 GB".
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
    """Return what `nanoset gc --json` prints: old versions that are removed, or kept.

        {"bytes": 1200000, "garbage": [{"path": "…", "output": "corpora/web", …}, …],
         "left_alone": [{"path": "…", "why": "a running build works on it"}, …], "unfinished": []}

    Args:
        collection: What nothing needs any more, and what is kept although nothing is known to need
            it.
    """
    garbage = [_garbage_to_json(item, size) for item, size in collection.freed_bytes().items()]
    left_alone: list[dict[str, str]] = []
    for entry in collection.left_alone:
        left_alone.append({"path": str(entry.path), "why": entry.why})
    return {
        "bytes": collection.size,
        "garbage": garbage,
        "left_alone": left_alone,
        "unfinished": [str(path) for path in collection.unfinished],
    }


def _garbage_to_json(item: Garbage, size: int) -> dict[str, Any]:
    """Return an old version of an output, or a file, as plain values for JSON.

    For example: {"path": "/data/corpora/web/3f0a", "output": "corpora/web", "kind": "version",
    "bytes": 1200000}.

    Args:
        item: The version or file, which nothing needs any more.
        size: Bytes of disk space that its removal frees.
    """
    return {
        "path": str(item.path),
        "output": item.output,
        "kind": item.kind,
        "bytes": size,
    }


def _print_collection(collection: GarbageCollection, *, is_removed: bool) -> None:
    """Print which old versions of outputs are removed, what is kept and why, and the total.

        output        versions   files     size
        corpora/web          2       0   1.2 GB

        kept: /data/corpora/code/9c71: a running build works on it
        to be removed: 2 versions and files, 1.2 GB

    Args:
        collection: The versions and files to remove, and those that are kept.
        is_removed: Whether they were removed; if not, they are only listed.
    """
    _print_outputs(collection)
    for item in collection.left_alone:  # what is kept, although it is old
        echo(f"kept: {item.path}: {item.why}", fg="yellow")
    if collection.unseen is not None:
        echo(collection.unseen)  # there may be builds that cannot be noticed from this machine

    total = f"{len(collection.garbage):,} versions and files, {format_bytes(collection.size)}"
    if collection.unfinished:  # what interrupted builds have left
        total += f"; {_unfinished_total(collection.unfinished, is_removed=is_removed)}"
    is_empty = not collection.garbage and not collection.unfinished
    _print_total(total, is_removed=is_removed, is_empty=is_empty)


def _unfinished_total(unfinished: Sequence[Path], *, is_removed: bool) -> str:
    """Say how many outputs an interrupted build has begun, and how large they are.

    For example: "2 unfinished outputs (1.2 GB), of processes that have ended". If they were
    removed, nobody can measure them any more: "2 unfinished outputs".

    Args:
        unfinished: The folders of these outputs.
        is_removed: Whether they were removed.
    """
    count = format_count(len(unfinished), "unfinished output")
    if is_removed:
        return count
    from nanoset_core.project.gc.collect import bytes_freed_by_removing

    # Another process may have deleted some of them meanwhile.
    existing = [path for path in unfinished if path.exists()]
    size = format_bytes(bytes_freed_by_removing(existing))
    return f"{count} ({size}), of processes that have ended"


def _print_outputs(collection: GarbageCollection) -> None:
    """Print a table of the outputs of which something is removed, the largest amount first.

        output        versions   files     size
        corpora/web          2       0   1.2 GB
        nanosets/a           1       3    40 MB
        … and 7 smaller outputs (--json lists all)

    Args:
        collection: What is removed: old versions of outputs, and single files.
    """
    items_by_output = collection.by_output()
    freed_bytes = collection.freed_bytes()
    size_by_output: dict[str, int] = {}
    for output, items in items_by_output.items():
        size_by_output[output] = sum(freed_bytes[item] for item in items)
    outputs = sorted(size_by_output, key=lambda output: size_by_output[output], reverse=True)

    # Only the first 50 outputs are listed.
    rows = []
    for output in outputs[:_MAX_SHOWN]:
        rows.append(_output_row(output, items_by_output[output], size_by_output[output]))
    print_rows(rows)
    n_unlisted = len(outputs) - _MAX_SHOWN
    if n_unlisted > 0:
        echo(f"… and {format_count(n_unlisted, 'smaller output')} (--json lists all)")


def _output_row(output: str, items: Sequence[Garbage], size: int) -> Row:
    """Return the row of a table for an output: how many versions and files of it are removed.

    For example: {"output": "corpora/web", "versions": 2, "files": 0, "size": "1.2 GB"}.

    Args:
        output: Name of the output.
        items: What is removed of it: old versions, and single files.
        size: Bytes of disk space that this frees.
    """
    n_versions = sum(item.kind in ("version", "unfinished") for item in items)
    return {
        "output": output,
        "versions": n_versions,
        "files": len(items) - n_versions,
        "size": format_bytes(size),
    }
