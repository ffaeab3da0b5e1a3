"""In which order a rank takes samples in Modalities, resumed at any point."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nanoset_core.errors import ConfigError
from nanoset_core.loading.samplers import randperm


@dataclass(frozen=True, slots=True)
class ResumableSampler:
    """Single sample numbers, dealt to the ranks in turn, those consumed before left out of the epoch's order.

    Equal to Modalities' `ResumableDistributedSampler` (`consumed_samples` is its `skip_num_global_samples`); the order
    of a shuffle is `torch.randperm`'s. ConfigError for numbers that cannot be.
    """

    total_samples: int
    """Length of the dataset."""
    consumed_samples: int
    """Samples of this epoch that all ranks together have consumed before."""
    data_parallel_rank: int
    """This rank, from 0."""
    data_parallel_size: int
    """Number of ranks."""
    epoch: int = 0
    """Added to the seed."""
    shuffle: bool = False
    """Whether to shuffle."""
    seed: int = 0
    """Seed of the shuffle."""
    drop_last: bool = False
    """Whether to drop samples that not every rank gets; otherwise the epoch's first ones are dealt again."""

    def __post_init__(self) -> None:
        for name, value, low, high in (
            ("total_samples", self.total_samples, 1, None),
            ("data_parallel_size", self.data_parallel_size, 1, None),
            ("data_parallel_rank", self.data_parallel_rank, 0, self.data_parallel_size - 1),
            ("consumed_samples", self.consumed_samples, 0, self.total_samples),
        ):
            if value < low or (high is not None and value > high):
                expected = f"{low} or more" if high is None else f"{low} to {high}"
                raise ConfigError("this number cannot be", where=name, found=value, expected=expected)

    def __len__(self) -> int:
        """Samples of this rank that are still to come."""
        left, size = self.total_samples - self.consumed_samples, self.data_parallel_size
        return left // size if self.drop_last else -(-left // size)

    def __iter__(self) -> Iterator[int]:
        order = np.arange(self.total_samples)
        if self.shuffle:
            order = randperm(self.total_samples, self.seed + self.epoch)
        dealt = len(self) * self.data_parallel_size
        padding = max(dealt - (self.total_samples - self.consumed_samples), 0)
        left = np.concatenate([order[self.consumed_samples :], np.resize(order, padding)])[:dealt]
        yield from left[self.data_parallel_rank :: self.data_parallel_size].tolist()
