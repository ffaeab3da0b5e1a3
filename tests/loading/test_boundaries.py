"""Where documents begin in samples (`cu_seqlens`), for attention that does not cross documents."""

from __future__ import annotations

from itertools import chain, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.loaded_samples import assert_identical_samples
from nanoset_core import NanosetBuilder, NanosetConfig, collate_varlen
from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.loading.boundaries import bounded_sample, cu_seqlens_of

EOD = 0
LENGTH = 9
"""Tokens of a sample."""
N_JOINED = 8
"""How many samples are concatenated to one row."""


# The kernel against Megatron-LM's loop


def slow_cu_seqlens(piece_lengths, sequence_length, extra):
    """Return where the documents of one sample begin, as Megatron-LM computes it.

    These are the steps of `GPTDataset.__getitem__` under `inter_document_masking`.
    """
    lengths = list(piece_lengths)

    # The extra token is only a label. A piece that consists of it alone is no document.
    if extra:
        lengths[-1] -= 1
        if lengths[-1] == 0:
            lengths.pop()

    # The padding of a short sample belongs to its last document.
    n_padding = sequence_length - sum(lengths)
    if n_padding > 0:
        if lengths:
            lengths[-1] += n_padding
        else:
            lengths.append(n_padding)

    cu_seqlens = [0]
    for n_tokens in lengths:
        cu_seqlens.append(cu_seqlens[-1] + n_tokens)
    n_unused = sequence_length + 1 - len(cu_seqlens)
    return cu_seqlens + [sequence_length] * n_unused


@st.composite
def samples_in_pieces(draw, sequence_length, extra):
    """Draw the lengths of the pieces of a sample; some may be 0, for empty documents."""
    n_filled = draw(st.integers(1, sequence_length + extra))  # the rest is padding
    cuts = draw(st.lists(st.integers(0, n_filled - 1), max_size=sequence_length))
    bounds = [0, *sorted(cuts), n_filled]
    return [stop - start for start, stop in pairwise(bounds)]


@given(data=st.data(), sequence_length=st.integers(1, 12), extra=st.integers(0, 1))
def test_documents_begin_where_megatron_lm_says(data, sequence_length, extra):
    sample_strategy = samples_in_pieces(sequence_length, extra)
    samples = data.draw(st.lists(sample_strategy, min_size=1, max_size=4))
    piece_lengths = np.array(list(chain.from_iterable(samples)))
    piece_counts = np.array([len(sample) for sample in samples])

    cu_seqlens = cu_seqlens_of(piece_lengths, piece_counts, sequence_length, extra)

    assert cu_seqlens.dtype == np.int32
    for row, sample in zip(cu_seqlens.tolist(), samples, strict=True):
        expected = slow_cu_seqlens(sample, sequence_length, extra)
        # With empty documents there may be more pieces than columns. Megatron-LM fails then, and
        # only the checks below hold.
        if len(expected) == sequence_length + 1:
            assert row == expected

    # Every row ascends, and ends with the sample.
    assert (np.diff(cu_seqlens, axis=1) >= 0).all()
    assert (cu_seqlens[:, -1] == sequence_length).all()


# Samples of an open nanoset


@pytest.fixture(scope="module", params=["blend", "one dataset"])
def train(request, tmp_path_factory):
    """The train split of a nanoset with boundaries of documents; every document ends with EOD."""
    folder = tmp_path_factory.mktemp("bounds")
    random = np.random.RandomState(1)
    for name in ("a", "b"):
        with MMapIndexedDatasetBuilder(folder / name, np.uint16) as builder:
            for length in random.randint(0, 12, 90):
                builder.add_document(np.append(random.randint(1, 99, length), EOD))

    data_path = str(folder / "a")
    if request.param == "blend":
        data_path = {str(folder / "a"): 2, str(folder / "b"): 1}
    config = NanosetConfig(
        data_path,
        sequence_length=LENGTH,
        split="1,0,0",
        train_split_samples=60,
        path_to_cache=str(folder / "cache"),
        inter_document_masking=True,
        create_attention_mask=True,  # has no effect with boundaries, as in Megatron-LM
    )
    return NanosetBuilder(config).build()[0]


INDICES = [0, 3, 3, -1, None, *range(9)]
"""Samples to read: one of them twice, one counted from the end, and one as padding."""


def row_of_boundaries(train, index):
    """Return where documents begin in a sample; those of padding are those of sample 0."""
    return train.cu_seqlens([index or 0])[0]


def slow_position_ids(cu_seqlens):
    """Return the position of each token in its document."""
    positions = []
    for start, stop in pairwise(cu_seqlens.tolist()):
        positions.extend(range(stop - start))
    return positions


def test_samples_with_boundaries_are_the_same_in_a_batch(train):
    samples = train.__getitems__(INDICES)

    for sample, index in zip(samples, INDICES, strict=True):
        assert_identical_samples(sample, train[index])


def test_a_sample_says_where_its_documents_begin(train):
    samples = train.__getitems__(INDICES)

    for sample, index in zip(samples, INDICES, strict=True):
        cu_seqlens = row_of_boundaries(train, index)
        np.testing.assert_array_equal(sample["cu_seqlens"], cu_seqlens)
        assert sample["max_seqlen"] == np.diff(cu_seqlens).max()
        assert sample["position_ids"].tolist() == slow_position_ids(cu_seqlens)


def test_samples_with_boundaries_have_no_attention_mask(train):
    for sample in train.__getitems__(INDICES):
        assert "attention_mask" not in sample


def test_the_boundaries_of_no_samples_are_an_array_without_rows(train):
    assert train.cu_seqlens([]).shape == (0, LENGTH + 1)


def test_torch_collates_boundaries(train):
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")

    batch = data.default_collate(train.__getitems__(range(4)))

    assert str(batch["cu_seqlens"].dtype) == "torch.int32"
    assert list(batch["cu_seqlens"].shape) == [4, LENGTH + 1]
    assert str(batch["max_seqlen"].dtype) == "torch.int32"
    assert list(batch["max_seqlen"].shape) == [4]


# Samples that are concatenated to one row


@pytest.fixture(scope="module")
def samples(train):
    """The samples to concatenate."""
    return train.__getitems__(range(N_JOINED))


@pytest.fixture
def bare_samples(samples):
    """The same samples without the boundaries of their documents."""
    bare_samples = []
    for sample in samples:
        bare_samples.append({key: sample[key] for key in ("tokens", "labels", "loss_mask")})
    return bare_samples


@pytest.mark.parametrize("key", ["tokens", "labels", "loss_mask", "position_ids"])
def test_the_arrays_of_samples_are_concatenated(samples, key):
    row = collate_varlen(samples)

    np.testing.assert_array_equal(row[key], np.concatenate([sample[key] for sample in samples]))
    assert row[key].dtype == samples[0][key].dtype


def test_the_boundaries_of_a_row_are_those_of_all_its_documents(samples):
    row = collate_varlen(samples)

    cu_seqlens = row["cu_seqlens"]
    assert cu_seqlens.dtype == np.int32
    assert cu_seqlens[0] == 0
    assert cu_seqlens[-1] == N_JOINED * LENGTH
    assert row["position_ids"].tolist() == slow_position_ids(cu_seqlens)
    assert row["max_seqlen"] == np.diff(cu_seqlens).max()
    assert type(row["max_seqlen"]) is int  # as flash_attn_varlen_func takes it


def test_boundaries_are_found_by_the_end_token_if_samples_have_none(samples, bare_samples):
    from_tokens = collate_varlen(bare_samples, eod_token=EOD)

    row = collate_varlen(samples)
    assert sorted(from_tokens) == sorted(row)
    for key, value in from_tokens.items():
        np.testing.assert_array_equal(value, row[key])


def test_samples_without_boundaries_and_end_token_are_refused(bare_samples):
    with pytest.raises(ConfigError, match="do not say where documents end"):
        collate_varlen(bare_samples)


def test_a_row_of_no_samples_is_refused():
    with pytest.raises(ConfigError, match="there are no samples"):
        collate_varlen([], eod_token=EOD)


@pytest.mark.parametrize("key", ["tokens", "labels", "loss_mask"])
def test_a_sample_without_an_entry_is_refused(bare_samples, key):
    incomplete_sample = dict(bare_samples[0])
    del incomplete_sample[key]

    with pytest.raises(ConfigError, match=f"a sample has no {key}"):
        collate_varlen([incomplete_sample], eod_token=EOD)


def test_samples_that_are_arrays_are_refused():
    with pytest.raises(ConfigError, match=r"a sample has no tokens.*\n.*numpy\.ndarray"):
        collate_varlen([np.arange(LENGTH)], eod_token=EOD)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"labels": np.arange(LENGTH - 1)}, id="fewer labels"),
        pytest.param({"loss_mask": np.ones(LENGTH + 1)}, id="a longer mask"),
        pytest.param({"tokens": np.zeros((1, LENGTH), np.int64)}, id="a batch"),
        pytest.param({"cu_seqlens": np.array([0, LENGTH])}, id="borders of another form"),
    ],
)
def test_the_entries_of_a_sample_belong_to_the_same_tokens(samples, changes):
    with pytest.raises(ConfigError, match="different shapes"):
        collate_varlen([samples[0] | changes])


def test_samples_have_the_same_length(bare_samples):
    shorter_sample = {name: values[:-1] for name, values in bare_samples[1].items()}

    with pytest.raises(ConfigError, match="samples have different shapes") as caught:
        collate_varlen([bare_samples[0], shorter_sample], eod_token=EOD)
    assert caught.value.found == f"tokens of the shapes ({LENGTH - 1},), ({LENGTH},)"


def test_samples_may_come_from_a_generator(samples):
    row = collate_varlen(sample for sample in samples)

    np.testing.assert_array_equal(row["tokens"], collate_varlen(samples)["tokens"])


@pytest.mark.parametrize("eod_token", ["0", "<|endoftext|>", -1, 0.5, True])
def test_an_end_token_that_is_not_the_id_of_a_token_is_refused(bare_samples, eod_token):
    with pytest.raises(ConfigError, match="not the id of a token"):
        collate_varlen(bare_samples, eod_token=eod_token)


def test_whether_ends_are_left_out_of_the_loss_is_a_boolean(samples):
    with pytest.raises(ConfigError, match="mask_ends: this argument is on or off"):
        collate_varlen(samples, mask_ends="no")


def test_ends_of_documents_within_a_sample_are_left_out_of_the_loss(samples):
    row = collate_varlen(samples, mask_ends=True)

    loss_mask = row["loss_mask"].reshape(N_JOINED, LENGTH)
    is_end = row["tokens"].reshape(N_JOINED, LENGTH) == EOD
    np.testing.assert_array_equal(loss_mask[:, :-1], ~is_end[:, :-1])
    # Without an end token, it is unknown whether a document ends with a sample.
    assert loss_mask[:, -1].all()


def test_all_ends_of_documents_are_left_out_of_the_loss_if_the_end_token_is_known(samples):
    row = collate_varlen(samples, eod_token=EOD, mask_ends=True)

    np.testing.assert_array_equal(row["loss_mask"], row["tokens"] != EOD)


def test_the_masks_of_the_samples_themselves_are_not_changed(samples):
    collate_varlen(samples, eod_token=EOD, mask_ends=True)

    assert samples[0]["loss_mask"].all()


def test_the_arrays_of_a_row_are_converted_by_a_function(samples):
    row = collate_varlen(samples, convert=list)

    assert isinstance(row["tokens"], list)


# Contexts of tars


def test_an_end_token_that_the_type_of_the_tokens_does_not_have_is_refused():
    context = np.array([5, 0, 7], np.uint16)

    with pytest.raises(ConfigError, match="from 0 to 65535, since the tokens are uint16"):
        bounded_sample(context, eod_token=99_999)


def test_a_context_of_a_tar_becomes_a_sample_whose_documents_end_at_a_token():
    context = np.array([5, 0, 7, 8, 0, 0, 9], np.uint16)

    sample = bounded_sample(context, eod_token=0)

    assert sample["tokens"].tolist() == [5, 0, 7, 8, 0, 0]
    assert sample["labels"].tolist() == [0, 7, 8, 0, 0, 9]
    assert sample["cu_seqlens"].tolist() == [0, 2, 5, 6, 6, 6, 6]
    assert sample["position_ids"].tolist() == [0, 1, 0, 1, 2, 0]
    assert sample["max_seqlen"] == 3
    assert sample["loss_mask"].tolist() == [1] * 6
