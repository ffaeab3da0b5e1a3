"""If a tokenizer's library fails on a document, the error names the document and the tokenizer.

The library may fail by an error, or by a panic of its code in Rust.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from helpers.command import invoke_nanoset
from helpers.golden_tokenizers import GOLDEN_JSON, NO_FLAGS, write_golden_json
from nanoset_core.errors import FormatError
from nanoset_core.tokenizers.audit import Audit
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.engine import EncodingError
from nanoset_core.tokenizers.engines.tokenizers_library import decode_tokens, load_tokenizer
from nanoset_core.tokenizers.tokenizer import tokenizer_facts


class TokenizerFault(NamedTuple):
    """A fault of a tokenizer, because of which its library fails on some texts."""

    changes: dict[str, Any]
    """Changes of the golden `tokenizer.json`."""
    text: str
    """A text on which the library fails."""
    message: str
    """A part of the library's message."""


BACKTRACKING_SPLIT = {
    "type": "Split",
    "pattern": {"Regex": r"(x|xx)+y|(a+)+$"},  # tries every way to cut a run of x in two
    "behavior": "Isolated",
    "invert": False,
}
BYTE_LEVEL = {
    "type": "ByteLevel",
    "add_prefix_space": False,
    "trim_offsets": True,
    "use_regex": True,
}
WORDS = ["good", "<|endoftext|>", "a", "one", "two", "3", "4", "5"]


def word_piece(words):
    """Return a model with tokens for some words, whose token for unknown words is missing."""
    return {
        "type": "WordPiece",
        "vocab": {word: number for number, word in enumerate(words)},
        "unk_token": "[UNK]",
        "continuing_subword_prefix": "##",
        "max_input_chars_per_word": 100,
    }


BACKTRACKS = TokenizerFault(
    changes={
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [BACKTRACKING_SPLIT, BYTE_LEVEL]}
    },
    text="x" * 2000,
    message="retry-limit-in-match over",
)
LACKS_UNKNOWN_TOKEN = TokenizerFault(
    changes={
        "model": word_piece(WORDS),
        "added_tokens": [],
        "pre_tokenizer": {"type": "Whitespace"},
        "normalizer": None,
    },
    text="bad",
    message="Missing [UNK] token",
)
STRIPS_ADDED_TOKENS = TokenizerFault(
    changes={
        "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
        "added_tokens": [{**NO_FLAGS, "id": 396, "content": "   ", "normalized": True}],
    },
    text="日本語",
    message="AddedVocabulary bad split",
)


class FaultyTokenizer(NamedTuple):
    """A tokenizer with a fault."""

    path: Path
    """Its `tokenizer.json`."""
    bad_text: str
    """A text on which its library fails."""
    message: str
    """A part of the library's message."""


@pytest.fixture(
    params=[
        pytest.param(BACKTRACKS, id="a split pattern that backtracks"),
        pytest.param(LACKS_UNKNOWN_TOKEN, id="a missing token for unknown words"),
        pytest.param(STRIPS_ADDED_TOKENS, id="a normalizer that strips added tokens"),
    ]
)
def tokenizer(request, tmp_path):
    """A tokenizer with each of the faults."""
    fault = request.param
    path = write_golden_json(tmp_path, lambda content: content.update(fault.changes))
    return FaultyTokenizer(path, fault.text, fault.message)


def write_texts(path, texts):
    """Write texts as JSON lines, and return the path."""
    lines = [json.dumps({"text": text}) + "\n" for text in texts]
    path.write_text("".join(lines))
    return path


# Engines


@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
def test_the_error_of_an_engine_names_the_document_and_the_tokenizer(tokenizer, engine, tmp_path):
    texts = ["good", "good good", tokenizer.bad_text, "good", tokenizer.bad_text]
    encode = make_engine(tokenizer.path, engine, cache=tmp_path).encode

    with pytest.raises(EncodingError) as caught:
        encode(texts)

    assert caught.value.document == 2
    assert tokenizer.message in caught.value.found
    assert str(tokenizer.path) in caught.value.found
    assert caught.value.remedy


def test_other_documents_can_be_encoded(tokenizer):
    engine = make_engine(tokenizer.path, "tokenizers")

    alone = engine.encode(["good"])
    _, second = engine.encode(["good", "good"]).lists()

    assert second.tolist() == alone.ids.tolist()


def test_a_library_that_fails_on_every_text_is_an_error_of_the_tokenizer(tmp_path):
    """Its facts are found out with short texts."""
    changes = {**LACKS_UNKNOWN_TOKEN.changes, "model": word_piece(["good"])}
    path = write_golden_json(tmp_path, lambda content: content.update(changes))

    with pytest.raises(EncodingError) as caught:
        tokenizer_facts(path)

    assert caught.value.where == str(path)
    assert LACKS_UNKNOWN_TOKEN.message in caught.value.found


class EngineForLastText:
    """A fast engine that gives the reference a part of each batch: the last text."""

    name = "faster"
    version = "1"

    def __init__(self, reference):
        self.reference = reference

    def encode(self, texts):
        """Encode the last text with the reference."""
        return self.reference.encode(texts[-1:])


def test_the_error_of_an_audit_names_the_document_although_an_engine_sees_a_part(tokenizer):
    """In the part of a batch that the reference gets, documents have other numbers."""
    engine = EngineForLastText(make_engine(tokenizer.path, "tokenizers"))

    with pytest.raises(EncodingError) as caught:
        Audit(engine, 0.0, "seed").encode(["good", "good", tokenizer.bad_text])

    assert caught.value.document == 2


# Commands


@pytest.mark.parametrize("n_workers", [1, 2])
def test_the_error_of_tokenize_names_the_file_and_the_line(tokenizer, n_workers, tmp_path):
    input_path = write_texts(tmp_path / "text.jsonl", ["good"] * 9 + [tokenizer.bad_text])
    arguments = ["tokenize", "--input", input_path, "--output-prefix", tmp_path / "out"]
    arguments += ["--tokenizer", tokenizer.path, "--workers", n_workers]

    error = invoke_nanoset(arguments).exception

    assert isinstance(error, EncodingError)
    assert error.where.startswith(f"{input_path}:10")
    assert tokenizer.message in error.found
    assert str(tokenizer.path) in error.found


def test_the_error_of_init_names_the_corpus(tokenizer, tmp_path):
    folder = tmp_path / "raw" / "web"
    folder.mkdir(parents=True)
    write_texts(folder / "a.jsonl", [tokenizer.bad_text])

    error = invoke_nanoset(["init", str(tmp_path)]).exception

    assert isinstance(error, EncodingError)
    assert str(folder) in error.where
    assert tokenizer.message in error.found


def test_the_error_of_a_plan_to_shuffle_names_the_file_and_the_line(tokenizer, tmp_path):
    input_path = write_texts(tmp_path / "text.jsonl", ["good", tokenizer.bad_text])
    arguments = ["shuffle", "--input", input_path, "--output", tmp_path / "tars", "--plan"]
    arguments += ["--tokenizer", tokenizer.path, "--eod", "<|endoftext|>", "--seqlen", 8]

    error = invoke_nanoset(arguments).exception

    assert isinstance(error, EncodingError)
    assert error.where == f"{input_path}:2"
    assert tokenizer.message in error.found


# The library itself


class BrokenTokenizer:
    """A tokenizer of the library that decodes nothing."""

    def decode(self, ids, skip_special_tokens):
        """Fail, as the library does: by a plain Exception."""
        raise Exception("no such decoder")


def test_the_error_of_a_decoder_names_the_tokenizer_and_the_tokens():
    with pytest.raises(FormatError) as caught:
        decode_tokens(BrokenTokenizer(), [5, 6], GOLDEN_JSON)

    assert caught.value.where == str(GOLDEN_JSON)
    assert "no such decoder, for 2 tokens, starting with 5, 6" in caught.value.found


def test_panics_print_no_backtrace(monkeypatch):
    monkeypatch.setenv("RUST_BACKTRACE", "1")

    load_tokenizer(GOLDEN_JSON)

    assert os.environ["RUST_BACKTRACE"] == "0"
