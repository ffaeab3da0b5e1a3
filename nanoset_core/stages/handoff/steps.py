"""Which samples each step of a run reads, and which rank and micro-batch gets them, as the trainers count.

Sources: Megatron-LM core_v0.16.1 `core/num_microbatches_calculator.py` (ConstantNumMicroBatchesCalculator,
RampupBatchsizeNumMicroBatchesCalculator) and `training/training.py` (train), main (0.20.0) for
StepBatchsizeNumMicroBatchesCalculator; the samplers as in `loading/samplers.py`.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator
from contextlib import suppress
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
_RESUMED = ("data_parallel_size", "micro_batch_size", "global_batch_size")


class Stretch(NamedTuple):
    """Steps that follow one another with one batch size on one number of ranks."""

    step: int
    """The first of them; a run's first step is 1, as trainers log them."""
    sample: int
    """The run's first sample that they read."""
    batch: int
    """Samples of a step."""
    micro_batch: int
    """Samples of a micro-batch of one rank."""
    ranks: int
    """Data-parallel ranks."""
    resumed: int
    """Samples that were consumed when the trainer was last started."""


class Steps:
    """The steps of a run, which has no end."""

    def __init__(self, run: RunSpec) -> None:
        """Count them; ConfigError where a trainer would refuse a batch size."""
        self.stretches = tuple(_stretches(run))
        """In their order; the last one has no end."""
        columns = np.array([(stretch.step, stretch.sample, stretch.batch) for stretch in self.stretches], np.int64)
        self._first, self._sample, self._batch = columns.T

    def stretch(self, step: int) -> Stretch:
        """Return the stretch of one step alone, with its first sample."""
        within = self.stretches[int(np.searchsorted(self._first, step, "right")) - 1]
        return within._replace(step=step, sample=within.sample + (step - within.step) * within.batch)

    def samples(self, steps: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first sample of steps, and how many samples each has; int64, of their shape."""
        within = np.searchsorted(self._first, steps, "right") - 1
        batch = self._batch[within]
        return self._sample[within] + (steps - self._first[within]) * batch, batch

    def of(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the steps that read samples of the run, int64, of their shape."""
        within = np.searchsorted(self._sample, samples, "right") - 1
        found: NDArray[np.int64] = self._first[within] + (samples - self._sample[within]) // self._batch[within]
        return found


def _stretches(run: RunSpec) -> Iterator[Stretch]:
    done = consumed = 0
    for begin, end in pairwise([None, *run.resumes, None]):
        given = {name: getattr(begin, name) for name in _RESUMED if getattr(begin, name, None) is not None}
        run, resumed = replace(run, **given), consumed
        size, last = batch_sizes(run, done, consumed)
        while end is None or done < end.iteration:
            batch = running_size(run, size(consumed), done + 1)
            yield Stretch(done + 1, consumed, batch, run.micro_batch_size, run.data_parallel_size, resumed)
            # The first step of another batch size, if there is one.
            ahead = range(1, max(last - consumed, -1) // batch + 2)
            steps = bisect_left(ahead, True, key=_differs(size, consumed, batch)) + 1
            if end is not None:
                steps = min(steps if steps <= len(ahead) else end.iteration, end.iteration - done)
            elif steps > len(ahead):
                return
            done, consumed = done + steps, consumed + steps * batch


def _differs(size: Callable[[int], int], consumed: int, batch: int) -> Callable[[int], bool]:
    now = size(consumed)
    return lambda steps: size(consumed + steps * batch) != now


def batch_sizes(run: RunSpec, done: int, begin: int) -> tuple[Callable[[int], int], int]:
    """Return what gives the batch size after so many consumed samples, and after how many it is the last one.

    Args:
        run: with the numbers that it was last started with.
        done: iterations that were done then.
        begin: samples that were consumed then.

    Raises:
        ConfigError: the schedule cannot be read, or the ramp-up does not lead to the batch size.
    """
    if run.step_batch_size_schedule is not None:
        begins, sizes = _schedule(run.step_batch_size_schedule, run.seq_length or 1)
        return lambda consumed: sizes[bisect_right(begins, consumed) - 1], begins[-1]
    whole = run.global_batch_size or 0
    if run.rampup_batch_size is None or begin > run.rampup_batch_size[2]:
        return lambda _: whole, 0
    if not ramps_up(run.rampup_batch_size, whole):
        what, where = "the ramp-up does not lead to the batch size that the run went on with", f"step {done + 1:,}"
        found, remedy = f"{list(run.rampup_batch_size)}, global_batch_size {whole}", "correct the entry of `resumes`"
        raise ConfigError(what, where=where, found=found, remedy=remedy)
    start, increment, samples = run.rampup_batch_size
    each = samples / ((whole - start) // increment)  # with its rounding
    return lambda now: whole if now > samples else start + int(now / each) * increment, samples + 1


def running_size(run: RunSpec, batch: int, step: int) -> int:
    """Return the samples that a step really reads of a batch size; ConfigError where no micro-batches make it up."""
    each = run.micro_batch_size * run.data_parallel_size
    if batch >= each and (batch % each == 0 or run.decrease_batch_size_if_needed):
        return batch // each * each
    what, found = "the batch size is not made of whole micro-batches of all ranks", f"{batch:,} samples"
    expected = f"a multiple of {run.micro_batch_size} * {run.data_parallel_size}, as the trainer asks for"
    remedy = "write into run.yaml what the run was started with"
    raise ConfigError(what, where=f"step {step:,}", found=found, expected=expected, remedy=remedy)


def _schedule(text: str, each: int) -> tuple[list[int], list[int]]:
    """Return the samples from which on each batch size holds, and these; the text counts `each` for a sample."""
    with suppress(ValueError):
        pairs = sorted((_number(at) // each, _number(size)) for at, size in _entries(text))
        begins, sizes = [at for at, _ in pairs], [size for _, size in pairs]
        if begins[:1] == [0] and sizes == sorted(sizes) and len(set(begins)) == len(begins):
            return begins, sizes
    expected = "pairs of samples and batch size from 0 on, the sizes growing: 0:768 1M:1536"
    what, where = "the schedule of batch sizes cannot be read", "step_batch_size_schedule"
    raise ConfigError(what, where=where, found=repr(text), expected=expected, remedy="write it as the trainer's option")


def _entries(text: str) -> Iterator[list[str]]:
    return (entry.split(":", 1) for entry in text.replace(",", " ").split())


def _number(text: str) -> int:
    factor = _SUFFIXES.get(text[-1:].upper(), 1)
    return int(float(text[:-1] if factor > 1 else text) * factor)


@dataclass(frozen=True, slots=True)
class Dealer:
    """How a trainer deals the samples of a dataset to its ranks."""

    total: int
    """Samples of the dataset."""
    kind: str = "single"
    """`single`: a micro-batch to each rank in turn; `cyclic`: in an order of its own each epoch; `interleaved`: a
    sample to each rank in turn."""
    seed: int | None = None
    """Of the shuffle before the samples are dealt; None where there is none."""

    @staticmethod
    def of(preset: str, dataloader_type: str, total: int, random_seed: int) -> Dealer:
        """Return that of a preset's trainer; ConfigError where it has no such type.

        Sources: nanotron 896473d `dataloader.py` (_get_train_sampler), 698c85b4 `data/dataloader_builder.py`
        (get_sampler), 2411b022 `data/samplers.py` (get_sampler, MegatronPretrainingSampler).
        """
        seeds = {"nanotron": 42, "nanotron-000": random_seed, "nanotron-main": None}
        if preset not in seeds:
            return Dealer(total, dataloader_type)
        if dataloader_type != "single":
            what, remedy = "this trainer's data loader has no types", "remove dataloader_type"
            raise ConfigError(what, where="dataloader_type", found=dataloader_type, remedy=remedy)
        return Dealer(total, "interleaved", seeds[preset])

    def dealt(self, step: Stretch, base: int) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the samples of a step, and the rank and the micro-batch of each, int64, each of shape (batch,).

        Args:
            step: the step alone.
            base: the run's sample that is the dataset's first.

        Raises:
            SampleIndexError: the dataset has less samples.
        """
        numbers, round_ = np.arange(step.batch), step.micro_batch * step.ranks
        ranks = numbers % round_ // step.micro_batch if self.kind != "interleaved" else numbers % step.ranks
        positions = step.sample - base + numbers
        if self.kind == "interleaved":  # samples of a round that was broken off are dealt again
            positions -= max(step.resumed - base, 0) % step.ranks
        samples = self._cyclic(step, positions, ranks) if self.kind == "cyclic" else self._in_order(step, positions)
        return samples, ranks, numbers // round_

    def _in_order(self, step: Stretch, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        usable = self.total // step.ranks * step.ranks if self.kind == "interleaved" else self.total
        if positions[-1] >= usable:
            what, expected = "the data ends before this step", f"at most sample {usable - 1:,} of its dataset"
            remedy = "correct the step; or add the handoff that the run went on with to `handoff` in run.yaml"
            found = f"samples up to {positions[-1]:,}"
            raise SampleIndexError(what, where=f"step {step.step:,}", found=found, expected=expected, remedy=remedy)
        return positions if self.seed is None else order(self.total, self.seed)[positions]

    def _cyclic(self, step: Stretch, positions: NDArray[np.int64], ranks: NDArray[np.int64]) -> NDArray[np.int64]:
        round_ = step.micro_batch * step.ranks
        rounds = self.total // round_
        if rounds == 0 or positions[0] % (rounds * round_) % round_:
            what, found = "the samples consumed are not whole micro-batches of all ranks", int(positions[0])
            raise ConfigError(what, where=f"step {step.step:,}", found=found, expected=f"a multiple of {round_}")
        epochs, within = np.divmod(positions, rounds * round_)
        within = within // round_ * step.micro_batch + within % step.micro_batch
        bucket, samples = rounds * step.micro_batch, np.empty_like(positions)
        for epoch in np.unique(epochs).tolist():
            now = epochs == epoch
            samples[now] = order(bucket, epoch)[within[now]] + ranks[now] * bucket
        return samples

    def positions(self, samples: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return where samples stand in the order in which they are dealt; ConfigError where they come again."""
        if self.kind == "cyclic":
            what, remedy = "samples of a cyclic loader come again each epoch", "look for the steps one by one: --step"
            raise ConfigError(what, where="dataloader_type", found="cyclic", expected="single", remedy=remedy)
        if self.seed is None:
            return samples
        return np.argsort(order(self.total, self.seed))[samples]


@lru_cache(maxsize=2)
def order(count: int, seed: int) -> NDArray[np.int64]:
    """Return `randperm`, whose last orders are kept."""
    return randperm(count, seed)
