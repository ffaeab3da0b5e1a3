"""The hash of a document's tokens, by which documents with equal tokens are recognised.

It is the only hash for this purpose: `shards` counts repeated documents with it, `nanoset verify`
estimates how many documents of a dataset repeat others, and `held_out` stores it for each document,
so it must never change. The tokens are hashed as the bytes that they have in a .bin, by the hash of
byte strings in `statistics/hashing.py`, whose docstring states how often different documents get
equal hashes. For example, with tokens of 4 bytes, a document of three tokens is two words:

    tokens        5, 6, 7
    words         5 + 6 * 2**32,  7
    hash          mix(mix(words[0] + STEP) + mix(words[1] + 2 * STEP) + 12)

The hash of a document depends on its tokens and on their type. It does not depend on the document's
place in the dataset, on other documents, or on the chunks in which the tokens are read. Datasets
with tokens of different types, such as uint16 and int32, cannot be compared by hashes.

Equal hashes are taken for equal documents, except where documents are about to be erased:
`lineage/duplicates.py` then also compares the sha256 of the tokens.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.statistics.hashing import WORD_BYTES, finish_hashes, sum_words


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


class SequenceHasher:
    """Hashes documents whose tokens are added chunk by chunk.

    A document may begin in one chunk and end in a later one:

        tokens        5  6  7 | 5  6  7  8      chunks of 3 and 4 tokens
        documents     0  0  1 | 1  1  2  2
        hashes        of 0    | of 1 and 2      that `add` returns

    A document is hashed in words of 8 bytes, and the hashes of words are added up. If a document
    continues in the next chunk, its sum is kept, and its last tokens wait if they are less than a
    word. So the memory depends on the size of the chunks and the number of documents.

    Args:
        lengths: Tokens of each document, shape (n_sequences,). Documents without tokens are
            ignored.
    """

    def __init__(self, lengths: NDArray[np.integer]) -> None:
        """Prepare to hash documents of these lengths, from the first token on."""
        filled = lengths[lengths > 0]
        self._borders = np.concatenate([[0], np.cumsum(filled, dtype=np.int64)])
        """Where each document starts among all tokens, and the last one stops; (n_filled + 1,)."""
        self._n_hashed = 0
        """Number of tokens that were hashed."""
        self._waiting: Tokens | None = None
        """Tokens that were added but not hashed: fewer than a word of 8 bytes; None for none."""
        self._open_sum = np.uint64(0)
        """Sum of the hashes of words, for a document that continues after the hashed tokens."""

    def add(self, tokens: Tokens) -> NDArray[np.uint64]:
        """Add the next tokens of some documents, and return the hashes of the documents that end.

        A document is hashed in words of 8 bytes, such as two tokens of 4 bytes. Only its last word
        may have one token. For example, document 0 has the tokens a, b and c, and document 1 has d
        to h. When d is added, it is only half of a word, so it waits for the next call:

            added      hashed now         waits    returned
            a b c d    (a b) (c)          d        hash of document 0
            e f g h    (d e) (f g) (h)             hash of document 1

        Args:
            tokens: The next tokens, shape (n_tokens,). Those after the last document are ignored.

        Returns:
            uint64, shape (n_ended,), in the order of the documents.
        """
        if self._waiting is not None:
            tokens = np.concatenate([self._waiting, tokens])  # d e f g h

        # Hash all tokens except for half a word at the end.
        tokens_per_word = WORD_BYTES // tokens.dtype.itemsize  # 2
        n_known = self._n_hashed + len(tokens)  # 4 in the first call, and 8 in the second one
        n_waiting = self._n_of_incomplete_word(n_known, tokens_per_word)  # 1, and then 0
        n_in_words = len(tokens) - n_waiting

        self._waiting = None
        if n_waiting > 0:
            self._waiting = tokens[n_in_words:].copy()  # a view would keep all tokens in memory
        return self._hash(tokens[:n_in_words])  # adds their number to `_n_hashed`, too

    def _n_of_incomplete_word(self, n_known: int, tokens_per_word: int) -> int:
        """Return how many of the tokens so far belong to a word of which more tokens will come.

        A document is hashed in words. For example, document 0 has the tokens 0 to 2, and document 1
        the tokens 3 to 7. If a word is two tokens, and the tokens 0 to 3 are known, token 3 is the
        first half of a word: the result is 1.

        Args:
            n_known: How many tokens are known, of all documents: 4.
            tokens_per_word: Tokens of a word: 2.
        """
        # `_borders` is where documents start, and the last one ends: [0, 3, 8].
        n_ended = int(np.searchsorted(self._borders, n_known, side="right")) - 1  # 1 document
        n_documents = len(self._borders) - 1
        if n_ended == n_documents:
            return 0
        n_known_of_next = n_known - int(self._borders[n_ended])  # 4 - 3: token 3 of document 1
        return n_known_of_next % tokens_per_word

    def _hash(self, tokens: Tokens) -> NDArray[np.uint64]:
        """Hash the next tokens, which are whole words, and return the hashes of documents that end.

        For example, these are the tokens 6 to 11. They belong to three documents, of which 1 began
        before, and 3 continues:

            document       1         2        3
            its tokens     4 to 7    8, 9     10 to 15
            returned       yes       yes      no

        Args:
            tokens: The tokens, shape (n_tokens,).
        """
        start = self._n_hashed  # 6
        stop = start + len(tokens)  # 12
        self._n_hashed = stop

        # Which documents have these tokens?
        first = int(np.searchsorted(self._borders, start, side="right")) - 1  # 1
        n_ended = int(np.searchsorted(self._borders, stop, side="right")) - 1  # 3 end up to `stop`
        n_begun = int(np.searchsorted(self._borders[:-1], stop))  # 4 start before `stop`
        if start == stop or first == n_begun:
            return np.empty(0, np.uint64)

        # Where do they start in the tokens? 4, 8, 10 and 16 become 6, 8, 10 and 12, and then:
        borders = np.clip(self._borders[first : n_begun + 1], start, stop) - start  # [0, 2, 4, 6]

        # Add up the hashes of the words of each document, including those before `start`.
        token_bytes = tokens.dtype.itemsize
        n_tokens_before = start - int(self._borders[first])  # of document 1: 2
        sums = sum_words(
            np.ascontiguousarray(tokens).view(np.uint8),
            borders * token_bytes,
            item_bytes=token_bytes,
            n_words_before=n_tokens_before * token_bytes // WORD_BYTES,
        )
        sums[:1] += self._open_sum  # as an array, since numpy warns if single numbers exceed 2**64
        self._open_sum = sums[-1] if n_begun > n_ended else np.uint64(0)

        # The hash of a document is computed from its sum and its length.
        lengths = np.diff(self._borders[first : n_ended + 1])
        return finish_hashes(sums[: n_ended - first], lengths * token_bytes)
