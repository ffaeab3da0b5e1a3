import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.stages.webdataset import quality
from nanoset_core.stages.webdataset.order import ranks
from nanoset_core.stages.webdataset.plan import plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource


def plan_of(tokens, **changes):
    sources = [TokenSource(f"s{i}", Path("s"), "uint16", count) for i, count in enumerate(tokens)]
    options = {"sequence_length": 8, "samples_per_shard": 100, "seed": 3, "member": "npy"} | changes
    return plan_shuffle(sources, PlanSettings(**options))


def shuffle_quality(plan):
    """The measures of a plan, by name; they are JSON values."""
    return SimpleNamespace(**json.loads(json.dumps(quality.shuffle_quality(plan))))


def slowly(plan):
    """The measures of all shards of a plan, pair by pair and count by count."""
    same = touching = pairs = 0
    deviations = []
    counts = [source.contexts for source in plan.table.sources]
    total = sum(counts)
    for shard in range(plan.shards):
        found = plan.shard_contexts(shard)
        source, start, _ = plan.table.locate(found)
        for i in range(1, len(found)):
            pairs += 1
            same += source[i] == source[i - 1]
            touching += (
                source[i] == source[i - 1]
                and abs(start[i] - start[i - 1]) <= plan.settings.row_tokens
            )
        for i, count in enumerate(counts):
            share, drawn = count / total, len(found)
            variance = drawn * share * (1 - share) * (total - drawn) / (total - 1)
            if variance >= 5:
                deviations.append(abs(int((source == i).sum()) - drawn * share) / variance**0.5)
    return same / pairs, touching / pairs, np.mean(deviations), max(deviations)


@pytest.mark.parametrize("changes", [{}, {"frequencies": {"s0": 2.5, "s1": 0.4}}, {"even": True}])
def test_measures_equal_those_of_a_slow_count(changes):
    plan = plan_of([8 * 700, 8 * 500 + 3], **changes)
    found = shuffle_quality(plan)
    same, touching, mean, largest = slowly(plan)
    assert found.same_source == pytest.approx(same)
    assert found.neighbours == pytest.approx(touching)
    assert (found.mix_mean, found.mix_max) == pytest.approx((mean, largest))
    assert found.sampled == found.contexts == plan.contexts


def test_rank_correlation_is_spearmans():
    plan = plan_of([8 * 900])
    order = ranks(900, 3, 0, 900)
    place = np.empty(900)
    place[order] = np.arange(900)
    assert shuffle_quality(plan).rank_correlation == pytest.approx(
        np.corrcoef(np.arange(900), place)[0, 1]
    )


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 3000), min_size=1, max_size=4).filter(any),
    seed=st.integers(0, (1 << 64) - 1),
)
def test_our_order_is_even(counts, seed):
    found = shuffle_quality(plan_of([8 * count for count in counts], seed=seed))
    assert found.even


def test_expected_neighbours_are_what_chance_gives():
    plan = plan_of([8 * 30, 8 * 20], frequencies={"s0": 3.0, "s1": 1.0}, samples_per_shard=1000)
    source, start, _ = plan.table.locate(np.arange(plan.contexts))
    touching = (source[:, None] == source) & (np.abs(start[:, None] - start) <= 8)
    chance = (touching.sum() - plan.contexts) / (plan.contexts * (plan.contexts - 1))
    found = shuffle_quality(plan)
    assert found.neighbours_expected == pytest.approx(chance)
    alike = (source[:, None] == source).sum() - plan.contexts
    assert found.same_source_expected == pytest.approx(
        alike / (plan.contexts * (plan.contexts - 1))
    )


def test_an_order_that_is_none_is_found_out(monkeypatch):
    monkeypatch.setattr(quality, "ranks", lambda contexts, seed, begin, end: np.arange(begin, end))
    monkeypatch.setattr(quality, "keys_of", lambda numbers, seed: numbers)
    found = shuffle_quality(plan_of([8 * 5000, 8 * 5000]))
    assert not found.even
    assert found.neighbours > 0.9
    assert found.same_source > 0.9
    assert found.rank_correlation == pytest.approx(1)
    assert found.mix_max > 5


def test_samples_of_large_plans(monkeypatch):
    whole = shuffle_quality(plan_of([8 * 20_000]))
    monkeypatch.setattr(quality, "SAMPLE", 1000)
    some = shuffle_quality(plan_of([8 * 20_000]))
    monkeypatch.setattr(quality, "WINDOW", 1000)
    first = shuffle_quality(plan_of([8 * 20_000]))
    assert (whole.sampled, some.sampled, first.sampled) == (20_000, 1000, 1000)
    assert whole.even
    assert some.even
    assert first.even


@pytest.mark.parametrize("counts", [[1], [2], [1, 0, 1], [50_000]])
def test_the_smallest_plans_are_even(counts):
    assert shuffle_quality(plan_of([8 * count for count in counts])).even is True
