"""Sample, document and shuffle index against the trainers' results and against plain loops."""

import numpy as np
import pytest
from golden.megatron.cases import arrays, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.slow_indices import slow_document_index, slow_sample_index, slow_shuffle_index
from nanoset_core.errors import ConfigError
from nanoset_core.sampling import document_index, sample_index
from nanoset_core.sampling.document_index import build_document_index, shuffle_in_place
from nanoset_core.sampling.sample_index import build_sample_index
from nanoset_core.sampling.shuffle_index import build_shuffle_index, shuffle_dtype
from nanoset_core.sampling.splits import sample_count


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", cases("build_sample_idx"), ids=name_of)
def test_the_sample_index_is_that_of_the_compiled_helper(case, threads, monkeypatch):
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 16)
    golden = arrays(case)
    params = case["params"]
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


class CopiedByTake(np.ndarray):
    """Sizes at a byte that is no multiple of 4, as in an .idx: np.take would copy all of them, for
    65,536 documents.
    """

    def take(self, *arguments, **options):
        assert self.flags.aligned, "all sizes are copied for each block"
        return super().take(*arguments, **options)


def test_sizes_of_an_idx_are_copied_once(monkeypatch):
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 16)
    sizes = np.arange(1, 101, dtype=np.int32)
    within = np.frombuffer(bytes(34) + sizes.tobytes(), "<i4", offset=34)
    documents = np.random.RandomState(0).permutation(100).astype(np.int32)
    built = build_sample_index(within.view(CopiedByTake), documents, 8, 1, int(sizes.sum()))
    np.testing.assert_array_equal(
        built, build_sample_index(sizes, documents, 8, 1, int(sizes.sum()))
    )


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
def test_the_sample_index_is_that_of_a_walk_over_the_documents(
    sizes, length, epochs, extra, drop_last, block, threads, seed
):
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
    np.testing.assert_array_equal(
        built, slow_sample_index(sizes, documents, length, total, extra, drop_last)
    )


def test_blocks_may_hold_more_tokens_than_32_bits_count():
    sizes = np.array([2**31 - 1, 5, 2**31 - 1, 0, 2**31 - 1], dtype=np.int32)
    documents = np.array([4, 1, 0, 3, 2], dtype=np.int32)
    total = int(sizes.sum(dtype=np.int64))
    length = 2**29
    built = build_sample_index(sizes, documents, length, 1, total)
    np.testing.assert_array_equal(
        built, slow_sample_index(sizes, documents, length, total, 1, True)
    )
    assert built[:, 1].max() > 2**30


@pytest.mark.parametrize("threads", [1, 2])
def test_blocks_of_few_tokens_may_start_beyond_2_to_the_31(monkeypatch, threads):
    # a block's sums fit 32 bits, their base does not
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 64)
    sizes = np.random.RandomState(0).randint(0, 2**21, 4500).astype(np.int32)
    documents = np.random.RandomState(1).permutation(4500).astype(np.int32)
    total = int(sizes.sum(dtype=np.int64))
    assert total > 2**32
    built = build_sample_index(sizes, documents, 2**20 - 3, 1, total, threads=threads)
    np.testing.assert_array_equal(
        built, slow_sample_index(sizes, documents, 2**20 - 3, total, 1, True)
    )


@pytest.mark.parametrize(
    ("documents", "longest", "dtype"),
    [(2**31 - 1, 5, np.int32), (2**31, 5, np.int64), (5, 2**31, np.int64)],
)
def test_rows_are_of_64_bits_where_the_trainer_s_are(documents, longest, dtype):
    assert sample_index._index_dtype(documents, longest) == dtype


def test_rows_of_64_bits_have_the_same_values(monkeypatch):
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
def test_without_tokens_there_are_no_samples(drop_last):
    sizes = np.zeros(3, dtype=np.int32)
    for documents in (np.empty(0, np.int32), np.arange(3, dtype=np.int32)):
        built = build_sample_index(sizes, documents, 4, 1, 0, drop_last_partial_sequence=drop_last)
        assert built.tolist() == [[0, 0]]


def test_tokens_that_do_not_add_up_are_refused():
    with pytest.raises(ConfigError, match="2 epochs of 8 tokens"):
        build_sample_index(np.array([8], np.int32), np.array([0], np.int32), 4, 2, 8)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 30),
    st.integers(0, 40),
    st.integers(1, 4),
    st.booleans(),
    st.integers(0, 2**32 - 1),
)
def test_the_document_index_is_that_of_the_trainer_with_as_many_draws(
    start, count, epochs, separate, seed
):
    ours = np.random.RandomState(seed)
    theirs = np.random.RandomState(seed)

    built = build_document_index((start, start + count), epochs, ours, separate_last_epoch=separate)

    expected = slow_document_index(range(start, start + count), epochs, theirs, separate)
    np.testing.assert_array_equal(built, expected)
    assert built.dtype == np.int32
    assert ours.randint(2**31) == theirs.randint(2**31)


def test_documents_in_order_draw_nothing():
    state = np.random.RandomState(1)

    built = build_document_index((2, 5), 2, state, separate_last_epoch=True, shuffle=False)

    assert built.tolist() == [2, 3, 4, 2, 3, 4]
    assert state.randint(2**31) == np.random.RandomState(1).randint(2**31)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(1, 3), st.integers(0, 2**32 - 1))
def test_the_shuffle_index_is_that_of_the_trainer_with_as_many_draws(first, rest, repeats, seed):
    ours = np.random.RandomState(seed)
    theirs = np.random.RandomState(seed)

    built = build_shuffle_index(first + rest, first, ours, repeats=repeats)

    expected = slow_shuffle_index(first, first + rest, theirs)
    np.testing.assert_array_equal(built, np.concatenate([expected] * repeats))
    assert built.dtype == np.uint32
    assert ours.randint(2**31) == theirs.randint(2**31)


def test_the_shuffle_index_is_of_64_bits_where_the_trainer_s_is():
    assert shuffle_dtype(2**32 - 3) == np.uint32
    assert shuffle_dtype(2**32 - 2) == np.int64


@pytest.mark.parametrize("limit", [0, 1 << 20])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_shuffling_is_numpy_s_for_every_type_and_size(monkeypatch, limit, dtype):
    monkeypatch.setattr(document_index, "_MAX_WIDENED", limit)
    values = np.arange(1000, dtype=dtype)
    expected = np.arange(1000, dtype=dtype)
    np.random.RandomState(5).shuffle(expected)

    shuffle_in_place(values, np.random.RandomState(5))

    np.testing.assert_array_equal(values, expected)
