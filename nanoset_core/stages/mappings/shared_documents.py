"""Count which documents of a corpus several datasets of a blend contain.

Training on two of them reads the documents that they have in common twice, which neither of them
shows.

A view's `.idx` points into the tokens of its corpus, and a packed dataset stores which document
each piece is from. So the tokens that a dataset contains of each document are counted without
reading a token. Documents are counted in ranges, so that the memory stays bounded however large the
corpus is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Index
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.sampling.corpora import CorpusPart, CorpusParts
from nanoset_core.sampling.splits import Rows
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.datasets import Datasets

_CELLS = 1 << 24
"""Documents times datasets that are counted together: 128 MiB."""
_FEW_CODES = 1 << 22
"""Combinations of copies up to which tokens are counted by `np.bincount`, without sorting."""


Array = NDArray[np.int64]


class CopyCount(NamedTuple):
    """How many tokens of a corpus have the same number of copies in each dataset."""

    copies: tuple[int, ...]
    """Copies in each dataset."""
    tokens: int
    """Tokens that have that many."""


class SharedDocuments:
    """Counts the documents that datasets of a project have in common; a `CorpusReader`."""

    def __init__(self, outputs: OutputRoot, manifests: Mapping[str, Manifest]) -> None:
        """Take the outputs of a project.

        Args:
            outputs: The outputs.
            manifests: Prefix → manifest of datasets that may not be built yet; others are looked
                up.
        """
        self._datasets = Datasets(outputs)
        self._manifests = manifests
        self._counted: dict[tuple[tuple[str, Rows], ...], list[CorpusParts]] = {}

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the corpora of datasets, with the tokens that each dataset contains of them.

        Args:
            rows_by_prefix: Prefix → (start, stop) of the sequences of the dataset that count.

        Raises:
            MissingError: A dataset that one of these was made from was deleted.
        """
        key = tuple(sorted(rows_by_prefix.items()))
        if key not in self._counted:
            self._counted[key] = self._count(rows_by_prefix)
        return self._counted[key]

    def _count(self, rows_by_prefix: Mapping[str, Rows]) -> list[CorpusParts]:
        # Group the datasets by the version of the corpus that they were made from.
        members: dict[str, _Member] = {}
        prefixes_by_digest: dict[str, list[str]] = {}
        for prefix, rows in rows_by_prefix.items():
            dataset = self._dataset(prefix)
            members[prefix] = _Member(dataset, rows)
            prefixes_by_digest.setdefault(dataset.corpus.manifest.digest, []).append(prefix)

        results: list[CorpusParts] = []
        for prefixes in prefixes_by_digest.values():
            corpus_members = [members[prefix] for prefix in prefixes]
            names = tuple(member.dataset.name for member in corpus_members)
            corpus = corpus_members[0].dataset.corpus
            results.append(
                CorpusParts(corpus.name, names, tuple(prefixes), _parts_of(corpus, corpus_members))
            )
        return results

    def _dataset(self, prefix: str) -> Dataset:
        if prefix in self._manifests:
            return self._datasets.open(self._manifests[prefix])
        return self._datasets.at(prefix)


class _Member(NamedTuple):
    """A dataset of a blend, with the sequences that a split reads of it."""

    dataset: Dataset
    rows: Rows
    """(start, stop) of the sequences."""

    def tokens_of(self, documents: range) -> Array:
        """Return how many tokens it contains of each document in a range of the corpus, int64,
        shape (n_documents,).
        """
        totals = np.zeros(len(documents), np.int64)
        for listed in self.dataset.corpus_tokens(self.rows, documents):
            numbers = listed.documents - documents.start
            # `bincount` adds up float64, which is exact for the tokens of a document.
            sums = np.bincount(numbers, listed.tokens.astype(np.float64), len(documents))
            totals += sums.astype(np.int64)
        return totals


def _parts_of(corpus: Dataset, members: Sequence[_Member]) -> tuple[CorpusPart, ...]:
    """Return how many tokens of a corpus have how many copies in each dataset."""
    # One dataset without repetitions needs no look at documents: all of its tokens have one copy.
    if len(members) == 1 and members[0].dataset.holds_tokens_once:
        start, stop = members[0].rows
        lengths = members[0].dataset.index.sequence_lengths[start:stop]
        total = int(lengths.sum(dtype=np.int64))
        return (CorpusPart((1,), total),) if total else ()

    n_documents = len(corpus.index.document_indices) - 1
    step = max(_CELLS // len(members), 1)
    tokens_by_copies: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n_documents, step):
        documents = range(start, min(start + step, n_documents))
        # (n_documents of the range, n_datasets) tokens that each dataset contains of each document
        contained = np.empty((len(documents), len(members)), np.int64)
        for column, member in enumerate(members):
            contained[:, column] = member.tokens_of(documents)
        for count in count_copies(contained, _document_tokens(corpus.index, documents)):
            tokens_by_copies[count.copies] += count.tokens

    # In a fixed order, since the parts reach the facts of outputs.
    combinations = sorted(tokens_by_copies)
    return tuple(CorpusPart(copies, tokens_by_copies[copies]) for copies in combinations)


def _document_tokens(index: Index, documents: range) -> Array:
    """Return the tokens of documents of a corpus, int64, shape (n_documents,)."""
    # A document is a run of sequences; most have one.
    bounds = index.document_indices[documents.start : documents.stop + 1]  # (n_documents + 1,)
    first = int(bounds[0])
    last = int(bounds[-1])
    lengths = index.sequence_lengths[first:last]  # (n_sequences,)
    tokens_before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # (n_sequences + 1,)
    tokens: Array = np.diff(tokens_before[bounds - first])
    return tokens


def count_copies(contained: Array, tokens: Array) -> Iterator[CopyCount]:
    """Count the tokens of documents by the number of their copies in each dataset.

    A dataset may contain only the first tokens of a document, if it was truncated to fit into a
    sample: these tokens have one copy more in that dataset than the others. If several datasets
        contain a part of
    one document, all parts are taken to start at its first token. That is exact for truncated
    documents. It is not for a document whose pieces are divided between two splits, but at most as
    many documents as fit into the samples at the border of a split are affected.

    Args:
        contained: int64, shape (n_documents, n_datasets): tokens that each dataset contains of each
            document.
        tokens: int64, shape (n_documents,): tokens of each document.

    Yields:
        The copies in each dataset, and how many tokens have that many; without tokens that no
        dataset contains.
    """
    # How often each dataset contains the whole document, and how many tokens of another copy.
    is_contained = contained.any(axis=1)  # (n_documents,)
    contained = contained[is_contained]
    tokens = tokens[is_contained]
    copies = contained // tokens[:, None]
    rest = contained % tokens[:, None]

    is_whole = ~rest.any(axis=1)
    yield from _sums_by_copies(copies[is_whole], tokens[is_whole])

    # Cut the other documents where the copy of a dataset ends.
    copies = copies[~is_whole]
    rest = rest[~is_whole]
    tokens = tokens[~is_whole]
    bounds = np.column_stack([np.zeros_like(tokens), rest, tokens])  # (n_documents, n_datasets + 2)
    bounds.sort(axis=1)
    for number in range(bounds.shape[1] - 1):
        starts = bounds[:, number]
        widths = bounds[:, number + 1] - starts
        has_one_more = rest > starts[:, None]  # (n_documents, n_datasets)
        yield from _sums_by_copies(copies + has_one_more, widths)


def _sums_by_copies(copies: Array, tokens: Array) -> Iterator[CopyCount]:
    """Yield each row of copies that occurs, without rows of zeros, and the sum of the tokens that
    have it.
    """
    is_counted = copies.any(axis=1) & (tokens > 0)
    copies = copies[is_counted]
    tokens = tokens[is_counted]
    if not len(tokens):
        return

    # Number the rows of copies. If few numbers are possible, they are counted without sorting.
    sizes = copies.max(axis=0) + 1  # (n_datasets,)
    shape = tuple(sizes.tolist())
    if np.prod(sizes.astype(np.float64)) <= _FEW_CODES:
        codes = np.ravel_multi_index(tuple(copies.T), shape)
        sums = np.bincount(codes, tokens.astype(np.float64))
        for code in np.flatnonzero(sums).tolist():
            combination = np.unravel_index(code, shape)
            yield CopyCount(tuple(map(int, combination)), int(sums[code]))
        return

    # Otherwise equal rows are found by sorting them.
    combinations, codes = np.unique(copies, axis=0, return_inverse=True)
    sums = np.bincount(codes.ravel(), tokens.astype(np.float64))
    for row, n_tokens in zip(combinations.tolist(), sums.tolist(), strict=True):
        yield CopyCount(tuple(row), int(n_tokens))
