"""`nanoset diff`: two versions of a dataset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.options import CONFIG_OPTION
from nanoset_core.cli.tables import Row, print_json, print_line, print_rows, styled, wide_console
from nanoset_core.serialization.text import format_age

if TYPE_CHECKING:
    from nanoset_core.versions.diff import DatasetDiff

_STYLES = {"survives": "green", "rebuilt": "green", "to be rebuilt": "yellow", "not built": "yellow"}
_KEPT = "{kept_files:,} of {index_files:,}"
_CHANGES = {"added": "green", "removed": "red", "changed": "yellow", "other settings": "yellow"}


@click.command("diff", short_help="Compare two versions of a dataset.")
@click.argument("first", metavar="CORPUS|A")
@click.argument("second", metavar="[B]", required=False)
@CONFIG_OPTION
@click.option("--show", default=20, show_default=True, help="How many files to list.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, with all files.")
def command(first: str, second: str | None, config: Path, show: int, as_json: bool) -> None:
    """Compare two versions of a dataset, A and B (digests or their first digits); of a CORPUS, its last two.

    Documents and tokens in and out by source file, settings that differ, and which outputs survive the change.
    """
    from nanoset_core.pipeline.project import Project
    from nanoset_core.versions.diff import diff_datasets

    found = diff_datasets(Project.open(config), first, second)
    if as_json:
        print_json(found.to_json(), ensure_ascii=False)
    else:
        _print_tables(found, show)


def _print_tables(diff: DatasetDiff, show: int) -> None:
    """Print the two versions, settings, the files that differ most, and what becomes of the outputs."""
    console, values = wide_console(), diff.to_json()
    print_rows(console, _versions(values))
    for setting in diff.settings:
        print_line(console, f"setting: {setting}")
    most = sorted(diff.files, key=lambda file: (-max(file.before.tokens, file.after.tokens), file.path))[:show]
    files = [
        _file_row(file.path, styled(file.change, _CHANGES[file.change]), file.before, file.after)
        for file in sorted(most, key=diff.files.index)
    ]
    if diff.files:
        files.append(_file_row("all that differ", "", diff.total("before"), diff.total("after")))
    print_rows(console, files, text=["change"])
    if len(diff.files) > show:
        print_line(console, f"… and {len(diff.files) - show:,} files more, with fewer tokens in or out (--show)")
    print_line(
        console,
        f"files that differ: {len(diff.files):,}, the same: {diff.unchanged:,}; "
        f"shards that were there before: {diff.shards_kept:,} of {len(diff.new.shards):,}",
    )
    outcomes = [
        {
            "output": outcome["output"],
            "fate": styled(outcome["fate"], _STYLES[outcome["fate"]]),
            "index files kept": _KEPT.format_map(outcome) if outcome["index_files"] is not None else "",
            "why": outcome["why"],
        }
        for outcome in values["outcomes"]
    ]
    print_rows(console, outcomes, text=["fate", "why"])


def _versions(diff: Row) -> list[Row]:
    corpus, names = diff["corpus"], ("documents", "tokens", "rejected", "files")
    old, new = (diff[side] | {"rejected": diff[side]["rejected"] + diff[side]["faults"]} for side in ("old", "new"))
    rows = [
        {corpus: f"{label}: {row['digest']}", **{name: row[name] for name in names}}
        | {"age": format_age(time.time() - row["made_at"])}
        for label, row in (("before", old), ("after", new))
    ]
    return [*rows, {corpus: "difference", **{name: f"{new[name] - old[name]:+,}" for name in names}, "age": ""}]


def _file_row(path: str, change: Any, before: Any, after: Any) -> Row:
    counts = {"file": path, "change": change, "documents": after.documents, "tokens": after.tokens}
    return counts | {
        f"{name} ±": f"{getattr(after, name) - getattr(before, name):+,}" for name in ("documents", "tokens")
    }
