"""A 64-bit hash of byte strings, computed for millions of them at once.

Documents are split, chosen and repeated by the hash of their ids, and hashes of their tokens are
stored (`token_hashes.py`), so the hash must never change. The bytes of a text are read as 64-bit
words w[0], w[1], … in little-endian order. The last word is filled up with zeros, and an empty text
is one word of zeros. The hash is

    mix(mix(w[0] + STEP) + mix(w[1] + 2 * STEP) + … + length in bytes)

with all sums modulo 2**64. `mix` is the output function of SplitMix64 (Steele, Lea and Flood 2014).

Two different texts have the same hash with a probability of about 2**-64, so among n different
texts, about n**2 / 2**65 pairs are expected: 0.03 among a billion texts. The hash is not
cryptographic: an attacker can construct texts with equal hashes.

A sum can be added up in parts. That is why `sum_words` and `finish_hashes` are separate: the words
of a long text may arrive in several chunks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.formats.indexed.blocks import divide_into_blocks

U64 = np.uint64
STEP = U64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = U64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = U64(0x94D049BB133111EB)
WORD_BYTES = 8
"""Bytes of a word, which are hashed together."""
_BLOCK_BYTES = 1 << 20
"""About how many bytes are hashed together: their words should fit into a processor's cache."""
_TABLE_SIZE = 1 << 18
"""Length of the arrays that are computed once, for all blocks. A block usually has fewer words."""
_MASKS = np.array([2 ** (8 * n_bytes) - 1 for n_bytes in range(WORD_BYTES + 1)], np.uint64)
"""Mask of the first n bytes of a word, by n."""


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Scramble each value, so that similar values become very different ones.

    It is the output function of SplitMix64: a fixed permutation of the numbers of 64 bits.

    Args:
        values: Numbers of any shape; they are not changed.

    Returns:
        The scrambled numbers, uint64, of the same shape.
    """
    mixed = values.copy()
    _mix_in_place(mixed)
    return mixed


def _mix_in_place(values: NDArray[np.uint64]) -> None:
    """Replace each value by the output function of SplitMix64."""
    values ^= values >> U64(30)
    values *= _FIRST_FACTOR
    values ^= values >> U64(27)
    values *= _SECOND_FACTOR
    values ^= values >> U64(31)


def salted(keys: NDArray[np.uint64], salt: str) -> NDArray[np.uint64]:
    """Return other hashes of the same texts, which do not depend on the first ones.

    Choices that are made by the hashes of different salts are independent: whether a document is in
    one of them says nothing about the others.

    Args:
        keys: Hash of each text, shape (n_texts,).
        salt: Any text; each gives another set of hashes.

    Returns:
        Shape (n_texts,).
    """
    salt_hash = hash_bytes([salt.encode()])[0]
    return mix(keys ^ salt_hash)


def below(keys: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Return which texts are in a pseudo-random selection, by their hashes.

    These are the texts with the smallest hashes: for a share of 0.1, those below 0.1 * 2**64. A
    larger selection contains all smaller ones.

    Args:
        keys: Hash of each text, shape (n_texts,).
        share: Expected share of the texts that are selected, from 0 to 1.

    Returns:
        Shape (n_texts,).
    """
    # 2**64 itself, the limit for a share of 1, is no uint64.
    if share >= 1:
        return np.ones(len(keys), np.bool_)
    return keys < U64(int(share * 2**64))


def hash_bytes(values: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the hash of each byte string.

    Args:
        values: Byte strings of any lengths, which may be empty.

    Returns:
        Hashes, uint64, shape (len(values),). They never change between versions.
    """
    lengths = [len(value) for value in values]
    borders = np.cumsum([0, *lengths])
    data = np.frombuffer(b"".join(values), np.uint8)
    return hash_ranges(data, borders)


def hash_texts(array: Any) -> NDArray[np.uint64]:
    """Return the hash of each string of an Arrow array; null has the hash of an empty text.

    Args:
        array: A `pyarrow.Array` of strings.

    Returns:
        Shape (len(array),).
    """
    import pyarrow as pa

    # Arrow stores the UTF-8 bytes of all strings in one buffer, and the borders between them in
    # another. For "ab", null and "c": the bytes "abc", and the borders 0, 2, 2 and 3.
    array = array.cast(pa.large_string())
    _, border_buffer, data = array.buffers()
    # A slice of an array shares the buffers of the whole array, and starts at `offset`.
    first = array.offset
    borders = np.frombuffer(border_buffer, np.int64)[first : first + len(array) + 1]
    if data is None:  # all strings are empty
        data = b""
    return hash_ranges(np.frombuffer(data, np.uint8), borders)


def hash_ranges(data: NDArray[np.uint8], borders: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hash of the bytes between each two neighbouring borders.

    For example, the bytes "abcde" with the borders 0, 3 and 5 are the texts "abc" and "de".

    Args:
        data: Bytes of all texts, concatenated.
        borders: Borders in `data`, ascending, shape (n_texts + 1,); text k has the bytes from
            border k to border k + 1.

    Returns:
        Shape (n_texts,).
    """
    hashes = np.empty(max(len(borders) - 1, 0), np.uint64)
    # Hash some texts at a time, so that their words stay in the processor's cache.
    for texts in divide_into_blocks(borders, _BLOCK_BYTES):
        block_borders = borders[texts.start : texts.stop + 1]
        sums = sum_words(data, block_borders)
        hashes[texts] = finish_hashes(sums, np.diff(block_borders))
    return hashes


def finish_hashes(
    sums: NDArray[np.uint64], lengths: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """Return the hashes of texts whose words have all been added up.

    The last word of a text is filled up with zeros. So the length of the text is part of its hash:
    without it, texts that differ only in zeros at their ends would have equal hashes.

    Args:
        sums: Sum of the mixed words of each text, shape (n_texts,). `sum_words` computes them.
        lengths: Bytes of each text, shape (n_texts,).

    Returns:
        Hash of each text, shape (n_texts,).
    """
    sums_with_lengths = sums + lengths.astype(np.uint64)  # modulo 2**64
    return mix(sums_with_lengths)


def sum_words(
    data: NDArray[np.uint8],
    borders: NDArray[np.int64],
    *,
    item_bytes: int = 1,
    n_words_before: int = 0,
) -> NDArray[np.uint64]:
    """Return the sum of the mixed words of each text: the hash before its last step.

    For example, two texts of 3 and 10 bytes are one word, a, and two words, b and c:

        borders       0, 3, 13
        bytes         0 to 3            3 to 11, 11 to 13
        words         a                 b, c
        sums          mix(a + STEP)     mix(b + STEP) + mix(c + 2 * STEP)

    Args:
        data: Bytes of all texts, concatenated.
        borders: Borders in `data`, ascending, shape (n_texts + 1,); text k has the bytes from
            border k to border k + 1.
        item_bytes: 1, 2, 4 or 8. All borders are multiples of this number, counted from the first
            border. Greater ones are faster.
        n_words_before: Number of words of the first text that an earlier call added up. `data`
            then has only the bytes of that text that follow these words.

    Returns:
        Shape (n_texts,).
    """
    if len(borders) < 2:
        return np.empty(0, np.uint64)
    data = data[borders[0] : borders[-1]]
    borders = borders - borders[0]

    # Divide each text into words.
    lengths = np.diff(borders)  # (n_texts,) in bytes
    words_per_text = _words_in(lengths)  # (n_texts,)
    stops = np.cumsum(words_per_text)  # (n_texts,) index after each text's last word
    first_words = stops - words_per_text  # (n_texts,) index of each text's first word
    words = _read_words(data, borders[:-1], words_per_text, item_bytes)  # (n_words,)

    # Clear the bytes of the last word of each text that are already those of the next text.
    bytes_of_last_word = lengths - WORD_BYTES * (words_per_text - 1)  # (n_texts,) 0 to 8
    words[stops - 1] &= _MASKS[bytes_of_last_word]

    _add_steps(words, first_words, words_per_text, n_words_before)
    _mix_in_place(words)
    sums: NDArray[np.uint64] = np.add.reduceat(words, first_words)
    return sums


def _words_in(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return into how many words of 8 bytes each text is divided, at least one.

    Args:
        lengths: Bytes of each text, shape (n_texts,).
    """
    # The shift divides by 8, faster than numpy's `//`.
    n_words: NDArray[np.int64] = np.maximum((lengths + (WORD_BYTES - 1)) >> 3, 1)
    return n_words


def _add_steps(
    words: NDArray[np.uint64],
    first_words: NDArray[np.int64],
    words_per_text: NDArray[np.int64],
    n_words_before: int,
) -> None:
    """Add STEP to the first word of each text, 2 * STEP to its second, and so on, modulo 2**64.

    For example, the words of two texts of 2 and 3 words get 1, 2, 1, 2 and 3 times STEP.

    Args:
        words: The words of all texts, which are changed in place, shape (n_words,).
        first_words: Index of each text's first word, shape (n_texts,).
        words_per_text: Number of words of each text, shape (n_texts,).
        n_words_before: Number of words of the first text that come before these.
    """
    # As if all words were of one text: 1, 2, 3, 4, 5 times STEP in the example.
    words += _multiples_of_step(len(words))

    # Take back one STEP for each word of an earlier text: 0, 0, 2, 2, 2 times STEP. If the first
    # text continues after words that are not in the array, it gets more instead.
    surplus = first_words.copy()  # (n_texts,) 0 2
    surplus[0] -= n_words_before
    # A negative number wraps around, which is right for sums modulo 2**64.
    words -= np.repeat(surplus.astype(np.uint64) * STEP, words_per_text)


def _read_words(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    words_per_text: NDArray[np.int64],
    item_bytes: int,
) -> NDArray[np.uint64]:
    """Return the words of all texts as little-endian numbers.

    Args:
        data: Bytes of all texts.
        starts: First byte of each text, shape (n_texts,).
        words_per_text: Number of words of each text, at least 1; shape (n_texts,).
        item_bytes: 1, 2, 4 or 8; all starts are multiples of it.

    Returns:
        Shape (n_words,). The last word of a text also has bytes that follow the text; zeros are
        taken to follow the data.
    """
    if item_bytes > 1:
        return _read_words_of_items(data, starts, words_per_text, item_bytes)
    return _read_words_of_bytes(data, starts, words_per_text)


def _read_words_of_items(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    words_per_text: NDArray[np.int64],
    item_bytes: int,
) -> NDArray[np.uint64]:
    """Return the words of 8 bytes of texts that start at multiples of 2, 4 or 8 bytes.

    numpy reads words fast only at multiples of 8 bytes. So copies of the data are made, in which
    other bytes are at these addresses. For items of 4 bytes, there are two copies:

        copy 0    the words that start at the bytes 0, 8, 16, … of the data
        copy 1    the words that start at the bytes 4, 12, 20, …

    Args:
        data: Bytes of all texts.
        starts: First byte of each text, shape (n_texts,).
        words_per_text: Number of words of each text, at least 1; shape (n_texts,).
        item_bytes: 2, 4 or 8; all starts are multiples of it.

    Returns:
        Shape (n_words,), as `_read_words` does.
    """
    copies = _shifted_copies(data, item_bytes)  # (n_copies, words_per_copy)
    words_per_copy = copies.shape[1]

    # (n_texts,) the copy in which a text starts at a word, and the number of this word. Byte 12 is
    # in copy 1 (12 % 8 // 4), at word 1 (12 // 8). Masks and shifts are faster than `%` and `//`.
    item_bits = item_bytes.bit_length() - 1  # item_bytes is 2**item_bits
    copy_numbers = (starts & 7) >> item_bits  # starts % 8 // item_bytes
    first_words = starts >> 3  # starts // 8

    # Read the words from all copies as one array, in which each copy follows the one before it.
    first_places = copy_numbers * words_per_copy + first_words  # (n_texts,)
    places = _places_of_words(first_places, words_per_text, distance=1)
    return copies.reshape(-1).take(places)


def _read_words_of_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], words_per_text: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Return the words of 8 bytes of texts that may start at any byte.

    Args:
        data: Bytes of all texts.
        starts: First byte of each text, shape (n_texts,).
        words_per_text: Number of words of each text, at least 1; shape (n_texts,).

    Returns:
        Shape (n_words,), as `_read_words` does.
    """
    # Zeros follow the data, for words that extend beyond it.
    padded = np.zeros(len(data) + WORD_BYTES, np.uint8)
    padded[: len(data)] = data

    # A view of these bytes with a word for every byte, since neighbouring entries are one byte
    # apart: entry 0 has the bytes 0 to 7, entry 1 the bytes 1 to 8, and so on.
    word_at_byte = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))

    # The words of a text that starts at byte 3 are the entries 3, 11, 19, …
    places = _places_of_words(starts, words_per_text, distance=WORD_BYTES)  # (n_words,)
    return word_at_byte.take(places)


def _places_of_words(
    first_places: NDArray[np.int64], words_per_text: NDArray[np.int64], *, distance: int
) -> NDArray[np.int64]:
    """Return where each word of all texts is.

    For example, two texts of 2 and 3 words, whose first words are at 100 and 40, have their words
    at 100, 101, 40, 41 and 42, if the distance is 1.

    Args:
        first_places: Place of the first word of each text, shape (n_texts,).
        words_per_text: Number of words of each text, shape (n_texts,).
        distance: Distance between the places of neighbouring words of a text.

    Returns:
        Shape (n_words,).
    """
    # Places grow from word to word by the distance, and so does the product of the distance and the
    # word's number among all words. So their difference is the same for all words of a text.
    first_words = np.cumsum(words_per_text) - words_per_text  # (n_texts,) [0, 2]
    differences = first_places - distance * first_words  # (n_texts,) [100, 38]
    places = np.repeat(differences, words_per_text)  # (n_words,) [100, 100, 38, 38, 38]

    word_numbers = _numbers(len(places))  # [0, 1, 2, 3, 4], an array that is made only once
    if distance != 1:
        word_numbers = word_numbers * distance
    places += word_numbers  # [100, 101, 40, 41, 42]
    return places


def _shifted_copies(data: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint64]:
    """Return copies of bytes in which each item is the start of an aligned word.

    A word has 8 bytes, and numpy reads it six times as fast if its address is a multiple of 8. Each
    copy moves the data by one item more, so that every word has such an address in one of the
    copies. For items of 4 bytes:

        bytes         0 1 2 3 4 5 6 7 8 9 a b c d e f
        copy 0        0 1 2 3 4 5 6 7|8 9 a b c d e f      has the words that start at 0, 8, …
        copy 1        4 5 6 7 8 9 a b|c d e f 0 0 0 0      has the words that start at 4, 12, …

    Single bytes would need eight copies, which would take longer than they save.

    Args:
        data: The bytes; zeros are taken to follow them.
        item_bytes: 2, 4 or 8.

    Returns:
        Little-endian words, shape (8 / item_bytes, len(data) // 8 + 1).
    """
    n_copies = WORD_BYTES // item_bytes
    copies = np.empty((n_copies, len(data) // WORD_BYTES + 1), "<u8")
    for number, copy_bytes in enumerate(copies.view(np.uint8)):
        shifted = data[number * item_bytes :]
        copy_bytes[: len(shifted)] = shifted
        copy_bytes[len(shifted) :] = 0
    return copies


def _numbers(count: int) -> NDArray[np.int64]:
    """Return 0, 1, … as a read-only array of shape (count,)."""
    if count > _TABLE_SIZE:
        return np.arange(count, dtype=np.int64)
    return _tables().numbers[:count]


def _multiples_of_step(count: int) -> NDArray[np.uint64]:
    """Return STEP, 2 * STEP, … as a read-only array of shape (count,)."""
    if count > _TABLE_SIZE:
        return np.arange(1, count + 1, dtype=np.uint64) * STEP
    return _tables().multiples_of_step[:count]


class _Tables(NamedTuple):
    """Arrays of `_TABLE_SIZE` numbers that are needed for every block of texts."""

    numbers: NDArray[np.int64]
    multiples_of_step: NDArray[np.uint64]


@cache
def _tables() -> _Tables:
    """Return these arrays, which are computed once."""
    numbers = np.arange(_TABLE_SIZE, dtype=np.int64)
    return _Tables(numbers, (numbers.astype(np.uint64) + U64(1)) * STEP)
