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

MASK = (1 << 64) - 1


def splitmix64(seed, count):
    """The generator as published, one output at a time."""
    state, outputs = seed, []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        z = state
        z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
        outputs.append(z ^ (z >> 31))
    return outputs


@pytest.mark.parametrize(
    ("seed", "outputs"),
    [
        (0, [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]),
        (
            1234567,  # the vector that Rosetta Code's "Splitmix64" lists
            [6457827717110365317, 3203168211198807973, 9817491932198370423, 4593380528125082431],
        ),
    ],
)
def test_keys_are_the_published_outputs_of_splitmix64(seed, outputs):
    assert context_keys(0, len(outputs), seed).tolist() == outputs


@settings(deadline=None, max_examples=100)
@given(seed=st.integers(0, MASK), begin=st.integers(0, 40), count=st.integers(0, 40))
def test_keys_from_anywhere_equal_the_generator(seed, begin, count):
    keys = context_keys(begin, begin + count, seed)
    assert keys.dtype == np.uint64
    assert keys.tolist() == splitmix64(seed, begin + count)[begin:]


@settings(deadline=None, max_examples=100)
@given(contexts=st.integers(0, 200), seed=st.integers(0, MASK))
def test_order_is_sorted_by_key_and_number(contexts, seed):
    keys = splitmix64(seed, contexts)
    expected = sorted(range(contexts), key=lambda number: (keys[number], number))
    found = global_order(contexts, seed)
    assert found.dtype == np.int64
    assert found.tolist() == expected


@settings(deadline=None, max_examples=60)
@given(
    contexts=st.integers(1, 3000),
    seed=st.integers(0, MASK),
    window=st.integers(1, 900),
    data=st.data(),
)
def test_ranks_and_keys_in_windows_equal_the_whole_order(contexts, seed, window, data):
    begin = data.draw(st.integers(0, contexts))
    end = data.draw(st.integers(begin, contexts))
    wanted = np.array(
        data.draw(st.lists(st.integers(0, contexts - 1), max_size=30)), dtype=np.int64
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "WINDOW", window)
        patch.setattr(order, "_CHUNK", 257)
        order._first_ranks_of_buckets.cache_clear()
        assert np.array_equal(
            ranks(contexts, seed, begin, end), global_order(contexts, seed)[begin:end]
        )
        found = order.keys_at(contexts, seed, wanted)
    assert found.dtype == np.uint64
    assert np.array_equal(
        found, context_keys(0, contexts, seed)[global_order(contexts, seed)[wanted]]
    )


def test_ranks_may_be_changed_by_the_caller():
    first = ranks(100, 5, 0, 100)
    first[:] = 0
    assert np.array_equal(ranks(100, 5, 0, 100), global_order(100, 5))


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, 11), (11, 11)])
def test_ranks_outside_the_order(begin, end):
    with pytest.raises(SampleIndexError, match="within"):
        ranks(10, 1, begin, end)


@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_ranks_of_contexts_are_their_places_in_the_order(monkeypatch, chunk):
    monkeypatch.setattr(order, "_CHUNK", chunk)
    numbers = np.array([5, 99, 0, 41, 99])
    expected = [global_order(100, 3).tolist().index(number) for number in numbers]
    assert order.ranks_of(numbers, 100, 3).tolist() == expected
    assert order.ranks_of(numbers[:0], 100, 3).tolist() == []


def chosen_one_by_one(rows, chosen, seed):
    """The choice block by block, in plain Python."""
    keys = context_keys(0, rows, seed).tolist()
    offset, found = seed % rows if rows else 0, []
    for begin in range(0, rows, BLOCK_ROWS):
        end = min(begin + BLOCK_ROWS, rows)
        count = (end * chosen + offset) // rows - (begin * chosen + offset) // rows
        found += sorted(sorted(range(begin, end), key=keys.__getitem__)[:count])
    return found


@settings(max_examples=150)
@given(rows=st.integers(0, 400), share=st.floats(0, 1), seed=st.integers(0, (1 << 64) - 1))
def test_the_choice_equals_that_made_block_by_block(rows, share, seed):
    chosen = int(rows * share)
    choice = Choice(rows, chosen, seed)
    found = choice.rows_of(np.arange(chosen)).tolist()
    assert found == chosen_one_by_one(rows, chosen, seed)
    assert len(set(found)) == chosen
    holds = choice.is_chosen(np.arange(rows))
    assert np.flatnonzero(holds).tolist() == found
    assert choice.numbers_of(np.array(found, dtype=np.int64)).tolist() == list(range(chosen))


def test_every_row_has_the_same_chance():
    rows, chosen, runs = 100, 13, 4000
    counts = np.zeros(rows)
    for seed in range(runs):
        counts[Choice(rows, chosen, choice_seed(seed, "web")).rows_of(np.arange(chosen))] += 1
    expected = runs * chosen / rows
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_big_numbers_stay_exact():
    choice = Choice(3_000_000_000, 2_999_999_999, (1 << 64) - 1)
    found = choice.rows_of(np.array([0, 1_234_567_890, 2_999_999_998]))
    assert (np.diff(found) > 0).all()
    assert found[-1] < 3_000_000_000
    with pytest.raises(ConfigError, match="at most 3,000,000,000"):
        Choice(3_000_000_001, 5, 1)


@pytest.mark.parametrize(
    ("rows", "frequency", "expected"),
    [
        (10, 1.0, (1, 0)),
        (10, 0.7, (0, 7)),
        (10, 2.25, (2, 3)),
        (3, 0.1, (0, 0)),
        (0, 5.5, (5, 0)),
        (7, 1.999, (1, 7)),
    ],
)
def test_counts_are_exact(rows, frequency, expected):
    assert sampled_contexts(rows, frequency) == expected


def test_weights_give_shares_and_repeat_no_source():
    frequencies = frequencies_of_weights({"web": 1000, "code": 100}, {"web": 3, "code": 1}, None)
    assert frequencies == {"web": 0.3, "code": 1.0}
    frequencies = frequencies_of_weights({"web": 1000, "code": 100}, {"web": 0.5, "code": 0.5}, 600)
    assert frequencies == {"web": 0.3, "code": 3.0}
    with pytest.raises(ConfigError, match="does not fill one context"):
        frequencies_of_weights({"web": 1000, "code": 0}, {"web": 0.5, "code": 0.5}, None)
