"""Commands refuse ids that a tokenizer does not have, by document and position, wherever a
tokenizer is named.
"""

import gzip
import io
import json
import tarfile
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from nanoset_core.cli import nanoset
from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.builder import MMapIndexedDatasetBuilder
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

DOCUMENT = 2
POSITION = 3


@pytest.fixture
def vocabulary(tokenizer_file):
    """The tokenizer's file and its greatest id."""
    return tokenizer_file, tokenizer_facts(tokenizer_file).max_id


@pytest.fixture
def make(tmp_path, monkeypatch):
    """Return a function that writes a pair with one foreign id in document 2, token 3."""
    monkeypatch.chdir(tmp_path)

    def write(token, end=0, dtype=np.int32):
        with MMapIndexedDatasetBuilder(tmp_path / "pair", dtype) as builder:
            for number, length in enumerate([6, 0, 7, 5]):
                tokens = np.arange(1, length + 1)
                if length:
                    tokens[-1] = end
                if number == DOCUMENT:
                    tokens[POSITION] = token
                builder.add_document(tokens)
        return tmp_path / "pair"

    return write


def run(*words):
    return CliRunner().invoke(nanoset, list(map(str, words)))


def refusal(*words):
    result = run(*words)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, NanosetError), result.exception
    return str(result.exception)


@pytest.mark.parametrize("foreign", [-2, "behind", 2**31 - 1])
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
def test_an_id_that_is_not_in_the_vocabulary_is_refused(make, vocabulary, command, foreign):
    tokenizer, greatest = vocabulary
    end = 0
    make(greatest + 1 if foreign == "behind" else foreign, end)
    said = refusal(*command.split(), "--tokenizer", tokenizer)
    assert "a token is not in the vocabulary" in said
    assert f"document {DOCUMENT}, token {POSITION}" in said
    assert f"0 to {greatest}" in said
    assert not Path("out.pbin").exists()


@pytest.mark.parametrize(
    "command", ["shuffle --input pair --output out --seqlen 3", "pack pair -o out.pbin"]
)
def test_the_greatest_id_is_accepted(make, vocabulary, command):
    tokenizer, greatest = vocabulary
    make(greatest)
    assert run(*command.split(), "--tokenizer", tokenizer).exit_code == 0


def test_shuffle_refuses_negative_ids_without_a_tokenizer(make):
    make(-1)
    said = refusal("shuffle", "--input", "pair", "--output", "out", "--seqlen", 3)
    assert f"document {DOCUMENT}, token {POSITION}" in said


def tars(folder, contexts):
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        for number, tokens in enumerate(contexts):
            body = gzip.compress(json.dumps(tokens).encode())
            info = tarfile.TarInfo(f"{number}.json.gz")
            info.size = len(body)
            archive.addfile(info, io.BytesIO(body))


def test_shuffle_names_the_tar_of_a_foreign_id(tmp_path, monkeypatch, vocabulary):
    monkeypatch.chdir(tmp_path)
    tokenizer, greatest = vocabulary
    tars(tmp_path / "in", [[1, 2, 3], [4, greatest + 1, 6]])
    said = refusal("shuffle", "--input", "in", "--output", "out", "--tokenizer", tokenizer)
    assert "a.tar, context 1, token 1" in said
    assert f"id {greatest + 1}" in said


@pytest.mark.parametrize("foreign", [-2, "behind"])
def test_inspect_shows_ids_that_no_tokenizer_decodes(make, vocabulary, foreign):
    tokenizer, greatest = vocabulary
    token = greatest + 1 if foreign == "behind" else foreign
    make(token)
    result = run("inspect", "pair", "--tokenizer", tokenizer, "--sequences", 9)
    assert result.exit_code == 0, result.output
    assert f"token {POSITION}, {token}, is not in the vocabulary, 0 to {greatest}" in result.output
