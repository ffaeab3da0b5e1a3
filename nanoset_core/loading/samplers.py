"""Choose the samples that a data-parallel rank reads next, as the trainers' own samplers do.

A rank is one of the processes that train together; each reads other samples. Each sampler is a
batch sampler or sampler for `torch.utils.data.DataLoader`, or for any loop; none needs torch. The
complete state of a sequential sampler is the number of samples that all ranks have consumed, so
that a run can be resumed anywhere, also with another number of ranks.

For example, this is what two ranks read of ten samples:

    PretrainingSampler, micro_batch_size 2   rank 0: [0, 1] [4, 5]     rank 1: [2, 3] [6, 7]
    ResumableSampler                         rank 0: 0 2 4 6 8         rank 1: 1 3 5 7 9
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.records.arguments import boolean, whole_number
from nanoset_core.rounding import ceil_division

_RANDPERM_LIMIT = (2**32 - 1) // 20
"""From this count on, torch draws 64 bits for each number, which is not implemented here."""


@dataclass(frozen=True, slots=True)
class _MicroBatchSampler:
    """Base of samplers that yield lists of sample numbers, one for each micro-batch of a rank."""

    total_samples: int
    """Samples of the dataset, which are one epoch."""
    consumed_samples: int
    """Samples of this epoch that all ranks together have consumed before."""
    micro_batch_size: int
    """Samples that a rank reads at once."""
    data_parallel_rank: int
    """Number of this rank, from 0."""
    data_parallel_size: int
    """Number of ranks."""

    def _check_numbers(self) -> None:
        """Check that all numbers are possible: rank 0 to 7 of 8, for example.

        Raises:
            ConfigError: A number is out of range.
        """
        _check_samples_and_ranks(self)
        whole_number("micro_batch_size", self.micro_batch_size, 1)

    @property
    def _samples_per_step(self) -> int:
        """Samples that all ranks together consume at once."""
        return self.micro_batch_size * self.data_parallel_size


@dataclass(frozen=True, slots=True)
class _RoundRobinSampler:
    """Base of samplers that yield single sample numbers, which are dealt to the ranks in turn."""

    total_samples: int
    """Samples of the dataset, which are one epoch."""
    consumed_samples: int
    """Samples that all ranks together have consumed before, of this epoch."""
    data_parallel_rank: int
    """Number of this rank, from 0."""
    data_parallel_size: int
    """Number of ranks."""

    def _samples_per_rank(self, n_samples: int, *, drop_last: bool) -> int:
        """Return how many samples each rank gets if `n_samples` are dealt in turn.

        Args:
            n_samples: Number of samples that are dealt.
            drop_last: Whether a last round that is not complete is dropped, or else filled up.
        """
        if drop_last:
            return n_samples // self.data_parallel_size
        return ceil_division(n_samples, self.data_parallel_size)

    def _samples_of_rank(
        self, samples: NDArray[np.int64], order: NDArray[np.int64], *, drop_last: bool
    ) -> NDArray[np.int64]:
        """Deal samples to the ranks of a training run in turn, and return those of this rank.

        Ranks are processes that train together, and all need as many samples. If the last round is
        not complete, it is dropped, or filled with the first samples of the epoch again. For
        example, the samples 5 7 8 and two ranks, in an epoch that begins with sample 0:

            rank    if the round is filled    if it is dropped
            0       5 8                       5
            1       7 0                       7

        Args:
            samples: Numbers of the samples to deal, shape (n,).
            order: Numbers of all samples of the epoch. Its first ones fill an incomplete round.
            drop_last: Whether to drop an incomplete round.

        Returns:
            Shape (n_per_rank,).
        """
        n_per_rank = self._samples_per_rank(len(samples), drop_last=drop_last)  # 2, or 1 if dropped
        n_dealt = n_per_rank * self.data_parallel_size  # 4, or 2
        dealt = samples[:n_dealt]
        n_missing = n_dealt - len(dealt)  # 1, or 0
        dealt = np.concatenate([dealt, np.resize(order, n_missing)])  # 5 7 8 0, or 5 7
        # Every second one, from the number of the rank on.
        return dealt[self.data_parallel_rank :: self.data_parallel_size]


def _check_samples_and_ranks(sampler: _MicroBatchSampler | _RoundRobinSampler) -> None:
    """Check the numbers that all samplers have: rank 0 to 7 of 8, for example.

    Raises:
        ConfigError: A number is out of range.
    """
    whole_number("total_samples", sampler.total_samples, 1)
    whole_number("consumed_samples", sampler.consumed_samples, 0)
    whole_number("data_parallel_size", sampler.data_parallel_size, 1)
    last_rank = sampler.data_parallel_size - 1
    whole_number("data_parallel_rank", sampler.data_parallel_rank, 0, last_rank)


@dataclass(frozen=True, slots=True)
class PretrainingSampler(_MicroBatchSampler):
    """Yield samples in order: each global step is divided into one micro-batch for each rank.

    The length of the sampler is the number of lists that it yields. (The trainers' own samplers
    return the number of samples, or count the rest at the end differently.)

    It is the same as `MegatronPretrainingSampler` in Megatron-LM's `data_samplers.py`, and with
    `pad_to_global_batch` as NeMo's. The arguments are described in docs/python.md.

    Raises:
        ConfigError: A number is out of range, `drop_last` is not on or off, or the global batch
            does not consist of whole micro-batches.
    """

    drop_last: bool = True
    """Whether to leave out the samples at the end that do not fill a micro-batch of every rank.
    Otherwise the last ranks get fewer of them, or none.
    """
    _: KW_ONLY
    pad_to_global_batch: int | None = None
    """Fill up with -1, -2, … to a multiple of this (NeMo; the loss leaves these samples out); only
    without drop_last.
    """
    pad_with_none: bool = False
    """Fill up with None instead, which is what Megatron-LM's datasets leave out of the loss (NeMo
    `MegatronCorePretrainingSampler`).
    """

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: A number is out of range, or the global batch does not consist of whole
                micro-batches.
        """
        self._check_numbers()
        boolean("drop_last", self.drop_last, accepts_numbers=True)
        boolean("pad_with_none", self.pad_with_none, accepts_numbers=True)
        if self.consumed_samples >= self.total_samples:
            raise ConfigError(
                "no samples are left, and the trainers' own samplers refuse that, too",
                where="consumed_samples",
                found=self.consumed_samples,
                expected=f"0 to {self.total_samples - 1}, in this epoch",
                remedy="at the end of a run create no sampler; to start again, pass "
                "consumed_samples % total_samples",
            )

        global_batch = self.pad_to_global_batch
        if global_batch is None:
            return
        whole_number("pad_to_global_batch", global_batch, 1)
        if global_batch % self._samples_per_step:
            raise ConfigError(
                "the global batch does not consist of whole micro-batches",
                where="pad_to_global_batch",
                found=global_batch,
                expected=f"a multiple of {self._samples_per_step}",
            )

    def __len__(self) -> int:
        """Return the number of lists that are still to come."""
        n_left = self.total_samples - self.consumed_samples + self._padding()
        if self.drop_last:
            return n_left // self._samples_per_step
        return ceil_division(n_left, self._samples_per_step)

    def __iter__(self) -> Iterator[list[int | None]]:
        """Yield the samples of each micro-batch of this rank.

        In each step, every rank gets one micro-batch of consecutive samples. With 2 ranks and
        micro-batches of 2, rank 1 gets the samples 2 3, then 6 7, and so on.

        Yields:
            Numbers of samples. Samples that only fill up the last global batch are -1, -2, …, or
            None, as `pad_with_none` says.
        """
        step = self._samples_per_step  # samples that all ranks read in a step
        first_of_rank = self.data_parallel_rank * self.micro_batch_size  # of these, from 0

        # The micro-batches of complete steps.
        n_steps = (self.total_samples - self.consumed_samples) // step
        stop = self.consumed_samples + n_steps * step
        for start in range(self.consumed_samples + first_of_rank, stop, step):
            yield list(range(start, start + self.micro_batch_size))
        if self.drop_last:
            return

        # The rest is divided in the same way. In the last step, this rank's micro-batch may have
        # fewer samples, or none.
        rest: list[int | None] = [*range(stop, self.total_samples), *self._padding_samples()]
        for start_of_step in range(0, len(rest), step):
            start = start_of_step + first_of_rank
            yield rest[start : start + self.micro_batch_size]

    def _padding_samples(self) -> list[int | None]:
        """Return what fills up the last global batch: -1, -2, …, or only None."""
        n_padding = self._padding()
        if self.pad_with_none:
            return [None] * n_padding
        return [-number for number in range(1, n_padding + 1)]

    def _padding(self) -> int:
        """Return how many samples are added to fill up the last global batch.

        A global batch is what all ranks consume for one update of the model.
        """
        if self.pad_to_global_batch is None or self.drop_last:
            return 0
        n_left = self.total_samples - self.consumed_samples
        return -n_left % self.pad_to_global_batch


@dataclass(frozen=True, slots=True)
class CyclicSampler(_MicroBatchSampler):
    """Yield samples in a new random order every epoch; iteration ends with the present epoch.

    The present epoch is the one that `consumed_samples` leads to. The sampler does not change while
    it is iterated: create another one for the next epoch. (The trainers' own samplers count in
    place.)

    It is the same as `MegatronPretrainingRandomSampler` in Megatron-LM's `data_samplers.py` (type
    "cyclic"), and with `data_sharding` as NeMo's. The orders are those of `torch.randperm`.

    Raises:
        ConfigError: A number is out of range, `data_sharding` is not on or off, or the consumed
            samples are not whole micro-batches of all ranks.
    """

    consumed_samples: int
    """Samples that all ranks together have consumed before; if there are several epochs, in all of
    them.
    """
    data_sharding: bool = True
    """Whether every rank shuffles a part of the samples for itself, instead of all ranks sharing
    one order.
    """
    seed: int = 0
    """Added to the number of the epoch (NeMo); in Megatron-LM it is 0."""

    def __post_init__(self) -> None:
        """Check that training can be resumed after this number of samples.

        In each step, every rank (one of the processes that train together) reads a micro-batch. For
        example, 2 ranks and micro-batches of 4 samples make steps of 8 samples. A dataset of 100
        samples then has 12 steps: epochs of 96 samples. A run can only stop between two steps:

            consumed    position              can be resumed
            32          step 4 of epoch 0     yes
            112         step 2 of epoch 1     yes
            100         within a step         no

        Raises:
            ConfigError: A number is out of range, `data_sharding` is not on or off, the dataset
                does not suffice for one step, or a step has been consumed only in part.
        """
        self._check_numbers()
        boolean("data_sharding", self.data_sharding, accepts_numbers=True)
        step_samples = self._samples_per_step
        whole_number("total_samples", self.total_samples, step_samples)

        # An epoch consists of whole steps, so it does not matter here which epoch this is.
        consumed_of_step = self.consumed_samples % step_samples
        if consumed_of_step != 0:
            raise ConfigError(
                "consumed samples are not whole micro-batches of all ranks",
                where="consumed_samples",
                found=self.consumed_samples,
                expected=f"a multiple of {step_samples} in its epoch of {self._epoch_samples}",
            )

    def __len__(self) -> int:
        """Return how many micro-batches this rank will still get in this epoch.

        A micro-batch is what a rank, one of several processes, trains on at once. For two ranks,
        and 3 samples in micro-batches of one:

            each rank has samples of its own (data_sharding)    1 each, and the third is left out
            all ranks share the samples                         2 for rank 0, and 1 for rank 1
        """
        # The samples of an epoch: whole micro-batches of every rank. If all ranks share one order,
        # they also share the micro-batches after that, which do not suffice for all of them.
        n_samples = self._epoch_samples
        if not self.data_sharding:
            n_samples = self.total_samples // self.micro_batch_size * self.micro_batch_size
        n_left = n_samples - self.consumed_samples % self._epoch_samples

        # The ranks take turns: rank r gets entry r of what is left, and every n-th one after it.
        n_of_rank = ceil_division(n_left - self.data_parallel_rank, self.data_parallel_size)
        return n_of_rank // self.micro_batch_size

    def __iter__(self) -> Iterator[list[int]]:
        """Yield the samples of each micro-batch of this rank, up to the end of the epoch.

        For example, with micro-batches of 2 samples: [6, 4], [7, 5].
        """
        # Each epoch has an order of its own.
        epoch, consumed_in_epoch = divmod(self.consumed_samples, self._epoch_samples)
        seed = self.seed + epoch
        if self.data_sharding:
            samples = self._shuffled_shard(seed, consumed_in_epoch)
        else:
            samples = self._turns_in_shared_order(seed, consumed_in_epoch)

        # The last samples, which do not fill a micro-batch, are left out.
        size = self.micro_batch_size
        for start in range(0, len(samples) - size + 1, size):
            yield samples[start : start + size].tolist()

    def _shuffled_shard(self, seed: int, consumed: int) -> NDArray[np.int64]:
        """Return what this rank still has to read, if each rank has its own part of the samples.

        For example, of 9 samples, rank 0 of 2 has 0 to 3, and rank 1 has 4 to 7. (The last one does
        not fill a micro-batch of every rank.) All ranks shuffle their parts in the same way, such
        as 2 0 3 1. So rank 1 reads 6 4 7 5.

        Args:
            seed: Seed of the shuffle.
            consumed: Samples of the epoch that all ranks together have read before: of 2, rank 1
                has read one, and 4 7 5 are left.
        """
        # In each step, each rank takes a micro-batch. The samples of an incomplete last step are
        # left out.
        n_steps = self.total_samples // self._samples_per_step
        n_of_rank = n_steps * self.micro_batch_size  # 4
        first_of_rank = self.data_parallel_rank * n_of_rank  # 4 for rank 1

        order = randperm(n_of_rank, seed)  # 2 0 3 1
        consumed_by_rank = consumed // self.data_parallel_size  # 1
        return first_of_rank + order[consumed_by_rank:]  # 4 7 5

    def _turns_in_shared_order(self, seed: int, consumed: int) -> NDArray[np.int64]:
        """Return what this rank still has to read, if all ranks share one shuffled order.

        The ranks, processes that train together, take turns. Of the order 5 2 0 3 4 1, rank 0 of 2
        gets 5 0 4, and rank 1 gets 2 3 1.

        Args:
            seed: Seed of the shuffle.
            consumed: Samples of the epoch that all ranks have read before, from the start of the
                order.
        """
        # The trainer shuffles only as many samples as fill micro-batches.
        n_micro_batches = self.total_samples // self.micro_batch_size
        n_samples = n_micro_batches * self.micro_batch_size
        order = randperm(n_samples, seed)
        remaining = order[consumed:]
        return remaining[self.data_parallel_rank :: self.data_parallel_size]

    @property
    def _epoch_samples(self) -> int:
        """Samples of an epoch, without those that do not fill a micro-batch of every rank."""
        return self.total_samples - self.total_samples % self._samples_per_step


@dataclass(frozen=True, slots=True)
class InterleavedSampler(_RoundRobinSampler):
    """Yield single sample numbers, shuffled and then dealt to the ranks in turn.

    nanotron's dataloader uses it: torch's `DistributedSampler` without the first consumed // size
    samples of each rank (`SkipBatchSampler`). With another number of ranks nothing is lost or
    repeated if consumed_samples is a multiple of that number. Otherwise the samples of the
    incomplete round are dealt again, as in nanotron.

    Raises:
        ConfigError: A number is out of range, or `shuffle` or `drop_last` is not on or off.
    """

    seed: int = 42
    """Seed of the order."""
    shuffle: bool = True
    """Whether the order is random, or else ascending."""
    drop_last: bool = True
    """Whether to drop the samples at the end that not every rank gets. Otherwise the first samples
    are dealt again.
    """

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: A number is out of range, or `shuffle` or `drop_last` is not on or off.
        """
        _check_samples_and_ranks(self)
        boolean("shuffle", self.shuffle, accepts_numbers=True)
        boolean("drop_last", self.drop_last, accepts_numbers=True)

    def __len__(self) -> int:
        """Return the number of this rank's samples that are still to come."""
        n_of_rank = self._samples_per_rank(self.total_samples, drop_last=self.drop_last)
        return max(n_of_rank - self.consumed_samples // self.data_parallel_size, 0)

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of this rank, without those that it has consumed before."""
        order = _order(self.total_samples, self.seed, shuffle=self.shuffle)
        samples = self._samples_of_rank(order, order, drop_last=self.drop_last)
        consumed_by_rank = self.consumed_samples // self.data_parallel_size
        yield from samples[consumed_by_rank:].tolist()


@dataclass(frozen=True, slots=True)
class ResumableSampler(_RoundRobinSampler):
    """Yield single sample numbers, dealt to the ranks in turn, without those consumed before.

    It is equal to Modalities' `ResumableDistributedSampler`, where `consumed_samples` is called
    `skip_num_global_samples`. Shuffled orders are those of `torch.randperm`.

    Raises:
        ConfigError: A number is out of range, or `shuffle` or `drop_last` is not on or off.
    """

    epoch: int = 0
    """Number of the epoch, which is added to the seed."""
    shuffle: bool = False
    """Whether the order is random, or else ascending."""
    seed: int = 0
    """Seed of the order of the first epoch."""
    drop_last: bool = False
    """Whether to drop the samples at the end that not every rank gets. Otherwise the first samples
    of the epoch are dealt again.
    """

    def __post_init__(self) -> None:
        """Check the fields.

        Raises:
            ConfigError: A number is out of range, or `shuffle` or `drop_last` is not on or off.
        """
        _check_samples_and_ranks(self)
        whole_number("consumed_samples", self.consumed_samples, 0, self.total_samples)
        boolean("shuffle", self.shuffle, accepts_numbers=True)
        boolean("drop_last", self.drop_last, accepts_numbers=True)

    def __len__(self) -> int:
        """Return the number of this rank's samples that are still to come."""
        n_left = self.total_samples - self.consumed_samples
        return self._samples_per_rank(n_left, drop_last=self.drop_last)

    def __iter__(self) -> Iterator[int]:
        """Yield the samples of this rank, dealt from those that no rank has consumed before."""
        order = _order(self.total_samples, self.seed + self.epoch, shuffle=self.shuffle)
        remaining = order[self.consumed_samples :]
        yield from self._samples_of_rank(remaining, order, drop_last=self.drop_last).tolist()


def _order(count: int, seed: int, *, shuffle: bool) -> NDArray[np.int64]:
    """Return the numbers from 0 to count - 1, int64, in a random order or ascending."""
    return randperm(count, seed) if shuffle else np.arange(count)


def randperm(count: int, seed: int) -> NDArray[np.int64]:
    """Shuffle the numbers 0 to count - 1 exactly as `torch.randperm` does on a CPU.

    Trainers shuffle with torch. So that samples can be read in the order of a trainer, the order
    has to be the same. torch is used if it is installed; without torch the result is the same, but
    takes longer.

    Args:
        count: How many numbers.
        seed: Seed of the random number generator.

    Returns:
        int64, shape (count,).

    Raises:
        ConfigError: There are 2**32 / 20 numbers or more, and torch is not installed.
    """
    try:
        import torch
    except ImportError:
        return _randperm_of_numpy(count, seed)
    generator = torch.Generator().manual_seed(seed)
    order: NDArray[np.int64] = torch.randperm(count, generator=generator).numpy()
    return order


def _randperm_of_numpy(count: int, seed: int) -> NDArray[np.int64]:
    """Shuffle the numbers 0 to count - 1 exactly as `torch.randperm` does, without torch.

    torch swaps each entry with a random one from itself to the last. Its random number generator is
    also in numpy. For 4 numbers and the random numbers 6, 4 and 3:

        entry 0    6 % 4 = 2 entries further    0 1 2 3  →  2 1 0 3
        entry 1    4 % 3 = 1 entry further      2 1 0 3  →  2 0 1 3
        entry 2    3 % 2 = 1 entry further      2 0 1 3  →  2 0 3 1

    (From some 200 million numbers on, torch does something else, so these are refused.)

    Args:
        count: How many numbers.
        seed: Seed of the random number generator.

    Returns:
        int64, shape (count,).

    Raises:
        ConfigError: There are 2**32 / 20 numbers or more.
    """
    if count >= _RANDPERM_LIMIT:
        raise ConfigError(
            "too many samples to shuffle without torch",
            found=count,
            expected=f"below {_RANDPERM_LIMIT}",
        )
    order = list(range(count))
    if count > 1:
        for entry, target in enumerate(_swap_targets(count, seed).tolist()):
            order[entry], order[target] = order[target], order[entry]
    return np.array(order, dtype=np.int64)


def _swap_targets(count: int, seed: int) -> NDArray[np.int64]:
    """Return with which entry `torch.randperm` swaps each entry but the last one, to shuffle them.

    Of four entries, for example, entry 0 is swapped with one from 0 to 3, entry 1 with one from 1
    to 3, and entry 2 with one from 2 to 3. numpy and torch have the same random number generator, a
    Mersenne Twister. torch uses 32 bits of the seed.

    Args:
        count: How many entries are shuffled, at least 2.
        seed: Seed of the random number generator.

    Returns:
        Shape (count - 1,): each number is that of the entry itself or of a later one.
    """
    generator = np.random.RandomState(seed & 0xFFFFFFFF)
    draws = generator.randint(0, 2**32, size=count - 1, dtype=np.uint32)
    n_candidates = np.arange(count, 1, -1)  # (count - 1,) entries from each one to the last
    targets: NDArray[np.int64] = np.arange(count - 1) + draws % n_candidates
    return targets
