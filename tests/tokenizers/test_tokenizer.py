"""Facts of a tokenizer.json: its fingerprint, vocabulary size, greatest id, dtype and token ids."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest

from helpers.golden_tokenizers import GOLDEN_JSON, NO_FLAGS, write_golden_json
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.tokenizers.engines import reference
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, token_id, tokenizer_facts


@pytest.fixture
def path(tmp_path):
    """The path of a copy of the golden tokenizer."""
    copy = tmp_path / "tokenizer.json"
    copy.write_bytes(GOLDEN_JSON.read_bytes())
    return copy


def write_with_added_tokens(folder, id_by_content):
    """Write the golden tokenizer with other added tokens."""

    def change(tokenizer):
        tokenizer["added_tokens"] = [
            {**NO_FLAGS, "special": True, "id": number, "content": content}
            for content, number in id_by_content.items()
        ]
        tokenizer["model"]["vocab"].update(id_by_content)

    write_golden_json(folder, change)


def sha256_of(path):
    """Return the SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


# Facts


def test_facts_of_a_tokenizer(path):
    facts = tokenizer_facts(path)

    assert facts == TokenizerFacts(
        file=path, fingerprint=sha256_of(GOLDEN_JSON), vocab_size=396, max_id=395
    )
    assert facts.dtype == np.uint16


@pytest.mark.parametrize(
    ("vocab_size", "dtype"),
    [
        pytest.param(65_499, np.uint16, id="largest for uint16"),
        pytest.param(65_500, np.int32, id="smallest for int32"),
    ],
)
def test_the_dtype_follows_megatrons_rule(path, vocab_size, dtype):
    facts = TokenizerFacts(path, "", vocab_size, vocab_size - 1)

    assert facts.dtype == dtype


@pytest.mark.parametrize("number", [396, 50_000], ids=["next id", "id after a gap"])
def test_added_tokens_count_for_the_vocabulary_size(path, tmp_path, number):
    write_with_added_tokens(tmp_path, {"<|endoftext|>": 0, "<|far|>": number})

    facts = tokenizer_facts(path)

    assert facts.vocab_size == 397
    assert facts.max_id == number
    assert facts.dtype == np.uint16


def test_an_id_that_does_not_fit_the_dtype_is_an_error(path, tmp_path):
    write_with_added_tokens(tmp_path, {"<|endoftext|>": 0, "<|far|>": 70_000})

    with pytest.raises(ConfigError, match="do not fit the dtype") as caught:
        tokenizer_facts(path)

    assert caught.value.where == str(path)
    assert "70,000" in caught.value.found


def test_a_token_that_does_not_exist_is_an_error_that_lists_special_tokens(path):
    with pytest.raises(ConfigError, match="no such token") as caught:
        token_id(path, "</s>", "nanoset.yaml: tokenizer.eod")

    assert caught.value.where == "nanoset.yaml: tokenizer.eod"
    assert caught.value.found == "'</s>'"
    assert caught.value.expected == "one of its special tokens: '<|endoftext|>', '<|padding|>'"


# Files


def test_a_missing_file_is_an_error(tmp_path):
    missing_path = tmp_path / "nothing.json"

    with pytest.raises(MissingError):
        tokenizer_facts(missing_path)
    with pytest.raises(MissingError):
        token_id(missing_path, "x", "key")


def test_a_file_that_is_no_tokenizer_is_an_error(tmp_path):
    foreign_path = tmp_path / "foreign.json"
    foreign_path.write_text("{}")

    with pytest.raises(FormatError):
        tokenizer_facts(foreign_path)


def test_a_changed_file_is_read_again(path, tmp_path):
    fingerprint_before = tokenizer_facts(path).fingerprint
    assert token_id(path, "<|endoftext|>", "key") == 0

    write_with_added_tokens(tmp_path, {"<|endoftext|>": 396, "<|padding|>": 1})

    assert tokenizer_facts(path).fingerprint != fingerprint_before
    assert tokenizer_facts(path).max_id == 396
    assert token_id(path, "<|endoftext|>", "key") == 396


# The tokenizer of an engine, which is not loaded twice


def test_facts_are_those_of_the_tokenizer_that_an_engine_has_loaded(path, monkeypatch):
    engine = ReferenceEngine(path)
    monkeypatch.setattr(reference, "load_tokenizer", lambda path: pytest.fail("loaded twice"))

    assert tokenizer_facts(path).fingerprint == sha256_of(path)
    assert token_id(path, "<|endoftext|>", "eod") == engine.tokenizer.token_to_id("<|endoftext|>")


def test_a_changed_file_is_read_again_when_its_engine_is_not_used_any_more(path, tmp_path):
    engine = ReferenceEngine(path)
    assert token_id(path, "<|endoftext|>", "eod") == 0
    del engine

    write_with_added_tokens(tmp_path, {"<|other|>": 9000})

    assert token_id(path, "<|other|>", "eod") == 9000
