"""The settings of a nanoset in Python: what `NanosetConfig` refuses."""

from __future__ import annotations

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
