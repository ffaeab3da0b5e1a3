"""What `nanoset map` prints of the splits of nanosets: tables and warnings, or JSON.

A nanoset is a weighted blend of datasets, which is divided into train, valid and test. For each of
these splits, a table lists how many samples and tokens are taken of each dataset. There is a
warning if a split gets no sample, or reads a text more than eight times.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nanoset_core.cli.echo import echo
from nanoset_core.cli.terminal import Row, print_json, print_rows
from nanoset_core.sampling.splits import SplitName
from nanoset_core.stages.mappings.rows import (
    corpus_rows,
    corpus_total_row,
    corpus_totals,
    member_rows,
    mixture_rows,
    unused_samples_of,
)

if TYPE_CHECKING:
    from nanoset_core.sampling.corpora import CorpusCoverage
    from nanoset_core.sampling.epoch_limits import ExceededLimit

MANY_EPOCHS = 8
"""There is a warning if a text is read more often than this."""


_READS_HEADINGS = ("not read", "once", "twice", "3 times", "4 times", "more often")
"""Columns of the table that says how often tokens are read: 0, 1, 2, 3, 4, or more times."""


@dataclass(frozen=True, slots=True)
class ShownSplit:
    """The plan of a split, as plain values."""

    nanoset: str
    """Name of the nanoset; `data` without a project."""
    split: SplitName
    members: list[dict[str, Any]]
    """What the split takes of each dataset: `corpus`, and the JSON values of `MemberCoverage`."""
    corpora: list[dict[str, Any]]
    """What the split reads of each corpus, as `with_reads` returns it."""
    mixture: list[dict[str, Any]]
    """The fields of each `MixRow`; empty without a mixture."""

    @property
    def title(self) -> str:
        """Name of the nanoset and of the split."""
        return f"{self.nanoset} {self.split}"

    @property
    def samples(self) -> int:
        """Number of samples that the split reads, of all datasets together."""
        return sum(member["samples_given"] for member in self.members)

    def to_json(self) -> dict[str, Any]:
        """Return the plan of a split as plain values, for `nanoset map --plan --json`.

        For example: {"nanoset": "pretrain", "split": "train", "members": […], "corpora": […], …}.
        After these come totals over all corpora, and `mixture` unless it is empty.
        """
        values = {
            "nanoset": self.nanoset,
            "split": self.split,
            "members": self.members,
            "corpora": self.corpora,
        }
        values |= corpus_totals(self.corpora)
        if self.mixture:
            values["mixture"] = self.mixture
        return values


def with_reads(
    corpora: Iterable[CorpusCoverage], tokens_by_reads: Mapping[str, Sequence[int]]
) -> list[dict[str, Any]]:
    """Return what a split reads of each corpus as plain values: how much, and how often.

    For example: {"corpus": "web", "tokens": 2300, …, "tokens_by_reads": [0, 600, 400, 0, 0, 0]}.

    Args:
        corpora: How much is read of each corpus.
        tokens_by_reads: Name of the corpus → tokens that are read 0, 1, 2, … times. A corpus is
            missing if this is not known.
    """
    values_of_corpora: list[dict[str, Any]] = []
    for corpus in corpora:
        values = corpus.to_json()
        values["tokens_by_reads"] = tokens_by_reads.get(corpus.corpus)
        values_of_corpora.append(values)
    return values_of_corpora


def print_splits(
    splits: Sequence[ShownSplit], exceeded: Iterable[ExceededLimit], *, as_json: bool
) -> None:
    """Print from which datasets the samples of training, validation and test will come.

    For each of these splits there is a table, such as:

        pretrain train
        corpus   weight   samples    tokens   epochs
        web         70%       700   716,800     1.40
        code        30%       300   307,200     0.60

    Below it are warnings, for example if a dataset would be read very often.

    Args:
        splits: The plan of each split, as plain values.
        exceeded: Datasets that would have been read more often than the user allows. The plan was
            changed for these, and there is a warning for each.
        as_json: Whether to print JSON instead, without any warning.
    """
    if as_json:
        print_json([split.to_json() for split in splits])
        return
    for split in splits:
        _print_tables(split)
        _warn_of_no_sample(split)
        _warn_of_many_epochs(split)
    for text in dict.fromkeys(limit.text for limit in exceeded):  # each text once
        warn(f"without max_epochs this would be read too often: {text}")


def warn(text: str) -> None:
    """Print a warning to standard error, in yellow on a terminal.

    Args:
        text: One line.
    """
    echo(text, fg="yellow", err=True)


def _print_tables(split: ShownSplit) -> None:
    """Print the tables that say where the samples of a split come from.

    Args:
        split: The plan of the split, such as train, as plain values. A table without rows is not
            printed.
    """
    if not split.members:
        echo(f"{split.title}: no data")
    _print_mixture(split)
    print_rows(member_rows(split.members), title=split.title, total=_total_of_members(split))
    _print_corpora(split)
    _print_reads(split)


def _print_mixture(split: ShownSplit) -> None:
    """Print the shares of the parts of a mixture, if the user has described one.

    Args:
        split: The plan of the split that is read by these shares.
    """
    wrapped_columns = ("decided by", "of train")  # on a narrow terminal
    print_rows(mixture_rows(split.mixture), title=f"{split.title}, mixture", text=wrapped_columns)


def _print_corpora(split: ShownSplit) -> None:
    """Print how often the text of each collection (corpus) is read.

    This differs from the table of datasets if several of these are selections from one corpus.

    Args:
        split: The plan of the split that reads the corpora.
    """
    total: Row | None = None
    if len(split.corpora) > 1:
        total = corpus_total_row(split.corpora)
    rows = corpus_rows(split.corpora)
    print_rows(rows, title=f"{split.title}, by corpus", text=("read through",), total=total)


def _print_reads(split: ShownSplit) -> None:
    """Print how many tokens are read once, twice and so on, if any is read more than once.

    Args:
        split: The plan of the split that reads the tokens.
    """
    title = f"{split.title}, tokens by how often they are read"
    print_rows(_reads_rows(split.corpora), title=title)


def _reads_rows(corpora: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Return a table with the tokens of each corpus that are read 0, 1, 2, … times.

        corpus    not read    once    twice    3 times    4 times    more often
        web              0     600      400          0          0             0

    Args:
        corpora: What is read of each corpus, with `tokens_by_reads`.

    Returns:
        A row for each corpus; none if no token is read more than once, so that the table of corpora
        says everything.
    """
    rows: list[Row] = []
    is_repeated = False
    for corpus in corpora:
        counts = corpus["tokens_by_reads"]
        if counts is None:
            continue
        is_repeated |= any(counts[2:])
        row: Row = {"corpus": corpus["corpus"]}
        for heading, count in zip(_READS_HEADINGS, counts, strict=True):
            row[heading] = f"{count:,}"
        rows.append(row)
    return rows if is_repeated else []


def _total_of_members(split: ShownSplit) -> Row | None:
    """Return the last row of the table of datasets, which has the sums; None if there is only one.

    For example: {"corpus": "all", "samples": 1000, "unused samples": 12, "tokens": 1024000, …}.

    Args:
        split: The plan of a split, such as train. Its members are the datasets.
    """
    if len(split.members) <= 1:
        return None
    return {
        "corpus": "all",
        "samples": split.samples,
        "unused samples": sum(unused_samples_of(member) for member in split.members),
        "tokens": _sum(split.members, "tokens_taken"),
        "tokens per epoch": _sum(split.members, "tokens"),
    }


def _warn_of_no_sample(split: ShownSplit) -> None:
    """Warn if a split, such as valid, has so few tokens that they do not fill a single sample.

    For example: "warning: pretrain valid has no sample: its 700 tokens are too few for one".

    Args:
        split: The plan of the split.
    """
    if not split.members or split.samples:
        return
    n_tokens = _sum(split.members, "tokens")
    text = f"{split.title} has no sample: its {n_tokens:,} tokens are too few for one"
    if n_tokens == 0:
        text += "; Megatron-LM hangs on such a split: give it no share"
    warn(f"warning: {text}")


def _warn_of_many_epochs(split: ShownSplit) -> None:
    """Warn of each dataset that is read more than 8 times in a training run.

    For example: "warning: pretrain train reads code 12.5 times (max_epochs would limit that)". If
    the user has set such a limit, there is no warning.

    Args:
        split: The plan of a split, such as train.
    """
    for member in split.members:
        if member["epochs"] > MANY_EPOCHS and member["max_epochs"] is None:
            times = f"{member['epochs']:,.1f} times (max_epochs would limit that)"
            warn(f"warning: {split.title} reads {member['corpus']} {times}")


def _sum(members: Iterable[Mapping[str, Any]], name: str) -> int:
    """Return the sum of one value over all datasets of a split."""
    return sum(member[name] for member in members)
