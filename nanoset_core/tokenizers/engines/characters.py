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
from nanoset_core.tokenizers.engines.merges import NO_TOKEN, Merger, MergeTable, PairRanks
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
        """Prepare to cut text between characters that the tokenizer never puts into one token.

        A merge such as "t" + "he" joins the characters t and h, so that text must not be cut
        between these.

        Args:
            vocabulary: Its `boundary_pairs` are the characters that merges join.
            signs: How the tokenizer treats spaces.
            longest_runs: Some vocabularies have tokens of 2, 3 and more newlines. For each such
                character: its byte → the number of repetitions in the longest of these tokens.
        """
        self._each_apart = signs.each_apart
        self._longest_runs = longest_runs

        # What two adjacent bytes show about the place between them: most often whether it is cut.
        self._kinds_of_byte_pairs = _kinds_of_byte_pairs(vocabulary.boundary_pairs)

        # For the other places: whether a merge joins two characters. Pairs of characters are too
        # many for a table, so the table has their hashes.
        left, right = vocabulary.boundary_pairs.astype(np.uint64).T  # code points
        self._is_joined_by_hash = np.zeros(1 << _HASH_BITS, bool)
        self._is_joined_by_hash[_hash_pairs(left, right)] = True

    def starts(self, data: Bytes) -> Bools:
        """Return at which bytes of a text words start, which can be encoded one by one.

        Tokenizers start with characters, and merge them into longer and longer tokens. If no merge
        joins two adjacent characters, no token contains both, so a word can start between them.
        With merges that join "t" with "h" and "h" with "e":

            between      t and h    h and e    e and t
            merge        yes        yes        none
            the text "thet" is cut into "the" and "t"

        Two settings that this object read from the vocabulary change that: whether spaces are
        always apart, and which characters, such as newlines, have tokens for several of them.

        Args:
            data: uint8, shape (n_bytes,): texts between 0xFF bytes, the first and last byte among
                them.

        Returns:
            bool, shape (n_bytes + 1,); the last value is True.
        """
        is_start = np.empty(len(data) + 1, bool)
        is_start[0] = True
        is_start[-1] = True

        # For most places, the bytes on both sides decide: _CUT or _JOINED. For the others
        # (_DOUBTFUL), find out whether a merge joins the two characters that meet there.
        kinds = self._kinds_between_bytes(data)
        np.equal(kinds, _CUT, out=is_start[1:-1])
        doubtful = np.flatnonzero(kinds == _DOUBTFUL) + 1
        if len(doubtful):
            is_start[doubtful] = ~self._are_joined(data, doubtful)

        # Some tokenizers never join several spaces: each of them starts a word.
        if self._each_apart:
            is_start[:-1] |= data == SPACE_BYTE

        # Some vocabularies have tokens of 2, 3 and more newlines, for example. Cut rows of these
        # into such tokens, of at most `max_repetitions` newlines.
        for byte, max_repetitions in self._longest_runs.items():
            _cut_runs(is_start, data == byte, max_repetitions)
        return is_start

    def _kinds_between_bytes(self, data: Bytes) -> Bytes:
        """Return for each two neighbouring bytes of a text whether it can be cut between them.

        They are looked up in a table of all 65,536 pairs of bytes, which has one of these:

            _CUT         a word can start here: no token has both characters
            _JOINED      no word can start here
            _DOUBTFUL    the whole characters decide, of which the two bytes are a part

        Args:
            data: uint8, shape (n_bytes,): the text.

        Returns:
            uint8, shape (n_bytes - 1,).
        """
        byte_pairs = data[:-1].astype(np.uint16) << 8
        byte_pairs |= data[1:]
        return self._kinds_of_byte_pairs.take(byte_pairs)

    def _are_joined(self, data: Bytes, positions: Ints) -> Bools:
        """Return which characters of a text may get into one token with the character before them.

        If the tokenizer can merge "t" and "h" to "th", then "h" may be in one token with a "t"
        before it. The table of such pairs is a hash table without the pairs themselves, so that a
        pair is now and then taken for another. Then text is not cut where it could be, which
        changes no token.

        Args:
            data: uint8, shape (n_bytes,): a text in UTF-8.
            positions: int64, shape (n_characters,): first bytes of the characters. None is the
                first character of the text.

        Returns:
            bool, shape (n_characters,).
        """
        right = code_points_at(data, positions)  # (n_characters,)
        # The byte before a character is the last one of the previous character.
        previous_positions = character_starts(data, positions - 1)
        left = code_points_at(data, previous_positions)
        hashes = _hash_pairs(left.astype(np.uint64), right.astype(np.uint64))
        return self._is_joined_by_hash.take(hashes)


def _cut_runs(is_start: Bools, is_repeated: Bools, max_repetitions: int) -> None:
    """Cut rows of a repeated character, such as newlines, into as long tokens as there are.

    Some vocabularies have tokens of 1, 2, 3 and more newlines, which the tokenizer looks for before
    anything else. If the longest has 3, and n is a newline, "annnnnnnb" is cut like this:

        a|nnn|nnn|n|b

    Args:
        is_start: bool, shape (n_bytes + 1,): whether a word starts at a byte. Changed in place.
        is_repeated: bool, shape (n_bytes,): whether a byte is the character.
        max_repetitions: Length of the longest token; there are tokens of all lengths.
    """
    runs = find_runs(is_repeated)  # here [1, 8)
    is_start[runs.positions()] = False
    is_start[runs.starts] = True
    is_start[runs.stops] = True
    # Start further words inside of long runs: here at 4 and 7.
    is_start[cut_positions(runs.starts, runs.stops, max_repetitions)] = True


def _hash_pairs(left: Words, right: Words) -> Ints:
    """Return a number for each pair of characters, which looks random, as the place in a table.

    Different pairs may have the same number.

    Args:
        left: uint64, shape (n_pairs,): code point of the first character of each pair.
        right: uint64, shape (n_pairs,): code point of the second one.

    Returns:
        int64, shape (n_pairs,): numbers below 2 ** 22.
    """
    # The factors are large odd numbers. The upper 22 bits of a product depend on all bits.
    mixed = (left * _LEFT_FACTOR) ^ (right * _RIGHT_FACTOR)
    hashes = mixed * _LEFT_FACTOR
    places: Ints = (hashes >> np.uint64(64 - _HASH_BITS)).view(np.int64)
    return places


def _kinds_of_byte_pairs(boundary_pairs: Ids) -> Bytes:
    """Make a table that says for any two neighbouring bytes whether a text can be cut there.

    Text may be cut between two characters that are in no token together. Suppose that only "t" with
    "h", and "é" (bytes C3 A9) with "t" are in tokens together:

        "t" "h"    _JOINED      no cut
        "h" "t"    _CUT
        C3 A9      _JOINED      the inside of a character
        A9 "t"     _DOUBTFUL    no cut after "é", but after any other character that ends with A9
        FF "t"     _CUT         FF separates texts

    So for _DOUBTFUL, the caller has to look at the complete characters.

    Args:
        boundary_pairs: int32, shape (n_pairs, 2): code points of the characters that are in a token
            together, the left and the right one.

    Returns:
        uint8, shape (65536,). The index is 256 * left byte + right byte.
    """
    table = np.full((256, 256), _CUT, np.uint8)  # left byte, right byte
    table[:, 0x80:0xC0] = _JOINED  # the second, third and fourth bytes of characters

    # The last byte of the left character and the first byte of the right one, such as A9 "t".
    left_bytes = _last_bytes(boundary_pairs[:, 0])  # (n_pairs,)
    right_bytes = _first_bytes(boundary_pairs[:, 1])  # (n_pairs,)
    table[left_bytes, right_bytes] = _DOUBTFUL

    # Two ASCII characters, such as "t" and "h", have no other bytes, so that there is no doubt.
    is_ascii_pair = (boundary_pairs < 0x80).all(axis=1)  # (n_pairs,)
    left_ascii, right_ascii = boundary_pairs[is_ascii_pair].T
    table[left_ascii, right_ascii] = _JOINED

    table[SEPARATOR_BYTE] = _CUT  # whatever byte is next
    return table.ravel()


def _last_bytes(code_points: Ids) -> Ints:
    """Return the last byte of each character in UTF-8: for "é" (C3 A9) the byte A9."""
    points = code_points.astype(np.int64)
    # 10xxxxxx in binary digits, where the x are the lowest six bits of the code point.
    last_of_several = 0x80 | (points & 0x3F)
    return np.where(points < 0x80, points, last_of_several)


def _first_bytes(code_points: Ids) -> Ints:
    """Return the first byte of each character in UTF-8: for "é" (C3 A9) the byte C3."""
    points = code_points.astype(np.int64)
    # It says how many bytes follow, and has the upper bits of the code point.
    return np.select(
        [points < 0x80, points < 0x800, points < 0x10000],
        [points, 0xC0 | (points >> 6), 0xE0 | (points >> 12)],
        default=0xF0 | (points >> 18),
    )


class CharacterMerger(Merger):
    """Encodes words by the merges of a vocabulary, starting with their characters.

    A character without a token of its own is replaced by the tokens of its bytes, which merge with
    nothing.
    """

    def __init__(self, vocabulary: Vocabulary, ranks: PairRanks) -> None:
        super().__init__(ranks)
        self._byte_tokens = vocabulary.byte_tokens.copy()  # int32, shape (256,)
        self._byte_tokens[0] = NO_TOKEN  # words are padded with zeros
        code_points, tokens = vocabulary.characters.T
        self._character_tokens = np.full(CODE_POINTS, -1, np.int32)  # -1: no token
        self._character_tokens[code_points] = tokens

    def _unmerged(self, letters: Bytes) -> MergeTable:
        """Return the tokens that merging starts with: one for each character.

        A character without a token of its own gets the tokens of its bytes. For the words "tü" and
        "✓", if "✓" has no token:

            bytes of the words    tokens at the bytes         table that is returned
            t  C3 BC              t    ü    -                 t    <E2>
            E2 9C 93              <E2> <9C> <93>              ü    <9C>
                                                              -    <93>

        Args:
            letters: uint8, shape (width, n_words): the bytes of each word in a column, then zeros.
        """
        # All words as one text, each padded to the same length. Four bytes are read from each
        # position on, the most that a character has. So four zeros follow the last word.
        words = letters.T  # (n_words, width)
        padding = np.zeros(4, np.uint8)
        data = np.append(words.ravel(), padding)
        tokens = self._tokens_at_bytes(data)
        tokens_by_word = tokens[: words.size].reshape(words.shape)  # (n_words, width)

        # Close the gaps, which are at the second and further bytes of characters such as ü.
        table = _columns_without_gaps(tokens_by_word)  # (width, n_words)
        return MergeTable(table, self._ranks.of_columns(table))

    def _tokens_at_bytes(self, data: Bytes) -> Ids:
        """Return the token that starts at each byte of a text, or NO_TOKEN.

        A character that is in the vocabulary is one token. Of other characters, each byte is a
        token. If "ü" is in the vocabulary, and "✓" is not (- is NO_TOKEN):

            text           t   ü       ✓
            bytes          t   C3  BC  E2     9C     93
            tokens         t   ü   -   <E2>   <9C>   <93>

        Args:
            data: uint8, shape (n_bytes,): words in UTF-8, padded with zeros; at least three zeros
                at the end.

        Returns:
            int32, shape (n_bytes,).
        """
        tokens = self._byte_tokens.take(data)  # those of single bytes: t <C3> <BC> <E2> <9C> <93>

        # Find the characters that are in the vocabulary: t and ü.
        starts = _starts_of_characters(data)  # (n_characters,)
        character_tokens = self._character_tokens.take(code_points_at(data, starts))  # -1: no token
        has_token = character_tokens >= 0

        # The token of such a character is at its first byte, and none at the others.
        starts_with_token = starts[has_token]
        tokens[starts_with_token] = character_tokens[has_token]
        tokens[_further_bytes(data, starts_with_token)] = NO_TOKEN
        return tokens


def _starts_of_characters(data: Bytes) -> Ints:
    """Return the first byte of each character in a UTF-8 text; zeros, which are padding, have none.

    Args:
        data: uint8, shape (n_bytes,): the text, such as t C3 BC 00.

    Returns:
        int64, shape (n_characters,): 0 and 1.
    """
    is_first_byte = data & 0xC0 != 0x80  # further bytes have the form 10xxxxxx
    is_first_byte &= data != 0
    return np.flatnonzero(is_first_byte)


def _further_bytes(data: Bytes, starts: Ints) -> Ints:
    """Return where the second, third and fourth bytes of some characters are, in a UTF-8 text.

    For "aé中", with 1, 2 and 3 bytes:

        bytes                a   C3  A9  E4  B8  AD
        position             0   1   2   3   4   5
        characters start     x   x       x
        result                       2       4   5     (in no particular order)

    Args:
        data: uint8, shape (n_bytes,): the text.
        starts: int64, shape (n_characters,): the first byte of each character.

    Returns:
        int64, shape (n_further_bytes,).
    """
    # The first byte says how many bytes the character has.
    first_bytes = data[starts]
    return np.concatenate(
        [
            starts[first_bytes >= 0xC0] + 1,
            starts[first_bytes >= 0xE0] + 2,
            starts[first_bytes >= 0xF0] + 3,
        ]
    )


def _columns_without_gaps(tokens_by_word: Ids) -> Words:
    """Remove the gaps between the tokens of words, and turn rows into columns.

    With - for NO_TOKEN, which is a gap, or means that there are no more tokens:

        rows          columns
        5  -  7       5  8
        -  8  -       7  -
                      -  -

    Args:
        tokens_by_word: int32, shape (n_words, width): the tokens of a word in each row.

    Returns:
        uint64, shape (width, n_words).
    """
    # Sort each row by whether there is a gap: first all tokens, in their order, and then the gaps.
    is_gap = tokens_by_word == NO_TOKEN
    order = np.argsort(is_gap, axis=1, kind="stable")  # (n_words, width) 0 2 1 and 1 0 2
    rows = np.take_along_axis(tokens_by_word, order, axis=1)  # 5 7 - and 8 - -
    return rows.T.astype(np.uint64, order="C")
