"""The tokens of a dataset's sequences as one stream, wherever in the .bin the sequences lie.

Of sequences that lie back to back and fill the .bin, the stream is the .bin. Those of a view lie anywhere in it, in any
order, and more than once.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.formats.indexed import layout
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Index, Tokens, positions_in

CHUNK_TOKENS = 1 << 19
_CHUNK_DOCUMENTS = 1 << 16
Sequences = Index | MMapIndexedDataset
"""What says where sequences lie."""


def is_back_to_back(dataset: MMapIndexedDataset) -> bool:
    """Return whether the sequences, one behind the other, are all of the .bin: not those of a view that begins it."""
    lengths, size = dataset.sequence_lengths, dataset.dtype.itemsize
    fills = dataset.bin_bytes == int(lengths.sum(dtype=np.int64)) * size
    return fills and layout.is_back_to_back(lengths, dataset.sequence_pointers, size)


def token_starts(dataset: MMapIndexedDataset, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of the first token of each of some sequences, int64; behind the last one, of the end."""
    starts = np.full(len(sequences), dataset.token_count, np.int64)
    inside = sequences < len(dataset)
    starts[inside] = dataset.sequence_pointers[sequences[inside]] // dataset.dtype.itemsize
    return starts


def places_upto(ascending: NDArray[np.integer[Any]], wanted: ArrayLike) -> NDArray[np.int64]:
    """Return the place of the last entry that is not above each of some numbers, int64; -1 where all are.

    It is `np.searchsorted`, which of an .idx would copy a whole array, since these are not aligned.
    """
    numbers = np.asarray(wanted)
    places = np.full(numbers.shape, -1, np.int64)
    for bit in reversed(range(len(ascending).bit_length())):
        ahead = places + (1 << bit)
        is_upto = (ahead < len(ascending)) & (ascending[np.minimum(ahead, len(ascending) - 1)] <= numbers)
        places[is_upto] = ahead[is_upto]
    return places


class TokenFile(Protocol):
    """What reads a .bin."""

    dtype: np.dtype

    def tokens_for(self, begins: NDArray[np.int64], ends: NDArray[np.int64]) -> Tokens:
        """Return all tokens, of which only the bytes of these ranges [begins, ends) are asked for."""
        ...


class Stream:
    """All tokens of some sequences, one sequence after the other; takes 16 bytes of memory a sequence."""

    def __init__(self, sequences: Sequences) -> None:
        self._ends = np.cumsum(sequences.sequence_lengths, dtype=np.int64)
        self._begins = sequences.sequence_pointers // sequences.dtype.itemsize

    @classmethod
    def of_ranges(cls, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> Stream:
        """Return the stream of some ranges of the .bin, in tokens."""
        stream = cls.__new__(cls)
        stream._ends, stream._begins = np.cumsum(lengths), begins
        return stream

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def starts(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the first token of each of some sequences, int64; behind the last one, of the end."""
        if not len(self._ends):
            return np.zeros(len(sequences), np.int64)
        return np.where(sequences > 0, self._ends[sequences - 1], 0)

    def ranges(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where ranges of the stream lie in the .bin: (first tokens, lengths) of all pieces, in order, int64."""
        kept = lengths > 0
        starts, stops = starts[kept], starts[kept] + lengths[kept]
        first = np.searchsorted(self._ends, starts, side="right")
        counts = np.searchsorted(self._ends, stops, side="left") - first + 1
        sequences = positions_in(first, counts)
        ends = self._ends[sequences]
        own = np.where(sequences > 0, self._ends[sequences - 1], 0)
        low, high = np.maximum(own, np.repeat(starts, counts)), np.minimum(ends, np.repeat(stops, counts))
        filled = high > low
        return (self._begins[sequences] + low - own)[filled], (high - low)[filled]


def stream_of(dataset: MMapIndexedDataset) -> Stream | None:
    """Return the stream of a dataset whose sequences lie anywhere in the .bin; None where the .bin is the stream."""
    return None if is_back_to_back(dataset) else Stream(dataset)


def gathered(tokens: Tokens, begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Return the tokens of some ranges, one after the other."""
    if len(begins) == 1:
        return tokens[begins[0] : begins[0] + lengths[0]].copy()
    return tokens[positions_in(begins, lengths)]


def stream_tokens(
    file: TokenFile, stream: Stream, begin: int, end: int, step: int = CHUNK_TOKENS
) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield (number of the first, tokens) of tokens [begin, end) of a stream, in chunks."""
    size = file.dtype.itemsize
    for first in range(begin, end, step):
        begins, lengths = stream.ranges(np.array([first]), np.array([min(step, end - first)]))
        yield first, gathered(file.tokens_for(begins * size, (begins + lengths) * size), begins, lengths)


Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""First tokens and lengths."""


def document_spans(dataset: MMapIndexedDataset, stream: Stream | None = None) -> Iterator[Spans]:
    """Yield (first tokens, lengths) in tokens of all documents with tokens, of a .bin without gaps or of a stream."""
    bounds = dataset.document_indices
    for first in range(0, len(bounds) - 1, _CHUNK_DOCUMENTS):
        sequences = bounds[first : first + _CHUNK_DOCUMENTS + 1]
        begins = token_starts(dataset, sequences) if stream is None else stream.starts(sequences)
        lengths = np.diff(begins)
        kept = lengths > 0
        if kept.any():
            yield begins[:-1][kept], lengths[kept]


class Hashed:
    """Passes blocks on, and knows the sha256 and size of all of them."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._sha256, self.size = blocks, hashlib.sha256(), 0

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._sha256.update(block)
            self.size += len(block)
            yield block

    @property
    def sha256(self) -> str:
        """Hex, once all blocks were taken."""
        return self._sha256.hexdigest()
