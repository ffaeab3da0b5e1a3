"""A cache of every pre-token met so far with its tokens.

Text repeats its words: after some megabytes, nearly all pre-tokens have been met before, and
encoding is a lookup in a hash table. Unknown ones are encoded together, and remembered. What was
learnt is saved for later processes.

A pre-token is called a *word* here, although it may be spaces or symbols. The tables map *keys* to
*codes*:

- The key of a word is the bytes of the word itself, as one 64-bit integer or several. There is a
  table for each *width*, which is the number of these integers:

      bytes of the word     1 – 8   9 – 16   17 – 32   33 – 64   65 – 128   129 – 248   more
      width                 1       2        4         8         16         31          in no table

- The code of a word is a number that stands for its list of tokens (`token_lists`): " the" → 262.

Memory is bounded: each table has a largest size. When the tables of short words are full, the text
has changed, and the cache starts again from its first words, which are the tokenizer's vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.tokenizers.cache import CacheEntry
from nanoset_core.tokenizers.engines.arrays import Bytes, FlatLists, Ids, Ints, Words
from nanoset_core.tokenizers.engines.token_lists import Codes, TokenLists
from nanoset_core.tokenizers.engines.words import ABSENT, FILL_LIMIT, Keys, WordTable, unique_keys

SLOT_BITS_LIMITS = {1: 20, 2: 19, 4: 18, 8: 16, 16: 14, 31: 12}
"""Largest size of the table of each width, as a power of two: together about 45 MB."""
LONGEST = 8 * max(SLOT_BITS_LIMITS)
"""Bytes in the longest word that the tables hold; longer ones are encoded each time."""
LEAST_SAVED = 1 << 15
"""Words that must have been learnt before any are saved for later processes."""
PADDING = LONGEST + 8
"""Bytes that must be readable after the last word of a buffer."""


# The mask of item n keeps the first n bytes of an integer, and clears the others.
_BYTE_MASKS = np.array([(1 << 8 * size) - 1 for size in range(9)], np.uint64)
# Widths of words that come again: if there is no room for more of them, the text has changed.
_RECURRING_WIDTHS = (1, 2)
_GROWTH = 1.5  # what was learnt is saved again when it has grown by this factor

EncodeWords: TypeAlias = Callable[[Bytes], FlatLists]
"""Encodes zero-padded words, uint8, shape (n_words, width in bytes)."""
EncodeLongWords: TypeAlias = Callable[[list[bytes]], FlatLists]
"""Encodes words of any length."""


class UnknownWords(NamedTuple):
    """Words of one width that the tables do not hold; a word may occur several times."""

    keys: Keys
    """uint64, shape (width, n_words)."""
    positions: Ints
    """int64, shape (n_words,): index of each word in its batch."""

    @property
    def width(self) -> int:
        """How many 64-bit integers the bytes of each word fill; each width has a table."""
        return len(self.keys)


class DistinctWords(NamedTuple):
    """The distinct words among words of one width."""

    keys: Keys
    """uint64, shape (width, n_distinct)."""
    positions: Ints
    """int64, shape (n_distinct,): where each first occurs, as in `UnknownWords`."""
    numbers: Ints
    """int64, shape (n_words,): which of them each word is."""


@dataclass(slots=True)
class Batch:
    """Words that are looked up together: the codes of known ones, and unknown ones to encode.

    Words are added in blocks. Each block is the words of one buffer of text.
    """

    size: int = 0
    """Words so far."""
    codes: list[Codes] = field(default_factory=list)
    """The codes of each block's words, int32, shape (n_words,); ABSENT for unknown ones."""
    unknown: dict[int, list[UnknownWords]] = field(default_factory=dict)
    """Unknown words of each block, by width."""
    long_words: list[bytes] = field(default_factory=list)
    """All words of more than LONGEST bytes: no table has room for them."""
    long_positions: list[int] = field(default_factory=list)
    """Index in the batch of each of these."""

    def add_unknown(self, keys: Keys, positions: Ints) -> None:
        """Keep words of a text that the cache of tokens does not have, to encode them later.

        They are grouped by width, the number of 64-bit integers that the bytes of a word fill: 1
        for "cat", 2 for "tokenizers".

        Args:
            keys: The bytes of words of one width, uint64, shape (width, n_words).
            positions: Index of each word among all words of the text, int64, shape (n_words,).
        """
        if len(positions):
            # Count the words of earlier texts, too. There are `size` of them.
            words = UnknownWords(keys, positions + self.size)
            words_of_same_width = self.unknown.setdefault(words.width, [])
            words_of_same_width.append(words)

    def add_long(self, data: Bytes, starts: Ints, lengths: Ints) -> None:
        """Keep the words of a text that have more than 248 bytes, to encode them later.

        Args:
            data: uint8, shape (n_bytes,): the text.
            starts: First byte of each word of the text, int64, shape (n_words,).
            lengths: Bytes of each word, int64, shape (n_words,).
        """
        for index in np.flatnonzero(lengths > LONGEST).tolist():
            start = starts[index]
            stop = start + lengths[index]
            self.long_words.append(data[start:stop].tobytes())
            # Words of earlier texts, of which there are `size`, come before this one.
            self.long_positions.append(self.size + index)

    def unknown_words(self) -> list[UnknownWords]:
        """Return all words whose tokens are not known, those of the same width together.

        The width is the number of 64-bit integers that the bytes of a word fill: 1 for "cat", 2 for
        "tokenizers". So the words of one width are the columns of one array.
        """
        words_by_width = []
        for blocks in self.unknown.values():
            keys = np.concatenate([block.keys for block in blocks], axis=1)
            positions = np.concatenate([block.positions for block in blocks])
            words_by_width.append(UnknownWords(keys, positions))
        return words_by_width


class PretokenCache:
    """Maps words to lists of tokens, in bounded memory."""

    def __init__(
        self,
        encode: EncodeWords,
        encode_long: EncodeLongWords,
        seed: Callable[[PretokenCache], None],
        saved: CacheEntry,
    ) -> None:
        """Start a cache of the tokens of words, with those that an earlier process saved.

        Without saved words, start with the first words: those that `seed` adds, such as the
        vocabulary.

        Args:
            encode: Encodes words of up to LONGEST (248) bytes.
            encode_long: Encodes longer words.
            seed: Called with this cache, adds the first words by `learn` and `learn_tokens`.
            saved: The entry of the cache on disk in which words are saved for later processes.
        """
        self._encode = encode
        self._encode_long = encode_long
        self._seed = seed
        self._saved = saved
        self._save_at: float = LEAST_SAVED  # number of learnt words

        arrays = saved.load()
        if arrays is None:
            self.restart()
            return
        self._lists = TokenLists(arrays["bounds"], arrays["tokens"])
        self._tables = {}
        for width in SLOT_BITS_LIMITS:
            self._tables[width] = WordTable(arrays[f"keys{width}"], arrays[f"codes{width}"])
        # How many words of each width are first words.
        self._n_seeded = dict(zip(SLOT_BITS_LIMITS, arrays["seeded"].tolist(), strict=True))
        self._save_at = _GROWTH * self.learnt

    def restart(self) -> None:
        """Forget all words but the first ones."""
        self._lists = TokenLists()
        self._tables = {width: WordTable.empty(width) for width in SLOT_BITS_LIMITS}
        self._n_seeded = dict.fromkeys(SLOT_BITS_LIMITS, 0)
        self._seed(self)
        self._n_seeded = {width: table.count for width, table in self._tables.items()}

    @property
    def learnt(self) -> int:
        """The number of words beyond the first ones."""
        return sum(self._n_learnt(width) for width in self._tables)

    def look_up(self, data: Bytes, starts: Ints, lengths: Ints, batch: Batch) -> None:
        """Look up the words of a text in the cache, and add the results to a batch.

        The cache maps words to their tokens, since most words of a text have occurred before. There
        is a table for each width, the number of 64-bit integers that hold the bytes of a word. It
        gives a code, a number that stands for the word's list of tokens:

            word              " the"     " tokenizers"    " xyzzy"     300 times "a"
            bytes             4          11               6            300
            table of width    1          2                1            none: too long
            code              262        1048576          ABSENT       0 for now

        The batch, which may have words of earlier texts, gets all codes. It also gets the words
        without a code, so that they can be encoded later: unknown words by width, and those that
        are too long.

        Args:
            data: uint8, shape (n_bytes + PADDING,): the text, and padding.
            starts: First byte of each word, int64, shape (n_words,).
            lengths: Bytes of each word, int64, shape (n_words,); no word is empty, or has a zero
                byte.
            batch: The words are added to it as a new block.
        """
        # Most words have up to 8 bytes, so that they are in the table of width 1. To select them
        # would take long. So all words are looked up there, but longer ones are skipped: their code
        # is 0 for now.
        longer_words = (lengths > 8).nonzero()[0]  # indices of words
        short_keys = _keys(data, starts, lengths, width=1)
        codes = self._tables[1].find(short_keys, skip=longer_words)  # (n_words,)
        unknown = (codes == ABSENT).nonzero()[0]
        batch.add_unknown(short_keys.take(unknown, axis=1), unknown)

        # Longer words: those of each width are looked up together, in the table of this width.
        for width, positions in _positions_by_width(longer_words, lengths):
            keys = _keys(data, starts.take(positions), lengths.take(positions), width)
            codes_of_width = self._tables[width].find(keys)
            codes[positions] = codes_of_width
            unknown = (codes_of_width == ABSENT).nonzero()[0]
            batch.add_unknown(keys.take(unknown, axis=1), positions.take(unknown))

        # The longest words are in no table: the batch keeps their bytes, since they are always
        # encoded.
        batch.add_long(data, starts, lengths)
        batch.codes.append(codes)
        batch.size += len(codes)

    def tokens(self, batch: Batch) -> FlatLists:
        """Return the tokens of all words of a batch, after encoding the words that the cache lacks.

        Each word of the batch has a code, a number that stands for its list of tokens. Known words
        have theirs from the lookup. For the words " the", " xyzzy" and " the", where the second one
        is new:

            codes from the lookup       262    ABSENT           262
            after encoding " xyzzy"     262    1048576          262
            lists of these codes        262    2124 5431 88     262
            result                      [262, 2124, 5431, 88, 262] and the lengths [1, 3, 1]

        New lists stay in the cache if its tables have room for their words. Otherwise, they are
        removed again.

        Args:
            batch: Words that `look_up` has added.

        Returns:
            (ids of all words, concatenated; number of tokens of each word).
        """
        # (n_words,) the number of each word's list of tokens in `self._lists`, or ABSENT
        codes = np.concatenate([np.empty(0, np.int32), *batch.codes])

        # Divide the unknown words into those that the cache has room for, and others. They are
        # grouped by width, the number of 64-bit integers that their bytes fill.
        cacheable, uncacheable = self._divide_by_room(batch.unknown_words())

        # Encode the words for which there is room, and keep their lists.
        for words in cacheable:
            codes[words.positions] = self._learn(words, self._encode)
        n_kept_lists = len(self._lists)

        # Encode all others. Their lists are added behind the kept ones, for this batch only.
        for words in uncacheable:
            codes[words.positions] = self._encode_without_learning(words)
        if batch.long_words:
            long_ids, long_lengths = self._encode_long(batch.long_words)
            codes[batch.long_positions] = self._lists.add(long_ids, long_lengths)
        all_tokens = self._lists.gather(codes)
        self._lists.truncate(n_kept_lists)

        # Short words recur. If there is no room for new ones, the texts are of another kind than
        # before, and words of the earlier texts are of no use: forget these.
        if any(words.width in _RECURRING_WIDTHS for words in uncacheable):
            self.restart()
        self._save_if_grown()
        return all_tokens

    def _divide_by_room(
        self, unknown: Sequence[UnknownWords]
    ) -> tuple[list[UnknownWords], list[UnknownWords]]:
        """Divide new words into those that the cache still has room for, and the others.

        There is a table for the words of each width, the number of 64-bit integers that their bytes
        fill. It takes all new words of its width, or none.

        Args:
            unknown: The unknown words of each width.

        Returns:
            (the words of widths for which there is room; those of the other widths)
        """
        cacheable = []
        uncacheable = []
        for words in unknown:
            n_words = self._n_learnt(words.width) + len(words.positions)  # in the table, with these
            if n_words <= _capacity(words.width):
                cacheable.append(words)
            else:
                uncacheable.append(words)
        return cacheable, uncacheable

    def learn(self, data: Bytes, starts: Ints, lengths: Ints, encode: EncodeWords) -> None:
        """Encode those words of a text that the cache does not know, and remember their tokens.

        This fills a new cache with words that are likely to occur, such as those of the vocabulary.

        Args:
            data: uint8, shape (n_bytes + PADDING,): the text, and padding.
            starts: First byte of each word, int64, shape (n_words,).
            lengths: Bytes of each word, int64, shape (n_words,). Words of more than LONGEST (248)
                bytes are ignored: no table has room for them.
            encode: Encodes words of up to LONGEST bytes: returns the tokens of each.
        """
        for unknown_words in self._find_unknown(data, starts, lengths):
            self._learn(unknown_words, encode)

    def learn_tokens(self, data: Bytes, starts: Ints, lengths: Ints, tokens: Ids) -> None:
        """Remember words that are one token each, such as " the" with the token 279.

        Words that the cache knows already are left out.

        Args:
            data: uint8, shape (n_bytes + PADDING,): a text with the words, and padding.
            starts: First byte of each word, int64, shape (n_words,).
            lengths: Bytes of each word, int64, shape (n_words,).
            tokens: int32, shape (n_words,): the token of each word.
        """
        # Short words and longer ones are stored in different tables, by their width.
        for unknown in self._find_unknown(data, starts, lengths):
            words = _distinct(unknown)  # each word once
            tokens_of_words = tokens.take(words.positions)

            # In general, a word has a list of tokens. So add lists of one token, and store for each
            # word the number of its list.
            list_lengths = np.ones(len(tokens_of_words), np.int64)
            list_numbers = self._lists.add(tokens_of_words, list_lengths)
            self._tables[unknown.width].insert(words.keys, list_numbers)

    def _find_unknown(self, data: Bytes, starts: Ints, lengths: Ints) -> list[UnknownWords]:
        """Return the words of a text that the cache does not have, those of each width together.

        The width is the number of 64-bit integers that the bytes of a word fill. If the cache has
        only "the", the text "the cat tokenizers" gives " cat" (width 1) and " tokenizers" (2).

        Args:
            data: uint8, shape (n_bytes + PADDING,): the text, and padding.
            starts: First byte of each word, int64, shape (n_words,).
            lengths: Bytes of each word, int64, shape (n_words,).
        """
        batch = Batch()  # collects unknown words
        self.look_up(data, starts, lengths, batch)
        return batch.unknown_words()

    def _learn(self, unknown: UnknownWords, encode: EncodeWords) -> Codes:
        """Encode words that the cache does not know, and remember their tokens.

        Args:
            unknown: The words; some may occur several times.
            encode: Encodes words of up to LONGEST (248) bytes.

        Returns:
            The code of each word, a number that stands for its tokens: int32, shape (n_words,).
        """
        words = _distinct(unknown)  # so that each word is encoded once
        codes = self._encode_to_codes(words.keys, encode)
        self._tables[unknown.width].insert(words.keys, codes)
        return codes[words.numbers]

    def _encode_without_learning(self, unknown: UnknownWords) -> Codes:
        """Encode words for which the cache has no room, so that no later text finds them.

        Args:
            unknown: The words; some may occur several times.

        Returns:
            The code of each word, a number that stands for its tokens: int32, shape (n_words,). It
            is valid until the caller truncates the lists of tokens.
        """
        words = _distinct(unknown)  # so that each word is encoded once
        codes = self._encode_to_codes(words.keys, self._encode)
        return codes[words.numbers]

    def _encode_to_codes(self, keys: Keys, encode: EncodeWords) -> Codes:
        """Encode words, and return for each a code, a number that stands for its tokens.

        The code of a single token is this token. A list of several tokens is stored, and gets a
        number from 2**20 on:

            word      tokens    code
            "ab"      17        17
            "xy"      5 9       1048576

        Args:
            keys: uint64, shape (width, n_words): the bytes of each word, as `width` integers.
            encode: Encodes words of up to LONGEST (248) bytes.

        Returns:
            int32, shape (n_words,).
        """
        words = _words_of(keys)  # uint8, shape (n_words, 8 * width)
        ids, list_lengths = encode(words)  # 17 5 9, and 1 2
        return self._lists.add(ids, list_lengths)

    def _n_learnt(self, width: int) -> int:
        n_words: int = self._tables[width].count - self._n_seeded[width]
        return n_words

    def _save_if_grown(self) -> None:
        """Save the cache for later processes, whenever it has grown by half.

        Later processes start with the saved words, and need room for those of their own texts. So
        a cache without room for many more short words is not saved. Long words do not matter, since
        few of them occur a second time.
        """
        if self.learnt < self._save_at:
            return
        self._save_at = _GROWTH * self.learnt  # for example, from 100,000 words to 150,000
        if all(self._is_half_empty(width) for width in _RECURRING_WIDTHS):
            self._saved.save(self._arrays())

    def _is_half_empty(self, width: int) -> bool:
        """Return whether at least half of the room for learnt words of a width is left."""
        capacity = _capacity(width)
        room = capacity - self._n_learnt(width)
        return room >= capacity // 2

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """Return the contents of the cache, as the constructor reads them."""
        arrays = self._lists.to_arrays()
        # The words with which every cache starts are in the tables, but do not count as learnt.
        arrays["seeded"] = np.array(list(self._n_seeded.values()))
        for width, table in self._tables.items():
            arrays[f"keys{width}"] = table.keys
            arrays[f"codes{width}"] = table.codes
        return arrays


def _capacity(width: int) -> int:
    """Return how many learnt words fit into the table of a width, when it has its largest size.

    A hash table is fast only as long as a part of it is free. The words with which a cache starts
    are not counted.
    """
    return int(FILL_LIMIT * (1 << SLOT_BITS_LIMITS[width]))


def _positions_by_width(positions: Ints, lengths: Ints) -> Iterator[tuple[int, Ints]]:
    """Group words of more than 8 bytes by the table that has room for them.

    A word is stored as 64-bit integers of 8 bytes. There is a table for each of these widths, the
    number of integers:

        bytes    9 – 16   17 – 32   33 – 64   65 – 128   129 – 248   more
        width    2        4         8         16         31          in no group

    Args:
        positions: Indices of the words of more than 8 bytes, int64, shape (n_positions,).
        lengths: Bytes of all words, also of shorter ones: int64, shape (n_words,).

    Yields:
        (width, indices of the words that have this width, int64), the smallest width first.
    """
    widths = np.array([width for width in SLOT_BITS_LIMITS if width > 1])  # 2 4 8 16 31
    # The first width that is large enough for each word: an index into `widths`.
    width_numbers = np.searchsorted(8 * widths, lengths.take(positions))
    for number, width in enumerate(widths.tolist()):
        positions_of_width = positions.take((width_numbers == number).nonzero()[0])
        if len(positions_of_width):
            yield width, positions_of_width


def _distinct(words: UnknownWords) -> DistinctWords:
    """Return each of some words once."""
    first_indices, numbers = unique_keys(words.keys)
    return DistinctWords(
        keys=words.keys.take(first_indices, axis=1),
        positions=words.positions.take(first_indices),
        numbers=numbers,
    )


def _keys(data: Bytes, starts: Ints, lengths: Ints, width: int) -> Keys:
    """Pack the bytes of each word into 64-bit integers, by which it is looked up in a hash table.

    An integer holds 8 bytes. All words get the same number of integers, here called the width.
    Zeros fill what is left. For the width 2:

        words                       "tokenizers"          "characters"
        row 0 of the result         t o k e n i z e       c h a r a c t e
        row 1                       r s 0 0 0 0 0 0       r s 0 0 0 0 0 0

    Args:
        data: uint8, shape (n_bytes,): the text, with at least PADDING bytes after the last word.
        starts: First byte of each word, int64, shape (n_words,).
        lengths: Bytes of each word, int64, shape (n_words,). If a word has more than 8 * width
            bytes, the further ones are left out.
        width: Number of integers for each word.

    Returns:
        uint64, shape (width, n_words).
    """
    if width == 1:  # nearly all words; this copies nothing
        return _first_eight_bytes(data, starts, lengths)[np.newaxis]
    rows = []
    for offset in range(0, 8 * width, 8):
        # The rest of a word begins `offset` bytes later, and is `offset` bytes shorter.
        rows.append(_first_eight_bytes(data, starts + offset, lengths - offset))
    return np.stack(rows)


def _first_eight_bytes(data: Bytes, starts: Ints, lengths: Ints) -> Words:
    """Return the first eight bytes of each word as one integer, zeros after the end of the word.

    Args:
        data: uint8, shape (n_bytes,): the text, with at least eight bytes after each start.
        starts: First byte of each word, int64, shape (n_words,).
        lengths: Bytes of each word, int64, shape (n_words,); of a word with 0 bytes or less, all
            eight are zeros.

    Returns:
        uint64, shape (n_words,).
    """
    # A view with an integer for each position. They overlap: from one to the next is one byte.
    overlapping = np.ndarray((len(data) - 7,), "<u8", data, strides=(1,))
    integers: Words = overlapping[starts]
    integers &= _BYTE_MASKS.take(lengths, mode="clip")  # clip: as for 0 and for 8
    return integers


def _words_of(keys: Keys) -> Bytes:
    """Return the bytes of keys: uint8, shape (n_words, 8 * width)."""
    return np.ascontiguousarray(keys.T).view(np.uint8)
