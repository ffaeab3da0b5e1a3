"""The shuffle index: the samples of a split in the order in which they are drawn.

For example, four samples may be drawn in the order 2, 0, 3, 1.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.document_index import shuffle_in_place

_FIRST_INT64_SAMPLES = np.iinfo(np.uint32).max - 1
"""Number of samples from which on the trainer's shuffle index is int64: 2**32 - 2."""

ShuffleIndex = NDArray[np.uint32] | NDArray[np.int64]
"""Numbers of samples in the order in which they are drawn, shape (n_samples,)."""


def shuffle_dtype(samples: int) -> np.dtype:
    """Return the type in which the trainer stores numbers of samples.

    It takes 4 bytes for each number, or 8 if there are 2**32 - 2 samples or more.

    Source: Megatron-LM `gpt_dataset.py`, `_build_shuffle_index`.

    Args:
        samples: Number of samples.
    """
    if samples >= _FIRST_INT64_SAMPLES:
        return np.dtype(np.int64)
    return np.dtype(np.uint32)


def build_shuffle_index(
    samples: int, first: int, state: np.random.RandomState, *, repeats: int = 1
) -> ShuffleIndex:
    """Decide in which order training reads the samples of a dataset.

    For example, 6 samples in all. The last two may be those of the last epoch, which is shuffled on
    its own:

        `first` is 6       4, 0, 3, 5, 1, 2       all shuffled together
        `first` is 4       2, 0, 3, 1, 5, 4       the samples 0 to 3, and then 4 and 5

    Source: Megatron-LM `gpt_dataset.py`, `_build_shuffle_index`.

    Args:
        samples: Number of samples.
        first: How many samples are in the first group.
        state: Random number generator. It is used exactly as the trainer uses its own.
        repeats: How many times this order is repeated. nanotron does so if more samples are needed.

    Returns:
        Numbers of samples, shape (samples * repeats,), in `shuffle_dtype`.
    """
    index = np.arange(samples, dtype=shuffle_dtype(samples))  # (samples,)
    # The slices are views, so that this shuffles the index itself.
    shuffle_in_place(index[:first], state)
    if first != samples:
        shuffle_in_place(index[first:], state)
    if repeats == 1:
        return index  # np.tile would copy it
    return np.tile(index, repeats)
