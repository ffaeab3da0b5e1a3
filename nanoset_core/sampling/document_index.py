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
    """Decide in which order training reads the documents of a split (train, valid or test).

    For example, two epochs of the documents 5, 6 and 7:

        shuffled together                 7, 5, 5, 6, 7, 6
        the last epoch on its own         7, 5, 6, 5, 7, 6
        not shuffled                      5, 6, 7, 5, 6, 7

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_index`; without `shuffle`, NeMo's
    `_build_doc_idx`.

    Args:
        rows: The first document of the split, and the one after its last: (5, 8).
        num_epochs: How many times each document is read.
        state: Random number generator. It is used exactly as the trainer uses its own.
        separate_last_epoch: Whether the last epoch is shuffled on its own.
        shuffle: False keeps the order of the dataset in each epoch.

    Returns:
        Numbers of documents, int32, shape (num_epochs * n_sequences,). (If a document is stored as
        several sequences, these are shuffled, and not documents.)
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

    The order must be that of a trainer which calls `state.shuffle`. numpy shuffles integers of 8
    bytes much faster than smaller ones, and with the same random numbers. So smaller ones are
    converted, and the shuffled ones are copied back.

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
