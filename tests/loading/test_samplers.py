"""Samplers against the trainers' own."""

import itertools
import json

import numpy as np
import pytest
from golden.megatron.cases import rows
from hypothesis import given, settings
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

ROWS = rows("samplers")
KEYS = ("total", "consumed", "micro_batch", "dp_rank", "dp_size")


@pytest.mark.parametrize("row", ROWS, ids=lambda row: "-".join(str(row[key]) for key in KEYS))
def test_golden(row):
    place = [row[key] for key in KEYS]
    batch = 2 * row["micro_batch"] * row["dp_size"]
    expected = {
        "mcore_sequential_drop": PretrainingSampler(*place),
        "mcore_sequential_keep": PretrainingSampler(*place, drop_last=False),
        "nemo_sequential_drop": PretrainingSampler(*place, pad_to_global_batch=batch),
        "nemo_sequential_keep": PretrainingSampler(*place, drop_last=False),
        "nemo_sequential_pad": PretrainingSampler(
            *place, drop_last=False, pad_to_global_batch=batch
        ),
        "mcore_random_sharded": CyclicSampler(*place),
        "mcore_random_unsharded": CyclicSampler(*place, data_sharding=False),
        "nemo_random": CyclicSampler(*place),
    }
    for key, sampler in expected.items():
        assert list(sampler) == row[key]
        assert len(sampler) == len(row[key])


def slow_sequential(total, consumed, micro_batch, rank, size, drop_last):
    """Megatron-LM's `MegatronPretrainingSampler.__iter__`."""
    batch = []
    for index in range(consumed, total):
        batch.append(index)
        if len(batch) == micro_batch * size:
            yield batch[rank * micro_batch : (rank + 1) * micro_batch]
            batch = []
    if batch and not drop_last:
        yield batch[rank * micro_batch : (rank + 1) * micro_batch]


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 60), st.integers(0, 59), st.integers(1, 5), st.integers(1, 4), st.booleans())
def test_sequential(total, consumed, micro_batch, size, drop_last):
    consumed = min(consumed, total - 1)
    for rank in range(size):
        sampler = PretrainingSampler(total, consumed, micro_batch, rank, size, drop_last)
        assert list(sampler) == list(
            slow_sequential(total, consumed, micro_batch, rank, size, drop_last)
        )
        assert len(sampler) == len(list(sampler))


def test_padding_fills_the_global_batch():
    ranks = [
        list(PretrainingSampler(7, 0, 1, rank, 2, False, pad_to_global_batch=6))
        for rank in range(2)
    ]
    assert ranks == [[[0], [2], [4], [6], [-2], [-4]], [[1], [3], [5], [-1], [-3], [-5]]]
    options = {"pad_to_global_batch": 6, "pad_with_none": True}
    ranks = [list(PretrainingSampler(7, 0, 1, rank, 2, False, **options)) for rank in range(2)]
    assert ranks == [[[0], [2], [4], [6], [None], [None]], [[1], [3], [5], [None], [None], [None]]]


@settings(max_examples=100, deadline=None)
@given(
    st.integers(1, 300),
    st.lists(
        st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 9)), min_size=1, max_size=6
    ),
)
def test_resumes_anywhere_under_any_sizes_until_the_last_sample(total, phases):
    consumed, seen = 0, []
    for micro_batch, size, steps in [*phases, (1, 3, total)]:
        if consumed == total:
            break
        ranks = [
            PretrainingSampler(total, consumed, micro_batch, rank, size, False)
            for rank in range(size)
        ]
        for batches in itertools.islice(zip(*ranks, strict=True), steps):
            seen += [index for batch in batches for index in batch]
        consumed = len(seen)
    assert seen == list(range(total))


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 80), st.integers(1, 4), st.integers(1, 4), st.integers(0, 40), st.booleans())
def test_cyclic_resumes_where_it_stopped(total, micro_batch, size, steps, sharding):
    step = micro_batch * size
    if total < step:
        return
    epoch, done = divmod(steps, total // step)
    for rank in range(size):
        whole = CyclicSampler(
            total, epoch * (total // step) * step, micro_batch, rank, size, sharding
        )
        rest = CyclicSampler(total, steps * step, micro_batch, rank, size, sharding)
        assert list(rest) == list(whole)[done:]
        assert len(rest) == len(list(rest))


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 60), st.lists(st.tuples(st.integers(1, 6), st.integers(0, 5)), max_size=4))
def test_interleaved_resumes_under_other_sizes_at_whole_rounds(total, phases):
    order = list(InterleavedSampler(total, 0, 0, 1))
    seen = []
    for size, rounds in [*phases, (1, total)]:
        if len(seen) % size:
            continue  # the trainer would deal the samples of the broken round again
        ranks = [InterleavedSampler(total, len(seen), rank, size) for rank in range(size)]
        for samples in itertools.islice(zip(*ranks, strict=True), rounds):
            seen += samples
    assert seen == order


def test_cyclic_goes_through_every_sample_once_an_epoch():
    for sharding in (True, False):
        ranks = [CyclicSampler(40, 40, 2, rank, 4, sharding) for rank in range(4)]
        seen = [index for rank in ranks for batch in rank for index in batch]
        assert sorted(seen) == list(range(40))
        # another epoch, another order
        assert list(ranks[0]) != list(CyclicSampler(40, 0, 2, 0, 4, sharding))


def test_randperm_is_torchs():
    torch = pytest.importorskip("torch", reason="torch is not installed")
    for count, seed in itertools.product([0, 1, 2, 17, 5000], [0, 1, 42, 2**31, 2**32 - 1]):
        expected = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).numpy()
        np.testing.assert_array_equal(randperm(count, seed), expected)
        np.testing.assert_array_equal(samplers._randperm_of_numpy(count, seed), expected)


def test_randperm_without_torch():
    (row,) = [row for row in ROWS if row["total"] == 7]
    order = samplers._randperm_of_numpy(6, 0)
    assert order.reshape(2, 3).tolist() == row["mcore_random_sharded"]
    with pytest.raises(ConfigError, match="without torch"):
        samplers._randperm_of_numpy(2**28, 0)


def test_interleaved_is_torchs_distributed_sampler():
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    for total, drop_last, shuffle in itertools.product(
        [1, 7, 40, 41, 43], [True, False], [True, False]
    ):
        for ranks, rank in [(1, 0), (2, 0), (2, 1), (5, 0), (5, 3), (5, 4)]:
            theirs = list(
                data.DistributedSampler(range(total), ranks, rank, shuffle, 42, drop_last)
            )
            for consumed in (0, ranks, 3 * ranks + 1):
                ours = InterleavedSampler(
                    total, consumed, rank, ranks, shuffle=shuffle, drop_last=drop_last
                )
                assert list(ours) == theirs[consumed // ranks :]
                assert len(ours) == len(list(ours))


def test_interleaved_deals_in_turn():
    ranks = [
        list(InterleavedSampler(7, 2, rank, 2, shuffle=False, drop_last=False)) for rank in range(2)
    ]
    assert ranks == [[2, 4, 6], [3, 5, 0]]


@pytest.mark.parametrize(
    ("kind", "arguments", "where"),
    [
        (PretrainingSampler, (0, 0, 1, 0, 1), "total_samples"),
        (PretrainingSampler, (5, 5, 1, 0, 1), "consumed_samples"),
        (PretrainingSampler, (5, -1, 1, 0, 1), "consumed_samples"),
        (PretrainingSampler, (5, 0, 0, 0, 1), "micro_batch_size"),
        (PretrainingSampler, (5, 0, 1, 0, 0), "data_parallel_size"),
        (PretrainingSampler, (5, 0, 1, 2, 2), "data_parallel_rank"),
        (CyclicSampler, (5, 0, 3, 0, 2), "total_samples"),
        (CyclicSampler, (50, 3, 2, 0, 2), "consumed_samples"),
        (ResumableSampler, (0, 0, 0, 1), "total_samples"),
        (ResumableSampler, (5, 6, 0, 1), "consumed_samples"),
        (ResumableSampler, (5, 0, 0, 0), "data_parallel_size"),
        (InterleavedSampler, (5, -1, 0, 1), "consumed_samples"),
        (InterleavedSampler, (5, 0, -1, 1), "data_parallel_rank"),
    ],
)
def test_arguments_that_cannot_be(kind, arguments, where):
    with pytest.raises(ConfigError) as caught:
        kind(*arguments)
    assert caught.value.where == where


def test_global_batch_of_broken_micro_batches():
    with pytest.raises(ConfigError, match="multiple of 4"):
        PretrainingSampler(50, 0, 2, 0, 2, False, pad_to_global_batch=6)


def test_a_run_that_resumes_at_its_end_is_told_what_to_do():
    with pytest.raises(ConfigError, match="no samples are left") as caught:
        PretrainingSampler(10, 10, 2, 0, 1)
    assert "create no sampler" in caught.value.remedy
    assert list(PretrainingSampler(10, 20 % 10, 2, 0, 1)) == [
        [0, 1],
        [2, 3],
        [4, 5],
        [6, 7],
        [8, 9],
    ]


CASES = json.loads((GOLDEN_FILES / "modalities" / "samplers.json").read_bytes())


@pytest.mark.parametrize(
    "case", CASES, ids=lambda case: "-".join(str(value) for value in list(case.values())[:-1])
)
def test_golden_ranks(case):
    for rank, expected in enumerate(case["per_rank"]):
        options = {name: case[name] for name in ("epoch", "shuffle", "seed", "drop_last")}
        sampler = ResumableSampler(
            case["dataset_len"], case["skip"], rank, case["replicas"], **options
        )
        assert list(sampler) == expected
        assert len(sampler) == len(expected)


@settings(max_examples=100)
@given(
    total=st.integers(1, 40), share=st.floats(0, 1), size=st.integers(1, 9), shuffle=st.booleans()
)
def test_ranks_deal_what_is_left_of_the_epoch(total, share, size, shuffle):
    consumed = int(total * share)
    whole = list(ResumableSampler(total, 0, 0, 1, shuffle=shuffle, seed=3))
    assert sorted(whole) == list(range(total))
    for drop_last in (True, False):
        ranks = [
            list(
                ResumableSampler(
                    total, consumed, rank, size, shuffle=shuffle, seed=3, drop_last=drop_last
                )
            )
            for rank in range(size)
        ]
        dealt = [number for turn in zip(*ranks, strict=True) for number in turn]
        left = whole[consumed:]
        again = (whole * size)[: -len(left) % size]
        assert dealt == (left[: len(left) // size * size] if drop_last else left + again)
