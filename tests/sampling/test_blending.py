"""Blends equal those of the compiled helper, and those of a loop over samples and datasets."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
from golden.megatron.cases import arrays, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.slow_indices import slow_blend, slow_blend_of_many_datasets, slow_exhaustive_blend
from nanoset_core.errors import ConfigError
from nanoset_core.sampling import blending, greedy
from nanoset_core.sampling.blending import (
    OccurrenceCounter,
    build_blending_indices,
    build_exhaustive_blending_indices,
)
from nanoset_core.sampling.greedy import (
    SpeculationCost,
    long_run_shares,
    pick_in_blocks,
    take_one_by_one,
)

drawn_weights = st.one_of(
    # Not normalised.
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),
    # With many ties.
    st.lists(st.integers(1, 9), min_size=1, max_size=8),
    # Some datasets are rarely taken.
    st.lists(st.floats(-7, 0).map(lambda decade: 10.0**decade), min_size=2, max_size=8),
    # All equal.
    st.integers(1, 40).map(lambda n_datasets: [1.0] * n_datasets),
    # The last one is taken almost never, or never.
    st.builds(
        lambda weights, last: [*weights, last],
        st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4),
        st.sampled_from([0.0, 1e-300, 1e-7]),
    ),
)
"""Weights of the datasets of a blend."""
drawn_sizes = st.one_of(
    st.lists(st.one_of(st.integers(1, 5), st.integers(1, 200)), min_size=1, max_size=12),
    # All equal.
    st.builds(lambda n_datasets, size: [size] * n_datasets, st.integers(1, 60), st.integers(1, 12)),
    # One large dataset, and some with a single sample.
    st.builds(
        lambda size, n_others: [size] + [1] * n_others, st.integers(500, 1500), st.integers(1, 8)
    ),
    # Many small ones.
    st.lists(st.integers(1, 3), min_size=100, max_size=300),
)
"""Numbers of samples of the datasets of an exhaustive blend."""


def blocks_of(block_samples):
    """Return a stand-in for `block_shape` whose blocks have this many samples."""

    def block_shape(shares, n_samples):
        n_blocks = -(-n_samples // block_samples)  # rounded up
        return greedy.BlockShape(n_blocks, block_samples)

    return block_shape


def nothing_taken(weights, counts_before, first_samples):
    """Guess that nothing was taken before a block: a stand-in for `guess_counts`, the worst one."""
    return np.zeros((len(first_samples), len(weights)))


def assert_blend(blend, expected):
    """Check the dataset of each sample, and its number within that dataset."""
    dataset_index, dataset_sample_index = blend
    expected_dataset_index, expected_dataset_sample_index = expected
    np.testing.assert_array_equal(dataset_index, expected_dataset_index)
    np.testing.assert_array_equal(dataset_sample_index, expected_dataset_sample_index)
    assert dataset_index.dtype == np.int16
    assert dataset_sample_index.dtype == np.int64


@pytest.fixture
def short_blocks(monkeypatch):
    """Let small blends be built in blocks, too, and in several segments."""
    monkeypatch.setattr(greedy, "block_shape", blocks_of(16))
    monkeypatch.setattr(greedy, "_SEGMENT_SAMPLES", 400)


def test_the_worked_example_of_the_module_is_what_is_built():
    built = build_blending_indices([0.5, 0.3, 0.2], 6)

    assert_blend(built, ([0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 1, 2]))


@pytest.mark.parametrize("case", cases("build_blending_indices"), ids=name_of)
@pytest.mark.usefixtures("short_blocks")
def test_blends_are_those_of_the_compiled_helper(case):
    recorded_arrays = arrays(case)

    built = build_blending_indices(case["params"]["weights"], case["params"]["size"])

    expected = (recorded_arrays["dataset_index"], recorded_arrays["dataset_sample_index"])
    assert_blend(built, expected)


@pytest.mark.parametrize("case", cases("build_exhaustive_blending_indices"), ids=name_of)
def test_exhaustive_blends_are_those_of_the_compiled_helper(case):
    recorded_arrays = arrays(case)

    built = build_exhaustive_blending_indices(case["params"]["sizes"])

    expected = (recorded_arrays["dataset_index"], recorded_arrays["dataset_sample_index"])
    assert_blend(built, expected)


@given(
    weights=drawn_weights,
    is_normalised=st.booleans(),
    size=st.integers(0, 900),
    block_samples=st.sampled_from([4, 16, 64]),
)
def test_blends_are_those_of_the_plain_loop(weights, is_normalised, size, block_samples):
    weights = np.array(weights, dtype=np.float64)
    if is_normalised:
        weights = weights / weights.sum()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "block_shape", blocks_of(block_samples))
        patch.setattr(greedy, "_SEGMENT_SAMPLES", 300)
        built = build_blending_indices(weights, size)

    assert_blend(built, slow_blend(weights.tolist(), size))


@given(
    weights=drawn_weights,
    size=st.integers(0, 500),
    few_lanes=st.sampled_from([0, 1 << 20]),  # `ColumnLanes`, or `RowLanes`
    chunk=st.sampled_from([1, 40, 1 << 15]),
)
def test_blocks_that_all_start_wrong_are_repaired_in_either_layout(weights, size, few_lanes, chunk):
    weights = np.array(weights) / np.sum(weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "block_shape", blocks_of(8))
        patch.setattr(greedy, "_FEW_LANES", few_lanes)
        patch.setattr(greedy, "_CHUNK_NUMBERS", chunk)
        patch.setattr(greedy, "guess_counts", nothing_taken)
        built = build_blending_indices(weights, size)

    assert_blend(built, slow_blend(weights.tolist(), size))


@pytest.mark.parametrize("concentration", [0.02, 0.5, 50.0])
@pytest.mark.parametrize("n_datasets", [1, 2, 17, 95, 96, 255, 256, 300])
def test_blends_of_many_datasets_are_those_of_the_plain_loop(n_datasets, concentration):
    """The smaller the concentration is, the more samples are of a few datasets."""
    weights = np.random.RandomState(n_datasets).dirichlet(np.full(n_datasets, concentration))
    size = min(20 * 16 * n_datasets, 10_000)

    built = build_blending_indices(weights, size)

    assert_blend(built, slow_blend_of_many_datasets(weights, size))


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([10.0**-decade for decade in range(8)], id="seven decades"),
        pytest.param([0.5, 0.25, 0.125, 0.125], id="powers of two"),
        pytest.param([1 / 3] * 3, id="equal"),
        pytest.param([0.999999, 1e-6], id="one in a million"),
        pytest.param([0.3, 0.3, 0.4], id="two equal"),
    ],
)
def test_a_blend_in_blocks_of_the_usual_size_is_that_of_the_plain_loop(weights):
    weights = np.array(weights) / np.sum(weights)
    cost = SpeculationCost()

    dataset_index, _ = build_blending_indices(weights, 60_000, work=cost)

    expected, _ = slow_blend(weights.tolist(), 60_000)
    np.testing.assert_array_equal(dataset_index, expected)
    assert cost.segments == 1


@pytest.mark.parametrize("n_segments", [1, 2])
def test_the_plain_loop_takes_over_if_blocks_cost_too_much(monkeypatch, n_segments):
    size = 40_000
    monkeypatch.setattr(greedy, "_SEGMENT_SAMPLES", size // n_segments)
    monkeypatch.setattr(greedy, "_step_cost", lambda *_: 1e9)
    monkeypatch.setattr(greedy, "guess_counts", nothing_taken)
    weights = np.array([0.7, 0.2999, 0.0001])
    cost = SpeculationCost()

    dataset_index, _ = build_blending_indices(weights, size, work=cost)

    expected, _ = slow_blend(weights.tolist(), size)
    np.testing.assert_array_equal(dataset_index, expected)
    assert cost.segments == n_segments
    assert cost.passes == n_segments
    assert cost.sequential > 0


@given(sizes=drawn_sizes, block_samples=st.sampled_from([8, 64, 1 << 20]))
def test_exhaustive_blends_are_those_of_the_plain_loop(sizes, block_samples):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "block_shape", blocks_of(block_samples))
        built = build_exhaustive_blending_indices(sizes)

    assert_blend(built, slow_exhaustive_blend(sizes))


def test_samples_beyond_the_size_of_a_dataset_are_taken_again(monkeypatch):
    """Rounding may take one more than there are."""
    sizes = [5, 3, 4]
    greedy_segments = blending.greedy_segments

    def segments_with_wrong_end(weights, size, cost):
        for start, picks in greedy_segments(weights, size, cost):
            picks[-2:] = 1  # one more of dataset 1 than it has
            yield start, picks

    monkeypatch.setattr(blending, "greedy_segments", segments_with_wrong_end)

    built = build_exhaustive_blending_indices(sizes)

    assert_blend(built, slow_exhaustive_blend(sizes))


@settings(max_examples=50, deadline=None)
@given(values=st.lists(st.integers(0, 4), max_size=200), chunk=st.sampled_from([3, 64, 1 << 16]))
def test_an_entry_is_numbered_by_the_equal_entries_before_it(values, chunk):
    picks = np.array(values, dtype=np.uint8)
    numbers = np.empty(len(values), np.int64)
    half = len(values) // 2
    counter = OccurrenceCounter(5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "_CHUNK", chunk)
        counter.count_earlier(picks[:half], numbers[:half])
        counter.count_earlier(picks[half:], numbers[half:])

    expected_numbers = []
    for position, value in enumerate(values):
        expected_numbers.append(values[:position].count(value))
    assert numbers.tolist() == expected_numbers
    assert counter.counts.tolist() == [values.count(value) for value in range(5)]


def test_entries_are_numbered_beyond_2_to_the_31():
    counter = OccurrenceCounter(2)
    counter.counts[0] = 2**31 + 5
    counter.counts[1] = 2**40
    numbers = np.empty(4, np.int64)

    counter.count_earlier(np.array([0, 1, 1, 0], np.uint8), numbers)

    assert numbers.tolist() == [2**31 + 5, 2**40, 2**40 + 1, 2**31 + 6]


@settings(max_examples=50, deadline=None)
@given(weights=st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=20))
def test_long_run_shares_add_up_to_1_whatever_the_weights(weights):
    shares = long_run_shares(np.array(weights))

    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1.0)
    if sum(weights) == 1.0:
        np.testing.assert_allclose(shares, weights)


def slow_projection(weights):
    """Subtract the amount from all weights at which they add up to 1; none is below 0.

    The amount is found by halving an interval.
    """
    low = min(weights) - 1.0
    high = max(weights)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(max(weight - middle, 0.0) for weight in weights) > 1.0:
            low = middle
        else:
            high = middle
    return [max(weight - low, 0.0) for weight in weights]


@given(weights=st.lists(st.floats(0.0, 10.0), min_size=1, max_size=20))
def test_long_run_shares_are_the_weights_minus_a_common_amount(weights):
    shares = long_run_shares(np.array(weights))

    assert shares.tolist() == pytest.approx(slow_projection(weights), abs=1e-9)


@given(n_datasets=st.integers(1, 5), n_blocks=st.integers(1, 6), data=st.data())
def test_picks_are_counted_block_by_block(n_datasets, n_blocks, data):
    row = st.lists(st.integers(0, n_datasets - 1), min_size=n_blocks, max_size=n_blocks)
    picks = data.draw(st.lists(row, min_size=1, max_size=6))  # (n_samples, n_blocks)

    counts = greedy._counts_by_block(np.array(picks), n_datasets)

    expected = []
    for picks_of_block in zip(*picks, strict=True):
        expected.append([picks_of_block.count(dataset) for dataset in range(n_datasets)])
    assert counts.tolist() == expected


@pytest.mark.parametrize("start", [2**31 - 20_000, 2**33, 2**45])
@pytest.mark.parametrize("n_datasets", [3, 100])
def test_segments_beyond_2_to_the_31_samples_are_those_of_the_plain_loop(start, n_datasets):
    weights = np.random.RandomState(n_datasets).dirichlet(np.ones(n_datasets))
    counts = np.rint(weights * start)  # samples that were taken of each dataset before
    counts[0] += start - counts.sum()
    expected = take_one_by_one(weights, counts, start, 40_000)

    shape = greedy.block_shape(weights, 40_000)
    picked = pick_in_blocks(weights, counts, start, 40_000, shape, SpeculationCost())

    np.testing.assert_array_equal(picked.picks, expected.picks)
    np.testing.assert_array_equal(picked.counts, expected.counts)


def test_speculation_is_cheap_for_weights_over_seven_decades():
    weights = 10.0 ** np.random.RandomState(0).uniform(-7, 0, 64)
    cost = SpeculationCost()

    build_blending_indices(weights / weights.sum(), 1_000_000, work=cost)

    assert cost.sequential == 0
    assert cost.redone < 1_000_000
    assert cost.passes < 25


@pytest.mark.parametrize(
    "weights",
    [
        pytest.param([], id="none"),
        pytest.param([float("nan"), 1.0], id="not a number"),
        pytest.param([float("inf")], id="infinite"),
        pytest.param([1.0] * 32767, id="too many"),
        pytest.param([-1.0, 2.0], id="negative"),
        pytest.param([0.0, 0.0], id="all zero"),
        pytest.param([[0.3, 0.7]], id="a row"),
        pytest.param([[0.3], [0.7]], id="a column"),
        pytest.param(["0.5", "0.5"], id="texts"),
        pytest.param(np.array([0.5, "0.5"], object), id="a text in an array of objects"),
        pytest.param(None, id="no list"),
        pytest.param({0: 0.5}, id="a dictionary"),
    ],
)
def test_impossible_weights_are_refused(weights):
    with pytest.raises(ConfigError, match="blend"):
        build_blending_indices(weights, 3)


@pytest.mark.parametrize("weights", [[Fraction(1, 2)] * 2, [Decimal("0.5")] * 2])
def test_weights_may_be_exact_numbers(weights):
    assert_blend(build_blending_indices(weights, 3), slow_blend([0.5, 0.5], 3))


@pytest.mark.parametrize("size", [-1, 2.0, "5", None])
def test_the_size_of_a_blend_is_a_whole_number(size):
    with pytest.raises(ConfigError, match="size: not a whole number"):
        build_blending_indices([0.5, 0.5], size)


def test_weights_are_used_as_they_are_like_in_megatron():
    dataset_index, _ = build_blending_indices([3, 1], 100)

    assert dataset_index.tolist() == [0] * 100


@pytest.mark.parametrize("sizes", [[], [3, 0], [-1, 2]])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ConfigError, match="blend"):
        build_exhaustive_blending_indices(sizes)
