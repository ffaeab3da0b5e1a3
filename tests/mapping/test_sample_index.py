"""The sample index against the C++ helper's results and against a plain loop."""

import numpy as np
import pytest
from golden.megatron.cases import arrays, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.errors import ConfigError
from nanoset_core.mapping import build_sample_index, sample_index
from nanoset_core.mapping.sample_index import sample_count


def slow_sample_index(sizes, documents, length, total, extra, drop_last):
    """`helpers.cpp`, `build_sample_idx`, with the number of samples counted in integers."""
    usable = max(total - extra, 0)
    samples = usable // length if drop_last else -(-usable // length)
    rows, document, offset = [(0, 0)], 0, 0
    while len(rows) <= samples:
        remaining = length + extra
        while remaining != 0:
            size = int(sizes[documents[document]]) - offset
            remaining -= size
            if remaining <= 0:
                offset += remaining + size - extra
                remaining = 0
            elif document == len(documents) - 1:
                offset = int(sizes[documents[document]]) - extra
                break
            else:
                document += 1
                offset = 0
        rows.append((document, offset))
    return np.array(rows)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", cases("build_sample_idx"), ids=name_of)
def test_golden(case, threads, monkeypatch):
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 16)
    golden, params = arrays(case), case["params"]
    built = build_sample_index(
        golden["sizes"],
        golden["document_index"],
        params["seq_len"],
        params["epochs"],
        params["tokens_per_epoch"],
        int(params["add_extra"]),
        drop_last_partial_sequence=params["drop_last"],
        threads=threads,
    )
    np.testing.assert_array_equal(built, golden["sample_index"])
    assert built.dtype == np.int32


@settings(max_examples=200, deadline=None)
@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=30),
    length=st.integers(1, 25),
    epochs=st.integers(1, 3),
    extra=st.integers(0, 1),
    drop_last=st.booleans(),
    block=st.sampled_from([1, 2, 7, 64]),
    threads=st.sampled_from([1, 1, 1, 2]),
    seed=st.integers(0, 100),
)
def test_plain_loop(sizes, length, epochs, extra, drop_last, block, threads, seed):
    sizes = np.array(sizes, dtype=np.int32)
    documents = np.tile(np.arange(len(sizes), dtype=np.int32), epochs)
    np.random.RandomState(seed).shuffle(documents)
    per_epoch = int(sizes.sum())
    total = per_epoch * epochs
    partial = not drop_last and max(total - extra, 0) % length

    def build():
        return build_sample_index(
            sizes,
            documents,
            length,
            epochs,
            per_epoch,
            extra,
            drop_last_partial_sequence=drop_last,
            threads=threads,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_index, "BLOCK_DOCUMENTS", block)
        if partial and sizes[documents[-1]] < extra:
            with pytest.raises(ConfigError, match="empty sequence"):
                build()
            return
        built = build()
    np.testing.assert_array_equal(built, slow_sample_index(sizes, documents, length, total, extra, drop_last))


def test_blocks_whose_tokens_need_64_bits():
    sizes = np.array([2**31 - 1, 5, 2**31 - 1, 0, 2**31 - 1], dtype=np.int32)
    documents = np.array([4, 1, 0, 3, 2], dtype=np.int32)
    total = int(sizes.sum(dtype=np.int64))
    length = 2**29
    built = build_sample_index(sizes, documents, length, 1, total)
    np.testing.assert_array_equal(built, slow_sample_index(sizes, documents, length, total, 1, True))
    assert built[:, 1].max() > 2**30


@pytest.mark.parametrize("threads", [1, 2])
def test_narrow_blocks_beyond_2_to_the_31_tokens(monkeypatch, threads):
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 64)  # a block's sums fit 32 bits, their base does not
    sizes = np.random.RandomState(0).randint(0, 2**21, 4500).astype(np.int32)
    documents = np.random.RandomState(1).permutation(4500).astype(np.int32)
    total = int(sizes.sum(dtype=np.int64))
    assert total > 2**32
    built = build_sample_index(sizes, documents, 2**20 - 3, 1, total, threads=threads)
    np.testing.assert_array_equal(built, slow_sample_index(sizes, documents, 2**20 - 3, total, 1, True))


@pytest.mark.parametrize(
    ("documents", "longest", "dtype"), [(2**31 - 1, 5, np.int32), (2**31, 5, np.int64), (5, 2**31, np.int64)]
)
def test_rows_widen_where_the_peer_widens(documents, longest, dtype):
    assert sample_index._index_dtype(documents, longest) == dtype


def test_wide_rows_have_the_same_values(monkeypatch):
    sizes = np.array([3, 0, 9, 4], dtype=np.int32)
    narrow = build_sample_index(sizes, np.arange(4, dtype=np.int32), 3, 1, 16)
    monkeypatch.setattr(sample_index, "_index_dtype", lambda *_: np.dtype(np.int64))
    wide = build_sample_index(sizes, np.arange(4, dtype=np.int32), 3, 1, 16)
    assert (narrow.dtype, wide.dtype) == (np.int32, np.int64)
    np.testing.assert_array_equal(narrow, wide)


def test_short_samples_are_counted_exactly_beyond_2_to_the_24():
    # Counted in 32-bit floats, as the peer does, this is 4882812.
    assert sample_count(4882812 * 2048 + 2, 2048, 1, drop_last_partial=False) == 4882813


@pytest.mark.parametrize("drop_last", [True, False])
def test_no_tokens_are_no_samples(drop_last):
    sizes = np.zeros(3, dtype=np.int32)
    for documents in (np.empty(0, np.int32), np.arange(3, dtype=np.int32)):
        built = build_sample_index(sizes, documents, 4, 1, 0, drop_last_partial_sequence=drop_last)
        assert built.tolist() == [[0, 0]]


def test_tokens_that_do_not_add_up():
    with pytest.raises(ConfigError, match="2 epochs of 8 tokens"):
        build_sample_index(np.array([8], np.int32), np.array([0], np.int32), 4, 2, 8)
