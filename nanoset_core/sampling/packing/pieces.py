"""Pieces of documents, and the packs that consist of them.

A *pack* is a sequence of a fixed number of tokens. A *piece* is a run of tokens of one document
that are in the same pack. For example, packs of 10 tokens may hold documents of 13, 7 and 6 tokens
like this:

    pack 0      tokens 0 to 10 of document 0
    pack 1      tokens 10 to 13 of document 0, and all 7 tokens of document 1
    pack 2      all 6 tokens of document 2; it has room for 4 more

This is stored as arrays with one entry for each piece, and as the bounds of the packs among them:

    documents    0,  0, 1,  2
    firsts       0, 10, 0,  0
    lengths     10,  3, 7,  6
    bounds       0,  1,     3,  4
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class PieceArrays(NamedTuple):
    """Some pieces in order; each array has one entry for each piece, shape (n_pieces,)."""

    documents: NDArray[np.int64]
    """Number of each piece's document."""
    firsts: NDArray[np.int64]
    """Position of each piece's first token in its document."""
    lengths: NDArray[np.int64]
    """Tokens of each piece."""

    @staticmethod
    def concatenated(parts: Sequence[PieceArrays]) -> PieceArrays:
        """Put several lists of pieces of documents one after another.

        A piece is some successive tokens of a document. A list of pieces is stored as three arrays:
        the document of each piece, its first token there, and its length.

        Args:
            parts: The lists, at least one.

        Returns:
            All pieces; each array has the shape (number of all pieces,).
        """
        return PieceArrays(
            documents=np.concatenate([part.documents for part in parts]),
            firsts=np.concatenate([part.firsts for part in parts]),
            lengths=np.concatenate([part.lengths for part in parts]),
        )

    @staticmethod
    def interleaved(
        is_left: NDArray[np.bool_], left: PieceArrays, right: PieceArrays
    ) -> PieceArrays:
        """Merge two lists of pieces of documents, without changing the order of either list.

        For example, the lists a, b and x, y are merged to a, x, y, b if `is_left` is [True, False,
        False, True].

        Args:
            is_left: Whether each piece of the result is the next one of `left`, or of `right`;
                shape (n_pieces,).
            left: The first list.
            right: The second list.
        """
        return PieceArrays(
            documents=_interleaved(is_left, left.documents, right.documents),
            firsts=_interleaved(is_left, left.firsts, right.firsts),
            lengths=_interleaved(is_left, left.lengths, right.lengths),
        )

    @property
    def tokens(self) -> int:
        """Tokens of all pieces together."""
        return int(self.lengths.sum())

    def select(self, selection: NDArray[Any] | slice) -> PieceArrays:
        """Return some of these pieces of documents.

        A piece is stored as its document, its first token there, and its length, in three arrays.
        For example, of the pieces a, b and c, all of these select a and c: [True, False, True], [0,
        2], and `slice(0, 3, 2)`.

        Args:
            selection: What numpy takes as an index of an array, as in the example.
        """
        return PieceArrays(
            documents=self.documents[selection],
            firsts=self.firsts[selection],
            lengths=self.lengths[selection],
        )


def _interleaved(
    is_left: NDArray[np.bool_], left: NDArray[np.int64], right: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Merge the numbers of two arrays, without changing the order of either array.

    For example, [1, 2] and [8, 9] are merged to [1, 8, 9, 2] if `is_left` is [True, False, False,
    True].
    """
    numbers = np.empty(len(is_left), np.int64)
    numbers[is_left] = left
    numbers[~is_left] = right
    return numbers


NO_PIECES = PieceArrays(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.int64))


class FilledPacks(NamedTuple):
    """Consecutive packs, with the pieces that they hold."""

    bounds: NDArray[np.int64]
    """Index of each pack's first piece, and at the end the number of pieces.

    Shape (n_packs + 1,).
    """
    pieces: PieceArrays
    """The pieces of the first pack, then those of the second, and so on."""

    @property
    def n_packs(self) -> int:
        """Number of packs."""
        return len(self.bounds) - 1

    @property
    def pack_numbers(self) -> NDArray[np.int64]:
        """The pack of each piece, counted from 0; int64, shape (n_pieces,)."""
        return np.repeat(np.arange(len(self.bounds) - 1), np.diff(self.bounds))

    @property
    def token_counts(self) -> NDArray[np.int64]:
        """Tokens of each pack; int64, shape (n_packs,)."""
        running_sums = np.concatenate([[0], np.cumsum(self.pieces.lengths)])  # (n_pieces + 1,)
        counts: NDArray[np.int64] = np.diff(running_sums[self.bounds])
        return counts

    @property
    def begins(self) -> NDArray[np.int64]:
        """Position of each piece's first token in its pack; int64, shape (n_pieces,)."""
        lengths = self.pieces.lengths
        tokens_before = np.cumsum(lengths) - lengths  # (n_pieces,) counted from the first pack
        tokens_before_pack = tokens_before[self.bounds[:-1]]  # (n_packs,)
        return tokens_before - tokens_before_pack[self.pack_numbers]

    def select(self, is_selected: NDArray[np.bool_]) -> FilledPacks:
        """Return some of these packs (training samples), with the pieces of documents in them.

        For example, three packs hold 1, 2 and 1 pieces. The first and the last one are selected:

            piece       0    1    2    3
            pack        0    1    1    2
            selected    yes            yes
            bounds      [0, 1, 2]              where the pieces of each selected pack start and end

        Args:
            is_selected: Whether each pack is selected: [True, False, True]; shape (n_packs,).
        """
        piece_counts = np.diff(self.bounds)  # (n_packs,) [1, 2, 1]
        bounds = np.concatenate([[0], np.cumsum(piece_counts[is_selected])])
        is_piece_selected = np.repeat(is_selected, piece_counts)  # [True, False, False, True]
        return FilledPacks(bounds, self.pieces.select(is_piece_selected))

    def slice(self, start: int, stop: int) -> FilledPacks:
        """Return successive packs (training samples), with the pieces of documents in them.

        For example, four packs hold 1, 2, 1 and 3 pieces, and packs 1 and 2 are taken:

            pack                        0    1    2    3
            its first piece (bounds)    0    1    3    4    (7: the end)
            pieces that are taken            1, 2 3
            new bounds                       0    2    3

        Args:
            start: Number of the first pack: 1.
            stop: Number after the last pack: 3.
        """
        bounds = self.bounds[start : stop + 1]  # [1, 3, 4]
        pieces = self.pieces.select(slice(int(bounds[0]), int(bounds[-1])))
        return FilledPacks(bounds - bounds[0], pieces)  # [0, 2, 3]
