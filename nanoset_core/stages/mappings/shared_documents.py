"""Count which documents of a corpus several datasets of a blend contain: the corpus itself, views of it, and packs.

Training on two of them reads the documents that they have in common twice, which neither of them shows.

A view's `.idx` points into the tokens of its corpus, and the pieces of packs name the documents that were packed. So
the tokens that a dataset contains of each document are counted without reading a token. Documents are counted in
ranges, so that the memory stays bounded however large the corpus is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError
from nanoset_core.formats.indexed.layout import Index, read_idx
from nanoset_core.formats.indexed.stream import places_upto
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.sampling.corpora import CorpusPart, CorpusParts
from nanoset_core.sampling.packing.assignment import Pieces, assign, carry_room, document_lengths
from nanoset_core.sampling.splits import Rows
from nanoset_core.stages.datasets import is_packs, packed_from, pieces_of
from nanoset_core.stages.packs.make import PackingRules, plan_counts
from nanoset_core.stages.packs.pieces import PIECES_FILE
from nanoset_core.stages.views.stage import chosen_from, is_view
from nanoset_core.stages.views.writing import documents_in

_CELLS = 1 << 24
"""Documents times datasets that are counted together: 128 MiB."""
_SEQUENCES = 1 << 20
"""Sequences of a dataset that are looked at together."""
_FEW_CODES = 1 << 22
"""Combinations of copies up to which tokens are counted by `np.bincount`, without sorting."""


Array = NDArray[np.int64]


class DocumentTokens(NamedTuple):
    """Tokens that a dataset contains of documents of its corpus; a document may be listed several times."""

    documents: Array
    """Numbers of the documents in the corpus, int64, shape (n,)."""
    tokens: Array
    """Tokens of each, int64, shape (n,)."""


class CopyCount(NamedTuple):
    """How many tokens of a corpus have the same number of copies in each dataset."""

    copies: tuple[int, ...]
    """Copies in each dataset."""
    tokens: int
    """Tokens that have that many."""


class SharedDocuments:
    """Counts the documents that datasets of a project have in common; a `CorpusReader`."""

    def __init__(self, outputs: OutputRoot, datasets: Mapping[str, Manifest]) -> None:
        """Take the outputs of a project.

        Args:
            outputs: The outputs.
            datasets: Prefix → manifest of datasets that may not be built yet; others are looked up.
        """
        self._outputs = outputs
        self._datasets = datasets
        self._counted: dict[tuple[tuple[str, Rows], ...], list[CorpusParts]] = {}

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the corpora of datasets, with the tokens that each dataset contains of them.

        Args:
            rows_by_prefix: Prefix → (start, stop) of the sequences of the dataset that count.

        Raises:
            MissingError: A dataset that a view was chosen from, or that packs were made of, was deleted.
        """
        key = tuple(sorted(rows_by_prefix.items()))
        if key not in self._counted:
            self._counted[key] = self._count(rows_by_prefix)
        return self._counted[key]

    def _count(self, rows_by_prefix: Mapping[str, Rows]) -> list[CorpusParts]:
        # Group the datasets by the version of the corpus that they were made from.
        manifests = {prefix: self._manifest(prefix) for prefix in rows_by_prefix}
        prefixes_by_digest: dict[str, list[str]] = {}
        corpora: dict[str, Manifest] = {}
        for prefix, manifest in manifests.items():
            corpus = chosen_from(self._outputs, packed_from(self._outputs, manifest))
            corpora[corpus.digest] = corpus
            prefixes_by_digest.setdefault(corpus.digest, []).append(prefix)

        results = []
        for digest, prefixes in prefixes_by_digest.items():
            members = [_Member(self._outputs, manifests[prefix], rows_by_prefix[prefix]) for prefix in prefixes]
            names = tuple(manifests[prefix].name for prefix in prefixes)
            parts = _parts_of(corpora[digest], members)
            results.append(CorpusParts(corpora[digest].name, names, tuple(prefixes), parts))
        return results

    def _manifest(self, prefix: str) -> Manifest:
        if prefix in self._datasets:
            return self._datasets[prefix]
        folder = Path(prefix).parent
        manifest = self._outputs.manifest_at(folder)
        if manifest is None:
            raise MissingError(
                "a dataset that the run reads has no manifest",
                where=self._outputs.access.url(folder),
                remedy="run `nanoset build`: it rebuilds the dataset",
            )
        return manifest


class _Member:
    """A dataset of a blend, with the sequences that a split reads of it."""

    def __init__(self, outputs: OutputRoot, dataset: Manifest, rows: Rows) -> None:
        self.dataset = dataset
        self.packed = packed_from(outputs, dataset)
        """The dataset itself, or the one that packs were made of."""
        self.rows = rows
        self._is_ascending: bool | None = None

    @property
    def has_documents_once(self) -> bool:
        """Whether its recipe alone says that it contains no token of the corpus twice."""
        if is_packs(self.dataset):
            return False
        return not any(key.endswith(".repeat") for key in self.dataset.recipe["options"])

    def index(self) -> Index:
        """Return the index of the dataset, or of the one that packs were made of."""
        return read_idx(self.packed.path(f"{self.packed.facts['prefix']}.idx"), validate=False)

    def tokens_of(self, corpus: Index, index: Index, documents: range) -> Array:
        """Return how many tokens it contains of each document in a range of the corpus, int64, shape (n_documents,).

        Args:
            corpus: Index of the corpus.
            index: The member's `index`.
            documents: Numbers of the documents.
        """
        totals = np.zeros(len(documents), np.int64)
        for listed in self._listed(corpus, index, documents):
            numbers = listed.documents - documents.start
            # `bincount` adds up float64, which is exact for the tokens of a document.
            sums = np.bincount(numbers, listed.tokens.astype(np.float64), len(documents))
            totals += sums.astype(np.int64)
        return totals

    def _listed(self, corpus: Index, index: Index, documents: range) -> Iterator[DocumentTokens]:
        """Yield the documents of a range that it contains."""
        if is_packs(self.dataset):
            yield from self._listed_in_packs(corpus, index, documents)
        else:
            yield from self._listed_in_sequences(corpus, index, documents)

    def _listed_in_sequences(self, corpus: Index, index: Index, documents: range) -> Iterator[DocumentTokens]:
        # The corpus's sequences of these documents, and where their tokens start in its .bin.
        bounds = corpus.document_indices[documents.start : documents.stop + 1]  # (n_documents + 1,)
        first_sequence = int(bounds[0])
        stop_sequence = int(bounds[-1])
        pointers = np.array(corpus.sequence_pointers[first_sequence:stop_sequence])  # (n_sequences,) bytes
        if not len(pointers):
            return
        stop_pointer = np.iinfo(np.int64).max
        if stop_sequence < len(corpus.sequence_pointers):
            stop_pointer = int(corpus.sequence_pointers[stop_sequence])

        # The dataset's sequences that point into this part of the .bin. One may start within a sequence of the corpus.
        low, high = self._rows_between(index, int(pointers[0]), stop_pointer)
        for start in range(low, high, _SEQUENCES):
            stop = min(start + _SEQUENCES, high)
            member_pointers = np.array(index.sequence_pointers[start:stop])
            lengths = np.array(index.sequence_lengths[start:stop])
            is_within = (member_pointers >= pointers[0]) & (member_pointers < stop_pointer) & (lengths > 0)
            sequences = first_sequence + np.searchsorted(pointers, member_pointers[is_within], side="right") - 1
            numbers = documents.start + np.searchsorted(bounds, sequences, side="right") - 1
            yield DocumentTokens(numbers, lengths[is_within].astype(np.int64))

    def _rows_between(self, index: Index, low: int, high: int) -> tuple[int, int]:
        """Return (start, stop) of the sequences that may point into a range of bytes.

        These are all that the split has, or fewer if they are stored in the order of their tokens.
        """
        if self._is_ascending is None:
            self._is_ascending = _is_ascending(index, self.rows)
        if not self._is_ascending:
            return self.rows
        start, stop = self.rows
        pointers = index.sequence_pointers[start:stop]  # ascending
        last_before, last_within = places_upto(pointers, [low - 1, high - 1])
        return start + int(last_before) + 1, start + int(last_within) + 1

    def _listed_in_packs(self, corpus: Index, index: Index, documents: range) -> Iterator[DocumentTokens]:
        for pieces in self._pieces(index):
            numbers = pieces.documents
            if is_view(self.packed):
                numbers = documents_in(corpus, index, numbers)
            is_within = (numbers >= documents.start) & (numbers < documents.stop)
            yield DocumentTokens(numbers[is_within], pieces.tokens[is_within])

    def _pieces(self, index: Index) -> Iterator[DocumentTokens]:
        """Yield the pieces in the packs of the split, with the documents numbered in the dataset that was packed."""
        if PIECES_FILE in self.dataset.files:
            for rows in pieces_of(self.dataset).between(*self.rows):
                yield DocumentTokens(rows.documents, rows.tokens)
            return

        # The packs are not built yet: assign the documents to packs as they will be.
        rules = PackingRules.of(self.dataset.recipe["options"])
        lengths = document_lengths(index.sequence_lengths, index.document_indices)
        _, plan = plan_counts(lengths, rules)
        windows: Iterator[Pieces] = assign(lengths, rules.pieces, plan, rules.seed)
        if rules.tail == "carry":
            windows = carry_room(windows, rules.pieces.length)
        first_pack = 0
        for window in windows:
            n_packs = len(window.bounds) - 1
            start = min(max(self.rows[0] - first_pack, 0), n_packs)
            stop = min(max(self.rows[1] - first_pack, start), n_packs)
            pieces = window.slice(start, stop)
            yield DocumentTokens(pieces.documents, pieces.lengths)
            first_pack += n_packs


def _is_ascending(index: Index, rows: Rows) -> bool:
    """Return whether sequences are stored in the order of their tokens."""
    start, stop = rows
    for first in range(start, stop, _SEQUENCES):
        # One more than these, so that neighbours at the border are compared, too.
        pointers = np.array(index.sequence_pointers[first : min(first + _SEQUENCES + 1, stop)])
        if (np.diff(pointers) < 0).any():
            return False
    return True


def _parts_of(corpus: Manifest, members: Sequence[_Member]) -> tuple[CorpusPart, ...]:
    """Return how many tokens of a corpus have how many copies in each dataset."""
    # One dataset without repetitions needs no look at documents: all of its tokens have one copy.
    if len(members) == 1 and members[0].has_documents_once:
        start, stop = members[0].rows
        lengths = members[0].index().sequence_lengths[start:stop]
        total = int(lengths.sum(dtype=np.int64))
        return (CorpusPart((1,), total),) if total else ()

    prefix = corpus.facts["prefix"]
    corpus_index = read_idx(corpus.path(f"{prefix}.idx"), validate=False)
    indices = [member.index() for member in members]
    n_documents = len(corpus_index.document_indices) - 1
    step = max(_CELLS // len(members), 1)
    tokens_by_copies: Counter[tuple[int, ...]] = Counter()
    for start in range(0, n_documents, step):
        documents = range(start, min(start + step, n_documents))
        # (n_documents of the range, n_datasets) tokens that each dataset contains of each document
        contained = np.empty((len(documents), len(members)), np.int64)
        for column, member in enumerate(members):
            contained[:, column] = member.tokens_of(corpus_index, indices[column], documents)
        for count in count_copies(contained, _document_tokens(corpus_index, documents)):
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

    A dataset may contain only the first tokens of a document, as packs do that truncate it: these tokens have one copy
    more in that dataset than the others. If several datasets contain a part of one document, all parts are taken to
    start at its first token. That is exact for truncated documents. It is not for a document whose pieces are divided
    between two splits, but at most as many documents are as there are packs at the border of a split.

    Args:
        contained: int64, shape (n_documents, n_datasets): tokens that each dataset contains of each document.
        tokens: int64, shape (n_documents,): tokens of each document.

    Yields:
        The copies in each dataset, and how many tokens have that many; without tokens that no dataset contains.
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
    """Yield each row of copies that occurs, without rows of zeros, and the sum of the tokens that have it."""
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
