"""Commands refuse to mix datasets of different tokenizers, as far as receipts name these."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from helpers.command import invoke_nanoset
from helpers.sample_pairs import write_tokenized
from nanoset_core.errors import FormatError


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch) -> Path:
    """The current folder, with the datasets `a` and `b` of different tokenizers."""
    monkeypatch.chdir(tmp_path)
    write_tokenized(Path("a"), "1" * 64)
    write_tokenized(Path("b"), "2" * 64)
    return tmp_path


def refusal(*arguments: object) -> str:
    """Run `nanoset`, and return the message of the error that it raises."""
    result = invoke_nanoset(arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, FormatError)
    return str(result.exception)


@pytest.mark.parametrize("words", [["a", "b"], ["0.5", "a", "0.5", "b"]])
def test_map_refuses_a_blend_of_different_tokenizers(words):
    message = refusal("map", "--data-path", *words, "--seq-length", 1, "--split", "1,0,0", "--plan")

    assert "different tokenizers" in message
    assert "b.manifest.json" in message


def test_map_refuses_different_tokenizers_in_a_file_of_splits():
    Path("splits.json").write_text(json.dumps({"train": ["a", "b"], "valid": None, "test": None}))

    message = refusal(
        "map", "--per-split-data-args-path", "splits.json", "--seq-length", 1, "--plan"
    )

    assert "different tokenizers" in message


def test_shuffle_refuses_datasets_of_different_tokenizers():
    message = refusal("shuffle", "--input", "a", "b", "--output", "tars", "--seqlen", 2)

    assert "different tokenizers" in message
    assert not Path("tars").exists()
