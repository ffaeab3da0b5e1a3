"""Samplers deal the same samples to each rank as the trainers' own, and resume anywhere."""

from __future__ import annotations

import itertools
import json

import numpy as np
import pytest
from golden.megatron.cases import rows
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError
from nanoset_core.loading import samplers
from nanoset_core.loading.samplers import (
    CyclicSampler,
    InterleavedSampler,
    PretrainingSampler,
    ResumableSampler,
    randperm,
)

MEGATRON_ROWS = rows("samplers")
"""What the samplers of Megatron-LM and NeMo yielded, one row for each rank."""
MODALITIES_CASES = json.loads((GOLDEN_FILES / "modalities" / "samplers.json").read_bytes())
"""What Modalities' sampler yielded, for all ranks of a run."""


def join_batches(batches):
    """Return the samples of some batches as one list."""
    return list(itertools.chain.from_iterable(batches))


# The trainers' own samplers, from recorded runs


def our_samplers(row):
    """Return the sampler that should equal each of the trainers' own, by its name in a row."""
    place = {
        "total_samples": row["total"],
        "consumed_samples": row["consumed"],
        "micro_batch_size": row["micro_batch"],
        "data_parallel_rank": row["dp_rank"],
        "data_parallel_size": row["dp_size"],
    }
    global_batch = 2 * row["micro_batch"] * row["dp_size"]
    return {
        "mcore_sequential_drop": PretrainingSampler(**place),
        "mcore_sequential_keep": PretrainingSampler(**place, drop_last=False),
        "mcore_random_sharded": CyclicSampler(**place),
        "mcore_random_unsharded": CyclicSampler(**place, data_sharding=False),
        "nemo_sequential_drop": PretrainingSampler(**place, pad_to_global_batch=global_batch),
        "nemo_sequential_keep": PretrainingSampler(**place, drop_last=False),
        "nemo_sequential_pad": PretrainingSampler(
            **place, drop_last=False, pad_to_global_batch=global_batch
        ),
        "nemo_random": CyclicSampler(**place),
    }


def name_of_row(row):
    """Return the id of a row: its numbers of samples and ranks."""
    return "{total}-{consumed}-{micro_batch}-{dp_rank}-{dp_size}".format(**row)


@pytest.mark.parametrize("name", our_samplers(MEGATRON_ROWS[0]))
@pytest.mark.parametrize("row", MEGATRON_ROWS, ids=name_of_row)
def test_a_rank_gets_the_batches_of_megatron_lm_and_nemo(row, name):
    sampler = our_samplers(row)[name]

    assert list(sampler) == row[name]
    assert len(sampler) == len(row[name])


def name_of_case(case):
    """Return the id of a case: all of its settings."""
    setting_names = [name for name in case if name != "per_rank"]
    return "-".join(str(case[name]) for name in setting_names)


@pytest.mark.parametrize("case", MODALITIES_CASES, ids=name_of_case)
def test_each_rank_gets_the_samples_of_modalities(case):
    for rank, expected in enumerate(case["per_rank"]):
        sampler = ResumableSampler(
            total_samples=case["dataset_len"],
            consumed_samples=case["skip"],
            data_parallel_rank=rank,
            data_parallel_size=case["replicas"],
            epoch=case["epoch"],
            shuffle=case["shuffle"],
            seed=case["seed"],
            drop_last=case["drop_last"],
        )

        assert list(sampler) == expected
        assert len(sampler) == len(expected)


# Sequential micro-batches: PretrainingSampler


def slow_sequential_batches(total, consumed, micro_batch, rank, n_ranks, drop_last):
    """Yield a rank's batches, as Megatron-LM's `MegatronPretrainingSampler.__iter__` does."""
    start_of_rank = rank * micro_batch
    stop_of_rank = start_of_rank + micro_batch
    batch_of_all_ranks = []
    for sample in range(consumed, total):
        batch_of_all_ranks.append(sample)
        if len(batch_of_all_ranks) == micro_batch * n_ranks:
            yield batch_of_all_ranks[start_of_rank:stop_of_rank]
            batch_of_all_ranks = []
    if batch_of_all_ranks and not drop_last:
        yield batch_of_all_ranks[start_of_rank:stop_of_rank]


@given(
    total=st.integers(1, 60),
    consumed=st.integers(0, 59),
    micro_batch=st.integers(1, 5),
    n_ranks=st.integers(1, 4),
    drop_last=st.booleans(),
)
def test_sequential_batches_are_those_of_a_walk_over_all_samples(
    total, consumed, micro_batch, n_ranks, drop_last
):
    consumed = min(consumed, total - 1)
    for rank in range(n_ranks):
        sampler = PretrainingSampler(total, consumed, micro_batch, rank, n_ranks, drop_last)
        batches = list(sampler)

        expected = slow_sequential_batches(total, consumed, micro_batch, rank, n_ranks, drop_last)
        assert batches == list(expected)
        assert len(sampler) == len(batches)


def test_the_last_global_batch_is_filled_up_with_negative_numbers():
    rank_0 = PretrainingSampler(7, 0, 1, 0, 2, drop_last=False, pad_to_global_batch=6)
    rank_1 = PretrainingSampler(7, 0, 1, 1, 2, drop_last=False, pad_to_global_batch=6)

    assert list(rank_0) == [[0], [2], [4], [6], [-2], [-4]]
    assert list(rank_1) == [[1], [3], [5], [-1], [-3], [-5]]


def test_the_last_global_batch_is_filled_up_with_none_on_request():
    padding = {"drop_last": False, "pad_to_global_batch": 6, "pad_with_none": True}
    rank_0 = PretrainingSampler(7, 0, 1, 0, 2, **padding)
    rank_1 = PretrainingSampler(7, 0, 1, 1, 2, **padding)

    assert list(rank_0) == [[0], [2], [4], [6], [None], [None]]
    assert list(rank_1) == [[1], [3], [5], [None], [None], [None]]


def test_a_global_batch_that_is_not_a_multiple_of_the_step_is_refused():
    with pytest.raises(ConfigError, match="multiple of 4"):
        PretrainingSampler(50, 0, 2, 0, 2, drop_last=False, pad_to_global_batch=6)


@pytest.mark.parametrize("global_batch", ["8", 0, True])
def test_a_global_batch_that_is_not_a_number_of_samples_is_refused(global_batch):
    with pytest.raises(ConfigError, match="pad_to_global_batch: not a whole number"):
        PretrainingSampler(50, 0, 2, 0, 2, drop_last=False, pad_to_global_batch=global_batch)


PHASES_OF_BATCHES = st.lists(
    st.fixed_dictionaries(
        {
            "micro_batch": st.integers(1, 5),
            "n_ranks": st.integers(1, 6),
            "n_steps": st.integers(0, 9),
        }
    ),
    min_size=1,
    max_size=6,
)
"""Runs that each resume where the one before stopped, with other sizes."""


@given(total=st.integers(1, 300), phases=PHASES_OF_BATCHES)
def test_a_sequential_run_resumes_anywhere_with_any_sizes(total, phases):
    consumed_samples = []
    last_phase = {"micro_batch": 1, "n_ranks": 3, "n_steps": total}
    for phase in [*phases, last_phase]:
        n_consumed = len(consumed_samples)
        if n_consumed == total:
            break
        n_ranks = phase["n_ranks"]
        ranks = [
            PretrainingSampler(total, n_consumed, phase["micro_batch"], rank, n_ranks, False)
            for rank in range(n_ranks)
        ]
        # In each step, every rank consumes a batch.
        steps = zip(*ranks, strict=True)
        for batches in itertools.islice(steps, phase["n_steps"]):
            consumed_samples += join_batches(batches)

    assert consumed_samples == list(range(total))


@pytest.mark.parametrize("consumed_samples", [10, 14, 40])
def test_a_run_that_has_consumed_all_samples_gets_no_sampler(consumed_samples):
    with pytest.raises(ConfigError, match="no samples are left") as caught:
        PretrainingSampler(10, consumed_samples, 2, 0, 1)

    assert "create no sampler" in caught.value.remedy


def test_a_run_starts_again_with_the_consumed_samples_modulo_the_total():
    """This is the other remedy in the message of the error above."""
    total = 10
    consumed_in_two_epochs = 20

    sampler = PretrainingSampler(total, consumed_in_two_epochs % total, 2, 0, 1)

    assert list(sampler) == [[0, 1], [2, 3], [4, 5], [6, 7], [8, 9]]


# Micro-batches in a random order: CyclicSampler


@given(
    total=st.integers(1, 80),
    micro_batch=st.integers(1, 4),
    n_ranks=st.integers(1, 4),
    consumed_steps=st.integers(0, 40),
    data_sharding=st.booleans(),
)
def test_a_cyclic_run_resumes_where_it_stopped(
    total, micro_batch, n_ranks, consumed_steps, data_sharding
):
    step = micro_batch * n_ranks
    assume(total >= step)
    steps_of_epoch = total // step
    epoch, consumed_steps_of_epoch = divmod(consumed_steps, steps_of_epoch)
    start_of_epoch = epoch * steps_of_epoch * step

    for rank in range(n_ranks):
        sizes = (micro_batch, rank, n_ranks, data_sharding)
        whole_epoch = CyclicSampler(total, start_of_epoch, *sizes)
        resumed = CyclicSampler(total, consumed_steps * step, *sizes)

        batches = list(resumed)
        assert batches == list(whole_epoch)[consumed_steps_of_epoch:]
        assert len(resumed) == len(batches)


@pytest.mark.parametrize("data_sharding", [True, False])
def test_a_cyclic_epoch_has_every_sample_once(data_sharding):
    n_ranks = 4
    samples = []
    for rank in range(n_ranks):
        second_epoch = CyclicSampler(40, 40, 2, rank, n_ranks, data_sharding)
        samples += join_batches(second_epoch)

    assert sorted(samples) == list(range(40))


@pytest.mark.parametrize("data_sharding", [True, False])
def test_each_cyclic_epoch_has_another_order(data_sharding):
    first_epoch = CyclicSampler(40, 0, 2, 0, 4, data_sharding)
    second_epoch = CyclicSampler(40, 40, 2, 0, 4, data_sharding)

    assert list(first_epoch) != list(second_epoch)


# Single samples, dealt in turn: InterleavedSampler and ResumableSampler


def test_interleaved_samples_are_dealt_in_turn():
    options = {"shuffle": False, "drop_last": False}
    rank_0 = InterleavedSampler(7, 2, 0, 2, **options)
    rank_1 = InterleavedSampler(7, 2, 1, 2, **options)

    assert list(rank_0) == [2, 4, 6]
    assert list(rank_1) == [3, 5, 0]  # 0 again, so that both ranks have the same number


PHASES_OF_ROUNDS = st.lists(
    st.fixed_dictionaries({"n_ranks": st.integers(1, 6), "n_rounds": st.integers(0, 5)}),
    max_size=4,
)
"""Runs that each resume where the one before stopped, with another number of ranks."""


@given(total=st.integers(1, 60), phases=PHASES_OF_ROUNDS)
def test_an_interleaved_run_resumes_with_other_ranks_after_whole_rounds(total, phases):
    consumed_samples = []
    last_phase = {"n_ranks": 1, "n_rounds": total}
    for phase in [*phases, last_phase]:
        n_consumed = len(consumed_samples)
        n_ranks = phase["n_ranks"]
        if n_consumed % n_ranks:
            continue  # the trainer would deal the samples of the incomplete round again
        ranks = [InterleavedSampler(total, n_consumed, rank, n_ranks) for rank in range(n_ranks)]
        rounds = zip(*ranks, strict=True)
        for samples in itertools.islice(rounds, phase["n_rounds"]):
            consumed_samples += samples

    assert consumed_samples == list(InterleavedSampler(total, 0, 0, 1))


@pytest.mark.parametrize("shuffle", [True, False])
@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("total", [1, 7, 40, 41, 43])
def test_interleaved_samples_are_those_of_torchs_distributed_sampler(total, drop_last, shuffle):
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    for n_ranks, rank in [(1, 0), (2, 0), (2, 1), (5, 0), (5, 3), (5, 4)]:
        torch_sampler = data.DistributedSampler(
            range(total), n_ranks, rank, shuffle, seed=42, drop_last=drop_last
        )
        expected = list(torch_sampler)

        for consumed in (0, n_ranks, 3 * n_ranks + 1):
            sampler = InterleavedSampler(
                total, consumed, rank, n_ranks, shuffle=shuffle, drop_last=drop_last
            )
            samples = list(sampler)
            assert samples == expected[consumed // n_ranks :]
            assert len(sampler) == len(samples)


@pytest.mark.parametrize("drop_last", [True, False])
@given(
    total=st.integers(1, 40),
    consumed_share=st.floats(0, 1),
    n_ranks=st.integers(1, 9),
    shuffle=st.booleans(),
)
def test_resumed_ranks_deal_the_rest_of_the_epoch(
    drop_last, total, consumed_share, n_ranks, shuffle
):
    consumed = int(total * consumed_share)
    options = {"shuffle": shuffle, "seed": 3}
    epoch = list(ResumableSampler(total, 0, 0, 1, **options))

    ranks = [
        list(ResumableSampler(total, consumed, rank, n_ranks, drop_last=drop_last, **options))
        for rank in range(n_ranks)
    ]

    rest = epoch[consumed:]
    n_whole_rounds = len(rest) // n_ranks
    if drop_last:
        expected = rest[: n_whole_rounds * n_ranks]
    else:
        # The first samples of the epoch fill the last round up; several times, if they are few.
        n_missing = -len(rest) % n_ranks
        first_samples = (epoch * n_ranks)[:n_missing]
        expected = rest + first_samples
    assert sorted(epoch) == list(range(total))
    assert join_batches(zip(*ranks, strict=True)) == expected


# Random orders


@pytest.mark.parametrize("seed", [0, 1, 42, 2**31, 2**32 - 1])
@pytest.mark.parametrize("count", [0, 1, 2, 17, 5000])
def test_orders_are_those_of_torchs_randperm(count, seed):
    torch = pytest.importorskip("torch", reason="torch is not installed")

    expected = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()

    np.testing.assert_array_equal(randperm(count, seed), expected)
    np.testing.assert_array_equal(samplers._randperm_of_numpy(count, seed), expected)


def test_orders_without_torch_are_those_that_megatron_lm_recorded():
    (row,) = [row for row in MEGATRON_ROWS if row["total"] == 7]

    order = samplers._randperm_of_numpy(6, 0)

    assert order.reshape(2, 3).tolist() == row["mcore_random_sharded"]


def test_more_samples_than_torch_shuffles_in_32_bits_are_refused_without_torch():
    with pytest.raises(ConfigError, match="without torch"):
        samplers._randperm_of_numpy(2**28, 0)


# Arguments out of range


def wrong(sampler_class, where, *arguments):
    """Return a case of arguments, one of which, named `where`, is out of range."""
    case_id = "-".join([sampler_class.__name__, *map(str, arguments)])
    return pytest.param(sampler_class, arguments, where, id=case_id)


@pytest.mark.parametrize(
    ("sampler_class", "arguments", "where"),
    [
        # total_samples, consumed_samples, micro_batch_size, data_parallel_rank, data_parallel_size
        wrong(PretrainingSampler, "total_samples", 0, 0, 1, 0, 1),
        wrong(PretrainingSampler, "consumed_samples", 5, 5, 1, 0, 1),
        wrong(PretrainingSampler, "consumed_samples", 5, -1, 1, 0, 1),
        wrong(PretrainingSampler, "micro_batch_size", 5, 0, 0, 0, 1),
        wrong(PretrainingSampler, "data_parallel_size", 5, 0, 1, 0, 0),
        wrong(PretrainingSampler, "data_parallel_rank", 5, 0, 1, 2, 2),
        wrong(CyclicSampler, "total_samples", 5, 0, 3, 0, 2),
        wrong(CyclicSampler, "consumed_samples", 50, 3, 2, 0, 2),
        # total_samples, consumed_samples, data_parallel_rank, data_parallel_size
        wrong(ResumableSampler, "total_samples", 0, 0, 0, 1),
        wrong(ResumableSampler, "consumed_samples", 5, 6, 0, 1),
        wrong(ResumableSampler, "data_parallel_size", 5, 0, 0, 0),
        wrong(InterleavedSampler, "consumed_samples", 5, -1, 0, 1),
        wrong(InterleavedSampler, "data_parallel_rank", 5, 0, -1, 1),
        # No whole numbers.
        wrong(PretrainingSampler, "data_parallel_rank", 5, 0, 1, "0", 1),
        wrong(PretrainingSampler, "consumed_samples", 5, "0", 1, 0, 1),
        wrong(CyclicSampler, "consumed_samples", 5, 2.0, 1, 0, 1),
        wrong(ResumableSampler, "total_samples", True, 0, 0, 1),
        # Neither on nor off.
        wrong(PretrainingSampler, "drop_last", 5, 0, 1, 0, 1, "no"),
        wrong(PretrainingSampler, "drop_last", 5, 0, 1, 0, 1, None),
        wrong(CyclicSampler, "data_sharding", 5, 0, 1, 0, 1, "no"),
        # total_samples, consumed_samples, data_parallel_rank, data_parallel_size, seed, …
        wrong(InterleavedSampler, "shuffle", 5, 0, 0, 1, 42, "no"),
        wrong(InterleavedSampler, "drop_last", 5, 0, 0, 1, 42, True, "no"),
        # total_samples, consumed_samples, data_parallel_rank, data_parallel_size, epoch, …
        wrong(ResumableSampler, "shuffle", 5, 0, 0, 1, 0, "no"),
        wrong(ResumableSampler, "drop_last", 5, 0, 0, 1, 0, False, 0, "no"),
    ],
)
def test_an_argument_out_of_range_is_named(sampler_class, arguments, where):
    with pytest.raises(ConfigError) as caught:
        sampler_class(*arguments)

    assert caught.value.where == where


@pytest.mark.parametrize("convert", [int, np.int64, np.bool_])
@pytest.mark.parametrize("is_on", [False, True])
def test_switches_may_be_numbers(is_on, convert):
    switch = convert(is_on)

    sequential = PretrainingSampler(5, 0, 2, 0, 1, drop_last=switch)
    cyclic = CyclicSampler(8, 0, 2, 0, 2, data_sharding=switch)
    interleaved = InterleavedSampler(5, 0, 0, 2, shuffle=switch, drop_last=switch)
    resumable = ResumableSampler(5, 0, 0, 2, shuffle=switch, drop_last=switch)

    assert list(sequential) == list(PretrainingSampler(5, 0, 2, 0, 1, drop_last=is_on))
    assert list(cyclic) == list(CyclicSampler(8, 0, 2, 0, 2, data_sharding=is_on))
    assert list(interleaved) == list(InterleavedSampler(5, 0, 0, 2, shuffle=is_on, drop_last=is_on))
    assert list(resumable) == list(ResumableSampler(5, 0, 0, 2, shuffle=is_on, drop_last=is_on))
