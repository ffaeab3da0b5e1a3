"""Data arguments of Megatron-LM are read as it reads them, also those that a handoff has written."""

from __future__ import annotations

import pytest

from helpers.handoffs import TRAINER_WEIGHTS, handoff_of, handoff_texts, nanoset_config
from nanoset_core.errors import FormatError
from nanoset_core.stages.handoff.data_args import (
    blend_from_words,
    config_from_arguments,
    read_data_args,
    read_per_split,
)

# Words of the command line


@pytest.mark.parametrize(
    ("words", "blend"),
    [
        (["a"], "a"),
        (["a", "b"], ["a", "b"]),
        (["a", "b", "c"], ["a", "b", "c"]),
        (["1", "a"], {"a": 1.0}),
        ([".3", "a", "7e-1", "b"], {"a": 0.3, "b": 0.7}),
        # An odd number of words: all are prefixes, also for Megatron-LM.
        (["1", "a", "2"], ["1", "a", "2"]),
    ],
    ids=str,
)
def test_words_are_prefixes_or_pairs_of_weight_and_prefix(words, blend):
    assert blend_from_words(words, "here") == blend


# Files of data arguments


@pytest.fixture
def per_split_file(tmp_path):
    """A path for a file of --per-split-data-args-path."""
    return tmp_path / "args.json"


def test_the_data_of_a_split_may_be_a_text_or_a_list(per_split_file):
    per_split_file.write_text('{"train": "0.5 a 0.5 b", "valid": ["c"], "test": null}')

    assert read_per_split(per_split_file) == [{"a": 0.5, "b": 0.5}, "c", None]


@pytest.mark.parametrize(
    "text",
    [
        pytest.param("", id="empty"),
        pytest.param("[]", id="a list"),
        pytest.param('{"train": ["a"], "valid": null}', id="no test"),
        pytest.param('{"train": 1, "valid": 2, "test": 3}', id="numbers"),
    ],
)
def test_a_file_without_data_of_each_split_is_refused(per_split_file, text):
    per_split_file.write_text(text)

    with pytest.raises(FormatError) as caught:
        read_per_split(per_split_file)

    assert caught.value.where == str(per_split_file)


# Files of a handoff


def test_data_arguments_of_a_handoff_are_read_back(tmp_path):
    path = tmp_path / "data_args.txt"
    path.write_text(handoff_texts(handoff_of(nanoset_config()))["data_args.txt"])

    assert read_data_args(path) == TRAINER_WEIGHTS


def test_data_arguments_of_each_split_of_a_handoff_are_read_back(per_split_file):
    files = handoff_texts(handoff_of(nanoset_config(is_per_split=True)))
    per_split_file.write_text(files["per_split_data_args.json"])

    assert read_per_split(per_split_file) == [TRAINER_WEIGHTS, "/lustre/code", None]


OPTIONS_NOT_GIVEN = {
    "data_path": (),
    "train_data_path": (),
    "valid_data_path": (),
    "test_data_path": (),
    "per_split_data_args_path": None,
    "train_samples": None,
    "valid_samples": None,
    "test_samples": None,
    "data_cache_path": None,
    "tokenizer_identifiers": "{}",
    "trainer_path": (),
}


def test_the_arguments_of_a_run_give_the_settings_of_its_nanoset(tmp_path):
    config = nanoset_config()
    path = tmp_path / "data_args.txt"
    path.write_text(handoff_texts(handoff_of(config))["data_args.txt"])

    read_config = config_from_arguments(
        {
            **OPTIONS_NOT_GIVEN,
            "data_args_path": path,
            "split": "90,5,5",
            "seq_length": 1024,
            "seed": 7,
            "train_iters": 50,
            "global_batch_size": 8,
            "eval_interval": 20,
            "eval_iters": 2,
            "preset": "megatron",
        }
    )

    assert read_config.data_path == TRAINER_WEIGHTS
    assert read_config.train_split_samples == config.train_split_samples
    assert read_config.valid_split_samples == config.valid_split_samples
    assert read_config.test_split_samples == config.test_split_samples
