"""Positions, pointers and sizes of the sequences in a .bin, against walks over the sequences."""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.formats.indexed import layout
from nanoset_core.formats.indexed.layout import (
    Index,
    is_back_to_back,
    pointer_chunks,
    positions_in,
)

lengths = st.lists(st.integers(0, 9), max_size=20)
item_sizes = st.sampled_from([1, 2, 4])
chunk_sizes = st.integers(1, 7)


def slow_pointers(lengths, itemsize):
    """Return the byte at which each sequence starts."""
    pointers = []
    pointer = 0
    for length in lengths:
        pointers.append(pointer)
        pointer += length * itemsize
    return pointers


@given(ranges=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=20))
def test_positions_are_those_of_each_range_in_turn(ranges):
    starts = np.array([start for start, _ in ranges], np.int64)
    range_lengths = np.array([length for _, length in ranges], np.int64)
    expected = chain.from_iterable(range(start, start + length) for start, length in ranges)

    positions = positions_in(starts, range_lengths)

    assert positions.tolist() == list(expected)


@given(lengths=lengths, itemsize=item_sizes, chunk=chunk_sizes)
def test_pointers_are_where_a_walk_over_the_sequences_arrives(lengths, itemsize, chunk):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_SEQUENCES", chunk)
        chunks = list(pointer_chunks(np.array(lengths, np.int32), itemsize))

    pointers = list(chain.from_iterable(part.tolist() for _, part in chunks))
    first_sequences = [start for start, _ in chunks]
    assert pointers == slow_pointers(lengths, itemsize)
    assert first_sequences == list(range(0, len(lengths), chunk))


@given(lengths=lengths, itemsize=item_sizes, moved=st.integers(0, 30))
def test_only_sequences_in_order_and_without_gaps_are_back_to_back(lengths, itemsize, moved):
    pointers = np.array(slow_pointers(lengths, itemsize), np.int64)
    is_moved = moved < len(lengths)
    if is_moved:
        pointers[moved] += itemsize

    assert is_back_to_back(np.array(lengths, np.int32), pointers, itemsize) != is_moved


@given(
    sequences=st.lists(st.tuples(st.integers(0, 99), st.integers(0, 9)), max_size=20),
    first=st.integers(0, 22),
    chunk=chunk_sizes,
)
def test_a_bin_must_reach_to_the_end_of_the_furthest_sequence(sequences, first, chunk):
    index = Index(
        dtype=np.dtype("<u2"),
        sequence_lengths=np.array([length for _, length in sequences], np.int32),
        sequence_pointers=np.array([2 * start for start, _ in sequences], np.int64),
        document_indices=np.arange(len(sequences) + 1),
        modes=None,
    )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "CHUNK_SEQUENCES", chunk)
        required = index.required_bytes(first)

    ends = [2 * (start + length) for start, length in sequences[first:]]
    assert required == max(ends, default=0)
