"""Samples that begin where a document begins.

The rule, our own (Modalities' class of this purpose is broken and cuts documents at random):

1. A document of more than block_size tokens is cut, from its beginning, into pieces of block_size; the last piece is
   what remains. Any other document is one piece. A document without tokens is none.
2. Pieces are taken in order. A sample is as many of the next pieces as fit into block_size together, at least one.

So every token is in exactly one sample, in order; a sample has 1 to block_size tokens; it begins with a document, or
with a piece of one that was too long for any sample.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, SampleIndexError

if TYPE_CHECKING:
    from nanoset_core.packed.datasets import PackedDataset

_WINDOW_PIECES = 1 << 16


class DocumentBlocks:
    """The samples of a packed dataset by the rule above, of at most `block_size` tokens each.

    Memory: 16 bytes a document, 8 a sample. Pickles as its file and block size. ConfigError for a block below 1 token.
    """

    __slots__ = ("_bounds", "_dataset", "_piece_ends", "_piece_starts", "block_size", "lengths")

    def __init__(self, dataset: PackedDataset, block_size: int) -> None:
        if block_size < 1:
            raise ConfigError(
                "a block has at least one token", where=dataset.path, found=block_size, expected="1 or more"
            )
        self._dataset = dataset
        self.block_size = block_size
        starts, sizes = cut_documents(dataset.document_starts, dataset.document_lengths, block_size)
        self._piece_starts, self._piece_ends = starts, starts + sizes
        totals = np.concatenate([np.zeros(1, np.int64), np.cumsum(sizes)])
        self._bounds = pack_pieces(totals, block_size)
        """int64[samples + 1]: sample k is the pieces [bounds[k], bounds[k + 1])"""
        self.lengths: NDArray[np.int64] = np.diff(totals[self._bounds])
        """int64[samples], tokens per sample."""

    def __len__(self) -> int:
        return len(self.lengths)

    def __getitem__(self, index: int) -> NDArray:
        """Tokens of one sample, [lengths[index]], in the dataset's dtype; a negative index counts from the end."""
        i, n = operator.index(index), len(self)
        if not -n <= i < n:
            raise SampleIndexError(
                "no such sample", where=self._dataset.path, found=i, expected=f"0 to {n - 1}" if n else "none"
            )
        pieces = slice(*self._bounds[i % n : i % n + 2])
        begins, ends = self._piece_starts[pieces], self._piece_ends[pieces]
        tokens = self._dataset.tokens
        if (begins[1:] == ends[:-1]).all():  # one run of tokens, unless the file's index has gaps
            return tokens[begins[0] : ends[-1]].astype(self._dataset.dtype)
        parts = [tokens[begin:end] for begin, end in zip(begins, ends, strict=True)]
        return np.concatenate(parts).astype(self._dataset.dtype)

    def batch(self, indices: ArrayLike, pad_id: int) -> NDArray:
        """Tokens of several samples, [len(indices), block_size], short ones filled with `pad_id` at their end.

        ConfigError where `pad_id` does not fit the dataset's dtype.
        """
        wanted = np.asarray(indices, np.int64)
        bounds = np.iinfo(self._dataset.dtype)
        if not bounds.min <= pad_id <= bounds.max:
            raise ConfigError(
                "the padding does not fit the tokens' type",
                where="pad_id",
                found=pad_id,
                expected=f"{bounds.min} to {bounds.max} ({self._dataset.dtype.name})",
            )
        rows = np.full((len(wanted), self.block_size), pad_id, self._dataset.dtype)
        for row, index in zip(rows, wanted.tolist(), strict=True):
            sample = self[index]
            row[: len(sample)] = sample
        return rows

    def __repr__(self) -> str:
        return f"DocumentBlocks({str(self._dataset.path)!r}, {len(self)} samples of up to {self.block_size} tokens)"

    def __reduce__(self) -> tuple[object, ...]:
        return DocumentBlocks, (self._dataset, self.block_size)


def cut_documents(
    starts: NDArray[np.int64], lengths: NDArray[np.int64], block_size: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(starts, lengths), both int64[pieces], of documents cut into pieces of at most `block_size` tokens."""
    counts = -(-lengths // block_size)
    if (counts == 1).all():
        return starts, lengths
    documents = np.repeat(np.arange(len(starts)), counts)  # [pieces]
    firsts = np.cumsum(counts) - counts
    inside = (np.arange(len(documents)) - firsts[documents]) * block_size  # tokens of the document before the piece
    return starts[documents] + inside, np.minimum(lengths[documents] - inside, block_size)


def pack_pieces(totals: NDArray[np.int64], block_size: int) -> NDArray[np.int64]:
    """int64[samples + 1]: the piece with which each sample begins, and their number.

    totals int64[pieces + 1]: tokens before each piece, strictly ascending; no piece above `block_size`.
    """
    return np.concatenate([np.zeros(1, np.int64), *_windows(totals, block_size)])


def _windows(totals: NDArray[np.int64], block_size: int) -> Iterator[NDArray[np.int64]]:
    """The bounds after the first, a window of pieces at a time."""
    pieces, begin = len(totals) - 1, 0
    # A sample never has more pieces than tokens, so at least one sample ends inside a window.
    width = max(_WINDOW_PIECES, min(block_size, pieces)) + 1
    while begin < pieces:
        window = totals[begin : begin + width + 1]
        last = len(window) - 1
        # successors[k]: the first piece that no longer fits a sample that begins with piece k
        successors = np.searchsorted(window, window + block_size, side="right") - 1
        bounds = begin + _follow(successors)
        if begin + last < pieces:
            bounds = bounds[:-1]  # where the window ends, more might fit
        yield bounds
        begin = int(bounds[-1])


def _follow(successors: NDArray[np.int64]) -> NDArray[np.int64]:
    """The chain successors[0], successors[successors[0]], … to the last number, by doubling the length known."""
    last = len(successors) - 1
    chain, jumps = successors[:1], successors
    while chain[-1] != last:
        chain = np.concatenate([chain, jumps[chain]])
        jumps = jumps[jumps]
    return chain[: int(np.searchsorted(chain, last)) + 1]
