"""A hash of each document that stays the same whatever is appended: by it documents are split, chosen and repeated.

Of a text its bytes are hashed, as 64-bit words in little-endian order, the last one filled up with zeros: the sum,
modulo 2**64, of mix(word + (its number + 1) * STEP), plus the length in bytes, mixed once more. `mix` is the output
function of SplitMix64 (Steele, Lea and Flood 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

U64 = np.uint64
STEP = U64(0x9E3779B97F4A7C15)
_ONE, _TWO = U64(0xBF58476D1CE4E5B9), U64(0x94D049BB133111EB)


def mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return SplitMix64's output function of each of some uint64."""
    values = (values ^ (values >> U64(30))) * _ONE
    values = (values ^ (values >> U64(27))) * _TWO
    return values ^ (values >> U64(31))


def salted(keys: NDArray[np.uint64], salt: str) -> NDArray[np.uint64]:
    """Return other hashes of the same documents, one set for each salt, uint64."""
    return mix(keys ^ hash_bytes([salt.encode()])[0])


def below(keys: NDArray[np.uint64], share: float) -> NDArray[np.bool_]:
    """Return which hashes lie in the first `share` of their range, 0 to 1, bool."""
    if share >= 1:
        return np.ones(len(keys), np.bool_)
    return keys < U64(int(share * 2**64))


def hash_bytes(values: Sequence[bytes]) -> NDArray[np.uint64]:
    """Return the hashes of some byte strings, uint64."""
    ends = np.cumsum([0, *map(len, values)])
    return hash_ranges(np.frombuffer(b"".join(values), np.uint8), ends)


def hash_texts(array: Any) -> NDArray[np.uint64]:
    """Return the hashes of an Arrow array of strings, uint64; of a null that of an empty text."""
    import pyarrow as pa

    array = array.cast(pa.large_string())
    _, offsets, data = array.buffers()
    ends = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    return hash_ranges(np.frombuffer(data if data is not None else b"", np.uint8), ends)


def hash_ranges(data: NDArray[np.uint8], ends: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the hashes of the bytes between each two of some ascending ends, uint64."""
    if len(ends) < 2:
        return np.empty(0, np.uint64)
    data, ends = data[ends[0] : ends[-1]], ends - ends[0]
    lengths = np.diff(ends)
    counts = np.maximum(-(-lengths // 8), 1)
    firsts = np.cumsum(counts) - counts
    numbers = np.arange(counts.sum(), dtype=np.int64) - np.repeat(firsts, counts)
    padded = np.zeros(len(data) + 8, np.uint8)
    padded[: len(data)] = data
    unaligned = np.ndarray((len(data) + 1,), "<u8", padded, strides=(1,))
    words = unaligned[np.repeat(ends[:-1], counts) + 8 * numbers]
    left = np.clip(np.repeat(lengths, counts) - 8 * numbers, 0, 8).astype(np.uint64)
    # A shift by 64 bits is not defined: of an empty text the word is cleared otherwise.
    words = np.where(left == 0, U64(0), words & (U64(2**64 - 1) >> (U64(8) * (U64(8) - np.maximum(left, U64(1))))))
    summed = np.add.reduceat(mix(words + (numbers.astype(np.uint64) + U64(1)) * STEP), firsts)
    return mix(summed + lengths.astype(np.uint64))
