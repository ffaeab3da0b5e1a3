"""The shuffle index: the order in which the samples of a split are drawn."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from nanoset_core.mapping.document_index import shuffle_in_place

_UINT32_SAMPLES = np.iinfo(np.uint32).max - 1


def shuffle_dtype(samples: int) -> np.dtype:
    """uint32, or int64 from 2**32 - 2 samples on (Megatron-LM `_build_shuffle_index`)."""
    return np.dtype(np.int64 if samples >= _UINT32_SAMPLES else np.uint32)


def build_shuffle_index(
    samples: int, first: int, state: np.random.RandomState, *, repeats: int = 1
) -> NDArray[np.uint32] | NDArray[np.int64]:
    """Permutation of range(samples), [samples * repeats].

    first: samples [0, first) are shuffled among themselves, then the rest among themselves; first == samples shuffles
    all together. repeats: how often the permutation is written one after the other (nanotron's `Nanoset` for train).
    `state` advances as the peer's does. Source: Megatron-LM `gpt_dataset.py`, `_build_shuffle_index`.
    """
    index = np.arange(samples, dtype=shuffle_dtype(samples))
    shuffle_in_place(index[:first], state)
    if first != samples:
        shuffle_in_place(index[first:], state)
    return np.tile(index, repeats) if repeats != 1 else index
