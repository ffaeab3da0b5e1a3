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
from nanoset_core.wording import format_count

if TYPE_CHECKING:
    from nanoset_core.lineage.duplicates import Copy
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
    """Warn of other documents with the same text as those that the user wants to erase.

    Texts of the web often occur several times. A user who has to erase a text names the id under
    which it was found. The same text may be in the data a second time, under another id. That one
    is not erased, so the command lists it, and the user can name it as well:

        1 other document, 80 tokens, with the same tokens is not erased unless you name its id, too:
        copy   raw text                 tokens   of
        x9     /data/raw/code/b.jsonl:3     80   x7

    Args:
        project: The project, whose tokenized texts are searched.
        ids: Ids of the documents that the user named.
        corpora: The user named documents of these corpora (collections of texts) only; empty for
            all.
        fate: What does not happen to the copies unless they are named, such as "not erased".
        ignored_ids: Ids of copies that need not be listed.
    """
    from nanoset_core.lineage.duplicates import find_copies

    copies, reason_by_corpus = find_copies(project, ids, corpora, ignored_ids=ignored_ids)
    if copies:
        echo(_copies_left_alone(copies, fate), fg="yellow")
    print_rows([_row_of_copy(project, copy) for copy in copies[:MAX_SHOWN]])  # the first 50
    if len(copies) > MAX_SHOWN:
        echo(f"… and {len(copies) - MAX_SHOWN:,} more copies")
    # A corpus that cannot be read may have more copies: the user has to know.
    for corpus, reason in reason_by_corpus.items():
        echo(f"the corpus {corpus} was not searched for copies: {reason}", fg="yellow")


def _copies_left_alone(copies: Sequence[Copy], fate: str) -> str:
    """Say that copies of a document stay as they are, since the user has not named them.

    For example: "1 other document, 80 tokens, with the same tokens is not erased unless you name
    its id, too:". A table of the copies follows.

    Args:
        copies: The copies, at least one. Each has other ids, but the same tokens as a named
            document.
        fate: What does not happen to them, such as "not erased".
    """
    n_copies = format_count(len(copies), "other document")
    n_tokens = format_count(sum(copy.tokens for copy in copies), "token")
    rest = f"are {fate} unless you name their ids, too:"
    if len(copies) == 1:
        rest = f"is {fate} unless you name its id, too:"
    return f"{n_copies}, {n_tokens}, with the same tokens {rest}"


def _row_of_copy(project: Project, copy: Copy) -> Row:
    """Return the row of a table for a document that has the same text as another one.

    For example, x9 is a copy of x7, the document that the user named:

        {"copy": "x9", "raw text": "/data/raw/code/b.jsonl:3", "tokens": "80", "of": "x7"}

    Args:
        project: The project, which knows the folder of each corpus (a collection of texts).
        copy: The copy. Its id is None if its line of the raw text has none.
    """
    folder = project.config.corpus_folder(copy.corpus)
    return {
        "copy": "(no id)" if copy.id is None else copy.id,
        "raw text": str(folder / f"{copy.file}:{copy.line}"),
        "tokens": f"{copy.tokens:,}",
        "of": copy.of,
    }
