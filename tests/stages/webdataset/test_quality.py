"""The measures that say whether the order of a shuffle plan is as even as chance makes it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.stages.webdataset import quality
from nanoset_core.stages.webdataset.order import ranks
from nanoset_core.stages.webdataset.plan import ShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource

LENGTH = 8
"""Tokens of a context."""


def plan_of(token_counts: Sequence[int], **settings: Any) -> ShufflePlan:
    """Plan tars of sources s0, s1, … with some numbers of tokens."""
    sources = []
    for number, n_tokens in enumerate(token_counts):
        sources.append(TokenSource(f"s{number}", Path("s"), "uint16", n_tokens))
    defaults: dict[str, Any] = {
        "sequence_length": LENGTH,
        "samples_per_shard": 100,
        "seed": 3,
        "member": "npy",
    }
    return plan_shuffle(sources, PlanSettings(**(defaults | settings)))


def measure(plan: ShufflePlan) -> SimpleNamespace:
    """Return the measures of a plan after they were stored as JSON."""
    return SimpleNamespace(**json.loads(json.dumps(quality.shuffle_quality(plan))))


class SlowMeasures(NamedTuple):
    """Measures of all tars of a plan."""

    same_source: float
    """Share of the pairs of consecutive contexts whose contexts have the same source."""
    neighbours: float
    """Share of the pairs whose contexts are next to each other in the source."""
    mix_mean: float
    mix_max: float


def measure_slowly(plan: ShufflePlan) -> SlowMeasures:
    """Measure a plan pair by pair and count by count."""
    n_pairs = 0
    n_same_source = 0
    n_neighbours = 0
    deviations = []
    counts = [source.contexts for source in plan.table.sources]
    n_contexts = sum(counts)
    for shard in range(plan.shards):
        contexts = plan.shard_contexts(shard)
        sources, starts, _ = plan.table.locate(contexts)
        for first in range(len(contexts) - 1):
            second = first + 1
            distance = abs(starts[second] - starts[first])
            has_same_source = sources[first] == sources[second]
            n_pairs += 1
            n_same_source += has_same_source
            n_neighbours += has_same_source and distance <= plan.settings.row_tokens

        # How many standard deviations the number of contexts of a source is from its mean.
        n_drawn = len(contexts)
        for source, count in enumerate(counts):
            share = count / n_contexts
            variance = n_drawn * share * (1 - share) * (n_contexts - n_drawn) / (n_contexts - 1)
            if variance >= 5:
                difference = int((sources == source).sum()) - n_drawn * share
                deviations.append(abs(difference) / variance**0.5)
    return SlowMeasures(
        same_source=n_same_source / n_pairs,
        neighbours=n_neighbours / n_pairs,
        mix_mean=float(np.mean(deviations)),
        mix_max=max(deviations),
    )


@pytest.mark.parametrize(
    "plan_settings",
    [
        pytest.param({}, id="all contexts"),
        pytest.param({"frequencies": {"s0": 2.5, "s1": 0.4}}, id="frequencies"),
        pytest.param({"even": True}, id="even tars"),
    ],
)
def test_measures_equal_those_of_a_slow_count(plan_settings):
    plan = plan_of([LENGTH * 700, LENGTH * 500 + 3], **plan_settings)
    slow_measures = measure_slowly(plan)

    measures = measure(plan)

    assert measures.same_source == pytest.approx(slow_measures.same_source)
    assert measures.neighbours == pytest.approx(slow_measures.neighbours)
    assert measures.mix_mean == pytest.approx(slow_measures.mix_mean)
    assert measures.mix_max == pytest.approx(slow_measures.mix_max)
    assert measures.contexts == plan.contexts
    assert measures.sampled == plan.contexts


def test_the_rank_correlation_is_that_of_spearman():
    numbers = np.arange(900)
    rank_of_context = np.empty(900)
    rank_of_context[ranks(900, 3, 0, 900)] = numbers
    expected = np.corrcoef(numbers, rank_of_context)[0, 1]

    measures = measure(plan_of([LENGTH * 900]))

    assert measures.rank_correlation == pytest.approx(expected)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3000), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, (1 << 64) - 1),
)
def test_the_order_of_every_plan_is_even(counts, seed):
    measures = measure(plan_of([LENGTH * count for count in counts], seed=seed))

    assert measures.even


def test_the_order_of_tars_that_have_no_pair_of_contexts_is_even():
    """Nothing is known about neighbours then."""
    measures = measure(plan_of([LENGTH * 500, LENGTH * 500], samples_per_shard=1))

    assert measures.even


@pytest.mark.parametrize("counts", [[1], [2], [1, 0, 1], [50_000]], ids=str)
def test_the_order_of_the_smallest_plans_and_of_one_source_is_even(counts):
    measures = measure(plan_of([LENGTH * count for count in counts]))

    assert measures.even is True


def test_expected_shares_are_those_of_all_pairs_of_contexts():
    plan = plan_of(
        [LENGTH * 30, LENGTH * 20], frequencies={"s0": 3.0, "s1": 1.0}, samples_per_shard=1000
    )
    sources, starts, _ = plan.table.locate(np.arange(plan.contexts))
    # (n_contexts, n_contexts) for each pair of contexts; each one and itself are no pair
    has_same_source = sources[:, None] == sources
    is_neighbour = has_same_source & (np.abs(starts[:, None] - starts) <= LENGTH)
    n_pairs = plan.contexts * (plan.contexts - 1)

    measures = measure(plan)

    expected_neighbours = (is_neighbour.sum() - plan.contexts) / n_pairs
    assert measures.neighbours_expected == pytest.approx(expected_neighbours)
    expected_same_source = (has_same_source.sum() - plan.contexts) / n_pairs
    assert measures.same_source_expected == pytest.approx(expected_same_source)


def test_an_order_that_is_not_shuffled_is_not_even(monkeypatch):
    monkeypatch.setattr(
        quality, "ranks", lambda contexts, seed, start, stop: np.arange(start, stop)
    )
    monkeypatch.setattr(quality, "keys_of", lambda numbers, seed: numbers)

    measures = measure(plan_of([LENGTH * 5000, LENGTH * 5000]))

    assert not measures.even
    assert measures.neighbours > 0.9
    assert measures.same_source > 0.9
    assert measures.rank_correlation == pytest.approx(1)
    assert measures.mix_max > 5


def test_a_small_plan_is_measured_as_a_whole():
    measures = measure(plan_of([LENGTH * 20_000]))

    assert measures.sampled == 20_000
    assert measures.even


@pytest.mark.parametrize("window", [quality.WINDOW, 1000], ids=["one window", "several windows"])
def test_of_a_large_plan_some_contexts_are_measured(monkeypatch, window):
    monkeypatch.setattr(quality, "SAMPLE", 1000)
    monkeypatch.setattr(quality, "WINDOW", window)

    measures = measure(plan_of([LENGTH * 20_000]))

    assert measures.sampled == 1000
    assert measures.even
