"""The settings of a nanoset in Python: what `NanosetConfig` refuses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nanoset_core import NanosetConfig
from nanoset_core.errors import ConfigError


def config_with(**options: Any) -> NanosetConfig:
    """Return the settings of a nanoset of one dataset, which need not exist."""
    return NanosetConfig("/data/web", sequence_length=8, **options)


# Ids of tokens


@pytest.mark.parametrize("option", ["eod_token", "pad_token"])
@pytest.mark.parametrize("value", ["<|endoftext|>", "0", -2, 0.5, True, 2**31])
def test_what_is_not_the_id_of_a_token_is_refused(option, value):
    with pytest.raises(ConfigError, match=f"{option}: not the id of a token"):
        config_with(**{option: value})


def test_the_id_of_a_token_may_be_an_integer_of_numpy():
    config = config_with(eod_token=np.uint16(7))

    assert type(config.eod_token) is int
    assert config.eod_token == 7


def test_only_the_padding_token_may_be_minus_one():
    with pytest.raises(ConfigError, match="eod_token: not the id of a token"):
        config_with(eod_token=-1)


def test_no_padding_token_may_be_given_as_minus_one():
    config = config_with(pad_token=np.int64(-1))

    assert type(config.pad_token) is int
    assert config.pad_token == -1


def test_an_array_is_no_whole_number():
    with pytest.raises(ConfigError, match="train_split_samples: not a whole number"):
        config_with(train_split_samples=np.array([8, 8]))


# Options that are on or off, and shares


@pytest.mark.parametrize("option", ["eod_mask_loss", "add_extra_token", "shuffle_documents"])
@pytest.mark.parametrize("value", ["no", "false", 0, None])
def test_an_option_that_is_on_or_off_takes_only_booleans(option, value):
    with pytest.raises(ConfigError, match=f"{option}: this argument is on or off"):
        config_with(**{option: value, "eod_token": 0})


def test_an_option_that_is_on_or_off_may_be_a_boolean_of_numpy():
    assert config_with(add_extra_token=np.False_).add_extra_token is False


@pytest.mark.parametrize("split", [(98, 1, 1), [0.9, 0.1], 1, None])
def test_shares_that_are_not_a_text_are_refused(split):
    with pytest.raises(ConfigError, match='such as "98,1,1"'):
        config_with(split=split)


def test_shares_may_be_none_if_each_split_has_data_of_its_own():
    config = NanosetConfig(sequence_length=8, blend_per_split=["/data/web", None, None], split=None)

    assert config.split is None


@pytest.mark.parametrize("value", [None, "0.005", True, -0.1])
def test_a_surplus_that_is_not_a_number_of_at_least_zero_is_refused(value):
    with pytest.raises(ConfigError, match="surplus: this share is impossible"):
        config_with(surplus=value)


def test_a_surplus_may_be_a_number_of_numpy():
    config = config_with(surplus=np.float32(0.5))

    assert type(config.surplus) is float
    assert config == config_with(surplus=0.5)


# Positions, paths and orders


@pytest.mark.parametrize("value", ["x", -1, 1.0, None])
def test_a_position_that_is_not_a_number_of_samples_is_refused(value):
    with pytest.raises(ConfigError, match="consumed_samples: not a whole number"):
        config_with(consumed_samples=value)


def test_a_cache_folder_may_be_a_path():
    assert config_with(path_to_cache=Path("cache")).path_to_cache == "cache"


@pytest.mark.parametrize(
    ("options", "where"),
    [
        ({"path_to_cache": 3}, "path_to_cache: not a path"),
        ({"trainer_paths": None}, "trainer_paths: not a dictionary"),
        ({"trainer_paths": {"web": 3}}, "trainer_paths, web: not a path"),
        ({"tokenizer_identifiers": "gpt2"}, "tokenizer_identifiers: not a dictionary"),
        ({"orders": {"web": 1}}, "orders, web: not the order of a dataset"),
    ],
)
def test_paths_and_dictionaries_of_a_wrong_type_are_refused(options, where):
    with pytest.raises(ConfigError, match=where):
        config_with(**options)


# Masks


@pytest.mark.parametrize("preset", ["nanotron", "nanotron-000", "nanotron-main"])
@pytest.mark.parametrize(
    "mask", ["eod_mask_loss", "create_attention_mask", "inter_document_masking"]
)
def test_samples_that_are_tokens_alone_cannot_have_masks(preset, mask):
    with pytest.raises(ConfigError, match=f"{mask}: samples of this trainer are tokens"):
        config_with(preset=preset, eod_token=0, **{mask: True})


def test_the_masks_that_a_trainer_of_tokens_knows_are_accepted():
    config = config_with(preset="nanotron-main", eod_token=0, reset_position_ids=True)

    assert config.reset_position_ids


def test_an_unknown_mask_is_refused():
    with pytest.raises(ConfigError, match="masks: not one of the possible values"):
        config_with().with_masks({"reset_positions"}, 0)


# Splits and options of the trainer


@pytest.mark.parametrize(
    "call",
    [
        lambda config: config.samples("validation"),
        lambda config: config.blend("validation"),
        lambda config: config.with_samples({"validation": 5}),
        lambda config: config.drops_last_partial("validation"),
    ],
    ids=["samples", "blend", "with_samples", "drops_last_partial"],
)
def test_an_unknown_split_is_refused(call):
    with pytest.raises(ConfigError, match="found: 'validation'\n  expected: one of 'train'"):
        call(config_with(test_split_samples=77))


def test_an_option_that_the_trainer_lacks_is_named_as_the_caller_wrote_it():
    with pytest.raises(ConfigError, match="found: compensated_sums=True"):
        config_with(compensated_sums=True)


def test_a_missing_option_of_a_stored_configuration_is_named():
    with pytest.raises(ValueError, match=r"a key is missing: sequence_length \(expected: Tokens"):
        NanosetConfig.from_json({})
