"""The table of matches: which documents contain which evaluation texts, and a summary of it.

A row says, for example, that line 12 of web/a.jsonl contains 87 % of the text in line 3 of
evals/quiz.jsonl, and quotes the first words of the passage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.contamination.evaluation import TEXTS_FILE
from nanoset_core.stages.contamination.search import Match
from nanoset_core.stages.sharded import PLACE, Sharded, write_rows

MATCHES = "matches.parquet"
BOILERPLATE_DOCUMENTS = 100
"""An evaluation text counts as boilerplate if this many documents, or more, contain it."""
_N_FIRST_MATCHES = 8
"""Number of matches that are stored in the facts of a manifest, as examples."""
_SUMMARY_FACT = "boilerplate"
"""Fact of a manifest that stores the fields of its `MatchSummary`.

It is missing in outputs of earlier versions, and in outputs with fewer than BOILERPLATE_DOCUMENTS
matches, which cannot have boilerplate.
"""
_MATCH_COLUMNS = (
    ("evaluation_file", "string"),
    ("evaluation_line", "int64"),
    ("share", "float64"),
    ("words", "string"),
)
"""Columns of the table, in addition to where the document comes from, and their types."""


def match_rows(
    project: Project, sharded: Sharded, evaluation: Manifest, matches: Sequence[Match]
) -> list[dict[str, Any]]:
    """Return a table that says which line of the raw text contains which evaluation text.

    For example, the following row says that line 12 of a.jsonl has 87 % of the letters of the text
    in line 3 of quiz.jsonl, and quotes the first words:

        {"document": 11, "file": "a.jsonl", "line": 12, "evaluation_file": "quiz.jsonl",
         "evaluation_line": 3, "share": 0.87, "words": "how tired are …"}

    Args:
        project: The project.
        sharded: The tokenized documents of a corpus, with their origins.
        evaluation: The evaluation texts, with their origins.
        matches: Which document contains which text, both by number; sorted by document.

    Returns:
        The rows, in the order of the matches.
    """
    import pyarrow.parquet as pq

    if not matches:  # without this, all tables of documents would be opened for nothing
        return []
    texts = pq.read_table(evaluation.path(TEXTS_FILE))
    text_files = texts.column("file")  # by number of the text
    text_lines = texts.column("line")

    places = sharded.places(project, [match.document for match in matches])
    rows = []
    for match, place in zip(matches, places, strict=True):
        row = {
            **place,  # document, raw file and line
            "evaluation_file": text_files[match.text].as_py(),
            "evaluation_line": text_lines[match.text].as_py(),
            "share": match.share,
            "words": match.words,
        }
        rows.append(row)
    return rows


def write_matches(folder: Path, rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Write a table of which documents contain which evaluation texts, and return counts of it.

    For example, three rows about two documents give `{"contaminated": 2, "matches": 3, "first":
    […]}`. These counts are recorded with the result, so that the table need not be read again.

    Args:
        folder: The folder of the new output.
        rows: The rows of the table, by document. Each is a document and an evaluation text in it.

    Returns:
        The number of documents, the number of rows, the first 8 rows, and if there are many rows, a
        `MatchSummary`.
    """
    # The columns say where the document comes from (PLACE), and which text it contains.
    write_rows(folder / MATCHES, rows, columns=(*PLACE, *_MATCH_COLUMNS))
    facts: dict[str, Any] = {
        "contaminated": len(_documents_of(rows)),
        "matches": len(rows),
        "first": [_with_rounded_share(row) for row in rows[:_N_FIRST_MATCHES]],
    }

    # A text that 100 documents or more contain is probably no leaked question but boilerplate, such
    # as a licence. Count these separately, if there are so many matches at all.
    if _may_have_boilerplate(n_matches=len(rows)):
        facts[_SUMMARY_FACT] = summarize(rows)._asdict()
    return facts


def _may_have_boilerplate(n_matches: int) -> bool:
    """Return whether some text may be boilerplate: a text in very many documents.

    A match is a document and a text in it. So there must be at least BOILERPLATE_DOCUMENTS (100)
    matches: one for each document with the text.
    """
    return n_matches >= BOILERPLATE_DOCUMENTS


def _documents_of(rows: Iterable[Mapping[str, Any]]) -> set[int]:
    """Return the documents in some rows of the table of matches."""
    return {row["document"] for row in rows}


def documents_in_matches(manifest: Manifest) -> NDArray[np.int64]:
    """Return the documents of a corpus in which an evaluation text was found, to leave them out.

    Args:
        manifest: The result of a search. It has a table with a row for each document and text.

    Returns:
        Numbers of documents in the dataset that was searched, such as [3, 17]: int64, ascending,
        each once.
    """
    import pyarrow.parquet as pq

    table = pq.read_table(manifest.path(MATCHES), columns=["document"])
    documents = table.column("document").to_numpy()
    return np.unique(documents.astype(np.int64))


class MatchSummary(NamedTuple):
    """What was found in a corpus, with boilerplate counted separately.

    An evaluation text that very many documents contain is rarely a question that leaked. Mostly it
    is boilerplate that evaluations and documents share, such as an instruction or a licence.
    """

    contaminated: int
    """Number of documents with an evaluation text that is not boilerplate."""
    first: Mapping[str, Any] | None
    """The first match of a text that is not boilerplate, a row of the table of matches."""
    boilerplate_texts: int
    """Number of texts that are boilerplate: at least BOILERPLATE_DOCUMENTS documents have them."""
    boilerplate_documents: int
    """Number of documents whose matches are all boilerplate."""
    most_common: Mapping[str, Any] | None
    """The first match of the most common text, if this text is boilerplate."""
    most_common_documents: int
    """Number of documents with the most common text; 0 if it is not boilerplate."""

    @property
    def example(self) -> Mapping[str, Any] | None:
        """A match to quote, or None without matches. It is boilerplate if there is nothing else."""
        return self.most_common if self.first is None else self.first


def summarize(rows: Sequence[Mapping[str, Any]]) -> MatchSummary:
    """Count the documents that contain evaluation texts, and those with boilerplate separately.

    A text that BOILERPLATE_DOCUMENTS (100) documents or more contain is probably no leaked question
    but boilerplate, such as a licence. For example, 300 documents contain the same licence, and 2
    documents a question:

        contaminated             2      documents with a text that is not boilerplate
        boilerplate_texts        1      the licence
        boilerplate_documents    300    documents with nothing but boilerplate

    Args:
        rows: The rows of a table, each with one document and one text that it contains.
    """
    boilerplate = _count_boilerplate(rows)  # {licence: 300}

    # Take the most common text as an example.
    rows_of_most_common = []
    if boilerplate:
        most_common_text = max(boilerplate, key=boilerplate.__getitem__)  # the first, of equals
        rows_of_most_common = [row for row in rows if _text_of(row) == most_common_text]

    # A document is contaminated if it contains a text that is not boilerplate, such as a question.
    other_rows = [row for row in rows if _text_of(row) not in boilerplate]
    contaminated_documents = _documents_of(other_rows)  # 2 documents
    documents_with_boilerplate_only = _documents_of(rows) - contaminated_documents  # 300

    return MatchSummary(
        contaminated=len(contaminated_documents),
        first=_first_match(other_rows),
        boilerplate_texts=len(boilerplate),
        boilerplate_documents=len(documents_with_boilerplate_only),
        most_common=_first_match(rows_of_most_common),
        most_common_documents=len(rows_of_most_common),
    )


def _count_boilerplate(rows: Sequence[Mapping[str, Any]]) -> dict[tuple[str, int], int]:
    """Return the evaluation texts that very many documents contain: 100 or more.

    These are boilerplate, such as a licence. A rare question would not be in so many documents.

    Args:
        rows: Rows with a document and a text that it contains, each pair once.

    Returns:
        File and line of the text → documents, such as `{("quiz.jsonl", 3): 300}`.
    """
    n_documents_by_text = Counter(_text_of(row) for row in rows)
    boilerplate = {}
    for text, n_documents in n_documents_by_text.items():
        if n_documents >= BOILERPLATE_DOCUMENTS:
            boilerplate[text] = n_documents
    return boilerplate


def _first_match(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """Return the first of some matches as an example for people to read, or None."""
    return _with_rounded_share(rows[0]) if rows else None


def summary_of(manifest: Manifest) -> MatchSummary:
    """Return the summary of a search for evaluation texts: how many documents contain some.

    The summary also counts boilerplate: texts, such as licences, that very many documents contain.
    There are three cases:

        the summary was stored with the result      return it
        it was not, although there are many rows    compute it from the table of matches
        there are few rows                          nothing is boilerplate: the counts are enough

    Args:
        manifest: What is recorded about the result.
    """
    facts = manifest.facts
    stored_summary = facts.get(_SUMMARY_FACT)
    if stored_summary is not None:
        return MatchSummary(**stored_summary)

    # There are enough matches, but no summary: an earlier version of this program made the output,
    # which never stored one. Compute it from the table.
    if _may_have_boilerplate(n_matches=facts["matches"]):
        return _summary_of_table(manifest.path(MATCHES))

    # There are few matches, so no text is boilerplate. Then these counts are the summary.
    return MatchSummary(
        contaminated=facts["contaminated"],
        first=next(iter(facts["first"]), None),
        boilerplate_texts=0,
        boilerplate_documents=0,
        most_common=None,
        most_common_documents=0,
    )


def _summary_of_table(path: Path) -> MatchSummary:
    """Return the summary of a stored table of matches."""
    import pyarrow.parquet as pq

    return summarize(pq.read_table(path).to_pylist())


def _text_of(row: Mapping[str, Any]) -> tuple[str, int]:
    """Return the file and the line of the evaluation text of a match."""
    return row["evaluation_file"], row["evaluation_line"]


def _with_rounded_share(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a match with its share rounded to four digits, for people to read."""
    return {**row, "share": round(row["share"], 4)}
