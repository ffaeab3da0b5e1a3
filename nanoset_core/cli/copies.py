"""How `nanoset purge` and `takedown` name copies of documents under other ids."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from nanoset_core.cli.echo import echo
from nanoset_core.cli.terminal import print_rows
from nanoset_core.records.text import format_count

if TYPE_CHECKING:
    from nanoset_core.project.project import Project

MAX_SHOWN = 50
"""Copies that are listed."""


def print_copies(
    project: Project,
    ids: Sequence[str],
    corpora: Collection[str] = (),
    *,
    fate: str,
    ignored_ids: Sequence[str] = (),
) -> None:
    """Print the documents that have the same tokens as some named ones, but are not named.

    Args:
        project: The project.
        ids: Ids of the named documents.
        corpora: The corpora whose documents are named; default: all.
        fate: What is not done to the copies unless they are named, such as `not erased`.
        ignored_ids: Ids of documents that are no copies to report.
    """
    from nanoset_core.lineage.copies import find_copies

    copies, not_searched = find_copies(project, ids, corpora, ignored_ids=ignored_ids)
    if copies:
        verb = "is" if len(copies) == 1 else "are"
        tokens = sum(copy.tokens for copy in copies)
        echo(
            f"{format_count(len(copies), 'other document')}, {format_count(tokens, 'token')}, with the same tokens "
            f"{verb} {fate} unless you name {'its id' if len(copies) == 1 else 'their ids'}, too:",
            fg="yellow",
        )
    rows = []
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
        echo(f"… and {len(copies) - MAX_SHOWN:,} copies more")
    for corpus, reason in not_searched.items():
        echo(f"copies in the corpus {corpus} were not looked for: {reason}", fg="yellow")
