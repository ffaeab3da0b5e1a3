"""The document index: the sequences of a split in the order in which they are read, once per epoch."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MAX_WIDENED = 1 << 25
"""Entries up to which an array is shuffled as a copy of 8-byte numbers, which takes up to 256 MiB."""


def build_document_index(
    rows: tuple[int, int],
    num_epochs: int,
    state: np.random.RandomState,
    *,
    separate_last_epoch: bool,
    shuffle: bool = True,
) -> NDArray[np.int32]:
    """Return the sequences of a split in the order in which they are read.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_index`; without `shuffle`, NeMo's
        `_build_doc_idx`.

    Args:
        rows: Half-open range of the split's sequences in the dataset.
        num_epochs: How many times each sequence is read.
        state: Random numbers; drawn from exactly as the trainer does.
        separate_last_epoch: Shuffle the last epoch on its own, after all others together.
        shuffle: False keeps the order of the dataset.

    Returns:
        Sequence numbers, int32, shape (num_epochs * (stop - start),).
    """
    start, stop = rows
    index = np.tile(np.arange(start, stop, dtype=np.int32), num_epochs)
    if not shuffle:
        return index

    if separate_last_epoch and num_epochs > 1:
        last_epoch = (num_epochs - 1) * (stop - start)
        shuffle_in_place(index[:last_epoch], state)
        shuffle_in_place(index[last_epoch:], state)
    else:
        shuffle_in_place(index, state)
    return index


def shuffle_in_place(values: NDArray[np.integer], state: np.random.RandomState) -> None:
    """Do what `state.shuffle(values)` does, in less time for 4-byte numbers: numpy has a fast path
    for 8-byte ones.
    """
    if values.itemsize == 8 or len(values) > _MAX_WIDENED:
        state.shuffle(values)
        return
    widened = values.astype(np.int64)
    state.shuffle(widened)
    values[:] = widened
