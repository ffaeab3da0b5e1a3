"""Find which documents of a corpus the members of a blend hold: the corpus itself, views of it, and packs.

A view's `.idx` points into the tokens of its corpus, and the pieces of packs name the documents that were packed. So no
token is read to count the tokens that a member holds of each document. Documents are looked at in ranges, so that the
memory stays bounded however large the corpus is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

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
"""Documents times members that are counted at once: 128 MiB."""
_SEQUENCES = 1 << 20
"""Sequences of a member that are looked at together."""
_FEW_CODES = 1 << 22
"""Combinations of copies up to which tokens are counted by `np.bincount`, without sorting."""


class SharedDocuments:
    """Counts the documents that datasets of a project share; a `CorpusReader`."""

    def __init__(self, outputs: OutputRoot, datasets: Mapping[str, Manifest]) -> None:
        """Take the outputs of a project.

        Args:
            outputs: of the project.
            datasets: prefix → manifest of datasets that may not be built yet; others are looked up.
        """
        self._outputs = outputs
        self._datasets = datasets
        self._known: dict[tuple[tuple[str, Rows], ...], list[CorpusParts]] = {}

    def parts(self, rows_by_prefix: Mapping[str, Rows]) -> Sequence[CorpusParts]:
        """Return the corpora of some datasets, of which only these rows count.

        Raises:
            MissingError: what a view was chosen from, or packs were made of, was deleted.
        """
        key = tuple(sorted(rows_by_prefix.items()))
        if key not in self._known:
            self._known[key] = self._count(rows_by_prefix)
        return self._known[key]

    def _count(self, rows_by_prefix: Mapping[str, Rows]) -> list[CorpusParts]:
        # Members by the version of the corpus's dataset that they were made from.
        manifests = {prefix: self._manifest(prefix) for prefix in rows_by_prefix}
        prefixes_by_digest: dict[str, list[str]] = {}
        corpora: dict[str, Manifest] = {}
        for prefix, manifest in manifests.items():
            corpus = chosen_from(self._outputs, packed_from(self._outputs, manifest))
            corpora[corpus.digest] = corpus
            prefixes_by_digest.setdefault(corpus.digest, []).append(prefix)

        found = []
        for digest, prefixes in prefixes_by_digest.items():
            members = [_Member(self._outputs, manifests[prefix], rows_by_prefix[prefix]) for prefix in prefixes]
            names = tuple(manifests[prefix].name for prefix in prefixes)
            parts = _parts_of(corpora[digest], members)
            found.append(CorpusParts(corpora[digest].name, names, tuple(prefixes), parts))
        return found

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
    """A dataset that a split reads, with the rows that it reads."""

    def __init__(self, outputs: OutputRoot, dataset: Manifest, rows: Rows) -> None:
        self.dataset = dataset
        self.packed = packed_from(outputs, dataset)
        """The dataset itself, or the one that packs were made of."""
        self.rows = rows
        self._is_ascending: bool | None = None

    @property
    def holds_documents_once(self) -> bool:
        """Whether it is known without a look that each of its tokens is another one of the corpus."""
        if is_packs(self.dataset):
            return False
        return not any(key.endswith(".repeat") for key in self.dataset.recipe["options"])

    def index(self) -> Index:
        """Return the index of the dataset, or of the one that packs were made of."""
        return read_idx(self.packed.path(f"{self.packed.facts['prefix']}.idx"), validate=False)

    def held(self, corpus: Index, index: Index, documents: tuple[int, int]) -> NDArray[np.int64]:
        """Return how many tokens it holds of each document [start, stop) of the corpus, int64, shape (documents,)."""
        start, stop = documents
        tokens = np.zeros(stop - start, np.int64)
        for numbers, lengths in self._tokens(corpus, index, documents):
            # float64 is exact for the tokens of a document
            counts = np.bincount(numbers - start, lengths.astype(np.float64), stop - start)
            tokens += counts.astype(np.int64)
        return tokens

    def _tokens(
        self, corpus: Index, index: Index, documents: tuple[int, int]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (numbers of documents within a range, tokens held of each); a document may come several times."""
        if is_packs(self.dataset):
            yield from self._tokens_of_packs(corpus, index, documents)
        else:
            yield from self._tokens_of_sequences(corpus, index, documents)

    def _tokens_of_sequences(
        self, corpus: Index, index: Index, documents: tuple[int, int]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        # The sequences of the range, and where their tokens begin and end in the corpus's .bin.
        bounds = corpus.document_indices[documents[0] : documents[1] + 1]
        first_sequence = int(bounds[0])
        pointers = np.array(corpus.sequence_pointers[first_sequence : int(bounds[-1])])
        if not len(pointers):
            return
        last = int(bounds[-1])
        has_more = last < len(corpus.sequence_pointers)
        stop_pointer = int(corpus.sequence_pointers[last]) if has_more else np.iinfo(np.int64).max

        low, high = self._rows_between(index, int(pointers[0]), stop_pointer)
        for begin in range(low, high, _SEQUENCES):
            some = slice(begin, min(begin + _SEQUENCES, high))
            own_pointers = np.array(index.sequence_pointers[some])
            lengths = np.array(index.sequence_lengths[some])
            is_within = (own_pointers >= pointers[0]) & (own_pointers < stop_pointer) & (lengths > 0)
            sequences = first_sequence + np.searchsorted(pointers, own_pointers[is_within], side="right") - 1
            numbers = documents[0] + np.searchsorted(bounds, sequences, side="right") - 1
            yield numbers, lengths[is_within].astype(np.int64)

    def _rows_between(self, index: Index, low: int, high: int) -> tuple[int, int]:
        """Return the rows, of those that the split has, that may point into a range; fewer if they are in its order."""
        if self._is_ascending is None:
            self._is_ascending = _is_ascending(index, self.rows)
        if not self._is_ascending:
            return self.rows
        own = index.sequence_pointers[self.rows[0] : self.rows[1]]
        bounds = places_upto(own, [low - 1, high - 1]) + 1
        return self.rows[0] + int(bounds[0]), self.rows[0] + int(bounds[1])

    def _tokens_of_packs(
        self, corpus: Index, index: Index, documents: tuple[int, int]
    ) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        for numbers, lengths in self._pieces(index):
            if is_view(self.packed):
                numbers = documents_in(corpus, index, numbers)
            is_within = (numbers >= documents[0]) & (numbers < documents[1])
            yield numbers[is_within], lengths[is_within]

    def _pieces(self, index: Index) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Yield (documents of the dataset that was packed, tokens of each) of the pieces in the packs of the split."""
        if PIECES_FILE in self.dataset.files:
            for rows in pieces_of(self.dataset).between(*self.rows):
                yield rows.documents, rows.tokens
            return

        # The packs are not built yet: lay them out as they will be.
        rules = PackingRules.of(self.dataset.recipe["options"])
        lengths = document_lengths(index.sequence_lengths, index.document_indices)
        _, plan = plan_counts(lengths, rules)
        windows: Iterator[Pieces] = assign(lengths, rules.pieces, plan, rules.seed)
        if rules.tail == "carry":
            windows = carry_room(windows, rules.pieces.length)
        first = 0
        for window in windows:
            count = len(window.bounds) - 1
            begin = min(max(self.rows[0] - first, 0), count)
            end = min(max(self.rows[1] - first, begin), count)
            pieces = window.slice(begin, end)
            yield pieces.documents, pieces.lengths
            first += count


def _is_ascending(index: Index, rows: Rows) -> bool:
    """Return whether sequences are stored in the order of their tokens."""
    for begin in range(rows[0], rows[1], _SEQUENCES):
        pointers = np.array(index.sequence_pointers[begin : min(begin + _SEQUENCES + 1, rows[1])])
        if (np.diff(pointers) < 0).any():
            return False
    return True


def _parts_of(corpus: Manifest, members: Sequence[_Member]) -> tuple[CorpusPart, ...]:
    if len(members) == 1 and members[0].holds_documents_once:
        lengths = members[0].index().sequence_lengths[slice(*members[0].rows)]
        total = int(lengths.sum(dtype=np.int64))
        return (CorpusPart((1,), total),) if total else ()

    corpus_index = read_idx(corpus.path(f"{corpus.facts['prefix']}.idx"), validate=False)
    indices = [member.index() for member in members]
    tokens_by_copies: dict[tuple[int, ...], int] = {}
    n_documents = len(corpus_index.document_indices) - 1
    step = max(_CELLS // len(members), 1)
    starts = range(0, n_documents, step)
    for start, stop in pairwise([*starts, n_documents]):
        # (documents, members) tokens that each member holds of each document
        columns = [
            member.held(corpus_index, index, (start, stop)) for member, index in zip(members, indices, strict=True)
        ]
        held = np.stack(columns, axis=1)
        tokens = _document_tokens(corpus_index, start, stop)
        for copies, count in count_copies(held, tokens):
            tokens_by_copies[copies] = tokens_by_copies.get(copies, 0) + count
    return tuple(CorpusPart(copies, count) for copies, count in sorted(tokens_by_copies.items()))


def _document_tokens(index: Index, start: int, stop: int) -> NDArray[np.int64]:
    """Return the tokens of documents [start, stop), int64, shape (documents,)."""
    bounds = index.document_indices[start : stop + 1]
    lengths = index.sequence_lengths[int(bounds[0]) : int(bounds[-1])]
    ends = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens: NDArray[np.int64] = np.diff(ends[bounds - bounds[0]])
    return tokens


def count_copies(held: NDArray[np.int64], tokens: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (copies in each member, tokens with so many copies), without tokens that no member holds.

    A member may hold only the first tokens of a document, as packs do that truncate it: these tokens have one copy more
    in that member than the others. If several members hold a part of one document, all parts are taken to begin at its
    start. That is exact for truncated documents; it is not for a document whose pieces a split cuts apart, of which
    there are as many as packs have at the border of a split.

    Args:
        held: int64, shape (documents, members): tokens that each member holds of each document.
        tokens: int64, shape (documents,): tokens of each document.
    """
    is_held = held.any(axis=1)
    held = held[is_held]
    tokens = tokens[is_held]
    copies = held // tokens[:, None]
    rest = held % tokens[:, None]

    is_whole = ~rest.any(axis=1)
    yield from _by_copies(copies[is_whole], tokens[is_whole])

    # Cut the other documents where a member's copy ends: (documents, members + 2) bounds in ascending order.
    copies = copies[~is_whole]
    rest = rest[~is_whole]
    tokens = tokens[~is_whole]
    bounds = np.sort(np.column_stack([np.zeros_like(tokens), rest, tokens]), axis=1)
    for number in range(bounds.shape[1] - 1):
        begin = bounds[:, number]
        width = bounds[:, number + 1] - begin
        yield from _by_copies(copies + (rest > begin[:, None]), width)


def _by_copies(copies: NDArray[np.int64], tokens: NDArray[np.int64]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Yield (copies in each member, sum of tokens) for each row of copies that occurs."""
    is_held = copies.any(axis=1) & (tokens > 0)
    copies = copies[is_held]
    tokens = tokens[is_held]
    if not len(tokens):
        return

    # One number for each combination of copies: sort only if there may be very many.
    sizes = copies.max(axis=0) + 1
    if np.prod(sizes.astype(np.float64)) <= _FEW_CODES:
        codes = np.ravel_multi_index(tuple(copies.T), tuple(sizes.tolist()))
        sums = np.bincount(codes, tokens.astype(np.float64))
        for code in np.flatnonzero(sums).tolist():
            combination = tuple(int(number) for number in np.unravel_index(code, tuple(sizes.tolist())))
            yield combination, int(sums[code])
        return
    combinations, codes = np.unique(copies, axis=0, return_inverse=True)
    sums = np.bincount(codes.ravel(), tokens.astype(np.float64))
    for row, count in zip(combinations.tolist(), sums.tolist(), strict=True):
        yield tuple(row), int(count)
