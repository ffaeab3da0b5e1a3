"""Document, sample and shuffle index equal those of the trainers, and those of plain loops."""

from __future__ import annotations

import numpy as np
import pytest
from golden.megatron.cases import arrays, cases, name_of
from hypothesis import given
from hypothesis import strategies as st

from helpers.slow_indices import slow_document_index, slow_sample_index, slow_shuffle_index
from nanoset_core.errors import ConfigError
from nanoset_core.sampling import document_index, sample_index
from nanoset_core.sampling.document_index import build_document_index, shuffle_in_place
from nanoset_core.sampling.sample_index import build_sample_index
from nanoset_core.sampling.shuffle_index import build_shuffle_index, shuffle_dtype
from nanoset_core.sampling.splits import sample_count

seeds = st.integers(0, 2**32 - 1)


def assert_as_many_draws(state, expected_state):
    """Check that two generators have drawn as many numbers: what follows depends on it."""
    assert state.randint(2**31) == expected_state.randint(2**31)


# Sample index


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("case", cases("build_sample_idx"), ids=name_of)
def test_the_sample_index_is_that_of_the_compiled_helper(case, threads, monkeypatch):
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 16)
    recorded_arrays = arrays(case)
    params = case["params"]

    index = build_sample_index(
        recorded_arrays["sizes"],
        recorded_arrays["document_index"],
        params["seq_len"],
        params["epochs"],
        params["tokens_per_epoch"],
        int(params["add_extra"]),
        drop_last_partial_sequence=params["drop_last"],
        threads=threads,
    )

    np.testing.assert_array_equal(index, recorded_arrays["sample_index"])
    assert index.dtype == np.int32


@given(
    sizes=st.lists(st.one_of(st.integers(0, 3), st.integers(0, 60)), min_size=1, max_size=30),
    length=st.integers(1, 25),
    epochs=st.integers(1, 3),
    extra=st.integers(0, 1),
    drop_last=st.booleans(),
    block_documents=st.sampled_from([1, 2, 7, 64]),
    threads=st.sampled_from([1, 1, 1, 2]),
    seed=st.integers(0, 100),
)
def test_the_sample_index_is_that_of_a_walk_over_the_documents(
    sizes, length, epochs, extra, drop_last, block_documents, threads, seed
):
    sizes = np.array(sizes, dtype=np.int32)
    documents = np.tile(np.arange(len(sizes), dtype=np.int32), epochs)
    np.random.RandomState(seed).shuffle(documents)
    tokens_per_epoch = int(sizes.sum())
    n_tokens = tokens_per_epoch * epochs

    # Megatron-LM fails if the last, short sample ends in an empty document.
    n_tokens_of_short_sample = max(n_tokens - extra, 0) % length
    has_short_sample = not drop_last and n_tokens_of_short_sample > 0
    is_refused = has_short_sample and sizes[documents[-1]] < extra

    def build():
        return build_sample_index(
            sizes,
            documents,
            length,
            epochs,
            tokens_per_epoch,
            extra,
            drop_last_partial_sequence=drop_last,
            threads=threads,
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sample_index, "BLOCK_DOCUMENTS", block_documents)
        if is_refused:
            with pytest.raises(ConfigError, match="empty sequence"):
                build()
            return
        index = build()

    expected = slow_sample_index(sizes, documents, length, n_tokens, extra, drop_last)
    np.testing.assert_array_equal(index, expected)


class SizesOfIdx(np.ndarray):
    """Sizes of documents at a byte that is no multiple of 4, as in an .idx.

    np.take would copy all of them, for each block of 65,536 documents.
    """

    def take(self, *arguments, **options):
        """Fail if the sizes are still those of the .idx."""
        assert self.flags.aligned, "all sizes are copied for each block"
        return super().take(*arguments, **options)


def test_the_sizes_of_an_idx_are_copied_only_once(monkeypatch):
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 16)
    sizes = np.arange(1, 101, dtype=np.int32)
    n_tokens = int(sizes.sum())
    documents = np.random.RandomState(0).permutation(100).astype(np.int32)
    header = bytes(34)
    idx = header + sizes.tobytes()
    sizes_of_idx = np.frombuffer(idx, "<i4", offset=len(header)).view(SizesOfIdx)

    index = build_sample_index(sizes_of_idx, documents, 8, 1, n_tokens)

    np.testing.assert_array_equal(index, build_sample_index(sizes, documents, 8, 1, n_tokens))


def test_a_block_may_have_more_tokens_than_32_bits_count():
    sizes = np.array([2**31 - 1, 5, 2**31 - 1, 0, 2**31 - 1], dtype=np.int32)
    documents = np.array([4, 1, 0, 3, 2], dtype=np.int32)
    n_tokens = int(sizes.sum(dtype=np.int64))
    length = 2**29

    index = build_sample_index(sizes, documents, length, 1, n_tokens)

    expected = slow_sample_index(sizes, documents, length, n_tokens, 1, True)
    np.testing.assert_array_equal(index, expected)
    assert index[:, 1].max() > 2**30


@pytest.mark.parametrize("threads", [1, 2])
def test_a_block_of_few_tokens_may_start_beyond_2_to_the_31(monkeypatch, threads):
    """The sums of a block fit into 32 bits then, and the tokens before it do not."""
    monkeypatch.setattr(sample_index, "BLOCK_DOCUMENTS", 64)
    sizes = np.random.RandomState(0).randint(0, 2**21, 4500).astype(np.int32)
    documents = np.random.RandomState(1).permutation(4500).astype(np.int32)
    n_tokens = int(sizes.sum(dtype=np.int64))
    assert n_tokens > 2**32
    length = 2**20 - 3

    index = build_sample_index(sizes, documents, length, 1, n_tokens, threads=threads)

    expected = slow_sample_index(sizes, documents, length, n_tokens, 1, True)
    np.testing.assert_array_equal(index, expected)


@pytest.mark.parametrize(
    ("n_documents", "longest", "dtype"),
    [
        pytest.param(2**31 - 1, 5, np.int32, id="narrow"),
        pytest.param(2**31, 5, np.int64, id="many documents"),
        pytest.param(5, 2**31, np.int64, id="a long document"),
    ],
)
def test_the_sample_index_has_64_bits_if_that_of_the_trainer_has(n_documents, longest, dtype):
    assert sample_index._index_dtype(n_documents, longest) == dtype


def test_a_sample_index_of_64_bits_has_the_same_values(monkeypatch):
    sizes = np.array([3, 0, 9, 4], dtype=np.int32)
    documents = np.arange(4, dtype=np.int32)
    narrow = build_sample_index(sizes, documents, 3, 1, 16)
    monkeypatch.setattr(sample_index, "_index_dtype", lambda *_: np.dtype(np.int64))

    wide = build_sample_index(sizes, documents, 3, 1, 16)

    assert narrow.dtype == np.int32
    assert wide.dtype == np.int64
    np.testing.assert_array_equal(narrow, wide)


def test_samples_are_counted_exactly_beyond_2_to_the_24():
    n_samples = 4_882_812
    n_tokens = n_samples * 2048 + 2  # one token more than these samples need

    # Counted in 32-bit floats, as the trainer does, the short sample at the end is lost.
    assert sample_count(n_tokens, 2048, 1, drop_last_partial=False) == n_samples + 1


@pytest.mark.parametrize("drop_last", [True, False])
@pytest.mark.parametrize("n_documents", [0, 3], ids=["no documents", "empty documents"])
def test_without_tokens_there_are_no_samples(n_documents, drop_last):
    sizes = np.zeros(3, dtype=np.int32)
    documents = np.arange(n_documents, dtype=np.int32)

    index = build_sample_index(sizes, documents, 4, 1, 0, drop_last_partial_sequence=drop_last)

    assert index.tolist() == [[0, 0]]


def test_tokens_that_do_not_add_up_are_refused():
    sizes = np.array([8], np.int32)
    documents = np.array([0], np.int32)  # one epoch

    with pytest.raises(ConfigError, match="2 epochs of 8 tokens"):
        build_sample_index(sizes, documents, 4, 2, 8)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sizes": np.array([3, -5, 14], np.int32)}, "-5"),
        ({"sizes": np.array([3.9, 5.2, 4.1])}, "float64"),
        ({"document_index": np.array([0, 1, 3], np.int32)}, "does not exist"),
        ({"document_index": np.array([0, 1, -1], np.int32)}, "from -1 to 1"),
        ({"document_index": np.array([0, 1, -1])}, "from -1 to 1"),
        ({"document_index": np.array([0, 1, -1], np.int8)}, "from -1 to 1"),
        ({"document_index": np.array([0, 1, 2**64 - 1], np.uint64)}, "to 18446744073709551615"),
        ({"document_index": np.array([0.0, 1.0, 2.0])}, "float64"),
        ({"document_index": np.array([True, False, False])}, "bool"),
        ({"document_index": np.array([[0, 1, 2]])}, r"shape \(1, 3\)"),
        ({"sizes": np.array([[3, 5], [4, 0]])}, r"shape \(2, 2\)"),
        ({"sequence_length": 0}, "sequence_length"),
        ({"add_extra_token": 2}, "add_extra_token"),
    ],
    ids=[
        "negative size",
        "fractions",
        "no such document",
        "negative document",
        "negative document of 64 bits",
        "negative document of 8 bits",
        "unsigned document of 64 bits",
        "documents as floats",
        "documents as booleans",
        "documents in rows",
        "sizes in rows",
        "empty samples",
        "two extra tokens",
    ],
)
def test_impossible_arguments_of_the_sample_index_are_refused(changes, message):
    arguments = {
        "sizes": np.array([3, 5, 4], np.int32),
        "document_index": np.arange(3, dtype=np.int32),
        "sequence_length": 4,
        "num_epochs": 1,
        "tokens_per_epoch": 12,
    }

    with pytest.raises(ConfigError, match=message):
        build_sample_index(**(arguments | changes))


# Document index


@given(
    start=st.integers(0, 30),
    count=st.integers(0, 40),
    epochs=st.integers(1, 4),
    separate_last_epoch=st.booleans(),
    seed=seeds,
)
def test_the_document_index_is_that_of_the_trainer(start, count, epochs, separate_last_epoch, seed):
    rows = (start, start + count)
    state = np.random.RandomState(seed)
    expected_state = np.random.RandomState(seed)

    index = build_document_index(rows, epochs, state, separate_last_epoch=separate_last_epoch)

    expected = slow_document_index(range(*rows), epochs, expected_state, separate_last_epoch)
    np.testing.assert_array_equal(index, expected)
    assert index.dtype == np.int32
    assert_as_many_draws(state, expected_state)


def test_documents_that_are_not_shuffled_draw_no_random_numbers():
    state = np.random.RandomState(1)

    index = build_document_index((2, 5), 2, state, separate_last_epoch=True, shuffle=False)

    assert index.tolist() == [2, 3, 4, 2, 3, 4]
    assert_as_many_draws(state, np.random.RandomState(1))


@pytest.mark.parametrize("max_widened", [0, 1 << 20], ids=["in place", "widened"])
@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64])
def test_shuffling_is_that_of_numpy_for_every_type(monkeypatch, max_widened, dtype):
    monkeypatch.setattr(document_index, "_MAX_WIDENED", max_widened)
    values = np.arange(1000, dtype=dtype)
    expected = np.arange(1000, dtype=dtype)
    np.random.RandomState(5).shuffle(expected)

    shuffle_in_place(values, np.random.RandomState(5))

    np.testing.assert_array_equal(values, expected)


# Shuffle index


@given(
    n_first=st.integers(0, 60),
    n_last=st.integers(0, 60),
    repeats=st.integers(1, 3),
    seed=seeds,
)
def test_the_shuffle_index_is_that_of_the_trainer(n_first, n_last, repeats, seed):
    n_samples = n_first + n_last
    state = np.random.RandomState(seed)
    expected_state = np.random.RandomState(seed)

    index = build_shuffle_index(n_samples, n_first, state, repeats=repeats)

    expected = slow_shuffle_index(n_first, n_samples, expected_state)
    np.testing.assert_array_equal(index, np.concatenate([expected] * repeats))
    assert index.dtype == np.uint32
    assert_as_many_draws(state, expected_state)


def test_the_shuffle_index_has_64_bits_if_that_of_the_trainer_has():
    assert shuffle_dtype(2**32 - 3) == np.uint32
    assert shuffle_dtype(2**32 - 2) == np.int64
