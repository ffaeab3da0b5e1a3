import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.shuffling.order import (
    BLOCK_ROWS,
    Choice,
    choice_seed,
    context_keys,
    frequencies_of_weights,
    sampled_contexts,
)


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
    found = choice.row(np.arange(chosen)).tolist()
    assert found == chosen_one_by_one(rows, chosen, seed)
    assert len(set(found)) == chosen
    holds = choice.holds(np.arange(rows))
    assert np.flatnonzero(holds).tolist() == found
    assert choice.number(np.array(found, dtype=np.int64)).tolist() == list(range(chosen))


def test_every_row_has_the_same_chance():
    rows, chosen, runs = 100, 13, 4000
    counts = np.zeros(rows)
    for seed in range(runs):
        counts[Choice(rows, chosen, choice_seed(seed, "web")).row(np.arange(chosen))] += 1
    expected = runs * chosen / rows
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_big_numbers_stay_exact():
    choice = Choice(3_000_000_000, 2_999_999_999, (1 << 64) - 1)
    found = choice.row(np.array([0, 1_234_567_890, 2_999_999_998]))
    assert (np.diff(found) > 0).all()
    assert found[-1] < 3_000_000_000
    with pytest.raises(ConfigError, match="at most 3,000,000,000"):
        Choice(3_000_000_001, 5, 1)


@pytest.mark.parametrize(
    ("rows", "frequency", "expected"),
    [(10, 1.0, (1, 0)), (10, 0.7, (0, 7)), (10, 2.25, (2, 3)), (3, 0.1, (0, 0)), (0, 5.5, (5, 0)), (7, 1.999, (1, 7))],
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
