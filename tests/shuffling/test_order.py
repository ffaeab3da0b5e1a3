import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import SampleIndexError
from nanoset_core.shuffling import order
from nanoset_core.shuffling.order import context_keys, global_order, ranks

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
@given(contexts=st.integers(1, 3000), seed=st.integers(0, MASK), window=st.integers(1, 900), data=st.data())
def test_ranks_in_windows_equal_the_whole_order(contexts, seed, window, data):
    begin = data.draw(st.integers(0, contexts))
    end = data.draw(st.integers(begin, contexts))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "WINDOW", window)
        patch.setattr(order, "_CHUNK", 257)
        order._keys_below.cache_clear()
        assert np.array_equal(ranks(contexts, seed, begin, end), global_order(contexts, seed)[begin:end])


def test_ranks_may_be_changed_by_the_caller():
    first = ranks(100, 5, 0, 100)
    first[:] = 0
    assert np.array_equal(ranks(100, 5, 0, 100), global_order(100, 5))


@pytest.mark.parametrize(("begin", "end"), [(-1, 2), (3, 2), (0, 11), (11, 11)])
def test_ranks_outside_the_order(begin, end):
    with pytest.raises(SampleIndexError, match="within"):
        ranks(10, 1, begin, end)


@settings(deadline=None, max_examples=60)
@given(contexts=st.integers(1, 3000), seed=st.integers(0, MASK), window=st.integers(1, 900), data=st.data())
def test_keys_at_ranks_equal_those_of_the_whole_order(contexts, seed, window, data):
    wanted = np.array(data.draw(st.lists(st.integers(0, contexts - 1), max_size=30)), dtype=np.int64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(order, "WINDOW", window)
        patch.setattr(order, "_CHUNK", 257)
        found = order.keys_at(contexts, seed, wanted)
    assert found.dtype == np.uint64
    assert np.array_equal(found, order.context_keys(0, contexts, seed)[global_order(contexts, seed)[wanted]])


@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_ranks_of_contexts_are_their_places_in_the_order(monkeypatch, chunk):
    monkeypatch.setattr(order, "_CHUNK", chunk)
    numbers = np.array([5, 99, 0, 41, 99])
    expected = [global_order(100, 3).tolist().index(number) for number in numbers]
    assert order.ranks_of(numbers, 100, 3).tolist() == expected
    assert order.ranks_of(numbers[:0], 100, 3).tolist() == []
