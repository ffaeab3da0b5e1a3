"""`nanoset diff`: two versions of a dataset."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.options import CONFIG_OPTION
from nanoset_core.cli.tables import make_table, print_json, print_line, print_table, wide_console
from nanoset_core.serialization.text import format_age

if TYPE_CHECKING:
    from rich.table import Table

    from nanoset_core.versions.diff import DatasetDiff

_STYLES = {"survives": "green", "rebuilt": "green", "to be rebuilt": "yellow", "not built": "yellow"}
_CHANGES = {"added": "green", "removed": "red", "changed": "yellow", "other settings": "yellow"}


@click.command("diff")
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
    console = wide_console()
    print_table(console, _versions(diff))
    for setting in diff.settings:
        print_line(console, f"setting: {setting}")
    if diff.files:
        print_table(console, _files(diff, show))
        if len(diff.files) > show:
            rest = f"… and {len(diff.files) - show:,} files more, with fewer tokens in or out (--show)"
            console.print(rest, highlight=False)
    console.print(
        f"files that differ: {len(diff.files):,}, the same: {diff.unchanged:,}; "
        f"shards that were there before: {diff.shards_kept:,} of {len(diff.new.shards):,}",
        highlight=False,
    )
    print_table(console, _outcomes(diff))


def _versions(diff: DatasetDiff) -> Table:
    table = make_table(diff.new.corpus, "documents", "tokens", "rejected", "files", "age")
    rows = [diff.to_json()[side] for side in ("old", "new")]
    for label, row in zip(("before", "after"), rows, strict=True):
        age = format_age(time.time() - row["made_at"])
        counts = [row["documents"], row["tokens"], row["rejected"] + row["faults"], row["files"]]
        table.add_row(f"{label}: {row['digest']}", *(f"{count:,}" for count in counts), age)
    old, new = rows
    steps = [new[name] - old[name] for name in ("documents", "tokens")]
    rejected = new["rejected"] + new["faults"] - old["rejected"] - old["faults"]
    table.add_row("difference", *(f"{step:+,}" for step in (*steps, rejected, new["files"] - old["files"])), "")
    return table


def _files(diff: DatasetDiff, show: int) -> Table:
    from rich.text import Text

    table = make_table("file", "change", "documents", "tokens", "documents ±", "tokens ±", left=["change"])
    most = sorted(diff.files, key=lambda file: (-max(file.before.tokens, file.after.tokens), file.path))[:show]
    for file in sorted(most, key=diff.files.index):
        counts = (file.after.documents, file.after.tokens)
        steps = (file.after.documents - file.before.documents, file.after.tokens - file.before.tokens)
        change = Text(file.change, style=_CHANGES[file.change])
        table.add_row(file.path, change, *(f"{count:,}" for count in counts), *(f"{step:+,}" for step in steps))
    before, after = diff.total("before"), diff.total("after")
    steps = (after.documents - before.documents, after.tokens - before.tokens)
    counts = (after.documents, after.tokens)
    table.add_row("all that differ", "", *(f"{count:,}" for count in counts), *(f"{step:+,}" for step in steps))
    return table


def _outcomes(diff: DatasetDiff) -> Table:
    from rich.text import Text

    table = make_table("output", "fate", "index files kept", "why", left=["fate", "why"])
    for outcome in diff.outcomes:
        known = outcome.index_files is not None
        kept = f"{outcome.kept_files:,} of {outcome.index_files:,}" if known else ""
        table.add_row(outcome.output, Text(outcome.fate, style=_STYLES[outcome.fate]), kept, outcome.why)
    return table
