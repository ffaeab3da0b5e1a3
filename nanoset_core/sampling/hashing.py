"""A hash of each document that stays the same whatever is appended to a corpus.

Documents are split, chosen and repeated by this hash, so it must never change. The bytes of a text
are read as 64-bit words w[0], w[1], … in little-endian order. The last word is filled up with
zeros, and an empty text is one word of zeros. The hash is

    mix(mix(w[0] + STEP) + mix(w[1] + 2 * STEP) + … + length in bytes)

with all sums modulo 2**64. `mix` is the output function of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = np.uint64
STEP = U64(0x9E3779B97F4A7C15)
_FIRST_FACTOR = U64(0xBF58476D1CE4E5B9)
_SECOND_FACTOR = U64(0x94D049BB133111EB)
_ALL_BITS = U64(2**64 - 1)
_WORD_BYTES = 8


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return the output function of SplitMix64 for each value."""
    values = (values ^ (values >> U64(30))) * _FIRST_FACTOR
    values = (values ^ (values >> U64(27))) * _SECOND_FACTOR
    return values ^ (values >> U64(31))


def salted(keys: NDArray[np.uint64], salt: str) -> NDArray[np.uint64]:
    """Return other hashes of the same documents: an independent set for each salt."""
    salt_hash = hash_bytes([salt.encode()])[0]
    return mix(keys ^ salt_hash)


def below(keys: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Return which hashes are in the first `share`, from 0 to 1, of the range of all hashes."""
    if share >= 1:
        return np.ones(len(keys), np.bool_)
    return keys < U64(int(share * 2**64))


def hash_bytes(values: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the hash of each byte string, shape (len(values),)."""
    lengths = [len(value) for value in values]
    borders = np.cumsum([0, *lengths])
    data = np.frombuffer(b"".join(values), np.uint8)
    return hash_ranges(data, borders)


def hash_texts(array: Any) -> NDArray[np.uint64]:
    """Return the hash of each string of an Arrow array; null has the hash of an empty text."""
    import pyarrow as pa

    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    # A slice of an array shares the buffers of the whole array.
    first = array.offset
    borders = np.frombuffer(offsets, np.int64)[first : first + len(array) + 1]
    if data is None:  # all strings are empty
        data = b""
    return hash_ranges(np.frombuffer(data, np.uint8), borders)


def hash_ranges(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hash of the bytes between each two neighbouring borders.

    Args:
        data: Bytes of all texts, concatenated.
        ends: Borders in `data`, ascending, shape (n_texts + 1,); text k has the bytes from border k
            to border k + 1.

    Returns:
        Shape (n_texts,).
    """
    if len(ends) < 2:
        return np.empty(0, np.uint64)
    data = data[ends[0] : ends[-1]]
    borders = ends - ends[0]

    # Words of each text, at least one.
    lengths = np.diff(borders)  # (n_texts,) in bytes
    words_per_text = np.maximum(-(-lengths // _WORD_BYTES), 1)  # (n_texts,)
    first_words = np.cumsum(words_per_text) - words_per_text  # (n_texts,)
    # (n_words,) number of each word in its text
    numbers = np.arange(words_per_text.sum(), dtype=np.int64) - np.repeat(
        first_words, words_per_text
    )

    # Read the words, and clear those bytes of a text's last word that are not of the text.
    word_starts = np.repeat(borders[:-1], words_per_text) + _WORD_BYTES * numbers
    words = _words_at(data, word_starts)  # (n_words,)
    del word_starts  # freed, since numpy is slower with memory that it has not used before
    bytes_left = np.repeat(lengths, words_per_text) - _WORD_BYTES * numbers
    words &= _masks(bytes_left)
    del bytes_left

    # Mix every word with its number, add the words of each text up, and mix the sums with the
    # lengths.
    words += (numbers.astype(np.uint64) + U64(1)) * STEP
    sums = np.add.reduceat(mix(words), first_words)  # (n_texts,)
    return mix(sums + lengths.astype(np.uint64))


def _words_at(data: NDArray[np.uint8], starts: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the 8 bytes from each start on as a number.

    Args:
        data: Bytes; zeros are taken to follow.
        starts: First byte of each number, shape (n_words,).

    Returns:
        Little-endian numbers, shape (n_words,).
    """
    padded = np.zeros(len(data) + _WORD_BYTES, np.uint8)
    padded[: len(data)] = data
    # A view with a stride of one byte, since words start anywhere.
    words_at_bytes = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    return words_at_bytes[starts]


def _masks(bytes_left: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a mask of the first bytes of each word: as many as are left of the text, at most 8."""
    n_bytes = np.clip(bytes_left, 0, _WORD_BYTES).astype(np.uint64)
    # A shift by 64 bits is not defined: the word of an empty text gets its mask otherwise.
    masks = _ALL_BITS >> (U64(8) * (U64(_WORD_BYTES) - np.maximum(n_bytes, U64(1))))
    masks[n_bytes == 0] = 0
    return masks
