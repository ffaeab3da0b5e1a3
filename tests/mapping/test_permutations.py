"""Document and shuffle index against the peer's own code, as it is written there."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.mapping import document_index
from nanoset_core.mapping.document_index import build_document_index, shuffle_in_place
from nanoset_core.mapping.shuffle_index import build_shuffle_index, shuffle_dtype


def slow_document_index(documents, num_epochs, state, separate):
    if not separate or num_epochs == 1:
        index = np.mgrid[0:num_epochs, 0 : len(documents)][1]
        index[:] = documents
        index = index.reshape(-1).astype(np.int32)
        state.shuffle(index)
        return index
    first = slow_document_index(documents, num_epochs - 1, state, False)
    last = slow_document_index(documents, 1, state, False)
    return np.concatenate((first, last))


def slow_shuffle_index(first, total, state):
    head = np.arange(first, dtype=np.uint32)
    state.shuffle(head)
    if first == total:
        return head
    tail = np.arange(first, total, dtype=np.uint32)
    state.shuffle(tail)
    return np.concatenate((head, tail))


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 30), st.integers(0, 40), st.integers(1, 4), st.booleans(), st.integers(0, 2**32 - 1))
def test_document_index(begin, count, epochs, separate, seed):
    ours, theirs = np.random.RandomState(seed), np.random.RandomState(seed)
    built = build_document_index((begin, begin + count), epochs, ours, separate_last_epoch=separate)
    expected = slow_document_index(np.arange(begin, begin + count, dtype=np.int32), epochs, theirs, separate)
    np.testing.assert_array_equal(built, expected)
    assert built.dtype == np.int32
    assert ours.randint(2**31) == theirs.randint(2**31)  # as many draws


def test_documents_in_order_draw_nothing():
    state = np.random.RandomState(1)
    built = build_document_index((2, 5), 2, state, separate_last_epoch=True, shuffle=False)
    assert built.tolist() == [2, 3, 4, 2, 3, 4]
    assert state.randint(2**31) == np.random.RandomState(1).randint(2**31)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_shuffle_index(first, rest, repeats, seed):
    ours, theirs = np.random.RandomState(seed), np.random.RandomState(seed)
    built = build_shuffle_index(first + rest, first, ours, repeats=repeats)
    expected = slow_shuffle_index(first, first + rest, theirs)
    np.testing.assert_array_equal(built, np.concatenate([expected] * repeats))
    assert built.dtype == np.uint32
    assert ours.randint(2**31) == theirs.randint(2**31)


def test_shuffle_dtype_widens_where_the_peer_widens():
    assert shuffle_dtype(2**32 - 3) == np.uint32
    assert shuffle_dtype(2**32 - 2) == np.int64


@pytest.mark.parametrize("limit", [0, 1 << 20])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_shuffle_is_the_same_for_every_type_and_way(monkeypatch, limit, dtype):
    monkeypatch.setattr(document_index, "_WIDE_LIMIT", limit)
    values, expected = np.arange(1000, dtype=dtype), np.arange(1000, dtype=dtype)
    shuffle_in_place(values, np.random.RandomState(5))
    np.random.RandomState(5).shuffle(expected)
    np.testing.assert_array_equal(values, expected)
