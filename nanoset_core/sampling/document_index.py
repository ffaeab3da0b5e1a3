"""Build the document index: every sequence of a split, once per epoch, shuffled."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_WIDE_LIMIT = 1 << 25  # entries; up to 256 MiB of scratch


def build_document_index(
    rows: tuple[int, int],
    num_epochs: int,
    state: np.random.RandomState,
    *,
    separate_last_epoch: bool,
    shuffle: bool = True,
) -> NDArray[np.int32]:
    """Put the sequences of a split into the order in which they are read.

    Source: Megatron-LM `gpt_dataset.py`, `_build_document_index`; without `shuffle`, NeMo's `_build_doc_idx`.

    Args:
        rows: sequences of the split, (begin, end excl).
        num_epochs: how often each is read.
        state: of the random numbers; advances as the peer's does.
        separate_last_epoch: the last epoch is shuffled apart from the others, which are shuffled together.
        shuffle: False keeps the order of the dataset.

    Returns:
        Sequence numbers, int32, shape (num_epochs * (end - begin),).
    """
    count = rows[1] - rows[0]
    index = np.tile(np.arange(rows[0], rows[1], dtype=np.int32), num_epochs)
    if shuffle:
        joint = (num_epochs - 1) * count if separate_last_epoch and num_epochs > 1 else len(index)
        shuffle_in_place(index[:joint], state)
        if joint < len(index):
            shuffle_in_place(index[joint:], state)
    return index


def shuffle_in_place(values: NDArray[np.integer], state: np.random.RandomState) -> None:
    """Run `state.shuffle(values)`, faster for 4-byte values (numpy's fast path is for 8)."""
    if values.itemsize == 8 or len(values) > _WIDE_LIMIT:
        state.shuffle(values)
        return
    wide = values.astype(np.int64)
    state.shuffle(wide)
    values[:] = wide
