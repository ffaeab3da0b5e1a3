"""Sample dictionaries of each trainer."""

import numpy as np
import pytest
from golden.megatron.cases import FOLDER, arrays, cases, name_of
from hypothesis import given, settings
from hypothesis import strategies as st

from nanoset_core.loading import NanosetBuilder, NanosetConfig
from nanoset_core.loading.samples import SampleForm


def options(case):
    params = case["params"]
    flags = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss", "create_attention_mask")
    return {
        "data_path": params["prefix"],
        "split": params["split"],
        "sequence_length": params["seq_len"],
        "random_seed": params["seed"],
        "train_split_samples": params["sizes"][0],
        "eod_token": params["eod"],
        **{flag: params[flag] for flag in flags},
    }


@pytest.mark.parametrize("case", cases("getitem"), ids=name_of)
def test_golden(case, monkeypatch, tmp_path):
    monkeypatch.chdir(FOLDER)
    train, _, _ = NanosetBuilder(NanosetConfig(**options(case), path_to_cache=str(tmp_path))).build()
    golden = arrays(case)
    for asked in case["params"]["ks"]:
        sample = train[asked]
        keys = {key.split(".")[1] for key in golden.files if key.startswith(f"{asked}.")}
        assert set(sample) == keys
        for key, value in sample.items():
            expected = golden[f"{asked}.{key}"]
            if key == "attention_mask":
                assert value.dtype == bool
                assert value.shape == (1, 64, 64)
                value = np.packbits(value)
            np.testing.assert_array_equal(value, expected)
            assert value.dtype == expected.dtype


def slow_masks(tokens, eod, reset_positions, reset_attention, mask_eod):
    """As Megatron-LM's `_get_ltor_masks_and_position_ids`, one end of document after the other."""
    count = len(tokens)
    attention = np.tril(np.ones((count, count)))
    loss = np.where(tokens == eod, 0.0, 1.0) if mask_eod else np.ones(count)
    positions = np.arange(count)
    previous = 0
    for i in np.flatnonzero(tokens == eod):
        if reset_attention:
            attention[i + 1 :, : i + 1] = 0
        if reset_positions:
            positions[i + 1 :] -= i + 1 - previous
            previous = i + 1
    return attention < 0.5, loss, positions


@settings(max_examples=60, deadline=None)
@given(
    tokens=st.lists(st.integers(0, 4), min_size=2, max_size=20),
    flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    extra=st.booleans(),
)
def test_masks_are_the_slow_ones(tokens, flags, extra):
    text = np.array(tokens, dtype=np.int64)
    names = ("reset_position_ids", "reset_attention_mask", "eod_mask_loss")
    config = NanosetConfig(
        "d",
        sequence_length=len(tokens) - extra,
        add_extra_token=extra,
        eod_token=1,
        pad_token=3,
        create_attention_mask=True,
        **dict(zip(names, flags, strict=True)),
    )
    sample = SampleForm(config).sample(text.copy(), 0)
    inputs = text[:-1] if extra else text
    labels = text[1:] if extra else np.append(text[1:], 3)
    attention, loss, positions = slow_masks(inputs, 1, *flags)
    np.testing.assert_array_equal(sample["attention_mask"][0], attention)
    np.testing.assert_array_equal(sample["loss_mask"], np.where(labels == 3, 0, loss))
    np.testing.assert_array_equal(sample["position_ids"], positions)
    np.testing.assert_array_equal(sample["tokens"], np.where(inputs == 3, 0, inputs))
    np.testing.assert_array_equal(sample["labels"], np.where(labels == 3, 0, labels))


def test_padding_of_one_sample_does_not_reach_the_next():
    form = SampleForm(NanosetConfig("d", sequence_length=4))
    padded = form.sample(np.array([5, 6, -1, -1, -1]), 0)
    assert padded["loss_mask"].tolist() == [1, 0, 0, 0]
    assert padded["tokens"].tolist() == [5, 6, 0, 0]
    assert form.sample(np.arange(5), 1)["loss_mask"].tolist() == [1, 1, 1, 1]


def test_tokens_and_labels_are_apart():
    sample = SampleForm(NanosetConfig("d", sequence_length=4)).sample(np.arange(5), 0)
    sample["tokens"][:] = 9
    assert sample["labels"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("pad", [None, 3, 70000])
@pytest.mark.parametrize("extra", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
def test_narrow_tokens_give_the_same_sample(pad, extra, dtype):
    form = SampleForm(NanosetConfig("d", sequence_length=5, pad_token=pad, add_extra_token=extra))
    for tokens in ([1, 3, 2, 3, 5, 3], [1, 2, 4, 5, 6, 7]):
        wide = np.array(tokens[: 5 + extra], np.int64)
        narrow, given = form.sample(wide.astype(dtype), 0), form.sample(wide, 0)
        for key, value in given.items():
            assert narrow[key].dtype == value.dtype
            np.testing.assert_array_equal(narrow[key], value)
        assert narrow["tokens"].tolist() == [0 if token == pad else token for token in tokens[:5]]


@pytest.mark.parametrize(("preset", "key"), [("nanotron", "input_ids"), ("nanotron-000", "text")])
def test_nanotron_gives_tokens_alone(preset, key):
    form = SampleForm(NanosetConfig({"d": 1}, sequence_length=4, preset=preset))
    sample = form.sample(np.arange(5), 0)
    assert list(sample) == [key]
    assert sample[key].tolist() == [0, 1, 2, 3, 4]


def test_nemo_masks_the_loss_of_padding_samples_and_pads_with_minus_one():
    form = SampleForm(NanosetConfig("d", sequence_length=4, preset="nemo", pad_token=7))
    assert form.pad == -1
    assert form.sample(np.arange(5), -2)["loss_mask"].tolist() == [0, 0, 0, 0]
    assert form.sample(np.arange(5), 2)["loss_mask"].tolist() == [1, 1, 1, 1]


def test_megatron_masks_the_loss_of_padding_samples():
    form = SampleForm(NanosetConfig("d", sequence_length=4))
    assert form.sample(np.arange(5), None)["loss_mask"].tolist() == [0, 0, 0, 0]
    assert form.sample(np.arange(5), -2)["loss_mask"].tolist() == [1, 1, 1, 1]
