"""`nanoset diff`: two versions of a dataset."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, flag, option
from nanoset_core.cli.terminal import Row, print_json, print_rows
from nanoset_core.records.text import format_age

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.diff import DatasetDiff
    from nanoset_core.project.project import Project

_STYLES = {
    **{"survives": "green", "rebuilt": "green", "to be rebuilt": "yellow", "not built": "yellow"},
    **{"added": "green", "removed": "red", "changed": "yellow", "other settings": "yellow"},
}
_KEPT = "{kept_files:,} of {index_files:,}"
_UNCHANGED = "files that differ: {differ:,}, the same: {files_unchanged:,}; shards reused: {shards_kept:,} of {shards:,}"


@click.command("diff", short_help="Compare two versions of a dataset.")
@click.argument("first", metavar="CORPUS|VIEW|A")
@click.argument("second", metavar="[B]", required=False)
@CONFIG_OPTION
@option("--show", "How many files to list, or documents of a view.", default=20, show_default=True)
@flag("--json as_json", "Print JSON, with all files.")
def command(first: str, second: str | None, config: Path, show: int, as_json: bool) -> None:
    """Compare two versions of a dataset, A and B (digests or their first digits); of a CORPUS or
    VIEW, its last two.

    Documents and tokens in and out by source file, settings that differ, and which outputs stay as
    they are; of a view the documents that it gained and lost, and the rules and lists that differ.
    """
    from nanoset_core.project.diff import diff_datasets
    from nanoset_core.project.find_versions import find_versions
    from nanoset_core.project.project import Project
    from nanoset_core.stages.datasets import dataset_of

    project = Project.open(config)
    old, new = find_versions(project, first, second)
    if not dataset_of(project.outputs, new).is_whole_corpus:
        _show_views(project, old, new, show, as_json)
        return
    found = diff_datasets(project, first, second)
    values = found.to_json()
    if as_json:
        print_json(values, ensure_ascii=False)
        return
    sides = {
        side: values[side] | {"rejected": values[side]["rejected"] + values[side]["faults"]}
        for side in ("old", "new")
    }
    print_rows(_versions(values["corpus"], sides, ("documents", "tokens", "rejected", "files")))
    for setting in found.settings:
        echo(f"setting: {setting}")
    print_rows(_files(found, show), text=["change"])
    if len(found.files) > show:
        echo(f"… and {len(found.files) - show:,} files more, with fewer tokens in or out (--show)")
    echo(
        _UNCHANGED.format_map(
            values | {"differ": len(found.files), "shards": len(found.new.shards)}
        )
    )
    outcomes = [
        {
            "output": outcome["output"],
            "state": (outcome["fate"], _STYLES[outcome["fate"]]),
            "index files reused": _KEPT.format_map(outcome)
            if outcome["index_files"] is not None
            else "",
            "why": outcome["why"],
        }
        for outcome in values["outcomes"]
    ]
    print_rows(outcomes, text=["state", "why"])


def _show_views(project: Project, old: Manifest, new: Manifest, show: int, as_json: bool) -> None:
    from nanoset_core.project.view_diff import diff_views

    values = diff_views(project, old, new, show).to_json()
    if as_json:
        print_json(values, ensure_ascii=False)
        return
    print_rows(_versions(values["view"], values, ("documents", "tokens")))
    for setting in values["settings"]:
        echo(f"setting: {setting}")
    for side, sign in (("gained", "+"), ("lost", "-")):
        echo(f"{side}: {values[side]['documents']:,} documents, {values[side]['tokens']:,} tokens")
        for one in values[side]["first"]:
            echo(
                f"  {sign} {one['file']}:{one['line']}{'' if one['id'] is None else ' ' + one['id']}"
            )


def _versions(corpus: str, diff: Row, names: Sequence[str]) -> list[Row]:
    old, new = diff["old"], diff["new"]
    rows = [
        {corpus: f"{label}: {row['digest']}", **{name: row[name] for name in names}}
        | {"age": format_age(time.time() - row["made_at"])}
        for label, row in (("before", old), ("after", new))
    ]
    return [
        *rows,
        {
            corpus: "difference",
            **{name: f"{new[name] - old[name]:+,}" for name in names},
            "age": "",
        },
    ]


def _files(diff: DatasetDiff, show: int) -> list[Row]:
    """Return the files with most tokens in or out, in document order, and a sum over all that
    differ.
    """
    most = sorted(
        diff.files, key=lambda file: (-max(file.before.tokens, file.after.tokens), file.path)
    )[:show]
    shown = [
        _row(file.path, (file.change, _STYLES[file.change]), file.before, file.after)
        for file in sorted(most, key=diff.files.index)
    ]
    return (
        [*shown, _row("all that differ", "", diff.total("before"), diff.total("after"))]
        if diff.files
        else []
    )


def _row(path: str, change: Any, before: Any, after: Any) -> Row:
    changes = {
        f"{name} ±": f"{getattr(after, name) - getattr(before, name):+,}"
        for name in ("documents", "tokens")
    }
    return {
        "file": path,
        "change": change,
        "documents": after.documents,
        "tokens": after.tokens,
        **changes,
    }
