"""What `nanoset gc` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from nanoset_core.cli import tables
from nanoset_core.serialization.text import format_bytes
from nanoset_core.versions.copies import Copy
from nanoset_core.versions.gc import Collection, folder_size

_SHOWN = 50


def print_collection(found: Collection, *, done: bool) -> None:
    """A table of the outputs with most to remove, what was left alone and why, and the total."""
    console = tables.wide_console()
    table = tables.make_table("output", "versions", "files", "size")
    outputs = sorted(found.by_output().items(), key=lambda row: -sum(item.size for item in row[1]))
    for output, items in outputs[:_SHOWN]:
        versions = sum(item.kind != "cache file" for item in items)
        size = format_bytes(sum(item.size for item in items))
        table.add_row(output, f"{versions:,}", f"{len(items) - versions:,}", size)
    if found.garbage:
        console.print(table)
        if len(outputs) > _SHOWN:
            console.print(f"… and {len(outputs) - _SHOWN:,} outputs more, with less each (--json lists all)")
    for item in found.left:
        tables.print_line(console, f"left alone: {item.path}: {item.why}", "yellow")
    tables.print_line(console, _total(found, done=done))


def _total(found: Collection, *, done: bool) -> str:
    verb, unfinished = ("removed", f"{len(found.unfinished):,} unfinished") if done else ("to be removed", "")
    if not done and found.unfinished:
        size = format_bytes(sum(folder_size(path) for path in found.unfinished if path.exists()))
        unfinished = f"{len(found.unfinished):,} unfinished ({size}), where their owner is gone"
    counted = f"{len(found.garbage):,} versions and files, {format_bytes(found.size)}"
    total = f"{verb}: {counted}" + (f"; {unfinished}" if found.unfinished else "")
    if not done and (found.garbage or found.unfinished):
        total += "\nnothing was removed yet: say --yes"
    return total


def print_json(found: Collection, *, done: bool) -> None:
    """The same as one JSON object."""
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


def print_copies(found: Sequence[Copy], *, done: bool, as_json: bool) -> None:
    """How many working copies there are, and how big."""
    size = sum(copy.size for copy in found)
    if as_json:
        tables.print_json({"removed": done, "bytes": size, "copies": [str(copy.path) for copy in found]})
        return
    verb = "removed" if done else "to be removed"
    click.echo(f"{verb}: {len(found):,} copies of files in the bucket, {format_bytes(size)}")
    if found and not done:
        click.echo("nothing was removed yet: say --yes")
