"""Splits that are too small for a trainer are recognized, and messages name the datasets."""

from __future__ import annotations

import numpy as np
import pytest

from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.shortages import cannot_be_built, too_few_tokens
from nanoset_core.sampling.split_data import LengthReader


@pytest.mark.parametrize(
    ("preset", "least_tokens"), [("megatron", 1), ("megatron-0.10", 1), ("nemo", 2)]
)
@pytest.mark.parametrize("has_weights", [False, True], ids=["a dataset", "a blend"])
def test_valid_of_a_few_tokens_can_be_built_if_the_trainer_accepts_them(
    preset, least_tokens, has_weights
):
    results = []
    for n_tokens in (1, 2):
        reader = LengthReader()
        reader.suppose("web", np.array([20, n_tokens], np.int32))
        data = {"web": 1.0} if has_weights else "web"
        config = NanosetConfig(data, sequence_length=16, split="1,1,0", preset=preset)
        results.append(not cannot_be_built(config, "valid", reader))

    assert results == [least_tokens <= 1, True]


def text_on_valid(lengths_by_name, preset="megatron"):
    """Return the message on the split valid, to which a fifth of the documents belong."""
    reader = LengthReader()
    for name, lengths in lengths_by_name.items():
        reader.suppose(name, np.array(lengths, np.int32))
    weights = dict.fromkeys(lengths_by_name, 1.0)
    config = NanosetConfig(weights, sequence_length=16, split="8,2,0", preset=preset)
    return too_few_tokens(config, "valid", reader)


def test_only_the_datasets_without_tokens_are_named_if_others_have_some():
    text = text_on_valid({"web": [20] * 100, "rare": [20], "code": [20] * 50})

    assert text == "tokens of valid: rare 0, and enough in 2 others; a sample takes 17"


def test_a_trainer_that_needs_a_sample_of_each_dataset_needs_more_tokens():
    text = text_on_valid({"web": [20] * 100, "rare": [5] * 10}, preset="nanotron-000")

    assert text == "tokens of valid: rare 10, and enough in 1 other; a sample takes 17"


@pytest.mark.parametrize("preset", ["megatron", "nanotron"])
def test_all_datasets_are_named_if_none_of_them_alone_is_the_reason(preset):
    text = text_on_valid({"web": [3] * 10, "code": [4] * 10}, preset)

    assert text == "tokens of valid: web 6, code 8; a sample takes 17"


def test_a_dataset_is_named_even_if_a_larger_one_has_a_file_of_the_same_name():
    text = text_on_valid({"old/web": [20], "new/web": [20] * 100})

    assert text == "tokens of valid: web 0, and enough in 1 other; a sample takes 17"
