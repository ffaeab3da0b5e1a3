"""The samples that a blend takes of each dataset are estimated by weight."""

from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.sampling.corpora import samples_of_blend_epoch
from nanoset_core.sampling.coverage import _samples_by_weight


def slow_samples(weights, size):
    """Round the share of each dataset down, and give the rest to those that lost most by that."""
    exact = [weight / sum(weights) * size for weight in weights]
    counts = [int(count) for count in exact]

    def rounded_off(dataset):
        return exact[dataset] - counts[dataset]

    # Of several datasets that lost as much, the first one comes first: sorting is stable.
    datasets = sorted(range(len(weights)), key=rounded_off, reverse=True)
    n_rest = size - sum(counts)
    for dataset in datasets[:n_rest]:
        counts[dataset] += 1
    return counts


@given(
    weights=st.lists(st.integers(1, 30), min_size=1, max_size=8),
    size=st.integers(0, 1000),
)
def test_samples_are_divided_by_weight_and_none_is_lost(weights, size):
    counts = _samples_by_weight(SimpleNamespace(weights=weights, size=size))

    assert counts == slow_samples(weights, size)
    assert sum(counts) == size


def test_a_mixture_in_proportion_to_the_sizes_has_each_sample_once():
    # As floats, ten times 0.1 is less than 1 if it is added up one by one.
    assert samples_of_blend_epoch([30] * 10, [0.1] * 10) == [30] * 10


def test_parts_of_samples_count_as_whole_samples_of_a_mixture():
    assert samples_of_blend_epoch([300, 101], [0.5, 0.5]) == [201, 201]
