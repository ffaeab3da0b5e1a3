"""Find documents that are held out and that train reads, too, themselves or as a copy.

The documents of each corpus are marked with the splits that read them:

    document      0      1      2      3      4      5
    read by     train  train  train  valid  test   valid
                              valid
    hash          A      B      C      B      D      A

Document 2 is shared: train and valid read it. Documents 3 and 5 are copies of 1 and 0: no document
of theirs is shared, but their tokens, and so their hashes, are those of documents that train reads.

With the same hashes, `count_train_copies` counts copies within train: text that a run reads again
although each document is read once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import StaleError
from nanoset_core.formats.indexed.layout import Index
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.dataset.dataset import Dataset
from nanoset_core.stages.datasets import Datasets
from nanoset_core.stages.held_out.hashes import ShardHashes
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.sharded import Sharded

_TRAIN = 1 << SPLITS.index("train")
_VALID = 1 << SPLITS.index("valid")
_TEST = 1 << SPLITS.index("test")
_HELD_OUT = _VALID | _TEST

_NO_HASH = 0  # in place of the hash of a document with hardly any tokens, which proves nothing

_MAX_SORTED_DOCUMENTS = 1 << 24
"""Sorting that many documents takes about 1 GB."""

HashesOfCorpus = Callable[[int], Iterator[ShardHashes]]
"""Yields the hashes of a corpus, by its number in a list of corpora."""


@dataclass
class ReadCorpus:
    """A corpus of which a nanoset reads documents."""

    project: Project
    """The project of the corpus."""
    dataset: Manifest
    """The corpus's dataset."""
    index: Index
    """The `.idx` of the dataset."""
    marks: NDArray[np.uint8]
    """Bits that say which splits read each document, shape (n_documents,)."""

    @property
    def name(self) -> str:
        """Name of the corpus."""
        return self.dataset.name

    @cached_property
    def sharded(self) -> Sharded:
        """The documents of each of its shards; looked up when they are needed."""
        return Sharded.of(self.project, self.dataset)

    def is_in_train(self, first_document: int, count: int) -> NDArray[np.bool_]:
        """Return which of some consecutive documents train reads.

        Args:
            first_document: Number of the first document.
            count: Number of documents.

        Returns:
            bool, shape (count,).
        """
        return (self.marks[first_document : first_document + count] & _TRAIN) > 0

    def is_held_out(self, first_document: int, count: int) -> NDArray[np.bool_]:
        """Return which of some consecutive documents valid or test read.

        Args:
            first_document: Number of the first document.
            count: Number of documents.

        Returns:
            bool, shape (count,).
        """
        return (self.marks[first_document : first_document + count] & _HELD_OUT) > 0

    def count_in_train(self) -> int:
        """Return how many documents train reads."""
        return int(np.count_nonzero(self.marks & _TRAIN))

    def count_held_out(self) -> int:
        """Return how many documents valid or test read."""
        return int(np.count_nonzero(self.marks & _HELD_OUT))

    def count_tokens(self, documents: NDArray[np.int64]) -> int:
        """Return how many tokens some documents have together.

        Args:
            documents: Numbers of the documents, shape (n_documents,). Each has at least one token.
        """
        # A document has one or more sequences, which are consecutive in the .bin.
        first_sequences = self.index.document_indices[documents]  # (n_documents,)
        last_sequences = self.index.document_indices[documents + 1] - 1

        # Its tokens are those from the start of its first sequence to the start of the last one,
        # and those of the last one. Pointers are the first byte of each sequence.
        pointers = self.index.sequence_pointers
        bytes_before_last = pointers[last_sequences] - pointers[first_sequences]
        tokens_before_last = bytes_before_last // self.index.dtype.itemsize
        tokens_of_last = self.index.sequence_lengths[last_sequences]
        return int(tokens_before_last.sum()) + int(tokens_of_last.sum(dtype=np.int64))

    def split_holding_out(self, document: int) -> SplitName:
        """Return the split that reads a held-out document.

        Args:
            document: Number of the document, which valid or test reads.

        Returns:
            "valid" or "test"; "valid" if both read it.
        """
        return "valid" if self.marks[document] & _VALID else "test"


class HeldOutPair(NamedTuple):
    """A held-out document, and a document that train reads with the same tokens.

    Corpora are numbers in a list of `ReadCorpus`.
    """

    corpus: int
    """Number of the held-out document's corpus."""
    document: int
    """Number of the held-out document."""
    train_corpus: int
    """Number of the other document's corpus."""
    train_document: int
    """Number of the document that train reads; may be the held-out document itself."""


class HeldOutPairs(NamedTuple):
    """Pairs of a held-out document, and a document that train reads with the same tokens.

    The fields are those of `HeldOutPair`; each array is int64 of shape (n_pairs,).
    """

    corpora: NDArray[np.int64]
    """Number of each held-out document's corpus."""
    documents: NDArray[np.int64]
    """Number of each held-out document."""
    train_corpora: NDArray[np.int64]
    """Number of the corpus of each document of train."""
    train_documents: NDArray[np.int64]
    """Number of each document of train."""

    def each(self) -> Iterator[HeldOutPair]:
        """Yield the pairs one by one."""
        columns = [column.tolist() for column in self]
        for values in zip(*columns, strict=True):
            yield HeldOutPair(*values)

    @staticmethod
    def none() -> HeldOutPairs:
        """Return no pairs."""
        empty = np.empty(0, np.int64)
        return HeldOutPairs(empty, empty, empty, empty)

    def documents_of_corpus(self, corpus: int) -> set[int]:
        """Return the documents of a corpus that are in one of the pairs, held out or in train.

        Args:
            corpus: Number of the corpus.
        """
        held_out = self.documents[self.corpora == corpus]
        in_train = self.train_documents[self.train_corpora == corpus]
        return {*held_out.tolist(), *in_train.tolist()}

    def first(self, count: int) -> HeldOutPairs:
        """Return the first pairs.

        Args:
            count: How many at most.
        """
        return HeldOutPairs(*[column[:count] for column in self])

    def where(self, mask: NDArray[np.bool_]) -> HeldOutPairs:
        """Return some of the pairs.

        Args:
            mask: True for these pairs, shape (n_pairs,).
        """
        return HeldOutPairs(*[column[mask] for column in self])

    @staticmethod
    def concatenate(parts: Sequence[HeldOutPairs]) -> HeldOutPairs:
        """Return the pairs of all parts, in order.

        Args:
            parts: The parts, at least one.
        """
        columns = zip(*parts, strict=True)
        return HeldOutPairs(*[np.concatenate(arrays) for arrays in columns])


def read_corpora(project: Project, nanoset: NanosetContext) -> list[ReadCorpus]:
    """Find out which documents each split (train, valid, test) of a nanoset reads.

    Args:
        project: The project.
        nanoset: The nanoset. Each of its datasets has documents of a corpus.

    Returns:
        Each corpus with a byte for each of its documents: bit 0 is set if train reads the document,
        bit 1 if valid does, and bit 2 if test does.

    Raises:
        MissingError: A dataset has not been built.
        StaleError: Two views were made from different versions of their corpus.
        ConfigError, InputError: A split cannot be filled as its settings ask.
    """
    datasets = Datasets(project.outputs)
    corpus_by_name: dict[str, ReadCorpus] = {}
    for split_number, split in enumerate(SPLITS):
        split_bit = 1 << split_number
        for dataset_range in _ranges_of_split(nanoset, split):
            dataset = datasets.open(nanoset.dataset(dataset_range.name))
            corpus_name = dataset.corpus.manifest.name
            if corpus_name not in corpus_by_name:
                corpus_by_name[corpus_name] = _unread_corpus(dataset.corpus, project)
            corpus = corpus_by_name[corpus_name]
            _check_corpus_version(dataset, corpus)
            for documents in dataset.documents_in(dataset_range.start, dataset_range.stop):
                corpus.marks[documents] |= split_bit
    return list(corpus_by_name.values())


class _DatasetRange(NamedTuple):
    """Consecutive rows of a dataset, which a split reads. A row is a document or a pack."""

    name: str
    """Name of the dataset."""
    start: int
    """Number of the first row."""
    stop: int
    """Number of the row after the last one."""


def _ranges_of_split(nanoset: NanosetContext, split: SplitName) -> Iterator[_DatasetRange]:
    """Yield what a split of a nanoset reads of each of its datasets: a range of rows.

    For example, train reads the rows 0 to 989 of `web`, and valid reads the rows 990 to 999.

    Args:
        nanoset: The nanoset.
        split: `train`, `valid` or `test`.

    Raises:
        ConfigError, InputError: The split cannot be filled as its settings ask.
    """
    planned = nanoset.plan(split)
    if planned.plan is None or not planned.plan.members:
        return  # the split reads no documents
    dataset_plans = planned.plan.members  # in the order of the datasets
    for name, dataset_plan in zip(planned.corpora, dataset_plans, strict=True):
        start, stop = dataset_plan.rows
        yield _DatasetRange(name, start, stop)


def _check_corpus_version(dataset: Dataset, corpus: ReadCorpus) -> None:
    """Check that a dataset was made from the same version of its corpus as the other datasets.

    In another version, documents have other numbers, which cannot be compared.

    Args:
        dataset: The corpus itself, or a view or pack of it.
        corpus: The version of the corpus that the other datasets were made from.

    Raises:
        StaleError: The dataset was made from another version.
    """
    if corpus.dataset.digest != dataset.corpus.manifest.digest:
        raise StaleError(
            "views of a nanoset are of several versions of their corpus",
            where=dataset.unpacked.manifest.url(),
            remedy="run `nanoset build`",
        )


def _unread_corpus(dataset: Dataset, project: Project) -> ReadCorpus:
    """Return a corpus of which no split reads a document so far.

    Args:
        dataset: The corpus.
        project: The project.
    """
    n_documents = len(dataset.index.document_indices) - 1  # they are bounds
    marks = np.zeros(n_documents, np.uint8)  # bit k of a document's byte: split k reads it
    return ReadCorpus(project, dataset.manifest, dataset.index, marks)


def find_shared(corpora: Sequence[ReadCorpus]) -> HeldOutPairs:
    """Return the documents that both the split train and another split read.

    They are held out in name only. Each is returned as a pair with itself: held-out document 2 is
    document 2 of train.

    Args:
        corpora: The corpora that the nanoset reads.
    """
    parts = [HeldOutPairs.none()]  # for the case that there are no corpora
    for number, corpus in enumerate(corpora):
        n_documents = len(corpus.marks)
        is_shared = corpus.is_in_train(0, n_documents) & corpus.is_held_out(0, n_documents)
        documents = np.flatnonzero(is_shared)
        corpus_numbers = np.full(len(documents), number)
        pairs = HeldOutPairs(
            corpora=corpus_numbers,
            documents=documents,
            train_corpora=corpus_numbers,
            train_documents=documents,
        )
        parts.append(pairs)
    return HeldOutPairs.concatenate(parts)


def find_copies(corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus) -> HeldOutPairs:
    """Find held-out documents that are copies of a document that the split train reads.

    A document is held out if valid or test reads it, and a copy if its tokens have the same hash.
    Memory grows by 24 bytes for each held-out document, and not with train.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.

    Returns:
        Each held-out copy with the first document of train that has the same tokens. A held-out
        document that train reads itself is left out.
    """
    held_out = _held_out_documents(corpora, hashes_of)
    if not len(held_out.hashes):
        return HeldOutPairs.none()

    # Several held-out documents may have the same hash: look it up in train once. For example, the
    # hashes [9, 5, 9] are [5, 9] at the indices [1, 0, 1].
    unique_hashes, hash_indices = np.unique(held_out.hashes, return_inverse=True)
    train = _first_train_documents(corpora, hashes_of, unique_hashes)  # (n_unique,) for each hash
    pairs = HeldOutPairs(
        corpora=held_out.corpora,
        documents=held_out.documents,
        train_corpora=train.corpora[hash_indices],
        train_documents=train.documents[hash_indices],
    )
    return pairs.where(pairs.train_documents >= 0)  # -1: train has no such document


class TrainCopies(NamedTuple):
    """The documents of a corpus that train reads although it reads the same tokens before."""

    corpus: str
    """Name of the corpus."""
    documents: int
    """How many documents are copies."""
    tokens: int
    """How many tokens they have together."""


def count_train_copies(
    corpora: Sequence[ReadCorpus],
    hashes_of: HashesOfCorpus,
    max_documents: int = _MAX_SORTED_DOCUMENTS,
) -> list[TrainCopies]:
    """Count the documents of the split train that are copies of an earlier document of it.

    Of documents with the same tokens, all but the first one are copies, in the order of the corpora
    and of their documents. A view that repeats a document does not make it a copy.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
        max_documents: About how many documents are sorted at a time, which bounds memory.

    Returns:
        The counts of each corpus with copies.
    """
    n_documents: Counter[int] = Counter()  # by number of the corpus
    n_tokens: Counter[int] = Counter()

    for copies in _train_copies(corpora, hashes_of, max_documents):
        for number in np.unique(copies.corpora).tolist():
            documents = copies.documents[copies.corpora == number]
            n_documents[number] += len(documents)
            n_tokens[number] += corpora[number].count_tokens(documents)

    counts = []
    for number in sorted(n_documents):
        name = corpora[number].name
        counts.append(TrainCopies(name, n_documents[number], n_tokens[number]))
    return counts


def _train_copies(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, max_documents: int
) -> Iterator[_HashedDocuments]:
    """Yield the documents of train that have the hash of an earlier one, group by group.

    All documents may be too many to sort. So their hashes are divided by a number such as 3, and
    those with the remainders 0, 1 and 2 are sorted separately: equal hashes have equal remainders.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Yields the hashes of a corpus's documents, see `_hashed_shards`.
        max_documents: About how many documents are sorted at a time.
    """
    n_in_train = sum(corpus.count_in_train() for corpus in corpora)
    n_groups = n_in_train // max_documents + 1
    for remainder in range(n_groups):
        group = _train_documents(corpora, hashes_of, n_groups, remainder)
        yield _copies_in(group)


def _copies_in(group: _HashedDocuments) -> _HashedDocuments:
    """Return the documents of a group that have the hash of an earlier document of the group.

    For example, of documents with the hashes 7 3 7 7, the third and the fourth.

    Args:
        group: The documents.

    Returns:
        The copies, sorted by hash.
    """
    # Documents with equal hashes stay in order, so that copies follow the first of them.
    by_hash = group.select(np.argsort(group.hashes, kind="stable"))
    is_copy = by_hash.hashes[1:] == by_hash.hashes[:-1]  # for each document but the first
    return by_hash.select(1 + np.flatnonzero(is_copy))


class _HashedDocuments(NamedTuple):
    """Documents and their hashes; each array has the shape (n_documents,)."""

    corpora: NDArray[np.int64]
    """Number of each document's corpus in a list of `ReadCorpus`."""
    documents: NDArray[np.int64]
    """Number of each document in its corpus."""
    hashes: NDArray[np.uint64]
    """Hash of each document's tokens."""

    def select(self, indices: NDArray[np.int64]) -> _HashedDocuments:
        """Return some of the documents.

        Args:
            indices: Their indices, in the order in which they are returned.
        """
        return _HashedDocuments(
            corpora=self.corpora[indices],
            documents=self.documents[indices],
            hashes=self.hashes[indices],
        )

    @staticmethod
    def concatenate(parts: Iterable[_HashedDocuments]) -> _HashedDocuments:
        """Return the documents of all parts, in order.

        Args:
            parts: The parts; without any, the result has no documents.
        """
        empty = np.empty(0, np.int64)
        no_documents = _HashedDocuments(empty, empty, np.empty(0, np.uint64))
        columns = zip(no_documents, *parts, strict=True)
        return _HashedDocuments(*[np.concatenate(arrays) for arrays in columns])


class _HashedShard(NamedTuple):
    """Consecutive documents of a corpus, which splits of a nanoset may read, and their hashes."""

    corpus_number: int
    """Number of the corpus in a list of `ReadCorpus`."""
    first_document: int
    """Number of the first document in its corpus."""
    hashes: NDArray[np.uint64]
    """Hash of each document's tokens, shape (n_documents,)."""
    is_in_train: NDArray[np.bool_]
    """Whether train reads each document, shape (n_documents,)."""
    is_held_out: NDArray[np.bool_]
    """Whether valid or test reads each document, shape (n_documents,)."""

    def select(self, mask: NDArray[np.bool_]) -> _HashedDocuments:
        """Return some of the documents, without those that have no hash.

        These have hardly any tokens: that two of them are equal proves nothing.

        Args:
            mask: True for the documents to return, shape (n_documents,).
        """
        selected = np.flatnonzero(mask & (self.hashes != _NO_HASH))
        return _HashedDocuments(
            corpora=np.full(len(selected), self.corpus_number),
            documents=self.first_document + selected,
            hashes=self.hashes[selected],
        )


def _hashed_shards(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus
) -> Iterator[_HashedShard]:
    """Yield the documents of all corpora, shard by shard.

    Args:
        corpora: The corpora.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
    """
    for number, corpus in enumerate(corpora):
        for first_document, hashes in hashes_of(number):
            yield _HashedShard(
                corpus_number=number,
                first_document=first_document,
                hashes=hashes,
                is_in_train=corpus.is_in_train(first_document, len(hashes)),
                is_held_out=corpus.is_held_out(first_document, len(hashes)),
            )


def _train_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, n_groups: int, remainder: int
) -> _HashedDocuments:
    """Return those documents of the split train whose hashes leave a certain remainder.

    Equal hashes have equal remainders. So with all remainders in turn, documents with equal hashes
    are always in one group, and a group is small enough to be sorted.

    Args:
        corpora: The corpora.
        hashes_of: Yields the hashes of a corpus's documents, see `_hashed_shards`.
        n_groups: The number by which hashes are divided.
        remainder: The remainder that is selected.
    """
    parts = []
    for shard in _hashed_shards(corpora, hashes_of):
        is_in_group = shard.hashes % np.uint64(n_groups) == remainder
        parts.append(shard.select(shard.is_in_train & is_in_group))
    return _HashedDocuments.concatenate(parts)


def _held_out_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus
) -> _HashedDocuments:
    """Return the documents that the splits valid or test read, and train does not.

    Args:
        corpora: The corpora.
        hashes_of: Yields the hashes of a corpus's documents, see `_hashed_shards`.
    """
    parts = []
    for shard in _hashed_shards(corpora, hashes_of):
        parts.append(shard.select(shard.is_held_out & ~shard.is_in_train))
    return _HashedDocuments.concatenate(parts)


class _TrainDocuments:
    """The first document of train with each hash of held-out documents."""

    def __init__(self, hashes: NDArray[np.uint64]) -> None:
        """Start without documents.

        Args:
            hashes: The hashes: distinct, ascending, at least one; shape (n_hashes,).
        """
        self._hashes = hashes
        self.corpora = np.full(len(hashes), -1)
        """int64, shape (n_hashes,): number of the corpus, or -1."""
        self.documents = np.full(len(hashes), -1)
        """int64, shape (n_hashes,): -1 if train reads no document with the hash."""

    def add(self, documents: _HashedDocuments) -> None:
        """Enter documents that train reads, for each held-out hash that has no document yet.

        For example, of documents with the hashes 5, 9 and 5, the first is entered for hash 5,
        unless an earlier call has entered one.

        Args:
            documents: The documents, in order.
        """
        # Leave out documents whose hash is that of no held-out document.
        hash_indices = _indices_in_sorted(self._hashes, documents.hashes)  # -1 if missing
        known = np.flatnonzero(hash_indices >= 0)

        # Several documents may have the same hash: take the first one.
        unique_indices, first_positions = np.unique(hash_indices[known], return_index=True)
        first_documents = documents.select(known[first_positions])  # one for each unique index

        # Keep the documents of earlier calls.
        is_new = self.documents[unique_indices] < 0
        new_indices = unique_indices[is_new]
        self.corpora[new_indices] = first_documents.corpora[is_new]
        self.documents[new_indices] = first_documents.documents[is_new]


def _first_train_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, held_out_hashes: NDArray[np.uint64]
) -> _TrainDocuments:
    """Find, for each hash of a held-out document, the first document of train that has it.

    For example, if train has hash 5 in the documents 3 and 8, and hash 9 in none, the result for
    the hashes 5 and 9 is document 3 and -1.

    Args:
        corpora: The corpora.
        hashes_of: Yields the hashes of a corpus's documents, see `_hashed_shards`.
        held_out_hashes: The hashes: distinct, ascending, at least one; shape (n_hashes,).
    """
    train = _TrainDocuments(held_out_hashes)
    for shard in _hashed_shards(corpora, hashes_of):
        train.add(shard.select(shard.is_in_train))
    return train


def _indices_in_sorted(
    sorted_hashes: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the index of each of some hashes in a sorted array, or -1 if it is not in there.

    For example, the hashes 5 and 6 have the indices 1 and -1 in [2, 5, 9].

    Args:
        sorted_hashes: Distinct hashes, ascending, at least one.
        hashes: The hashes to look up, shape (n_hashes,).
    """
    # Where each hash would be inserted: if the array contains it, it is exactly there.
    indices = np.searchsorted(sorted_hashes, hashes)
    indices = np.minimum(indices, len(sorted_hashes) - 1)  # for a hash above all others
    is_contained = sorted_hashes[indices] == hashes
    return np.where(is_contained, indices, -1)
