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
from nanoset_core.sampling.hashing import STEP, U64, mix
from nanoset_core.sampling.packing.pieces import FilledPacks, PieceArrays
from nanoset_core.sampling.packing.plan import PackPlan, PieceRule
from nanoset_core.sampling.packing.queues import FullPieceQueue, RemainderQueue, sort_pairs

_CHUNK_DOCUMENTS = 1 << 20
"""Documents that are looked at together."""
_STRATUM_PIECES = 1 << 19
"""About how many pieces are assigned at once. Part of the definition of the order: changing it
changes the packs.
"""


def document_lengths(
    sequence_lengths: NDArray[np.int32], document_indices: NDArray[np.int64]
) -> NDArray[Any]:
    """Return the tokens of each document of an indexed dataset, whose documents are sequences.

    For example, sequences of 4, 3 and 6 tokens, of which the first two are one document, are
    documents of 7 and 6 tokens.

    Args:
        sequence_lengths: Tokens of each sequence, shape (n_sequences,).
        document_indices: Index of each document's first sequence, and at the end n_sequences: [0,
            2, 3] in the example; shape (n_documents + 1,).

    Returns:
        Integers, shape (n_documents,): `sequence_lengths` itself if every document is one sequence.
    """
    n_documents = len(document_indices) - 1
    if _is_one_sequence_each(len(sequence_lengths), document_indices):
        return sequence_lengths

    lengths = np.zeros(n_documents, np.int64)
    for start in range(0, n_documents, _CHUNK_DOCUMENTS):
        stop = min(start + _CHUNK_DOCUMENTS, n_documents)
        bounds = document_indices[start : stop + 1]  # (n_in_chunk + 1,)
        lengths[start:stop] = _sums_between(bounds, sequence_lengths)
    return lengths


def _sums_between(
    bounds: NDArray[np.int64], sequence_lengths: NDArray[np.int32]
) -> NDArray[np.int64]:
    """Return the tokens of the sequences between each two neighbouring bounds.

    Args:
        bounds: Indices of sequences, ascending, such as [7, 9, 10]; shape (n_documents + 1,).
        sequence_lengths: Tokens of each sequence, shape (n_sequences,).

    Returns:
        Shape (n_documents,).
    """
    lengths = sequence_lengths[bounds[0] : bounds[-1]]  # of the sequences 7 to 9, such as [4, 3, 6]
    # Tokens before each of these sequences, and of all of them: [0, 4, 7, 13].
    tokens_before = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)])
    tokens_at_bounds = tokens_before[bounds - bounds[0]]  # [0, 7, 13]
    sums: NDArray[np.int64] = np.diff(tokens_at_bounds)  # [7, 6]
    return sums


def _is_one_sequence_each(n_sequences: int, document_indices: NDArray[np.int64]) -> bool:
    """Return whether document k of a dataset consists of sequence k, for all documents.

    Args:
        n_sequences: Number of sequences in the dataset.
        document_indices: Index of each document's first sequence, and at the end n_sequences;
            shape (n_documents + 1,).
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
    """Yield all packs of a plan in order, with the documents whose pieces they hold.

    The plan has only lengths: how many packs hold, for example, a piece of 7 and a piece of 3
    tokens. Such packs are a *class*. Here the packs are put in an order, and each piece gets a
    document.

    This needs 4 bytes of memory for each document (8 for more than 2**32), and some hundred MiB.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents are divided into pieces.
        plan: The packs of these pieces.
        seed: Decides the order of the packs.

    Yields:
        Consecutive packs, which have some hundred thousand pieces together.
    """
    filler = _PackFiller(lengths, rule, plan)
    for class_of_pack in _pack_order(plan, seed):  # (n_packs,) of consecutive packs
        yield filler.fill(class_of_pack)


class _PackFiller:
    """Gives a document to each piece of packs, which must be passed in the order of the packs.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,).
        rule: How documents are divided into pieces.
        plan: The packs of these pieces.
    """

    def __init__(self, lengths: NDArray[Any], rule: PieceRule, plan: PackPlan) -> None:
        """Prepare to fill the packs of a plan, from the first pack on."""
        self._lengths = lengths
        self._rule = rule
        self._plan = plan
        self._remainders = RemainderQueue(lengths, rule)
        self._full_pieces = FullPieceQueue(lengths, rule)
        self._pieces_of_class = np.diff(plan.piece_starts)  # (n_classes,)
        # A full piece leaves no room for others, so it is the only one of its pack.
        first_lengths = plan.piece_lengths[plan.piece_starts[:-1]]  # (n_classes,)
        self._is_full_class = first_lengths == rule.length  # (n_classes,)

    def fill(self, class_of_pack: NDArray[np.int64]) -> FilledPacks:
        """Return the next packs, with the documents whose pieces they hold.

        A pack holds either one *full piece*, as long as the pack, or *remainders*: the ends of some
        documents, which are shorter. Packs whose pieces have the same lengths are a *class*.

        Args:
            class_of_pack: Number of each pack's class in the plan, shape (n_packs,). The plan lists
                which lengths the pieces of a class have.
        """
        # An example: packs of 10 tokens, with pieces of 10, of 4 and 3, and of 10 tokens.
        is_full_pack = self._is_full_class[class_of_pack]  # (n_packs,) [True, False, True]
        piece_counts = self._pieces_of_class[class_of_pack]  # (n_packs,) [1, 2, 1]

        # Take the pieces of both kinds from their queues: two full pieces, and two remainders.
        full_pieces = self._full_pieces.take(int(np.count_nonzero(is_full_pack)))
        remainders = self._take_remainders(class_of_pack[~is_full_pack])

        # Put them in the order of the packs.
        is_full_piece = np.repeat(is_full_pack, piece_counts)  # [True, False, False, True]
        pieces = PieceArrays.interleaved(is_full_piece, full_pieces, remainders)

        # (n_packs + 1,) index of each pack's first piece, and the number of pieces: [0, 1, 3, 4]
        bounds = np.concatenate([[0], np.cumsum(piece_counts)])
        return FilledPacks(bounds, pieces)

    def _take_remainders(self, class_of_pack: NDArray[np.int64]) -> PieceArrays:
        """Give a document to each piece of the next packs that hold remainders.

        A remainder is what is left of a document if full packs are cut off: of 25 tokens, and packs
        of 10, the last 5. If a pack has a piece of 5 tokens, it gets the next document with such a
        remainder, in the order of the dataset.

        Args:
            class_of_pack: Number of each pack's class in the plan, shape (n_packs,). The plan lists
                which lengths the pieces of a class have.

        Returns:
            The pieces of the first pack, then those of the second, and so on. The pieces of a pack
            are in the order of their documents.
        """
        piece_counts = self._pieces_of_class[class_of_pack]  # (n_packs,)
        pack_of_piece = np.repeat(np.arange(len(class_of_pack)), piece_counts)  # (n_pieces,)
        planned_lengths = self._planned_lengths(class_of_pack)  # (n_pieces,)
        documents = self._remainders.take(planned_lengths, pack_of_piece)  # (n_pieces,)

        # The documents of a pack are in another order than the planned lengths, so compute the
        # lengths again. A remainder extends to the end of its document: of 25 tokens, it starts at
        # 20.
        document_tokens = np.asarray(self._lengths[documents], np.int64)
        piece_tokens = self._rule.remainders(document_tokens)
        return PieceArrays(
            documents=documents,
            firsts=document_tokens - piece_tokens,
            lengths=piece_tokens,
        )

    def _planned_lengths(self, class_of_pack: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the lengths that the plan lists for the pieces of packs; shape (n_pieces,).

        Args:
            class_of_pack: Number of each pack's class in the plan, shape (n_packs,).
        """
        first_indices = self._plan.piece_starts[class_of_pack]  # (n_packs,)
        piece_counts = self._pieces_of_class[class_of_pack]  # (n_packs,)
        return self._plan.piece_lengths[positions_in(first_indices, piece_counts)]


def _pack_order(plan: PackPlan, seed: int) -> Iterator[NDArray[np.int64]]:
    """Yield the class of each pack, in the order of the packs, many packs at a time.

    A *class* of packs has pieces of the same lengths. Its packs are spread evenly over a line from
    0 to 1, and the packs of all classes are sorted by their positions there. To limit the memory,
    the line is divided into parts of equal length, the *strata*, which are sorted one by one.

    Args:
        plan: The packs of each class.
        seed: Decides where the packs are on the line.

    Yields:
        The class of each pack of one stratum, shape (n_packs_of_stratum,).
    """
    n_strata = max(1, -(-plan.pieces // _STRATUM_PIECES))  # rounded up
    # (n_classes,) a hash of the seed and each class, so that positions differ between classes
    class_numbers = np.arange(len(plan.counts), dtype=np.uint64)
    class_hashes = mix(class_numbers * STEP + mix(np.array([seed], np.uint64)))
    for stratum in range(n_strata):
        # Compute the positions only of packs that are in this stratum, or next to it.
        candidates = _candidates(plan.counts, stratum, n_strata)
        # (n_candidates,) from k to k + 1 in stratum k
        positions = _positions_of(candidates, plan.counts, class_hashes) * n_strata

        # A position at the very end of the line, due to rounding, belongs to the last stratum.
        stratum_of_pack = np.minimum(positions.astype(np.int64), n_strata - 1)
        is_inside = stratum_of_pack == stratum
        order = _order_of(positions[is_inside] - stratum)
        yield candidates.classes[is_inside][order]


def _positions_of(
    candidates: _Candidates, counts: NDArray[np.int64], class_hashes: NDArray[np.uint64]
) -> NDArray[np.float64]:
    """Return where packs are on a line from 0 to 1; shape (n_packs,).

    Pack j of the n packs of a class is somewhere between j / n and (j + 1) / n. For example, the
    second of 4 packs is between 0.25 and 0.5.

    Args:
        candidates: The packs.
        counts: Number of packs of each class, shape (n_classes,).
        class_hashes: Hash of the seed and each class, shape (n_classes,).
    """
    jitters = _jitters(class_hashes[candidates.classes], candidates.numbers)  # from 0 to 1
    positions: NDArray[np.float64] = (candidates.numbers + jitters) / counts[candidates.classes]
    return positions


class _Candidates(NamedTuple):
    """Packs that may be in a stratum, ordered by class and number; shape (n_candidates,) each."""

    classes: NDArray[np.int64]
    """Class of each pack."""
    numbers: NDArray[np.int64]
    """Number of each pack in its class, from 0."""


def _candidates(counts: NDArray[np.int64], stratum: int, n_strata: int) -> _Candidates:
    """Return the packs that can be in a stratum: one of several equal parts of all packs.

    The packs of each class are divided evenly. For example, of 10 packs and 2 strata, the packs 5
    to 9 are in stratum 1. Their positions are rounded, so pack 4 is a candidate, too.

    Args:
        counts: Number of packs of each class, shape (n_classes,).
        stratum: Number of the stratum.
        n_strata: Number of strata.
    """
    first_inside = counts * stratum // n_strata  # (n_classes,) rounded down
    stop_inside = -(-counts * (stratum + 1) // n_strata)  # (n_classes,) rounded up
    # One more at each end, so that none is lost if a position is rounded.
    starts = np.maximum(first_inside - 1, 0)
    stops = np.minimum(stop_inside + 1, counts)
    n_candidates = stops - starts
    return _Candidates(
        classes=np.repeat(np.arange(len(counts)), n_candidates),
        numbers=positions_in(starts, n_candidates),
    )


def _jitters(class_hashes: NDArray[np.uint64], numbers: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return a random number from 0 to 1 for each pack; shape (n_packs,).

    Args:
        class_hashes: Hash of the seed and of the class of each pack, shape (n_packs,).
        numbers: Number of each pack in its class, shape (n_packs,).
    """
    hashes = mix(class_hashes + numbers.astype(np.uint64) * STEP)
    upper_bits = hashes >> U64(11)  # the 53 bits that a float can have
    return upper_bits.astype(np.float64) * 2.0**-53


def _order_of(positions: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return the order that sorts positions from 0 to 1, in units of 2**-32; shape (n,).

    Equal positions keep their order.
    """
    units = (positions * 2.0**32).astype(np.int64)
    units = np.minimum(units, (1 << 32) - 1)
    return sort_pairs(units, np.arange(len(units))).second
