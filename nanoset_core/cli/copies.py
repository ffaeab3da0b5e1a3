"""How `nanoset purge` and `takedown` list copies of documents that have other ids.

A user names documents by their ids, for example to erase them. The same text may be in the corpora
a second time, under another id. These copies are not erased, so the commands list them: each with
its place in the raw text and the id of the document that it equals.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from nanoset_core.cli.echo import echo
from nanoset_core.cli.terminal import Row, print_rows
from nanoset_core.records.text import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.copies import Copy
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
        project: The project, whose tokenized corpora are searched.
        ids: Ids of the named documents.
        corpora: The ids name documents of these corpora only; by default of all.
        fate: What is not done to the copies unless they are named, such as `not erased`.
        ignored_ids: Ids of documents that are no copies to report.
    """
    from nanoset_core.lineage.copies import find_copies

    copies, reason_by_corpus = find_copies(project, ids, corpora, ignored_ids=ignored_ids)
    if copies:
        echo(_copies_left_alone(copies, fate), fg="yellow")
    print_rows([_row_of_copy(project, copy) for copy in copies[:MAX_SHOWN]])
    if len(copies) > MAX_SHOWN:
        echo(f"… and {len(copies) - MAX_SHOWN:,} more copies")
    # A corpus that cannot be read may have more copies: the user has to know.
    for corpus, reason in reason_by_corpus.items():
        echo(f"the corpus {corpus} was not searched for copies: {reason}", fg="yellow")


def _copies_left_alone(copies: Sequence[Copy], fate: str) -> str:
    """Return the sentence that the command leaves copies alone.

    An example is "1 other document, 80 tokens, with the same tokens is not erased unless you name
    its id, too:".

    Args:
        copies: The copies, at least one.
        fate: What is not done to them, such as `not erased`.
    """
    n_copies = format_count(len(copies), "other document")
    n_tokens = format_count(sum(copy.tokens for copy in copies), "token")
    rest = f"are {fate} unless you name their ids, too:"
    if len(copies) == 1:
        rest = f"is {fate} unless you name its id, too:"
    return f"{n_copies}, {n_tokens}, with the same tokens {rest}"


def _row_of_copy(project: Project, copy: Copy) -> Row:
    """Return the row of a table for a copy: its id, where it is, and what it is a copy of."""
    folder = project.config.corpus_folder(copy.corpus)
    return {
        "copy": "(no id)" if copy.id is None else copy.id,
        "raw text": str(folder / f"{copy.file}:{copy.line}"),
        "tokens": f"{copy.tokens:,}",
        "of": copy.of,
    }
