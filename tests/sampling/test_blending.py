"""Blends against the C++ helper's results and against a plain loop over samples and datasets."""

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
    pick_in_blocks,
    simplex_projection,
    take_one_by_one,
)

WEIGHTS = st.one_of(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),  # not normalised
    st.lists(st.integers(1, 9), min_size=1, max_size=8),  # many ties
    # rarely taken datasets
    st.lists(st.floats(-7, 0).map(lambda decade: 10.0**decade), min_size=2, max_size=8),
    st.integers(1, 40).map(lambda datasets: [1.0] * datasets),
    st.tuples(
        st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4), st.sampled_from([0.0, 1e-300, 1e-7])
    ).map(lambda pair: [*pair[0], pair[1]]),
)
SIZES = st.one_of(
    st.lists(st.one_of(st.integers(1, 5), st.integers(1, 200)), min_size=1, max_size=12),
    # equal ones
    st.tuples(st.integers(1, 60), st.integers(1, 12)).map(lambda pair: [pair[1]] * pair[0]),
    # rare ones
    st.tuples(st.integers(500, 1500), st.integers(1, 8)).map(
        lambda pair: [pair[0]] + [1] * pair[1]
    ),
    st.lists(st.integers(1, 3), min_size=100, max_size=300),
)


def blocks_of(block_samples):
    """A stand-in for `block_shape` whose blocks have this many samples."""
    return lambda shares, n_samples: greedy.BlockShape(
        -(-n_samples // block_samples), block_samples
    )


def nothing_taken(weights, counts_before, first_samples):
    """A stand-in for `guess_counts`: the worst guess possible."""
    return np.zeros((len(first_samples), len(weights)))


def assert_blend(built, expected):
    for ours, theirs, dtype in zip(built, expected, (np.int16, np.int64), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def short_blocks(monkeypatch):
    """Small blends are speculated too, in several segments."""
    monkeypatch.setattr(greedy, "block_shape", blocks_of(16))
    monkeypatch.setattr(greedy, "_SEGMENT_SAMPLES", 400)


def test_the_worked_example_of_the_module_is_what_is_built():
    built = build_blending_indices([0.5, 0.3, 0.2], 6)

    assert_blend(built, ([0, 1, 2, 0, 1, 0], [0, 0, 0, 1, 1, 2]))


@pytest.mark.parametrize("case", cases("build_blending_indices"), ids=name_of)
@pytest.mark.usefixtures("short_blocks")
def test_blends_are_those_of_the_compiled_helper(case):
    golden = arrays(case)

    built = build_blending_indices(case["params"]["weights"], case["params"]["size"])

    assert_blend(built, (golden["dataset_index"], golden["dataset_sample_index"]))


@pytest.mark.parametrize("case", cases("build_exhaustive_blending_indices"), ids=name_of)
def test_exhaustive_blends_are_those_of_the_compiled_helper(case):
    golden = arrays(case)

    built = build_exhaustive_blending_indices(case["params"]["sizes"])

    assert_blend(built, (golden["dataset_index"], golden["dataset_sample_index"]))


@settings(max_examples=150, deadline=None)
@given(
    weights=WEIGHTS,
    normal=st.booleans(),
    size=st.integers(0, 900),
    block_samples=st.sampled_from([4, 16, 64]),
)
def test_blends_are_those_of_the_plain_loop(weights, normal, size, block_samples):
    weights = np.array(weights, dtype=np.float64)
    if normal:
        weights = weights / weights.sum()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "block_shape", blocks_of(block_samples))
        patch.setattr(greedy, "_SEGMENT_SAMPLES", 300)
        built = build_blending_indices(weights, size)

    assert_blend(built, slow_blend(weights.tolist(), size))


@settings(max_examples=60, deadline=None)
@given(
    weights=WEIGHTS,
    size=st.integers(0, 500),
    in_rows=st.booleans(),
    chunk=st.sampled_from([1, 40, 1 << 15]),
)
def test_blocks_that_all_start_wrong_are_repaired_in_either_layout(weights, size, in_rows, chunk):
    weights = np.array(weights) / np.sum(weights)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "block_shape", blocks_of(8))
        patch.setattr(greedy, "_FEW_LANES", 1 << 20 if in_rows else 0)
        patch.setattr(greedy, "_CHUNK_NUMBERS", chunk)
        patch.setattr(greedy, "guess_counts", nothing_taken)
        built = build_blending_indices(weights, size)

    assert_blend(built, slow_blend(weights.tolist(), size))


@pytest.mark.parametrize("concentration", [0.02, 0.5, 50.0])
@pytest.mark.parametrize("datasets", [1, 2, 17, 95, 96, 255, 256, 300])
def test_blends_of_many_datasets_are_those_of_the_plain_loop(datasets, concentration):
    weights = np.random.RandomState(datasets).dirichlet(np.full(datasets, concentration))
    size = min(20 * 16 * datasets, 30_000)

    built = build_blending_indices(weights, size)

    assert_blend(built, slow_blend_of_many_datasets(weights, size))


@pytest.mark.parametrize(
    "weights",
    [
        [10.0**-decade for decade in range(8)],
        [0.5, 0.25, 0.125, 0.125],
        [1 / 3] * 3,
        [0.999999, 1e-6],
        [0.3, 0.3, 0.4],
    ],
)
def test_a_blend_in_blocks_of_the_usual_size_is_that_of_the_plain_loop(weights):
    weights = np.array(weights) / np.sum(weights)
    cost = SpeculationCost()

    picks, _ = build_blending_indices(weights, 60_000, work=cost)

    assert cost.segments == 1
    np.testing.assert_array_equal(picks, slow_blend(weights.tolist(), 60_000)[0])


@pytest.mark.parametrize("segment", [20_000, 40_000])
def test_the_plain_loop_takes_over_when_the_budget_is_used_up(monkeypatch, segment):
    monkeypatch.setattr(greedy, "_SEGMENT_SAMPLES", segment)
    monkeypatch.setattr(greedy, "_step_cost", lambda *_: 1e9)
    monkeypatch.setattr(greedy, "guess_counts", nothing_taken)
    weights = np.array([0.7, 0.2999, 0.0001])
    cost = SpeculationCost()

    picks, _ = build_blending_indices(weights, 40_000, work=cost)

    assert cost.passes == cost.segments == 40_000 // segment
    assert cost.sequential > 0
    np.testing.assert_array_equal(picks, slow_blend(weights.tolist(), 40_000)[0])


@settings(max_examples=100, deadline=None)
@given(SIZES, st.sampled_from([8, 64, 1 << 20]))
def test_exhaustive_blends_are_those_of_the_plain_loop(sizes, block_samples):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(greedy, "block_shape", blocks_of(block_samples))
        built = build_exhaustive_blending_indices(sizes)

    assert_blend(built, slow_exhaustive_blend(sizes))


def test_samples_beyond_the_size_of_a_dataset_are_taken_again(monkeypatch):
    sizes = [5, 3, 4]
    greedy_segments = blending.greedy_segments

    def segments_rounded_up(weights, size, cost):
        for start, picks in greedy_segments(weights, size, cost):
            picks[-2:] = 1  # one more of dataset 1 than it has
            yield start, picks

    monkeypatch.setattr(blending, "greedy_segments", segments_rounded_up)
    assert_blend(build_exhaustive_blending_indices(sizes), slow_exhaustive_blend(sizes))


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=200), st.sampled_from([3, 64, 1 << 16]))
def test_an_entry_is_numbered_by_how_often_its_value_came_before(values, chunk):
    picks = np.array(values, dtype=np.uint8)
    numbers = np.empty(len(values), np.int64)
    half = len(values) // 2
    counter = OccurrenceCounter(5)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "_CHUNK", chunk)
        counter.count_earlier(picks[:half], numbers[:half])
        counter.count_earlier(picks[half:], numbers[half:])

    assert counter.counts.tolist() == [values.count(value) for value in range(5)]
    assert numbers.tolist() == [
        values[:position].count(value) for position, value in enumerate(values)
    ]


def test_occurrences_are_numbered_beyond_2_to_the_31():
    counter = OccurrenceCounter(2)
    counter.counts[:] = 2**31 + 5, 2**40
    numbers = np.empty(4, np.int64)

    counter.count_earlier(np.array([0, 1, 1, 0], np.uint8), numbers)

    assert numbers.tolist() == [2**31 + 5, 2**40, 2**40 + 1, 2**31 + 6]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=20))
def test_long_run_shares_add_up_to_1_whatever_the_weights(weights):
    shares = simplex_projection(np.array(weights))

    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1.0)
    if sum(weights) == 1.0:
        np.testing.assert_allclose(shares, weights)


def slow_projection(weights):
    """The weights minus the amount at which they add up to 1, found by halving an interval."""
    low = min(weights) - 1.0
    high = max(weights)
    for _ in range(100):
        middle = (low + high) / 2
        if sum(max(weight - middle, 0.0) for weight in weights) > 1.0:
            low = middle
        else:
            high = middle
    return [max(weight - low, 0.0) for weight in weights]


@given(st.lists(st.floats(0.0, 10.0), min_size=1, max_size=20))
def test_long_run_shares_are_the_weights_minus_a_common_amount(weights):
    shares = simplex_projection(np.array(weights))

    assert shares.tolist() == pytest.approx(slow_projection(weights), abs=1e-9)


@given(st.integers(1, 5), st.integers(1, 6), st.data())
def test_picks_are_counted_lane_by_lane(datasets, lanes, data):
    rows = st.lists(st.integers(0, datasets - 1), min_size=lanes, max_size=lanes)
    picks = data.draw(st.lists(rows, min_size=1, max_size=6))

    counts = greedy._counts_by_lane(np.array(picks), datasets)

    picks_by_lane = zip(*picks, strict=True)
    expected = [[lane.count(dataset) for dataset in range(datasets)] for lane in picks_by_lane]
    assert counts.tolist() == expected


@pytest.mark.parametrize("start", [2**31 - 20_000, 2**33, 2**45])
@pytest.mark.parametrize("datasets", [3, 100])
def test_segments_beyond_2_to_the_31_samples_are_those_of_the_plain_loop(start, datasets):
    weights = np.random.RandomState(datasets).dirichlet(np.ones(datasets))
    counts = np.rint(weights * start)
    counts[0] += start - counts.sum()
    expected = np.zeros(40_000, np.uint8)
    expected_counts = take_one_by_one(weights, counts, start, expected)

    picks = np.zeros(40_000, np.uint8)
    shape = greedy.block_shape(weights, len(picks))
    counts_after = pick_in_blocks(weights, counts, start, picks, shape, SpeculationCost())

    np.testing.assert_array_equal(picks, expected)
    np.testing.assert_array_equal(counts_after, expected_counts)


def test_speculation_is_cheap_for_weights_over_seven_decades():
    weights = 10.0 ** np.random.RandomState(0).uniform(-7, 0, 64)
    cost = SpeculationCost()

    build_blending_indices(weights / weights.sum(), 1_000_000, work=cost)

    assert cost.sequential == 0
    assert cost.redone < 1_000_000
    assert cost.passes < 25


@pytest.mark.parametrize("weights", [[], [float("nan"), 1.0], [float("inf")], [1.0] * 32767])
def test_impossible_weights_are_refused(weights):
    with pytest.raises(ConfigError, match="blend"):
        build_blending_indices(weights, 3)


@pytest.mark.parametrize("sizes", [[], [3, 0], [-1, 2]])
def test_impossible_sizes_are_refused(sizes):
    with pytest.raises(ConfigError, match="blend"):
        build_exhaustive_blending_indices(sizes)
