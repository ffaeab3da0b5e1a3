"""`nanoset diff`: print how two versions of a corpus's dataset, or two views, differ.

`nanoset diff web` compares the last two versions of the corpus web: which files of raw text were
added or changed, by how many documents and tokens, and which outputs have to be rebuilt. For a
view (a selection of documents), it lists the documents that were gained and lost. `nanoset diff
clean best` compares the current versions of two views.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import CONFIG_OPTION, flag, option
from nanoset_core.cli.terminal import Row, StyledText, print_json, print_rows
from nanoset_core.wording import format_age, format_count

if TYPE_CHECKING:
    from nanoset_core.outputs.manifest import Manifest
    from nanoset_core.project.diff.datasets import DatasetDiff, DatasetVersion, FileDiff
    from nanoset_core.project.diff.outcomes import Outcome
    from nanoset_core.project.diff.views import DocumentChanges, ViewDiff
    from nanoset_core.stages.shards.document_counts import DocumentCounts

_CHANGE_STYLES = {
    "added": "green",
    "removed": "red",
    "changed": "yellow",
    "other settings": "yellow",
}
"""What happened to a source file → the colour it is printed in."""
_FATE_STYLES = {
    "survives": "green",
    "rebuilt": "green",
    "to be rebuilt": "yellow",
    "not built": "yellow",
}
"""What becomes of an output → the colour it is printed in."""


@click.command("diff", short_help="Compare two versions of a dataset, or two views.")
@click.argument("first", metavar="CORPUS|VIEW|A")
@click.argument("second", metavar="[B]", required=False)
@CONFIG_OPTION
@option(
    "--show",
    "How many source files to list, or how many documents of a view.",
    type=click.IntRange(0),
    default=20,
    show_default=True,
)
@flag("--json as_json", "Print JSON, with all files.")
def command(first: str, second: str | None, config: Path, show: int, as_json: bool) -> None:
    """Compare two versions of a dataset, or two datasets of one corpus.

    To compare the last two versions of a corpus or view, give its name. To compare two other
    versions, give their digests (the names of their folders), or the first digits of these. To
    compare two datasets of one corpus, such as two views, give both names: their current versions
    are compared.

    For a corpus, the command lists the text files that were added, removed or changed, with their
    documents and tokens. It also lists the settings that differ, and the outputs that have to be
    rebuilt.

    For a view, the command prints the documents that were added and removed, and the rules and
    lists of ids that differ. For two datasets, it prints the documents that only one of them has,
    or has more often.

    If there is only one version, there is nothing to compare, and the exit code is 0. The JSON is
    then `null`.
    """
    from nanoset_core.project.diff.datasets import diff_datasets
    from nanoset_core.project.diff.versions import OnlyVersionError, find_versions
    from nanoset_core.project.diff.views import diff_views
    from nanoset_core.project.project import Project

    # The names of corpora and views, and the digests of both, are in one namespace: find out which
    # kind of dataset was meant.
    project = Project.open(config)
    try:
        versions = find_versions(project, first, second)
    except OnlyVersionError:
        # This is the normal state after the first build, and so no error in a nightly script.
        if as_json:
            print_json(None)
        else:
            echo(f"{first} has only one version: there is nothing to compare")
        return

    if versions.are_whole_corpora:
        dataset_diff = diff_datasets(project, versions.old, versions.new)
        if as_json:
            print_json(dataset_diff.to_json(), ensure_ascii=False)
        else:
            _print_dataset_diff(dataset_diff, show)
    else:
        view_diff = diff_views(project, versions.old, versions.new, show)
        if as_json:
            print_json(view_diff.to_json(), ensure_ascii=False)
        else:
            _print_view_diff(view_diff)


def _print_dataset_diff(diff: DatasetDiff, show: int) -> None:
    """Print how two versions of a dataset differ, and which outputs have to be rebuilt.

    A dataset is made from a corpus, which is a collection of text files. After some of these files
    changed, a user wants to know what that means:

        web              documents   tokens   rejected   files     age
        before: 3f0a…        1,000   50,000          0       4  2 days
        after: 9c71…         1,200   61,000          0       5   1 min
        difference            +200  +11,000         +0      +1

    Below this are the settings and files that differ, and the state of each output.

    Args:
        diff: The differences of the two versions.
        show: Largest number of files to list.
    """
    old = _VersionCounts.of_dataset(diff.old)
    new = _VersionCounts.of_dataset(diff.new)
    _print_versions(diff.new.dataset.name, old, new)
    for setting in diff.settings:
        echo(f"setting: {setting}")
    if diff.files:
        _print_files(diff, show)

    # A dataset is stored in parts, called shards. Those of files that did not change are reused.
    n_files = f"files that differ: {len(diff.files):,}, the same: {diff.unchanged:,}"
    n_shards = f"shards reused: {diff.shards_kept:,} of {len(diff.new.shards):,}"
    echo(f"{n_files}; {n_shards}")
    print_rows([_outcome_row(outcome) for outcome in diff.outcomes], text=["state", "why"])


def _print_view_diff(diff: ViewDiff) -> None:
    """Print how two versions of a view differ, with the first documents that it gained or lost.

    A view is a selection of documents, made by rules such as `quality >= 3`. If the rules or the
    documents change, the view gets a new version with other documents. Two views are compared in
    the same way.

    Args:
        diff: The differences of the two versions, or of two views.
    """
    from nanoset_core.stages.dataset.dataset import corpus_of

    old = _VersionCounts.of_view(diff.old)
    new = _VersionCounts.of_view(diff.new)
    if diff.is_of_one_view:
        _print_versions(diff.new.name, old, new)
        gained = "gained"
        lost = "lost"
    else:
        old_name = diff.old.name
        new_name = diff.new.name
        _print_versions(corpus_of(diff.new), old, new, labels=(old_name, new_name))
        # Both may have a document, but one of them may repeat it.
        gained = f"only in {new_name}, or more often than in {old_name}"
        lost = f"only in {old_name}, or more often than in {new_name}"

    for setting in diff.settings:
        echo(f"setting: {setting}")
    _print_documents(gained, "+", diff.gained)
    _print_documents(lost, "-", diff.lost)
    if diff.without_tokens != 0:
        echo(f"documents without tokens, which are not listed: {diff.without_tokens:+,}")


@dataclass(frozen=True, slots=True)
class _VersionCounts:
    """The counts of one version, as the table that compares both versions shows them."""

    digest: str
    made_at: float
    """Seconds since 1970."""
    counts: Mapping[str, int]
    """Heading of each column → the number in it."""

    @staticmethod
    def of_dataset(version: DatasetVersion) -> _VersionCounts:
        """Return the counts of a version of a dataset, which is made from files of text.

        For example: {"documents": 1000, "tokens": 50000, "rejected": 3, "files": 4}.

        Args:
            version: The version, with a record of its counts and the files that it was made from.
        """
        manifest = version.dataset
        facts = manifest.facts
        # Lines that are no valid documents, and files that could not be read to their end.
        n_rejected = facts["rejected"] + facts["faults"]
        counts = {
            "documents": facts["documents"],
            "tokens": facts["tokens"],
            "rejected": n_rejected,
            "files": len(version.files),
        }
        return _VersionCounts(manifest.digest, manifest.written_ns / 1e9, counts)

    @staticmethod
    def of_view(manifest: Manifest) -> _VersionCounts:
        """Return the counts of a version of a view, which is a selection of documents.

        For example: {"documents": 400, "tokens": 30000}.

        Args:
            manifest: The record of this version, which has its counts.
        """
        facts = manifest.facts
        counts = {"documents": facts["documents"], "tokens": facts["tokens"]}
        return _VersionCounts(manifest.digest, manifest.written_ns / 1e9, counts)


def _print_versions(
    name: str,
    old: _VersionCounts,
    new: _VersionCounts,
    labels: tuple[str, str] = ("before", "after"),
) -> None:
    """Print a table of the counts of two versions, and the differences between them.

        web              documents   tokens   age
        before: 3f0a…        1,000   50,000   2 days
        after: 9c71…         1,200   61,000   1 min
        difference            +200  +11,000

    Args:
        name: What there are two versions of, such as "web". This is the heading of the first
            column.
        old: The counts of the older version.
        new: The counts of the newer version.
        labels: What the two are called, such as the names of two views.
    """
    old_label, new_label = labels
    difference: Row = {name: "difference"}
    for heading, count in new.counts.items():
        difference[heading] = f"{count - old.counts[heading]:+,}"
    difference["age"] = ""
    old_row = _version_row(name, old_label, old)
    new_row = _version_row(name, new_label, new)
    print_rows([old_row, new_row, difference])


def _version_row(name: str, label: str, version: _VersionCounts) -> Row:
    """Return the row of a table for one version: its digest, its counts, and how old it is.

    For example: {"web": "after: 9c71…", "documents": 1200, "tokens": 61000, "age": "1 min"}.

    Args:
        name: The heading of the first column.
        label: Printed before the digest, which names the version: "before", "after" or a name.
        version: The version.
    """
    age = format_age(time.time() - version.made_at)
    return {name: f"{label}: {version.digest}", **version.counts, "age": age}


def _print_files(diff: DatasetDiff, show: int) -> None:
    """Print a table of the source files that differ between two versions, with a sum.

        file                change    documents   tokens   documents ±   tokens ±
        a.jsonl             changed         300   15,000           +10       +500
        b.jsonl             added           190   10,500          +190    +10,500
        all that differ                     490   25,500          +200    +11,000

    Args:
        diff: The differences of two versions of a dataset.
        show: Largest number of files to list. If there are more, these are the ones with the most
            tokens.
    """
    # Choose the files with the most tokens in either version, but list them in document order.
    by_size = sorted(diff.files, key=_largest_first)
    listed_paths = {file.path for file in by_size[:show]}
    rows = [_changed_file_row(file) for file in diff.files if file.path in listed_paths]

    # The last row has the sum over all files that differ, also those that are not listed.
    rows.append(_file_row("all that differ", "", diff.total("before"), diff.total("after")))
    print_rows(rows, text=["change"])

    n_unlisted = len(diff.files) - len(listed_paths)
    if n_unlisted:
        echo(f"… and {format_count(n_unlisted, 'more file')} (--show)")


def _changed_file_row(file: FileDiff) -> Row:
    """Return the row of a table for a source file that differs, with what happened to it in colour.

    For example: {"file": "a.jsonl", "change": "changed" in yellow, "documents": 300, …}.

    Args:
        file: The file, with its documents and tokens in both versions.
    """
    change = StyledText(file.change, _CHANGE_STYLES[file.change])
    return _file_row(file.path, change, file.before, file.after)


def _largest_first(file: FileDiff) -> tuple[int, str]:
    """Return the key by which files are sorted: by tokens, the largest first, then by path.

    For example, (-15000, "a.jsonl") comes before (-200, "b.jsonl").

    Args:
        file: The file. Its tokens are those of the version in which it has more.
    """
    most_tokens = max(file.before.tokens, file.after.tokens)
    return -most_tokens, file.path


def _file_row(
    path: str, change: StyledText | str, before: DocumentCounts, after: DocumentCounts
) -> Row:
    """Return the row of a source file: its counts now, and how much they changed.

    Args:
        path: The file, or a heading for several files together.
        change: What happened to the file.
        before: Its documents and tokens in the older version.
        after: Its documents and tokens in the newer version.

    Returns:
        Heading → number or text; differences have a sign, such as "+1,200".
    """
    return {
        "file": path,
        "change": change,
        "documents": after.documents,
        "tokens": after.tokens,
        "documents ±": f"{after.documents - before.documents:+,}",
        "tokens ±": f"{after.tokens - before.tokens:+,}",
    }


def _outcome_row(outcome: Outcome) -> Row:
    """Return the row of a table that says what becomes of an output after its input has changed.

    For example: {"output": "nanoset pretrain", "state": "to be rebuilt" in yellow, "why": "…", …}.

    Args:
        outcome: The output, what becomes of it and why.
    """
    # A trainer finds its samples by index files. Many of these need not be written again.
    reused_files = ""
    if outcome.index_files is not None:
        reused_files = f"{outcome.kept_files:,} of {outcome.index_files:,}"
    return {
        "output": outcome.output,
        "state": StyledText(outcome.fate, _FATE_STYLES[outcome.fate]),  # with a colour
        "index files reused": reused_files,
        "why": outcome.why,
    }


def _print_documents(label: str, sign: str, changes: DocumentChanges) -> None:
    """Print how many documents a selection (view) gained or lost, and the first of them.

        gained: 200 documents, 11,000 tokens
          + a.jsonl:3 x7
          + a.jsonl:9 x8

    Args:
        label: "gained", "lost", or which of two views has the documents.
        sign: Printed before each document: "+" or "-".
        changes: The number of documents and tokens, and the first documents.
    """
    echo(f"{label}: {changes.documents:,} documents, {changes.tokens:,} tokens")
    for origin in changes.first:
        line = f"  {sign} {origin.file}:{origin.line}"
        if origin.id is not None:
            line += f" {origin.id}"
        echo(line)
