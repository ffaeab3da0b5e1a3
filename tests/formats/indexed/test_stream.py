"""Places in the arrays of an .idx, and the tokens between two places."""

import tracemalloc

import numpy as np
import pytest

from helpers.sample_pairs import write_pair
from nanoset_core import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, last_not_greater, read_tokens


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 500])
def test_places_are_those_of_searchsorted(count):
    random = np.random.default_rng(count)
    ascending, wanted = np.sort(random.integers(0, 30, count)), random.integers(-3, 33, (20, 2))
    assert (
        last_not_greater(ascending, wanted).tolist()
        == (np.searchsorted(ascending, wanted, "right") - 1).tolist()
    )


def test_an_array_that_is_not_aligned_is_not_copied():
    ascending = np.frombuffer(bytearray(8_000_002), "<i8", 1_000_000, 2)
    tracemalloc.start()
    try:
        assert last_not_greater(ascending, [0, -1]).tolist() == [999_999, -1]
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(("start", "stop"), [(0, 12), (3, 5), (4, 11), (5, 5), (0, 0)])
def test_consecutive_tokens_of_a_bin_are_read(tmp_path, start, stop):
    dataset = MMapIndexedDataset(write_pair(tmp_path / "d", [3, 4, 5]))

    assert read_tokens(dataset, start, stop).tolist() == list(range(start, stop))


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (1, 5), (2, 3), (4, 4)])
def test_consecutive_tokens_of_a_stream_are_read(tmp_path, start, stop):
    dataset = MMapIndexedDataset(write_pair(tmp_path / "d", [3, 4, 5]))
    # The tokens 7, 8, 9 and then 1, 2, 3, 4.
    stream = Stream.of_ranges(np.array([7, 1]), np.array([3, 4]))

    tokens = read_tokens(dataset, start, stop, stream)

    assert tokens.tolist() == [7, 8, 9, 1, 2, 3, 4][start:stop]
