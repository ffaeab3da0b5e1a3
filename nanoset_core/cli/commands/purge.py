"""`nanoset purge`: erase documents from all outputs.

The user names documents by their ids, for example because their author demands it. The command
lists the documents and the versions of outputs that contain them. With `--yes`, it erases them and
rebuilds the outputs that nanoset.yaml requests.
"""

from __future__ import annotations

import datetime
import sys
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from nanoset_core.cli.copies import print_copies
from nanoset_core.cli.echo import echo
from nanoset_core.cli.options import (
    CONFIG_OPTION,
    IDS_FILE_OPTION,
    build_of,
    flag,
    option,
    requested_ids,
)
from nanoset_core.cli.terminal import Row, print_rows
from nanoset_core.errors import NanosetError
from nanoset_core.wording import format_bytes, format_count

if TYPE_CHECKING:
    from nanoset_core.project.project import Project
    from nanoset_core.project.purge.plan import PurgePlan

_MAX_SHOWN = 50
"""Largest number of documents, of versions and of ids that are listed."""


@click.command("purge", short_help="Erase documents from all outputs.")
@click.argument("ids", nargs=-1)
@CONFIG_OPTION
@IDS_FILE_OPTION
@option(
    "--corpus corpora", "Only documents of this corpus; may be given several times.", multiple=True
)
@flag("--yes", "Erase what is listed; without this, nothing is changed.")
@click.pass_context
def command(
    context: click.Context,
    ids: tuple[str, ...],
    config: Path,
    ids_file: Sequence[str],
    corpora: tuple[str, ...],
    yes: bool,
) -> None:
    """Erase the documents with these IDS from all outputs.

    Without --yes, the command changes nothing, and lists what it would erase.

    With --yes, `nanoset purge` removes the documents from shards, datasets and tables. It deletes
    all versions of other outputs that were made from the documents, such as nanosets, and
    rebuilds those that nanoset.yaml requests. No text is tokenized again.

    Your raw text is not modified. The command lists the lines that contain the documents, and later
    builds skip these lines. A receipt says what was erased, and which versions replace it.

    It is no error if no document has one of the IDS, for example because it was erased before. The
    command then says so, and its exit code is 0.
    """
    from nanoset_core.project.project import Project
    from nanoset_core.project.purge.apply import purge
    from nanoset_core.project.purge.plan import plan_purge
    from nanoset_core.project.purge.receipt import is_unfinished

    all_ids = requested_ids(context, ids, ids_file)
    project = Project.open(config)
    if not all_ids:
        return

    # Find what would be erased. Without any documents, there may still be a purge to resume.
    plan = plan_purge(project, all_ids, corpora)
    is_resumed = is_unfinished(project, all_ids, corpora)
    if not plan.documents and not is_resumed:
        echo("no output holds a document with one of these ids")
        _print_erased(project, all_ids)
        return

    if is_resumed:
        echo("an earlier purge of these ids was interrupted: this one finishes it")
    _print_plan(project, plan)
    print_copies(project, all_ids, corpora, fate="not erased")
    if not yes:
        echo("nothing was erased yet: add --yes to erase it")
        return
    build = _PurgeBuild(build_of(context, config))
    path = purge(project, plan, build, datetime.date.today().isoformat())
    echo(f"erased; the receipt: {project.outputs.access.url(path)}")
    if build.has_failed:
        echo(
            "everything was erased, but the build has failed: for the outputs named above, "
            "run `nanoset build` when this is corrected",
            fg="red",
            err=True,
        )
        sys.exit(1)


class _PurgeBuild:
    """The build of a purge, which may fail to make some outputs.

    A build makes as much as it can, and then ends the process with exit code 1 if something failed.
    The purge has to continue: it erases the old versions if all of them were replaced or are no
    longer requested, and otherwise says which were not.
    """

    def __init__(self, build: Callable[[], None]) -> None:
        """Prepare the build.

        Args:
            build: Runs `nanoset build`.
        """
        self._build = build
        self.has_failed = False
        """Whether the build has failed to make an output."""

    def __call__(self) -> None:
        """Run the build.

        Raises:
            NanosetError: The build stopped. Before, this prints that nothing is erased.
        """
        try:
            self._build()
        except SystemExit as end:
            if end.code != 1:
                raise
            self.has_failed = True
        except NanosetError:
            echo(
                "no version was erased, since the build stopped: correct the error below, "
                "and run the same purge again",
                fg="red",
                err=True,
            )
            raise


def _print_plan(project: Project, plan: PurgePlan) -> None:
    """Print what `nanoset purge` would erase: documents, and the outputs that contain their text.

    Args:
        project: The project, which knows where its raw text is.
        plan: The documents, and the versions of outputs that were made from them.
    """
    _print_documents(project, plan)
    _print_versions(plan)
    _print_unknown_ids(plan)
    _print_totals(plan)


def _print_erased(project: Project, ids: Sequence[str]) -> None:
    """Print which documents an earlier purge has erased, so that no output contains them any more.

    Otherwise a user who repeats a purge would only read that no such document exists.

    Args:
        project: The project, which records what was erased.
        ids: Ids of documents, such as ["x7"].
    """
    from nanoset_core.outputs.erasures import erasure_of_id
    from nanoset_core.stages.shards.purged import id_digest

    for identity in ids[:_MAX_SHOWN]:
        # Records have digests of ids, so that they do not name erased documents.
        erasure = erasure_of_id(project.outputs.access, id_digest(identity))
        if erasure is not None:
            echo(f"{identity}: {erasure}")
    # Each look-up reads the receipts of all purges, so it is done for some ids only.
    n_not_searched = len(ids) - _MAX_SHOWN
    if n_not_searched > 0:
        echo(f"the receipts were not searched for {format_count(n_not_searched, 'more id')}")


def _print_documents(project: Project, plan: PurgePlan) -> None:
    """Print a table of the documents that would be erased, with their lines in the raw text.

        document   raw text                   tokens
        x7         /data/raw/web/a.jsonl:3        64
        … and 12 more documents

    Args:
        project: The project, which knows where its raw text is.
        plan: What the purge would erase.
    """
    rows = list(islice(_document_rows(project, plan), _MAX_SHOWN))
    print_rows(rows)
    n_unlisted = _document_count(plan) - len(rows)
    if n_unlisted:
        echo(f"… and {format_count(n_unlisted, 'more document')}")


def _document_rows(project: Project, plan: PurgePlan) -> Iterator[Row]:
    """Yield a row of a table for each document that would be erased.

    For example: {"document": "x7", "raw text": "/data/raw/web/a.jsonl:3", "tokens": "64"}.

    Args:
        project: The project, which knows the folder of each corpus (a collection of texts).
        plan: What the purge would erase. Here only the current version of each corpus is of
            interest.
    """
    for corpus, documents in plan.current.items():
        folder = project.config.corpus_folder(corpus)
        for document in documents:
            yield {
                "document": document.id,
                "raw text": str(folder / f"{document.file}:{document.line}"),
                "tokens": f"{document.tokens:,}",
            }


def _print_versions(plan: PurgePlan) -> None:
    """Print a table of the versions of outputs that contain the documents.

        version                  size
        datasets/web/3f0a…     1.2 GB
        … and 173 more versions

    Args:
        plan: What the purge would erase.
    """
    rows: list[Row] = []
    for version in plan.versions[:_MAX_SHOWN]:
        rows.append({"version": version.path, "size": format_bytes(version.size)})
    print_rows(rows)
    n_unlisted = len(plan.versions) - len(rows)
    if n_unlisted:
        echo(f"… and {format_count(n_unlisted, 'more version')}")


def _print_unknown_ids(plan: PurgePlan) -> None:
    """Print how many of the ids that the user gave belong to no document.

    For example: "no output holds a document with 2 of these ids, such as 'x9'". The user may have
    mistyped them.

    Args:
        plan: What the purge would erase, with all ids of the user.
    """
    known_ids: set[str | None] = set()  # a document need not have an id
    for documents in plan.documents.values():
        known_ids.update(document.id for document in documents)
    unknown_ids = [identity for identity in plan.ids if identity not in known_ids]
    if unknown_ids:
        count = f"{len(unknown_ids):,}"
        echo(f"no output holds a document with {count} of these ids, such as {unknown_ids[0]!r}")


def _print_totals(plan: PurgePlan) -> None:
    """Print how many documents and versions of outputs would be erased, and their size.

    For example: "2 documents; 3 versions of outputs that were made from them, 1.2 GB". Documents
    may also be in old versions only, for example after a purge that was interrupted: "0 documents
    in current outputs, 2 only in old versions; …".

    Args:
        plan: What the purge would erase.
    """
    documents = format_count(_document_count(plan), "document")
    n_old_documents = _old_document_count(plan)
    if n_old_documents:
        documents += f" in current outputs, {n_old_documents:,} only in old versions"
    versions = format_count(len(plan.versions), "version")
    size = format_bytes(sum(version.size for version in plan.versions))
    echo(f"{documents}; {versions} of outputs that were made from them, {size}")


def _document_count(plan: PurgePlan) -> int:
    """Return how many documents would be erased from the current versions of all corpora.

    Args:
        plan: What the purge would erase, such as 2 documents of "web" and 1 of "code": 3.
    """
    return sum(len(documents) for documents in plan.current.values())


def _old_document_count(plan: PurgePlan) -> int:
    """Return how many documents would be erased that no current version contains any more.

    Several old shards (tokenized pieces of a corpus) may have the same document, which counts once.

    Args:
        plan: What the purge would erase.
    """
    old_documents: set[tuple[str, str]] = set()
    for shard, documents in plan.documents.items():
        old_documents.update((shard.corpus, document.id) for document in documents)
    for corpus, current_documents in plan.current.items():
        old_documents.difference_update((corpus, document.id) for document in current_documents)
    return len(old_documents)
