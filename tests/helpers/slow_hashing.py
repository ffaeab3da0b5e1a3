"""The hash of `nanoset_core/statistics/hashing.py`, computed as its docstring defines it."""

from __future__ import annotations

import math

STEP = 0x9E3779B97F4A7C15
"""2^64 divided by the golden ratio: the step of SplitMix64."""
FIRST_FACTOR = 0xBF58476D1CE4E5B9
SECOND_FACTOR = 0x94D049BB133111EB
"""The two factors with which SplitMix64 mixes the bits of a state."""


def slow_mix(value: int) -> int:
    """Return the output of SplitMix64 for one state, an integer of 64 bits."""
    value ^= value >> 30
    value = value * FIRST_FACTOR % 2**64
    value ^= value >> 27
    value = value * SECOND_FACTOR % 2**64
    return value ^ (value >> 31)


def slow_hash(data: bytes) -> int:
    """Return the hash of a byte string, computed from words of eight bytes."""
    total = len(data)
    n_words = max(1, math.ceil(len(data) / 8))  # the empty string has one word, too: zero
    for index in range(n_words):
        word = int.from_bytes(data[8 * index : 8 * index + 8], "little")
        total += slow_mix((word + (index + 1) * STEP) % 2**64)
    return slow_mix(total % 2**64)
