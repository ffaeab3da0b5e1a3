"""BPE over characters, as SentencePiece models have it in a `tokenizer.json`: spaces are written ▁,
and merge too.

There is no split pattern: in principle all of a text is one word. But a merge joins two tokens
where the last character of one and the first of the other are such a pair in the list of merges, so
text falls apart between any other two
characters: before nearly every ▁, between letters and symbols, between most ideographs. What is
    between two such places
is a word like any other.

Inside the engine a ▁ is a space: the tokenizer does not tell them apart, and it is one byte instead
of three.
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
from nanoset_core.tokenizers.engines.classes import CODE_POINTS, code_points_at
from nanoset_core.tokenizers.engines.merges import NO_RANK, NO_TOKEN, Merger, PairRanks
from nanoset_core.tokenizers.engines.patterns import SpaceSigns
from nanoset_core.tokenizers.engines.rules import Vocabulary

_BLANK, _SEPARATOR = 0x20, 0xFF
_CUT, _JOINED, _DOUBTFUL = 0, 1, 2
_HASH_BITS = 22
_LEFT, _RIGHT = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F)


class PairSplitter:
    """Cuts text between characters that no merge joins."""

    def __init__(
        self, vocabulary: Vocabulary, signs: SpaceSigns, longest_runs: dict[int, int]
    ) -> None:
        """Take longest_runs: for each byte that added tokens repeat, the most repetitions."""
        self._each_apart = signs.each_apart
        self._longest_runs = longest_runs
        left, right = (side.astype(np.uint64) for side in vocabulary.boundary_pairs.T)
        self._of_pair = np.zeros(1 << _HASH_BITS, bool)
        self._of_pair[_hash(left, right)] = True
        self._of_bytes = _kinds_of_byte_pairs(vocabulary.boundary_pairs)

    def starts(self, data: Bytes) -> Bools:
        """Return where words begin: bool, shape (bytes + 1,), the last one True; data as for
        `piece_starts`.
        """
        starts = np.empty(len(data) + 1, bool)
        starts[0] = starts[-1] = True
        pairs = data[:-1].astype(np.uint16) << 8
        pairs |= data[1:]
        kinds = self._of_bytes.take(pairs)
        np.equal(kinds, _CUT, out=starts[1:-1])
        doubtful = np.flatnonzero(kinds == _DOUBTFUL) + 1
        if len(doubtful):
            before = character_starts(data, doubtful - 1)
            left, right = code_points_at(data, before), code_points_at(data, doubtful)
            starts[doubtful] = ~self._of_pair.take(
                _hash(left.astype(np.uint64), right.astype(np.uint64))
            )
        if self._each_apart:
            starts[:-1] |= data == _BLANK
        for byte, longest in self._longest_runs.items():
            _cut_runs(starts, data == byte, longest)
        return starts


def _cut_runs(starts: Bools, of_byte: Bools, longest: int) -> None:
    """Cut runs of one character as its added tokens are matched: before all else, the longest
    first.
    """
    begins, ends = find_runs(of_byte)
    starts[positions_in(begins, ends - begins)] = False
    starts[begins] = starts[ends] = True
    starts[cut_positions(begins, ends, longest)] = True


def _hash(left: Words, right: Words) -> Ints:
    mixed = left * _LEFT ^ right * _RIGHT
    slots: Ints = (mixed * _LEFT >> np.uint64(64 - _HASH_BITS)).view(np.int64)
    return slots


def _kinds_of_byte_pairs(boundary_pairs: Ids) -> Bytes:
    """Return whether two bytes are cut or joined, or their characters decide: uint8, shape
    (65536,).
    """
    table = np.full((256, 256), _CUT, np.uint8)
    table[:, 0x80:0xC0] = _JOINED  # inside a character
    for left, right in np.unique(_edge_bytes(boundary_pairs), axis=0).tolist():
        table[left, right] = _JOINED if left < 0x80 and right < 0x80 else _DOUBTFUL
    table[_SEPARATOR] = _CUT
    return table.ravel()


def _edge_bytes(boundary_pairs: Ids) -> Ints:
    """Return the last byte of the left character, and the first of the right one: int64, shape
    (boundary_pairs, 2).
    """
    left, right = boundary_pairs.astype(np.int64).T
    last = np.where(left < 0x80, left, 0x80 | left & 0x3F)
    limits = [right < 0x80, right < 0x800, right < 0x10000]
    first = np.select(limits, [right, 0xC0 | right >> 6, 0xE0 | right >> 12], 0xF0 | right >> 18)
    return np.stack([last, first], axis=1)


class CharacterMerger(Merger):
    """Encodes words by the merges of a vocabulary, beginning with their characters, or the bytes of
    unknown ones.
    """

    def __init__(self, vocabulary: Vocabulary, ranks: PairRanks) -> None:
        self._ranks = ranks
        self._of_point = np.full(CODE_POINTS, -1, np.int32)
        self._of_point[vocabulary.characters[:, 0]] = vocabulary.characters[:, 1]
        self._of_byte = vocabulary.byte_tokens

    def _begin(self, letters: Bytes) -> tuple[Words, Ints]:
        tokens = self._first_tokens(letters.T).astype(np.uint64)
        ranks = np.full((len(tokens) - 1, tokens.shape[1]), NO_RANK, np.int64)
        pairs = tokens[1:] != NO_TOKEN
        ranks[pairs] = self._ranks.find(tokens[:-1][pairs], tokens[1:][pairs])
        return tokens, ranks

    def _first_tokens(self, words: Bytes) -> Ids:
        """Return int32, shape (width, words): tokens of each word, then NO_TOKEN; words as for
        `merge_words`.
        """
        count, width = words.shape
        data = np.append(words.ravel(), np.zeros(4, np.uint8))
        tokens = self._of_byte.take(data)
        kept = data != 0
        begins = np.flatnonzero(kept & (data & 0xC0 != 0x80))
        found = self._of_point.take(code_points_at(data, begins))
        begins, found = begins[found >= 0], found[found >= 0]
        tokens[begins] = found
        for offset, lead in ((1, 0xC0), (2, 0xE0), (3, 0xF0)):
            begins = begins[data[begins] >= lead]
            kept[begins + offset] = False
        mask = kept[: count * width].reshape(count, width)
        columns = np.cumsum(mask, axis=1)[mask] - 1
        table = np.full((width, count), NO_TOKEN, np.int32)
        table[columns, np.nonzero(mask)[0]] = tokens[: count * width][mask.ravel()]
        return table
