"""Limits of epochs are kept by each policy, and never by taking less than they allow."""

from __future__ import annotations

import functools
import math
import operator

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

LENGTH = 10
"""Tokens of a sample."""
DOCUMENT_LENGTHS = {"a": [40] * 50, "b": [11] * 20, "c": [3] * 90}
TOKENS = {"a": 2000, "b": 220, "c": 270}
"""Tokens of each dataset."""
NO_LIMIT = 1e9


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """The prefix of each dataset, by its name."""
    folder = tmp_path_factory.mktemp("data")
    prefixes = {}
    for name, lengths in DOCUMENT_LENGTHS.items():
        prefixes[name] = write_pair(folder / name, lengths)
    return prefixes


def blend_of(data, weights, samples, preset="megatron"):
    """Return the settings of a blend of the three datasets that only trains."""
    return NanosetConfig(
        dict(zip(data.values(), weights, strict=True)),
        sequence_length=LENGTH,
        split="1,0,0",
        preset=preset,
        train_split_samples=samples,
    )


def single_dataset(prefix, samples, sequence_length=LENGTH):
    """Return the settings of a nanoset of one dataset that only trains."""
    return NanosetConfig(
        prefix, sequence_length=sequence_length, split="1,0,0", train_split_samples=samples
    )


def keeps_limits(config, limits, split="train"):
    """Return whether a split requests no more of its datasets than limits allow.

    Args:
        config: Settings of the nanoset.
        limits: Prefix → how often a dataset may be read.
        split: The split.
    """
    for member in plan_split(config, split).members:
        limit = limits.get(member.prefix, NO_LIMIT)
        if member.samples_requested > most_samples(member.tokens, limit, config):
            return False
    return True


# The policies


def test_limits_that_are_kept_change_nothing(data):
    config = blend_of(data, (1, 1, 1), 30)

    limited = apply_epoch_limits(config, dict.fromkeys(data.values(), 1.0), "raise")

    assert limited.config == config


def test_raise_names_what_is_read_too_often(data):
    config = blend_of(data, (1, 1, 1), 300)

    with pytest.raises(InputError) as caught:
        apply_epoch_limits(config, {data["b"]: 2.0, data["a"]: 2.0}, "raise")

    assert caught.value.found == "b 4.76 times in train (at most 2)"
    assert "redistribute" in caught.value.remedy


def test_repeat_changes_nothing_and_reports_what_is_read_too_often(data):
    config = blend_of(data, (1, 1, 1), 300)

    limited = apply_epoch_limits(config, {data["b"]: 2.0}, "repeat")

    assert limited.config == config
    (exceeded,) = limited.exceeded
    assert exceeded.prefix == data["b"]
    assert exceeded.split == "train"
    assert exceeded.limit == 2.0


def test_stop_takes_the_most_samples_that_the_limits_allow(data):
    limits = {data["b"]: 2.0}

    limited = apply_epoch_limits(blend_of(data, (1, 1, 1), 300), limits, "stop").config

    one_more = blend_of(data, (1, 1, 1), limited.train_split_samples + 1)
    assert keeps_limits(limited, limits)
    assert not keeps_limits(one_more, limits)


def test_stop_takes_whole_epochs_of_a_single_dataset(data):
    config = single_dataset(data["b"], 100)

    limited = apply_epoch_limits(config, {data["b"]: 3.0}, "stop").config

    assert limited.train_split_samples == (3 * TOKENS["b"] - 1) // LENGTH
    assert plan_split(limited, "train").members[0].epochs == 3


def test_redistribute_is_refused_for_a_single_dataset(data):
    config = single_dataset(data["b"], 100)

    with pytest.raises(ConfigError, match="no weights to redistribute"):
        apply_epoch_limits(config, {data["b"]: 3.0}, "redistribute")


def test_redistribute_is_refused_if_all_limits_together_allow_too_few_samples(data):
    config = blend_of(data, (1, 1, 1), 1000)

    with pytest.raises(InputError, match="too few samples"):
        apply_epoch_limits(config, dict.fromkeys(data.values(), 1.0), "redistribute")


def test_redistribute_finds_one_set_of_weights_for_all_splits(data):
    config = NanosetConfig(
        dict.fromkeys(data.values(), 1.0),
        sequence_length=LENGTH,
        split="8,2,0",
        train_split_samples=100,
        valid_split_samples=60,
    )
    limits = {data["b"]: 1.0, data["c"]: 1.0}

    limited = apply_epoch_limits(config, limits, "redistribute")

    assert {exceeded.split for exceeded in limited.exceeded} == {"train", "valid"}
    assert keeps_limits(limited.config, limits, "train")
    assert keeps_limits(limited.config, limits, "valid")


def slow_room(config, limits):
    """Return how many samples all limits together allow beyond those that are requested.

    The number is negative if they allow fewer. The largest share of each dataset is found by trying
    all numbers of samples.
    """
    size = config.train_split_samples
    n_allowed = 0
    for member in plan_split(config, "train").members:
        n_most = most_samples(member.tokens, limits[member.prefix], config)
        for n_samples in range(size, 0, -1):
            n_built = config.rules.member_sizes(size, n_samples / size, 0.005).built
            if n_built <= n_most:
                n_allowed += n_samples
                break
    return n_allowed - size


def growth_by_prefix(before, after):
    """Return by which factor the share of each dataset grew, for those whose share grew.

    Args:
        before: Prefix → weight, in any proportion.
        after: The same after redistribution.
    """
    growth = {}
    for prefix in before:
        share_before = before[prefix] / sum(before.values())
        share_after = after[prefix] / sum(after.values())
        if share_after > share_before:
            growth[prefix] = after[prefix] / before[prefix]
    return growth


three_weights = st.lists(st.floats(0.01, 1), min_size=3, max_size=3)
three_limits = st.lists(st.none() | st.floats(1, 6), min_size=3, max_size=3)


@settings(max_examples=40, deadline=None)
@given(
    weights=three_weights,
    samples=st.integers(20, 600),
    limits=three_limits,
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo", "nanotron", "nanotron-000"]),
)
def test_redistribute_keeps_limits_samples_and_proportions(data, weights, samples, limits, preset):
    config = blend_of(data, weights, samples, preset)
    limit_by_prefix = {}
    for prefix, limit in zip(data.values(), limits, strict=True):
        if limit is not None:
            limit_by_prefix[prefix] = limit

    # If every dataset has a limit, there may be no shares that keep all of them.
    is_exceeded = bool(apply_epoch_limits(config, limit_by_prefix, "repeat").exceeded)
    if is_exceeded and len(limit_by_prefix) == len(data):
        room = slow_room(config, limit_by_prefix)
        if room < 0:
            with pytest.raises(InputError, match="too few samples"):
                apply_epoch_limits(config, limit_by_prefix, "redistribute")
        if room <= 0:
            return  # without any room, the last bit of a share decides whether it fits

    limited = apply_epoch_limits(config, limit_by_prefix, "redistribute")

    assert keeps_limits(limited.config, limit_by_prefix)
    assert limited.config.train_split_samples == samples
    if not limited.exceeded:
        assert limited.config == config
        return

    # Datasets without a limit grow in proportion, and no other one grows more.
    assert sum(limited.config.data_path.values()) == pytest.approx(1)
    growth = growth_by_prefix(config.data_path, limited.config.data_path)
    growth_of_unlimited = [
        factor for prefix, factor in growth.items() if prefix not in limit_by_prefix
    ]
    expected = [max(growth.values())] * len(growth_of_unlimited)
    assert growth_of_unlimited == pytest.approx(expected)
    lowered = {exceeded.prefix for exceeded in limited.exceeded}
    assert lowered.isdisjoint(growth)


# Sums of floats


def sum_by(add_floats):
    """Return a function like `sum` that adds floats in another way."""

    def other_sum(values):
        values = list(values)
        if any(isinstance(value, float) for value in values):
            return add_floats(values)
        return functools.reduce(operator.add, values, 0)

    return other_sum


@pytest.mark.parametrize("add_floats", [plain_sum, compensated_sum, math.fsum])
def test_shares_do_not_depend_on_the_version_of_python(data, monkeypatch, add_floats):
    """From Python 3.12 on, the built-in `sum` adds floats in another way."""

    def compute_shares():
        config = blend_of(data, (0.6, 0.4, 0.6), 450)
        rows = coverage(plan_split(config, "train"), config)
        filled = fill_shares({"a": 0.2, "b": 0.15, "c": 0.3, "d": 0.35}, dict.fromkeys("abcd", 1.0))
        return [row.weight for row in rows], filled

    expected = compute_shares()

    monkeypatch.setattr("builtins.sum", sum_by(add_floats))

    assert compute_shares() == expected


# What a split reads of each dataset


@pytest.fixture(params=["megatron", "megatron-0.10", "nemo", "nanotron"])
def blend(data, request):
    """The settings of a blend of 200 samples."""
    return blend_of(data, (5, 3, 1), 200, request.param)


@pytest.fixture
def plan(blend):
    """The plan of train."""
    return plan_split(blend, "train")


@pytest.fixture
def counts(plan):
    """How many samples the built blend takes of each dataset."""
    dataset_index = build_blend_indices(plan).dataset_index.astype(np.int64)
    return np.bincount(dataset_index, minlength=3).tolist()


def test_the_samples_of_a_coverage_are_those_that_the_blend_takes(data, blend, plan, counts):
    rows = coverage(plan, blend, {data["b"]: 9.0})

    assert [row.samples_given for row in rows] == counts


def test_a_coverage_may_be_of_samples_that_are_known(blend, plan, counts):
    rows = coverage(plan, blend, samples_given=counts)

    assert [row.samples_given for row in rows] == counts
    assert sum(row.share for row in rows) == pytest.approx(1)


def test_the_samples_of_a_large_blend_are_estimated(blend, plan, counts, monkeypatch):
    monkeypatch.setattr("nanoset_core.sampling.coverage._EXACT_SAMPLES", 0)

    estimates = [row.samples_given for row in coverage(plan, blend)]

    assert sum(estimates) == sum(counts)
    assert np.abs(np.subtract(estimates, counts)).max() <= 2


def test_a_coverage_has_weights_limits_and_tokens(data, blend, plan):
    rows = coverage(plan, blend, {data["b"]: 9.0})

    assert [row.weight for row in rows] == pytest.approx([5 / 9, 3 / 9, 1 / 9])
    assert [row.max_epochs for row in rows] == [None, 9.0, None]
    assert [row.tokens for row in rows] == list(TOKENS.values())


def test_a_dataset_that_is_too_short_for_a_sample_is_read_in_epochs_of_its_tokens(data):
    config = single_dataset(data["b"], 5, sequence_length=2 * TOKENS["b"])

    (row,) = coverage(plan_split(config, "train"), config)

    assert row.tokens == TOKENS["b"]
    assert row.epochs == 10
    with pytest.raises(InputError, match=r"10\.00 times in train \(at most 2\)"):
        apply_epoch_limits(config, {data["b"]: 2}, "raise")


@pytest.mark.parametrize(
    ("samples", "tokens_unseen"),
    [
        # An epoch has 21 samples, and the last of them has an extra token.
        pytest.param(None, (220 - 1) % 10, id="one epoch"),
        pytest.param(5, 220 - 5 * 10, id="a part of an epoch"),
        pytest.param(25, 0, id="a second epoch that is shuffled by itself"),
        # Some samples of these two epochs are surplus, and nobody knows which.
        pytest.param(42, None, id="two epochs that are shuffled together"),
    ],
)
def test_tokens_that_are_never_read_are_counted(data, samples, tokens_unseen):
    config = single_dataset(data["b"], samples)

    (row,) = coverage(plan_split(config, "train"), config)

    assert row.tokens_unseen == tokens_unseen


def test_epochs_are_samples_taken_over_samples_of_an_epoch(data):
    config = single_dataset(data["b"], 25)

    (row,) = coverage(plan_split(config, "train"), config)

    assert row.epochs == pytest.approx(25 / 21)
