"""The tokens of a packed dataset as one stream, cut into samples of one length."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from nanoset_core.errors import ConfigError, SampleIndexError

if TYPE_CHECKING:
    from nanoset_core.packed.datasets import PackedDataset


class ContinuousSamples:
    """Samples of `block_size` tokens from one stream of N; the limits of documents don't count.

    Sample i begins at token i (block_size - 1) where the last target of a sample is the first input of the next
    (`reuse_last_target`), which gives (N - block_size) // (block_size - 1) + 1 of them; else at token i block_size,
    N // block_size of them. What is left at the end is dropped. Inputs are sample[:-1], targets sample[1:].

    Equal to Modalities' `PackedMemMapDatasetContinuous`; its `sequence_length` in a configuration is block_size - 1
    with `reuse_last_target`, and block_size without. Pickles as its file and arguments.
    ConfigError for a block below 2 tokens, or above N.
    """

    __slots__ = ("_dataset", "_windows", "block_size", "dtype", "reuse_last_target")

    def __init__(self, dataset: PackedDataset, block_size: int, *, reuse_last_target: bool = True) -> None:
        tokens = dataset.tokens
        if block_size < 2 or len(tokens) < block_size:
            raise ConfigError(
                "no sample of this size can be cut from the dataset",
                where=dataset.path,
                found=f"block_size {block_size}",
                expected=f"2 to {len(tokens)}, the tokens of the dataset",
                remedy="choose another block size, or pack more text",
            )
        self._dataset = dataset
        self.block_size = block_size
        self.reuse_last_target = reuse_last_target
        self.dtype = dataset.dtype
        """Type of the tokens that are given out."""
        step = block_size - 1 if reuse_last_target else block_size
        # [samples, block_size], overlapping views of the file
        self._windows = np.lib.stride_tricks.sliding_window_view(tokens, block_size)[::step]

    def __len__(self) -> int:
        return len(self._windows)

    def __getitem__(self, index: int) -> NDArray:
        """Tokens of one sample, [block_size]; a negative index counts from the end."""
        i, n = operator.index(index), len(self._windows)
        if not -n <= i < n:
            raise SampleIndexError("no such sample", where=self._dataset.path, found=i, expected=f"0 to {n - 1}")
        return self._windows[i].astype(self.dtype)

    def batch(self, indices: ArrayLike) -> NDArray:
        """Tokens of several samples, [len(indices), block_size]; SampleIndexError for a number outside [0, n)."""
        wanted = np.asarray(indices, np.int64)
        if wanted.size and (wanted.min() < 0 or wanted.max() >= len(self)):
            raise SampleIndexError(
                "no such sample",
                where=self._dataset.path,
                found=f"{wanted.min()} to {wanted.max()}",
                expected=f"0 to {len(self) - 1}",
            )
        return self._windows[wanted].astype(self.dtype)

    def __repr__(self) -> str:
        return f"ContinuousSamples({str(self._dataset.path)!r}, {len(self)} samples of {self.block_size} tokens)"

    def __reduce__(self) -> tuple[object, ...]:
        return _again, (self._dataset, self.block_size, self.reuse_last_target)


def _again(dataset: PackedDataset, block_size: int, reuse_last_target: bool) -> ContinuousSamples:
    return ContinuousSamples(dataset, block_size, reuse_last_target=reuse_last_target)
