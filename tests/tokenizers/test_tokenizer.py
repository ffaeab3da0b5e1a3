import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.tokenizers.engines import reference
from nanoset_core.tokenizers.engines.reference import ReferenceEngine
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, token_id, tokenizer_facts

GOLDEN = GOLDEN_FILES / "tokenization" / "tokenizer.json"


@pytest.fixture
def file(tmp_path):
    return Path(shutil.copyfile(GOLDEN, tmp_path / "tokenizer.json"))


def with_tokens(file, tokens):
    """Rewrite the tokenizer with these added tokens, text → id."""
    value = json.loads(GOLDEN.read_bytes())
    blank = {
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    value["added_tokens"] = [
        {"id": number, "content": text, **blank} for text, number in tokens.items()
    ]
    for text, number in tokens.items():
        value["model"]["vocab"][text] = number
    file.write_text(json.dumps(value))


def test_facts(file):
    facts = tokenizer_facts(file)
    assert facts == TokenizerFacts(file, hashlib.sha256(GOLDEN.read_bytes()).hexdigest(), 396, 395)
    assert facts.dtype == np.uint16


@pytest.mark.parametrize(("size", "dtype"), [(65_499, np.uint16), (65_500, np.int32)])
def test_dtype_by_megatrons_rule(file, size, dtype):
    assert TokenizerFacts(file, "", size, size - 1).dtype == dtype


def test_added_tokens_count_and_ids_may_have_gaps(file):
    for number in (396, 50_000):
        with_tokens(file, {"<|endoftext|>": 0, "<|far|>": number})
        facts = tokenizer_facts(file)
        assert (facts.vocab_size, facts.max_id, facts.dtype) == (397, number, np.uint16)


def test_ids_that_the_dtype_cannot_hold(file):
    with_tokens(file, {"<|endoftext|>": 0, "<|far|>": 70_000})
    with pytest.raises(ConfigError, match="do not fit the dtype") as caught:
        tokenizer_facts(file)
    assert caught.value.where == str(file)
    assert "70,000" in caught.value.found


def test_token_that_is_not_there(file):
    with pytest.raises(ConfigError, match="no such token") as caught:
        token_id(file, "</s>", "nanoset.yaml: tokenizer.eod")
    assert caught.value.where == "nanoset.yaml: tokenizer.eod"
    assert caught.value.found == "'</s>'"
    assert caught.value.expected == "one of its special tokens: '<|endoftext|>', '<|padding|>'"


def test_changed_file_is_read_again(file):
    before = tokenizer_facts(file)
    assert token_id(file, "<|endoftext|>", "key") == 0
    with_tokens(file, {"<|endoftext|>": 396, "<|padding|>": 1})
    assert tokenizer_facts(file).fingerprint != before.fingerprint
    assert tokenizer_facts(file).max_id == 396
    assert token_id(file, "<|endoftext|>", "key") == 396


def test_missing_and_foreign_files(tmp_path):
    with pytest.raises(MissingError):
        tokenizer_facts(tmp_path / "nothing.json")
    with pytest.raises(MissingError):
        token_id(tmp_path / "nothing.json", "x", "key")
    (tmp_path / "foreign.json").write_text("{}")
    with pytest.raises(FormatError):
        tokenizer_facts(tmp_path / "foreign.json")


def test_the_tokenizer_of_an_engine_in_use_is_asked(file, monkeypatch):
    engine = ReferenceEngine(file)
    monkeypatch.setattr(reference, "load_tokenizer", lambda file: pytest.fail("loaded twice"))
    assert tokenizer_facts(file).fingerprint == hashlib.sha256(file.read_bytes()).hexdigest()
    assert token_id(file, "<|endoftext|>", "eod") == engine.tokenizer.token_to_id("<|endoftext|>")
    del engine
    with_tokens(file, {"<|other|>": 9000})
    monkeypatch.undo()
    assert token_id(file, "<|other|>", "eod") == 9000
