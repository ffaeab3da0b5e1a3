"""Every pre-token met so far with its tokens; unknown ones are encoded in bulk and remembered.

A pre-token ("word" here, though it may be spaces or symbols) is its own key: its bytes, in one 64-bit word or several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenization.bpe.reference import FlatLists
from nanoset_core.tokenization.bpe.words import (
    ABSENT,
    FILL_LIMIT,
    Codes,
    Keys,
    TokenLists,
    WordTable,
    unique_keys,
)
from nanoset_core.tokenization.knowledge import Arrays, Knowledge

SLOT_BITS_LIMITS = {1: 20, 2: 19, 4: 18, 8: 16, 16: 14, 31: 12}
"""Largest size of the table for words of each number of 64-bit words: together about 45 MB."""
LONGEST = 8 * max(SLOT_BITS_LIMITS)
"""Bytes in the longest word that the tables hold; longer ones are encoded each time."""
LEAST_SAVED = 1 << 15
"""Words that must have been learnt before any are kept for later runs."""
PADDING = LONGEST + 8
"""Bytes that must be readable after the last word of a buffer."""

_SAMPLED_WORDS = 256
"""Words of each table that are encoded again before what was kept is believed."""
_MOST_SAVED_BYTES = 96 << 20
_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_NEXT_NARROWER = dict(zip([*SLOT_BITS_LIMITS][1:], SLOT_BITS_LIMITS, strict=False))
_RECURRING = (1, 2)  # widths whose words recur: when their tables are full, the text has changed, and all start anew

EncodeWords: TypeAlias = Callable[[NDArray[np.uint8]], FlatLists]
"""Zero-padded words, uint8, shape (words, width), to their tokens."""
EncodeLongWords: TypeAlias = Callable[[list[bytes]], FlatLists]
"""The same for a list of words of any length."""


@dataclass(slots=True)
class Batch:
    """Words looked up together: what is known of them, and what is still to be learnt."""

    size: int = 0
    """Words so far."""
    codes: list[Codes] = field(default_factory=list)
    """int32, shape (words,), for each block: codes of the words' tokens, ABSENT where unknown."""
    unknown: dict[int, list[tuple[Keys, NDArray[np.int64]]]] = field(default_factory=dict)
    """By width: (keys, places int64, shape (words,)) of words that the tables did not hold."""
    long: list[tuple[int, bytes]] = field(default_factory=list)
    """(place, word) of those above LONGEST bytes."""

    def note(self, width: int, keys: Keys, places: NDArray[np.int64] | None, found: Codes) -> None:
        """Note the words that were not found among those at `places` (None: all) of the current block."""
        missing = (found == ABSENT).nonzero()[0]
        if len(missing):
            places = missing if places is None else places[missing]
            noted = [key[missing] for key in keys], places + self.size
            self.unknown.setdefault(width, []).append(noted)


class PretokenCache:
    """Maps words to lists of tokens; bounded memory."""

    def __init__(
        self,
        encode: EncodeWords,
        encode_long: EncodeLongWords,
        seed: Callable[[PretokenCache], None],
        kept: Knowledge | None = None,
    ) -> None:
        """Begin with the words that are kept, else with the first ones.

        Args:
            encode: Gives the tokens of unknown words.
            encode_long: The same for long ones.
            seed: Adds the first words.
            kept: Where words are kept for later runs.
        """
        self._encode = encode
        self._encode_long = encode_long
        self._seed = seed
        self._kept = kept
        self._saved: float = LEAST_SAVED / 1.5
        if kept is None or not self._recalls(kept):
            self.restart()

    def restart(self) -> None:
        """Forget all but the first words."""
        self._lists = TokenLists()
        self._seeded = dict.fromkeys(SLOT_BITS_LIMITS, 0)
        self._tables = {width: WordTable(width) for width in SLOT_BITS_LIMITS}
        self._seed(self)
        self._seeded = {width: len(table) for width, table in self._tables.items()}
        self._seeded_lists = len(self._lists)

    @property
    def learnt(self) -> int:
        """Number of words beyond the first ones."""
        return sum(len(table) - self._seeded[width] for width, table in self._tables.items())

    def _recalls(self, kept: Knowledge) -> bool:
        """Begin with what was kept, and tell whether there is any that can be believed; drop any other."""
        arrays = kept.load()
        if arrays is None:
            return False
        try:
            self._recall(arrays)
            if not all(map(self._knows, SLOT_BITS_LIMITS)):
                raise ValueError("other tokens than are made now")
        except (ValueError, KeyError, IndexError, TypeError) as error:
            kept.drop(error)
            return False
        self._saved = self.learnt
        return True

    def _recall(self, arrays: Arrays) -> None:
        self._lists = TokenLists.from_arrays(arrays["ends"], arrays["tokens"])
        self._tables = {
            width: WordTable.from_arrays(arrays[f"keys{width}"], arrays[f"codes{width}"], len(self._lists))
            for width in SLOT_BITS_LIMITS
        }
        *seeded, self._seeded_lists = arrays["seeded"].tolist()
        self._seeded = dict(zip(SLOT_BITS_LIMITS, seeded, strict=True))

    def _knows(self, width: int) -> bool:
        """Tell whether a sample of the learnt words of a width have the tokens that they would be given now.

        It is of words with several tokens: nearly all, since words of one token are among the first words.
        """
        table = self._tables[width]
        keys, codes = table.sample(self._seeded_lists, _SAMPLED_WORDS)
        if table.width != width or not len(codes):
            return table.width == width
        found, wanted = self._lists.gather(codes), self._encode(np.stack(keys, axis=1).view(np.uint8))
        return all(map(np.array_equal, found, wanted)) and np.array_equal(table.find(keys), codes)

    def _keep(self) -> None:
        """Save what was learnt whenever it has grown by half, if that leaves later runs room for other words."""
        if self._kept is None or self.learnt < 1.5 * self._saved:
            return
        self._saved = self.learnt
        half_full = {width: int(FILL_LIMIT * (1 << SLOT_BITS_LIMITS[width])) // 2 for width in _RECURRING}
        if not all(self._has_room(width, count) for width, count in half_full.items()):
            return
        seeded = [*(self._seeded[width] for width in SLOT_BITS_LIMITS), self._seeded_lists]
        arrays = self._lists.to_arrays() | {"seeded": np.array(seeded)}
        for width, table in self._tables.items():
            arrays |= {f"{name}{width}": array for name, array in table.to_arrays().items()}
        if sum(array.nbytes for array in arrays.values()) <= _MOST_SAVED_BYTES:
            self._kept.save(arrays)

    def teach(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], tokens: NDArray[np.int32]
    ) -> None:
        """Add words of one token each; those already known stay as they are."""
        every = [(1, np.flatnonzero(lengths <= 8)), *_by_width(np.flatnonzero(lengths > 8), lengths)]
        for width, chosen in every:
            keys = _keys(data, begins.take(chosen), lengths.take(chosen), width)
            fresh = (self._tables[width].find(keys) == ABSENT).nonzero()[0]
            codes = self._lists.add(tokens[chosen[fresh]], np.ones(len(fresh), np.int32))
            self._tables[width].insert([key[fresh] for key in keys], codes)

    def look_up(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], batch: Batch
    ) -> None:
        """Add words of a buffer to a batch.

        Args:
            data: uint8, shape (bytes + PADDING,).
            begins: int64, shape (words,), in bytes.
            lengths: int64, shape (words,), in bytes, 1 or more; no zero byte is inside a word.
            batch: Takes them.
        """
        rest = (lengths > 8).nonzero()[0]
        short = _keys(data, begins, lengths, 1)  # selecting the short ones would cost more than it saves
        codes = self._tables[1].find(short, skip=rest)
        batch.note(1, short, None, codes)
        for width, chosen in _by_width(rest, lengths):
            keys = _keys(data, begins.take(chosen), lengths.take(chosen), width)
            found = self._tables[width].find(keys)
            codes[chosen] = found
            batch.note(width, keys, chosen, found)
        for place in np.flatnonzero(lengths > LONGEST).tolist():
            word = data[begins[place] : begins[place] + lengths[place]].tobytes()
            batch.long.append((place + batch.size, word))
        batch.codes.append(codes)
        batch.size += len(codes)

    def learn(
        self, data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], encode: EncodeWords
    ) -> None:
        """Add first words whose tokens `encode` gives; those already known stay as they are."""
        batch = Batch()
        self.look_up(data, begins, lengths, batch)
        for width, parts in batch.unknown.items():
            self._learn(width, *_joined(parts), batch.codes[0], encode)

    def tokens(self, batch: Batch) -> FlatLists:
        """Return the tokens of all words of a batch."""
        codes = np.concatenate(batch.codes) if batch.codes else np.empty(0, np.int32)
        unknown = {width: _joined(parts) for width, parts in batch.unknown.items()}
        roomy = [width for width, (keys, _) in unknown.items() if self._has_room(width, len(keys[0]))]
        for width in roomy:
            self._learn(width, *unknown.pop(width), codes, self._encode)
        kept = len(self._lists)  # what there is no room for follows, to be dropped after use
        for width, (keys, places) in unknown.items():
            self._learn(width, keys, places, codes, self._encode, remember=False)
        if batch.long:
            places = np.array([place for place, _ in batch.long])
            codes[places] = self._lists.add(*self._encode_long([word for _, word in batch.long]))
        gathered = self._lists.gather(codes)
        self._lists.truncate(kept)
        if any(width in _RECURRING for width in unknown):
            self.restart()
        self._keep()
        return gathered

    def _learn(
        self,
        width: int,
        keys: Keys,
        places: NDArray[np.int64],
        codes: Codes,
        encode: EncodeWords,
        *,
        remember: bool = True,
    ) -> None:
        """Encode the distinct words of `keys`, and set `codes` at `places`."""
        first, inverse = unique_keys(keys)
        distinct = [key[first] for key in keys]
        words = np.stack(distinct, axis=1).view(np.uint8)  # (distinct words, 8 * width)
        added = self._lists.add(*encode(words))
        if remember:
            self._tables[width].insert(distinct, added)
        codes[places] = added[inverse]

    def _has_room(self, width: int, count: int) -> bool:
        learnt = len(self._tables[width]) - self._seeded[width]
        return learnt + count <= FILL_LIMIT * (1 << SLOT_BITS_LIMITS[width])


def _joined(parts: list[tuple[Keys, NDArray[np.int64]]]) -> tuple[Keys, NDArray[np.int64]]:
    """Return keys and places of several blocks as one."""
    if len(parts) == 1:
        return parts[0]
    keys = [np.concatenate(words) for words in zip(*(keys for keys, _ in parts), strict=True)]
    return keys, np.concatenate([places for _, places in parts])


def _by_width(chosen: NDArray[np.int64], lengths: NDArray[np.int64]) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield each width above 1 that occurs, and which of the chosen words have it: int64, shape (words,)."""
    for width in list(SLOT_BITS_LIMITS)[1:]:
        fits = lengths.take(chosen) <= 8 * width
        if fits.any():
            yield width, chosen.take(fits.nonzero()[0])
            chosen = chosen.take((~fits).nonzero()[0])


def _keys(data: NDArray[np.uint8], begins: NDArray[np.int64], lengths: NDArray[np.int64], width: int) -> Keys:
    """Return the bytes of each word as `width` 64-bit words, zero-padded, read by a view that ignores alignment."""
    view = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    least = 8 * (_NEXT_NARROWER[width]) if width > 1 else 0
    keys = []
    for word in range(width):
        key = view[begins + 8 * word] if word else view[begins]
        if 8 * (word + 1) > least:
            key &= _MASKS.take(lengths - 8 * word if word else lengths, mode="clip")
        keys.append(key)
    return keys
