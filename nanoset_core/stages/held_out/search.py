"""Find leaked documents, which are held out although train reads them or a copy of them.

The documents of each corpus are marked with the splits that read them:

    document      0      1      2      3      4      5
    read by     train  train  train  valid  test   valid
                              valid
    hash          A      B      C      B      D      A

Document 2 is shared: train and valid read it. Documents 3 and 5 are copied: train does not read
them, but 1 and 0, which have the same tokens and so the same hashes. If train had more documents
with the hash B, these would be *further copies*.

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
        """For each of some consecutive documents, return whether the split train reads it.

        Args:
            first_document: Number of the first document.
            count: Number of documents.

        Returns:
            bool, shape (count,), such as [True, True, False].
        """
        return (self.marks[first_document : first_document + count] & _TRAIN) > 0

    def is_held_out(self, first_document: int, count: int) -> NDArray[np.bool_]:
        """For each of some consecutive documents, return whether valid or test reads it.

        Args:
            first_document: Number of the first document.
            count: Number of documents.

        Returns:
            bool, shape (count,), such as [False, True, True].
        """
        return (self.marks[first_document : first_document + count] & _HELD_OUT) > 0

    def count_in_train(self) -> int:
        """Return how many documents train reads."""
        return int(np.count_nonzero(self.marks & _TRAIN))

    def count_held_out(self) -> int:
        """Return how many documents valid or test read."""
        return int(np.count_nonzero(self.marks & _HELD_OUT))

    def count_tokens(self, documents: NDArray[np.int64]) -> int:
        """Return how many tokens some documents of the corpus have together.

        A document is stored as one or more *sequences* of tokens. For example, document 2 has these
        two, with 3 + 2 tokens of 4 bytes each:

            sequence               4     5
            its first byte       100   112
            its tokens             3     2

        Args:
            documents: Numbers of the documents, shape (n_documents,). Each has at least one token.
        """
        first_sequences = self.index.document_indices[documents]  # (n_documents,) such as [4]
        last_sequences = self.index.document_indices[documents + 1] - 1  # [5]

        # Sequences are stored one after another. So the distance from the start of the first
        # sequence to the start of the last one is the size of all sequences but the last one.
        start_bytes = self.index.sequence_pointers  # of all sequences of the corpus
        bytes_before_last = start_bytes[last_sequences] - start_bytes[first_sequences]  # [12]
        tokens_before_last = bytes_before_last // self.index.dtype.itemsize  # [3]
        tokens_of_last = self.index.sequence_lengths[last_sequences]  # [2]
        return int(tokens_before_last.sum()) + int(tokens_of_last.sum(dtype=np.int64))  # 3 + 2

    def split_holding_out(self, document: int) -> SplitName:
        """Return which split reads a document that is held out of training, to name it in a list.

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
        """Return which documents of a corpus are in the pairs, on either side.

        For example, these pairs have the documents 3, 7 and 8 of corpus 0:

            held-out document           document of train
            3 of corpus 0               7 of corpus 0
            8 of corpus 0               5 of corpus 1

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
        """Join several lists of pairs into one.

        Args:
            parts: The lists, at least one.
        """
        columns = zip(*parts, strict=True)
        return HeldOutPairs(*[np.concatenate(arrays) for arrays in columns])


class FurtherCopies(NamedTuple):
    """Copies in train of leaked documents, except those that were found with them."""

    pairs: HeldOutPairs
    """The first of them, each with a held-out document of the same tokens."""
    n_documents: int
    """How many there are; may be more than there are pairs."""


def read_corpora(project: Project, nanoset: NanosetContext) -> list[ReadCorpus]:
    """Find out which documents train, valid and test read, to see whether two of them share any.

    The three splits take their documents from corpora (collections of texts). For each corpus, the
    result has a byte for each document, with a bit for each split: 1 for train, 2 for valid, 4 for
    test. For a corpus of four documents:

        document       0        1        2             3
        read by        train    train    train, valid  none
        its byte       1        1        3             0

    Args:
        project: The project.
        nanoset: What a training run reads: datasets, and how they are split. Each dataset has the
            documents of a corpus, or some of them.

    Returns:
        Each corpus with its bytes.

    Raises:
        MissingError: A dataset has not been built.
        StaleError: Two datasets were made from different versions of their corpus.
        ConfigError, InputError: A split cannot be filled as its settings ask.
    """
    datasets = Datasets(project.outputs)
    corpus_by_name: dict[str, ReadCorpus] = {}
    for split_number, split in enumerate(SPLITS):
        split_bit = 1 << split_number  # 1, 2, 4
        # Each split reads a range of every dataset, such as the rows 0 to 989 of `web`.
        for dataset_range in _ranges_of_split(nanoset, split):
            dataset = datasets.open(nanoset.dataset(dataset_range.name))
            corpus_name = dataset.corpus.manifest.name
            if corpus_name not in corpus_by_name:
                corpus_by_name[corpus_name] = _unread_corpus(dataset.corpus, project)
            corpus = corpus_by_name[corpus_name]
            _check_corpus_version(dataset, corpus)

            # A row is a document, or several that were packed into one sample. Get the numbers that
            # these documents have in the corpus, as arrays, and set the bit of the split in each.
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
    """Yield which part of each dataset train, valid or test reads.

        dataset         web          code
        train reads     0 to 989     0 to 494       (rows, which are documents)
        valid reads     990 to 999   495 to 499

    Args:
        nanoset: The training data.
        split: `train`, `valid` or `test`.

    Raises:
        ConfigError, InputError: The split cannot be filled as its settings ask.
    """
    planned = nanoset.plan(split)
    if planned.plan is None or not planned.plan.members:
        return  # it reads nothing

    # `corpora` are the names of the datasets, and `members` what is planned for each.
    for name, dataset_plan in zip(planned.corpora, planned.plan.members, strict=True):
        start, stop = dataset_plan.rows
        yield _DatasetRange(name, start, stop)


def _check_corpus_version(dataset: Dataset, corpus: ReadCorpus) -> None:
    """Check that a dataset was made from the same version of a corpus as the other datasets.

    Documents are compared by their numbers in the corpus. In another version, to which text was
    added, they may have other numbers.

    Args:
        dataset: The dataset: all documents of the corpus, or some of them.
        corpus: The version that the other datasets were made from.

    Raises:
        StaleError: The dataset was made from another version.
    """
    expected_digest = corpus.dataset.digest  # names the version, such as "3f9c…"
    digest = dataset.corpus.manifest.digest
    if digest != expected_digest:
        raise StaleError(
            "the dataset was made from another version of its corpus than other datasets",
            where=dataset.unpacked.manifest.url(),
            remedy="run `nanoset build`, which makes all of them from the present version",
        )


def _unread_corpus(dataset: Dataset, project: Project) -> ReadCorpus:
    """Return a corpus that is marked as read by no split (train, valid or test) yet.

    Args:
        dataset: The corpus.
        project: The project.
    """
    n_documents = len(dataset.index.document_indices) - 1  # they are bounds
    marks = np.zeros(n_documents, np.uint8)  # bit k of a document's byte: split k reads it
    return ReadCorpus(project, dataset.manifest, dataset.index, marks)


def find_shared(corpora: Sequence[ReadCorpus]) -> HeldOutPairs:
    """Find documents that training reads although they are held out for validation or testing.

    This happens if the splits overlap, for example if train and valid read two selections of one
    corpus. Each such document is returned as a pair with itself, in the form in which `find_copies`
    returns pairs of a document and its copy: held-out document 2 is document 2 of train.

    Args:
        corpora: The corpora that are read, which say for each document which splits read it.
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
    """Find documents of valid and test of which train reads a copy, with the same tokens.

    Tokens are compared by a hash, such as A. For example:

        document of valid     1     2     3          document of train     6     7     8
        hash                  B     A     B          hash                  C     B     B

    The result is the pairs 1 and 7, 3 and 7. (7 is the first document of train with the hash B.)

    Memory grows by 24 bytes for each document of valid and test, and does not depend on train.

    Args:
        corpora: The corpora (collections of documents) that train, valid and test read.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard: those of its first documents, then of the next ones, and so on.

    Returns:
        The pairs. A document that train reads itself is left out.
    """
    held_out = _held_out_documents(corpora, hashes_of, include_shared=False)  # hashes B, A, B
    if not len(held_out.hashes):
        return HeldOutPairs.none()

    # Look up each different hash in train once, and then give each document the result.
    unique_hashes, hash_indices = np.unique(held_out.hashes, return_inverse=True)  # A B; 1 0 1
    train = _first_train_documents(corpora, hashes_of, unique_hashes)  # documents -1 7
    train_documents = train.documents[hash_indices]  # 7 -1 7
    pairs = HeldOutPairs(
        corpora=held_out.corpora,
        documents=held_out.documents,
        train_corpora=train.corpora[hash_indices],
        train_documents=train_documents,
    )
    return pairs.where(train_documents >= 0)


def find_further_copies(
    corpora: Sequence[ReadCorpus],
    hashes_of: HashesOfCorpus,
    leaked: HeldOutPairs,
    max_pairs: int,
) -> FurtherCopies:
    """Find the other documents of train with the tokens of held-out documents.

    `find_copies` returns one document of train for each held-out document. To remove all copies
    from train, the others are needed as well. In this example, documents 6 and 8:

        document of valid     1     2          document of train     5     6     7     8
        hash                  B     A          hash                  B     B     C     B

        found before: 1 and 5                  result: 1 and 6, 1 and 8

    If several held-out documents have the same tokens, a copy is paired with the first of them.

    Args:
        corpora: The corpora (collections of documents) that train, valid and test read.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard.
        leaked: The pairs that were found before. Documents of train in them are left out.
        max_pairs: How many pairs to return at most.
    """
    held_out = _held_out_documents(corpora, hashes_of, include_shared=True)
    if not len(held_out.hashes):
        return FurtherCopies(HeldOutPairs.none(), 0)
    # The hashes A and B, and at which index of `held_out` each of them is first: 1 and 0.
    unique_hashes, first_positions = np.unique(held_out.hashes, return_index=True)

    # Find documents of train with one of these hashes: 6 and 8. Count all of them, but keep only as
    # many as are asked for.
    was_found_by_corpus = [
        _train_documents_in(leaked, number, len(corpus.marks))
        for number, corpus in enumerate(corpora)
    ]
    kept_parts = []
    n_further = 0
    for shard in _hashed_shards(corpora, hashes_of):  # some consecutive documents of a corpus
        was_found = was_found_by_corpus[shard.corpus_number]  # True for document 5
        further = _further_documents(shard, unique_hashes, was_found)
        n_still_needed = max(max_pairs - n_further, 0)
        kept_parts.append(further.first(n_still_needed))
        n_further += len(further.documents)

    # Pair each of them with the first held-out document of the same hash: 1 and 1.
    train = _HashedDocuments.concatenate(kept_parts)
    held_out_by_hash = held_out.select(first_positions)  # 2 for A, 1 for B
    partners = held_out_by_hash.select(np.searchsorted(unique_hashes, train.hashes))
    pairs = HeldOutPairs(
        corpora=partners.corpora,
        documents=partners.documents,
        train_corpora=train.corpora,
        train_documents=train.documents,
    )
    return FurtherCopies(pairs, n_further)


def _train_documents_in(
    pairs: HeldOutPairs, corpus_number: int, n_documents: int
) -> NDArray[np.bool_]:
    """Return which documents of a corpus are in some pairs, on the side of train.

    There may be millions of pairs. So this is computed once, and not searched for each document.

    Args:
        pairs: Pairs of a held-out document and a document of train, from several corpora.
        corpus_number: Number of the corpus.
        n_documents: Number of its documents.

    Returns:
        True for document 5, if a pair has document 5 of this corpus; shape (n_documents,).
    """
    is_in_pair = np.zeros(n_documents, np.bool_)
    is_of_corpus = pairs.train_corpora == corpus_number  # (n_pairs,)
    is_in_pair[pairs.train_documents[is_of_corpus]] = True
    return is_in_pair


def _further_documents(
    shard: _HashedShard, held_out_hashes: NDArray[np.uint64], was_found: NDArray[np.bool_]
) -> _HashedDocuments:
    """Return the documents of train with the tokens of a held-out document, except known ones.

    Args:
        shard: Consecutive documents of a corpus, with their hashes.
        held_out_hashes: The hashes of held-out documents: distinct, ascending, at least one.
        was_found: For each document of the corpus, whether it was found before.
    """
    train = shard.select(shard.is_in_train)
    has_held_out_hash = _indices_in_sorted(held_out_hashes, train.hashes) >= 0
    is_new = ~was_found[train.documents]
    return train.select(np.flatnonzero(has_held_out_hash & is_new))


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
    """Count the duplicates in the training data: documents with the same tokens as an earlier one.

    For example, the training data has two copies in corpus 1, and none in corpus 0:

        corpus                  0    0    1    1    1
        hash of the tokens      A    B    A    C    C
        is a copy               no   no   yes  no   yes

    A document that training reads several times, since a setting repeats it, is no copy of itself.

    Args:
        corpora: The corpora (collections of documents) that training reads.
        hashes_of: Called with an index of `corpora`; yields the hashes of this corpus's documents,
            shard by shard: those of its first documents, then of the next ones, and so on.
        max_documents: About how many documents are sorted at a time, which bounds memory.

    Returns:
        For each corpus with copies, their number and how many tokens they have together.
    """
    document_counts: Counter[int] = Counter()  # number of the corpus → its copies
    token_counts: Counter[int] = Counter()  # number of the corpus → tokens of these copies

    # Copies come in groups, each with documents of several corpora.
    for copies in _train_copies(corpora, hashes_of, max_documents):
        for number in np.unique(copies.corpora).tolist():
            documents = copies.documents[copies.corpora == number]
            document_counts[number] += len(documents)
            token_counts[number] += corpora[number].count_tokens(documents)

    counts = []
    for number in sorted(document_counts):
        name = corpora[number].name
        counts.append(TrainCopies(name, document_counts[number], token_counts[number]))
    return counts


def _train_copies(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, max_documents: int
) -> Iterator[_HashedDocuments]:
    """Yield the documents of the split train that have the hash of an earlier one.

    Sorting brings equal hashes together, but there may be too many documents to sort them at once.
    So they are divided into groups by the remainder of their hash. For three groups:

        hash         7    3    7    5    3
        hash % 3     1    0    1    2    0         the groups are 3 3, 7 7 and 5

    Documents with equal hashes are always in the same group, so each group is sorted alone.

    Args:
        corpora: The corpora that training reads.
        hashes_of: Yields the hashes of the documents of a corpus, shard by shard.
        max_documents: About how many documents are sorted at a time.
    """
    n_in_train = sum(corpus.count_in_train() for corpus in corpora)
    n_groups = n_in_train // max_documents + 1
    for remainder in range(n_groups):
        group = _train_documents(corpora, hashes_of, n_groups, remainder)
        yield _copies_in(group)


def _copies_in(group: _HashedDocuments) -> _HashedDocuments:
    """Return which documents have the same hash as an earlier document.

    For example, of documents with the hashes 7 3 7 7, these are the third and the fourth.

    Args:
        group: The documents, in order.

    Returns:
        The copies, sorted by hash.
    """
    # Sort by hash. The sort is stable, so documents with equal hashes stay in order.
    by_hash = group.select(np.argsort(group.hashes, kind="stable"))  # hashes 3, 7, 7, 7

    # A document is a copy if the one before it has the same hash.
    is_copy = np.zeros(len(by_hash.hashes), np.bool_)
    is_copy[1:] = by_hash.hashes[1:] == by_hash.hashes[:-1]  # False, False, True, True
    return by_hash.select(np.flatnonzero(is_copy))


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
            indices: Which ones, in the order in which they are returned. For example, [2, 0]
                selects the third document and then the first one.
        """
        return _HashedDocuments(
            corpora=self.corpora[indices],
            documents=self.documents[indices],
            hashes=self.hashes[indices],
        )

    def first(self, count: int) -> _HashedDocuments:
        """Return the first documents.

        Args:
            count: How many at most.
        """
        return _HashedDocuments(
            corpora=self.corpora[:count],
            documents=self.documents[:count],
            hashes=self.hashes[:count],
        )

    @staticmethod
    def concatenate(parts: Iterable[_HashedDocuments]) -> _HashedDocuments:
        """Join several lists of documents into one.

        Args:
            parts: The lists. If there are none, the result has no documents.
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
        """Return some of the documents, except those with hardly any tokens.

        Such a document, perhaps a single word, is no copy of another one just because both are
        equal. So it has no real hash, but 0 (_NO_HASH), and is left out.

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
    """Yield the documents of all corpora with their hashes, and with the splits that read them.

    A corpus, which is a collection of documents, is stored in shards. Each shard has consecutive
    documents, such as the documents 0 to 999,999. Shards are yielded one by one, so that only one
    of them has to be in memory.

    Args:
        corpora: The corpora.
        hashes_of: Called with an index of `corpora`; yields the number of the first document and
            the hashes of all documents of each shard, such as (0, [9, 5]) and then (2, [9, 7, 1]).
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
    """Return one group of the documents of train: those with a certain remainder of their hash.

    There may be too many documents for the memory, so the caller handles them in groups: those with
    `hash % n_groups == 0`, then those with the remainder 1, and so on. Copies have equal hashes, so
    they are in the same group.

    Args:
        corpora: The corpora that train reads.
        hashes_of: Yields the hashes of the documents of a corpus, some documents at a time.
        n_groups: Number of groups.
        remainder: The remainder of the group.
    """
    parts = []
    for shard in _hashed_shards(corpora, hashes_of):  # some consecutive documents of a corpus
        is_in_group = shard.hashes % np.uint64(n_groups) == remainder
        parts.append(shard.select(shard.is_in_train & is_in_group))
    return _HashedDocuments.concatenate(parts)


def _held_out_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, *, include_shared: bool
) -> _HashedDocuments:
    """Return the documents that valid or test reads (held-out documents), with their hashes.

    Args:
        corpora: The corpora (collections of documents) that train, valid and test read.
        hashes_of: Yields the hashes of the documents of a corpus, some documents at a time.
        include_shared: True returns all held-out documents. False leaves out those that train
            reads, too, since it need not be found out whether they are leaked.
    """
    parts = []
    for shard in _hashed_shards(corpora, hashes_of):  # some consecutive documents of a corpus
        if include_shared:
            is_returned = shard.is_held_out
        else:
            is_returned = shard.is_held_out & ~shard.is_in_train
        parts.append(shard.select(is_returned))
    return _HashedDocuments.concatenate(parts)


class _TrainDocuments(NamedTuple):
    """For each hash of held-out documents, the first document of train with this hash."""

    corpora: NDArray[np.int64]
    """Number of the document's corpus, or -1; shape (n_hashes,)."""
    documents: NDArray[np.int64]
    """Number of the document, or -1 if train reads none with the hash; shape (n_hashes,)."""


def _first_train_documents(
    corpora: Sequence[ReadCorpus], hashes_of: HashesOfCorpus, held_out_hashes: NDArray[np.uint64]
) -> _TrainDocuments:
    """Find the first training document that has the same text as each held-out document.

    Texts are compared by hashes of their tokens. For example, the held-out documents have the
    hashes 5 and 9. Training reads documents of the corpora 0 and 1:

        corpus      0    0    1    1
        document    3    8    2    4
        hash        5    5    7    6      result: document 3 of corpus 0 for hash 5, and -1 for 9

    Args:
        corpora: Collections of texts that training reads.
        hashes_of: Yields the hashes of the documents of a corpus, shard by shard.
        held_out_hashes: Hashes of held-out documents: distinct, ascending, at least one; shape
            (n_hashes,).

    Returns:
        Numbers of the corpus and of the document for each hash, or -1 if no document has it.
    """
    train = _TrainDocuments(
        corpora=np.full(len(held_out_hashes), -1),
        documents=np.full(len(held_out_hashes), -1),
    )
    for shard in _hashed_shards(corpora, hashes_of):  # some consecutive documents of a corpus
        documents = shard.select(shard.is_in_train)

        # Leave out documents whose hash is that of no held-out document.
        hash_indices = _indices_in_sorted(held_out_hashes, documents.hashes)  # -1 if missing
        known = np.flatnonzero(hash_indices >= 0)

        # Several documents of the shard may have the same hash: take the first one.
        unique_indices, first_positions = np.unique(hash_indices[known], return_index=True)
        first_documents = documents.select(known[first_positions])  # one for each unique index

        # An earlier shard may have had a document with this hash: keep that one.
        is_new = train.documents[unique_indices] < 0
        new_indices = unique_indices[is_new]
        train.corpora[new_indices] = first_documents.corpora[is_new]
        train.documents[new_indices] = first_documents.documents[is_new]
    return train


def _indices_in_sorted(
    sorted_hashes: NDArray[np.uint64], hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Look up hashes in a sorted array. Return the index of each, or -1 if it is not in there.

    For example, look up the hashes 5, 6 and 12 in [2, 5, 9]:

        hash                              5     6    12
        would be inserted before index    1     2     3
        result                            1    -1    -1     (9, at index 2, is not 6)

    Args:
        sorted_hashes: Distinct hashes, ascending, at least one.
        hashes: The hashes to look up, shape (n_hashes,).
    """
    # If the array contains a hash, then it is exactly where the hash would be inserted.
    indices = np.searchsorted(sorted_hashes, hashes)

    # A hash above all others would be inserted after the end. Compare it with the last one.
    indices = np.minimum(indices, len(sorted_hashes) - 1)
    is_contained = sorted_hashes[indices] == hashes
    return np.where(is_contained, indices, -1)
