"""Commands refuse token ids that the named tokenizer does not have.

They name the document and the position of the first such id.
"""

from __future__ import annotations

import gzip
import io
import json
import tarfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

LENGTHS = [6, 0, 7, 5]
"""Tokens of the documents of the pair."""
DOCUMENT = 2
"""The document with a token that is not in the vocabulary."""
POSITION = 3
"""The position of this token in the document."""
END = 0
"""The token that ends documents."""
FOREIGN_IDS = [-2, "above the vocabulary", 2**31 - 1]


@pytest.fixture
def max_id(tokenizer_file) -> int:
    """The greatest id of the tokenizer."""
    return tokenizer_facts(tokenizer_file).max_id


@pytest.fixture
def foreign_id(request: pytest.FixtureRequest, max_id: int) -> int:
    """An id that the tokenizer does not have; the test names it in FOREIGN_IDS."""
    if request.param == "above the vocabulary":
        return max_id + 1
    return request.param


@pytest.fixture
def write_pair(tmp_path, monkeypatch) -> Callable[[int], None]:
    """A function that writes a pair in the current folder, with a token at POSITION of DOCUMENT."""
    monkeypatch.chdir(tmp_path)

    def write(token: int) -> None:
        with MMapIndexedDatasetBuilder(tmp_path / "pair", np.int32) as builder:
            for number, length in enumerate(LENGTHS):
                tokens = np.arange(1, length + 1)
                if length:
                    tokens[-1] = END
                if number == DOCUMENT:
                    tokens[POSITION] = token
                builder.add_document(tokens)

    return write


def message_of_refusal(*arguments: Any) -> str:
    """Run a command that must fail with an error of ours, and return its message."""
    outcome = invoke_nanoset(arguments)
    assert outcome.exit_code == 1, outcome.output
    assert isinstance(outcome.exception, NanosetError), outcome.exception
    return str(outcome.exception)


@pytest.mark.parametrize("foreign_id", FOREIGN_IDS, indirect=True)
@pytest.mark.parametrize(
    "command",
    [
        "shuffle --input pair --output out --seqlen 3",
        "shuffle --input pair --output out --seqlen 3 --member npy --engine tiled",
        "shuffle --input pair --output out --seqlen 3 --member npy --engine buckets",
        "shuffle --input pair --output out --seqlen 4 --tail carry",
        "pack pair -o out.pbin",
        "pack pair -o out.pbin --append-eod --eod <|endoftext|>",
        "export pair -o out --format mds --sequence-length 4",
        "export pair -o out --format litdata --sequence-length 4",
        "export pair -o out --format datatrove",
    ],
)
def test_an_id_that_is_not_in_the_vocabulary_is_refused(
    write_pair, tokenizer_file, max_id, command, foreign_id
):
    write_pair(foreign_id)

    message = message_of_refusal(*command.split(), "--tokenizer", tokenizer_file)

    assert "a token is not in the vocabulary" in message
    assert f"document {DOCUMENT}, token {POSITION}" in message
    assert f"0 to {max_id}" in message
    assert not Path("out.pbin").exists()


@pytest.mark.parametrize(
    "command", ["shuffle --input pair --output out --seqlen 3", "pack pair -o out.pbin"]
)
def test_the_greatest_id_is_accepted(write_pair, tokenizer_file, max_id, command):
    write_pair(max_id)

    outcome = invoke_nanoset([*command.split(), "--tokenizer", tokenizer_file])

    assert outcome.exit_code == 0


def test_shuffle_refuses_negative_ids_without_a_tokenizer(write_pair):
    write_pair(-1)

    message = message_of_refusal("shuffle", "--input", "pair", "--output", "out", "--seqlen", 3)

    assert f"document {DOCUMENT}, token {POSITION}" in message


def write_tar(file: Path, contexts: Sequence[Sequence[int]]) -> None:
    """Write a tar with a member of compressed JSON for each context."""
    file.parent.mkdir()
    with tarfile.open(file, "w") as archive:
        for number, tokens in enumerate(contexts):
            content = gzip.compress(json.dumps(tokens).encode())
            info = tarfile.TarInfo(f"{number}.json.gz")
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))


def test_shuffle_names_the_tar_of_a_foreign_id(tmp_path, monkeypatch, tokenizer_file, max_id):
    monkeypatch.chdir(tmp_path)
    write_tar(tmp_path / "in" / "a.tar", [[1, 2, 3], [4, max_id + 1, 6]])

    message = message_of_refusal(
        "shuffle", "--input", "in", "--output", "out", "--tokenizer", tokenizer_file
    )

    assert "a.tar, context 1, token 1" in message
    assert f"id {max_id + 1}" in message


@pytest.mark.parametrize("foreign_id", [-2, "above the vocabulary"], indirect=True)
def test_inspect_prints_an_id_that_the_tokenizer_cannot_decode(
    write_pair, tokenizer_file, max_id, foreign_id
):
    write_pair(foreign_id)

    outcome = invoke_nanoset(["inspect", "pair", "--tokenizer", tokenizer_file, "--sequences", 9])

    assert outcome.exit_code == 0, outcome.output
    explanation = f"token {POSITION}, {foreign_id}, is not in the vocabulary, 0 to {max_id}"
    assert explanation in outcome.output
