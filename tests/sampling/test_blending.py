"""Blends against the C++ helper's results and against a plain loop over samples and datasets."""

import numpy as np
import pytest
from golden.megatron.cases import arrays, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.sampling import blending
from nanoset_core.sampling.blending import (
    OccurrenceCounter,
    Work,
    build_blending_indices,
    build_exhaustive_blending_indices,
    simplex_projection,
    speculate,
    take_one_by_one,
)


def slow_blend(weights, size):
    """`helpers.cpp`, `build_blending_indices`."""
    counts = [0] * len(weights)
    picks, numbers = [], []
    for sample in range(size):
        time = max(float(sample), 1.0)
        best, most = 0, weights[0] * time - float(counts[0])
        for dataset in range(1, len(weights)):
            error = weights[dataset] * time - float(counts[dataset])
            if error > most:
                best, most = dataset, error
        picks.append(best)
        numbers.append(counts[best])
        counts[best] += 1
    return picks, numbers


def slow_exhaustive(sizes):
    """`helpers.cpp`, `build_exhaustive_blending_indices`."""
    weights = [size / float(sum(sizes)) for size in sizes]
    counts, unspent = [0] * len(sizes), set(range(len(sizes)))
    picks, numbers = [], []
    while unspent:
        time = max(float(len(picks)), 1.0)
        best, most = -1, -np.inf
        for dataset in sorted(unspent):
            error = weights[dataset] * time - float(counts[dataset])
            if error > most:
                best, most = dataset, error
        picks.append(best)
        numbers.append(counts[best])
        counts[best] += 1
        if counts[best] == sizes[best]:
            unspent.remove(best)
    return picks, numbers


def assert_blend(built, expected):
    for ours, theirs, dtype in zip(built, expected, (np.int16, np.int64), strict=True):
        assert ours.dtype == dtype
        np.testing.assert_array_equal(ours, theirs)


@pytest.fixture
def short_blocks(monkeypatch):
    """Let small blends be speculated too, in several segments."""
    monkeypatch.setattr(blending, "block_shape", lambda _, count: (-(-count // 16), 16))
    monkeypatch.setattr(blending, "_SEGMENT_SAMPLES", 400)


@pytest.mark.parametrize("case", cases("build_blending_indices"), ids=name_of)
@pytest.mark.usefixtures("short_blocks")
def test_golden(case):
    golden = arrays(case)
    expected = golden["dataset_index"], golden["dataset_sample_index"]
    assert_blend(build_blending_indices(case["params"]["weights"], case["params"]["size"]), expected)


@pytest.mark.parametrize("case", cases("build_exhaustive_blending_indices"), ids=name_of)
def test_golden_exhaustive(case):
    golden = arrays(case)
    expected = golden["dataset_index"], golden["dataset_sample_index"]
    assert_blend(build_exhaustive_blending_indices(case["params"]["sizes"]), expected)


WEIGHTS = st.one_of(
    st.lists(st.floats(0.01, 1.0), min_size=1, max_size=6),  # not normalised
    st.lists(st.integers(1, 9), min_size=1, max_size=8),  # many ties
    st.lists(st.floats(-7, 0).map(lambda decade: 10.0**decade), min_size=2, max_size=8),  # rarely taken datasets
    st.integers(1, 40).map(lambda datasets: [1.0] * datasets),
    st.tuples(st.lists(st.floats(0.1, 1.0), min_size=1, max_size=4), st.sampled_from([0.0, 1e-300, 1e-7])).map(
        lambda pair: [*pair[0], pair[1]]
    ),
)


def nothing_taken(weights, least, at):
    """The worst guess there is."""
    return np.zeros((len(at), len(weights)))


def numpy_blend(weights, size):
    """`slow_blend` for many datasets: a plain loop over samples."""
    weights, counts = np.array(weights), np.zeros(len(weights))
    picks, numbers = np.empty(size, np.int64), np.empty(size, np.int64)
    for sample in range(size):
        pick = int(np.argmax(weights * float(max(sample, 1)) - counts))
        picks[sample], numbers[sample] = pick, counts[pick]
        counts[pick] += 1
    return picks, numbers


@settings(max_examples=150, deadline=None)
@given(weights=WEIGHTS, normal=st.booleans(), size=st.integers(0, 900), length=st.sampled_from([4, 16, 64]))
def test_plain_loop(weights, normal, size, length):
    weights = np.array(weights, dtype=np.float64)
    weights = weights / weights.sum() if normal else weights
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "block_shape", lambda _, count: (-(-count // length), length))
        patch.setattr(blending, "_SEGMENT_SAMPLES", 300)
        assert_blend(build_blending_indices(weights, size), slow_blend(weights.tolist(), size))


@settings(max_examples=60, deadline=None)
@given(weights=WEIGHTS, size=st.integers(0, 500), rows=st.booleans(), chunk=st.sampled_from([1, 40, 1 << 15]))
def test_every_way_of_repair_is_the_plain_loop(weights, size, rows, chunk):
    weights = np.array(weights) / np.sum(weights)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "block_shape", lambda _, count: (-(-count // 8), 8))
        patch.setattr(blending, "_WIDE_LANES", 1 << 20 if rows else 0)
        patch.setattr(blending, "_CHUNK_NUMBERS", chunk)
        patch.setattr(blending, "guess_counts", nothing_taken)
        assert_blend(build_blending_indices(weights, size), slow_blend(weights.tolist(), size))


@pytest.mark.parametrize("shape", [0.02, 0.5, 50.0])
@pytest.mark.parametrize("datasets", [1, 2, 17, 95, 96, 255, 256, 300])
def test_many_datasets(datasets, shape):
    weights = np.random.RandomState(datasets).dirichlet(np.full(datasets, shape))
    size = min(20 * 16 * datasets, 30_000)
    assert_blend(build_blending_indices(weights, size), numpy_blend(weights, size))


@pytest.mark.parametrize(
    "weights",
    [[10.0**-decade for decade in range(8)], [0.5, 0.25, 0.125, 0.125], [1 / 3] * 3, [0.999999, 1e-6], [0.3, 0.3, 0.4]],
)
def test_real_block_shapes(weights):
    weights = np.array(weights) / np.sum(weights)
    work = Work()
    picks, _ = build_blending_indices(weights, 60_000, work=work)
    assert work.segments == 1
    np.testing.assert_array_equal(picks, slow_blend(weights.tolist(), 60_000)[0])


@pytest.mark.parametrize("segment", [20_000, 40_000])
def test_budget_ends_in_the_plain_loop(monkeypatch, segment):
    monkeypatch.setattr(blending, "_SEGMENT_SAMPLES", segment)
    monkeypatch.setattr(blending, "_step_cost", lambda *_: 1e9)
    monkeypatch.setattr(blending, "guess_counts", nothing_taken)
    weights = np.array([0.7, 0.2999, 0.0001])
    work = Work()
    picks, _ = build_blending_indices(weights, 40_000, work=work)
    assert work.passes == work.segments == 40_000 // segment
    assert work.sequential > 0
    np.testing.assert_array_equal(picks, slow_blend(weights.tolist(), 40_000)[0])


SIZES = st.one_of(
    st.lists(st.one_of(st.integers(1, 5), st.integers(1, 200)), min_size=1, max_size=12),
    st.tuples(st.integers(1, 60), st.integers(1, 12)).map(lambda pair: [pair[1]] * pair[0]),  # equal ones
    st.tuples(st.integers(500, 1500), st.integers(1, 8)).map(lambda pair: [pair[0]] + [1] * pair[1]),  # rare ones
    st.lists(st.integers(1, 3), min_size=100, max_size=300),
)


@settings(max_examples=100, deadline=None)
@given(SIZES, st.sampled_from([8, 64, 1 << 20]))
def test_exhaustive_plain_loop(sizes, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "block_shape", lambda _, count: (-(-count // length), length))
        assert_blend(build_exhaustive_blending_indices(sizes), slow_exhaustive(sizes))


def test_exhaustive_where_rounding_picks_a_dataset_that_is_used_up(monkeypatch):
    sizes = [5, 3, 4]
    expected = slow_exhaustive(sizes)
    greedy = blending.greedy_segments

    def rounded(weights, size, work):
        for begin, picks in greedy(weights, size, work):
            picks[-2:] = 1  # one more of dataset 1 than it has
            yield begin, picks

    monkeypatch.setattr(blending, "greedy_segments", rounded)
    assert_blend(build_exhaustive_blending_indices(sizes), expected)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(0, 4), max_size=200), st.sampled_from([3, 64, 1 << 16]))
def test_occurrence_numbers(values, chunk):
    picks, numbers = np.array(values, dtype=np.uint8), np.empty(len(values), np.int64)
    half = len(values) // 2
    counter = OccurrenceCounter(5)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(blending, "_CHUNK", chunk)
        counter.number(picks[:half], numbers[:half])
        counter.number(picks[half:], numbers[half:])
    assert counter.counts.tolist() == [values.count(value) for value in range(5)]
    assert numbers.tolist() == [values[:at].count(value) for at, value in enumerate(values)]


@settings(max_examples=50, deadline=None)
@given(st.lists(st.floats(1e-6, 10.0), min_size=1, max_size=20))
def test_simplex_projection(weights):
    shares = simplex_projection(np.array(weights))
    assert shares.min() >= 0
    assert shares.sum() == pytest.approx(1.0)
    if sum(weights) == 1.0:
        np.testing.assert_allclose(shares, weights)


@pytest.mark.parametrize("begin", [2**31 - 20_000, 2**33, 2**45])
@pytest.mark.parametrize("datasets", [3, 100])
def test_segments_beyond_2_to_the_31_samples(begin, datasets):
    weights = np.random.RandomState(datasets).dirichlet(np.ones(datasets))
    counts = np.rint(weights * begin)
    counts[0] += begin - counts.sum()
    picks, expected, truth = np.zeros(40_000, np.uint8), np.zeros(40_000, np.uint8), counts.copy()
    take_one_by_one(weights, truth, begin, expected)
    shape = blending.block_shape(weights, len(picks))
    after = speculate(weights, counts.copy(), begin, picks, shape, Work())
    np.testing.assert_array_equal(picks, expected)
    np.testing.assert_array_equal(after, truth)


def test_occurrence_numbers_beyond_2_to_the_31():
    counter, numbers = OccurrenceCounter(2), np.empty(4, np.int64)
    counter.counts[:] = 2**31 + 5, 2**40
    counter.number(np.array([0, 1, 1, 0], np.uint8), numbers)
    assert numbers.tolist() == [2**31 + 5, 2**40, 2**40 + 1, 2**31 + 6]


def test_speculation_is_cheap_for_weights_over_seven_decades():
    weights = 10.0 ** np.random.RandomState(0).uniform(-7, 0, 64)
    work = Work()
    build_blending_indices(weights / weights.sum(), 1_000_000, work=work)
    assert work.sequential == 0
    assert work.redone < 1_000_000
    assert work.passes < 25


@pytest.mark.parametrize("weights", [[], [float("nan"), 1.0], [float("inf")], [1.0] * 32767])
def test_weights_that_cannot_be(weights):
    with pytest.raises(ConfigError, match="blend"):
        build_blending_indices(weights, 3)


@pytest.mark.parametrize("sizes", [[], [3, 0], [-1, 2]])
def test_sizes_that_cannot_be(sizes):
    with pytest.raises(ConfigError, match="blend"):
        build_exhaustive_blending_indices(sizes)
