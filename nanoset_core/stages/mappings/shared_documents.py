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
from itertools import pairwise
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
    """A number of tokens of a corpus, and how many copies of them each dataset contains.

    For example, `CopyCount((1, 2), 100)` are 100 tokens that the first dataset contains once, and
    the second one twice.
    """

    copies: tuple[int, ...]
    """Number of copies in each dataset."""
    tokens: int
    """Number of these tokens, each counted once."""


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
        """Return how many tokens of each corpus occur in several datasets, and in which.

        For example, the corpus web has 1,000 tokens. The dataset `web` has all of them, and the
        view `best-web`, a selection of its documents, has 100. So the corpus has two parts:

            tokens of the part    copies in web    copies in best-web
            900                   1                0
            100                   1                1

        Args:
            rows_by_prefix: Path of each dataset → the sequences of it that are read, as (start,
                stop): (0, 980) are the first 980.

        Raises:
            MissingError: A dataset was deleted, or a dataset that it was made from.
        """
        # Counting takes long for a large corpus, so keep the results for the next call.
        key = tuple(sorted(rows_by_prefix.items()))
        if key not in self._counted:
            members_by_corpus = self._members_by_corpus(rows_by_prefix)
            self._counted[key] = [_count_parts(members) for members in members_by_corpus.values()]
        return self._counted[key]

    def _members_by_corpus(self, rows_by_prefix: Mapping[str, Rows]) -> dict[str, list[_Member]]:
        """Group datasets by the corpus that they were made from.

            {"3f9c…": [web, best-web], "77cd…": [code]}

        Only datasets of one corpus can have documents in common. Each version of a corpus has a
        digest of its own, and counts as another corpus.

        Args:
            rows_by_prefix: Prefix of each dataset → (start, stop) of its sequences that count. A
                prefix is a path without .bin and .idx.
        """
        members_by_corpus: dict[str, list[_Member]] = {}
        for prefix, rows in rows_by_prefix.items():
            dataset = self._dataset(prefix)
            digest = dataset.corpus.manifest.digest
            members_by_corpus.setdefault(digest, []).append(_Member(prefix, dataset, rows))
        return members_by_corpus

    def _dataset(self, prefix: str) -> Dataset:
        """Open the dataset with a prefix."""
        if prefix in self._manifests:
            return self._datasets.open(self._manifests[prefix])
        return self._datasets.at(prefix)


class _Member(NamedTuple):
    """A dataset of a blend, with the sequences that a split reads of it."""

    prefix: str
    """Path of the dataset without .bin and .idx."""
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
        """Return how many tokens a dataset has of each of some documents, with those of copies.

        For example, a document has 80 tokens:

            what the dataset has of it              result
            two copies                              160
            its first 30 tokens                     30
            nothing                                 0

        Args:
            documents: Numbers of the documents in the corpus that the dataset was made from.

        Returns:
            int64, shape (n_documents,).
        """
        n_documents = len(documents)
        totals = np.zeros(n_documents, np.int64)
        for sequences in self.dataset.corpus_tokens(self.rows, documents):
            positions = sequences.documents - documents.start  # (n_sequences,) in the range
            # The floats of `bincount` are exact below 2**53.
            token_counts = sequences.tokens.astype(np.float64)
            sums = np.bincount(positions, token_counts, minlength=n_documents)  # (n_documents,)
            totals += sums.astype(np.int64)
        return totals


def _count_parts(members: Sequence[_Member]) -> CorpusParts:
    """Count how many tokens of a corpus are in which of the datasets that were made from it.

    For example, web has 1,000 tokens, and best-web, which is a selection, has 100 of these twice:

        900 tokens are in web alone                CorpusPart(copies=(1, 0), tokens=900)
        100 are in web, and twice in best-web      CorpusPart(copies=(1, 2), tokens=100)

    Args:
        members: The datasets, all made from one corpus: web and best-web.

    Returns:
        The parts, sorted by `copies`; without tokens that are in no dataset.
    """
    corpus = members[0].dataset.corpus
    tokens_by_copies = _tokens_by_copies(corpus, members)  # {(1, 0): 900, (1, 2): 100}
    parts = []
    for copies, n_tokens in sorted(tokens_by_copies.items()):
        if n_tokens > 0:
            parts.append(CorpusPart(copies, n_tokens))
    return CorpusParts(
        corpus=corpus.name,
        members=tuple(member.dataset.name for member in members),
        prefixes=tuple(member.prefix for member in members),
        parts=tuple(parts),
    )


def _tokens_by_copies(corpus: Dataset, members: Sequence[_Member]) -> Counter[tuple[int, ...]]:
    """Count the tokens of a corpus by how many copies of them each of some datasets has.

    For two datasets, `{(1, 2): 100, (1, 0): 50}` means: of 100 tokens, the first dataset has one
    copy, and the second one two. Of 50 tokens, only the first one has a copy.

    A single dataset that repeats no document, which is the usual case, is not read.

    Args:
        corpus: The dataset with all documents of the corpus.
        members: The datasets that were made from it.
    """
    if len(members) == 1 and members[0].dataset.holds_tokens_once:
        return Counter({(1,): members[0].total_tokens})

    tokens_by_copies: Counter[tuple[int, ...]] = Counter()
    for documents in _document_ranges(corpus, len(members)):  # some at a time, to bound memory
        tokens_in_datasets = [member.tokens_of(documents) for member in members]
        contained = np.column_stack(tokens_in_datasets)  # (n_documents, n_datasets)
        document_tokens = _document_tokens(corpus.index, documents)  # (n_documents,)
        for count in count_copies(contained, document_tokens):
            tokens_by_copies[count.copies] += count.tokens
    return tokens_by_copies


def _document_ranges(corpus: Dataset, n_datasets: int) -> Iterator[range]:
    """Yield ranges of a corpus's documents that are small enough to be compared in memory.

    With 2 datasets, 20 million documents are divided into the ranges 0 to 8,388,608, then up to
    16,777,216, and the rest.

    Args:
        corpus: Dataset of the corpus.
        n_datasets: How many datasets are compared.
    """
    n_documents = len(corpus.index.document_indices) - 1
    documents_per_range = max(_MAX_CELLS // n_datasets, 1)
    for start in range(0, n_documents, documents_per_range):
        yield range(start, min(start + documents_per_range, n_documents))


def _document_tokens(index: Index, documents: range) -> Array:
    """Return the number of tokens of each document in a range.

    A document usually is one sequence of the corpus, but may consist of several. For example:

        document              0    1    1    2
        sequence              0    1    2    3
        tokens                7    5    3    4

    Then the documents 1 and 2 (range(1, 3)) have 8 and 4 tokens.

    Args:
        index: Index of the corpus, with the length of each sequence.
        documents: Numbers of the documents.

    Returns:
        int64, shape (n_documents,).
    """
    # (n_documents + 1,) the first sequence of each document, and of the one after them: [1, 3, 4]
    first_sequences = index.document_indices[documents.start : documents.stop + 1]
    start = int(first_sequences[0])
    stop = int(first_sequences[-1])
    lengths = index.sequence_lengths[start:stop]  # (n_sequences,) [5, 3, 4]

    tokens_before = np.append(0, np.cumsum(lengths, dtype=np.int64))  # [0, 5, 8, 12]
    tokens: Array = np.diff(tokens_before[first_sequences - start])  # [8, 4]
    return tokens


def count_copies(contained: Array, tokens: Array) -> Iterator[CopyCount]:
    """Count the tokens of documents by how many copies of them each dataset has.

    A dataset may have a document several times, and also its beginning alone. For example, A has
    a complete copy of document 1, and its first 30 tokens once more: 80 + 30 = 110 tokens.

        document    tokens    tokens in A, B    result
        0           100       100, 200          100 tokens with 1 copy in A, and 2 in B
        1            80       110,  80           30 tokens with 2 copies in A, and 1 in B
                                                 50 tokens with 1 copy in A, and 1 in B

    Args:
        contained: Tokens that each dataset has of each document, int64, shape (n_documents,
            n_datasets): [[100, 200], [110, 80]].
        tokens: Tokens of each document, int64, shape (n_documents,): [100, 80].

    Yields:
        CopyCount((1, 2), 100), CopyCount((2, 1), 30) and CopyCount((1, 1), 50), in any order. The
        same copies, such as (1, 2), may come several times.
    """
    # Documents that are in no dataset are left out. They may have 0 tokens, to divide by below.
    is_contained = contained.any(axis=1)  # (n_documents,)
    contained = contained[is_contained]
    tokens = tokens[is_contained]

    complete_copies = contained // tokens[:, None]  # (n_documents, n_datasets) [[1, 2], [1, 1]]
    extra_tokens = contained % tokens[:, None]  # (n_documents, n_datasets) [[0, 0], [30, 0]]
    has_extra = extra_tokens.any(axis=1)  # (n_documents,) [False, True]
    yield from _sums_by_copies(complete_copies[~has_extra], tokens[~has_extra])
    yield from _count_with_incomplete_copies(
        complete_copies[has_extra], extra_tokens[has_extra], tokens[has_extra]
    )


def _count_with_incomplete_copies(
    complete_copies: Array, extra_tokens: Array, tokens: Array
) -> Iterator[CopyCount]:
    """Count the tokens of documents by their copies, if datasets have the beginning of a document.

    For example, a document has 80 tokens. Dataset A has it twice. Dataset B has it once, and its
    first 30 tokens again. So the document is divided after 30 tokens:

        tokens of the document    copies in A, B
        0 to 30                   2, 2
        30 to 80                  2, 1

    If a dataset has the end of a document instead of its beginning, the result is slightly wrong.
    That is possible for few documents only, at the border between train and valid.

    Args:
        complete_copies: How many complete copies each dataset has, shape (n_documents, n_datasets):
            [[2, 1]].
        extra_tokens: How many tokens of an incomplete copy each dataset has in addition, the same
            shape: [[0, 30]].
        tokens: Tokens of each document, shape (n_documents,): [80].

    Yields:
        Numbers of copies in the datasets, and how many tokens have these.
    """
    # (n_documents, n_datasets + 2) where the parts of each document start and stop
    bounds = np.column_stack([np.zeros_like(tokens), extra_tokens, tokens])
    bounds.sort(axis=1)  # [[0, 0, 30, 80]]: the first part is empty
    for starts, stops in pairwise(bounds.T):  # each (n_documents,), such as [0] and [30]
        # An incomplete copy that goes beyond the start of a part contains all of it.
        is_in_incomplete_copy = extra_tokens > starts[:, None]  # (n_documents, n_datasets)
        yield from _sums_by_copies(complete_copies + is_in_incomplete_copy, stops - starts)


def _sums_by_copies(copies: Array, tokens: Array) -> Iterator[CopyCount]:
    """Add up the tokens of equal rows: of documents with equal numbers of copies in each dataset.

        copies in datasets A, B      tokens
        1  2                         100
        1  0                          50
        1  2                          20        as in the first row: together 120 tokens
        0  0                          30        in neither, so not counted

    This yields (1, 2) with 120 tokens, and (1, 0) with 50 tokens.

    Args:
        copies: Number of copies in each dataset, shape (n_rows, n_datasets).
        tokens: Tokens that have these copies, shape (n_rows,).

    Yields:
        One count for each different row.
    """
    is_counted = copies.any(axis=1) & (tokens > 0)
    copies = copies[is_counted]
    tokens = tokens[is_counted]
    if len(tokens) == 0:
        return

    # A has 0 or 1 copies, and B has 0, 1 or 2. So 2 * 3 different rows are possible.
    n_values = copies.max(axis=0) + 1  # (n_datasets,) [2, 3]
    n_possible_rows = np.prod(n_values.astype(np.float64))  # as a float, which cannot overflow
    if n_possible_rows <= _MAX_CODES:
        yield from _sums_by_code(copies, tokens, tuple(n_values.tolist()))  # fast
    else:
        yield from _sums_by_sorting(copies, tokens)  # takes less memory


def _sums_by_code(copies: Array, tokens: Array, sizes: tuple[int, ...]) -> Iterator[CopyCount]:
    """Add up the tokens of equal rows, by giving each possible row a number: its code.

    If the first column has values from 0 to 2, and the second one 0 or 1, the code of a row is 2 *
    first column + second column:

        row       2, 1    0, 1    2, 1
        code         5       1       5
        tokens     100      50      20      so code 5 has 120 tokens, and code 1 has 50

    Args:
        copies: The rows, shape (n_rows, n_datasets).
        tokens: Tokens of each row, shape (n_rows,).
        sizes: How many values each column may have, from 0 on: (3, 2).
    """
    codes = np.ravel_multi_index(tuple(copies.T), sizes)  # (n_rows,) [5, 1, 5]
    token_sums = np.bincount(codes, tokens.astype(np.float64))  # of the codes 0 to 5
    for code in np.flatnonzero(token_sums).tolist():
        row = tuple(int(count) for count in np.unravel_index(code, sizes))  # (2, 1) for 5
        yield CopyCount(row, int(token_sums[code]))


def _sums_by_sorting(copies: Array, tokens: Array) -> Iterator[CopyCount]:
    """Add up the tokens of equal rows: slower than `_sums_by_code`, for any number of rows.

    For example, the rows [1, 2], [1, 0] and [1, 2] have 100, 50 and 20 tokens.

    Args:
        copies: The rows, shape (n_rows, n_datasets).
        tokens: Tokens of each row, shape (n_rows,).
    """
    # The different rows [1, 0] and [1, 2], and which of them each row equals: [1, 0, 1].
    different_rows, number_of_row = np.unique(copies, axis=0, return_inverse=True)
    weights = tokens.astype(np.float64)
    token_sums = np.bincount(number_of_row.ravel(), weights)  # (n_different_rows,) [50, 120]
    for row, n_tokens in zip(different_rows.tolist(), token_sums.tolist(), strict=True):
        yield CopyCount(tuple(row), int(n_tokens))
