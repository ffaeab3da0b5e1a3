"""Where documents begin in samples: beside a slow twin, in batches and single, and joined for
attention.
"""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core import NanosetBuilder, NanosetConfig, collate_varlen
from nanoset_core.errors import ConfigError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.loading.boundaries import bounded_sample, cu_seqlens_of

EOD, LENGTH = 0, 9


def slowly(parts, length, extra):
    """As Megatron-LM's `GPTDataset.__getitem__` under `inter_document_masking`."""
    parts = list(parts)
    if extra:
        parts[-1] -= 1
        if parts[-1] == 0:
            parts.pop()
    shortfall = length - sum(parts)
    if shortfall > 0:
        if parts:
            parts[-1] += shortfall
        else:
            parts.append(shortfall)
    ends = [0, *np.cumsum(parts)]
    return ends + [length] * (length + 1 - len(ends))


@settings(max_examples=200, deadline=None)
@given(data=st.data(), length=st.integers(1, 12), extra=st.integers(0, 1))
def test_boundaries_are_the_slow_ones(data, length, extra):
    tokens, samples = length + extra, []
    for _ in range(data.draw(st.integers(1, 4))):
        found = data.draw(st.integers(1, tokens))  # of which the rest is padding
        # two that are equal: an empty document
        cuts = data.draw(st.lists(st.integers(0, found - 1), max_size=length))
        samples.append(np.diff([0, *sorted(cuts), found]).tolist())
    expected = [slowly(parts, length, extra) for parts in samples]
    lengths, counts = (
        np.array([one for parts in samples for one in parts]),
        np.array(list(map(len, samples))),
    )
    fit = [len(ends) == length + 1 for ends in expected]  # Megatron-LM fails where there are more
    found = cu_seqlens_of(lengths, counts, length, extra)
    assert found.dtype == np.int32
    assert found[fit].tolist() == [ends for ends, fits in zip(expected, fit, strict=True) if fits]
    assert (np.diff(found, axis=1) >= 0).all()
    assert (found[:, -1] == length).all()


@pytest.fixture(scope="module", params=[True, False], ids=["blend", "one dataset"])
def train(request, tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("bounds"), np.random.RandomState(1)
    for name in "ab":
        with MMapIndexedDatasetBuilder(folder / name, np.uint16) as builder:
            for length in random.randint(0, 12, 90):
                builder.add_document(np.append(random.randint(1, 99, length), EOD))
    config = NanosetConfig(
        {str(folder / "a"): 2, str(folder / "b"): 1} if request.param else str(folder / "a"),
        sequence_length=LENGTH,
        split="1,0,0",
        train_split_samples=60,
        path_to_cache=str(folder / "cache"),
        inter_document_masking=True,
        create_attention_mask=True,  # which Megatron-LM leaves out then
    )
    return NanosetBuilder(config).build()[0]


def test_many_samples_are_the_single_ones_and_torch_collates_them(train):
    indices = [0, 3, 3, -1, None, *range(9)]
    for one, index in zip(train.__getitems__(indices), indices, strict=True):
        other = train[index]
        assert list(one) == list(other)
        assert "attention_mask" not in one
        for key, value in other.items():
            assert (one[key].dtype, one[key].shape) == (value.dtype, value.shape)
            np.testing.assert_array_equal(one[key], value)
        bounds = train.cu_seqlens([index or 0])[0]
        np.testing.assert_array_equal(one["cu_seqlens"], bounds)
        assert one["max_seqlen"] == np.diff(bounds).max()
        assert one["position_ids"].tolist() == [
            p - max(b for b in bounds.tolist() if b <= p) for p in range(LENGTH)
        ]
    assert train.cu_seqlens([]).shape == (0, LENGTH + 1)
    data = pytest.importorskip("torch.utils.data", reason="torch is not installed")
    batch = data.default_collate(train.__getitems__(range(4)))
    assert (str(batch["cu_seqlens"].dtype), list(batch["cu_seqlens"].shape)) == (
        "torch.int32",
        [4, LENGTH + 1],
    )
    assert (str(batch["max_seqlen"].dtype), list(batch["max_seqlen"].shape)) == ("torch.int32", [4])


def test_samples_joined_for_attention_by_document(train):
    samples = train.__getitems__(range(8))
    found = collate_varlen(samples)
    for key in ("tokens", "labels", "loss_mask", "position_ids"):
        np.testing.assert_array_equal(
            found[key], np.concatenate([sample[key] for sample in samples])
        )
        assert found[key].dtype == samples[0][key].dtype
    bounds = found["cu_seqlens"]
    assert bounds.dtype == np.int32
    assert (bounds[0], bounds[-1], type(found["max_seqlen"])) == (0, 8 * LENGTH, int)
    assert found["max_seqlen"] == np.diff(bounds).max()
    positions = np.concatenate([np.arange(length) for length in np.diff(bounds)])
    assert found["position_ids"].tolist() == positions.tolist()
    # Documents end at a token here, so that both rules tell the same.
    bare = [{key: sample[key] for key in ("tokens", "labels", "loss_mask")} for sample in samples]
    for key, value in collate_varlen(bare, eod_token=EOD).items():
        np.testing.assert_array_equal(value, found[key])
    masked = collate_varlen(samples, mask_ends=True)["loss_mask"].reshape(8, LENGTH)
    ends = found["tokens"].reshape(8, LENGTH) == EOD
    assert (masked[:, :-1] == ~ends[:, :-1]).all()
    assert masked[:, -1].all()  # nothing tells whether a document ends there
    assert (
        collate_varlen(samples, eod_token=EOD, mask_ends=True)["loss_mask"] == ~ends.reshape(-1)
    ).all()
    assert samples[0]["loss_mask"].all()
    assert isinstance(collate_varlen(samples, convert=list)["tokens"], list)
    with pytest.raises(ConfigError, match="do not say where documents end"):
        collate_varlen(bare)


def test_a_context_of_a_tar_is_a_sample_whose_documents_end_at_a_token():
    sample = bounded_sample(np.array([5, 0, 7, 8, 0, 0, 9], np.uint16), 0)
    assert sample["tokens"].tolist() == [5, 0, 7, 8, 0, 0]
    assert sample["labels"].tolist() == [0, 7, 8, 0, 0, 9]
    assert sample["cu_seqlens"].tolist() == [0, 2, 5, 6, 6, 6, 6]
    assert sample["position_ids"].tolist() == [0, 1, 0, 1, 2, 0]
    assert (sample["max_seqlen"], sample["loss_mask"].tolist()) == (3, [1] * 6)
