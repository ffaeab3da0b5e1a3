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

        Args:
            data: uint8, shape (n_bytes,): texts between 0xFF bytes, the first and last byte among
                them.

        Returns:
            bool, shape (n_bytes + 1,); the last value is True.
        """
        is_start = np.empty(len(data) + 1, bool)
        is_start[0] = True
        is_start[-1] = True

        # Most places are decided by the bytes on both sides.
        byte_pairs = data[:-1].astype(np.uint16) << 8
        byte_pairs |= data[1:]
        kinds = self._kinds_of_byte_pairs.take(byte_pairs)  # (n_bytes - 1,)
        np.equal(kinds, _CUT, out=is_start[1:-1])

        # For the others, the whole characters are looked up.
        doubtful = np.flatnonzero(kinds == _DOUBTFUL) + 1
        if len(doubtful):
            # (n_doubtful,) code points of the characters on both sides
            left = code_points_at(data, character_starts(data, doubtful - 1))
            right = code_points_at(data, doubtful)
            hashes = _hash_pairs(left.astype(np.uint64), right.astype(np.uint64))
            is_start[doubtful] = ~self._is_joined_by_hash.take(hashes)

        # Spaces that the tokenizer never joins, and added tokens that repeat a character.
        if self._each_apart:
            is_start[:-1] |= data == SPACE_BYTE
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
    is_start[positions_in(starts, stops - starts)] = False
    is_start[starts] = True
    is_start[stops] = True
    is_start[cut_positions(starts, stops, max_repetitions)] = True


def _hash_pairs(left: Words, right: Words) -> Ints:
    """Return the slot of each pair of code points: int64, shape (n_pairs,)."""
    hashes = (left * _LEFT_FACTOR ^ right * _RIGHT_FACTOR) * _LEFT_FACTOR
    slots: Ints = (hashes >> np.uint64(64 - _HASH_BITS)).view(np.int64)
    return slots


def _kinds_of_byte_pairs(boundary_pairs: Ids) -> Bytes:
    """Return what two adjacent bytes show about whether a word may start between them.

    Args:
        boundary_pairs: int32, shape (n_pairs, 2): code points that some merge joins.

    Returns:
        uint8, shape (65536,): _CUT, _JOINED or _DOUBTFUL. The index is 256 * left byte + right
            byte.
    """
    table = np.full((256, 256), _CUT, np.uint8)
    table[:, 0x80:0xC0] = _JOINED  # such a byte is inside a character

    edges = np.unique(_edge_bytes(boundary_pairs), axis=0)
    for left, right in edges.tolist():
        # Two bytes of ASCII are two whole characters, so the answer is certain. Other bytes are
        # parts of many characters, and only some of these characters are joined.
        is_ascii = left < 0x80 and right < 0x80
        table[left, right] = _JOINED if is_ascii else _DOUBTFUL

    table[SEPARATOR_BYTE] = _CUT
    return table.ravel()


def _edge_bytes(boundary_pairs: Ids) -> Ints:
    """Return the last byte of the left character and the first byte of the right one, in UTF-8.

    Args:
        boundary_pairs: int32, shape (n_pairs, 2): code points.

    Returns:
        int64, shape (n_pairs, 2).
    """
    left, right = boundary_pairs.astype(np.int64).T  # (n_pairs,) each

    # The last byte of a character of several bytes has the lowest six bits of the code point.
    last_byte = np.where(left < 0x80, left, 0x80 | left & 0x3F)

    # The first byte says how many bytes follow, and has the upper bits of the code point.
    first_byte = np.select(
        [right < 0x80, right < 0x800, right < 0x10000],
        [right, 0xC0 | right >> 6, 0xE0 | right >> 12],
        default=0xF0 | right >> 18,
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

        Args:
            letters: uint8, shape (width, n_words): a word in each column, padded with zeros.

        Returns:
            uint64, shape (width, n_words): the tokens of a word at the top of its column, then
                NO_TOKEN.
        """
        # One buffer of all words. The zeros at its end can be read as a character's further bytes.
        width, n_words = letters.shape
        n_bytes = width * n_words
        data = np.append(letters.T.ravel(), np.zeros(4, np.uint8))  # (n_bytes + 4,)

        # Each byte first gets its own token. A character that has a token gets this at its first
        # byte, and no token at its other bytes.
        tokens = self._byte_tokens.take(data)
        is_token = data != 0
        starts = np.flatnonzero(is_token & (data & 0xC0 != 0x80))  # (n_characters,)
        character_tokens = self._character_tokens.take(code_points_at(data, starts))
        has_token = character_tokens >= 0
        starts = starts[has_token]
        tokens[starts] = character_tokens[has_token]
        for offset, min_lead in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
            starts = starts[data[starts] >= min_lead]  # characters with so many further bytes
            is_token[starts + offset] = False

        # Move the tokens of each word to the front of its column.
        mask = is_token[:n_bytes].reshape(n_words, width)
        word_of_token = np.nonzero(mask)[0]  # (n_tokens,)
        number_in_word = np.cumsum(mask, axis=1)[mask] - 1  # (n_tokens,)
        table = np.full((width, n_words), NO_TOKEN, np.int32)
        table[number_in_word, word_of_token] = tokens[:n_bytes][mask.ravel()]
        return table.astype(np.uint64)
