"""Every pre-token met so far with its tokens; unknown ones are encoded in bulk and remembered.

A pre-token ("word" here, though it may be spaces or symbols) is its own key: its bytes, in one
64-bit word or several.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from nanoset_core.tokenizers.engines.arrays import Bytes, FlatLists, Ids, Ints
from nanoset_core.tokenizers.engines.words import (
    ABSENT,
    FILL_LIMIT,
    Codes,
    Keys,
    TokenLists,
    WordTable,
    unique_keys,
)
from nanoset_core.tokenizers.knowledge import Knowledge

SLOT_BITS_LIMITS = {1: 20, 2: 19, 4: 18, 8: 16, 16: 14, 31: 12}
"""Largest size of the table for words of each number of 64-bit words: together about 45 MB."""
LONGEST = 8 * max(SLOT_BITS_LIMITS)
"""Bytes in the longest word that the tables hold; longer ones are encoded each time."""
LEAST_SAVED = 1 << 15
"""Words that must have been learnt before any are kept for later runs."""
PADDING = LONGEST + 8
"""Bytes that must be readable after the last word of a buffer."""

_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
_NEXT_NARROWER = dict(zip([*SLOT_BITS_LIMITS][1:], SLOT_BITS_LIMITS, strict=False))
# widths whose words recur: when their tables are full, the text has changed, and all start anew
_RECURRING = (1, 2)

EncodeWords: TypeAlias = Callable[[Bytes], FlatLists]
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
    unknown: dict[int, list[tuple[Keys, Ints]]] = field(default_factory=dict)
    """By width: (keys, places int64, shape (words,)) of words that the tables did not hold."""
    long: list[tuple[int, bytes]] = field(default_factory=list)
    """(place, word) of those above LONGEST bytes."""

    def note(self, width: int, keys: Keys, places: Ints | None, found: Codes) -> None:
        """Note the words that were not found among those at `places` (None: all) of the current
        block.
        """
        missing = (found == ABSENT).nonzero()[0]
        if len(missing):
            places = missing if places is None else places.take(missing)
            self.unknown.setdefault(width, []).append(
                (keys.take(missing, axis=1), places + self.size)
            )

    def missing(self) -> dict[int, tuple[Keys, Ints]]:
        """Return the keys and places of all unknown words, by width."""
        found = {width: zip(*parts, strict=True) for width, parts in self.unknown.items()}
        return {
            width: (np.concatenate(keys, axis=1), np.concatenate(places))
            for width, (keys, places) in found.items()
        }


class PretokenCache:
    """Maps words to lists of tokens; bounded memory."""

    def __init__(
        self,
        encode: EncodeWords,
        encode_long: EncodeLongWords,
        seed: Callable[[PretokenCache], None],
        kept: Knowledge,
    ) -> None:
        """Begin with the words that are kept from earlier runs, else with the first ones, which
        `seed` adds.
        """
        self._encode = encode
        self._encode_long = encode_long
        self._seed = seed
        self._kept = kept
        self._saved: float = LEAST_SAVED / 1.5
        if (arrays := kept.load()) is None:
            self.restart()
            return
        self._lists = TokenLists(arrays["ends"], arrays["tokens"])
        self._tables = {
            width: WordTable(arrays[f"keys{width}"], arrays[f"codes{width}"])
            for width in SLOT_BITS_LIMITS
        }
        self._seeded = dict(zip(SLOT_BITS_LIMITS, arrays["seeded"].tolist(), strict=True))
        self._saved = self.learnt

    def restart(self) -> None:
        """Forget all but the first words."""
        self._lists = TokenLists()
        self._seeded = dict.fromkeys(SLOT_BITS_LIMITS, 0)
        self._tables = {width: WordTable.empty(width) for width in SLOT_BITS_LIMITS}
        self._seed(self)
        self._seeded = {width: table.count for width, table in self._tables.items()}

    @property
    def learnt(self) -> int:
        """Return the number of words beyond the first ones."""
        return sum(table.count - self._seeded[width] for width, table in self._tables.items())

    def _keep(self) -> None:
        """Save what was learnt whenever it has grown by half, if that leaves later runs room for
        other words.
        """
        if self.learnt < 1.5 * self._saved:
            return
        self._saved = self.learnt
        if all(
            self._has_room(width, int(FILL_LIMIT * (1 << SLOT_BITS_LIMITS[width])) // 2)
            for width in _RECURRING
        ):
            arrays = self._lists.to_arrays() | {"seeded": np.array(list(self._seeded.values()))}
            for width, table in self._tables.items():
                arrays |= {f"keys{width}": table.keys, f"codes{width}": table.codes}
            self._kept.save(arrays)

    def look_up(self, data: Bytes, begins: Ints, lengths: Ints, batch: Batch) -> None:
        """Add words of a buffer, with PADDING behind it, to a batch; no word is empty or holds a
        zero byte.
        """
        rest = (lengths > 8).nonzero()[0]
        # selecting the short ones would cost more than it saves
        short = _keys(data, begins, lengths, 1)
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
        self,
        data: Bytes,
        begins: Ints,
        lengths: Ints,
        tokens: Ids | EncodeWords,
    ) -> None:
        """Add words of a buffer to the first ones: with one token each, or with what gives their
        tokens.
        """
        batch = Batch()
        self.look_up(data, begins, lengths, batch)
        for width, (keys, places) in batch.missing().items():
            self._learn(width, keys, places, batch.codes[0], tokens)

    def tokens(self, batch: Batch) -> FlatLists:
        """Return the tokens of all words of a batch."""
        codes = np.concatenate(batch.codes) if batch.codes else np.empty(0, np.int32)
        unknown = batch.missing()
        full = {
            width
            for width, (_, places) in unknown.items()
            if not self._has_room(width, len(places))
        }
        for width in unknown.keys() - full:
            self._learn(width, *unknown[width], codes, self._encode)
        kept = len(self._lists)  # what there is no room for follows, to be dropped after use
        for width in full:
            self._learn(width, *unknown[width], codes, self._encode, remember=False)
        if batch.long:
            places = np.array([place for place, _ in batch.long])
            codes[places] = self._lists.add(*self._encode_long([word for _, word in batch.long]))
        gathered = self._lists.gather(codes)
        self._lists.truncate(kept)
        if not full.isdisjoint(_RECURRING):
            self.restart()
        self._keep()
        return gathered

    def _learn(
        self,
        width: int,
        keys: Keys,
        places: Ints,
        codes: Codes,
        tokens: Ids | EncodeWords,
        *,
        remember: bool = True,
    ) -> None:
        """Find the tokens of the distinct words of `keys`, and set `codes` at `places`."""
        first, inverse = unique_keys(keys)
        distinct = keys.take(first, axis=1)
        if isinstance(tokens, np.ndarray):
            found: FlatLists = tokens.take(places.take(first)), np.ones(len(first), np.int64)
        else:
            # (distinct words, 8 * width)
            found = tokens(np.ascontiguousarray(distinct.T).view(np.uint8))
        added = self._lists.add(*found)
        if remember:
            self._tables[width].insert(distinct, added)
        codes[places] = added[inverse]

    def _has_room(self, width: int, count: int) -> bool:
        learnt: int = self._tables[width].count - self._seeded[width]
        return learnt + count <= FILL_LIMIT * (1 << SLOT_BITS_LIMITS[width])


def _by_width(chosen: Ints, lengths: Ints) -> Iterator[tuple[int, Ints]]:
    """Yield each width above 1 that occurs, and which of the chosen words have it: int64, shape
    (words,).
    """
    for width in list(SLOT_BITS_LIMITS)[1:]:
        fits = lengths.take(chosen) <= 8 * width
        if fits.any():
            yield width, chosen.take(fits.nonzero()[0])
            chosen = chosen.take((~fits).nonzero()[0])


def _keys(data: Bytes, begins: Ints, lengths: Ints, width: int) -> Keys:
    """Return the bytes of each word as `width` 64-bit words, zero-padded, read by a view that
    ignores alignment.
    """
    view = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    least = 8 * (_NEXT_NARROWER[width]) if width > 1 else 0
    keys = []
    for word in range(width):
        key = view[begins + 8 * word] if word else view[begins]
        if 8 * (word + 1) > least:
            key &= _MASKS.take(lengths - 8 * word if word else lengths, mode="clip")
        keys.append(key)
    return keys[0][None] if width == 1 else np.stack(keys)
