"""Places in the arrays of an .idx."""

import tracemalloc

import numpy as np
import pytest

from nanoset_core.formats.indexed.stream import places_upto


@pytest.mark.parametrize("count", [0, 1, 2, 3, 7, 8, 9, 500])
def test_places_are_those_of_searchsorted(count):
    random = np.random.default_rng(count)
    ascending, wanted = np.sort(random.integers(0, 30, count)), random.integers(-3, 33, (20, 2))
    assert (
        places_upto(ascending, wanted).tolist()
        == (np.searchsorted(ascending, wanted, "right") - 1).tolist()
    )


def test_an_array_that_is_not_aligned_is_not_copied():
    ascending = np.frombuffer(bytearray(8_000_002), "<i8", 1_000_000, 2)
    tracemalloc.start()
    try:
        assert places_upto(ascending, [0, -1]).tolist() == [999_999, -1]
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
