"""How `nanoset purge` and `takedown` list copies of documents that have other ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from nanoset_core.cli.echo import echo
from nanoset_core.cli.terminal import Row, print_rows
from nanoset_core.records.text import format_count

if TYPE_CHECKING:
    from nanoset_core.project.project import Project

MAX_SHOWN = 50
"""Largest number of copies that are listed."""


def print_copies(
    project: Project,
    ids: Sequence[str],
    corpora: Collection[str] = (),
    *,
    fate: str,
    ignored_ids: Sequence[str] = (),
) -> None:
    """Print the documents that have the same tokens as some that the user named, but other ids.

    Args:
        project: The project.
        ids: Ids of the named documents.
        corpora: The ids name documents of these corpora only; by default of all.
        fate: What is not done to the copies unless they are named, such as `not erased`.
        ignored_ids: Ids of documents that are no copies to report.
    """
    from nanoset_core.lineage.copies import find_copies

    # Say how many copies there are, and that the command leaves them alone.
    copies, not_searched = find_copies(project, ids, corpora, ignored_ids=ignored_ids)
    if copies:
        n_copies = format_count(len(copies), "other document")
        n_tokens = format_count(sum(copy.tokens for copy in copies), "token")
        rest = f"are {fate} unless you name their ids, too:"
        if len(copies) == 1:
            rest = f"is {fate} unless you name its id, too:"
        echo(f"{n_copies}, {n_tokens}, with the same tokens {rest}", fg="yellow")

    # List them.
    rows: list[Row] = []
    for copy in copies[:MAX_SHOWN]:
        folder = project.config.corpus_folder(copy.corpus)
        rows.append(
            {
                "copy": "(no id)" if copy.id is None else copy.id,
                "raw text": str(folder / f"{copy.file}:{copy.line}"),
                "tokens": f"{copy.tokens:,}",
                "of": copy.of,
            }
        )
    print_rows(rows)
    if len(copies) > MAX_SHOWN:
        echo(f"… and {len(copies) - MAX_SHOWN:,} more copies")
    # A corpus that cannot be read may have more copies: the user has to know.
    for corpus, reason in not_searched.items():
        echo(f"the corpus {corpus} was not searched for copies: {reason}", fg="yellow")
