"""Compute which samples each step of a run reads, and on which rank and in which micro-batch.

A run is divided into stretches: consecutive steps with one batch size on one number of ranks. An
example with a batch size of 4, and of 8 from sample 12 on:

    stretch        0           1
    steps          1  2  3     4   5   6  …
    first sample   0  4  8    12  20  28  …

Then the trainer's sampler deals the samples of a step to ranks and micro-batches. With 2 ranks and
micro-batches of 2 samples, a batch of 8 samples 0 to 7 is dealt as

    rank 0    micro-batches (0, 1) and (4, 5)
    rank 1    micro-batches (2, 3) and (6, 7)

Sources:
    Megatron-LM core_v0.16.1 `core/num_microbatches_calculator.py`
    (ConstantNumMicroBatchesCalculator, RampupBatchsizeNumMicroBatchesCalculator) and
    `training/training.py` (train); main (0.20.0) for StepBatchsizeNumMicroBatchesCalculator.
    The samplers are those of `loading/samplers.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.loading.samplers import randperm
from nanoset_core.stages.handoff.run import RunSpec, ramps_up

_SUFFIXES = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
"""What a letter at the end of a number means in a schedule of batch sizes."""
_RESUMED = ("data_parallel_size", "micro_batch_size", "global_batch_size")
"""Settings that may change as a run resumes."""


class Stretch(NamedTuple):
    """Consecutive steps with one batch size on one number of ranks."""

    first_step: int
    """Number of the first step. The first step of a run is 1, as in the logs of trainers."""
    first_sample: int
    """Number of the first sample, counted from the start of the run."""
    batch_size: int
    """Samples of a step."""
    micro_batch_size: int
    """Samples of a micro-batch of one rank."""
    n_ranks: int
    """Number of data-parallel ranks."""
    consumed_at_start: int
    """Samples that had been consumed when the trainer was last started."""


class TrainingStep(NamedTuple):
    """A single step of a run, and the settings with which the trainer makes it."""

    number: int
    """The first step of a run is 1, as in the logs of trainers."""
    first_sample: int
    """Number of the first sample, counted from the start of the run."""
    batch_size: int
    """Samples of the step."""
    micro_batch_size: int
    """Samples of a micro-batch of one rank."""
    n_ranks: int
    """Number of data-parallel ranks."""
    consumed_at_start: int
    """Samples that had been consumed when the trainer was last started."""


class SampleRanges(NamedTuple):
    """The samples that some steps read; int64, both of one shape."""

    first_samples: NDArray[np.int64]
    """Number of the first sample of each step, counted from the start of the run."""
    batch_sizes: NDArray[np.int64]
    """How many samples each step reads."""


class Steps:
    """The steps of a run. They have no end, since run.yaml does not say how long the run is."""

    def __init__(self, run: RunSpec) -> None:
        """Divide the steps of a run into stretches of steps with the same batch size.

        Args:
            run: The settings of the run, from run.yaml.

        Raises:
            ConfigError: The trainer would refuse a batch size.
        """
        self.stretches = tuple(_stretches(run))
        """The stretches in order; the last one has no end."""

        # The same as arrays, to look up many steps at once: int64, shape (n_stretches,) each
        first_steps = [stretch.first_step for stretch in self.stretches]
        first_samples = [stretch.first_sample for stretch in self.stretches]
        batch_sizes = [stretch.batch_size for stretch in self.stretches]
        self._first_steps = np.array(first_steps, np.int64)
        self._first_samples = np.array(first_samples, np.int64)
        self._batch_sizes = np.array(batch_sizes, np.int64)

    def step(self, number: int) -> TrainingStep:
        """Return a step of a training run: which samples it reads, and with which settings.

        For example, a run reads 4 samples in each of the steps 1 to 3, and 8 from step 4 on. Then
        step 5 reads 8 samples, from sample 20 on.

        Args:
            number: Number of the step, from 1 on.
        """
        # The stretch that contains the step: the last one that starts at this step or before it.
        index = int(np.searchsorted(self._first_steps, number, side="right")) - 1
        stretch = self.stretches[index]
        steps_before = number - stretch.first_step  # in the stretch
        return TrainingStep(
            number=number,
            first_sample=stretch.first_sample + steps_before * stretch.batch_size,
            batch_size=stretch.batch_size,
            micro_batch_size=stretch.micro_batch_size,
            n_ranks=stretch.n_ranks,
            consumed_at_start=stretch.consumed_at_start,
        )

    def samples(self, steps: NDArray[np.int64]) -> SampleRanges:
        """Return which samples some steps of a training run read.

        For example, a run reads 4 samples in each of the steps 1 to 3, and 8 from step 4 on:

            step              3     4     5
            first sample      8     12    20
            samples           4     8     8

        Args:
            steps: Numbers of steps, of any shape.

        Returns:
            The last two rows: the first sample of each step, and its number of samples; of the same
            shape.
        """
        # A stretch has consecutive steps of one batch size. Find the stretch of each step: the last
        # one that starts at this step or before it.
        stretches = np.searchsorted(self._first_steps, steps, side="right") - 1
        batch_sizes = self._batch_sizes[stretches]
        steps_before = steps - self._first_steps[stretches]  # in the same stretch
        first_samples = self._first_samples[stretches] + steps_before * batch_sizes
        return SampleRanges(first_samples, batch_sizes)

    def that_read(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which step of a training run reads each of some samples.

        For example, a run reads 4 samples in each of the steps 1 to 3, and 8 from step 4 on:

            step       1         2         3          4           5
            samples    0 to 3    4 to 7    8 to 11    12 to 19    20 to 27

        So sample 25 is read in step 5.

        Args:
            samples: Numbers of samples of the run, of any shape.

        Returns:
            Numbers of steps, int64, of the same shape.
        """
        # The stretch of a sample is the last one that starts at this sample or before it.
        stretches = np.searchsorted(self._first_samples, samples, side="right") - 1
        samples_in_stretch = samples - self._first_samples[stretches]
        steps_in_stretch = samples_in_stretch // self._batch_sizes[stretches]
        steps: NDArray[np.int64] = self._first_steps[stretches] + steps_in_stretch
        return steps


# Batch sizes.


class _BatchSizes(NamedTuple):
    """The batch sizes of a run since it was last started."""

    size: Callable[[int], int]
    """Samples that the run has consumed → samples of the next step."""
    last_change: int
    """Consumed samples from which on the size no longer changes."""


def _stretches(run: RunSpec) -> Iterator[Stretch]:
    """Divide a training run into stretches: consecutive steps with the same settings.

    A stretch ends when the batch size changes, or when the trainer is resumed with other settings.
    For example, a run starts with 32 samples a step, and is resumed after step 100 with 64:

        stretch    first step    first sample    samples a step
        0          1             0               32
        1          101           3,200           64                (no end)

    Args:
        run: The settings of the run, from run.yaml.

    Yields:
        The stretches in order. The last one has no end, since it is not known how long the run is.

    Raises:
        ConfigError: The trainer would refuse a batch size.
    """
    n_steps = 0  # steps of all earlier stretches
    consumed = 0  # samples that these steps have read

    # The trainer is started once, and may be resumed several times. From each start, it runs to
    # `last_step` with the same settings. That is None for the last start: its end is not known.
    for settings, last_step in _starts(run):
        consumed_at_start = consumed
        sizes = _sizes_since_start(settings, n_steps, consumed)
        while last_step is None or n_steps < last_step:
            # The size that the settings request may have to be rounded down to whole micro-batches.
            batch_size = _whole_batch_size(settings, sizes.size(consumed), n_steps + 1)
            yield Stretch(
                first_step=n_steps + 1,
                first_sample=consumed,
                batch_size=batch_size,
                micro_batch_size=settings.micro_batch_size,
                n_ranks=settings.data_parallel_size,
                consumed_at_start=consumed_at_start,
            )

            # Continue after the stretch.
            steps_until_change = _steps_until_change(sizes, consumed, batch_size)
            steps_until_resumed = None if last_step is None else last_step - n_steps
            length = _first_of(steps_until_change, steps_until_resumed)
            if length is None:
                return  # the last stretch has no end
            n_steps += length
            consumed += length * batch_size


def _first_of(*counts: int | None) -> int | None:
    """Return the smallest of some counts. None stands for a count that is never reached."""
    return min((count for count in counts if count is not None), default=None)


class _Start(NamedTuple):
    """A start of the trainer: the first one, or one that resumes the run from a checkpoint."""

    settings: RunSpec
    """The settings from this start on."""
    last_step: int | None
    """The last step with these settings; None for the last start, whose end is not known."""


def _starts(run: RunSpec) -> Iterator[_Start]:
    """Yield each start of a trainer during a training run, with the settings that it had.

    For example, a run was started with 8 ranks, and resumed after step 5,000 with 16:

        start    ranks    last step
        0        8        5,000
        1        16       not known

    Args:
        run: The settings of the run, and what changed each time that it was resumed.

    Yields:
        The first start, and then one for each time that the run was resumed.
    """
    settings = run
    for resume in run.resumes:
        yield _Start(settings, last_step=resume.iteration)

        # A setting that is not listed stays what it was.
        values = {name: getattr(resume, name) for name in _RESUMED}
        changes = {name: value for name, value in values.items() if value is not None}
        settings = replace(settings, **changes)
    yield _Start(settings, last_step=None)


def _steps_until_change(sizes: _BatchSizes, consumed: int, samples_per_step: int) -> int | None:
    """Return after how many steps the batch size of a training run changes.

    For example, a step reads 32 samples, and 64 once 100 samples have been read:

        after steps       1     2     3     4
        samples read      32    64    96    128    so it changes after 4 steps

    Args:
        sizes: The batch sizes that the settings request, by the number of samples that were read.
        consumed: Samples that were read before the first of these steps.
        samples_per_step: Samples that each step reads: the requested batch size, rounded down to
            one that can be divided among the ranks.

    Returns:
        The number of steps with the present batch size; None if it never changes.
    """
    if consumed >= sizes.last_change:
        return None
    present_size = sizes.size(consumed)

    def has_changed_after(n_steps: int) -> bool:
        """Return whether the batch size is another one after this number of steps."""
        return sizes.size(consumed + n_steps * samples_per_step) != present_size

    max_steps = (sizes.last_change - consumed) // samples_per_step + 1  # no change after these
    return _first_true(has_changed_after, range(1, max_steps + 1))


def _first_true(condition: Callable[[int], bool], numbers: range) -> int | None:
    """Return the first of some numbers for which a condition is true, or None if it is for none.

    There may be millions of numbers, so it is found by bisection:

        number       1      2      3      4
        condition    False  False  False  True     the result is 4

    Args:
        condition: Stays true once it is true. (A batch size that has changed does not come back,
            since sizes only grow or only shrink.)
        numbers: The numbers, ascending.
    """
    index = bisect_left(numbers, True, key=condition)
    return numbers[index] if index < len(numbers) else None


def _sizes_since_start(run: RunSpec, n_steps: int, consumed: int) -> _BatchSizes:
    """Return how the batch size of a training run develops after a start of the trainer.

    The settings allow three ways:

        a constant size    global_batch_size: 64
        a ramp-up          from 16 in steps of 16 to 64, during the first 10,000 samples
        a schedule         "0:768 1M:1536": 1,536 samples a step once a million have been read

    Args:
        run: The settings with which the trainer was started.
        n_steps: Number of steps before the start, for the error.
        consumed: Samples that these steps read.

    Returns:
        The batch size by the number of samples that were read.

    Raises:
        ConfigError: The schedule cannot be read, or the ramp-up does not lead to the batch size.
    """
    # A schedule lists batch sizes, such as "0:768 10B:1536". It counts tokens if run.yaml has the
    # length of a sample, and otherwise samples.
    if run.step_batch_size_schedule is not None:
        unit = run.seq_length or 1
        return _scheduled_sizes(run.step_batch_size_schedule, unit)

    # Without a schedule, run.yaml must have the size; `or 0` is for the type checker.
    batch_size = run.global_batch_size or 0
    if run.rampup_batch_size is None:
        return _constant_size(batch_size)

    # Batches grow from `first` by `increment`, until this many samples have been consumed. If the
    # trainer was resumed later, all batches have the final size.
    first, increment, ramp_samples = run.rampup_batch_size
    if consumed > ramp_samples:
        return _constant_size(batch_size)
    if not ramps_up(run.rampup_batch_size, batch_size):
        raise ConfigError(
            "the ramp-up does not lead to the batch size with which the run was resumed",
            where=f"step {n_steps + 1:,}",
            found=f"{list(run.rampup_batch_size)}, global_batch_size {batch_size}",
            remedy="correct the entry of `resumes`",
        )
    return _ramped_sizes(first, increment, ramp_samples, batch_size)


def _constant_size(batch_size: int) -> _BatchSizes:
    """Return batch sizes that never change."""
    return _BatchSizes(size=lambda consumed: batch_size, last_change=0)


def _ramped_sizes(first: int, increment: int, ramp_samples: int, batch_size: int) -> _BatchSizes:
    """Return batch sizes that grow as with Megatron-LM's option `--rampup-batch-size`.

    For example, from 32 in steps of 32 to 96, during the first 1,000 samples:

        samples read before    0     500    1,000
        batch size             32    64     96

    Args:
        first: The first batch size, 32.
        increment: By how much it grows each time, 32.
        ramp_samples: How many samples are read until it has its final size, 1,000.
        batch_size: The final size, 96.

    Returns:
        The batch size by the number of samples that were read before.
    """
    n_increments = (batch_size - first) // increment  # 2
    samples_per_increment = ramp_samples / n_increments  # 500.0: Megatron-LM uses floats, too

    def size_after(consumed: int) -> int:
        """Return the batch size after this number of consumed samples."""
        if consumed > ramp_samples:
            return batch_size
        return first + int(consumed / samples_per_increment) * increment

    # At the latest from this number of samples on, the size is the final one.
    return _BatchSizes(size_after, last_change=ramp_samples + 1)


def _whole_batch_size(run: RunSpec, size: int, step: int) -> int:
    """Return how many samples a training step reads: some micro-batches of every rank.

    A rank is a process that trains on a part of each step's samples, one micro-batch at a time. For
    micro-batches of 4 samples and 8 ranks, a step reads a multiple of 32 samples:

        requested    read
        96           96
        100          96, if the settings allow to decrease it; otherwise an error
        20           an error

    Args:
        run: The settings of the run.
        size: The batch size that the settings request for the step.
        step: Number of the step, for the message.

    Raises:
        ConfigError: The batch size is not possible, and may not be decreased.
    """
    round_size = run.micro_batch_size * run.data_parallel_size  # a micro-batch of every rank
    is_multiple = size % round_size == 0
    if size >= round_size and (is_multiple or run.decrease_batch_size_if_needed):
        n_rounds = size // round_size
        return n_rounds * round_size
    raise ConfigError(
        "the batch size is not made of whole micro-batches of all ranks",
        where=f"step {step:,}",
        found=f"{size:,} samples",
        expected=f"a multiple of {run.micro_batch_size} * {run.data_parallel_size}, which the "
        "trainer requires",
        remedy="write the settings with which the run was started into run.yaml",
    )


def _scheduled_sizes(text: str, unit: int) -> _BatchSizes:
    """Parse a schedule of batch sizes, such as `0:768 1M:1536`.

    It says that a step reads 768 samples at first, and 1,536 once a million samples have been read:

        samples read     0      999,999    1,000,000
        batch size       768    768        1,536

    Args:
        text: The schedule.
        unit: Tokens of a sample if the text counts tokens, or 1 if it counts samples.

    Returns:
        The batch size by the number of samples that were read.

    Raises:
        ConfigError: The schedule is not valid.
    """
    try:
        entries = _schedule_entries(text, unit)
    except ValueError as error:
        raise ConfigError(
            "the schedule of batch sizes cannot be read",
            where="step_batch_size_schedule",
            found=repr(text),
            expected="pairs of samples and batch size from 0 on, in ascending order: 0:768 1M:1536",
            remedy="write the value of the trainer's option",
        ) from error
    starts = [entry.start for entry in entries]  # the first one is 0

    def size_after(consumed: int) -> int:
        """Return the batch size after this number of consumed samples."""
        index = bisect_right(starts, consumed) - 1  # the last entry that has begun
        return entries[index].batch_size

    return _BatchSizes(size_after, last_change=starts[-1])


class _ScheduleEntry(NamedTuple):
    """An entry of a schedule of batch sizes, such as `1M:1536`."""

    start: int
    """Number of consumed samples from which on the batch size applies."""
    batch_size: int
    """Samples of a step."""


def _schedule_entries(text: str, unit: int) -> list[_ScheduleEntry]:
    """Return the entries of a schedule of batch sizes, in ascending order.

    "0:768 1M:1536" gives (0, 768) and (1000000, 1536): 768 samples a step at first, and 1,536 once
    a million samples have been read. With tokens instead of samples, and samples of 1,000 tokens,
    the second entry would be (1000, 1536).

    Args:
        text: The schedule.
        unit: Tokens of a sample if the text counts tokens, or 1 if it counts samples.

    Raises:
        ValueError: The text is not made of pairs, does not begin at sample 0, names a number of
            samples twice, or makes the batch size smaller.
    """
    entries: list[_ScheduleEntry] = []
    for pair in text.replace(",", " ").split():
        start_text, size_text = pair.split(":", 1)
        start = _parse_number(start_text) // unit
        entries.append(_ScheduleEntry(start, _parse_number(size_text)))
    entries.sort()
    _check_schedule(entries)
    return entries


def _check_schedule(entries: Sequence[_ScheduleEntry]) -> None:
    """Check that a schedule begins at sample 0, and that its batch sizes never get smaller.

        (0, 768), (1000000, 1536)     fine
        (5, 768), …                   does not begin at 0
        (0, 768), (1000000, 512)      gets smaller
        (0, 768), (0, 1536)           two sizes at the same place

    Args:
        entries: The entries, sorted by their start.

    Raises:
        ValueError: One of these faults.
    """
    if not entries or entries[0].start != 0:
        raise ValueError("the schedule does not begin at sample 0")
    for entry, next_entry in pairwise(entries):
        if next_entry.start == entry.start or next_entry.batch_size < entry.batch_size:
            raise ValueError("the schedule is not in ascending order")


def _parse_number(text: str) -> int:
    """Return a number such as "1.5M" as an integer: here 1,500,000.

    Raises:
        ValueError: The text is not a number.
    """
    factor = _SUFFIXES.get(text[-1:].upper())
    if factor is None:
        return int(float(text))
    return int(float(text[:-1]) * factor)


# Ranks.


class DealtSamples(NamedTuple):
    """The samples of a step, and who reads them; int64, shape (batch_size,) each."""

    samples: NDArray[np.int64]
    """Number of each sample in the dataset."""
    ranks: NDArray[np.int64]
    """The rank that reads each of them."""
    micro_batches: NDArray[np.int64]
    """The micro-batch of the rank that it is in."""


def _check_no_dataloader_type(dataloader_type: str) -> None:
    """Refuse the setting `dataloader_type` of a run whose trainer has no such setting.

    Args:
        dataloader_type: The value of the setting: "single" if it is not set.

    Raises:
        ConfigError: The setting has another value.
    """
    if dataloader_type != "single":
        raise ConfigError(
            "this trainer's data loader has no types",
            where="dataloader_type",
            found=dataloader_type,
            remedy="remove dataloader_type",
        )


@dataclass(frozen=True, slots=True)
class Dealer:
    """How a trainer deals the samples of a dataset to its ranks.

    Sources for nanotron: 896473d `dataloader.py` (_get_train_sampler), 698c85b4
    `data/dataloader_builder.py` (get_sampler), 2411b022 `data/samplers.py` (get_sampler,
    MegatronPretrainingSampler).
    """

    total: int
    """Number of samples of the dataset."""
    kind: str = "single"
    """The order in which samples are dealt.

    `single` deals a micro-batch to each rank in turn, and `interleaved` a sample to each rank in
    turn. With `cyclic`, each rank reads its own part of the dataset, in another order each epoch.
    """
    seed: int | None = None
    """Seed of the shuffle before samples are dealt; None if they are not shuffled."""

    @staticmethod
    def of(preset: str, dataloader_type: str, total: int, random_seed: int) -> Dealer:
        """Return how a trainer deals samples to its ranks, the processes that train together.

        Args:
            preset: Name of a trainer and its version.
            dataloader_type: A setting in run.yaml, the file that describes the run. "single", which
                is also its value if it is not set, gives a micro-batch to each rank in turn.
            total: Number of samples of the dataset.
            random_seed: Seed of the data that was built, for the trainer that shuffles by it.

        Returns:
            The dealer, which computes the samples of a step.

        Raises:
            ConfigError: The setting `dataloader_type` is given for a trainer that has no such
                setting.
        """
        # All versions of nanotron give one sample to each rank in turn. Some shuffle samples first:
        # always by seed 42, or by the seed of the data. The others read them as they are stored.
        nanotron_seeds = {"nanotron": 42, "nanotron-000": random_seed, "nanotron-main": None}
        if preset in nanotron_seeds:
            _check_no_dataloader_type(dataloader_type)
            return Dealer(total, kind="interleaved", seed=nanotron_seeds[preset])
        return Dealer(total, kind=dataloader_type, seed=None)

    @property
    def reads_in_order(self) -> bool:
        """Whether the first samples of the dataset are also those that are read first."""
        return self.kind != "cyclic" and self.seed is None

    def deal(self, step: TrainingStep, base: int) -> DealtSamples:
        """Return the samples of a training step, and which rank reads each of them.

        A rank is a process that trains on a part of each batch, one micro-batch at a time. For a
        step of 8 samples, 2 ranks and micro-batches of 2:

            sample         40  41  42  43  44  45  46  47
            rank           0   0   1   1   0   0   1   1
            micro-batch    0   0   0   0   1   1   1   1

        That is the usual way, the kind "single". Two other kinds of loaders exist:

            interleaved    gives a sample, not a micro-batch, to each rank in turn: 0 1 0 1 0 1 0 1
            cyclic         gives each rank its own part of the dataset, shuffled in each epoch

        Args:
            step: The step, with its number of ranks and the sizes of its batches.
            base: A run may read several datasets one after another. So many samples of the run come
                before the first one of this dataset: 0 for the first dataset.

        Returns:
            These three rows, as arrays.

        Raises:
            SampleIndexError: The dataset has too few samples.
            ConfigError: A cyclic loader cannot begin with this step: the ranks have not all read
                the same number of whole micro-batches before it.
        """
        # All arrays have the shape (batch_size,): one entry for each sample of the step.
        numbers = np.arange(step.batch_size)  # 0, 1, 2, … within the step
        ranks = self._ranks(step, numbers)
        micro_batches = numbers // (step.micro_batch_size * step.n_ranks)

        # Find the places of the samples in the order in which the trainer reads the dataset.
        # The first sample of the step is counted from the start of the run, so subtract `base`.
        positions = step.first_sample - base + numbers
        if self.kind == "interleaved":
            # If the run was stopped and resumed, this loader has started a few samples too early,
            # and has read these again: all later samples come so much later.
            positions -= _n_read_again(step, base)

        # The loader may shuffle: look up which samples are at these places.
        if self.kind == "cyclic":
            samples = self._cyclic_samples(step, positions, ranks)
        else:
            samples = self._samples_at(step, positions)
        return DealtSamples(samples, ranks, micro_batches)

    def _ranks(self, step: TrainingStep, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return which process (rank) of a training run reads each sample of a step.

        A trainer with several GPUs has a process for each, and deals the samples to them: one by
        one, or in micro-batches. With 2 ranks and micro-batches of 2 samples:

            sample of the step           0  1  2  3  4  5  6  7
            rank, in micro-batches       0  0  1  1  0  0  1  1
            rank, if "interleaved"       0  1  0  1  0  1  0  1

        Args:
            step: The step, with its number of ranks and the size of a micro-batch.
            numbers: Numbers of the samples within the step, from 0, shape (batch_size,).

        Returns:
            int64, shape (batch_size,).
        """
        if self.kind == "interleaved":  # a sample for each rank in turn
            return numbers % step.n_ranks
        micro_batches = numbers // step.micro_batch_size  # one for each rank in turn
        return micro_batches % step.n_ranks

    def _samples_at(self, step: TrainingStep, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the samples of a training step, from their positions in the order of reading.

        If the trainer shuffles three samples to 2, 0, 1, the positions 0 and 1 are the samples 2
        and 0.

        Args:
            step: The step.
            positions: Positions of its samples, int64, shape (batch_size,), ascending.

        Returns:
            Numbers of samples in the dataset, int64, shape (batch_size,).

        Raises:
            SampleIndexError: The dataset has too few samples.
        """
        n_usable = self.total
        if self.kind == "interleaved":
            # Every rank gets the same number of samples, so the trainer may drop a few at the end.
            n_usable = self.total // step.n_ranks * step.n_ranks
        if positions[-1] >= n_usable:
            raise _data_ends_error(step, int(positions[-1]), n_usable)

        # Without a shuffle, the trainer reads samples in the order of their numbers.
        if self.seed is None:
            return positions
        return _shuffled(self.total, self.seed)[positions]

    def _cyclic_samples(
        self, step: TrainingStep, positions: NDArray[np.int64], ranks: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the samples of a step of a cyclic loader.

        Each rank has a bucket of consecutive samples, and reads it in another order in each epoch.
        With 2 ranks and 8 samples, rank 0 has the samples 0 to 3, and rank 1 the samples 4 to 7. In
        rounds of one micro-batch for each rank, here of 2 samples, an epoch deals these positions:

            position               0  1  2  3  4  5  6  7
            round                  0  0  0  0  1  1  1  1
            rank                   0  0  1  1  0  0  1  1
            position in bucket     0  1  0  1  2  3  2  3

        Args:
            step: The step.
            positions: Positions of its samples, counted over all epochs; shape (batch_size,).
            ranks: The rank that reads each sample; shape (batch_size,).

        Returns:
            int64, shape (batch_size,).

        Raises:
            ConfigError: The samples before the step are not whole micro-batches of all ranks.
        """
        # An epoch consists of whole rounds: the samples that do not fill the last one are not read.
        round_size = step.micro_batch_size * step.n_ranks
        n_rounds = self.total // round_size
        epoch_size = n_rounds * round_size
        bucket_size = n_rounds * step.micro_batch_size
        if n_rounds == 0 or positions[0] % epoch_size % round_size != 0:
            raise _no_whole_rounds_error(step, int(positions[0]), round_size)

        # The lines of the table, each of the shape (batch_size,).
        epochs = positions // epoch_size
        positions_in_epoch = positions % epoch_size
        rounds = positions_in_epoch // round_size
        position_in_micro_batch = positions_in_epoch % step.micro_batch_size
        positions_in_bucket = rounds * step.micro_batch_size + position_in_micro_batch

        # Look up the sample at each of these positions, in the order of the epoch.
        numbers_in_bucket = _shuffled_by_epoch(bucket_size, epochs, positions_in_bucket)
        first_samples = ranks * bucket_size  # of each rank's bucket
        return first_samples + numbers_in_bucket

    def positions(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return when a trainer reads some samples: their positions in the order of reading.

            position    0  1  2
            sample      2  0  1        so sample 0 has the position 1

        Args:
            samples: Numbers of samples in the dataset, of any shape.

        Returns:
            int64, of the same shape.

        Raises:
            ConfigError: The loader is cyclic. Then it reads each sample in every epoch, at many
                positions.
        """
        if self.kind == "cyclic":
            raise ConfigError(
                "a cyclic loader reads each sample in every epoch",
                where="dataloader_type",
                found="cyclic",
                expected="single",
                remedy="look for the steps one by one: --step",
            )

        # Without a shuffle, samples are read in the order of their numbers.
        if self.seed is None:
            return samples
        sample_at_position = _shuffled(self.total, self.seed)  # [2, 0, 1]
        position_of_sample = np.argsort(sample_at_position)  # [1, 2, 0]
        return position_of_sample[samples]


def _n_read_again(step: TrainingStep, base: int) -> int:
    """Return how many samples a trainer reads again, since it was resumed.

    This is about nanotron, which gives a sample to each rank (process) in turn. When it is resumed,
    it skips the samples that were read, but only whole turns. With 4 ranks and 10 samples read:

        samples        0  1  2  3    4  5  6  7    8  9
        are            skipped       skipped       read again

    Args:
        step: A step after the trainer was resumed.
        base: How many samples of the run come before the first one of this dataset. If the trainer
            was resumed before it, with another dataset, it has read none of this one.

    Returns:
        A number below that of the ranks.
    """
    consumed_of_dataset = max(step.consumed_at_start - base, 0)
    return consumed_of_dataset % step.n_ranks


def _no_whole_rounds_error(step: TrainingStep, consumed: int, round_size: int) -> ConfigError:
    """Return the error for a training step that would begin in the middle of a round of samples.

    A trainer deals samples to its processes (ranks) in rounds: a micro-batch for each. With 2 ranks
    and micro-batches of 4, a round has 8 samples. A step begins with a new round, so 20 samples
    before it are impossible: a setting must be wrong.

    Args:
        step: The step.
        consumed: Samples that were read before the step, such as 20.
        round_size: Samples of a round, such as 8.
    """
    return ConfigError(
        "the samples consumed are not whole micro-batches of all ranks",
        where=f"step {step.number:,}",
        found=consumed,
        expected=f"a multiple of {round_size}",
    )


def _data_ends_error(step: TrainingStep, last_sample: int, n_usable: int) -> SampleIndexError:
    """Return the error for a training step that would read more samples than there are.

        the data ends before this step
        where: step 1,200
        found: samples up to 307,199
        expected: at most sample 299,999 of its dataset

    Args:
        step: The step.
        last_sample: Number of the last sample that it would read, such as 307199.
        n_usable: How many samples the trainer can read, such as 300000.
    """
    return SampleIndexError(
        "the data ends before this step",
        where=f"step {step.number:,}",
        found=f"samples up to {last_sample:,}",
        expected=f"at most sample {n_usable - 1:,} of its dataset",
        remedy="correct the step; or, if the run was continued with another handoff, add "
        "it to `handoff` in run.yaml",
    )


def _shuffled_by_epoch(
    count: int, epochs: NDArray[np.int64], positions: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the numbers at some positions of a list that is shuffled again in each epoch.

    For example, the numbers 0, 1, 2 are in the order 2, 0, 1 in epoch 0, and 1, 2, 0 in epoch 1.
    Position 0 of epoch 0 is the number 2, and position 0 of epoch 1 is the number 1.

    Args:
        count: How many numbers are shuffled.
        epochs: The epoch of each position; shape (n_positions,).
        positions: Below `count`; shape (n_positions,).

    Returns:
        int64, shape (n_positions,).
    """
    numbers = np.empty_like(positions)
    for epoch in np.unique(epochs).tolist():
        is_in_epoch = epochs == epoch
        numbers[is_in_epoch] = _shuffled(count, epoch)[positions[is_in_epoch]]
    return numbers


@lru_cache(maxsize=2)
def _shuffled(count: int, seed: int) -> NDArray[np.int64]:
    """Return `randperm(count, seed)`, and cache the last two orders.

    Steps are looked up one by one, and each needs the order of its epoch.
    """
    return randperm(count, seed)
