"""Estimates of what a blend takes of each dataset."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.sampling.coverage import _samples_by_weight


def slow_samples(weights, size):
    """Give the samples away one by one, each to the dataset that is furthest below its share."""
    exact = [weight / sum(weights) * size for weight in weights]
    counts = [int(count) for count in exact]
    waiting = sorted(
        range(len(weights)), key=lambda number: (counts[number] - exact[number], number)
    )
    for number in waiting[: size - sum(counts)]:
        counts[number] += 1
    return counts


@given(
    weights=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    size=st.integers(0, 1000),
)
def test_samples_are_divided_by_weight_and_none_is_lost(weights, size):
    counts = _samples_by_weight(SimpleNamespace(weights=weights, size=size))

    assert counts == slow_samples(weights, size)
    assert sum(counts) == size
