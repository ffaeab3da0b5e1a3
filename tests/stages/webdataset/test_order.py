"""The global order of contexts, and which of them are chosen if frequencies are not whole numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.stages.webdataset import order
from nanoset_core.stages.webdataset.order import (
    BLOCK_ROWS,
    Choice,
    choice_seed,
    context_keys,
    frequencies_of_weights,
    global_order,
    ranks,
    sampled_contexts,
)

MAX_UINT64 = (1 << 64) - 1
SEEDS = st.integers(0, MAX_UINT64)


def splitmix64(seed: int, count: int) -> list[int]:
    """Return the first outputs of the generator as it was published, one at a time."""
    state = seed
    outputs = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MAX_UINT64
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MAX_UINT64
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MAX_UINT64
        outputs.append(z ^ (z >> 31))
    return outputs


# Keys


@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        pytest.param(0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F], id="seed 0"),
        pytest.param(
            1234567,
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431],
            id="the vector of Rosetta Code",
        ),
    ],
)
def test_keys_are_the_published_outputs_of_splitmix64(seed, outputs):
    assert context_keys(0, len(outputs), seed).tolist() == outputs


@settings(deadline=None, max_examples=100)
@given(seed=SEEDS, start=st.integers(0, 40), count=st.integers(0, 40))
def test_keys_of_a_range_are_those_outputs_of_the_generator(seed, start, count):
    keys = context_keys(start, start + count, seed)

    assert keys.dtype == np.uint64
    assert keys.tolist() == splitmix64(seed, start + count)[start:]


# The order


@settings(deadline=None, max_examples=100)
@given(n_contexts=st.integers(0, 200), seed=SEEDS)
def test_contexts_are_sorted_by_key_and_then_by_number(n_contexts, seed):
    keys = splitmix64(seed, n_contexts)
    expected = sorted(range(n_contexts), key=lambda number: (keys[number], number))

    ordered = global_order(n_contexts, seed)

    assert ordered.dtype == np.int64
    assert ordered.tolist() == expected


@pytest.fixture(scope="module")
def patch_windows():
    """A function that makes the windows of the order small, and forgets what was computed."""
    with pytest.MonkeyPatch.context() as patch:

        def make_small(window_size: int) -> None:
            patch.setattr(order, "WINDOW", window_size)
            patch.setattr(order, "_CHUNK", 257)
            order._bucket_boundaries.cache_clear()

        yield make_small
    order._bucket_boundaries.cache_clear()


@st.composite
def ranges_of_contexts(draw):
    """Return a number of contexts, and the start and stop of a range of them."""
    n_contexts = draw(st.integers(1, 3000))
    start = draw(st.integers(0, n_contexts))
    stop = draw(st.integers(start, n_contexts))
    return n_contexts, start, stop


@settings(deadline=None, max_examples=60)
@given(contexts=ranges_of_contexts(), seed=SEEDS, window_size=st.integers(1, 900))
def test_a_range_of_the_order_can_be_computed_alone(patch_windows, contexts, seed, window_size):
    n_contexts, start, stop = contexts
    patch_windows(window_size)

    ordered = ranks(n_contexts, seed, start, stop)

    assert np.array_equal(ordered, global_order(n_contexts, seed)[start:stop])


@st.composite
def contexts_and_ranks(draw):
    """Return a number of contexts, and some ranks of them in any order."""
    n_contexts = draw(st.integers(1, 3000))
    some_ranks = draw(st.lists(st.integers(0, n_contexts - 1), max_size=30))
    return n_contexts, np.array(some_ranks, np.int64)


@settings(deadline=None, max_examples=60)
@given(contexts=contexts_and_ranks(), seed=SEEDS, window_size=st.integers(1, 900))
def test_keys_at_some_ranks_can_be_computed_alone(patch_windows, contexts, seed, window_size):
    n_contexts, requested_ranks = contexts
    patch_windows(window_size)
    all_keys = context_keys(0, n_contexts, seed)
    expected = all_keys[global_order(n_contexts, seed)[requested_ranks]]

    keys = order.keys_at(n_contexts, seed, requested_ranks)

    assert keys.dtype == np.uint64
    assert np.array_equal(keys, expected)


def test_a_caller_may_change_the_returned_order():
    ordered = ranks(100, 5, 0, 100)

    ordered[:] = 0

    assert np.array_equal(ranks(100, 5, 0, 100), global_order(100, 5))


@pytest.mark.parametrize(
    ("start", "stop"),
    [
        pytest.param(-1, 2, id="negative"),
        pytest.param(3, 2, id="stop before start"),
        pytest.param(0, 11, id="stop after the end"),
        pytest.param(11, 11, id="empty, after the end"),
    ],
)
def test_a_range_outside_of_the_order_is_refused(start, stop):
    with pytest.raises(SampleIndexError, match="within"):
        ranks(10, 1, start, stop)


@pytest.mark.parametrize("chunk", [7, 1 << 18], ids=["many chunks", "one chunk"])
def test_the_rank_of_a_context_is_its_place_in_the_order(monkeypatch, chunk):
    monkeypatch.setattr(order, "_CHUNK", chunk)
    numbers = np.array([5, 99, 0, 41, 99])
    ordered = global_order(100, 3).tolist()

    context_ranks = order.ranks_of(numbers, 100, 3)

    assert context_ranks.tolist() == [ordered.index(number) for number in numbers]


def test_no_contexts_have_no_ranks():
    assert order.ranks_of(np.empty(0, np.int64), 100, 3).tolist() == []


# The choice of some contexts of a source


def choose_slowly(n_rows: int, n_chosen: int, seed: int) -> list[int]:
    """Return the rows that are chosen, block by block: those with the lowest keys of each."""
    keys = context_keys(0, n_rows, seed).tolist()
    offset = seed % n_rows if n_rows else 0
    chosen_rows = []
    for start in range(0, n_rows, BLOCK_ROWS):
        stop = min(start + BLOCK_ROWS, n_rows)
        n_before_stop = (stop * n_chosen + offset) // n_rows
        n_before_start = (start * n_chosen + offset) // n_rows
        rows_by_key = sorted(range(start, stop), key=keys.__getitem__)
        chosen_rows += sorted(rows_by_key[: n_before_stop - n_before_start])
    return chosen_rows


@settings(max_examples=150)
@given(n_rows=st.integers(0, 400), share=st.floats(0, 1), seed=SEEDS)
def test_a_choice_is_like_one_made_block_by_block(n_rows, share, seed):
    n_chosen = int(n_rows * share)
    expected_rows = choose_slowly(n_rows, n_chosen, seed)
    assert len(set(expected_rows)) == n_chosen
    choice = Choice(n_rows, n_chosen, seed)

    rows = choice.rows_of(np.arange(n_chosen))
    is_chosen = choice.is_chosen(np.arange(n_rows))
    numbers = choice.numbers_of(np.array(expected_rows, np.int64))

    assert rows.tolist() == expected_rows
    assert np.flatnonzero(is_chosen).tolist() == expected_rows
    assert numbers.tolist() == list(range(n_chosen))


def test_every_row_is_equally_likely_to_be_chosen():
    n_rows = 100
    n_chosen = 13
    n_seeds = 4000
    counts = np.zeros(n_rows)
    for seed in range(n_seeds):
        choice = Choice(n_rows, n_chosen, choice_seed(seed, "web"))
        counts[choice.rows_of(np.arange(n_chosen))] += 1

    expected = n_seeds * n_chosen / n_rows
    five_deviations = 5 * np.sqrt(expected)
    assert np.abs(counts - expected).max() < five_deviations


def test_a_choice_of_billions_of_rows_is_exact():
    choice = Choice(3_000_000_000, 2_999_999_999, MAX_UINT64)

    rows = choice.rows_of(np.array([0, 1_234_567_890, 2_999_999_998]))

    assert (np.diff(rows) > 0).all()
    assert rows[-1] < 3_000_000_000


def test_a_choice_of_more_rows_than_can_be_exact_is_refused():
    with pytest.raises(ConfigError, match="at most 3,000,000,000"):
        Choice(3_000_000_001, 5, 1)


# Frequencies and weights


@pytest.mark.parametrize(
    ("n_rows", "frequency", "expected"),
    [
        pytest.param(10, 1.0, (1, 0), id="once"),
        pytest.param(10, 0.7, (0, 7), id="a part"),
        pytest.param(10, 2.25, (2, 3), id="twice and a part, rounded"),
        pytest.param(3, 0.1, (0, 0), id="a part of less than one"),
        pytest.param(0, 5.5, (5, 0), id="no rows"),
        pytest.param(7, 1.999, (1, 7), id="a part that is rounded to all"),
    ],
)
def test_a_frequency_says_how_often_all_rows_are_taken_and_how_many_once_more(
    n_rows, frequency, expected
):
    assert sampled_contexts(n_rows, frequency) == expected


def test_without_a_number_of_contexts_weights_repeat_no_source():
    frequencies = frequencies_of_weights({"web": 1000, "code": 100}, {"web": 3, "code": 1}, None)

    assert frequencies == {"web": 0.3, "code": 1.0}


def test_weights_are_shares_of_the_number_of_contexts():
    frequencies = frequencies_of_weights({"web": 1000, "code": 100}, {"web": 0.5, "code": 0.5}, 600)

    assert frequencies == {"web": 0.3, "code": 3.0}


def test_a_weight_of_a_source_without_contexts_is_refused():
    with pytest.raises(ConfigError, match="does not fill one context"):
        frequencies_of_weights({"web": 1000, "code": 0}, {"web": 0.5, "code": 0.5}, None)
