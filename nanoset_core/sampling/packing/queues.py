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

    For example, (3, 0), (1, 1) and (3, 2) are sorted as (1, 1), (3, 0), (3, 2).

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
        """Put documents into queues by the length of their remainder.

        Documents are divided into pieces as long as a training sample, and what remains. There is a
        queue for each length of a remainder, and all queues are in one array:

            document            0    1    2    3
            its remainder       1    2    1    1

            position            0    1    2    3
            documents           0    2    3    1
            queue of length     1    1    1    2
        """
        # Where each queue starts: after those of all shorter remainders.
        counts = _count_remainders(lengths, rule)  # (tokens of a sample,) [0, 3, 1]
        self._next_positions = np.cumsum(counts) - counts  # [0, 0, 3]

        # 4 bytes are enough for the numbers of up to 2**32 documents.
        dtype = np.uint32 if len(lengths) <= 1 << 32 else np.uint64
        self._documents: NDArray[Any] = np.empty(int(counts.sum()), dtype)

        # Append a million documents at a time to their queues.
        free_positions = self._next_positions.copy()  # end of each queue so far
        for start in range(0, len(lengths), CHUNK_DOCUMENTS):
            remainders = rule.remainders(lengths[start : start + CHUNK_DOCUMENTS])  # [1, 2, 1, 1]
            rows = np.flatnonzero(remainders)  # documents with a remainder: [0, 1, 2, 3]
            # Sort by length. Documents of the same length stay in their order.
            waiting = sort_pairs(remainders[rows], rows)  # [1, 1, 1, 2] and [0, 2, 3, 1]
            positions = _take_positions(free_positions, waiting.first)  # [0, 1, 2, 3]
            self._documents[positions] = waiting.second + start  # [0, 2, 3, 1]

    def take(
        self, piece_lengths: NDArray[np.int64], pack_numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Find a document for each piece of some packs.

        A pack is a training sample, and it was only planned how long its pieces are. There is a
        queue of documents for each length, and a piece takes the next document of its queue. For
        example:

            queue of 3 tokens        documents 0, 2, ...
            queue of 4 tokens        documents 1, ...

            pack                     0    1    1
            length of a piece        3    4    3
            document                 0    1    2

        Args:
            piece_lengths: Tokens of each piece: [3, 4, 3]; shape (n_pieces,).
            pack_numbers: Pack of each piece: [0, 1, 1]; ascending and less than 2**24, shape
                (n_pieces,).

        Returns:
            The documents, pack by pack; shape (n_pieces,). Within a pack, they are ascending,
            whatever the order of `piece_lengths` is, so that a document on disk is read before
            later ones.
        """
        # Sort the pieces by length, and pieces of the same length by pack.
        by_length = sort_pairs(piece_lengths, np.arange(len(piece_lengths)))
        sorted_lengths = by_length.first  # [3, 3, 4]
        packs_by_length = pack_numbers[by_length.second]  # [0, 1, 1]

        # Take the next documents of each queue.
        positions = _take_positions(self._next_positions, sorted_lengths)
        documents = self._documents[positions]  # [0, 2, 1]

        # Sort the documents by pack, and the documents of a pack by number.
        by_pack = sort_pairs(packs_by_length, documents.astype(np.int64), _DOCUMENT_BITS)
        return by_pack.second  # [0, 1, 2]


def _count_remainders(lengths: NDArray[Any], rule: PieceRule) -> NDArray[np.int64]:
    """Count how many documents have a last piece of each length.

    Documents are divided into pieces that are as long as a training sample, and what remains. For
    samples of 3 tokens, documents of 1, 2, 4 and 6 tokens have the remainders 1, 2, 1 and 0:

        length of the remainder    0    1    2
        documents                  0    2    1       those without a remainder are not counted

    Args:
        lengths: Tokens of each document, integers, shape (n_documents,); may be memory-mapped.
        rule: How documents are divided into pieces.

    Returns:
        The last row, shape (tokens of a sample,).
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
    """Take the next document of a queue for each of some pieces, and return where it is stored.

    There is a queue of documents for each length. All queues are in one array. For example:

        length                        0    1    2
        its queue continues at             4    9
        pieces of these lengths            2    1
        they get the positions             4, 5   9
        its queue then continues at        6    10

    Args:
        next_positions: The second row, shape (n_lengths,). It is replaced by the last row.
        lengths: Length of each piece, ascending: [1, 1, 2]; shape (n_pieces,).

    Returns:
        Position of each piece: [4, 5, 9]; shape (n_pieces,).
    """
    counts = np.bincount(lengths, minlength=len(next_positions))  # [0, 2, 1]
    present = np.flatnonzero(counts)  # the lengths that occur: [1, 2]
    # 2 positions from 4 on, and then 1 position from 9 on.
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
        """Start before the first document. Lengths are read when pieces of documents are needed."""
        self._lengths = lengths
        self._rule = rule
        self._next_chunk = 0
        """The first document whose length was not read."""

        # The last documents whose lengths were read:
        self._documents = np.empty(0, np.int64)
        """Those with pieces as long as a training sample, such as [4, 7]; shape (n_documents,)."""
        self._piece_stops = np.empty(0, np.int64)
        """Number of such pieces up to and including each of these documents, shape (n_documents,).

        It is [2, 5] if document 4 has two of them and document 7 has three.
        """
        self._n_taken = 0
        """How many of these pieces were taken."""

    def take(self, count: int) -> PieceArrays:
        """Take the next pieces of documents that are as long as a training sample.

        For samples of 10 tokens, a document of 25 tokens has two such pieces: its tokens 0 to 9,
        and 10 to 19. The pieces are handed out in the order of the documents. There may be billions
        of these, so their lengths are read a million at a time, when they are needed.

        Args:
            count: How many pieces; at most as many as were not taken before.
        """
        pieces = [NO_PIECES]
        n_missing = count
        while n_missing > 0:
            n_available = self._count_pieces_of_chunk() - self._n_taken
            if n_available == 0:
                self._read_chunk()  # may find no such pieces, then the next chunk is read
                continue
            n_pieces = min(n_missing, n_available)
            pieces.append(self._take_from_chunk(n_pieces))
            n_missing -= n_pieces
        return PieceArrays.concatenated(pieces)

    def _count_pieces_of_chunk(self) -> int:
        """Return the number of full pieces in the current chunk, taken or not."""
        if not len(self._piece_stops):
            return 0
        return int(self._piece_stops[-1])

    def _read_chunk(self) -> None:
        """Read the lengths of the next documents, and count their full pieces.

        A full piece is as long as a training sample. It is called when all full pieces of the
        documents before were taken. For example, samples have 10 tokens, and the next documents
        have 25, 7 and 30:

            document                             0    1    2
            full pieces                          2    0    3
            up to and including this document    2    -    5

        Documents without full pieces are left out. So afterwards, the fields are:

            _documents       0, 2     the documents with full pieces
            _piece_stops     2, 5     the last row
            _n_taken         0        how many of these 5 pieces were taken
            _next_chunk      3        the first document that was not read (really a million later)
        """
        start = self._next_chunk
        if start >= len(self._lengths):
            raise AssertionError("the plan has more full pieces than the documents")
        self._next_chunk = start + CHUNK_DOCUMENTS

        piece_counts = self._rule.full_pieces(self._lengths[start : self._next_chunk])  # [2, 0, 3]
        rows = np.flatnonzero(piece_counts)  # documents with such pieces: [0, 2]
        self._documents = rows + start
        self._piece_stops = np.cumsum(piece_counts[rows])  # [2, 5]
        self._n_taken = 0

    def _take_from_chunk(self, count: int) -> PieceArrays:
        """Take the next pieces of documents that are as long as a training sample.

        For example, samples have 10 tokens, document 4 has two such pieces, and document 7 has
        three. The first piece was taken before, and three are taken now:

            number of the piece           0    1     2    3     4
            document                      4    4     7    7     7
            number within the document    0    1     0    1     2
            first token                   0    10    0    10    20
            taken now                          yes   yes  yes

        Args:
            count: How many; at most as many as are left of the documents whose lengths were read.
        """
        piece_numbers = np.arange(self._n_taken, self._n_taken + count)  # [1, 2, 3]
        self._n_taken += count

        # `stops` has the number of pieces up to and including each document. A piece belongs to the
        # first document whose stop is greater than its number.
        stops = self._piece_stops  # [2, 5]
        indices = np.searchsorted(stops, piece_numbers, side="right")  # [0, 1, 1]
        starts = np.concatenate([[0], stops])  # [0, 2, 5]
        numbers_in_document = piece_numbers - starts[indices]  # [1, 0, 1]
        return PieceArrays(
            documents=self._documents[indices],  # [4, 7, 7]
            firsts=numbers_in_document * self._rule.length,  # [10, 0, 10]
            lengths=np.full(count, self._rule.length),  # [10, 10, 10]
        )
