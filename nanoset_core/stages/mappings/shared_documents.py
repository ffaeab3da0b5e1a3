"""Count which documents of a corpus several datasets of a blend contain.

Training on two such datasets reads the documents that they have in common twice. The epochs of each
dataset alone do not show that.

A view's `.idx` points into the tokens of its corpus, and a packed dataset stores which document
each piece is from. So the tokens that a dataset contains of each document are counted without
reading a token. An example with two datasets, `a` and `b`, and three documents of a corpus:

    document    tokens    contained in a, b    copies in a, b
    0           100       100, 200             1, 2
    1            50        50,   0             1, 0
    2            80        80,  30             1, 1 for its first 30 tokens; 1, 0 for the other 50

    result      (1, 2): 100 tokens    (1, 0): 50 + 50 tokens    (1, 1): 30 tokens

Documents are counted in ranges, so that the memory is bounded however large the corpus is.
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

_MAX_CELLS = 1 << 24
"""Documents times datasets that are counted together: they take 128 MiB."""
_MAX_CODES = 1 << 22
"""Most combinations of copies that are counted by `np.bincount`, which needs no sorting."""

Array = NDArray[np.int64]


class CopyCount(NamedTuple):
    """How many tokens of a corpus have the same number of copies in each dataset."""

    copies: tuple[int, ...]
    """Number of copies in each dataset."""
    tokens: int
    """Number of tokens that have these copies."""


class SharedDocuments:
    """Counts the documents that datasets of a project have in common.

    It implements the protocol `CorpusReader`.
    """

    def __init__(self, outputs: OutputRoot, manifests: Mapping[str, Manifest]) -> None:
        """Prepare to count.

        Args:
            outputs: The output root of the project.
            manifests: Prefix of a dataset → its manifest, for datasets that may not be built yet.
                Other datasets are looked up in `outputs`.
        """
        self._datasets = Datasets(outputs)
        self._manifests = manifests
        self._counted: dict[tuple[tuple[str, Rows], ...], list[CorpusParts]] = {}

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the tokens that datasets contain of the corpora that they were made from.

        A *part* of a corpus consists of the tokens that have the same number of copies in each
        dataset. Counting takes long for a large corpus, so results are kept for the next call.

        Args:
            rows_by_prefix: Prefix of each dataset → (start, stop) of its sequences that count.

        Raises:
            MissingError: A dataset was deleted, or a dataset that it was made from.
        """
        key = tuple(sorted(rows_by_prefix.items()))
        if key not in self._counted:
            self._counted[key] = self._count(rows_by_prefix)
        return self._counted[key]

    def _count(self, rows_by_prefix: Mapping[str, Rows]) -> list[CorpusParts]:
        """Count the tokens of each corpus by the datasets that contain them.

        Args:
            rows_by_prefix: Prefix of each dataset → (start, stop) of its sequences that count.
        """
        # Group the datasets by the version of the corpus that they were made from.
        members: dict[str, _Member] = {}
        prefixes_by_digest: dict[str, list[str]] = {}
        for prefix, rows in rows_by_prefix.items():
            dataset = self._dataset(prefix)
            members[prefix] = _Member(dataset, rows)
            prefixes_by_digest.setdefault(dataset.corpus.manifest.digest, []).append(prefix)

        # Count the tokens of each corpus by how many copies of them each of its datasets contains.
        results: list[CorpusParts] = []
        for prefixes in prefixes_by_digest.values():
            corpus_members = [members[prefix] for prefix in prefixes]
            names = tuple(member.dataset.name for member in corpus_members)
            corpus = corpus_members[0].dataset.corpus
            parts = _parts_of(corpus, corpus_members)
            results.append(CorpusParts(corpus.name, names, tuple(prefixes), parts))
        return results

    def _dataset(self, prefix: str) -> Dataset:
        """Open the dataset with a prefix."""
        if prefix in self._manifests:
            return self._datasets.open(self._manifests[prefix])
        return self._datasets.at(prefix)


class _Member(NamedTuple):
    """A dataset of a blend, with the sequences that a split reads of it."""

    dataset: Dataset
    """The dataset."""
    rows: Rows
    """(start, stop) of the sequences."""

    @property
    def total_tokens(self) -> int:
        """Number of tokens in these sequences."""
        start, stop = self.rows
        lengths = self.dataset.index.sequence_lengths[start:stop]
        return int(lengths.sum(dtype=np.int64))

    def tokens_of(self, documents: range) -> Array:
        """Return how many tokens the dataset contains of each document in a range of the corpus.

        Args:
            documents: Numbers of the documents in the corpus.

        Returns:
            Tokens of all copies of each document together, int64, shape (n_documents,).
        """
        totals = np.zeros(len(documents), np.int64)
        for listed in self.dataset.corpus_tokens(self.rows, documents):
            numbers = listed.documents - documents.start
            # `bincount` adds up float64, which is exact for the tokens of a document.
            sums = np.bincount(numbers, listed.tokens.astype(np.float64), len(documents))
            totals += sums.astype(np.int64)
        return totals


def _parts_of(corpus: Dataset, members: Sequence[_Member]) -> tuple[CorpusPart, ...]:
    """Count the tokens of a corpus by how many copies of them each dataset contains.

    With two datasets, the part (1, 2) are the tokens that the first one contains once, and the
    second one twice.

    Args:
        corpus: Dataset of the corpus.
        members: The datasets that contain documents of the corpus.
    """
    # In one dataset without repetitions all tokens have one copy, whatever the documents are.
    first_member = members[0]
    if len(members) == 1 and first_member.dataset.holds_tokens_once:
        total = first_member.total_tokens
        return (CorpusPart((1,), total),) if total else ()

    # Count in ranges of documents, so that memory is bounded.
    n_documents = len(corpus.index.document_indices) - 1
    documents_per_range = max(_MAX_CELLS // len(members), 1)
    tokens_by_copies: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n_documents, documents_per_range):
        stop = min(start + documents_per_range, n_documents)
        documents = range(start, stop)
        # (n_documents of the range, n_datasets) tokens that each dataset contains of each document
        contained = np.empty((len(documents), len(members)), np.int64)
        for column, member in enumerate(members):
            contained[:, column] = member.tokens_of(documents)
        tokens = _document_tokens(corpus.index, documents)  # (n_documents of the range,)
        for count in count_copies(contained, tokens):
            tokens_by_copies[count.copies] += count.tokens

    # In a fixed order, since the manifests of outputs list the parts.
    combinations = sorted(tokens_by_copies)
    return tuple(CorpusPart(copies, tokens_by_copies[copies]) for copies in combinations)


def _document_tokens(index: Index, documents: range) -> Array:
    """Return the number of tokens of each document in a range.

    Args:
        index: Index of the corpus.
        documents: Numbers of the documents.

    Returns:
        int64, shape (n_documents,).
    """
    # A document consists of consecutive sequences, usually of one.
    # (n_documents + 1,) first sequence of each document, and of the document after the last one
    first_sequences = index.document_indices[documents.start : documents.stop + 1]
    start = int(first_sequences[0])
    stop = int(first_sequences[-1])
    lengths = index.sequence_lengths[start:stop]  # (n_sequences,)

    # The tokens before each document are a running sum, whose differences are its tokens.
    tokens_before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # (n_sequences + 1,)
    tokens: Array = np.diff(tokens_before[first_sequences - start])
    return tokens


def count_copies(contained: Array, tokens: Array) -> Iterator[CopyCount]:
    """Count the tokens of documents by the number of their copies in each dataset.

    A dataset may contain only the first tokens of a document, if it was truncated to fit into a
    sample: these tokens have one copy more in that dataset than the others. If several datasets
    contain a part of one document, all parts are assumed to start at its first token. That is exact
    for truncated documents. It is not for a document whose pieces are divided between two splits,
    but at most as many documents as fit into the samples at the border of a split are affected.

    Args:
        contained: Tokens that each dataset contains of each document, int64, shape (n_documents,
            n_datasets).
        tokens: Tokens of each document, int64, shape (n_documents,).

    Yields:
        Combinations of copies that occur, without tokens that no dataset contains. A combination
        may be yielded several times.
    """
    is_contained = contained.any(axis=1)  # (n_documents,)
    contained = contained[is_contained]
    tokens = tokens[is_contained]

    # The number of whole copies of each document, and the tokens of a copy that was truncated.
    whole_copies = contained // tokens[:, None]  # (n_documents, n_datasets)
    rest = contained % tokens[:, None]  # (n_documents, n_datasets)
    has_rest = rest.any(axis=1)  # (n_documents,)
    yield from _sums_by_copies(whole_copies[~has_rest], tokens[~has_rest])

    # Cut each of the other documents where the rest of a dataset ends. A document of 80 tokens with
    # the rests 0 and 30 has the parts [0, 0), [0, 30) and [30, 80).
    whole_copies = whole_copies[has_rest]
    rest = rest[has_rest]
    tokens = tokens[has_rest]
    bounds = np.column_stack([np.zeros_like(tokens), rest, tokens])  # (n_documents, n_datasets + 2)
    bounds.sort(axis=1)
    for part in range(bounds.shape[1] - 1):
        part_starts = bounds[:, part]  # (n_documents,)
        part_tokens = bounds[:, part + 1] - part_starts
        is_in_rest = rest > part_starts[:, None]  # (n_documents, n_datasets)
        yield from _sums_by_copies(whole_copies + is_in_rest, part_tokens)


def _sums_by_copies(copies: Array, tokens: Array) -> Iterator[CopyCount]:
    """Add up tokens that have the same number of copies in each dataset.

    Args:
        copies: Shape (n_rows, n_datasets).
        tokens: Tokens with these copies, shape (n_rows,).

    Yields:
        Each combination of copies that occurs once, without that of no copies at all.
    """
    is_counted = copies.any(axis=1) & (tokens > 0)
    copies = copies[is_counted]
    tokens = tokens[is_counted]
    if not len(tokens):
        return

    # If few combinations are possible, each gets a number, and nothing needs to be sorted.
    sizes = copies.max(axis=0) + 1  # (n_datasets,) numbers of copies that are possible
    shape = tuple(sizes.tolist())
    n_possible = np.prod(sizes.astype(np.float64))  # as floats, since integers may overflow
    if n_possible <= _MAX_CODES:
        codes = np.ravel_multi_index(tuple(copies.T), shape)  # (n_rows,)
        sums = np.bincount(codes, tokens.astype(np.float64))
        for code in np.flatnonzero(sums).tolist():
            combination = tuple(int(count) for count in np.unravel_index(code, shape))
            yield CopyCount(combination, int(sums[code]))
        return

    # Otherwise equal rows are found by sorting.
    combinations, codes = np.unique(copies, axis=0, return_inverse=True)
    sums = np.bincount(codes.ravel(), tokens.astype(np.float64))
    for row, n_tokens in zip(combinations.tolist(), sums.tolist(), strict=True):
        yield CopyCount(tuple(row), int(n_tokens))
