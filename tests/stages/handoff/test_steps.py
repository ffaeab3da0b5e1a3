"""Each step of a run reads the samples that its trainer reads, on the same rank and micro-batch.

Batch sizes are compared with those of Megatron-LM's calculators (golden), and ranks with the
trainers' samplers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate, islice, pairwise
from pathlib import Path
from typing import Any, NamedTuple

import golden.trainers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.loading.samplers import CyclicSampler, InterleavedSampler, PretrainingSampler
from nanoset_core.records.parsing import parse
from nanoset_core.stages.handoff.run import ResumeSpec, RunSpec
from nanoset_core.stages.handoff.steps import Dealer, DealtSamples, Steps


def parse_run(**run: Any) -> RunSpec:
    """Return the settings of a run, as run.yaml has them."""
    return parse(RunSpec, {"handoff": "x", **run}, "", "run")


# Batch sizes of Megatron-LM's calculators

GOLDEN_FILE = Path(golden.trainers.__path__[0]) / "batch_sizes.jsonl"
GOLDEN_RUNS = [json.loads(line) for line in GOLDEN_FILE.read_bytes().splitlines()]
"""Settings of runs, and what Megatron-LM's calculators made of them."""
ACCEPTED_RUNS = [run for run in GOLDEN_RUNS if run["refused"] is None]
REFUSED_RUNS = [run for run in GOLDEN_RUNS if run["refused"] is not None]


class GoldenStretch(NamedTuple):
    """Consecutive steps of one batch size, as a calculator of Megatron-LM gave them."""

    first_step: int
    first_sample: int
    batch_size: int


class ExpectedSteps(NamedTuple):
    """What the first steps of a run read; lists with an entry for each step."""

    first_samples: list[int]
    batch_sizes: list[int]


def expected_steps(golden_run: dict[str, Any]) -> ExpectedSteps:
    """Return what the steps of a run read by Megatron-LM's calculators."""
    stretches = [GoldenStretch(*row) for row in golden_run["stretches"]]
    end = GoldenStretch(golden_run["steps"] + 1, first_sample=0, batch_size=0)
    first_samples = []
    batch_sizes = []
    for stretch, next_stretch in pairwise([*stretches, end]):
        n_steps = next_stretch.first_step - stretch.first_step
        for number in range(n_steps):
            first_samples.append(stretch.first_sample + number * stretch.batch_size)
            batch_sizes.append(stretch.batch_size)
    return ExpectedSteps(first_samples, batch_sizes)


@pytest.mark.parametrize("golden_run", ACCEPTED_RUNS, ids=range(len(ACCEPTED_RUNS)))
def test_steps_read_the_samples_of_megatrons_calculators(golden_run):
    expected = expected_steps(golden_run)
    numbers = np.arange(1, golden_run["steps"] + 1)

    first_samples, batch_sizes = Steps(parse_run(**golden_run["run"])).samples(numbers)

    assert first_samples.tolist() == expected.first_samples
    assert batch_sizes.tolist() == expected.batch_sizes


@pytest.mark.parametrize("golden_run", ACCEPTED_RUNS, ids=range(len(ACCEPTED_RUNS)))
def test_the_first_and_the_last_sample_of_a_step_lead_back_to_it(golden_run):
    steps = Steps(parse_run(**golden_run["run"]))
    numbers = np.arange(1, golden_run["steps"] + 1)
    first_samples, batch_sizes = steps.samples(numbers)

    assert steps.that_read(first_samples).tolist() == numbers.tolist()
    assert steps.that_read(first_samples + batch_sizes - 1).tolist() == numbers.tolist()


@pytest.mark.parametrize("golden_run", ACCEPTED_RUNS, ids=range(len(ACCEPTED_RUNS)))
def test_a_single_step_is_the_same_as_among_others(golden_run):
    expected = expected_steps(golden_run)
    steps = Steps(parse_run(**golden_run["run"]))

    for number in (1, 2, 599):
        step = steps.step(number)
        assert step.number == number
        assert step.first_sample == expected.first_samples[number - 1]
        assert step.batch_size == expected.batch_sizes[number - 1]


@pytest.mark.parametrize("golden_run", REFUSED_RUNS, ids=range(len(REFUSED_RUNS)))
def test_a_batch_size_that_megatron_refuses_is_refused_at_the_same_step(golden_run):
    message = f"step {golden_run['refused']}: the batch size is not made of whole"

    with pytest.raises(ConfigError, match=message):
        Steps(parse_run(**golden_run["run"]))


def test_a_ramp_up_over_10_to_the_12_samples_takes_no_loop_over_steps():
    run = parse_run(
        data_parallel_size=8,
        micro_batch_size=4,
        rampup_batch_size=[256, 256, 10**12],
        global_batch_size=2560,
    )

    steps = Steps(run)

    assert len(steps.stretches) == 10
    _first_samples, batch_sizes = steps.samples(np.array([10**11]))
    assert batch_sizes == 2560


# A run with a ramp-up, whose batch size is changed as it is resumed

RAMP_UP = {
    "data_parallel_size": 2,
    "micro_batch_size": 1,
    "global_batch_size": 8,
    "rampup_batch_size": [4, 4, 40],
}
SIZES_OUTSIDE_THE_RAMP_UP = [2, 4, 6, 10]


@pytest.mark.parametrize("size", SIZES_OUTSIDE_THE_RAMP_UP)
def test_a_ramp_up_that_does_not_lead_to_the_batch_size_of_a_resume_is_refused(size):
    run = parse_run(**RAMP_UP, resumes=[{"iteration": 3, "global_batch_size": size}])

    message = f"step 4: the ramp-up .*\n  found: .* global_batch_size {size}"
    with pytest.raises(ConfigError, match=message):
        Steps(run)


@pytest.mark.parametrize("size", SIZES_OUTSIDE_THE_RAMP_UP)
def test_after_the_ramp_up_a_run_may_be_resumed_with_any_batch_size(size):
    run = parse_run(**RAMP_UP, resumes=[{"iteration": 12, "global_batch_size": size}])

    last_stretch = Steps(run).stretches[-1]

    assert last_stretch.first_step == 13
    assert last_stretch.first_sample == 56
    assert last_stretch.batch_size == size


# A schedule of batch sizes

SCHEDULED = {"data_parallel_size": 2, "micro_batch_size": 1, "seq_length": 16}


def test_a_schedule_that_counts_tokens_is_converted_to_samples():
    steps = Steps(parse_run(**SCHEDULED, step_batch_size_schedule="0:4, 1.6K:8"))

    first_stretch, second_stretch = steps.stretches
    assert first_stretch[:3] == (1, 0, 4)  # step, sample, batch size
    assert second_stretch[:3] == (26, 100, 8)


@pytest.mark.parametrize("text", ["", "0", "16:8", "0:8 16:4", "0:x", "0:8 0:9"])
def test_a_schedule_that_cannot_be_read_is_refused(text):
    run = parse_run(**SCHEDULED, step_batch_size_schedule=text)

    with pytest.raises(ConfigError, match="the schedule of batch sizes cannot be read"):
        Steps(run)


# Which rank reads which sample


class Part(NamedTuple):
    """Consecutive steps of a run with the same settings; the trainer is resumed after each part."""

    n_ranks: int
    micro_batch_size: int
    n_micro_batches: int
    """Micro-batches of a rank in a step."""
    n_steps: int

    @property
    def batch_size(self) -> int:
        """Samples of a step."""
        return self.n_ranks * self.micro_batch_size * self.n_micro_batches


PARTS = st.lists(
    st.builds(
        Part,
        n_ranks=st.integers(1, 5),
        micro_batch_size=st.integers(1, 4),
        n_micro_batches=st.integers(1, 3),
        n_steps=st.integers(1, 6),
    ),
    min_size=1,
    max_size=4,
)


def ranges_of_steps(parts: Sequence[Part]) -> list[range]:
    """Return the numbers of the steps of each part; those of a run begin with 1."""
    bounds = accumulate((part.n_steps for part in parts), initial=1)
    return [range(start, stop) for start, stop in pairwise(bounds)]


def count_samples(parts: Sequence[Part]) -> int:
    """Return how many samples a run reads."""
    return sum(part.n_steps * part.batch_size for part in parts)


def run_of(parts: Sequence[Part]) -> RunSpec:
    """Return the settings of a run, which is resumed with those of each part."""
    resumes = []
    for part, step_numbers in zip(parts, ranges_of_steps(parts), strict=True):
        resume = ResumeSpec(
            iteration=step_numbers.start - 1,
            data_parallel_size=part.n_ranks,
            micro_batch_size=part.micro_batch_size,
            global_batch_size=part.batch_size,
        )
        resumes.append(resume)
    return RunSpec("x", 1, 1, 1, resumes=tuple(resumes))


def deal(dealer: Dealer, steps: Steps, numbers: Sequence[int]) -> list[DealtSamples]:
    """Return the samples of some steps, with the rank and the micro-batch that each goes to."""
    return [dealer.deal(steps.step(number), base=0) for number in numbers]


def with_ranks_of_the_first(parts: Sequence[Part]) -> list[Part]:
    """Return parts with the same number of ranks.

    With another number of ranks, nanotron reads the samples of an incomplete round again.
    """
    return [part._replace(n_ranks=parts[0].n_ranks) for part in parts]


def check_that_each_sample_is_read_once(parts: Sequence[Part], dealer: Dealer) -> None:
    """Check that the steps of a run read all samples of a dataset, and no sample twice.

    Args:
        parts: The parts of the run.
        dealer: Deals as many samples as the run reads.
    """
    steps = Steps(run_of(parts))
    numbers = range(1, ranges_of_steps(parts)[-1].stop)
    dealt = deal(dealer, steps, numbers)

    samples = np.concatenate([step.samples for step in dealt])
    assert sorted(samples.tolist()) == list(range(dealer.total))
    assert dealer.positions(samples).tolist() == list(range(dealer.total))
    with pytest.raises(SampleIndexError, match="the data ends before this step"):
        deal(dealer, steps, [numbers.stop])


@settings(max_examples=20, deadline=None)
@given(PARTS)
def test_each_sample_is_read_once_in_order(parts):
    check_that_each_sample_is_read_once(parts, Dealer(count_samples(parts), "single"))


@pytest.mark.parametrize("seed", [None, 7], ids=["in order", "shuffled"])
@settings(max_examples=20, deadline=None)
@given(PARTS)
def test_each_sample_is_read_once_by_interleaved_ranks(seed, parts):
    parts = with_ranks_of_the_first(parts)

    check_that_each_sample_is_read_once(parts, Dealer(count_samples(parts), "interleaved", seed))


@pytest.mark.parametrize("kind", ["single", "interleaved"])
@settings(max_examples=20, deadline=None)
@given(PARTS)
def test_each_micro_batch_of_a_step_has_the_same_number_of_samples(kind, parts):
    steps = Steps(run_of(parts))
    dealer = Dealer(count_samples(parts), kind)

    for part, step_numbers in zip(parts, ranges_of_steps(parts), strict=True):
        for dealt in deal(dealer, steps, step_numbers):
            # (n_ranks, n_micro_batches) the number of samples of each micro-batch
            counts = np.zeros((part.n_ranks, part.n_micro_batches), np.int64)
            np.add.at(counts, (dealt.ranks, dealt.micro_batches), 1)
            assert (counts == part.micro_batch_size).all()


# The same as by the trainers' samplers

MicroBatches = Iterator[list[int]]
"""The micro-batches of one rank, each a list of samples."""
Sampler = Callable[[int, int, Part, int], MicroBatches]
"""Called with the samples of the dataset, those that were consumed, the part, and the rank."""


def single_sampler(total: int, consumed: int, part: Part, rank: int) -> MicroBatches:
    """Yield the micro-batches of a rank as Megatron-LM's sampler does."""
    sampler = PretrainingSampler(total, consumed, part.micro_batch_size, rank, part.n_ranks)
    yield from sampler


def interleaved_sampler(total: int, consumed: int, part: Part, rank: int) -> MicroBatches:
    """Yield the micro-batches of a rank as nanotron's sampler does."""
    samples = iter(InterleavedSampler(total, consumed, rank, part.n_ranks))
    while micro_batch := list(islice(samples, part.micro_batch_size)):
        yield micro_batch


def cyclic_sampler(total: int, consumed: int, part: Part, rank: int) -> MicroBatches:
    """Yield the micro-batches of a rank as Megatron-LM's cyclic sampler does, epoch after epoch."""
    while True:
        epoch = CyclicSampler(total, consumed, part.micro_batch_size, rank, part.n_ranks)
        yield from epoch
        consumed += len(epoch) * part.micro_batch_size * part.n_ranks


def check_against_samplers(
    part: Part, dealt_by_step: Sequence[DealtSamples], samplers: Sequence[MicroBatches]
) -> None:
    """Check that the ranks get the micro-batches that their samplers yield.

    Args:
        part: The part of the run that the steps are in.
        dealt_by_step: The samples of each step.
        samplers: The sampler of each rank.
    """
    for dealt in dealt_by_step:
        for number in range(part.n_micro_batches):
            for rank, sampler in enumerate(samplers):
                is_in_micro_batch = (dealt.ranks == rank) & (dealt.micro_batches == number)
                assert dealt.samples[is_in_micro_batch].tolist() == next(sampler)


SAMPLER_BY_KIND: dict[str, Sampler] = {
    "single": single_sampler,
    "interleaved": interleaved_sampler,
}
SEED_BY_KIND = {"single": None, "interleaved": 42}
"""Seed of the shuffle; nanotron's sampler always has this one."""


@pytest.mark.parametrize("kind", SAMPLER_BY_KIND)
@settings(max_examples=30, deadline=None)
@given(parts=PARTS, n_unread=st.integers(0, 40))
def test_ranks_get_the_micro_batches_of_their_samplers(kind, parts, n_unread):
    sampler_of = SAMPLER_BY_KIND[kind]
    total = count_samples(parts) + n_unread
    dealer = Dealer(total, kind, SEED_BY_KIND[kind])
    steps = Steps(run_of(parts))

    consumed = 0
    for part, step_numbers in zip(parts, ranges_of_steps(parts), strict=True):
        samplers = [sampler_of(total, consumed, part, rank) for rank in range(part.n_ranks)]
        check_against_samplers(part, deal(dealer, steps, step_numbers), samplers)
        consumed += part.n_steps * part.batch_size


@settings(max_examples=30, deadline=None)
@given(parts=PARTS, n_more=st.integers(0, 40))
def test_ranks_get_the_micro_batches_of_their_cyclic_samplers(parts, n_more):
    # The run reads the dataset up to two times.
    total = max(count_samples(parts) // 2 + n_more, 1)
    dealer = Dealer(total, "cyclic")
    steps = Steps(run_of(parts))

    consumed = 0
    for part, step_numbers in zip(parts, ranges_of_steps(parts), strict=True):
        # An epoch consists of whole rounds, in each of which every rank reads a micro-batch. The
        # trainer refuses to resume in the middle of a round.
        round_size = part.n_ranks * part.micro_batch_size
        epoch_size = total // round_size * round_size
        if epoch_size == 0 or consumed % epoch_size % round_size != 0:
            with pytest.raises(ConfigError, match="not whole micro-batches"):
                deal(dealer, steps, [step_numbers.start])
            return

        samplers = [cyclic_sampler(total, consumed, part, rank) for rank in range(part.n_ranks)]
        check_against_samplers(part, deal(dealer, steps, step_numbers), samplers)
        consumed += part.n_steps * part.batch_size


# The order of each trainer


@pytest.mark.parametrize(
    ("preset", "dealer"),
    [
        ("megatron", Dealer(9, "single")),
        ("nemo", Dealer(9, "single")),
        ("nanotron", Dealer(9, "interleaved", seed=42)),
        ("nanotron-000", Dealer(9, "interleaved", seed=5)),
        ("nanotron-main", Dealer(9, "interleaved")),
        ("nanotron-main-bytes", Dealer(9, "single")),
    ],
)
def test_samples_are_dealt_as_by_the_trainer_of_a_preset(preset, dealer):
    assert Dealer.of(preset, "single", total=9, random_seed=5) == dealer


def test_a_type_of_data_loader_that_the_trainer_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="this trainer's data loader has no types"):
        Dealer.of("nanotron", "cyclic", total=9, random_seed=5)


def test_a_sample_of_a_cyclic_loader_has_no_single_position():
    with pytest.raises(ConfigError, match="reads each sample in every epoch"):
        Dealer(9, "cyclic").positions(np.arange(3))
