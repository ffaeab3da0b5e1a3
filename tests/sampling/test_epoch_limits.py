"""Limits on epochs: kept, or broken as told, and never kept by asking for less than they allow."""

import functools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.sample_pairs import write_pair
from nanoset_core.errors import ConfigError, InputError
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.epoch_limits import most_samples
from nanoset_core.sampling.epoch_policies import apply_epoch_limits
from nanoset_core.sampling.indices import build_blend_indices
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.redistribution import fill_shares
from nanoset_core.sampling.splits import compensated_sum, plain_sum

SIZES = {"a": [40] * 50, "b": [11] * 20, "c": [3] * 90}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    return {name: write_pair(folder / name, lengths) for name, lengths in SIZES.items()}


def blend(data, weights, samples, split="train", preset="megatron"):
    return NanosetConfig(
        {data[name]: weight for name, weight in zip(data, weights, strict=True)},
        sequence_length=10,
        split="1,0,0" if split == "train" else "0,1,0",
        preset=preset,
        **{f"{split}_split_samples": samples},
    )


def within(config, limits):
    members = plan_split(config, "train").members
    return all(
        m.samples_requested <= most_samples(m.tokens, limits.get(m.prefix, 1e9), config)
        for m in members
    )


def room(config, limits):
    """Samples that all limits together allow beyond those asked for: the largest share of each, by
    trying.
    """
    members = plan_split(config, "train").members
    allowed = [most_samples(member.tokens, limits[member.prefix], config) for member in members]
    size = config.train_split_samples

    def largest(most):
        return next(
            (
                n
                for n in range(size, -1, -1)
                if config.rules.member_sizes(size, n / size, 0.005)[1] <= most
            ),
            0,
        )

    return sum(largest(most) for most in allowed) - size


def test_shares_are_the_same_whatever_python_runs(data, monkeypatch):
    """In Python 3.12 and newer the built-in sum is another one for floats."""

    def outcome():
        config = blend(data, (0.6, 0.4, 0.6), 450)
        weights = [row.weight for row in coverage(plan_split(config, "train"), config)]
        return weights, fill_shares(
            {"a": 0.2, "b": 0.15, "c": 0.3, "d": 0.35}, dict.fromkeys("abcd", 1.0)
        )

    found = outcome()
    for other in (plain_sum, compensated_sum, math.fsum):
        monkeypatch.setattr(
            "builtins.sum", lambda values, other=other: exact_or(other, list(values))
        )
        assert outcome() == found


def exact_or(other, values):
    return (
        other(values)
        if any(isinstance(value, float) for value in values)
        else functools.reduce(int.__add__, values, 0)
    )


def test_nothing_changes_where_limits_are_kept(data):
    config = blend(data, (1, 1, 1), 30)
    assert apply_epoch_limits(config, dict.fromkeys(data.values(), 1.0), "raise").config == config


def test_raise_names_what_is_read_too_often(data):
    with pytest.raises(InputError) as caught:
        apply_epoch_limits(blend(data, (1, 1, 1), 300), {data["b"]: 2.0, data["a"]: 2.0}, "raise")
    assert caught.value.found == "b 4.76 times in train (at most 2)"
    assert "redistribute" in caught.value.remedy


def test_repeat_changes_nothing_and_says_so(data):
    config = blend(data, (1, 1, 1), 300)
    limited = apply_epoch_limits(config, {data["b"]: 2.0}, "repeat")
    assert limited.config == config
    assert [(one.prefix, one.split, one.limit) for one in limited.exceeded] == [
        (data["b"], "train", 2.0)
    ]


def test_stop_asks_for_the_most_that_the_limits_allow(data):
    limits = {data["b"]: 2.0}
    config = apply_epoch_limits(blend(data, (1, 1, 1), 300), limits, "stop").config
    samples = config.train_split_samples
    assert within(config, limits)
    assert not within(blend(data, (1, 1, 1), samples + 1), limits)


def test_a_dataset_alone(data):
    alone = NanosetConfig(data["b"], sequence_length=10, split="1,0,0", train_split_samples=100)
    limited = apply_epoch_limits(alone, {data["b"]: 3.0}, "stop").config
    assert limited.train_split_samples == (3 * 220 - 1) // 10
    assert plan_split(limited, "train").members[0].epochs == 3
    with pytest.raises(ConfigError, match="no weights to redistribute"):
        apply_epoch_limits(alone, {data["b"]: 3.0}, "redistribute")


@settings(max_examples=40, deadline=None)
@given(
    weights=st.tuples(*[st.floats(0.01, 1)] * 3),
    samples=st.integers(20, 600),
    limits=st.tuples(*[st.one_of(st.none(), st.floats(1, 6))] * 3),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo", "nanotron", "nanotron-000"]),
)
def test_redistribute_keeps_limits_samples_and_proportions(data, weights, samples, limits, preset):
    config = blend(data, weights, samples, preset=preset)
    most = {
        prefix: limit
        for prefix, limit in zip(data.values(), limits, strict=True)
        if limit is not None
    }
    if (
        len(most) == len(data)
        and apply_epoch_limits(config, most, "repeat").exceeded
        and (left := room(config, most)) <= 0
    ):
        if left < 0:  # at 0 the last bit of a share decides
            with pytest.raises(InputError, match="too few samples"):
                apply_epoch_limits(config, most, "redistribute")
        return
    limited = apply_epoch_limits(config, most, "redistribute")
    assert within(limited.config, most)
    assert limited.config.train_split_samples == samples
    if not limited.exceeded:
        assert limited.config == config
        return
    before, after = config.data_path, limited.config.data_path
    assert sum(after.values()) == pytest.approx(1)
    raised = [
        prefix
        for prefix in before
        if after[prefix] / sum(after.values()) > before[prefix] / sum(before.values())
    ]
    ratios = {prefix: after[prefix] / before[prefix] for prefix in raised}
    free = [ratio for prefix, ratio in ratios.items() if prefix not in most]
    assert free == pytest.approx([max(ratios.values())] * len(free)), (
        "what has no limit gives the rest in proportion"
    )
    assert {one.prefix for one in limited.exceeded}.isdisjoint(raised)


def test_limits_that_cannot_be_kept(data):
    with pytest.raises(InputError, match="too few samples"):
        apply_epoch_limits(
            blend(data, (1, 1, 1), 1000), dict.fromkeys(data.values(), 1.0), "redistribute"
        )


def test_one_set_of_weights_for_all_splits(data):
    config = NanosetConfig(
        {prefix: 1.0 for prefix in data.values()},
        sequence_length=10,
        split="8,2,0",
        train_split_samples=100,
        valid_split_samples=60,
    )
    limits = dict.fromkeys([data["b"], data["c"]], 1.0)
    limited = apply_epoch_limits(config, limits, "redistribute")
    assert {one.split for one in limited.exceeded} == {"train", "valid"}
    for split in ("train", "valid"):
        for member in plan_split(limited.config, split).members:
            assert member.prefix not in limits or member.samples_requested <= most_samples(
                member.tokens, 1, config
            )


@pytest.mark.parametrize("preset", ["megatron", "megatron-0.10", "nemo", "nanotron"])
def test_coverage_is_what_the_blend_takes(data, preset, monkeypatch):
    config = blend(data, (5, 3, 1), 200, preset=preset)
    plan = plan_split(config, "train")
    index = build_blend_indices(plan).dataset_index.astype(np.int64)
    counted = np.bincount(index, minlength=3).tolist()
    planned = coverage(plan, config, {data["b"]: 9.0})
    exact = coverage(plan, config, samples_given=counted)
    assert [row.samples_given for row in exact] == counted
    assert [row.samples_given for row in planned] == counted
    monkeypatch.setattr("nanoset_core.sampling.coverage._EXACT_SAMPLES", 0)
    rough = [row.samples_given for row in coverage(plan, config)]
    assert all(abs(given - count) <= 2 for given, count in zip(rough, counted, strict=True))
    assert sum(rough) == sum(counted)
    assert [row.weight for row in planned] == pytest.approx([5 / 9, 3 / 9, 1 / 9])
    assert [row.max_epochs for row in planned] == [None, 9.0, None]
    assert [row.tokens for row in planned] == [2000, 220, 270]
    assert sum(row.share for row in exact) == pytest.approx(1)


def test_epochs_of_a_dataset_that_is_too_short_for_a_sample(data):
    config = NanosetConfig(data["b"], sequence_length=440, split="1,0,0", train_split_samples=5)
    with pytest.raises(InputError, match=r"10\.00 times in train \(at most 2\)"):
        apply_epoch_limits(config, {data["b"]: 2}, "raise")
    (row,) = coverage(plan_split(config, "train"), config)
    assert (row.tokens, row.epochs) == (220, 10)


def test_what_is_never_seen(data):
    def only(samples, length=10):
        config = NanosetConfig(
            data["b"], sequence_length=length, split="1,0,0", train_split_samples=samples
        )
        return coverage(plan_split(config, "train"), config)[0]

    assert only(None).tokens_unseen == (220 - 1) % 10  # 21 samples, and their last token
    assert only(5).tokens_unseen == 220 - 50
    assert only(42).tokens_unseen is None  # two epochs shuffled together, of which some are surplus
    assert only(25).tokens_unseen == 0  # the second epoch is shuffled apart
    assert only(25).epochs == pytest.approx(25 / 21)
