"""The shuffle index: the samples of a split in the order in which they are drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.document_index import shuffle_in_place

_MAX_UINT32_SAMPLES = np.iinfo(np.uint32).max - 1


def shuffle_dtype(samples: int) -> np.dtype:
    """Return the dtype of a shuffle index: uint32, or int64 from 2**32 - 2 samples on.

    Source: Megatron-LM `gpt_dataset.py`, `_build_shuffle_index`.
    """
    return np.dtype(np.int64 if samples >= _MAX_UINT32_SAMPLES else np.uint32)


def build_shuffle_index(
    samples: int, first: int, state: np.random.RandomState, *, repeats: int = 1
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """Return the samples of a split in the order in which they are drawn.

    Source: Megatron-LM `gpt_dataset.py`, `_build_shuffle_index`.

    Args:
        samples: Number of samples.
        first: The samples [0, first) are shuffled among themselves, and then the others; equal to
            `samples` to shuffle all of them together.
        state: Random numbers; drawn from exactly as the trainer does.
        repeats: How many times the same permutation is written (nanotron's `Nanoset` does so for
            train).

    Returns:
        `repeats` times a permutation of range(samples), shape (samples * repeats,), in
        `shuffle_dtype`.
    """
    index = np.arange(samples, dtype=shuffle_dtype(samples))
    shuffle_in_place(index[:first], state)
    if first != samples:
        shuffle_in_place(index[first:], state)
    return np.tile(index, repeats) if repeats != 1 else index
