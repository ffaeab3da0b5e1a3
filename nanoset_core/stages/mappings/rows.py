"""Make the rows of the tables that show what a split of a nanoset reads.

A row maps headings to plain values, which the terminal and the UI render.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any

Row = dict[str, Any]
"""Heading of each column → number or text."""
BAR_COLUMNS = 30
"""Length of the bar of a part that is all of train, in characters."""


def member_rows(members: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return a table with a row for each dataset: how much of it a training run reads.

        corpus    weight    samples    epochs    …
        web       70%       700        0.35
        code      30%       300        1.20

    A column is left out if it says nothing: "unused samples" if these are 0 everywhere, or "share"
    if it equals the weight everywhere.

    Args:
        members: What is recorded of each dataset: `{"corpus": "web", "weight": 0.7, …}`.

    Returns:
        For each dataset: heading of a column → text.
    """
    rows = [_member_row(member) for member in members]
    # Heading → the text that says nothing; and heading → heading of the column that it may repeat.
    usual_values = {"read before": "0", "unused samples": "0", "tokens": "", "limit": "none"}
    return _without_uninformative(rows, usual_values, repeated_columns={"share": "weight"})


def _member_row(member: Mapping[str, Any]) -> Row:
    """Return a row of a table: how much of a dataset a training run reads.

    The record of the dataset is turned into texts under other names, the headings of the table:

        record    {"corpus": "web", "samples_given": 1000, "surplus": 5, "epochs": 0.5, …}
        row       {"corpus": "web", "samples": "1,000", "unused samples": "5", "epochs": "0.50", …}

    Args:
        member: The record. Older versions have no `tokens_taken` and no `before`.
    """
    limit = member["max_epochs"]
    unused_tokens = member["tokens_unseen"]  # None if a random choice of samples decides
    return {
        "corpus": member["corpus"],
        "weight": _percent(member["weight"]),
        "share": _percent(member["share"]),
        "samples": f"{member['samples_given']:,}",
        "read before": f"{member.get('before', 0):,}",  # if the run has changed its data
        "unused samples": f"{unused_samples_of(member):,}",
        "tokens": _count(member.get("tokens_taken")),
        "epochs": f"{member['epochs']:.2f}",
        "limit": "none" if limit is None else f"{limit:g}",
        "tokens per epoch": f"{member['tokens']:,}",
        "unused tokens": "by chance" if unused_tokens is None else f"{unused_tokens:,}",
    }


def unused_samples_of(member: Mapping[str, Any]) -> int:
    """Return how many samples of a dataset are built, but not read.

    Args:
        member: What is recorded of the dataset. Its `surplus` is usually this number. It is
            negative if a trainer reads more samples than are built, since it starts the dataset
            again: nanotron does so in valid and test.
    """
    surplus: int = member["surplus"]
    return max(surplus, 0)


def corpus_rows(corpora: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a table with a row for each corpus (a collection of texts): how much of it is read.

    Several datasets may be made from a corpus, such as `web`, and `web_long` with its long
    documents. If both are read, the tokens of long documents are read twice, so they are repeated.

        corpus    read through      tokens    unique tokens    repeated tokens    epochs    …
        web       web, web_long     1,500     1,000            500                1.50

    Args:
        corpora: What is recorded of each corpus: `{"corpus": "web", "tokens": 1500, …}`.

    Returns:
        For each corpus: heading of a column → text. Columns that say nothing are left out, such as
        "padding" if it is 0 everywhere.
    """
    rows = [_corpus_row(corpus) for corpus in corpora]
    repeated_columns = {"read through": "corpus", "most epochs": "epochs"}
    return _without_uninformative(rows, {"padding": "0"}, repeated_columns)


def _corpus_row(corpus: Mapping[str, Any]) -> Row:
    """Return one row of a table of corpora: heading of a column → text.

    Args:
        corpus: What is recorded of the corpus: `{"corpus": "web", "tokens": 1500, …}`.
    """
    return {
        "corpus": corpus["corpus"],
        "read through": ", ".join(corpus["members"]),
        "tokens": f"{corpus['tokens']:,}",
        "unique tokens": f"{corpus['unique_tokens']:,}",
        "repeated tokens": f"{corpus['repeated_tokens']:,}",
        "padding": f"{corpus['padding']:,}",
        "epochs": f"{corpus['epochs']:.2f}",
        "most epochs": f"{corpus['most_epochs']:.2f}",
    }


def corpus_totals(corpora: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Add up the tokens that a training run reads of all corpora of a split.

    For example, `[{"tokens": 1500, "unique_tokens": 1000, …}, {"tokens": 500, "unique_tokens": 500,
    …}]` becomes `{"tokens": 2000, "unique_tokens": 1500, …}`.

    Args:
        corpora: What is recorded of each corpus (the JSON values of `CorpusCoverage`).

    Returns:
        `tokens`, `unique_tokens`, `repeated_tokens` and `padding`, each with the sum over all
        corpora.
    """
    totals: dict[str, Any] = {}
    for name in ("tokens", "unique_tokens", "repeated_tokens", "padding"):
        totals[name] = sum(corpus[name] for corpus in corpora)
    return totals


def corpus_total_row(corpora: Sequence[Mapping[str, Any]]) -> Row:
    """Return the last row of a table of corpora: the sums over all of them.

        corpus    available tokens    tokens read    epochs
        web                  1,000          1,000      1.00
        code                   250            500      2.00
        all                  1,250          1,500      1.20     = 1,500 / 1,250

    Args:
        corpora: What is recorded of each corpus: `{"tokens": 1000, "epochs": 1.0, …}`.

    Returns:
        Heading of a column → sum, or for epochs the average.
    """
    available_tokens = sum(corpus["tokens_available"] for corpus in corpora)
    tokens_read = sum(corpus["epochs"] * corpus["tokens_available"] for corpus in corpora)
    epochs = tokens_read / available_tokens if available_tokens else 0.0
    row: Row = {"corpus": "all", "epochs": f"{epochs:.2f}"}
    for name, total in corpus_totals(corpora).items():
        heading = name.replace("_", " ")  # "unique_tokens" becomes "unique tokens"
        row[heading] = total
    return row


def mixture_rows(parts: Iterable[Mapping[str, Any]]) -> list[Row]:
    """Return a row for each part of a mixture, with a bar as long as its share of train.

    A mixture is a tree of shares: its parts are corpora, and groups of corpora.

        part           share    of train
        web            70%      █████████████████████
        other          30%      █████████
        · books        20%      ██████
        · code         10%      ███

    Args:
        parts: The JSON values of `MixRow`, groups before their members.

    Returns:
        For each part: heading of a column → text.
    """
    return [_mixture_row(part) for part in parts]


def _mixture_row(part: Mapping[str, Any]) -> Row:
    """Return one row of a table: what a part of a mixture gets of the training data.

    A part is a corpus, or a group of further parts, which are indented below it:

        part     requested  share  tokens  epochs by tokens  decided by  of train
        web      70%        70%    1,400   0.90              share       █████████████████████
        other    30%        30%    600     1.05              share       █████████
        · books             15%    300     1.20              tokens      ████

    The epochs are the tokens that are read, divided by those of the corpus. Other tables have
    another number of epochs, which is computed from samples.

    Args:
        part: What is recorded of the part: `{"name": "books", "depth": 1, "asked": None, "given":
            0.15, "tokens": 300, "epochs": 1.2, "decided_by": "tokens"}`. `asked` is the share that
            the user requests; None for books, of which a number of tokens is requested. `given` is
            the share that the part gets.
    """
    requested_share = part["asked"]
    share = part["given"]
    epochs = part["epochs"]
    indent = "· " * part["depth"]
    bar = "█" * round(BAR_COLUMNS * share)
    return {
        "part": f"{indent}{part['name']}",
        "requested": "" if requested_share is None else _percent(requested_share),
        "share": _percent(share),
        "tokens": _count(part["tokens"]),
        "epochs by tokens": "" if epochs is None else f"{epochs:.2f}",
        "decided by": part["decided_by"],
        "of train": bar or "▏",  # a share that is too small for a block
    }


def _percent(share: float) -> str:
    """Return a share from 0 to 1 as a percentage with four digits: 0.123456 gives "12.35%"."""
    return f"{100 * share:.4g}%"


def _count(count: int | None) -> str:
    """Return a count with commas, such as "1,000"; an unknown one, None, becomes an empty text."""
    return "" if count is None else f"{count:,}"


def _without_uninformative(
    rows: Sequence[Row], usual_values: Mapping[str, str], repeated_columns: Mapping[str, str]
) -> list[Row]:
    """Leave out the columns of a table that say nothing about any of its rows.

    For example, no dataset has padding, and the share of each equals its weight:

        corpus    weight    share    padding              corpus    weight
        web       70%       70%      0               →    web       70%
        code      30%       30%      0                    code      30%

    Args:
        rows: The rows, which have the same headings.
        usual_values: Heading → value that says nothing, such as `{"padding": "0"}`. The column is
            left out if all rows have this value.
        repeated_columns: Heading → heading of another column, such as `{"share": "weight"}`. The
            first column is left out if both have the same value in each row.
    """
    left_out: set[str] = set()
    for heading, usual_value in usual_values.items():
        if all(row[heading] == usual_value for row in rows):
            left_out.add(heading)
    for heading, other_heading in repeated_columns.items():
        if all(row[heading] == row[other_heading] for row in rows):
            left_out.add(heading)
    return [_without_columns(row, left_out) for row in rows]


def _without_columns(row: Row, headings: Container[str]) -> Row:
    """Return a row without some of its columns."""
    return {heading: value for heading, value in row.items() if heading not in headings}
