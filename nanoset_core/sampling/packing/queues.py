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

    numpy sorts one array of integers much faster than it sorts by two keys. So each pair becomes
    one integer of 64 bits, with its first number in the upper bits, and is divided again later.

    Args:
        first: First number of each pair, 0 or more, in at most 64 - second_bits bits; shape
            (n_pairs,).
        second: Second number of each pair, 0 or more; shape (n_pairs,).
        second_bits: Bits that are enough for all second numbers.
    """
    shift = np.uint64(second_bits)
    pairs = np.sort(first.view(np.uint64) << shift | second.view(np.uint64))
    second_mask = np.uint64((1 << second_bits) - 1)
    return SortedPairs((pairs >> shift).view(np.int64), (pairs & second_mask).view(np.int64))


class RemainderQueue:
    """Hands out the remainders of documents: pieces at their ends that are shorter than a pack.

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
        self._lengths = lengths
        self._rule = rule
        # Each queue starts after those of all shorter remainders.
        counts = _count_remainders(lengths, rule)  # (tokens of a sample,) [0, 3, 1]
        self._next_positions = np.cumsum(counts) - counts  # [0, 0, 3]

        has_numbers_of_32_bits = len(lengths) <= 1 << 32
        dtype = np.uint32 if has_numbers_of_32_bits else np.uint64
        self._documents: NDArray[Any] = np.empty(int(counts.sum()), dtype)
        self._enter_documents()

    def _enter_documents(self) -> None:
        """Write each document to the end of its queue, for a million documents at a time.

        For example, the documents 0 to 3 end with remainders of 1, 2, 1 and 1 tokens. The queue of
        length 1 gets the documents 0, 2 and 3, in this order, and that of length 2 document 1.
        """
        free_positions = self._next_positions.copy()  # end of each queue so far: [0, 0, 3]
        n_queues = len(free_positions)
        for start in range(0, len(self._lengths), CHUNK_DOCUMENTS):
            chunk = self._lengths[start : start + CHUNK_DOCUMENTS]
            remainders = self._rule.remainders(chunk)  # (n_in_chunk,) [1, 2, 1, 1]
            rows = np.flatnonzero(remainders)  # documents with a remainder: [0, 1, 2, 3]
            waiting = sort_pairs(remainders[rows], rows)  # [1, 1, 1, 2] and [0, 2, 3, 1]
            counts = np.bincount(waiting.first, minlength=n_queues)  # (n_queues,) [0, 3, 1]
            positions = positions_in(free_positions, counts)  # [0, 1, 2, 3]
            self._documents[positions] = waiting.second + start  # [0, 2, 3, 1]
            free_positions += counts

    def take(
        self, piece_lengths: NDArray[np.int64], pack_numbers: NDArray[np.int64]
    ) -> PieceArrays:
        """Take pieces of some lengths, each from the end of the next document with such a piece.

        For example, packs of 10 tokens are planned with these pieces:

            pack                   0                1    1
            length of the piece    3                4    3
            next document          0                1    2
            its tokens             13               14   3
            piece                  tokens 10 to 12  10 to 13  0 to 2

        Args:
            piece_lengths: Tokens of each piece: [3, 4, 3]; shape (n_pieces,).
            pack_numbers: Pack of each piece: [0, 1, 1]; ascending and less than 2**24, shape
                (n_pieces,).

        Returns:
            The pieces, pack by pack. The documents of a pack are ascending, whatever the order of
            `piece_lengths` is, so that a document on disk is read before later ones.
        """
        # Documents come in the order of their lengths, 3, 3, 4. So sort the packs by this, too.
        documents = self._next_documents(piece_lengths)  # [0, 2, 1]
        piece_numbers = np.arange(len(piece_lengths))
        by_length = sort_pairs(piece_lengths, piece_numbers).second  # [0, 2, 1]
        pack_of_document = pack_numbers[by_length]  # [0, 1, 1]

        by_pack = sort_pairs(pack_of_document, documents, second_bits=_DOCUMENT_BITS)
        return self._remainders_of(by_pack.second)  # of documents 0, 1 and 2

    def _next_documents(self, piece_lengths: NDArray[np.int64]) -> NDArray[np.int64]:
        """Take the next documents of several queues: those that end with pieces of some lengths.

        For example, documents 0 and 2 end with a piece of 3 tokens, and document 1 with one of 4.
        For the lengths 3, 4 and 3, these are the documents 0, 2 and 1.

        Args:
            piece_lengths: How long the pieces are, shape (n_pieces,).

        Returns:
            The documents, ordered by the length of their piece and then by number; shape
            (n_pieces,).
        """
        # From each queue, take as many documents as there are pieces of its length.
        counts = np.bincount(piece_lengths, minlength=len(self._next_positions))  # [0, 0, 0, 2, 1]
        positions = positions_in(self._next_positions, counts)  # [0, 1, 2]; (n_pieces,)
        self._next_positions += counts
        return self._documents[positions].astype(np.int64)

    def _remainders_of(self, documents: NDArray[np.int64]) -> PieceArrays:
        """Return the last piece of each document: for pieces of 10 tokens, 13 tokens end with 3.

        Args:
            documents: Numbers of the documents, shape (n_documents,).
        """
        document_tokens = np.asarray(self._lengths[documents], np.int64)  # [13]
        piece_tokens = self._rule.remainders(document_tokens)  # [3]
        return PieceArrays(documents, firsts=document_tokens - piece_tokens, lengths=piece_tokens)


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


class _FullPieces(NamedTuple):
    """The pieces of some documents that are as long as a pack, numbered from 0."""

    documents: NDArray[np.int64]
    """The documents that have any: [4, 7]; ascending, shape (n_documents,)."""
    stops: NDArray[np.int64]
    """How many pieces there are up to the end of each of these: [2, 5]; shape (n_documents,)."""

    @property
    def n_pieces(self) -> int:
        """Number of pieces: 5."""
        return int(self.stops[-1]) if len(self.stops) else 0

    def between(self, start: int, stop: int, piece_length: int) -> PieceArrays:
        """Return the pieces of a range of numbers.

        For example, pieces have 10 tokens. Document 4 has two of them, and document 7 has three:

            piece          0    1     2    3     4
            document       4    4     7    7     7
            first token    0    10    0    10    20

        Args:
            start: Number of the first piece.
            stop: Number after the last one.
            piece_length: Tokens of each piece: 10.
        """
        piece_numbers = np.arange(start, stop)  # such as [1, 2, 3]
        # A piece is in the first document that ends after it.
        indices = np.searchsorted(self.stops, piece_numbers, side="right")  # [0, 1, 1]
        first_pieces = np.concatenate([[0], self.stops])  # of each document: [0, 2, 5]
        numbers_in_document = piece_numbers - first_pieces[indices]  # [1, 0, 1]
        return PieceArrays(
            documents=self.documents[indices],  # [4, 7, 7]
            firsts=numbers_in_document * piece_length,  # [10, 0, 10]
            lengths=np.full(stop - start, piece_length),
        )


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
        self._next_document = 0
        """The first document whose length was not read."""
        no_documents = np.empty(0, np.int64)
        self._pieces = _FullPieces(no_documents, no_documents)
        """Full pieces of the documents whose lengths were read last."""
        self._n_taken = 0
        """How many of these were taken."""

    def take(self, count: int) -> PieceArrays:
        """Take the next pieces of documents that are as long as a training sample.

        For samples of 10 tokens, a document of 25 tokens has two such pieces: its tokens 0 to 9,
        and 10 to 19. The lengths of documents are read when they are needed, for a million
        documents at a time.

        Args:
            count: How many pieces; at most as many as were not taken before.
        """
        taken_pieces = [NO_PIECES]
        n_missing = count
        while n_missing > 0:
            if self._n_taken == self._pieces.n_pieces:  # all of the documents that were read
                self._read_documents()
                continue  # these may have no such piece

            # The next pieces of these documents, such as 3 to 7 of 8.
            start = self._n_taken
            stop = min(start + n_missing, self._pieces.n_pieces)
            taken_pieces.append(self._pieces.between(start, stop, piece_length=self._rule.length))
            self._n_taken = stop
            n_missing -= stop - start
        return PieceArrays.concatenated(taken_pieces)

    def _read_documents(self) -> None:
        """Read the lengths of the next million documents, and find pieces as long as a sample.

        Documents are divided into such pieces, and what remains. For training samples of 10 tokens:

            document                   0     1    2
            tokens                     25    7    30
            full pieces                2     0    3
            numbers of these pieces    0, 1  -    2, 3, 4

        `_pieces` gets the documents that have any, [0, 2], and the number of pieces up to the end
        of each, [2, 5].
        """
        start = self._next_document
        if start >= len(self._lengths):
            # The caller has planned how many pieces there are, and takes no more.
            raise AssertionError("the plan has more full pieces than the documents")
        stop = start + CHUNK_DOCUMENTS

        lengths = self._lengths[start:stop]  # (n_documents,) [25, 7, 30]
        piece_counts = self._rule.full_pieces(lengths)  # (n_documents,) [2, 0, 3]
        with_pieces = np.flatnonzero(piece_counts)  # [0, 2]
        stops = np.cumsum(piece_counts[with_pieces])  # [2, 2 + 3]
        self._pieces = _FullPieces(documents=start + with_pieces, stops=stops)
        self._n_taken = 0
        self._next_document = stop
