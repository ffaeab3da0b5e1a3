"""Byte-pair encoding over characters, as SentencePiece models have it in a `tokenizer.json`.

Such a tokenizer has no split pattern. It writes spaces as ▁, which merge like letters, so that in
principle a whole text is one word. But a merge joins two tokens, and with them the last character
of the left one and the first character of the right one. If no merge of the vocabulary joins two
characters, no token contains both in a row, and text can be cut between them. For the merges
"t h", "th e", "▁ t" and "▁t he":

    characters that some merge joins    t h,  h e,  ▁ t
    text                                ▁ t h e ▁ ▁ t e
    cut                                 ▁ t h e|▁|▁ t|e

`PairSplitter` finds these places, and `CharacterMerger` encodes what is between them as words.

Inside the engine a ▁ is a space: the tokenizer does not tell them apart, and a space is one byte
instead of three.
"""

from __future__ import annotations

import numpy as np

from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.tokenizers.engines.arrays import (
    Bools,
    Bytes,
    Ids,
    Ints,
    Words,
    character_starts,
    cut_positions,
    find_runs,
)
from nanoset_core.tokenizers.engines.classes import (
    CODE_POINTS,
    SEPARATOR_BYTE,
    SPACE_BYTE,
    code_points_at,
)
from nanoset_core.tokenizers.engines.merges import NO_TOKEN, Merger, PairRanks
from nanoset_core.tokenizers.engines.patterns import SpaceSigns
from nanoset_core.tokenizers.engines.vocabulary import Vocabulary

# What two adjacent bytes say about the place between them.
_CUT = 0
_JOINED = 1
_DOUBTFUL = 2  # the characters that the bytes belong to decide

# Pairs of characters are kept as bits of a table, by their hash. A collision joins characters that
# could be cut, which changes no token.
_HASH_BITS = 22
_LEFT_FACTOR = np.uint64(0x9E3779B97F4A7C15)
_RIGHT_FACTOR = np.uint64(0xC2B2AE3D27D4EB4F)


class PairSplitter:
    """Cuts text between characters that no merge joins."""

    def __init__(
        self, vocabulary: Vocabulary, signs: SpaceSigns, longest_runs: dict[int, int]
    ) -> None:
        """Prepare the tables.

        Args:
            vocabulary: Its `boundary_pairs` are the characters that merges join.
            signs: How the tokenizer treats spaces.
            longest_runs: For each byte that added tokens repeat, such as newlines: the number of
                repetitions in the longest of these tokens.
        """
        self._each_apart = signs.each_apart
        self._longest_runs = longest_runs
        self._kinds_of_byte_pairs = _kinds_of_byte_pairs(vocabulary.boundary_pairs)

        left, right = vocabulary.boundary_pairs.astype(np.uint64).T
        self._is_joined_by_hash = np.zeros(1 << _HASH_BITS, bool)
        self._is_joined_by_hash[_hash_pairs(left, right)] = True

    def starts(self, data: Bytes) -> Bools:
        """Return at which bytes of a text words start.

        A word starts between two characters that no merge joins. The bytes on both sides mostly
        decide this; if they do not, the two characters are looked up.

        Args:
            data: uint8, shape (n_bytes,): texts between 0xFF bytes, the first and last byte among
                them.

        Returns:
            bool, shape (n_bytes + 1,); the last value is True.
        """
        is_start = np.empty(len(data) + 1, bool)
        is_start[0] = True
        is_start[-1] = True

        # The last byte before a place and the first byte after it say whether text is cut there
        # (_CUT), is not cut (_JOINED), or whether the characters have to be looked up (_DOUBTFUL).
        byte_pairs = data[:-1].astype(np.uint16) << 8
        byte_pairs |= data[1:]
        kinds = self._kinds_of_byte_pairs.take(byte_pairs)  # (n_bytes - 1,)
        np.equal(kinds, _CUT, out=is_start[1:-1])

        # Look up the characters on both sides of doubtful places. Another pair with the same hash
        # may be joined; then text is not cut here, which changes no token.
        doubtful = np.flatnonzero(kinds == _DOUBTFUL) + 1
        if len(doubtful):
            left = code_points_at(data, character_starts(data, doubtful - 1))  # (n_doubtful,)
            right = code_points_at(data, doubtful)  # (n_doubtful,)
            hashes = _hash_pairs(left.astype(np.uint64), right.astype(np.uint64))
            is_joined = self._is_joined_by_hash.take(hashes)
            is_start[doubtful] = ~is_joined

        # If the tokenizer never joins spaces, each of them starts a word.
        if self._each_apart:
            is_start[:-1] |= data == SPACE_BYTE

        # Runs of a character that added tokens repeat, such as newlines, are cut into these tokens.
        for byte, max_repetitions in self._longest_runs.items():
            _cut_runs(is_start, data == byte, max_repetitions)
        return is_start


def _cut_runs(is_start: Bools, is_repeated: Bools, max_repetitions: int) -> None:
    """Cut runs of a repeated character into the added tokens that the library finds in them.

    The library looks for added tokens before anything else, the longest first. With tokens of up to
    3 newlines, a run of 7 newlines becomes tokens of 3, 3 and 1.

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a word starts at a byte. Changed in place.
        is_repeated: bool, shape (n_bytes,): whether a byte is the character.
        max_repetitions: Length of the longest added token; there are tokens of all lengths.
    """
    starts, stops = find_runs(is_repeated)  # (n_runs,) each

    # Words start at a run, and after it, where other text continues, but not inside of it.
    bytes_of_runs = positions_in(starts, stops - starts)
    is_start[bytes_of_runs] = False
    is_start[starts] = True
    is_start[stops] = True

    # A run that is longer than the longest token is cut into several: 7 newlines after 3 and 6.
    is_start[cut_positions(starts, stops, max_repetitions)] = True


def _hash_pairs(left: Words, right: Words) -> Ints:
    """Return the slot of each pair of code points: int64, shape (n_pairs,)."""
    hashes = (left * _LEFT_FACTOR ^ right * _RIGHT_FACTOR) * _LEFT_FACTOR
    slots: Ints = (hashes >> np.uint64(64 - _HASH_BITS)).view(np.int64)
    return slots


def _kinds_of_byte_pairs(boundary_pairs: Ids) -> Bytes:
    """Return what two adjacent bytes show about whether a word may start between them.

    For a merge that joins "t" and "h", the entry of the bytes "t" and "h" is _JOINED. For one that
    joins "é" (C3 A9) and "t", the entry of A9 and "t" is _DOUBTFUL: other characters end with A9,
    too. Pairs of bytes that occur in no merge are _CUT.

    Args:
        boundary_pairs: int32, shape (n_pairs, 2): code points of two characters, the last one of
            the left token and the first one of the right token of a merge.

    Returns:
        uint8, shape (65536,): _CUT, _JOINED or _DOUBTFUL. The index is 256 * left byte + right
            byte.
    """
    table = np.full((256, 256), _CUT, np.uint8)  # left byte, right byte
    table[:, 0x80:0xC0] = _JOINED  # the right byte is inside a character: these are never cut

    bytes_of_pairs = np.unique(_bytes_at_boundary(boundary_pairs), axis=0)  # (n_byte_pairs, 2)
    for left, right in bytes_of_pairs.tolist():
        # Two bytes of ASCII are two whole characters, so the answer is certain. Other bytes are
        # parts of many characters, and only some of these characters are joined.
        is_ascii = left < 0x80 and right < 0x80
        table[left, right] = _JOINED if is_ascii else _DOUBTFUL

    # A text starts after a separator, whatever its first byte is. Before a separator, the entry is
    # _CUT from the start.
    table[SEPARATOR_BYTE] = _CUT
    return table.ravel()


def _bytes_at_boundary(boundary_pairs: Ids) -> Ints:
    """Return the two bytes that meet in UTF-8 where a character follows another one.

    These are the last byte of the left character and the first byte of the right one: for "é"
    (C3 A9) and "t" (74), the bytes A9 and 74.

    Args:
        boundary_pairs: int32, shape (n_pairs, 2): code points of the left and the right character.

    Returns:
        int64, shape (n_pairs, 2): left byte, right byte.
    """
    left, right = boundary_pairs.astype(np.int64).T  # (n_pairs,) each

    # An ASCII character is one byte. The last byte of any other one is 10xxxxxx in binary digits,
    # where the x are the lowest six bits of the code point.
    last_byte = np.where(left < 0x80, left, 0x80 | (left & 0x3F))

    # The first byte says how many bytes follow, and has the upper bits of the code point.
    first_byte = np.select(
        [right < 0x80, right < 0x800, right < 0x10000],
        [right, 0xC0 | (right >> 6), 0xE0 | (right >> 12)],
        default=0xF0 | (right >> 18),
    )
    return np.stack([last_byte, first_byte], axis=1)


class CharacterMerger(Merger):
    """Encodes words by the merges of a vocabulary, starting with their characters.

    A character without a token of its own is replaced by the tokens of its bytes, which merge with
    nothing.
    """

    def __init__(self, vocabulary: Vocabulary, ranks: PairRanks) -> None:
        super().__init__(ranks)
        self._byte_tokens = vocabulary.byte_tokens  # int32, shape (256,)
        code_points, tokens = vocabulary.characters.T
        self._character_tokens = np.full(CODE_POINTS, -1, np.int32)  # -1: no token
        self._character_tokens[code_points] = tokens

    def _first_tokens(self, letters: Bytes) -> Words:
        """Return the first tokens of words: one for each character, or for each of its bytes.

        A character without a token of its own gets the tokens of its bytes. For the word "tü✓",
        whose last character has no token:

            bytes       t   C3  BC  E2     9C     93
            tokens      t   ü   -   <E2>   <9C>   <93>      -: none
            result      t   ü   <E2>   <9C>   <93>   NO_TOKEN

        Args:
            letters: uint8, shape (width, n_words): a word in each column, padded with zeros.

        Returns:
            uint64, shape (width, n_words): the tokens of a word at the top of its column, then
                NO_TOKEN.
        """
        # One buffer of all words. The zeros at its end can be read as a character's further bytes.
        width, n_words = letters.shape
        data = np.append(letters.T.ravel(), np.zeros(4, np.uint8))  # (n_bytes + 4,)

        # First, each byte gets the token of the byte.
        tokens = self._byte_tokens.take(data)
        is_token = data != 0

        # A character that has a token gets it at its first byte, instead of that byte's token.
        is_first_byte = is_token & (data & 0xC0 != 0x80)  # the others have the form 10xxxxxx
        starts = np.flatnonzero(is_first_byte)  # (n_characters,)
        character_tokens = self._character_tokens.take(code_points_at(data, starts))
        has_token = character_tokens >= 0
        starts = starts[has_token]
        tokens[starts] = character_tokens[has_token]

        # Its second, third and fourth byte have no token then. It has such a byte if its first byte
        # is at least `min_first_byte`.
        for offset, min_first_byte in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
            starts = starts[data[starts] >= min_first_byte]
            is_token[starts + offset] = False

        # Back to a table with one row for each word, without the zeros at the end.
        n_bytes = width * n_words
        tokens_by_word = tokens[:n_bytes].reshape(n_words, width)
        is_token_by_word = is_token[:n_bytes].reshape(n_words, width)

        # Move the tokens of each word to the top of its column.
        word_of_token = np.nonzero(is_token_by_word)[0]  # (n_tokens,)
        tokens_so_far = np.cumsum(is_token_by_word, axis=1)  # (n_words, width)
        row_of_token = tokens_so_far[is_token_by_word] - 1  # (n_tokens,)
        table = np.full((width, n_words), NO_TOKEN, np.int32)
        table[row_of_token, word_of_token] = tokens_by_word[is_token_by_word]
        return table.astype(np.uint64)
