"""The hash of a document's tokens, by which documents with equal tokens are recognised.

It is the only hash for this purpose: `shards` counts repeated documents with it, `nanoset verify`
estimates how many documents of a dataset repeat others, and `held_out` stores it for each document,
so it must never change. The tokens are hashed as the bytes that they have in a .bin, by the hash of
byte strings in `hashing.py`, whose docstring states how often different documents get equal
hashes. For example, with tokens of 4 bytes, a document of three tokens is two words:

    tokens        5, 6, 7
    words         5 + 6 * 2**32,  7
    hash          mix(mix(words[0] + STEP) + mix(words[1] + 2 * STEP) + 12)

The hash of a document depends on its tokens and on their type. It does not depend on the document's
place in the dataset, on other documents, or on the chunks in which the tokens are read. Datasets
with tokens of different types, such as uint16 and int32, cannot be compared by hashes.

Equal hashes are taken for equal documents, except where documents are about to be erased:
`lineage/copies.py` then also compares the sha256 of the tokens.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.sampling.hashing import WORD_BYTES, finish_hashes, sum_words


def hash_sequences(tokens: Tokens, lengths: NDArray[np.integer]) -> NDArray[np.uint64]:
    """Return the hash of the tokens of each sequence that has tokens.

    Args:
        tokens: Tokens of all sequences, concatenated; shape (n_tokens,).
        lengths: Tokens of each sequence, shape (n_sequences,).

    Returns:
        Shape (n_filled,); sequences without tokens have none.
    """
    return SequenceHasher(lengths).add(tokens)


class _ChunkSequences(NamedTuple):
    """The sequences that have tokens in a chunk: consecutive ones."""

    first: int
    """Number of the first one."""
    ended_stop: int
    """Number after the last one that ends in the chunk."""
    stop: int
    """Number after the last one: `ended_stop`, or one more if another one continues."""

    @property
    def is_empty(self) -> bool:
        """Whether the chunk is behind all sequences."""
        return self.first == self.stop

    @property
    def last_continues(self) -> bool:
        """Whether the last sequence continues in the next chunk."""
        return self.stop > self.ended_stop


class SequenceHasher:
    """Hashes sequences whose tokens are added chunk by chunk.

    A sequence may begin in one chunk and end in a later one:

        tokens        5  6  7 | 5  6  7  8      chunks of 3 and 4 tokens
        sequences     0  0  1 | 1  1  2  2
        hashes        of 0    | of 1 and 2      that `add` returns

    A sequence is hashed in words of 8 bytes, and the words are added up. If a sequence continues in
    the next chunk, the sum of its whole words is remembered, and its last tokens are held back if
    they are less than a word. So the memory that this takes depends on the size of the chunks and
    the number of sequences, not on their lengths.

    Args:
        lengths: Tokens of each sequence, shape (n_sequences,). Sequences without tokens are
            ignored.
    """

    def __init__(self, lengths: NDArray[np.integer]) -> None:
        """Prepare to hash sequences of these lengths, from the first token on."""
        # Where each sequence starts and stops among all tokens, (n_filled,). For lengths of 2, 0
        # and 3 tokens, the starts are 0 and 2, and the stops 2 and 5.
        filled = lengths[lengths > 0]
        self._stops = np.cumsum(filled, dtype=np.int64)
        self._starts = self._stops - filled
        self._n_hashed = 0
        """Number of tokens that were hashed."""
        self._held_back: Tokens | None = None
        """Tokens after these that are hashed with the next chunk: fewer than a word."""
        self._open_sum = np.uint64(0)
        """Sum over the words of the sequence that continues in the next chunk; 0 without one."""
        self._n_open_words = 0
        """Number of these words."""

    def add(self, tokens: Tokens) -> NDArray[np.uint64]:
        """Add the next tokens of all sequences, and return the hashes of those that end with them.

        Tokens are hashed in words of 8 bytes, such as two tokens of 4 bytes. For example, sequence
        0 has the tokens a, b and c, and sequence 1 has d to h:

            first call     a b c d     returns the hash of (a b) and (c); d waits for its word
            second call    e f g h     returns the hash of (d e), (f g) and (h)

        Args:
            tokens: Consecutive tokens, shape (n_tokens,). Tokens after the last sequence are
                ignored.

        Returns:
            Shape (n_ended,), in the order of the sequences.
        """
        # The chunk starts with the tokens that the previous call held back: d e f g h.
        if self._held_back is not None:
            tokens = np.concatenate([self._held_back, tokens])
            self._held_back = None
        chunk_start = self._n_hashed
        self._n_hashed += len(tokens)
        chunk = self._sequences_between(chunk_start, self._n_hashed)
        if chunk.is_empty:
            return np.empty(0, np.uint64)

        # Add up the words of each sequence. If the last one continues in the next chunk, its sum is
        # remembered, and tokens at its end that are not a whole word are held back.
        borders = self._borders_in(chunk, chunk_start, len(tokens))  # [0, 3, 4] in the first call
        if chunk.last_continues:
            borders = self._hold_back_partial_word(tokens, borders)  # [0, 3]
        sums = self._sum_words(tokens, borders)
        n_ended = chunk.ended_stop - chunk.first
        self._remember_open(sums, borders, n_ended, tokens.dtype.itemsize)

        # Return the hashes of the sequences that end in this chunk.
        ended = slice(chunk.first, chunk.ended_stop)
        lengths = self._stops[ended] - self._starts[ended]
        return finish_hashes(sums[:n_ended], lengths * tokens.dtype.itemsize)

    def _sequences_between(self, start: int, stop: int) -> _ChunkSequences:
        """Find the sequences that have tokens in a chunk.

        Args:
            start: Number of the chunk's first token among all tokens.
            stop: Number after its last token.
        """
        first, ended_stop = np.searchsorted(self._stops, [start, stop], side="right").tolist()
        sequence_stop = int(np.searchsorted(self._starts, stop))
        return _ChunkSequences(first, ended_stop, sequence_stop)

    def _borders_in(
        self, chunk: _ChunkSequences, chunk_start: int, n_tokens: int
    ) -> NDArray[np.int64]:
        """Return where each sequence starts in a chunk, and where the last one stops.

        Args:
            chunk: The sequences that have tokens in the chunk; at least one.
            chunk_start: Number of the chunk's first token among all tokens.
            n_tokens: Tokens of the chunk.

        Returns:
            Positions in the chunk, shape (n_in_chunk + 1,). Those of sequences that start before
            it, or stop after it, are its own start and stop.
        """
        starts = self._starts[chunk.first : chunk.stop]
        borders = np.append(starts, self._stops[chunk.stop - 1]) - chunk_start
        clipped: NDArray[np.int64] = np.clip(borders, 0, n_tokens)
        return clipped

    def _remember_open(
        self, sums: NDArray[np.uint64], borders: NDArray[np.int64], n_ended: int, token_bytes: int
    ) -> None:
        """Remember the sum of the sequence that continues in the next chunk, if one does.

        The hash of a sequence is a sum over words of 8 bytes of its tokens. If its first words are
        in this chunk, the next call continues this sum.

        Args:
            sums: Sum over the words of each sequence of this chunk, those of earlier chunks
                included; shape (n_in_chunk,).
            borders: Start of each of them in the chunk, and the stop of the last one, without
                tokens that wait for the rest of their word; shape (n_in_chunk + 1,).
            n_ended: How many of them end in this chunk; at most one more follows.
            token_bytes: Bytes of a token.
        """
        if n_ended > 0:
            # The sequence that was continued has ended: a next one has no words in earlier chunks.
            self._open_sum = np.uint64(0)
            self._n_open_words = 0
        if len(sums) > n_ended:
            n_tokens = int(borders[-1] - borders[-2])
            self._open_sum = sums[-1]
            self._n_open_words += n_tokens * token_bytes // WORD_BYTES

    def _hold_back_partial_word(
        self, tokens: Tokens, borders: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Keep the last tokens of a chunk for the next one, if they are less than a word.

        A word has 8 bytes: for example, two tokens of 4 bytes. Then of 5 tokens, one is held back:

            borders     0, 3, 8  →  0, 3, 7

        Args:
            tokens: The tokens of the chunk. The last sequence in it continues in the next chunk.
            borders: Start of each sequence in the chunk, and the stop of the last one; shape
                (n_in_chunk + 1,).

        Returns:
            The borders without these tokens. If the last sequence has no others in the chunk, it is
            left out, and the shape is (n_in_chunk,).
        """
        last_start, last_stop = borders[-2:]
        tokens_per_word = WORD_BYTES // tokens.dtype.itemsize
        n_held_back = int(last_stop - last_start) % tokens_per_word

        # The next chunk starts with these tokens. The copy lets this chunk be freed.
        if n_held_back > 0:
            self._held_back = tokens[-n_held_back:].copy()
            self._n_hashed -= n_held_back

        new_stop = last_stop - n_held_back
        if new_stop == last_start:
            return borders[:-1]
        return np.append(borders[:-1], new_stop)

    def _sum_words(self, tokens: Tokens, borders: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Return the sum over all words of each sequence, those of earlier chunks included.

        A word is 8 bytes of tokens, and is hashed with its number in the sequence. If the first
        sequence began in an earlier chunk, with three words, its words here are 3, 4, ….

        Args:
            tokens: The tokens of the chunk.
            borders: Start of each sequence in the chunk, and the stop of the last one; shape
                (n_sequences + 1,). There may be no sequence.

        Returns:
            uint64, modulo 2**64, shape (n_sequences,).
        """
        token_bytes = tokens.dtype.itemsize
        sums = sum_words(
            np.ascontiguousarray(tokens).view(np.uint8),
            borders * token_bytes,  # as positions of bytes
            item_bytes=token_bytes,
            n_words_before=self._n_open_words,  # in earlier chunks, of the first sequence
        )
        # Only the first sequence can have a sum of earlier chunks. It is added in place, to a slice
        # of at most one entry: numpy would warn if a sum of two scalars exceeded 2**64.
        sums[:1] += self._open_sum
        return sums
