"""Consecutive items are divided into blocks of bounded size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.formats.indexed.blocks import divide_into_blocks


def slow_blocks(sizes, max_size):
    """Return (first item, item after the last) of each block, found item by item."""
    blocks = []
    start = 0
    for number, size in enumerate(sizes):
        if number > start and sum(sizes[start:number]) + size > max_size:
            blocks.append((start, number))
            start = number
    if sizes:
        blocks.append((start, len(sizes)))
    return blocks


@given(
    sizes=st.lists(st.integers(0, 9), max_size=20),
    max_size=st.integers(0, 30),
    first=st.integers(0, 5),
)
def test_blocks_are_those_of_a_walk_over_the_items(sizes, max_size, first):
    borders = first + np.cumsum([0, *sizes])

    blocks = [(block.start, block.stop) for block in divide_into_blocks(borders, max_size)]

    assert blocks == slow_blocks(sizes, max_size)


@pytest.mark.parametrize("borders", [[], [0], [7]])
def test_without_items_there_are_no_blocks(borders):
    assert list(divide_into_blocks(np.array(borders, np.int64), 10)) == []


def test_the_example_of_the_docstring_is_correct():
    blocks = list(divide_into_blocks(np.array([0, 3, 7, 9, 18]), 6))

    assert blocks == [slice(0, 1), slice(1, 3), slice(3, 4)]
