"""The dictionaries of samples, against loops over single tokens."""

from itertools import pairwise
from types import SimpleNamespace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.loading.samples import SampleForm

EOD = 0
PAD = 7
LENGTH = 6
booleans = st.booleans()
texts = st.lists(
    st.lists(st.sampled_from([EOD, 1, 2, PAD]), min_size=LENGTH + 1, max_size=LENGTH + 1),
    min_size=1,
    max_size=4,
)


def form_of(**options):
    """Return the form of a trainer like Megatron-LM, with some mask options."""
    settings = {
        "rules": SimpleNamespace(sample_form="megatron"),
        "add_extra_token": True,
        "sample_tokens": LENGTH + 1,
        "sequence_length": LENGTH,
        "masked_pad_token": PAD,
        "eod_token": EOD,
        "inter_document_masking": False,
        "create_attention_mask": True,
    }
    return SampleForm(SimpleNamespace(**settings, **options))


def slow_sample(text, *, reset_position_ids, reset_attention_mask, eod_mask_loss):
    """Return the dictionary of one sample as lists, token by token."""
    positions = []
    documents = []
    position = document = 0
    for token in text[:-1]:
        positions.append(position)
        documents.append(document)
        position += 1
        if token == EOD:
            document += 1
            if reset_position_ids:
                position = 0

    forbidden = []
    for query in range(LENGTH):
        row = []
        for key in range(LENGTH):
            is_other_document = documents[key] != documents[query]
            row.append(key > query or (reset_attention_mask and is_other_document))
        forbidden.append(row)

    loss_mask = []
    for token, label in pairwise(text):
        is_masked = label == PAD or (eod_mask_loss and token == EOD)
        loss_mask.append(0.0 if is_masked else 1.0)
    return {
        "tokens": [0 if token == PAD else token for token in text[:-1]],
        "labels": [0 if label == PAD else label for label in text[1:]],
        "attention_mask": [forbidden],
        "loss_mask": loss_mask,
        "position_ids": positions,
    }


@given(texts=texts, positions=booleans, attention=booleans, ends=booleans)
def test_samples_are_those_of_a_walk_over_their_tokens(texts, positions, attention, ends):
    options = {
        "reset_position_ids": positions,
        "reset_attention_mask": attention,
        "eod_mask_loss": ends,
    }
    form = form_of(**options)

    together = form.samples(np.array(texts), list(range(len(texts))))
    one_by_one = [form.sample(np.array(text), number) for number, text in enumerate(texts)]

    expected = [slow_sample(text, **options) for text in texts]
    for samples in (together, one_by_one):
        plain = [{name: value.tolist() for name, value in sample.items()} for sample in samples]
        assert plain == expected


@given(texts=texts, requested=st.lists(booleans, min_size=4, max_size=4))
def test_the_loss_leaves_out_samples_that_are_requested_as_padding(texts, requested):
    form = form_of(reset_position_ids=False, reset_attention_mask=False, eod_mask_loss=False)
    indices = [0 if is_sample else None for is_sample in requested[: len(texts)]]

    samples = form.samples(np.array(texts), indices)

    for sample, index, text in zip(samples, indices, texts, strict=True):
        expected = [0.0 if index is None or label == PAD else 1.0 for label in text[1:]]
        assert sample["loss_mask"].tolist() == expected
