"""Build the document index: the sequences of a split in the order in which they are read.

For example, two epochs of the sequences 5, 6 and 7, shuffled together, may be 7, 5, 5, 6, 7, 6.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_MAX_WIDENED = 1 << 25
"""Largest length of an array that is shuffled as a copy of 8-byte numbers, which takes 256 MiB."""


def build_document_index(
    rows: tuple[int, int],
    num_epochs: int,
    state: np.random.RandomState,
    *,
    separate_last_epoch: bool,
    shuffle: bool = True,
) -> NDArray[np.int32]:
    """Return the sequences of a split in the order in which they are read.

    For example, 2 epochs of the sequences 5, 6 and 7 may be read as 7, 5, 5, 6, 7, 6; or, if the
    last epoch is separate, as 7, 5, 6, 5, 7, 6.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_index`; without `shuffle`, NeMo's
    `_build_doc_idx`.

    Args:
        rows: Half-open range of the split's sequences in the dataset.
        num_epochs: How many times each sequence is read.
        state: Random number generator. It is used exactly as the trainer uses its own.
        separate_last_epoch: Shuffle the last epoch on its own, after the others together.
        shuffle: False keeps the order of the dataset in each epoch.

    Returns:
        Sequence numbers, int32, shape (num_epochs * n_sequences,).
    """
    start, stop = rows
    index = np.tile(np.arange(start, stop, dtype=np.int32), num_epochs)
    if not shuffle:
        return index

    # Slices of the index are views, so this shuffles the index itself.
    if separate_last_epoch and num_epochs > 1:
        last_epoch_start = (num_epochs - 1) * (stop - start)
        shuffle_in_place(index[:last_epoch_start], state)
        shuffle_in_place(index[last_epoch_start:], state)
    else:
        shuffle_in_place(index, state)
    return index


def shuffle_in_place(values: NDArray[np.integer], state: np.random.RandomState) -> None:
    """Shuffle an array exactly as `state.shuffle(values)` does, but faster.

    numpy has a fast path for numbers of 8 bytes, so smaller ones are copied to a wider type, which
    is shuffled in their place. The same random numbers are drawn.

    Args:
        values: The array, of one dimension.
        state: Random number generator.
    """
    if values.itemsize == 8 or len(values) > _MAX_WIDENED:
        state.shuffle(values)
        return
    widened = values.astype(np.int64)
    state.shuffle(widened)
    values[:] = widened
