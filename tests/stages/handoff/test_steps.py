"""Steps of a run against the trainers' own calculators (golden) and samplers; every sample is read
exactly once.
"""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import golden.trainers
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.loading.samplers import CyclicSampler, InterleavedSampler, PretrainingSampler
from nanoset_core.records.parsing import parse
from nanoset_core.stages.handoff.run import ResumeSpec, RunSpec
from nanoset_core.stages.handoff.steps import Dealer, Steps

GOLDEN = Path(golden.trainers.__path__[0]) / "batch_sizes.jsonl"
CASES = [json.loads(line) for line in GOLDEN.read_bytes().splitlines()]


def spec(**values):
    return parse(RunSpec, {"handoff": "x", **values}, "", "run")


@pytest.mark.parametrize("case", CASES, ids=range(len(CASES)))
def test_the_calculators_of_megatron(case):
    if case["refused"] is not None:
        with pytest.raises(
            ConfigError, match=f"step {case['refused']}: the batch size is not made of whole"
        ):
            Steps(spec(**case["run"]))
        return
    steps, numbers = Steps(spec(**case["run"])), np.arange(1, case["steps"] + 1)
    begins, sizes = (
        np.array([row[:2] for row in case["stretches"]]),
        [row[2] for row in case["stretches"]],
    )
    within = np.searchsorted(begins[:, 0], numbers, "right") - 1
    expected = begins[within, 1] + (numbers - begins[within, 0]) * np.array(sizes)[within]
    first, batch = steps.samples(numbers)
    assert first.tolist() == expected.tolist()
    assert batch.tolist() == np.array(sizes)[within].tolist()
    assert (
        steps.that_read(first).tolist()
        == steps.that_read(first + batch - 1).tolist()
        == numbers.tolist()
    )
    for step in (1, 2, 599):
        assert steps.step(step)[:3] == (step, first[step - 1], batch[step - 1])


def test_a_ramp_up_over_10_to_the_12_samples_takes_no_loop_over_steps():
    ramp = {"rampup_batch_size": [256, 256, 10**12], "global_batch_size": 2560}
    steps = Steps(spec(data_parallel_size=8, micro_batch_size=4, **ramp))
    assert len(steps.stretches) == 10
    assert steps.samples(np.array([10**11]))[1] == 2560


def test_a_ramp_up_that_does_not_lead_to_the_batch_size_of_a_resume_matters_until_it_has_ended():
    run = {
        "data_parallel_size": 2,
        "micro_batch_size": 1,
        "global_batch_size": 8,
        "rampup_batch_size": [4, 4, 40],
    }
    for size in (2, 4, 6, 10):
        with pytest.raises(
            ConfigError, match=f"step 4: the ramp-up .*\n  found: .* global_batch_size {size}"
        ):
            Steps(spec(**run, resumes=[{"iteration": 3, "global_batch_size": size}]))
        steps = Steps(spec(**run, resumes=[{"iteration": 12, "global_batch_size": size}]))
        assert steps.stretches[-1][:3] == (13, 56, size)


def test_a_schedule_that_counts_tokens():
    run = {
        "data_parallel_size": 2,
        "micro_batch_size": 1,
        "step_batch_size_schedule": "0:4, 1.6K:8",
        "seq_length": 16,
    }
    assert [
        (one.first_step, one.first_sample, one.batch_size) for one in Steps(spec(**run)).stretches
    ] == [
        (1, 0, 4),
        (26, 100, 8),
    ]
    for text in ("", "0", "16:8", "0:8 16:4", "0:x", "0:8 0:9"):
        with pytest.raises(ConfigError, match="the schedule of batch sizes cannot be read"):
            Steps(spec(**run | {"step_batch_size_schedule": text}))


# Parts of a run: ranks, samples of a micro-batch, micro-batches of a step, steps.
PARTS = st.lists(
    st.tuples(*[st.integers(1, high) for high in (5, 4, 3, 6)]), min_size=1, max_size=4
)


def run_of(parts):
    """(run, [(first step, end, ranks, micro-batch, micro-batches)]) of parts, each under other
    numbers.
    """
    rows, done = [], 1
    for ranks, micro, count, steps in parts:
        rows.append((done, done + steps, ranks, micro, count))
        done += steps
    resumes = tuple(
        ResumeSpec(begin - 1, ranks, micro, ranks * micro * count)
        for begin, _, ranks, micro, count in rows
    )
    return RunSpec("x", 1, 1, 1, resumes=resumes), rows


def read(run, dealer, steps):
    """(samples, ranks, micro-batches) of each step."""
    counted = Steps(run)
    return [dealer.deal(counted.step(step), 0) for step in steps]


@settings(max_examples=60, deadline=None)
@given(PARTS, st.sampled_from(["single", "interleaved", "shuffled"]))
def test_every_sample_is_read_once(parts, kind):
    # or nanotron deals samples of a broken round again
    same_ranks = [(parts[0][0], *part[1:]) for part in parts]
    run, rows = run_of(parts if kind == "single" else same_ranks)
    total = sum((end - begin) * ranks * micro * count for begin, end, ranks, micro, count in rows)
    dealer = Dealer(
        total, "single" if kind == "single" else "interleaved", 7 if kind == "shuffled" else None
    )
    seen = read(run, dealer, range(1, rows[-1][1]))
    assert sorted(np.concatenate([samples for samples, _, _ in seen]).tolist()) == list(
        range(total)
    )
    numbers = np.concatenate([samples for samples, _, _ in seen])
    assert dealer.positions(numbers).tolist() == list(range(total))
    for samples, ranks, micro_batches in seen:
        places = set(zip(ranks.tolist(), micro_batches.tolist(), strict=True))
        assert len(places) * len(samples) // len(places) == len(samples)
    with pytest.raises(SampleIndexError, match="the data ends before this step"):
        read(run, dealer, [rows[-1][1]])


def theirs(kind, total, consumed, ranks, micro, rank):
    """Micro-batches of one rank as the sampler of the trainer gives them, from consumed samples on."""
    if kind == "single":
        yield from PretrainingSampler(total, consumed, micro, rank, ranks)
    elif kind == "interleaved":
        mine = iter(InterleavedSampler(total, consumed, rank, ranks))
        yield from iter(lambda: list(itertools.islice(mine, micro)), [])
    else:
        while True:  # epoch after epoch
            epoch = CyclicSampler(total, consumed, micro, rank, ranks)
            yield from epoch
            consumed += len(epoch) * micro * ranks


@settings(max_examples=80, deadline=None)
@given(PARTS, st.sampled_from(["single", "interleaved", "cyclic"]), st.integers(0, 40))
def test_ranks_get_what_their_samplers_give(parts, kind, more):
    run, rows = run_of(parts)
    total = sum((end - begin) * ranks * micro * count for begin, end, ranks, micro, count in rows)
    total = max(total // 2 + more, 1) if kind == "cyclic" else total + more
    dealer, consumed = Dealer(total, kind, 42 if kind == "interleaved" else None), 0
    for begin, end, ranks, micro, count in rows:
        step = ranks * micro
        if kind == "cyclic" and (total < step or consumed % (total // step * step) % step):
            with pytest.raises(ConfigError, match="not whole micro-batches"):
                read(run, dealer, [begin])
            return
        samplers = [theirs(kind, total, consumed, ranks, micro, rank) for rank in range(ranks)]
        for samples, own, micro_batches in read(run, dealer, range(begin, end)):
            for number, (rank, sampler) in itertools.product(range(count), enumerate(samplers)):
                mine = samples[(own == rank) & (micro_batches == number)]
                assert mine.tolist() == next(sampler)
        consumed += (end - begin) * step * count


def test_each_trainer_has_its_dealer():
    kinds = {
        name: Dealer.of(name, "single", 9, 5)
        for name in ("megatron", "nemo", "nanotron", "nanotron-000")
    }
    assert [(one.kind, one.seed) for one in kinds.values()] == [
        *[("single", None)] * 2,
        ("interleaved", 42),
        ("interleaved", 5),
    ]
    assert Dealer.of("nanotron-main", "single", 9, 5) == Dealer(9, "interleaved")
    assert Dealer.of("nanotron-main-bytes", "single", 9, 5) == Dealer(9)
    with pytest.raises(ConfigError, match="this trainer's data loader has no types"):
        Dealer.of("nanotron", "cyclic", 9, 5)
    with pytest.raises(ConfigError, match="reads each sample in every epoch"):
        Dealer(9, "cyclic").positions(np.arange(3))
