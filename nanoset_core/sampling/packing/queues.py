"""Queues of the pieces that wait for a place in a pack.

Pieces are handed out in the order of the dataset: those that are as long as a pack from one queue,
and shorter ones from a queue for each length.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.sampling.packing.pieces import NO_PIECES, PieceArrays
from nanoset_core.sampling.packing.plan import PieceRule

CHUNK_DOCUMENTS = 1 << 20
"""Documents whose lengths are read together."""
_DOCUMENT_BITS = 40
"""Bits for the number of a document in a pair; the other 24 are for a pack of one stratum."""


class SortedPairs(NamedTuple):
    """Pairs of numbers, sorted by the first number and then by the second; shape (n_pairs,)."""

    first: NDArray[np.int64]
    second: NDArray[np.int64]


def sort_pairs(
    first: NDArray[np.int64], second: NDArray[np.int64], second_bits: int = 32
) -> SortedPairs:
    """Sort pairs of numbers by their first number, and those with equal ones by their second.

    For example, the first numbers 3, 1, 3 and the second ones 0, 1, 2 are sorted as 1, 3, 3 and
    1, 0, 2.

    Args:
        first: First number of each pair, 0 or more, in at most 64 - second_bits bits; shape
            (n_pairs,).
        second: Second number of each pair, 0 or more; shape (n_pairs,).
        second_bits: Bits that are enough for all second numbers.
    """
    # numpy sorts one array of integers much faster than it sorts by two keys. So each pair becomes
    # one integer, with its first number in the upper bits, and is divided again after that.
    shift = np.uint64(second_bits)
    pairs = np.sort(first.view(np.uint64) << shift | second.view(np.uint64))
    second_mask = np.uint64((1 << second_bits) - 1)
    return SortedPairs((pairs >> shift).view(np.int64), (pairs & second_mask).view(np.int64))


class RemainderQueue:
    """Hands out the documents that have a remainder: a piece at their end, shorter than a pack.

    There is a queue for each length of a remainder. All of them are in one array, the shortest
    remainders first. For example, for documents 0 to 3 with remainders of 3, 5, 3 and 4 tokens:

        queued documents    0  2 | 3 | 1      remainders of 3, 4 and 5 tokens
        next positions      0      2   3      where the next document of each length is

    After a document with a remainder of 3 tokens was taken, the next positions are 1, 2 and 3.

    This takes 4 bytes of memory for each document, or 8 if there are more than 2**32 documents.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents are divided into pieces.
    """

    def __init__(self, lengths: NDArray[Any], rule: PieceRule) -> None:
        """Sort the documents by the lengths of their remainders, which are shorter than a pack."""
        # The queue of each length starts where that of the next shorter length ends. For remainders
        # of 1, 2, 1 and 1 tokens, the queue of 1 starts at 0, and that of 2 at 3.
        counts = _count_remainders(lengths, rule)  # (pack length,) [0, 3, 1]
        self._next_positions = np.cumsum(counts) - counts  # [0, 0, 3]

        # 4 bytes are enough for the numbers of up to 2**32 documents.
        dtype = np.uint32 if len(lengths) <= 1 << 32 else np.uint64
        self._documents: NDArray[Any] = np.empty(int(counts.sum()), dtype)

        # Append the documents to their queues, a chunk of documents at a time.
        free_positions = self._next_positions.copy()  # end of each queue so far
        for start in range(0, len(lengths), CHUNK_DOCUMENTS):
            remainders = rule.remainders(lengths[start : start + CHUNK_DOCUMENTS])
            rows = np.flatnonzero(remainders)  # documents with a remainder, within the chunk
            # Sort by length, so that each queue gets its documents in the order of the dataset.
            waiting = sort_pairs(remainders[rows], rows)  # [1, 1, 1, 2] and [0, 2, 3, 1]
            positions = _take_positions(free_positions, waiting.first)  # [0, 1, 2, 3]
            self._documents[positions] = waiting.second + start  # [0, 2, 3, 1]

    def take(
        self, piece_lengths: NDArray[np.int64], pack_numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Take a document for each piece of some packs, from the queue of the piece's length.

        For example, the next documents with 3 tokens are 0 and 2, and the next one with 4 tokens is
        1. Pack 0 has a piece of 3 tokens, and pack 1 has pieces of 4 and 3 tokens. They get
        document 0, and documents 1 and 2.

        Args:
            piece_lengths: Tokens of each piece, such as [3, 4, 3]; shape (n_pieces,).
            pack_numbers: The pack of each piece, such as [0, 1, 1]; ascending and less than 2**24,
                shape (n_pieces,).

        Returns:
            The document of each piece, such as [0, 1, 2]; shape (n_pieces,). The pieces of a pack
            are in the order of their documents, in which tokens are read, instead of the order of
            `piece_lengths`.
        """
        # Sort the pieces by length. Pieces of one length stay in the order of their packs.
        by_length = sort_pairs(piece_lengths, np.arange(len(piece_lengths)))
        sorted_lengths = by_length.first  # [3, 3, 4]
        packs_by_length = pack_numbers[by_length.second]  # [0, 1, 1]

        # Each gets the next document of the queue of its length. This also moves the queues on.
        positions = _take_positions(self._next_positions, sorted_lengths)
        documents = self._documents[positions]  # [0, 2, 1]

        # Sort the documents by their pack, and those of a pack by number.
        by_pack = sort_pairs(packs_by_length, documents.astype(np.int64), _DOCUMENT_BITS)
        return by_pack.second


def _count_remainders(lengths: NDArray[Any], rule: PieceRule) -> NDArray[np.int64]:
    """Count the documents that have a remainder of each length.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents are divided into pieces.

    Returns:
        Shape (length of a pack,). Entry 0 is 0: documents without a remainder are not counted.
    """
    counts = np.zeros(rule.length, np.int64)  # index: the length of a remainder
    for start in range(0, len(lengths), CHUNK_DOCUMENTS):
        remainders = rule.remainders(lengths[start : start + CHUNK_DOCUMENTS])
        counts += np.bincount(remainders, minlength=len(counts))
    counts[0] = 0
    return counts


def _take_positions(
    next_positions: NDArray[np.int64], lengths: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Take the next position of a queue for each of some lengths; there is a queue for each length.

    For example, if the queues of the lengths 1 and 2 continue at the positions 4 and 9, the lengths
    1, 1, 2 get the positions 4, 5, 9.

    Args:
        next_positions: Position at which the queue of each length continues, shape (n_lengths,).
            It is updated in place.
        lengths: The lengths, ascending; shape (n_pieces,).

    Returns:
        A position for each of the lengths, shape (n_pieces,).
    """
    counts = np.bincount(lengths, minlength=len(next_positions))  # (n_lengths,)
    present = np.flatnonzero(counts)  # the lengths that occur
    # `counts` consecutive positions of each of these queues, one queue after another.
    positions = positions_in(next_positions[present], counts[present])
    next_positions[present] += counts[present]
    return positions


class FullPieceQueue:
    """Hands out all full pieces, which are as long as a pack, in the order of the dataset.

    For packs of 10 tokens, a document of 25 tokens has two of them: tokens 0 to 10, and 10 to 20.

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents are divided into pieces.
    """

    def __init__(self, lengths: NDArray[Any], rule: PieceRule) -> None:
        """Start before the first document; `_read_chunk` reads the first ones."""
        self._lengths = lengths
        self._rule = rule
        self._next_chunk = 0
        """Number of the first document that was not read."""
        self._documents = np.empty(0, np.int64)
        """Documents of the current chunk that have full pieces, shape (n_documents,)."""
        self._piece_stops = np.empty(0, np.int64)
        """Number of full pieces up to and including each of these documents, shape (n_documents,).
        """
        self._n_taken = 0
        """How many full pieces of the current chunk were taken."""

    def take(self, count: int) -> PieceArrays:
        """Take the next full pieces, which are as long as a pack, in the order of the dataset.

        The lengths of the documents are read a chunk at a time, when its pieces are needed.

        Args:
            count: How many; at most the number of full pieces that were not taken.
        """
        parts = [NO_PIECES]
        n_missing = count
        while n_missing > 0:
            n_available = self._count_pieces_of_chunk() - self._n_taken
            if n_available == 0:
                self._read_chunk()  # the next documents, which may have no full pieces either
                continue
            n_pieces = min(n_missing, n_available)
            parts.append(self._take_from_chunk(n_pieces))
            n_missing -= n_pieces
        return PieceArrays.concatenated(parts)

    def _count_pieces_of_chunk(self) -> int:
        """Return the number of full pieces in the current chunk, taken or not."""
        if not len(self._piece_stops):
            return 0
        return int(self._piece_stops[-1])

    def _read_chunk(self) -> None:
        """Continue with the next documents, after all pieces of the current ones were taken.

        For packs of 10 tokens, the next documents may have 25, 7 and 30 tokens: the first has 2
        full
        pieces, the second none, and the third 3.
        """
        start = self._next_chunk
        if start >= len(self._lengths):
            raise AssertionError("the plan has more full pieces than the documents")
        self._next_chunk = start + CHUNK_DOCUMENTS

        piece_counts = self._rule.full_pieces(self._lengths[start : self._next_chunk])  # [2, 0, 3]
        rows = np.flatnonzero(piece_counts)  # documents with full pieces, within the chunk: [0, 2]
        self._documents = rows + start
        self._piece_stops = np.cumsum(piece_counts[rows])  # [2, 5]
        self._n_taken = 0

    def _take_from_chunk(self, count: int) -> PieceArrays:
        """Take the next full pieces of the current chunk of documents.

        For example, documents 4 and 7 have 2 and 3 full pieces. The first one was taken, so the
        next three are the second piece of document 4, and the first two of document 7.

        Args:
            count: How many; at most as many as the chunk still has.
        """
        # All pieces of the chunk are numbered: those of document 4 are 0 and 1, those of 7 are 2 to
        # 4.
        piece_numbers = np.arange(self._n_taken, self._n_taken + count)  # [1, 2, 3]
        self._n_taken += count

        # The document of each piece is the first one whose stop is above the piece's number.
        stops = self._piece_stops  # [2, 5]
        indices = np.searchsorted(stops, piece_numbers, side="right")  # [0, 1, 1]
        starts = np.concatenate([[0], stops])  # [0, 2, 5]
        numbers_in_document = piece_numbers - starts[indices]  # [1, 0, 1]
        return PieceArrays(
            documents=self._documents[indices],  # [4, 7, 7]
            # Position of each piece's first token in its document.
            firsts=numbers_in_document * self._rule.length,
            lengths=np.full(count, self._rule.length),
        )
