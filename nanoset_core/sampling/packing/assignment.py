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
from nanoset_core.rounding import ceil_division
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
    """Decide which documents go into which training sample, for samples of several documents.

    Such samples are called *packs*. It was planned how many packs there are, and how long the
    documents in each are. Packs with equal lengths are a *class*. For example:

        class    packs    tokens of the documents in each pack
        0        3        6
        1        2        4, 3

    First the packs are put into a random order. Then each pack gets the next documents of these
    lengths. For documents 0 to 6 of 4, 6, 3, 6, 4, 6 and 3 tokens:

        pack             0    1       2    3       4
        class            0    1       0    1       0
        documents        1    0, 2    3    4, 6    5

    Documents that are longer than a pack are divided into pieces first.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How long documents are divided into pieces.
        plan: The classes of packs.
        seed: Decides the order of the packs.

    Yields:
        Successive packs, as many as have some hundred thousand pieces together. This needs 4 bytes
        of memory for each document (8 for more than 2**32), and some hundred MiB.
    """
    filler = _PackFiller(lengths, rule, plan)
    for class_of_pack in _pack_order(plan, seed):  # (n_packs,) [0, 1, 0], and then [1, 0]
        yield filler.fill(class_of_pack)


class _PackFiller:
    """Gives documents to packs (training samples), which must be passed in their order.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        rule: How documents are divided into pieces.
        plan: How many pieces the packs of each class have, and how long these are.
    """

    def __init__(self, lengths: NDArray[Any], rule: PieceRule, plan: PackPlan) -> None:
        """Put the documents into queues, in their order."""
        self._plan = plan
        self._pieces_per_pack = plan.pieces_per_pack  # (n_classes,)
        self._are_full_pieces = plan.are_full_pieces  # (n_classes,)
        self._remainders = RemainderQueue(lengths, rule)
        """The pieces at the ends of documents, which are shorter than a pack."""
        self._full_pieces = FullPieceQueue(lengths, rule)
        """The pieces that are as long as a pack."""

    def fill(self, class_of_pack: NDArray[np.int64]) -> FilledPacks:
        """Give documents to the next packs, which are training samples.

        Documents are divided into pieces. Those as long as a pack, here 10 tokens, are *full
        pieces*. Each has a pack of its own. Shorter pieces, from the ends of documents, share
        packs. For example, documents 0 and 1 have 10 tokens, 2 has 4, and 5 has 3:

            pack         0     1       2
            class        0     1       0       class 0 has one full piece, and class 1 has pieces
            pieces       10    4, 3    10      of 4 and 3 tokens
            documents    0     2, 5    1

        Each document is given to a pack once. A later call continues with the next documents.

        Args:
            class_of_pack: Class of each pack, as it was planned: [0, 1, 0]; shape (n_packs,).

        Returns:
            The packs with the documents of their pieces.
        """
        # Take the next pieces of documents, first the full ones (10, 10), and then others (4, 3).
        is_full_pack = self._are_full_pieces[class_of_pack]  # (n_packs,) [True, False, True]
        full_pieces = self._full_pieces.take(int(np.count_nonzero(is_full_pack)))
        short_pieces = self._take_short_pieces(class_of_pack[~is_full_pack])

        # Put both kinds of pieces into the order of the packs: 10 | 4, 3 | 10.
        piece_counts = self._pieces_per_pack[class_of_pack]  # (n_packs,) [1, 2, 1]
        is_full_piece = np.repeat(is_full_pack, piece_counts)  # [True, False, False, True]
        pieces = PieceArrays.interleaved(is_full_piece, full_pieces, short_pieces)

        # (n_packs + 1,) where the pieces of each pack start, and where those of the last one end
        bounds = np.concatenate([[0], np.cumsum(piece_counts)])  # [0, 1, 3, 4]
        return FilledPacks(bounds, pieces)

    def _take_short_pieces(self, class_of_pack: NDArray[np.int64]) -> PieceArrays:
        """Take the next pieces of documents for packs (training samples) without full pieces.

        For example, a pack is planned with pieces of 5 and 3 tokens, and packs have 10 tokens. The
        next documents that end with such pieces, after pieces of 10 tokens, are document 8 of 25
        tokens, and document 2 of 13 tokens. So the pack gets the ends of documents 2 and 8.

        Args:
            class_of_pack: Class of each pack, which says how long its pieces are: [7] for one pack
                of class 7; shape (n_packs,).

        Returns:
            The pieces, pack by pack. Those of a pack are in the order of their documents.
        """
        planned_lengths = self._plan.lengths_in(class_of_pack)  # (n_pieces,) [5, 3]
        piece_counts = self._pieces_per_pack[class_of_pack]  # (n_packs,) [2]
        pack_of_piece = np.repeat(np.arange(len(class_of_pack)), piece_counts)  # (n_pieces,) [0, 0]
        return self._remainders.take(planned_lengths, pack_of_piece)


def _pack_order(plan: PackPlan, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the class of each pack, in a random order in which each class is spread evenly.

    A pack is a training sample, and the packs of a class have pieces of the same lengths. On a line
    from 0 to 1, each of 3 packs of class 0 is at a random place in its third, and each of 2 packs
    of class 1 in its half:

        position    0.1    0.3    0.45    0.8    0.9
        class       0      1      0       1      0      the result

    There may be billions of packs. So the line is divided into parts of equal length, the *strata*,
    and the packs of one stratum are sorted at a time. With two strata, the first three packs are
    yielded, and then the other two.

    Args:
        plan: How many packs there are of each class: [3, 2].
        seed: Decides the positions.

    Yields:
        The class of each pack of a stratum, shape (n_packs_of_stratum,).
    """
    # So many strata that the packs of each have at most half a million pieces or so.
    n_strata = max(1, ceil_division(plan.pieces, _STRATUM_PIECES))
    class_hashes = _class_hashes(len(plan.counts), seed)  # they make the positions random
    for stratum in range(n_strata):
        yield _classes_in_stratum(stratum, n_strata, plan.counts, class_hashes)


def _classes_in_stratum(
    stratum: int, n_strata: int, counts: NDArray[np.int64], class_hashes: NDArray[np.uint64]
) -> NDArray[np.int64]:
    """Return the class of each pack in one part of the order of all packs (training samples).

    The order is a line from 0 to 1, which is divided into parts of equal length, the *strata*. For
    example, the second of two strata is from 0.5 to 1:

        class of the pack           0      0      0      1      1
        position                    0.1    0.45   0.9    0.3    0.8
        number of strata before     0.2    0.9    1.8    0.6    1.6
        is in this stratum                        yes           yes

    Sorted by their positions, these two packs have the classes 1 and 0.

    Args:
        stratum: Number of the part: 1.
        n_strata: Number of parts: 2.
        counts: Number of packs of each class: [3, 2]; shape (n_classes,).
        class_hashes: Random number of each class, shape (n_classes,).

    Returns:
        Shape (n_packs_of_stratum,): [1, 0].
    """
    packs = _packs_near_stratum(stratum, n_strata, counts)  # a few more than those in it
    strata_before = _positions_of(packs, counts, class_hashes) * n_strata  # [0.2, 0.9, ...]
    # The end of the line, 2.0, belongs to the last stratum.
    stratum_of_pack = np.minimum(strata_before.astype(np.int64), n_strata - 1)  # [0, 0, 1, 0, 1]

    is_inside = stratum_of_pack == stratum
    order = _order_of(strata_before[is_inside] - stratum)  # 0.8 and 0.6 give [1, 0]
    classes: NDArray[np.int64] = packs.classes[is_inside][order]
    return classes


def _class_hashes(n_classes: int, seed: int) -> NDArray[np.uint64]:
    """Return a random number for each class of packs, which depends on the seed.

    Packs are training samples. These numbers decide where they are in the order of all packs, so
    that it is different for each seed, and packs of different classes are independent.

    Returns:
        Numbers of 64 bits, shape (n_classes,).
    """
    class_numbers = np.arange(n_classes, dtype=np.uint64)
    seed_hash = mix(np.array([seed], np.uint64))  # `mix` is a hash function for arrays
    return mix(class_numbers * STEP + seed_hash)


def _positions_of(
    packs: _NumberedPacks, counts: NDArray[np.int64], class_hashes: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return at which place on a line from 0 to 1 each pack is, which decides the order of packs.

    A pack is a training sample. The packs of a class are spread evenly, each at a random place of
    its part of the line. For the 4 packs of a class:

        pack            0            1              2              3
        part            0 to 0.25    0.25 to 0.5    0.5 to 0.75    0.75 to 1
        random number   0.4          0.2            0.8            0.2
        position        0.1          0.3            0.7            0.8

    For example, pack 1 is at (1 + 0.2) / 4 = 0.3.

    Args:
        packs: Class of each pack, and its number within the class; shape (n_packs,).
        counts: Number of packs of each class, shape (n_classes,).
        class_hashes: Random number of each class, shape (n_classes,).

    Returns:
        Positions, shape (n_packs,).
    """
    random_numbers = _jitters(class_hashes[packs.classes], packs.numbers)  # (n_packs,) 0 to 1
    packs_of_class = counts[packs.classes]  # (n_packs,) 4 for each of these
    positions: NDArray[np.float64] = (packs.numbers + random_numbers) / packs_of_class
    return positions


class _NumberedPacks(NamedTuple):
    """Some packs, ordered by class and number; shape (n_packs,) each."""

    classes: NDArray[np.int64]
    """Class of each pack."""
    numbers: NDArray[np.int64]
    """Number of each pack in its class, from 0."""


def _packs_near_stratum(stratum: int, n_strata: int, counts: NDArray[np.int64]) -> _NumberedPacks:
    """Return which packs of each class may be in one part of the order of all packs.

    Packs are training samples, on a line from 0 to 1. Those of a class are spread evenly: pack 5 of
    10 is somewhere between 0.5 and 0.6. The line is divided into parts, the *strata*. For the
    second half of the line, from 0.5 to 1:

        class    packs    can be in this half
        0        10       5 to 9
        1        3        1 and 2: pack 1 is somewhere between 0.33 and 0.67

    Positions are computed with rounding errors, so that a pack at the border may be on either side
    of it. So the result also has the packs before and after these, if there are any: 4 to 9 of
    class 0, and 0 to 2 of class 1. The caller computes where these packs really are.

    Args:
        stratum: Number of the part: 1.
        n_strata: Number of parts: 2.
        counts: Number of packs of each class: [10, 3]; shape (n_classes,).
    """
    firsts = counts * stratum // n_strata  # (n_classes,) rounded down: [5, 1]
    stops = ceil_division(counts * (stratum + 1), n_strata)  # (n_classes,) rounded up: [10, 3]

    # The pack before the first one, and that after the last one, if they exist.
    firsts = np.maximum(firsts - 1, 0)  # [4, 0]
    stops = np.minimum(stops + 1, counts)  # [10, 3]

    n_packs = stops - firsts  # [6, 3]
    return _NumberedPacks(
        classes=np.repeat(np.arange(len(counts)), n_packs),  # 0 six times, 1 three times
        numbers=positions_in(firsts, n_packs),  # 4, 5, ..., 9, and 0, 1, 2
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
