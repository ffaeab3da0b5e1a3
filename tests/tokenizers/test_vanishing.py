"""Characters for which a tokenizer gives no token are counted."""

from __future__ import annotations

import json

import pytest

from helpers.command import invoke_nanoset
from helpers.golden_tokenizers import GOLDEN_JSON, NO_FLAGS, write_golden_json
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters
from nanoset_core.tokenizers.vanishing import vanishing_characters

TWO_LETTERS = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}
"""A model with tokens for "a" and "b", and for no other character."""


@pytest.fixture
def write_tokenizer_of_two_letters(tmp_path):
    """Return a function that writes a tokenizer for two letters, with some settings."""

    def write(*, added_tokens=(), pre_tokenizer=None):
        def change(tokenizer):
            tokenizer["model"] = TWO_LETTERS
            tokenizer["added_tokens"] = list(added_tokens)
            tokenizer["pre_tokenizer"] = pre_tokenizer

        return write_golden_json(tmp_path, change)

    return write


@pytest.fixture
def tokenizer_of_two_letters(write_tokenizer_of_two_letters):
    """The path of a tokenizer that drops all characters but "a" and "b"."""
    return write_tokenizer_of_two_letters()


def counter_of(path):
    """Return what counts the characters that a tokenizer drops; None if it drops none."""
    return vanishing_characters(make_engine(path, "tokenizers"))


def tokenize(folder, tokenizer, *texts):
    """Run `nanoset tokenize` on texts, and return the result of the command."""
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    input_path = folder / "text.jsonl"
    input_path.write_text("".join(lines))
    arguments = ["tokenize", "--input", input_path, "--output-prefix", folder / "out"]
    arguments += ["--workers", 1, "--tokenizer", tokenizer]
    return invoke_nanoset(arguments)


# What is counted


def test_characters_without_a_token_are_counted(tokenizer_of_two_letters):
    counter = counter_of(tokenizer_of_two_letters)

    # "c", a space and "d"; then "é" twice.
    assert counter.count(["ab", "abc d", "éé"]) == 3 + 2


def test_white_space_that_the_pre_tokenizer_drops_is_not_counted(write_tokenizer_of_two_letters):
    path = write_tokenizer_of_two_letters(pre_tokenizer={"type": "Whitespace"})

    assert counter_of(path).count(["ab  ab x"]) == 1


def test_characters_of_added_tokens_are_not_counted(write_tokenizer_of_two_letters):
    token = {**NO_FLAGS, "id": 3, "content": "<x>", "special": True}
    path = write_tokenizer_of_two_letters(added_tokens=[token])

    # The three characters of "<y>".
    assert counter_of(path).count(["a<x>b<y>"]) == 3


def test_bytes_without_a_token_are_counted(tmp_path):
    def remove_byte_1(tokenizer):
        del tokenizer["model"]["vocab"][byte_characters()[0x01]]

    path = write_golden_json(tmp_path, remove_byte_1)

    assert counter_of(path).count(["a\x01b\x01\x02"]) == 2


def test_nothing_is_counted_if_there_is_a_token_for_every_byte():
    assert counter_of(GOLDEN_JSON) is None


# What the command reports


def test_the_command_reports_how_many_characters_vanished(tokenizer_of_two_letters, tmp_path):
    result = tokenize(tmp_path, tokenizer_of_two_letters, "ab", "abc d")

    assert result.exit_code == 0
    assert "3 characters are missing from the tokens" in result.output


def test_the_command_reports_it_again_if_all_outputs_are_current(
    tokenizer_of_two_letters, tmp_path
):
    tokenize(tmp_path, tokenizer_of_two_letters, "ab", "abc d")

    result = tokenize(tmp_path, tokenizer_of_two_letters, "ab", "abc d")

    assert "3 characters are missing from the tokens" in result.output


def test_the_command_reports_nothing_if_no_character_vanished(tokenizer_of_two_letters, tmp_path):
    result = tokenize(tmp_path, tokenizer_of_two_letters, "ab", "ba")

    assert result.exit_code == 0
    assert "missing from the tokens" not in result.output
