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
    """Return a 64-bit hash of the tokens of each document, by which equal documents are recognised.

    For example, the tokens 5, 6, 5, 6, 7 with the lengths 2, 0 and 3 are the documents (5, 6), one
    without tokens, and (5, 6, 7). The result has two hashes.

    Args:
        tokens: Tokens of all documents, one after another; shape (n_tokens,).
        lengths: Tokens of each document, shape (n_sequences,).

    Returns:
        uint64, shape (n_filled,); documents without tokens are left out.
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
        """Prepare to hash documents of these lengths, from the first token on."""
        # Where each document starts and stops among all tokens, (n_filled,). For lengths of 2, 0
        # and 3 tokens, the stops are 2 and 5, and the starts 0 and 2.
        filled = lengths[lengths > 0]
        self._stops = np.cumsum(filled, dtype=np.int64)
        self._starts = self._stops - filled
        self._n_hashed = 0
        """Number of tokens that were hashed."""
        self._held_back: Tokens | None = None
        """Tokens after these that wait for the next ones: fewer than a word of 8 bytes."""

        # If a document continues after the tokens that were hashed:
        self._open_sum = np.uint64(0)
        """Sum of the hashes of its words so far; otherwise 0."""
        self._n_open_words = 0
        """Number of these words; otherwise 0."""

    def add(self, tokens: Tokens) -> NDArray[np.uint64]:
        """Add the next tokens of some documents, and return the hashes of the documents that end.

        The tokens come in chunks, whose ends need not be those of documents. Tokens are hashed in
        words of 8 bytes, such as two tokens of 4 bytes. For example, document 0 has the tokens a, b
        and c, and document 1 has d to h:

            chunk           words that are hashed        returned
            a b c d         (a b) (c)                    hash of document 0; d waits for e
            e f g h         (d e) (f g) (h)              hash of document 1

        Args:
            tokens: The next tokens, shape (n_tokens,). Those after the last document are ignored.

        Returns:
            uint64, shape (n_ended,), in the order of the documents.
        """
        # Put the tokens in front that wait since the previous call: d e f g h.
        if self._held_back is not None:
            tokens = np.concatenate([self._held_back, tokens])
            self._held_back = None
        chunk_start = self._n_hashed
        self._n_hashed += len(tokens)
        chunk = self._sequences_between(chunk_start, self._n_hashed)
        if chunk.is_empty:
            return np.empty(0, np.uint64)

        # Where documents start and stop in the chunk. If the last one continues in the next chunk,
        # and its tokens end with less than a word, these wait.
        borders = self._borders_in(chunk, chunk_start, len(tokens))  # [0, 3, 4] in the first call
        if chunk.last_continues:
            borders = self._hold_back_partial_word(tokens, borders)  # [0, 3]

        # Add up the hashes of the words of each document. If the last one continues, keep its sum.
        sums = self._sum_words(tokens, borders)
        n_ended = chunk.ended_stop - chunk.first
        self._remember_open(sums, borders, n_ended, tokens.dtype.itemsize)

        # The hash of a document is computed from its sum and its length.
        ended = slice(chunk.first, chunk.ended_stop)
        lengths = self._stops[ended] - self._starts[ended]
        return finish_hashes(sums[:n_ended], lengths * tokens.dtype.itemsize)

    def _sequences_between(self, start: int, stop: int) -> _ChunkSequences:
        """Find the documents that have tokens in a chunk.

        For example, document 1 has the tokens 3 to 7, document 2 has 8 and 9, and document 3 has 10
        to 14. The chunk has the tokens 5 to 11. So it has tokens of the documents 1 to 3, and the
        first two of these end in it.

        Args:
            start: Number of the chunk's first token among all tokens: 5.
            stop: Number after its last token: 12.
        """
        # Count the documents that stop before the chunk, or at its start: these are before it.
        # Those that stop before its end, or at its end, have ended.
        first, ended_stop = np.searchsorted(self._stops, [start, stop], side="right").tolist()
        # Count the documents that start before the end of the chunk.
        sequence_stop = int(np.searchsorted(self._starts, stop))
        return _ChunkSequences(first, ended_stop, sequence_stop)

    def _borders_in(
        self, chunk: _ChunkSequences, chunk_start: int, n_tokens: int
    ) -> NDArray[np.int64]:
        """Return where documents start in a chunk of tokens, and where the last one stops.

        The documents are one after another, and the chunk is some of their tokens. For example:

            tokens                0 to 2    3 to 7    8 to 9    10 to 14
            document              0         1         2         3
            chunk                           5 6 7     8 9       10 11
            borders               0 (start of the chunk), 3, 5, 7 (end of the chunk)

        Args:
            chunk: The documents that have tokens in the chunk: 1 to 3.
            chunk_start: First token of the chunk: 5.
            n_tokens: Tokens of the chunk: 7.

        Returns:
            Positions in the chunk, shape (n_in_chunk + 1,).
        """
        starts = self._starts[chunk.first : chunk.stop]  # [3, 8, 10]
        last_stop = self._stops[chunk.stop - 1]  # 15
        borders = np.append(starts, last_stop) - chunk_start  # [-2, 3, 5, 10]
        # Documents may start before the chunk, or stop after it.
        clipped: NDArray[np.int64] = np.clip(borders, 0, n_tokens)  # [0, 3, 5, 7]
        return clipped

    def _remember_open(
        self, sums: NDArray[np.uint64], borders: NDArray[np.int64], n_ended: int, token_bytes: int
    ) -> None:
        """Keep what is needed to continue the hash of a document in the next chunk of tokens.

        Tokens come in chunks, and a document may go over several of them: it is *open*. Its hash is
        a sum over words of 8 bytes, each of which is hashed with its number. So the sum
        (`_open_sum`) and the number of words (`_n_open_words`) so far are kept. For example,
        document A has 25 words, and B follows it:

            chunk                  1          2          3
            words in it            10 of A    12 of A    3 of A, 5 of B
            ended in it (n_ended)  0          0          1
            kept: _n_open_words    10 of A    22 of A    5 of B

        Args:
            sums: Sum of each document of this chunk, including its words in earlier chunks; shape
                (n_in_chunk,).
            borders: Where each of them starts in the chunk, and the last one stops; shape
                (n_in_chunk + 1,). There are only whole words.
            n_ended: How many of them end in this chunk. There may be one more, which continues.
            token_bytes: Bytes of a token.
        """
        if n_ended > 0:
            # The document that was open (A) has ended. So an open one starts in this chunk.
            self._open_sum = np.uint64(0)
            self._n_open_words = 0
        if len(sums) > n_ended:
            # The last document (B) is open. `sums` has its earlier words, but `borders` has not.
            n_tokens = int(borders[-1] - borders[-2])
            self._open_sum = sums[-1]
            self._n_open_words += n_tokens * token_bytes // WORD_BYTES

    def _hold_back_partial_word(
        self, tokens: Tokens, borders: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Let the last tokens of a chunk wait for the next chunk, if they are less than a word.

        Documents are hashed in words of 8 bytes, such as two tokens of 4 bytes. The last document
        in this chunk continues in the next one. If it has 5 tokens here, the last of them waits:

            borders between documents     0, 3, 8
            result                        0, 3, 7

        Args:
            tokens: The tokens of the chunk.
            borders: Where each document starts in the chunk, and the last one stops; shape
                (n_in_chunk + 1,).

        Returns:
            The new borders. If all tokens of the last document wait, it is left out: the shape is
            (n_in_chunk,).
        """
        last_start, last_stop = borders[-2:]  # 3 and 8
        tokens_per_word = WORD_BYTES // tokens.dtype.itemsize  # 2
        n_waiting = int(last_stop - last_start) % tokens_per_word  # 1

        if n_waiting > 0:
            self._held_back = tokens[-n_waiting:].copy()  # a view would keep all tokens in memory
            self._n_hashed -= n_waiting  # the next chunk starts with them

        new_stop = last_stop - n_waiting  # 7
        if new_stop == last_start:
            return borders[:-1]
        return np.append(borders[:-1], new_stop)

    def _sum_words(self, tokens: Tokens, borders: NDArray[np.int64]) -> NDArray[np.uint64]:
        """Add up the hashes of the words of each document, including words in earlier chunks.

        Tokens come in chunks. A word is 8 bytes of tokens, such as two tokens of 4 bytes, and is
        hashed with its number in the document. For example, the first document of this chunk began
        in an earlier one, where it had 3 words:

            document                       A                B
            numbers of its words here      3, 4             0, 1, 2
            sum of their hashes            a3 + a4          b0 + b1 + b2
            kept from earlier chunks       a0 + a1 + a2     -              (the field `_open_sum`)
            result                         sum of both      b0 + b1 + b2

        Args:
            tokens: The tokens of the chunk.
            borders: Where each document starts in the chunk, and the last one stops: [0, 4, 10];
                shape (n_documents + 1,). There may be no document.

        Returns:
            uint64, modulo 2**64, shape (n_documents,).
        """
        token_bytes = tokens.dtype.itemsize
        sums = sum_words(
            np.ascontiguousarray(tokens).view(np.uint8),
            borders * token_bytes,  # positions of bytes
            item_bytes=token_bytes,
            n_words_before=self._n_open_words,  # 3
        )
        # Add the sum that was kept to that of the first document: sums[0] += self._open_sum. The
        # slice does nothing if there is no document. And numpy would warn if the sum of two single
        # numbers is 2**64 or more, but not for arrays.
        sums[:1] += self._open_sum
        return sums
