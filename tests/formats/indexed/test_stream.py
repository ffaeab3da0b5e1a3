"""Search in the arrays of an .idx, and read the tokens between two positions of a dataset."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from helpers.sample_pairs import write_pair
from nanoset_core import MMapIndexedDataset
from nanoset_core.formats.indexed.stream import Stream, last_not_greater, read_tokens


@pytest.mark.parametrize("n_values", [0, 1, 2, 3, 7, 8, 9, 500])
def test_the_last_value_that_is_not_greater_is_found_as_by_searchsorted(n_values):
    rng = np.random.default_rng(n_values)
    ascending = np.sort(rng.integers(0, 30, n_values))
    keys = rng.integers(-3, 33, (20, 2))
    expected = np.searchsorted(ascending, keys, "right") - 1

    assert last_not_greater(ascending, keys).tolist() == expected.tolist()


def test_an_array_that_is_not_aligned_is_searched_without_a_copy():
    # The 8-byte values begin at byte 2, as they may in an .idx.
    ascending = np.frombuffer(bytearray(8_000_002), dtype="<i8", count=1_000_000, offset=2)

    tracemalloc.start()
    try:
        positions = last_not_greater(ascending, [0, -1]).tolist()
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert positions == [999_999, -1]
    assert peak_bytes < 100_000


@pytest.mark.parametrize(("start", "stop"), [(0, 12), (3, 5), (4, 11), (5, 5), (0, 0)])
def test_consecutive_tokens_of_a_bin_are_read(tmp_path, start, stop):
    dataset = MMapIndexedDataset(write_pair(tmp_path / "d", [3, 4, 5]))

    tokens = read_tokens(dataset, start, stop)

    assert tokens.tolist() == list(range(start, stop))


@pytest.mark.parametrize(("start", "stop"), [(0, 7), (1, 5), (2, 3), (4, 4)])
def test_consecutive_tokens_of_a_stream_are_read(tmp_path, start, stop):
    dataset = MMapIndexedDataset(write_pair(tmp_path / "d", [3, 4, 5]))
    # The tokens 7, 8, 9 and then 1, 2, 3, 4.
    stream = Stream.of_ranges(np.array([7, 1]), np.array([3, 4]))

    tokens = read_tokens(dataset, start, stop, stream)

    assert tokens.tolist() == [7, 8, 9, 1, 2, 3, 4][start:stop]
