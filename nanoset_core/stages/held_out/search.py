"""Find documents that are held out and that train reads, too, themselves or as a copy.

The documents of each corpus are marked with the splits that read them:

    document      0      1      2      3      4      5
    read by     train  train  train  valid  test   valid
                              valid
    hash          A      B      C      B      D      A

Document 2 is shared: train and valid read it. Documents 3 and 5 are copies of 1 and 0: no document
of theirs is shared, but their tokens, and so their hashes, are those of documents that train reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import StaleError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.stages.datasets import Datasets
from nanoset_core.stages.held_out.hashes import ShardHashes
from nanoset_core.stages.mappings.planning import NanosetContext
from nanoset_core.stages.sharded import Sharded

_TRAIN = 1 << SPLITS.index("train")
_VALID = 1 << SPLITS.index("valid")
_TEST = 1 << SPLITS.index("test")
_HELD_OUT = _VALID | _TEST

HashesOfCorpus = Callable[[int], Iterator[ShardHashes]]
"""Yields the hashes of a corpus, by its number in a list of corpora."""


@dataclass
class ReadCorpus:
    """A corpus of which a nanoset reads documents."""

    project: Project
    dataset: Manifest
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

    def is_in_train(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which of `count` documents train reads, shape (count,)."""
        return (self.marks[first : first + count] & _TRAIN) > 0

    def is_held_out(self, first: int, count: int) -> NDArray[np.bool_]:
        """Return which of `count` documents valid or test read, shape (count,)."""
        return (self.marks[first : first + count] & _HELD_OUT) > 0

    def count_held_out(self) -> int:
        """Return how many documents valid or test read."""
        return int(np.count_nonzero(self.marks & _HELD_OUT))

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

    @staticmethod
    def concatenate(parts: Sequence[HeldOutPairs]) -> HeldOutPairs:
        """Return the pairs of all parts, in order."""
        columns = zip(*parts, strict=True)
        return HeldOutPairs(*[np.concatenate(arrays) for arrays in columns])


def read_corpora(project: Project, nanoset: NanosetContext) -> list[ReadCorpus]:
    """Find out which documents of its corpora each split of a nanoset reads.

    Args:
        project: The project.
        nanoset: The nanoset, whose datasets are corpora, or views or packs of corpora.

    Returns:
        The corpora. Bit k of a document's mark is set if split k (train, valid, test) reads it.

    Raises:
        MissingError: A dataset has not been built.
        StaleError: Two views were made from different versions of their corpus.
        ConfigError, InputError: A split cannot be filled as its settings ask.
    """
    datasets = Datasets(project.outputs)
    corpus_by_name: dict[str, ReadCorpus] = {}
    for split_number, split in enumerate(SPLITS):
        planned = nanoset.plan(split)
        if planned.plan is None:
            continue
        # A plan has as many members as the split has datasets, or none.
        for name, member in zip(planned.corpora, planned.plan.members, strict=False):
            # Documents of views and packs are marked in the corpus that they are taken from.
            dataset = datasets.open(nanoset.dataset(name))
            manifest = dataset.corpus.manifest
            if manifest.name not in corpus_by_name:
                n_documents = len(dataset.corpus.index.document_indices) - 1
                marks = np.zeros(n_documents, np.uint8)
                corpus_by_name[manifest.name] = ReadCorpus(project, manifest, marks)

            corpus = corpus_by_name[manifest.name]
            if corpus.dataset.digest != manifest.digest:
                raise StaleError(
                    "views of a nanoset are of several versions of their corpus",
                    where=dataset.unpacked.manifest.url(),
                    remedy="run `nanoset build`",
                )
            for documents in dataset.documents_in(*member.rows):
                corpus.marks[documents] |= 1 << split_number
    return list(corpus_by_name.values())


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
    """Find held-out documents whose tokens are those of another document, which train reads.

    The memory that this takes grows with the held-out documents, by 24 bytes for each, and not with
    those of train.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Yields the hashes of a corpus's documents, by the number of the corpus.

    Returns:
        Each of these documents, with the first document of train that has its tokens. Documents
        that train reads themselves are left out.
    """
    held_out = _held_out_documents(corpora, hashes_of)
    if not len(held_out.hashes):
        return HeldOutPairs.none()

    # Look up each hash in train once: several held-out documents may have the same.
    unique_hashes, index_of_hash = np.unique(held_out.hashes, return_inverse=True)
    train = _first_train_documents(corpora, hashes_of, unique_hashes)

    # (n_held_out,) the document of train with the tokens of each held-out document, or -1
    train_corpora = train.corpora[index_of_hash]
    train_documents = train.documents[index_of_hash]
    is_copy = train_documents >= 0
    return HeldOutPairs(
        held_out.corpora[is_copy],
        held_out.documents[is_copy],
        train_corpora[is_copy],
        train_documents[is_copy],
    )


class _HashedDocuments(NamedTuple):
    """Documents and their hashes; each array has the shape (n_documents,)."""

    corpora: NDArray[np.int64]
    documents: NDArray[np.int64]
    hashes: NDArray[np.uint64]


def _held_out_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus
) -> _HashedDocuments:
    """Return the documents that valid or test read and train does not, with their hashes.

    Documents without a hash, which have hardly any tokens, are left out.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Yields the hashes of a corpus's documents, by the number of the corpus.
    """
    corpora_parts = [np.empty(0, np.int64)]
    document_parts = [np.empty(0, np.int64)]
    hash_parts = [np.empty(0, np.uint64)]
    for number, corpus in enumerate(corpora):
        for first, hashes in hashes_of(number):
            is_held_out = corpus.is_held_out(first, len(hashes))
            is_in_train = corpus.is_in_train(first, len(hashes))
            rows = np.flatnonzero(is_held_out & ~is_in_train & (hashes > 0))
            corpora_parts.append(np.full(len(rows), number))
            document_parts.append(first + rows)
            hash_parts.append(hashes[rows])
    return _HashedDocuments(
        np.concatenate(corpora_parts), np.concatenate(document_parts), np.concatenate(hash_parts)
    )


class _TrainDocuments(NamedTuple):
    """The first document of train with each hash; each array has the shape (n_hashes,)."""

    corpora: NDArray[np.int64]
    documents: NDArray[np.int64]
    """-1 if train reads no document with the hash."""


def _first_train_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, held_out_hashes: NDArray[np.uint64]
) -> _TrainDocuments:
    """Find, for each hash of a held-out document, the first document of train that has it.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Yields the hashes of a corpus's documents, by the number of the corpus.
        held_out_hashes: The hashes: distinct, ascending, at least one; shape (n_hashes,).
    """
    n_hashes = len(held_out_hashes)
    train = _TrainDocuments(np.full(n_hashes, -1), np.full(n_hashes, -1))
    for number, corpus in enumerate(corpora):
        for first, hashes in hashes_of(number):
            is_in_train = corpus.is_in_train(first, len(hashes))
            rows = np.flatnonzero(is_in_train & (hashes > 0))  # (n_rows,) in the shard

            # (n_rows,) where each hash would be among the held-out ones
            positions = np.searchsorted(held_out_hashes, hashes[rows])
            positions = np.minimum(positions, n_hashes - 1)
            is_match = held_out_hashes[positions] == hashes[rows]
            rows = rows[is_match]

            # The first row of each held-out hash in this shard, unless an earlier shard has it.
            matched, first_index = np.unique(positions[is_match], return_index=True)
            is_new = train.documents[matched] < 0
            train.corpora[matched[is_new]] = number
            train.documents[matched[is_new]] = first + rows[first_index[is_new]]
    return train
