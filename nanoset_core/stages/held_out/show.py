"""What people are shown of leaked documents: how many there are, and the first one.

A leaked document is held out for valid or test, and train reads it or a copy of it. For example: "5
of 200 documents that are held out are in train: web/a.jsonl:12 (valid): train reads it".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.stages.held_out.names import (
    FURTHER_COPIES,
    MAX_LISTED,
    SHARED,
    TRAIN_COPIES,
)
from nanoset_core.stages.stage import Summary, counted


class HeldOutFinding(NamedTuple):
    """Leaked documents in words: how many there are, and the first one as an example."""

    how_many: str
    """Such as "5 of 200 documents that are held out are in train, 2 of them as a copy"."""
    example_line: str
    """Where the example comes from, such as "web/a.jsonl:12 (valid)"."""
    example_in_train: str
    """What train reads of the example, such as "train reads it"; otherwise, a copy of it."""


def held_out_finding(facts: Mapping[str, Any]) -> HeldOutFinding | None:
    """Describe the leaked documents, for messages: those of valid and test that train reads.

    For example:

        how_many            5 of 200 documents that are held out are in train, 2 of them as a copy
        example_line        web/a.jsonl:12 (valid)
        example_in_train    train reads it

    Args:
        facts: What a comparison of the splits has found. Its `first` lists the first documents.

    Returns:
        The description, with the first document as an example; None if no document is leaked.
    """
    leaked_documents = facts["first"]
    if not leaked_documents:
        return None
    example = leaked_documents[0]
    return HeldOutFinding(
        how_many=_how_many(facts),
        example_line=_where_held_out(example),
        example_in_train=_relation_to_train(example),
    )


def _how_many(facts: Mapping[str, Any]) -> str:
    """Return how many held-out documents training reads, and how many of them as a copy.

    Args:
        facts: What a comparison of the splits has found, such as `{"held_out": 200, "shared": 3,
            "copies": 2, …}`.

    Returns:
        For these, "5 of 200 documents that are held out are in train, 2 of them as a copy".
    """
    n_copies = facts["copies"]
    n_in_train = facts["shared"] + n_copies
    text = f"{n_in_train:,} of {facts['held_out']:,} documents that are held out are in train"
    if n_copies:
        text += f", {n_copies:,} of them as a copy"
    return text


def _line_of(row: Mapping[str, Any], prefix: str = "") -> str:
    """Return the file and line of one of the two documents in a row, such as "web/a.jsonl:12".

    Args:
        row: A held-out document, and one of train with the same tokens.
        prefix: What the names of the document's columns begin with: "" or "train_".
    """
    return f"{row[f'{prefix}corpus']}/{row[f'{prefix}file']}:{row[f'{prefix}line']}"


def _where_held_out(row: Mapping[str, Any]) -> str:
    """Return the line, split and id of a held-out document, such as "web/a.jsonl:12 (valid)".

    Args:
        row: The document, as the list of held-out documents in train describes it.
    """
    if row["id"] is None:
        return f"{_line_of(row)} ({row['split']})"
    return f"{_line_of(row)} ({row['split']}, id {row['id']!r})"


def _relation_to_train(row: Mapping[str, Any]) -> str:
    """Return whether train reads a held-out document itself or a copy, as a clause.

    Args:
        row: The document, as the list of held-out documents in train describes it.
    """
    train_line = _line_of(row, prefix="train_")
    if train_line == _line_of(row):
        return "train reads it"
    return f"its tokens are those of {train_line}, which train reads"


def held_out_summary(manifest: Manifest) -> Summary:
    """Return what commands show of a search for held-out documents in train.

    If copies were searched as well, it also shows how much of train are copies of other documents
    of train:

        copies in train    3
        copied tokens      1,204

    Args:
        manifest: What is recorded about the search.
    """
    figures = counted(manifest)
    details: dict[str, str] = {}
    if TRAIN_COPIES in manifest.facts:
        counts = total_train_copies(manifest.facts)
        figures["copied_documents"] = counts.documents
        figures["copied_tokens"] = counts.tokens
        details["copies in train"] = f"{counts.documents:,}"
        details["copied tokens"] = f"{counts.tokens:,}"
    return Summary(figures, details, warnings=_warnings(manifest))


def _warnings(manifest: Manifest) -> list[str]:
    """Return a warning if train reads held-out documents, with the first one as an example.

    Args:
        manifest: Manifest of the comparison of a nanoset's splits.
    """
    finding = held_out_finding(manifest.facts)
    if finding is None:
        return []
    example = f"{finding.example_line}: {finding.example_in_train}"
    return [f"{finding.how_many}: {example}; see {manifest.url(SHARED)}"]


def removal_text(facts: Mapping[str, Any], list_url: str) -> str:
    """Say how to remove leaked documents, as the remedy that a report shows.

    Leaked documents are those of valid or test that train reads, too, or a copy of them. They are
    in a table, which has a row for each pair of a document of valid or test and one of train:

        id      train_id
        d12     d12         train reads the same document ("shared")
        d30     d93         train reads another one with the same text ("copies")
        d30     d95         and a second one ("further_copies")

    No such pair is left if either train does without the ids in `train_id`, or valid and test do
    without those in `id`. The text says this, and warns if the table is not complete.

    Args:
        facts: How many rows of each kind there are: `{"shared": 1, "copies": 1, "further_copies":
            1, …}`.
        list_url: Address of the table.
    """
    text = (
        f"exclude the ids in train_id of {list_url} from train, by a view, "
        "or those in id from valid and test"
    )
    missing_rows = _missing_rows(facts)
    return text if missing_rows is None else f"{text}; {missing_rows}"


def _missing_rows(facts: Mapping[str, Any]) -> str | None:
    """Say which rows a table of leaked documents lacks; None if it is complete.

    Args:
        facts: How many rows of each kind there are; see `removal_text`.
    """
    # Older versions of this package listed only the first copy in train of each document. They did
    # not count the others, so there may be any number of them.
    lists_all_copies = FURTHER_COPIES in facts
    if facts["copies"] and not lists_all_copies:
        return "train_id names only one copy of each"

    # The table is cut after 10,000 rows.
    n_rows = facts["shared"] + facts["copies"] + facts.get(FURTHER_COPIES, 0)
    if n_rows > MAX_LISTED:
        return f"the list has only the first {MAX_LISTED:,} of {n_rows:,} rows"
    return None


class CopiedText(NamedTuple):
    """Documents of train that are copies of other documents of train."""

    documents: int
    """How many documents."""
    tokens: int
    """How many tokens they have together."""


def total_train_copies(facts: Mapping[str, Any]) -> CopiedText:
    """Return how many documents of train are copies of others, for all corpora together.

    Args:
        facts: What a comparison has found that searched for copies. It has the counts of each
            corpus, such as `[{"corpus": "web", "documents": 3, "tokens": 900}, …]`.
    """
    rows = facts[TRAIN_COPIES]
    return CopiedText(
        documents=sum(row["documents"] for row in rows),
        tokens=sum(row["tokens"] for row in rows),
    )
