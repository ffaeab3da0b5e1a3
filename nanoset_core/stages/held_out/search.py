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

    def is_in_train(self, first_document: int, count: int) -> NDArray[np.bool_]:
        """Return which of `count` consecutive documents train reads, shape (count,)."""
        return (self.marks[first_document : first_document + count] & _TRAIN) > 0

    def is_held_out(self, first_document: int, count: int) -> NDArray[np.bool_]:
        """Return which of `count` consecutive documents valid or test read, shape (count,)."""
        return (self.marks[first_document : first_document + count] & _HELD_OUT) > 0

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
        Each corpus with a mark for each of its documents: a byte in which bit 0 is set if train
        reads the document, bit 1 if valid does, and bit 2 if test does.

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

            # Marks are by the number of a document, so all datasets must number them alike.
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
    """Find held-out documents that are copies of a document that train reads.

    A document is held out if valid or test reads it. Two documents are copies if all of their
    tokens are equal, which is decided by a hash of these. The memory that this takes grows with the
    held-out documents, by 24 bytes for each, and not with those of train.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.

    Returns:
        A pair of each copy, and the first document of train that has its tokens. Held-out documents
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
        corpora=held_out.corpora[is_copy],
        documents=held_out.documents[is_copy],
        train_corpora=train_corpora[is_copy],
        train_documents=train_documents[is_copy],
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

    Documents with hardly any tokens, whose hash is 0, are left out.

    Args:
        corpora: The corpora that the nanoset reads.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
    """
    # One array for each shard. The empty ones let `concatenate` succeed without any shard.
    corpus_numbers = [np.empty(0, np.int64)]
    document_numbers = [np.empty(0, np.int64)]
    document_hashes = [np.empty(0, np.uint64)]
    for corpus_number, corpus in enumerate(corpora):
        for first_document, shard_hashes in hashes_of(corpus_number):
            n_documents = len(shard_hashes)
            is_held_out = corpus.is_held_out(first_document, n_documents)
            is_in_train = corpus.is_in_train(first_document, n_documents)
            has_hash = shard_hashes > 0
            # (n_selected,) indices within the shard
            selected = np.flatnonzero(is_held_out & ~is_in_train & has_hash)
            corpus_numbers.append(np.full(len(selected), corpus_number))
            document_numbers.append(first_document + selected)
            document_hashes.append(shard_hashes[selected])
    return _HashedDocuments(
        corpora=np.concatenate(corpus_numbers),
        documents=np.concatenate(document_numbers),
        hashes=np.concatenate(document_hashes),
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
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
        held_out_hashes: The hashes: distinct, ascending, at least one; shape (n_hashes,).

    Returns:
        For each hash, the corpus and the document; both are -1 if no document of train has it.
    """
    n_hashes = len(held_out_hashes)
    train = _TrainDocuments(corpora=np.full(n_hashes, -1), documents=np.full(n_hashes, -1))
    for corpus_number, corpus in enumerate(corpora):
        for first_document, shard_hashes in hashes_of(corpus_number):
            # (n_candidates,) indices within the shard, of the documents that train reads
            is_in_train = corpus.is_in_train(first_document, len(shard_hashes))
            candidates = np.flatnonzero(is_in_train & (shard_hashes > 0))
            candidate_hashes = shard_hashes[candidates]

            # (n_candidates,) where each hash would be inserted into the sorted held-out hashes. If
            # they contain it, it is exactly there. A hash above all would be after the last one.
            positions = np.searchsorted(held_out_hashes, candidate_hashes)
            positions = np.minimum(positions, n_hashes - 1)
            is_match = held_out_hashes[positions] == candidate_hashes
            matches = candidates[is_match]

            # Of several documents with one hash take the first, unless an earlier shard has one.
            # `np.unique` returns the index of the first occurrence.
            matched_hashes, first_match = np.unique(positions[is_match], return_index=True)
            is_new = train.documents[matched_hashes] < 0
            new_hashes = matched_hashes[is_new]
            train.corpora[new_hashes] = corpus_number
            train.documents[new_hashes] = first_document + matches[first_match[is_new]]
    return train
