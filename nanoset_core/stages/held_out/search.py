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

from collections.abc import Callable, Iterator, Sequence
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
    dataset: Manifest
    index: Index
    """The corpus's `.idx`."""
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
        """Return which of `count` consecutive documents train reads, shape (count,)."""
        return (self.marks[first_document : first_document + count] & _TRAIN) > 0

    def is_held_out(self, first_document: int, count: int) -> NDArray[np.bool_]:
        """Return which of `count` consecutive documents valid or test read, shape (count,)."""
        return (self.marks[first_document : first_document + count] & _HELD_OUT) > 0

    def count_held_out(self) -> int:
        """Return how many documents valid or test read."""
        return int(np.count_nonzero(self.marks & _HELD_OUT))

    def count_tokens(self, documents: NDArray[np.int64]) -> int:
        """Return the number of tokens of some documents; each has at least one."""
        # The sequences of a document are consecutive in the .bin.
        first_sequences = self.index.document_indices[documents]
        last_sequences = self.index.document_indices[documents + 1] - 1
        pointers = self.index.sequence_pointers
        bytes_before_last = pointers[last_sequences] - pointers[first_sequences]
        tokens_before_last = bytes_before_last // self.index.dtype.itemsize
        last_tokens = self.index.sequence_lengths[last_sequences]
        return int(tokens_before_last.sum()) + int(last_tokens.sum(dtype=np.int64))

    def split_holding_out(self, document: int) -> SplitName:
        """Return the split that reads a held-out document; valid if both do."""
        return "valid" if self.marks[document] & _VALID else "test"


class HeldOutPairs(NamedTuple):
    """Pairs of a held-out document, and a document that train reads with the same tokens.

    Each array is int64 of shape (n_pairs,). Corpora are numbers in a list of `ReadCorpus`.
    """

    corpora: NDArray[np.int64]
    documents: NDArray[np.int64]
    train_corpora: NDArray[np.int64]
    train_documents: NDArray[np.int64]

    @staticmethod
    def none() -> HeldOutPairs:
        """Return no pairs."""
        empty = np.empty(0, np.int64)
        return HeldOutPairs(empty, empty, empty, empty)

    def first(self, count: int) -> HeldOutPairs:
        """Return the first pairs."""
        return HeldOutPairs(*[column[:count] for column in self])

    def where(self, mask: NDArray[np.bool_]) -> HeldOutPairs:
        """Return the pairs for which a mask, shape (n_pairs,), is True."""
        return HeldOutPairs(*[column[mask] for column in self])

    @staticmethod
    def concatenate(parts: Sequence[HeldOutPairs]) -> HeldOutPairs:
        """Return the pairs of all parts, in order."""
        columns = zip(*parts, strict=True)
        return HeldOutPairs(*[np.concatenate(arrays) for arrays in columns])


def read_corpora(project: Project, nanoset: NanosetContext) -> list[ReadCorpus]:
    """Find out which documents of its corpora each split of a nanoset reads.

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
        planned = nanoset.plan(split)
        if planned.plan is None or not planned.plan.members:
            continue  # the split reads no documents
        # A member of the plan is a range of a dataset's rows, which the split reads.
        for name, member in zip(planned.corpora, planned.plan.members, strict=True):
            dataset = datasets.open(nanoset.dataset(name))
            corpus = _corpus_of(dataset, corpus_by_name, project)
            for documents in dataset.documents_in(*member.rows):
                corpus.marks[documents] |= 1 << split_number
    return list(corpus_by_name.values())


def _corpus_of(
    dataset: Dataset, corpus_by_name: dict[str, ReadCorpus], project: Project
) -> ReadCorpus:
    """Return the corpus that a dataset was made from.

    Args:
        dataset: The corpus itself, or a view or pack of it.
        corpus_by_name: Receives the corpus, if it is not in there.

    Raises:
        StaleError: Another dataset was made from another version of the corpus, in which documents
            have other numbers.
    """
    manifest = dataset.corpus.manifest
    if manifest.name not in corpus_by_name:
        index = dataset.corpus.index
        n_documents = len(index.document_indices) - 1  # they are bounds
        marks = np.zeros(n_documents, np.uint8)  # bit k of a document's byte: split k reads it
        corpus_by_name[manifest.name] = ReadCorpus(project, manifest, index, marks)

    corpus = corpus_by_name[manifest.name]
    if corpus.dataset.digest != manifest.digest:
        raise StaleError(
            "views of a nanoset are of several versions of their corpus",
            where=dataset.unpacked.manifest.url(),
            remedy="run `nanoset build`",
        )
    return corpus


def find_shared(corpora: Sequence[ReadCorpus]) -> HeldOutPairs:
    """Return the documents that both train and another split read, each as a pair with itself."""
    parts = [HeldOutPairs.none()]
    for number, corpus in enumerate(corpora):
        n_documents = len(corpus.marks)
        is_shared = corpus.is_in_train(0, n_documents) & corpus.is_held_out(0, n_documents)
        documents = np.flatnonzero(is_shared)
        numbers = np.full(len(documents), number)
        parts.append(HeldOutPairs(numbers, documents, numbers, documents))
    return HeldOutPairs.concatenate(parts)


def find_copies(corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus) -> HeldOutPairs:
    """Find held-out documents that are copies of a document that train reads.

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

    # Several held-out documents may have the same hash: look it up in train once.
    unique_hashes, hash_indices = np.unique(held_out.hashes, return_inverse=True)
    train = _first_train_documents(corpora, hashes_of, unique_hashes)
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
    documents: int
    tokens: int


def count_train_copies(
    corpora: Sequence[ReadCorpus],
    hashes_of: HashesOfCorpus,
    max_documents: int = _MAX_SORTED_DOCUMENTS,
) -> list[TrainCopies]:
    """Count the documents of train that are copies of an earlier document of train.

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
    n_copies = np.zeros(len(corpora), np.int64)
    n_tokens = np.zeros(len(corpora), np.int64)

    # Equal hashes have equal remainders. So documents can be compared in groups of one remainder.
    n_train = sum(int(np.count_nonzero(corpus.marks & _TRAIN)) for corpus in corpora)
    n_groups = n_train // max_documents + 1
    for remainder in range(n_groups):
        group = _train_documents(corpora, hashes_of, n_groups, remainder)

        # Sort by hash. Documents with equal hashes stay in order, so that copies follow the first.
        order = np.argsort(group.hashes, kind="stable")
        sorted_hashes = group.hashes[order]
        copies = order[1:][sorted_hashes[1:] == sorted_hashes[:-1]]  # indices in the group
        for number, corpus in enumerate(corpora):
            documents = group.documents[copies[group.corpora[copies] == number]]
            n_copies[number] += len(documents)
            n_tokens[number] += corpus.count_tokens(documents)

    counts = []
    for number in np.flatnonzero(n_copies).tolist():
        name = corpora[number].name
        counts.append(TrainCopies(name, int(n_copies[number]), int(n_tokens[number])))
    return counts


def _train_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, n_groups: int, remainder: int
) -> _HashedDocuments:
    """Return the documents that train reads and whose hashes have a certain remainder.

    Args:
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
        n_groups: The number by which hashes are divided.
        remainder: The remainder that is selected.
    """
    parts = [_HashedDocuments.none()]
    for corpus_number, corpus in enumerate(corpora):
        for first_document, hashes in hashes_of(corpus_number):
            is_in_group = hashes % np.uint64(n_groups) == remainder
            is_in_train = corpus.is_in_train(first_document, len(hashes))
            selected = np.flatnonzero(is_in_group & is_in_train & (hashes != _NO_HASH))
            numbers = np.full(len(selected), corpus_number)
            parts.append(_HashedDocuments(numbers, first_document + selected, hashes[selected]))
    return _HashedDocuments.concatenate(parts)


class _HashedDocuments(NamedTuple):
    """Documents and their hashes; each array has the shape (n_documents,)."""

    corpora: NDArray[np.int64]
    documents: NDArray[np.int64]
    hashes: NDArray[np.uint64]

    @staticmethod
    def none() -> _HashedDocuments:
        """Return no documents."""
        empty = np.empty(0, np.int64)
        return _HashedDocuments(empty, empty, np.empty(0, np.uint64))

    @staticmethod
    def concatenate(parts: Sequence[_HashedDocuments]) -> _HashedDocuments:
        """Return the documents of all parts, in order."""
        columns = zip(*parts, strict=True)
        return _HashedDocuments(*[np.concatenate(arrays) for arrays in columns])


def _held_out_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus
) -> _HashedDocuments:
    """Return the documents that valid or test read and train does not, with their hashes.

    Documents with hardly any tokens, which have no hash, are left out: equal ones prove nothing.

    Args:
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
    """
    parts = [_HashedDocuments.none()]
    for corpus_number, corpus in enumerate(corpora):
        for first_document, hashes in hashes_of(corpus_number):
            is_held_out = corpus.is_held_out(first_document, len(hashes))
            is_in_train = corpus.is_in_train(first_document, len(hashes))
            selected = np.flatnonzero(is_held_out & ~is_in_train & (hashes != _NO_HASH))
            numbers = np.full(len(selected), corpus_number)
            parts.append(_HashedDocuments(numbers, first_document + selected, hashes[selected]))
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

    def add(
        self, corpus_number: int, documents: NDArray[np.int64], hashes: NDArray[np.uint64]
    ) -> None:
        """Enter documents that train reads, for each held-out hash that has no document yet.

        Args:
            corpus_number: Number of their corpus.
            documents: Their numbers, ascending; shape (n_documents,).
            hashes: Their hashes, shape (n_documents,).
        """
        # Ignore documents whose hash is that of no held-out document.
        hash_indices = _indices_in_sorted(self._hashes, hashes)  # -1 if missing
        documents = documents[hash_indices >= 0]
        hash_indices = hash_indices[hash_indices >= 0]

        # Several documents may have the same hash: take the first one.
        hash_indices, first_positions = np.unique(hash_indices, return_index=True)
        documents = documents[first_positions]

        has_no_document = self.documents[hash_indices] < 0
        self.corpora[hash_indices[has_no_document]] = corpus_number
        self.documents[hash_indices[has_no_document]] = documents[has_no_document]


def _first_train_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, held_out_hashes: NDArray[np.uint64]
) -> _TrainDocuments:
    """Find, for each hash of a held-out document, the first document of train that has it.

    Args:
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
        held_out_hashes: The hashes: distinct, ascending, at least one; shape (n_hashes,).
    """
    train = _TrainDocuments(held_out_hashes)
    for corpus_number, corpus in enumerate(corpora):
        for first_document, hashes in hashes_of(corpus_number):  # of each shard
            is_in_train = corpus.is_in_train(first_document, len(hashes))
            has_hash = hashes != _NO_HASH  # documents with hardly any tokens have none
            selected = np.flatnonzero(is_in_train & has_hash)
            train.add(corpus_number, first_document + selected, hashes[selected])
    return train


def _indices_in_sorted(
    sorted_hashes: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the index of each of some hashes in a sorted array, or -1 if it is not in there.

    Args:
        sorted_hashes: Distinct hashes, ascending, at least one.
        hashes: The hashes to look up, shape (n_hashes,).
    """
    # Where each hash would be inserted: if the array contains it, it is exactly there.
    indices = np.searchsorted(sorted_hashes, hashes)
    indices = np.minimum(indices, len(sorted_hashes) - 1)  # for a hash above all others
    is_contained = sorted_hashes[indices] == hashes
    return np.where(is_contained, indices, -1)
