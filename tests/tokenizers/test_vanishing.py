"""Characters that a tokenizer drops without a trace are counted."""

import json

import pytest

from helpers.command import invoke_nanoset
from helpers.locations import GOLDEN_FILES
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.files.tokenizer_json import byte_characters
from nanoset_core.tokenizers.vanishing import vanishing_characters

GOLDEN = GOLDEN_FILES / "tokenization" / "tokenizer.json"
SMALL = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}


@pytest.fixture
def write(tmp_path):
    """Write the golden tokenizer with changes; return its path."""

    def change(**changes):
        file = tmp_path / "tokenizer.json"
        file.write_text(json.dumps(json.loads(GOLDEN.read_bytes()) | changes))
        return file

    return change


def counted(file, *texts):
    counter = vanishing_characters(make_engine(file, "tokenizers"))
    return None if counter is None else counter.count(texts)


def tokenize(folder, tokenizer, *texts):
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    arguments = [
        "tokenize",
        "--input",
        folder / "text.jsonl",
        "--output-prefix",
        folder / "out",
        "--workers",
        1,
    ]
    return invoke_nanoset([*arguments, "--tokenizer", tokenizer])


def test_characters_without_a_token_are_counted(write):
    file = write(model=SMALL, added_tokens=[], pre_tokenizer=None)
    assert counted(file, "ab", "abc d", "éé") == 3 + 2


def test_white_space_that_the_pre_tokenizer_drops_is_not_counted(write):
    file = write(model=SMALL, added_tokens=[], pre_tokenizer={"type": "Whitespace"})
    assert counted(file, "ab  ab x") == 1


def test_added_tokens_are_not_counted(write):
    token = {
        "id": 3,
        "content": "<x>",
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "special": True,
    }
    file = write(model=SMALL, added_tokens=[{**token, "normalized": False}], pre_tokenizer=None)
    assert counted(file, "a<x>b<y>") == 3


def test_bytes_without_a_token_are_counted(write):
    model = json.loads(GOLDEN.read_bytes())["model"]
    del model["vocab"][byte_characters()[0x01]]
    assert counted(write(model=model), "a\x01b\x01\x02") == 2


def test_a_tokenizer_with_a_token_for_every_byte_is_not_counted():
    assert counted(GOLDEN, "a") is None


def test_the_command_tells_how_many_characters_vanished(write, tmp_path):
    file = write(model=SMALL, added_tokens=[], pre_tokenizer=None)
    result = tokenize(tmp_path, file, "ab", "abc d")
    assert result.exit_code == 0
    assert "3 characters are missing from the tokens" in result.output
    # nothing is made again, and the loss is still told
    again = tokenize(tmp_path, file, "ab", "abc d")
    assert "3 characters are missing from the tokens" in again.output


def test_a_tokenizer_that_drops_nothing_says_nothing(write, tmp_path):
    file = write(model=SMALL, added_tokens=[], pre_tokenizer=None)
    assert "missing from the tokens" not in tokenize(tmp_path, file, "ab", "ba").output
