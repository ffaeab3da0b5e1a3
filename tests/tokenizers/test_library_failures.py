"""Documents that a tokenizer's library fails on, by a panic or an error, are named together with
the tokenizer.
"""

import json
from copy import deepcopy

import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import FormatError
from nanoset_core.tokenizers.audit import Audit
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.engine import EncodingError
from nanoset_core.tokenizers.engines.tokenizers_library import decode_tokens, load_tokenizer
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

GOLDEN = GOLDEN_FILES / "tokenization" / "tokenizer.json"
RUNAWAY = {
    "type": "Split",
    "pattern": {"Regex": r"(x|xx)+y|(a+)+$"},  # tries every way to cut a run of x in two
    "behavior": "Isolated",
    "invert": False,
}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
LONG_RUN = "x" * 2000
WORDS = ("good", "<|endoftext|>", "a", "one", "two", "3", "4", "5")

FAILURES = {
    "a split pattern that backtracks": (
        {"pre_tokenizer": {"type": "Sequence", "pretokenizers": [RUNAWAY, BYTES]}},
        LONG_RUN,
        "retry-limit-in-match over",
    ),
    "a missing token for unknown words": (
        {
            "model": {
                "type": "WordPiece",
                "vocab": {name: number for number, name in enumerate(WORDS)},
                "unk_token": "[UNK]",
                "continuing_subword_prefix": "##",
                "max_input_chars_per_word": 100,
            },
            "added_tokens": [],
            "pre_tokenizer": {"type": "Whitespace"},
            "normalizer": None,
        },
        "bad",
        "Missing [UNK] token",
    ),
    "a normalizer that removes what is between added tokens": (
        {
            "normalizer": {"type": "Strip", "strip_left": True, "strip_right": True},
            "added_tokens": [
                {
                    "id": 396,
                    "content": "   ",
                    "single_word": False,
                    "lstrip": False,
                    "rstrip": False,
                    "normalized": True,
                    "special": False,
                }
            ],
        },
        "日本語",
        "AddedVocabulary bad split",
    ),
}


@pytest.fixture(params=FAILURES)
def failure(request, tmp_path):
    """A tokenizer, a text that its library fails on, and what the library says."""
    changes, text, message = FAILURES[request.param]
    tokenizer = json.loads(GOLDEN.read_bytes()) | changes
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(tokenizer))
    return file, text, message


@pytest.mark.parametrize("engine", ["tokenizers", "auto"])
def test_an_engine_names_the_document_and_the_tokenizer(failure, engine, tmp_path):
    file, text, message = failure
    encode = make_engine(file, engine, cache=tmp_path).encode
    with pytest.raises(EncodingError) as caught:
        encode(["good", "good good", text, "good", text])
    assert caught.value.document == 2
    assert message in caught.value.found
    assert str(file) in caught.value.found
    assert caught.value.remedy


def test_documents_before_a_failing_one_are_encoded_as_always(failure):
    file, _, _ = failure
    engine = make_engine(file, "tokenizers")
    assert (
        engine.encode(["good"]).ids.tolist() == engine.encode(["good", "good"]).lists()[1].tolist()
    )


@pytest.mark.parametrize("workers", [1, 2])
def test_the_command_names_file_and_line(failure, workers, tmp_path):
    file, text, message = failure
    lines = [json.dumps({"text": one}) for one in ["good"] * 9 + [text]]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    arguments = [
        "tokenize",
        "--input",
        tmp_path / "text.jsonl",
        "--output-prefix",
        tmp_path / "out",
    ]
    arguments += ["--tokenizer", file, "--workers", workers]
    error = invoke_nanoset(arguments).exception
    assert isinstance(error, EncodingError)
    assert error.where.startswith(f"{tmp_path / 'text.jsonl'}:10")
    assert message in error.found
    assert str(file) in error.found


def test_init_names_the_tokenizer_and_the_corpus(failure, tmp_path):
    _, text, message = failure
    folder = tmp_path / "raw" / "web"
    folder.mkdir(parents=True)
    (folder / "a.jsonl").write_text(json.dumps({"text": text}) + "\n")
    error = invoke_nanoset(["init", str(tmp_path)]).exception
    assert isinstance(error, EncodingError)
    assert str(folder) in error.where
    assert message in error.found


def test_shuffling_names_file_and_line_when_it_looks_at_text(failure, tmp_path):
    file, text, message = failure
    lines = [json.dumps({"text": one}) for one in ["good", text]]
    (tmp_path / "text.jsonl").write_text("\n".join(lines) + "\n")
    arguments = [
        "shuffle",
        "--input",
        tmp_path / "text.jsonl",
        "--output",
        tmp_path / "tars",
        "--tokenizer",
        file,
        "--plan",
    ]
    arguments += ["--eod", "<|endoftext|>", "--seqlen", 8]
    error = invoke_nanoset(arguments).exception
    assert isinstance(error, EncodingError)
    assert error.where == f"{tmp_path / 'text.jsonl'}:2"
    assert message in error.found


def test_a_library_that_fails_on_every_text_is_an_error_of_the_tokenizer(tmp_path):
    changes, _, message = deepcopy(FAILURES)["a missing token for unknown words"]
    changes["model"]["vocab"] = {"good": 0}
    file = tmp_path / "tokenizer.json"
    file.write_text(json.dumps(json.loads(GOLDEN.read_bytes()) | changes))
    with pytest.raises(EncodingError) as caught:
        tokenizer_facts(file)
    assert caught.value.where == str(file)
    assert message in caught.value.found


def test_an_audit_names_the_document_that_the_reference_fails_on(failure, tmp_path):
    """A faster engine gives the reference parts of a batch, whose numbers are others than the
    documents'.
    """
    file, text, _ = failure
    reference = make_engine(file, "tokenizers")

    class Faster:
        name = "faster"
        version = "1"

        def __init__(self):
            self.reference = reference

        def encode(self, texts):
            return reference.encode(texts[-1:])

    with pytest.raises(EncodingError) as caught:
        Audit(Faster(), 0.0, "seed").encode(["good", "good", text])
    assert caught.value.document == 2


def test_a_decoder_that_fails_names_the_tokenizer_and_the_tokens():
    class Broken:
        def decode(self, ids, skip_special_tokens):
            raise Exception("no such decoder")

    with pytest.raises(FormatError) as caught:
        decode_tokens(Broken(), [5, 6], GOLDEN)
    assert caught.value.where == str(GOLDEN)
    assert "no such decoder, for 2 tokens, starting with 5, 6" in caught.value.found


def test_panics_print_no_backtrace(monkeypatch):
    import os

    monkeypatch.setenv("RUST_BACKTRACE", "1")
    load_tokenizer(GOLDEN)
    assert os.environ["RUST_BACKTRACE"] == "0"
