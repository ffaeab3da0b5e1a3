"""Build the shuffle index: the order in which the samples of a split are drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.document_index import shuffle_in_place

_UINT32_SAMPLES = np.iinfo(np.uint32).max - 1


def shuffle_dtype(samples: int) -> np.dtype:
    """Return uint32, or int64 from 2**32 - 2 samples on (Megatron-LM `_build_shuffle_index`)."""
    return np.dtype(np.int64 if samples >= _UINT32_SAMPLES else np.uint32)


def build_shuffle_index(
    samples: int, first: int, state: np.random.RandomState, *, repeats: int = 1
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """Put the samples of a split into the order in which they are drawn.

    Source: Megatron-LM `gpt_dataset.py`, `_build_shuffle_index`.

    Args:
        samples: how many there are.
        first: samples [0, first) are shuffled among themselves, then the others; `samples` shuffles all together.
        state: of the random numbers; advances as the peer's does.
        repeats: how often the permutation is written, one after the other (nanotron's `Nanoset` for train).

    Returns:
        A permutation of range(samples), shape (samples * repeats,), in `shuffle_dtype`.
    """
    index = np.arange(samples, dtype=shuffle_dtype(samples))
    shuffle_in_place(index[:first], state)
    if first != samples:
        shuffle_in_place(index[first:], state)
    return np.tile(index, repeats) if repeats != 1 else index
