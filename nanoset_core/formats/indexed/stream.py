"""Read the sequences of a dataset as one stream of tokens, wherever the .bin has them.

The *stream* of a dataset is the concatenation of its sequences in order. If the sequences are
stored back to back and fill the .bin, the stream is the .bin. But the sequences of a view are
anywhere in the .bin of its corpus, in any order, and possibly several times:

    .bin       a b c d e f g h
    sequences  f g h | b c | f g h
    stream     f g h b c f g h

Tokens 2 to 6 of this stream, h b c f, are stored in three pieces: h at 7, b c at 1, and f at 5.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.layout import Index, Tokens, is_back_to_back, positions_in

CHUNK_TOKENS = 1 << 19
"""Tokens of a stream that are read at once."""
_CHUNK_DOCUMENTS = 1 << 16
"""Documents whose tokens are located at once."""
Sequences = Index | MMapIndexedDataset
"""An object with the lengths of sequences, and their pointers into the .bin."""


def fills_bin(dataset: MMapIndexedDataset) -> bool:
    """Return whether a dataset's file of tokens is just its sequences, one after another.

    If so, the file can be read from start to end. Otherwise, sequences have to be looked up:

        the dataset of a corpus                   yes, usually
        a selection of documents of a corpus      no: it shares the corpus's file of tokens
        the first documents of a corpus           no: they are in order, but the file has more

    Args:
        dataset: The dataset. Its tokens are not read.
    """
    itemsize = dataset.dtype.itemsize
    sequence_bytes = int(dataset.sequence_lengths.sum(dtype=np.int64)) * itemsize
    if dataset.bin_bytes != sequence_bytes:
        return False
    return is_back_to_back(dataset.sequence_lengths, dataset.sequence_pointers, itemsize)


def token_starts(dataset: MMapIndexedDataset, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where some sequences start in the file of tokens, counted in tokens.

    The index of the dataset has these positions in bytes: with tokens of 2 bytes, byte 20 is token
    10.

    Args:
        dataset: The dataset.
        sequences: Numbers of the sequences, shape (n_sequences,). The number after the last
            sequence stands for the end of the file.

    Returns:
        Positions in tokens, int64, shape (n_sequences,).
    """
    starts = np.full(len(sequences), dataset.token_count, np.int64)
    exists = sequences < len(dataset)
    starts[exists] = dataset.sequence_pointers[sequences[exists]] // dataset.dtype.itemsize
    return starts


def last_not_greater(ascending: NDArray[np.integer[Any]], values: ArrayLike) -> NDArray[np.int64]:
    """Return, for each value, the index of the last entry of a sorted array that is not greater.

    In [3, 5, 5, 9], that is index 2 for the value 6, and -1 for the value 1.
    `np.searchsorted(ascending, values, side="right") - 1` returns the same, but it copies arrays
    that are not aligned in memory, such as those of an .idx.

    Args:
        ascending: Sorted entries, shape (n,).
        values: Values to search for, of any shape.

    Returns:
        int64, of the shape of `values`; -1 if all entries are greater.
    """
    values = np.asarray(values)
    last_index = len(ascending) - 1
    indices = np.full(values.shape, -1, np.int64)  # before the first entry

    # A binary search for all values together. Move ahead by 4 entries, by 2, and by 1, each time
    # only if the entry there exists and is not greater. For the value 6, that is from -1 to 1 and
    # to 2. (`1 << bit` is 4, 2 and 1 for 4 to 7 entries.)
    for bit in reversed(range(len(ascending).bit_length())):
        indices_ahead = indices + (1 << bit)
        exists = indices_ahead <= last_index
        entries_ahead = ascending[np.minimum(indices_ahead, last_index)]
        can_move = exists & (entries_ahead <= values)
        indices[can_move] = indices_ahead[can_move]
    return indices


class TokenFile(Protocol):
    """A reader of a .bin."""

    dtype: np.dtype

    def tokens_for(self, starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Tokens:
        """Return the tokens of a .bin as an array in which some ranges may be read.

        Args:
            starts: First byte of each range, int64, shape (n_ranges,).
            stops: Byte after each range, int64, shape (n_ranges,).

        Returns:
            Shape (n_tokens of the .bin,). Tokens outside of the ranges may be wrong.
        """
        ...


class Stream:
    """Finds where the tokens of a stream are stored in the .bin.

    It takes 16 bytes of memory for each sequence.

    Args:
        sequences: The sequences whose concatenation is the stream.
    """

    def __init__(self, sequences: Sequences) -> None:
        # (n,) end of each sequence in the stream
        self._ends = np.cumsum(sequences.sequence_lengths, dtype=np.int64)
        # (n,) first token of each sequence in the .bin
        self._bin_starts = sequences.sequence_pointers // sequences.dtype.itemsize

    @classmethod
    def of_ranges(cls, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> Stream:
        """Return the stream (order of tokens) that consists of some ranges of a dataset's file.

        For example, the starts 10 and 50 and the lengths 3 and 4: the first token of the stream is
        token 10 of the file, and the fourth one is token 50.

        Args:
            starts: First token of each range in the file, int64, shape (n_ranges,).
            lengths: Tokens of each range, int64, shape (n_ranges,).
        """
        stream = cls.__new__(cls)
        stream._ends = np.cumsum(lengths)
        stream._bin_starts = starts
        return stream

    @property
    def tokens(self) -> int:
        """Number of tokens in the stream."""
        return int(self._ends[-1]) if len(self._ends) else 0

    def starts(self, sequences: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where some sequences start if all sequences are put one after another.

        For example, sequences of 3, 2 and 4 tokens start at the tokens 0, 3 and 5. The number 3,
        which no sequence has, gives 9, the end of all.

        Args:
            sequences: Numbers of the sequences, shape (n_sequences,). The number after the last
                sequence stands for the end of the stream.

        Returns:
            Positions in tokens, int64, shape (n_sequences,).
        """
        if not len(self._ends):
            return np.zeros(len(sequences), np.int64)
        # A sequence starts where the one before it ends. The first one has none before it: there,
        # the index -1 gives a wrong value, which is replaced by 0.
        return np.where(sequences > 0, self._ends[sequences - 1], 0)

    def ranges(
        self, starts: NDArray[np.int64], lengths: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find where some ranges of a dataset's tokens are stored in its file, the .bin.

        A dataset consists of sequences. Its tokens are counted in the order of the sequences. The
        .bin may have the sequences in another order, and with gaps. So a token has two positions.
        For example, with the sequences ABC and DEFG:

            token                     A   B   C   D   E   F   G
            position in the dataset   0   1   2   3   4   5   6
            position in the .bin      10  11  12  50  51  52  53

        The tokens C D E are one range of the dataset: 3 tokens from 2 on. In the .bin, they are two
        pieces: 1 token from 12 on, and 2 tokens from 50 on.

        Args:
            starts: First token of each range in the dataset, int64, shape (n_ranges,): [2].
            lengths: Tokens of each range, int64, shape (n_ranges,): [3].

        Returns:
            First token in the .bin, and number of tokens, of all pieces in order, int64, shape
            (n_pieces,) each: [12, 50] and [1, 2].
        """
        has_tokens = lengths > 0
        starts = starts[has_tokens]
        stops = starts + lengths[has_tokens]
        # All sequences that a range goes over, for one range after another: 0 and 1.
        first_sequences, sequence_counts = self._sequences_touched(starts, stops)  # [0], [2]
        sequences = positions_in(first_sequences, sequence_counts)  # (n_pieces,) [0, 1]

        # A piece is what a range and a sequence have in common, in positions of the dataset.
        sequence_starts = self.starts(sequences)  # [0, 3]
        piece_starts = np.maximum(sequence_starts, np.repeat(starts, sequence_counts))  # [2, 3]
        piece_stops = np.minimum(self._ends[sequences], np.repeat(stops, sequence_counts))  # [3, 5]
        piece_lengths = piece_stops - piece_starts  # [1, 2]

        # Convert the starts to positions in the .bin, where the sequences start at 10 and 50.
        bin_starts = self._bin_starts[sequences] + piece_starts - sequence_starts  # [12, 50]

        # Leave out empty pieces, which are those of sequences without tokens.
        is_filled = piece_lengths > 0
        return bin_starts[is_filled], piece_lengths[is_filled]

    def _sequences_touched(
        self, starts: NDArray[np.int64], stops: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Find which sequences some ranges of tokens go over: the first one, and how many.

        Sequence 0 has the tokens 0 to 2, and sequence 1 has 3 to 6:

            range        first sequence    number of sequences
            [2, 5)       0                 2
            [0, 3)       0                 1
            [3, 7)       1                 1

        Args:
            starts: First token of each range in the stream, shape (n_ranges,).
            stops: Token after the last one, greater than the first one, shape (n_ranges,).
        """
        # `_ends` is the token after each sequence: 3 7. The sequence of a token is the number of
        # sequences that end at it or before it.
        first_sequences = np.searchsorted(self._ends, starts, side="right")
        last_tokens = stops - 1
        last_sequences = np.searchsorted(self._ends, last_tokens, side="right")
        return first_sequences, last_sequences - first_sequences + 1


def stream_of(dataset: MMapIndexedDataset) -> Stream | None:
    """Return where the tokens of a dataset's concatenated sequences are stored in its .bin.

    Args:
        dataset: The dataset. Its tokens are not read.

    Returns:
        None if the .bin itself is the concatenation.
    """
    return None if fills_bin(dataset) else Stream(dataset)


def gathered(tokens: Tokens, starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[Any]:
    """Copy some ranges of tokens, one after another, into a new array.

    For example, the starts 5 and 0 and the lengths 2 and 1 give the tokens at the positions 5, 6
    and 0.

    Args:
        tokens: All tokens of a dataset's file.
        starts: First token of each range, int64, shape (n_ranges,).
        lengths: Tokens of each range, int64, shape (n_ranges,).

    Returns:
        Shape (sum of lengths,).
    """
    if len(starts) == 1:
        return tokens[starts[0] : starts[0] + lengths[0]].copy()
    return tokens[positions_in(starts, lengths)]


def read_tokens(file: TokenFile, start: int, stop: int, stream: Stream | None = None) -> Tokens:
    """Return some consecutive tokens of a dataset; if its file is in a bucket, download only these.

    The file, the .bin, may have the sequences of the dataset in another order. Here the dataset is
    the sequences `F G H` and `B C`. Its tokens from position 2 up to 5 are `H B C`:

        position      0 1 2 3 4 5 6 7
        dataset       F G H B C
        .bin          A B C D E F G H     H is at 7, and B C at 1 and 2

    Args:
        file: Reads the .bin.
        start: Position of the first token in the dataset.
        stop: Position after the last token.
        stream: Where the tokens of the dataset are in the .bin; None if they are there in order.

    Returns:
        Shape (stop - start,). It may be a view of the .bin.
    """
    bin_starts = np.array([start])
    lengths = np.array([stop - start])
    if stream is None:
        bin_tokens = _tokens_in_ranges(file, bin_starts, lengths)
        return bin_tokens[start:stop]
    bin_starts, lengths = stream.ranges(bin_starts, lengths)  # in the example [7, 1] and [1, 2]
    bin_tokens = _tokens_in_ranges(file, bin_starts, lengths)
    return gathered(bin_tokens, bin_starts, lengths)


def _tokens_in_ranges(
    file: TokenFile, starts: NDArray[np.int64], lengths: NDArray[np.int64]
) -> Tokens:
    """Return the tokens of a .bin, of which only some ranges may be read.

    If the .bin is in a bucket, only these ranges are downloaded.

    Args:
        file: Reads the .bin.
        starts: Position of the first token of each range, int64, shape (n_ranges,).
        lengths: Tokens of each range, int64, shape (n_ranges,).

    Returns:
        Shape (n_tokens of the .bin,), so that positions stay the same. Tokens outside of the ranges
        are not valid.
    """
    itemsize = file.dtype.itemsize
    stops = starts + lengths
    return file.tokens_for(starts * itemsize, stops * itemsize)


def stream_tokens(
    file: TokenFile, stream: Stream, start: int, stop: int, step: int = CHUNK_TOKENS
) -> Iterator[tuple[int, NDArray[np.integer]]]:
    """Yield consecutive tokens of a dataset in chunks, so that they need little memory.

    The .bin, the file of tokens, may have the sequences of the dataset in another order. The stream
    knows where they are. For example, the tokens 100 to 250 in steps of 100 are yielded as 100 to
    200, and 200 to 250.

    Args:
        file: Reads the .bin.
        stream: Where the tokens are in the .bin.
        start: Position of the first token in the stream.
        stop: Position after the last token.
        step: Tokens of a chunk.

    Yields:
        The position of the chunk's first token in the stream, and its tokens, shape (n_tokens,).
    """
    for chunk_start in range(start, stop, step):
        chunk_stop = min(chunk_start + step, stop)
        yield chunk_start, read_tokens(file, chunk_start, chunk_stop, stream)


Spans = tuple[NDArray[np.int64], NDArray[np.int64]]
"""First tokens and lengths of some documents, int64, shape (n_documents,) each."""


def document_spans(dataset: MMapIndexedDataset, stream: Stream | None = None) -> Iterator[Spans]:
    """Yield where documents start, and how many tokens they have, some documents at a time.

    A document consists of sequences, so it starts where its first sequence starts. For example,
    three sequences start at the tokens 0, 3 and 5, and the last one ends at 9. Document 0 has the
    first two, and document 1 the third:

        document     starts at    tokens
        0            0            5
        1            5            4

    Documents without tokens are left out.

    Args:
        dataset: The dataset.
        stream: Order of its tokens; None if they are in order in the .bin. With a stream, first
            tokens are positions in it, and otherwise in the .bin.
    """
    document_indices = dataset.document_indices
    n_documents = len(document_indices) - 1
    for first_document in range(0, n_documents, _CHUNK_DOCUMENTS):
        # One more than the chunk, since a document ends where the next one starts.
        stop_document = min(first_document + _CHUNK_DOCUMENTS, n_documents)
        first_sequences = document_indices[first_document : stop_document + 1]
        if stream is None:
            first_tokens = token_starts(dataset, first_sequences)  # (n_chunk + 1,)
        else:
            first_tokens = stream.starts(first_sequences)
        lengths = np.diff(first_tokens)  # (n_chunk,)
        has_tokens = lengths > 0
        if has_tokens.any():
            yield first_tokens[:-1][has_tokens], lengths[has_tokens]


class Hashed:
    """Iterates over blocks of bytes, and computes their size and sha256 on the way."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._sha256 = hashlib.sha256()
        self.size = 0
        """Bytes of the blocks that were taken so far."""

    def __iter__(self) -> Iterator[bytes]:
        for block in self._blocks:
            self._sha256.update(block)
            self.size += len(block)
            yield block

    @property
    def sha256(self) -> str:
        """Hex digest of the blocks that were taken so far."""
        return self._sha256.hexdigest()
