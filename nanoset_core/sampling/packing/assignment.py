"""Decide which document goes into which pack, and in which order the packs are.

A plan (`plan.py`) says how many packs there are of each class, and which lengths the pieces of a
pack of this class have. Here the packs are put in an order, and each piece gets a document:

- The packs of each class are spread evenly over the order. If it is a line from 0 to 1, the j-th of
  n packs is at a pseudo-random position between j / n and (j + 1) / n, which depends on the seed.
- Documents with pieces of equal length are used in the order of the dataset.

For example, there are two classes: A has 3 packs of one piece of 6 tokens, and B has 2 packs of
pieces of 4 and 3 tokens. Documents 1, 4 and 5 have 6 tokens, 0 and 3 have 4, and 2 and 6 have 3:

    class        A            B            A            B            A
    position     0.1          0.3          0.5          0.8          0.9
    pieces       document 1   0 and 2      4            3 and 6      5

So a pack holds documents from about the same part of the dataset as the pack's own position: the
first tenth of the packs holds about the first tenth of the documents, and the tokens are read
almost from front to back. Which documents of equal length share a pack with which others depends on
the seed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.packing.pieces import FilledPacks, PieceArrays
from nanoset_core.sampling.packing.plan import PackPlan, PieceRule
from nanoset_core.sampling.packing.queues import FullPieceQueue, RemainderQueue, sort_pairs
from nanoset_core.statistics.hashing import STEP, U64, mix

_CHUNK_DOCUMENTS = 1 << 20
"""Documents that are looked at together."""
_STRATUM_PIECES = 1 << 19
"""About how many pieces are assigned at once. Part of the definition of the order: changing it
changes the packs.
"""


def document_lengths(
    sequence_lengths: NDArray[np.int32], document_indices: NDArray[np.int64]
) -> NDArray[Any]:
    """Return how many tokens each document of a dataset has.

    Datasets are stored as sequences of tokens, and a document consists of one or more of these:

        sequence              0    1    2
        tokens                4    3    6
        document              0    0    1
        tokens of documents   7         6

    Args:
        sequence_lengths: Tokens of each sequence: [4, 3, 6]; shape (n_sequences,).
        document_indices: First sequence of each document, and at the end the number of sequences:
            [0, 2, 3]; shape (n_documents + 1,).

    Returns:
        Integers, shape (n_documents,): [7, 6].
    """
    # In nearly all datasets, each document is one sequence. Then there is nothing to add up.
    if _is_one_sequence_each(len(sequence_lengths), document_indices):
        return sequence_lengths

    # There may be billions of documents, so compute the temporary arrays for a million at a time.
    n_documents = len(document_indices) - 1
    lengths = np.zeros(n_documents, np.int64)
    for start in range(0, n_documents, _CHUNK_DOCUMENTS):
        stop = min(start + _CHUNK_DOCUMENTS, n_documents)
        bounds = document_indices[start : stop + 1]  # (n_in_chunk + 1,) [0, 2, 3]
        lengths[start:stop] = _sums_between(bounds, sequence_lengths)
    return lengths


def _sums_between(
    bounds: NDArray[np.int64], sequence_lengths: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Add up the lengths of the sequences of each document.

    For example, the bounds 7, 9 and 10 mean that one document consists of the sequences 7 and 8,
    and the next one of sequence 9. If these have 4, 3 and 6 tokens, the result is [7, 6].

    Args:
        bounds: First sequence of each document, and where the last document ends; shape
            (n_documents + 1,).
        sequence_lengths: Tokens of all sequences of the dataset, shape (n_sequences,).

    Returns:
        Tokens of each document, shape (n_documents,).
    """
    lengths = sequence_lengths[bounds[0] : bounds[-1]]  # of the sequences 7, 8 and 9: [4, 3, 6]
    # Tokens before each of these sequences, and at the end of the last one.
    tokens_before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])  # [0, 4, 7, 13]
    tokens_at_bounds = tokens_before[bounds - bounds[0]]  # [0, 7, 13]
    sums: NDArray[np.int64] = np.diff(tokens_at_bounds)  # [7, 6]
    return sums


def _is_one_sequence_each(n_sequences: int, document_indices: NDArray[np.int64]) -> bool:
    """Return whether document 0 of a dataset consists of its sequence 0, and so on for all.

    Args:
        n_sequences: Number of sequences of tokens in the dataset.
        document_indices: First sequence of each document, and at the end `n_sequences`; shape
            (n_documents + 1,). It is [0, 1, 2, 3] for three documents of one sequence each.
    """
    n_documents = len(document_indices) - 1
    if n_documents != n_sequences:
        return False
    for start in range(0, n_documents, _CHUNK_DOCUMENTS):
        chunk = document_indices[start : start + _CHUNK_DOCUMENTS]
        if not (chunk == np.arange(start, start + len(chunk))).all():
            return False
    return True


def assign(
    lengths: NDArray[Any], rule: PieceRule, plan: PackPlan, seed: int
) -> Iterator[FilledPacks]:
    """Decide which document goes into which training sample.

    Such samples are called *packs*. A plan says, for example, that there are 3 packs with a piece
    of 6 tokens, and 2 packs with pieces of 4 and 3 tokens. Here the packs are put into an order,
    and each piece gets the next document of its length:

        pack             0         1             2         3             4
        planned          6         4, 3          6         4, 3          6
        documents        1         0, 2          3         4, 6          5

    (The documents 0 to 6 have 4, 6, 3, 6, 4, 6 and 3 tokens.) This needs 4 bytes of memory for each
    document (8 for more than 2**32), and some hundred MiB.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents that are longer than a pack are divided into pieces.
        plan: How many packs there are, and how long their pieces are.
        seed: Decides the order of the packs.

    Yields:
        Successive packs, as many as have some hundred thousand pieces together.
    """
    filler = _PackFiller(lengths, rule, plan)
    # Packs that are planned alike are a class.
    for class_of_pack in _pack_order(plan, seed):  # (n_packs,) such as [0, 1, 0]
        yield filler.fill(class_of_pack)


class _PackFiller:
    """Gives a document to each piece of packs, which must be passed in the order of the packs.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        rule: How documents are divided into pieces.
        plan: The packs of these pieces.
    """

    def __init__(self, lengths: NDArray[Any], rule: PieceRule, plan: PackPlan) -> None:
        """Prepare to give documents to the planned packs (training samples) in their order."""
        self._lengths = lengths
        self._rule = rule
        self._plan = plan
        # Documents wait in queues: for pieces as long as a pack, and for what remains of them.
        self._remainders = RemainderQueue(lengths, rule)
        self._full_pieces = FullPieceQueue(lengths, rule)

        # A class of packs has pieces of the same lengths: how many, and is it one full piece?
        self._pieces_of_class = np.diff(plan.piece_starts)  # (n_classes,)
        first_lengths = plan.piece_lengths[plan.piece_starts[:-1]]  # (n_classes,)
        self._is_full_class = first_lengths == rule.length  # (n_classes,)

    def fill(self, class_of_pack: NDArray[np.int64]) -> FilledPacks:
        """Give documents to the next packs, which are training samples.

        The class of a pack says how long its pieces are. A piece gets the next document that has
        such a piece. For example, for packs of 10 tokens:

            pack         0     1       2
            class        0     1       0
            pieces       10    4, 3    10
            documents    0     2, 5    1

        Documents 2 and 5 end with pieces of 4 and 3 tokens. Documents 0 and 1 have a *full piece*:
        it is as long as a pack, and so in a pack of its own.

        Args:
            class_of_pack: Class of each pack: [0, 1, 0]; shape (n_packs,).

        Returns:
            The packs with the documents of their pieces.
        """
        is_full_pack = self._is_full_class[class_of_pack]  # (n_packs,) [True, False, True]
        n_full_packs = int(np.count_nonzero(is_full_pack))  # 2
        full_pieces = self._full_pieces.take(n_full_packs)  # of documents 0 and 1
        other_pieces = self._take_last_pieces(class_of_pack[~is_full_pack])  # of documents 2 and 5

        # Put both kinds of pieces into the order of the packs: 10 | 4, 3 | 10.
        piece_counts = self._pieces_of_class[class_of_pack]  # (n_packs,) [1, 2, 1]
        is_full_piece = np.repeat(is_full_pack, piece_counts)  # [True, False, False, True]
        pieces = PieceArrays.interleaved(is_full_piece, full_pieces, other_pieces)

        # (n_packs + 1,) where the pieces of each pack start, and where those of the last one end
        bounds = np.concatenate([[0], np.cumsum(piece_counts)])  # [0, 1, 3, 4]
        return FilledPacks(bounds, pieces)

    def _take_last_pieces(self, class_of_pack: NDArray[np.int64]) -> PieceArrays:
        """Give each piece of some packs the next document that ends with a piece of this length.

        For example, a pack (a training sample) is planned with pieces of 5 and 3 tokens. The next
        document that ends with a piece of 5 tokens is 8, and the next one with 3 tokens is 2. In
        the result, the documents of a pack are in ascending order: 2 and 8.

        Args:
            class_of_pack: Class of each pack, which says how long its pieces are; shape (n_packs,).

        Returns:
            The last pieces of these documents, pack by pack.
        """
        piece_counts = self._pieces_of_class[class_of_pack]  # (n_packs,) [2]
        pack_of_piece = np.repeat(np.arange(len(class_of_pack)), piece_counts)  # (n_pieces,) [0, 0]
        planned_lengths = self._planned_lengths(class_of_pack)  # (n_pieces,) [5, 3]
        documents = self._remainders.take(planned_lengths, pack_of_piece)  # (n_pieces,) [2, 8]

        # Which pieces are these? The documents are in another order than `planned_lengths`.
        document_tokens = np.asarray(self._lengths[documents], np.int64)  # [13, 25]
        piece_tokens = self._rule.remainders(document_tokens)  # [3, 5]
        first_tokens = document_tokens - piece_tokens  # [10, 20]
        return PieceArrays(documents, first_tokens, piece_tokens)

    def _planned_lengths(self, class_of_pack: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how long the pieces of some packs are, pack by pack; shape (n_pieces,).

        A pack is a training sample. For example, packs of class 0 have a piece of 10 tokens, and
        those of class 1 have pieces of 4 and 3 tokens. The classes [1, 0, 1] give [4, 3, 10, 4, 3].

        Args:
            class_of_pack: Class of each pack, shape (n_packs,).
        """
        first_indices = self._plan.piece_starts[class_of_pack]  # (n_packs,)
        piece_counts = self._pieces_of_class[class_of_pack]  # (n_packs,)
        return self._plan.piece_lengths[positions_in(first_indices, piece_counts)]


def _pack_order(plan: PackPlan, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the class of each pack, in a random order in which each class is spread evenly.

    A pack is a training sample, and the packs of a class have pieces of the same lengths. On a line
    from 0 to 1, each of 3 packs of class 0 is at a random place in its third, and each of 2 packs
    of class 1 in its half:

        position    0.1    0.3    0.5    0.8    0.9
        class       0      1      0      1      0      the result

    There may be billions of packs. So the line is divided into parts of equal length, the *strata*,
    and the packs of one stratum are sorted at a time. With two strata, the first two packs are
    yielded, and then the other three.

    Args:
        plan: How many packs there are of each class: [3, 2].
        seed: Decides the positions.

    Yields:
        The class of each pack of a stratum, shape (n_packs_of_stratum,).
    """
    n_strata = max(1, -(-plan.pieces // _STRATUM_PIECES))  # rounded up
    # (n_classes,) a hash of the seed and each class, so that positions differ between classes
    class_numbers = np.arange(len(plan.counts), dtype=np.uint64)
    class_hashes = mix(class_numbers * STEP + mix(np.array([seed], np.uint64)))
    for stratum in range(n_strata):
        # Positions are in units of a stratum: 1.6 is in stratum 1.
        candidates = _candidates(plan.counts, stratum, n_strata)
        positions = _positions_of(candidates, plan.counts, class_hashes) * n_strata

        # The end of the line, 2.0, belongs to the last stratum.
        stratum_of_pack = np.minimum(positions.astype(np.int64), n_strata - 1)
        is_inside = stratum_of_pack == stratum
        order = _order_of(positions[is_inside] - stratum)
        yield candidates.classes[is_inside][order]


def _positions_of(
    candidates: _Candidates, counts: NDArray[np.int64], class_hashes: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return at which place on a line from 0 to 1 each pack is, which decides the order of packs.

    A pack is a training sample. The packs of a class are spread evenly, each at a random place of
    its part of the line. For the 4 packs of a class:

        pack         0              1                2               3
        part         0 to 0.25      0.25 to 0.5      0.5 to 0.75     0.75 to 1
        position     0.1            0.3              0.7             0.8

    Args:
        candidates: Class of each pack, and its number within the class; shape (n_packs,).
        counts: Number of packs of each class, shape (n_classes,).
        class_hashes: Random number of each class, shape (n_classes,).

    Returns:
        Positions, shape (n_packs,).
    """
    packs_of_class = counts[candidates.classes]  # (n_packs,) 4 for each of these
    # (n_packs,) how far into its part each pack is, from 0 to 1: pack 1 at 0.2
    random_numbers = _jitters(class_hashes[candidates.classes], candidates.numbers)
    positions: NDArray[np.float64] = (candidates.numbers + random_numbers) / packs_of_class
    return positions  # (1 + 0.2) / 4 = 0.3


class _Candidates(NamedTuple):
    """Packs that may be in a stratum, ordered by class and number; shape (n_candidates,) each."""

    classes: NDArray[np.int64]
    """Class of each pack."""
    numbers: NDArray[np.int64]
    """Number of each pack in its class, from 0."""


def _candidates(counts: NDArray[np.int64], stratum: int, n_strata: int) -> _Candidates:
    """Return which packs of each class may be in one of several equal parts of the order.

    A pack is a training sample. The packs of a class are spread evenly over the order. For example,
    a class has 10 packs, and the order has 2 parts, the *strata*. Then stratum 0 has its packs 0 to
    4, and stratum 1 has its packs 5 to 9.

    But positions are rounded, so that pack 4 may just be in stratum 1. Therefore the result has one
    pack more at each end: 4 to 9 for stratum 1. The caller computes where these really are.

    Args:
        counts: Number of packs of each class: [10]; shape (n_classes,).
        stratum: Number of the stratum: 1.
        n_strata: Number of strata: 2.
    """
    starts = counts * stratum // n_strata  # (n_classes,) rounded down: 5
    stops = -(-counts * (stratum + 1) // n_strata)  # (n_classes,) rounded up: 10
    # One more at each end, unless there is none.
    starts = np.maximum(starts - 1, 0)  # 4
    stops = np.minimum(stops + 1, counts)  # 10
    n_candidates = stops - starts
    return _Candidates(
        classes=np.repeat(np.arange(len(counts)), n_candidates),
        numbers=positions_in(starts, n_candidates),
    )


def _jitters(class_hashes: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a random number from 0 to 1 for each pack (training sample); shape (n_packs,).

    They are hashes, so the same seed always gives the same numbers.

    Args:
        class_hashes: Hash of the seed and of the class of each pack, shape (n_packs,).
        numbers: Number of each pack in its class, shape (n_packs,).
    """
    hashes = mix(class_hashes + numbers.astype(np.uint64) * STEP)
    upper_bits = hashes >> U64(11)  # the 53 bits that a float can have
    return upper_bits.astype(np.float64) * 2.0**-53


def _order_of(positions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the order that sorts positions from 0 to 1; shape (n,).

    For example, the positions 0.8, 0.1 and 0.5 give [1, 2, 0]. They are compared in units of
    2**-32, since such whole numbers are sorted faster. Equal ones keep their order.
    """
    units = (positions * 2.0**32).astype(np.int64)
    units = np.minimum(units, (1 << 32) - 1)
    return sort_pairs(units, np.arange(len(units))).second
