"""The dictionaries of samples: tokens, labels, masks and positions, as the trainers return them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.loaded_samples import assert_identical_samples
from nanoset_core.loading.samples import SampleForm
from nanoset_core.sampling.config import NanosetConfig

EOD = 0
PAD = 7
booleans = st.booleans()


def form_of(sequence_length=4, *, data_path="d", **options):
    """Return the form of samples under some settings."""
    config = NanosetConfig(data_path, sequence_length=sequence_length, **options)
    return SampleForm(config)


# All options of Megatron-LM against a walk over the tokens


def texts_of(n_tokens, min_samples=1, max_samples=4):
    """Draw the tokens of some samples, many of which are ends of documents or padding."""
    tokens = st.sampled_from([EOD, 1, 2, PAD])
    text = st.lists(tokens, min_size=n_tokens, max_size=n_tokens)
    return st.lists(text, min_size=min_samples, max_size=max_samples)


def slow_sample(text, *, add_extra_token, reset_position_ids, reset_attention_mask, eod_mask_loss):
    """Return the dictionary of one sample as lists, token by token.

    Megatron-LM computes the same in `_get_ltor_masks_and_position_ids` and `__getitem__`.
    """
    if add_extra_token:
        tokens = text[:-1]
        labels = text[1:]
    else:
        tokens = text
        labels = [*text[1:], PAD]  # the last token has no label

    # Number the documents, and the tokens from the start of the sample or of their document.
    positions = []
    documents = []
    position = 0
    document = 0
    for token in tokens:
        positions.append(position)
        documents.append(document)
        position += 1
        if token == EOD:
            document += 1
            if reset_position_ids:
                position = 0

    # True forbids a token, the query, to attend to another one, the key.
    attention_mask = []
    for query in range(len(tokens)):
        row = []
        for key in range(len(tokens)):
            is_later = key > query
            is_other_document = documents[key] != documents[query]
            row.append(is_later or (reset_attention_mask and is_other_document))
        attention_mask.append(row)

    loss_mask = []
    for token, label in zip(tokens, labels, strict=True):
        is_masked = label == PAD or (eod_mask_loss and token == EOD)
        loss_mask.append(0.0 if is_masked else 1.0)

    # Padding may be a number that the model does not know, so it becomes token 0.
    return {
        "tokens": [0 if token == PAD else token for token in tokens],
        "labels": [0 if label == PAD else label for label in labels],
        "attention_mask": [attention_mask],
        "loss_mask": loss_mask,
        "position_ids": positions,
    }


def as_lists(sample):
    """Return the arrays of a sample as lists."""
    return {key: value.tolist() for key, value in sample.items()}


@given(
    data=st.data(),
    sequence_length=st.integers(1, 20),
    options=st.fixed_dictionaries(
        {
            "add_extra_token": booleans,
            "reset_position_ids": booleans,
            "reset_attention_mask": booleans,
            "eod_mask_loss": booleans,
        }
    ),
)
def test_samples_are_those_of_a_walk_over_their_tokens(data, sequence_length, options):
    texts = data.draw(texts_of(sequence_length + options["add_extra_token"]))
    form = form_of(
        sequence_length, eod_token=EOD, pad_token=PAD, create_attention_mask=True, **options
    )

    batch = form.samples(np.array(texts), list(range(len(texts))))
    singles = [form.sample(np.array(text), number) for number, text in enumerate(texts)]

    expected = [slow_sample(text, **options) for text in texts]
    assert [as_lists(sample) for sample in batch] == expected
    assert [as_lists(sample) for sample in singles] == expected


# The loss of padding


@given(data=st.data(), is_padding=st.lists(booleans, min_size=1, max_size=4))
def test_the_loss_leaves_out_samples_that_are_requested_as_padding(data, is_padding):
    n_samples = len(is_padding)
    texts = data.draw(texts_of(5, min_samples=n_samples, max_samples=n_samples))
    indices = [None if padding else 0 for padding in is_padding]
    form = form_of(4, eod_token=EOD, pad_token=PAD)

    samples = form.samples(np.array(texts), indices)

    for sample, index, text in zip(samples, indices, texts, strict=True):
        labels = text[1:]
        expected = [0.0 if index is None or label == PAD else 1.0 for label in labels]
        assert sample["loss_mask"].tolist() == expected


@pytest.mark.parametrize(
    ("preset", "index", "loss"),
    [
        pytest.param("megatron", None, 0, id="Megatron-LM requests padding as None"),
        pytest.param("megatron", -2, 1, id="a negative index counts from the end in Megatron-LM"),
        pytest.param("nemo", -2, 0, id="NeMo requests padding as negative indices"),
    ],
)
def test_each_trainer_requests_padding_in_its_own_way(preset, index, loss):
    form = form_of(preset=preset, pad_token=7)

    assert form.sample(np.arange(5), index)["loss_mask"].tolist() == [loss] * 4
    assert form.sample(np.arange(5), 2)["loss_mask"].tolist() == [1] * 4


@pytest.mark.parametrize(("preset", "pad"), [("megatron", 7), ("nemo", -1)])
def test_nemo_fills_short_samples_whatever_the_pad_token_is(preset, pad):
    assert form_of(preset=preset, pad_token=7).pad == pad


def test_the_padding_of_a_sample_does_not_reach_the_next_one():
    """The mask of a sample without padding is shared by all samples, and must be copied."""
    form = form_of()

    padded = form.sample(np.array([5, 6, -1, -1, -1]), 0)
    unpadded = form.sample(np.arange(5), 1)

    assert padded["loss_mask"].tolist() == [1, 0, 0, 0]
    assert padded["tokens"].tolist() == [5, 6, 0, 0]
    assert unpadded["loss_mask"].tolist() == [1, 1, 1, 1]


# Tokens and labels


def test_a_change_of_the_tokens_does_not_change_the_labels():
    sample = form_of().sample(np.arange(5), 0)

    sample["tokens"][:] = 9

    assert sample["labels"].tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("pad", [None, 3, 70000])
@pytest.mark.parametrize("add_extra_token", [True, False])
@pytest.mark.parametrize("dtype", ["uint8", "uint16", "int32"])
@pytest.mark.parametrize(
    "tokens",
    [
        pytest.param([1, 3, 2, 3, 5, 3], id="with 3"),
        pytest.param([1, 2, 4, 5, 6, 7], id="without 3"),
    ],
)
def test_narrow_tokens_give_the_same_sample_as_wide_ones(tokens, pad, add_extra_token, dtype):
    form = form_of(5, pad_token=pad, add_extra_token=add_extra_token)
    wide_tokens = np.array(tokens[: 5 + add_extra_token], np.int64)

    narrow = form.sample(wide_tokens.astype(dtype), 0)

    assert_identical_samples(narrow, form.sample(wide_tokens, 0))
    assert narrow["tokens"].tolist() == [0 if token == pad else token for token in tokens[:5]]


@pytest.mark.parametrize(("preset", "key"), [("nanotron", "input_ids"), ("nanotron-000", "text")])
def test_samples_of_nanotron_have_nothing_but_tokens(preset, key):
    form = form_of(data_path={"d": 1}, preset=preset)

    sample = form.sample(np.arange(5), 0)

    assert list(sample) == [key]
    assert sample[key].tolist() == [0, 1, 2, 3, 4]
