"""A 64-bit hash of byte strings, computed for millions of them at once.

Documents are split, chosen and repeated by the hash of their ids, and hashes of their tokens are
stored (`sampling/token_hashes.py`), so the hash must never change. The bytes of a text are read as
64-bit words w[0], w[1], … in little-endian order. The last word is filled up with zeros, and an
empty text is one word of zeros. The hash is

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
    """Scramble numbers, so that similar ones become very different ones.

    Hashes are computed with this. For example, 1 becomes 0x5692161D100B05E5. Different numbers
    always become different ones. It is the last step of the random number generator SplitMix64.

    Args:
        values: uint64 of any shape; they are not changed.

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
    """Return other hashes of the same texts, for a choice that is independent of earlier ones.

    For example, documents with small hashes are chosen for validation. If the same hashes decided
    which documents are read twice, these would be the same documents. So another hash is used:

        keys              hash of each document           decides about validation
        salted(keys, "repeat")                            decides which ones are read twice

    Args:
        keys: Hash of each text, shape (n_texts,).
        salt: Any text; each gives other hashes.

    Returns:
        Shape (n_texts,).
    """
    salt_hash = hash_bytes([salt.encode()])[0]
    return mix(keys ^ salt_hash)


def below(keys: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Choose a share of some texts at random, but always the same ones.

    These are the texts with the smallest hashes, which are from 0 to 2**64. For a share of 0.1,
    texts with hashes below 0.1 * 2**64 are chosen. So a larger share always includes the texts of a
    smaller one.

    Args:
        keys: Hash of each text, shape (n_texts,).
        share: Which share of the texts is chosen on average, from 0 to 1.

    Returns:
        Whether each text is chosen, shape (n_texts,).
    """
    # 2**64 itself, the limit for a share of 1, is no uint64.
    if share >= 1:
        return np.ones(len(keys), np.bool_)
    return keys < U64(int(share * 2**64))


def hash_bytes(values: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each byte string.

    All strings are hashed together, since numpy is slow for single ones. For [b"ab", b"", b"c"],
    the joined bytes are b"abc", and the borders between the strings 0, 2, 2 and 3.

    Args:
        values: Byte strings of any lengths.

    Returns:
        uint64, shape (len(values),). Hashes never change between versions.
    """
    lengths = [len(value) for value in values]
    borders = np.cumsum([0, *lengths])
    data = np.frombuffer(b"".join(values), np.uint8)
    return hash_ranges(data, borders)


def hash_texts(array: Any) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each string of an Arrow array.

    Arrow stores the UTF-8 bytes of all strings one after another, and the positions between them in
    another buffer. So no Python strings have to be created. For the strings "ab", null and "c":

        bytes        a b c
        positions    0, 2, 2, 3        null has no bytes, and the hash of an empty string

    Args:
        array: A `pyarrow.Array` of strings.

    Returns:
        uint64, shape (len(array),). Hashes never change between versions.
    """
    import pyarrow as pa

    array = array.cast(pa.large_string())  # with positions of 64 bits
    _, position_buffer, data = array.buffers()  # the first one says which strings are null
    if data is None:  # Arrow stores no bytes if all strings are empty
        data = b""

    # A slice of a longer array has the buffers of that array. `offset` is its first string.
    first = array.offset
    positions = np.frombuffer(position_buffer, np.int64)[first : first + len(array) + 1]
    return hash_ranges(np.frombuffer(data, np.uint8), positions)


def hash_ranges(data: NDArray[np.uint8], borders: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit hash of each of some texts, whose bytes are one array.

    For example, the bytes "abcde" with the borders 0, 3 and 5 are the texts "abc" and "de".

    Args:
        data: Bytes of all texts, one after another.
        borders: Where each text starts, and at last where the last one ends; shape (n_texts + 1,).

    Returns:
        Hash of each text, shape (n_texts,).
    """
    hashes = np.empty(max(len(borders) - 1, 0), np.uint64)
    # Hash about a million bytes at a time, whose words fit into the processor's cache.
    for texts in divide_into_blocks(borders, _BLOCK_BYTES):
        block_borders = borders[texts.start : texts.stop + 1]
        lengths = np.diff(block_borders)  # in bytes
        sums = sum_words(data, block_borders)
        hashes[texts] = finish_hashes(sums, lengths)
    return hashes


def finish_hashes(
    sums: NDArray[np.uint64], lengths: NDArray[np.integer[Any]]
) -> NDArray[np.uint64]:
    """Return the hashes of some texts, from the sums of their words and their lengths.

    The length matters, since a last word is filled up with zeros: without it, a text "a" and a text
    "a" with a zero byte would have the same hash.

    Args:
        sums: Sum of the hashes of each text's words, as `sum_words` computes them; shape
            (n_texts,).
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
    """Compute the hashes of some texts, except for their last step.

    A text is divided into words of 8 bytes, each a number of 64 bits. Their hashes are added up.
    For example, two texts of 3 and 10 bytes are one word, a, and two words, b and c:

        borders       0            3                       13
        words             a            b, c
        sums              mix(a + STEP)    mix(b + STEP) + mix(c + 2 * STEP)

    Args:
        data: Bytes of all texts, one after another.
        borders: Where each text starts, and at last where the last one ends; shape (n_texts + 1,).
        item_bytes: 1, 2, 4 or 8. The lengths of all texts are multiples of this number. Greater
            ones are faster.
        n_words_before: If an earlier call got the start of the first text: how many words that
            were. This call then gets the other bytes of the text.

    Returns:
        Sums modulo 2**64, shape (n_texts,).
    """
    if len(borders) < 2:
        return np.empty(0, np.uint64)
    data = data[borders[0] : borders[-1]]
    borders = borders - borders[0]

    # Divide each text into words.
    lengths = np.diff(borders)  # (n_texts,) in bytes: [3, 10]
    words_per_text = _words_in(lengths)  # (n_texts,) [1, 2]
    stops = np.cumsum(words_per_text)  # (n_texts,) index after each text's last word: [1, 3]
    first_words = stops - words_per_text  # (n_texts,) index of each text's first word: [0, 1]
    words = _read_words(data, borders[:-1], words_per_text, item_bytes)  # (n_words,) a, b, c

    # The last word of a text may also have bytes of the next text. Replace these by zeros.
    bytes_of_last_word = lengths - WORD_BYTES * (words_per_text - 1)  # (n_texts,) [3, 2]
    words[stops - 1] &= _MASKS[bytes_of_last_word]

    # Add STEP to the first word of a text, 2 * STEP to the second, and so on. If the first text has
    # begun in an earlier call, continue with the numbers after its words there.
    _add_steps(words, first_words, words_per_text)
    if n_words_before > 0:
        words[: words_per_text[0]] += np.array([n_words_before], np.uint64) * STEP

    _mix_in_place(words)
    sums: NDArray[np.uint64] = np.add.reduceat(words, first_words)
    return sums


def _words_in(lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return into how many words of 8 bytes each text is divided.

    For example, texts of 0, 8 and 9 bytes have 1, 1 and 2 words.

    Args:
        lengths: Bytes of each text, shape (n_texts,).
    """
    # The shift divides by 8, faster than numpy's `//`.
    n_words: NDArray[np.int64] = np.maximum((lengths + (WORD_BYTES - 1)) >> 3, 1)
    return n_words


def _add_steps(
    words: NDArray[np.uint64], first_words: NDArray[np.int64], words_per_text: NDArray[np.int64]
) -> None:
    """Add STEP to the first word of each text, 2 * STEP to the second one, and so on.

    STEP is a large constant. With it, texts with the same words in another order get different
    hashes. For example, two texts have 2 and 3 words:

        text                                  0    0    1    1    1
        add, as if all were one text          1    2    3    4    5     times STEP
        subtract the words of texts before    0    0    2    2    2     times STEP
        result                                1    2    1    2    3     times STEP

    Args:
        words: The words of all texts, which are changed in place, modulo 2**64; shape (n_words,).
        first_words: How many words are before each text: [0, 2]; shape (n_texts,).
        words_per_text: Number of words of each text: [2, 3]; shape (n_texts,).
    """
    words += _multiples_of_step(len(words))  # stored, so that nothing is multiplied
    steps_before = first_words.astype(np.uint64) * STEP  # (n_texts,)
    words -= np.repeat(steps_before, words_per_text)


def _read_words(
    data: NDArray[np.uint8],
    starts: NDArray[np.int64],
    words_per_text: NDArray[np.int64],
    item_bytes: int,
) -> NDArray[np.uint64]:
    """Read texts as words: numbers of 64 bits, each of which has 8 bytes of a text.

    The last word of a text may also have bytes after its end, which the caller clears. For example,
    texts of 3 and 9 bytes follow each other:

        text    its bytes    its words
        0       0 to 2       0 to 7
        1       3 to 11      3 to 10, and 11 to 18

    Args:
        data: Bytes of all texts. Zeros are read after its end.
        starts: First byte of each text: [0, 3]; shape (n_texts,).
        words_per_text: Number of words of each text, at least 1: [1, 2]; shape (n_texts,).
        item_bytes: 1, 2, 4 or 8: all starts are multiples of it. Reading is faster above 1.

    Returns:
        The words as little-endian numbers, shape (n_words,).
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
    """Divide texts into words of 8 bytes, if all texts start at multiples of 2, 4 or 8 bytes.

    numpy reads words fast only if they are at multiples of 8 bytes. So make copies of the data in
    which they are. For texts that start at multiples of 4 bytes, there are two copies. For data of
    24 bytes, each copy has 4 words:

                  number of the word     0         1          2           3
        copy 0    bytes of the data      0 to 7    8 to 15    16 to 23    none
        copy 1    bytes of the data      4 to 11   12 to 19   20 to 23    none

    For example, a text starts at byte 12 and has two words. 12 is 8 * 1 + 4, so it is in copy 1
    (which is shifted by 4), from word 1 on. Both copies are stored one after the other, 4 words
    each. So its words are at the places 4 * 1 + 1 = 5, and 6.

    Args:
        data: Bytes of all texts.
        starts: First byte of each text: [12]; shape (n_texts,).
        words_per_text: Number of words of each text, at least 1: [2]; shape (n_texts,).
        item_bytes: 2, 4 or 8; all starts are multiples of it.

    Returns:
        The words of all texts, shape (n_words,), as `_read_words` does.
    """
    copies = _shifted_copies(data, item_bytes)  # (n_copies, words_per_copy)
    words_per_copy = copies.shape[1]  # 4

    # For each text, compute its copy, starts % 8 // item_bytes, and its first word in this copy,
    # starts // 8. As 8 and item_bytes are powers of 2, faster operations on bits give the same.
    item_bits = item_bytes.bit_length() - 1  # 2, since 4 is 2**2
    copy_numbers = (starts & 7) >> item_bits  # (n_texts,) 12 % 8 // 4 = 1
    first_words = starts >> 3  # (n_texts,) 12 // 8 = 1

    # Where the words are if all copies are one array.
    first_places = copy_numbers * words_per_copy + first_words  # (n_texts,) 1 * 4 + 1 = 5
    places = _places_of_words(first_places, words_per_text, distance=1)  # (n_words,) [5, 6]
    return copies.reshape(-1).take(places)


def _read_words_of_bytes(
    data: NDArray[np.uint8], starts: NDArray[np.int64], words_per_text: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Divide texts into words of 8 bytes, each of which is read as one number of 64 bits.

    The texts may start at any byte. For example, a text starts at byte 3 and has 20 bytes:

        word 0    bytes  3 to 10
        word 1    bytes 11 to 18
        word 2    bytes 19 to 26, of which the last four follow the text

    Args:
        data: Bytes of all texts.
        starts: First byte of each text, such as [3]; shape (n_texts,).
        words_per_text: Number of words of each text, at least 1, such as [3]; shape (n_texts,).

    Returns:
        The words of all texts, shape (n_words,), as `_read_words` does.
    """
    word_at_byte = _overlapping_words(data)
    places = _places_of_words(starts, words_per_text, distance=WORD_BYTES)  # (n_words,) 3 11 19
    return word_at_byte.take(places)


def _overlapping_words(data: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """Return the word of 8 bytes that begins at each byte, as a number of 64 bits.

    Entry 0 has the bytes 0 to 7, entry 1 the bytes 1 to 8, and so on. The last words, which extend
    beyond the data, are filled up with zeros.

    Args:
        data: The bytes.

    Returns:
        Little-endian words, shape (len(data) + 1,).
    """
    padded = np.zeros(len(data) + WORD_BYTES, np.uint8)
    padded[: len(data)] = data
    # A view, which copies nothing: its entries are 8 bytes long, but 1 byte apart.
    return np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))


def _places_of_words(
    first_places: NDArray[np.int64], words_per_text: NDArray[np.int64], *, distance: int
) -> NDArray[np.int64]:
    """Return where in an array each word of some texts is.

    It is known where the first word of each text is, and the others follow it at equal distances.
    For two texts of 2 and 3 words, and a distance of 8:

        text                0              1
        first word at       100            40
        all words at        100, 108       40, 48, 56        the result
        8 * number          0, 8           16, 24, 32        words are numbered through all texts
        difference          100, 100       24, 24, 24        the same for all words of a text

    Args:
        first_places: The second row, shape (n_texts,).
        words_per_text: Number of words of each text: [2, 3]; shape (n_texts,).
        distance: Distance between neighbouring words of a text.

    Returns:
        Shape (n_words,).
    """
    # Compute the difference for the first word of each text, and add the multiples to it.
    first_numbers = np.cumsum(words_per_text) - words_per_text  # (n_texts,) [0, 2]
    differences = first_places - distance * first_numbers  # (n_texts,) [100, 24]
    places = np.repeat(differences, words_per_text)  # (n_words,)

    multiples = _numbers(len(places))
    if distance != 1:
        multiples = multiples * distance
    places += multiples
    return places


def _shifted_copies(data: NDArray[np.uint8], item_bytes: int) -> NDArray[np.uint64]:
    """Copy bytes several times, such that words at other positions can be read fast.

    A word has 8 bytes, and numpy reads it six times as fast if its position is a multiple of 8. If
    words start at multiples of 4, two copies are enough. Each is shifted by 4 bytes more:

        data      0 1 2 3 4 5 6 7 8 9 a b c d e f
        copy 0    0 1 2 3 4 5 6 7|8 9 a b c d e f|zeros     has the words that start at 0, 8
        copy 1    4 5 6 7 8 9 a b|c d e f 0 0 0 0|zeros     has the words that start at 4, 12

    The word of zeros at the end is read for an empty text that starts at the end of the data. It
    also makes room for the last bytes if their number is not a multiple of 8.

    (If words could start at any byte, eight copies would be needed. That takes longer than it
    saves.)

    Args:
        data: The bytes.
        item_bytes: 2, 4 or 8: words start at multiples of this.

    Returns:
        Little-endian words, shape (8 / item_bytes, len(data) // 8 + 1).
    """
    n_copies = WORD_BYTES // item_bytes
    copies = np.empty((n_copies, len(data) // WORD_BYTES + 1), "<u8")
    # View the words as bytes, without copying them. Each row is a copy, which is filled in here.
    for number, copy_bytes in enumerate(copies.view(np.uint8)):
        shifted = data[number * item_bytes :]  # bytes 4 to f for copy 1
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
