"""Choose the samples that a data-parallel rank reads next, as the trainers' own samplers do.

Each is a batch sampler for `torch.utils.data.DataLoader`, or any loop; none needs torch. The whole
state of the sequential one is the number of samples that all ranks have consumed: it resumes
anywhere, also under another number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError

_ANY = math.inf
_RANDPERM_LIMIT = (2**32 - 1) // 20  # from here on torch draws 64 bits


@dataclass(frozen=True, slots=True)
class _MicroBatches:
    """Base of samplers that yield lists."""

    total_samples: int
    consumed_samples: int
    """Samples that all ranks together have consumed before; where samples come again, over all
    epochs.
    """
    micro_batch_size: int
    data_parallel_rank: int
    data_parallel_size: int

    def __post_init__(self) -> None:
        _check(
            self, total_samples=(1, _ANY), micro_batch_size=(1, _ANY), data_parallel_size=(1, _ANY)
        )
        _check(self, data_parallel_rank=(0, self.data_parallel_size - 1))

    @property
    def _step(self) -> int:
        return self.micro_batch_size * self.data_parallel_size


@dataclass(frozen=True, slots=True)
class _DealtInTurn:
    """Base of samplers that yield single numbers."""

    total_samples: int
    consumed_samples: int
    """Samples that all ranks together have consumed before, of this epoch."""
    data_parallel_rank: int
    data_parallel_size: int

    def __post_init__(self) -> None:
        _check(
            self, total_samples=(1, _ANY), consumed_samples=(0, _ANY), data_parallel_size=(1, _ANY)
        )
        _check(self, data_parallel_rank=(0, self.data_parallel_size - 1))

    def _each(self, samples: int, *, drop_last: bool) -> int:
        return (
            samples // self.data_parallel_size
            if drop_last
            else -(-samples // self.data_parallel_size)
        )

    def _mine(
        self, left: NDArray[np.int64], order: NDArray[np.int64], *, drop_last: bool
    ) -> NDArray[np.int64]:
        dealt = self._each(len(left), drop_last=drop_last) * self.data_parallel_size
        filled = np.concatenate([left[:dealt], np.resize(order, max(dealt - len(left), 0))])
        return filled[self.data_parallel_rank :: self.data_parallel_size]


@dataclass(frozen=True, slots=True)
class PretrainingSampler(_MicroBatches):
    """Samples in order: each global micro-batch is cut into one micro-batch per rank.

    Yields lists of sample numbers; its length is the number of lists (the trainers' own give the
    number of samples, or count the tail differently). Sources: Megatron-LM `data_samplers.py`,
    `MegatronPretrainingSampler`; with `pad_to_global_batch`, NeMo's.

    Raises:
        ConfigError: a number is out of range, or the global batch is not made of whole
            micro-batches.
    """

    drop_last: bool = True
    """Whether to leave out what does not fill a micro-batch of every rank; else later ranks may get
    fewer, or none.
    """
    _: KW_ONLY
    pad_to_global_batch: int | None = None
    """Fill up with -1, -2, … to a multiple of this (NeMo; such samples are masked); only without
    drop_last.
    """
    pad_with_none: bool = False
    """Fill up with None instead, which is what Megatron-LM's datasets mask (NeMo
    `MegatronCorePretrainingSampler`).
    """

    def __post_init__(self) -> None:
        _MicroBatches.__post_init__(self)
        if self.consumed_samples == self.total_samples:
            what, found = (
                "no samples are left, and the trainers' own samplers refuse that too",
                self.consumed_samples,
            )
            remedy = "at the end of a run make no sampler, or give consumed_samples % total_samples to go on"
            raise ConfigError(what, where="consumed_samples", found=found, remedy=remedy)
        _check(self, consumed_samples=(0, self.total_samples - 1))
        step = self._step
        if self.pad_to_global_batch is not None and (
            self.pad_to_global_batch < 1 or self.pad_to_global_batch % step
        ):
            what, found = (
                "the global batch is not made of whole micro-batches",
                self.pad_to_global_batch,
            )
            raise ConfigError(
                what, where="pad_to_global_batch", found=found, expected=f"a multiple of {step}"
            )

    def __len__(self) -> int:
        """Return the number of lists still to come."""
        left = self.total_samples - self.consumed_samples + self._padding()
        return left // self._step if self.drop_last else -(-left // self._step)

    def __iter__(self) -> Iterator[list[int | None]]:
        step, mine = self._step, self.data_parallel_rank * self.micro_batch_size
        full = self.consumed_samples + (self.total_samples - self.consumed_samples) // step * step
        for start in range(self.consumed_samples + mine, full, step):
            yield list(range(start, start + self.micro_batch_size))
        if self.drop_last:
            return
        padding = self._padding()
        fill = [None] * padding if self.pad_with_none else range(-1, -padding - 1, -1)
        tail = [*range(full, self.total_samples), *fill]
        for start in range(0, len(tail), step):
            yield tail[start + mine : start + min(mine + self.micro_batch_size, step)]

    def _padding(self) -> int:
        if self.pad_to_global_batch is None or self.drop_last:
            return 0
        return -(self.total_samples - self.consumed_samples) % self.pad_to_global_batch


@dataclass(frozen=True, slots=True)
class CyclicSampler(_MicroBatches):
    """Samples in a new random order every epoch; iterating ends with the epoch of consumed_samples.

    It does not change while it is iterated: make a new one for the next epoch (the trainers' count
    in place).

    Sources: Megatron-LM `data_samplers.py`, `MegatronPretrainingRandomSampler` (type "cyclic");
        NeMo's is the
    sharded one. The orders are `torch.randperm`'s.

    Raises:
        ConfigError: a number is out of range, or the consumed samples are not whole micro-batches
            of all ranks.
    """

    data_sharding: bool = True
    """Whether every rank shuffles a part of its own, instead of all sharing one order."""
    seed: int = 0
    """Added to the epoch's number (NeMo); Megatron-LM's is 0."""

    def __post_init__(self) -> None:
        _MicroBatches.__post_init__(self)
        step = self._step
        _check(self, total_samples=(step, _ANY))  # one micro-batch of every rank
        if self.consumed_samples < 0 or self.consumed_samples % self._active() % step:
            what, found = (
                "consumed samples are not whole micro-batches of all ranks",
                self.consumed_samples,
            )
            expected = f"a multiple of {step} in its epoch of {self._active()}"
            raise ConfigError(what, where="consumed_samples", found=found, expected=expected)

    def __len__(self) -> int:
        """Return the number of lists still to come in this epoch; without sharding, ranks can
        differ by one.
        """
        batches = self.total_samples // self.micro_batch_size * self.micro_batch_size
        left = (
            self._active() if self.data_sharding else batches
        ) - self.consumed_samples % self._active()
        mine = -(-(left - self.data_parallel_rank) // self.data_parallel_size)
        return mine // self.micro_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        step = self._step
        epoch, consumed = divmod(self.consumed_samples, self._active())
        bucket = (
            self.total_samples
            // (step if self.data_sharding else self.micro_batch_size)
            * self.micro_batch_size
        )
        order = randperm(bucket, self.seed + epoch)
        if self.data_sharding:
            order = order[consumed // self.data_parallel_size :] + self.data_parallel_rank * bucket
        else:
            order = order[consumed:][self.data_parallel_rank :: self.data_parallel_size]
        for start in range(0, len(order) - self.micro_batch_size + 1, self.micro_batch_size):
            yield order[start : start + self.micro_batch_size].tolist()

    def _active(self) -> int:
        return self.total_samples - self.total_samples % self._step


@dataclass(frozen=True, slots=True)
class InterleavedSampler(_DealtInTurn):
    """Single sample numbers, dealt to the ranks in turn, after a shuffle.

    What nanotron's dataloader uses: torch's `DistributedSampler`, with the first consumed // size
    samples left out (`SkipBatchSampler`). Under another number of ranks nothing is lost or repeated
    where consumed_samples is a multiple of that number; otherwise the samples of the broken round
    are dealt again, as nanotron does.

    Raises:
        ConfigError: a number is out of range.
    """

    seed: int = 42
    shuffle: bool = True
    drop_last: bool = True
    """Whether to drop samples that not every rank gets; otherwise the first ones are dealt again."""

    def __len__(self) -> int:
        """Return the number of this rank's samples still to come."""
        each = self._each(self.total_samples, drop_last=self.drop_last)
        return max(each - self.consumed_samples // self.data_parallel_size, 0)

    def __iter__(self) -> Iterator[int]:
        order = _order(self.total_samples, self.seed if self.shuffle else None)
        mine = self._mine(order, order, drop_last=self.drop_last)
        yield from mine[self.consumed_samples // self.data_parallel_size :].tolist()


@dataclass(frozen=True, slots=True)
class ResumableSampler(_DealtInTurn):
    """Single sample numbers, dealt to the ranks in turn, those consumed before left out of the
    epoch's order.

    Equal to Modalities' `ResumableDistributedSampler` (`consumed_samples` is its
    `skip_num_global_samples`); the order of a shuffle is `torch.randperm`'s.

    Raises:
        ConfigError: a number is out of range.
    """

    epoch: int = 0
    """Added to the seed."""
    shuffle: bool = False
    seed: int = 0
    drop_last: bool = False
    """Whether to drop samples that not every rank gets; otherwise the epoch's first ones are dealt
    again.
    """

    def __post_init__(self) -> None:
        _DealtInTurn.__post_init__(self)
        _check(self, consumed_samples=(0, self.total_samples))

    def __len__(self) -> int:
        """Return the number of this rank's samples still to come."""
        return self._each(self.total_samples - self.consumed_samples, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[int]:
        order = _order(self.total_samples, self.seed + self.epoch if self.shuffle else None)
        yield from self._mine(
            order[self.consumed_samples :], order, drop_last=self.drop_last
        ).tolist()


def _order(count: int, seed: int | None) -> NDArray[np.int64]:
    return np.arange(count) if seed is None else randperm(count, seed)


def randperm(count: int, seed: int) -> NDArray[np.int64]:
    """Return 0 to count - 1, int64, shape (count,), in the order of `torch.randperm` with a CPU
    generator of that seed.

    Without torch too, only slower.

    Raises:
        ConfigError: there are 2**32 / 20 numbers or more, and torch is not installed.
    """
    try:
        import torch
    except ImportError:
        return _randperm_of_numpy(count, seed)
    order: NDArray[np.int64] = torch.randperm(
        count, generator=torch.Generator().manual_seed(seed)
    ).numpy()
    return order


def _randperm_of_numpy(count: int, seed: int) -> NDArray[np.int64]:
    """Shuffle as torch's `randperm_cpu`: entry i changes places with entry i + draw % (count - i)."""
    if count >= _RANDPERM_LIMIT:
        raise ConfigError(
            "too many samples to shuffle without torch",
            found=count,
            expected=f"below {_RANDPERM_LIMIT}",
        )
    draws = np.random.RandomState(seed & 0xFFFFFFFF).randint(
        0, 2**32, size=max(count - 1, 0), dtype=np.uint32
    )
    places = (np.arange(count - 1) + draws % np.arange(count, 1, -1)).tolist() if count > 1 else []
    order = list(range(count))
    for place, other in enumerate(places):
        order[place], order[other] = order[other], order[place]
    return np.array(order, dtype=np.int64)


def _check(sampler: object, **ranges: tuple[int, float]) -> None:
    """Raise ConfigError where an argument is outside its range, both ends included."""
    for name, (low, high) in ranges.items():
        if not low <= (value := getattr(sampler, name)) <= high:
            expected = f"{low} or more" if high == _ANY else f"{low} to {high}"
            raise ConfigError(
                "a sampler's argument is out of range", where=name, found=value, expected=expected
            )
