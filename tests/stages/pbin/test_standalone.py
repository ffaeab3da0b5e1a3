"""A .pbin is written from text or from an indexed dataset, without a project."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest

from helpers.pbin_files import GOLDEN, read_documents
from helpers.sample_project import EOD
from nanoset_core import MMapIndexedDatasetBuilder, PackedDataset
from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.formats.pbin.writing import PbinCounts
from nanoset_core.stages.pbin import standalone
from nanoset_core.stages.pbin.conversion import model_vocab_size
from nanoset_core.stages.pbin.standalone import PbinOptions, PbinResult, make_pbin_once

TOKENIZER = GOLDEN / "tokenizer"
END_TOKEN = "<|endoftext|>"


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The path of a .pbin."""
    return tmp_path / "x.pbin"


def text_options(**options: Any) -> PbinOptions:
    """Return the options with which Modalities packed the golden files, and others."""
    return PbinOptions(**({"tokenizer": TOKENIZER, "workers": 1} | options))


def write_pbin_of(inputs: Sequence[object], target: Path, options: PbinOptions) -> PbinResult:
    """Write a .pbin, and return the result of the call."""
    result, _is_new = make_pbin_once(
        [str(name) for name in inputs], target, options, overwrite=True
    )
    return result


def encode(tokenizer_file: Path, text: str) -> list[int]:
    """Return the tokens of a text."""
    from tokenizers import Tokenizer

    tokens: list[int] = Tokenizer.from_file(str(tokenizer_file)).encode(text).ids
    return tokens


# Text


@pytest.mark.parametrize("name", ["docs", "edge"])
def test_text_gives_the_bytes_of_modalities(target, name):
    result = write_pbin_of([GOLDEN / f"{name}.jsonl"], target, text_options())

    golden_path = GOLDEN / f"{name}.pbin"
    dataset = PackedDataset(golden_path)
    assert target.read_bytes() == golden_path.read_bytes()
    assert result == PbinResult(PbinCounts(len(dataset), len(dataset.tokens), token_bytes=2))
    assert not target.with_name("x_rejects.jsonl").exists()


def test_a_line_that_is_not_json_is_rejected_and_the_others_are_written(target):
    options = text_options(max_rejected_fraction=0.5)

    result = write_pbin_of([GOLDEN / "bad-json.jsonl"], target, options)

    assert target.read_bytes() == (GOLDEN / "bad-json.drop-faulty.pbin").read_bytes()
    assert result.rejected == 1
    assert result.rejects == target.with_name("x_rejects.jsonl")
    (line,) = result.rejects.read_text().splitlines()
    assert json.loads(line)["line"] == 2


def test_the_rejected_lines_of_an_earlier_call_are_removed(target):
    write_pbin_of([GOLDEN / "bad-json.jsonl"], target, text_options(max_rejected_fraction=0.5))

    write_pbin_of([GOLDEN / "edge.jsonl"], target, text_options())

    assert not target.with_name("x_rejects.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "n_left_out", "n_rejected"),
    [
        pytest.param("drops-empty", 1, 0, id="empty text"),
        pytest.param("drops-missing", 0, 1, id="no text"),
    ],
)
def test_a_document_without_text_is_left_out_and_the_others_are_written(
    target, name, n_left_out, n_rejected
):
    """Modalities loses the whole batch of such a document."""
    path = GOLDEN / f"{name}.jsonl"

    result = write_pbin_of([path], target, text_options(max_rejected_fraction=0.5))

    rows = [json.loads(line) for line in path.read_text().splitlines()]
    texts = [row["text"] for row in rows if row.get("text")]
    assert len(texts) == 6
    end_id = 0
    expected = [[*encode(TOKENIZER / "tokenizer.json", text), end_id] for text in texts]
    assert read_documents(target) == expected
    assert result.counts.left_out == n_left_out
    assert result.rejected == n_rejected


def test_the_present_folder_is_a_folder_of_text(tmp_path, monkeypatch, tokenizer_file):
    (tmp_path / "a.jsonl").write_text('{"text": "one"}\n')
    monkeypatch.chdir(tmp_path)
    options = PbinOptions(tokenizer=tokenizer_file, eod=EOD, workers=1)

    result = write_pbin_of(["."], Path("x.pbin"), options)

    assert result.counts.documents == 1


# Special tokens


@pytest.fixture
def byte_tokenizer(tmp_path: Path) -> Path:
    """A tokenizer.json with 256 bytes and two added tokens, of which each text begins with one."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<s>", END_TOKEN])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 256), (END_TOKEN, 257)]
    )
    path = tmp_path / "tokenizer.json"
    tokenizer.save(str(path))
    return path


def test_documents_have_the_special_tokens_that_the_tokenizer_adds(
    tmp_path, target, byte_tokenizer
):
    text = tmp_path / "a.jsonl"
    text.write_text('{"body": "ab"}\n{"body": ""}\n{"body": "c<|endoftext|>"}\n')
    options = text_options(tokenizer=byte_tokenizer, eod=END_TOKEN, key="body")

    result = write_pbin_of([text], target, options)

    start_id = 256
    end_id = 257
    id_a, id_b, id_c = (encode(byte_tokenizer, letter)[1] for letter in "abc")
    assert read_documents(target) == [
        [start_id, id_a, id_b, end_id],
        [start_id, end_id],
        [start_id, id_c, end_id],
    ]
    # Modalities would take one byte a token, by the size of the model's vocabulary, and lose every
    # document.
    assert model_vocab_size(byte_tokenizer) == 256
    assert result.counts == PbinCounts(documents=3, tokens=9, token_bytes=2)


# A call that was killed


def test_a_killed_call_is_resumed_with_the_tokens_that_it_had_made(tmp_path, target, monkeypatch):
    options = text_options(scratch=tmp_path / "scratch")

    def interrupt(*_args: object, **_options: object) -> NoReturn:
        raise KeyboardInterrupt

    # The first call is killed after it has tokenized the text.
    with monkeypatch.context() as patch:
        patch.setattr(standalone, "write_dataset_as_pbin", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_pbin_of([GOLDEN / "docs.jsonl"], target, options)
    (tokens_file,) = options.scratch.glob(".x.pbin-*.packing/*.bin")
    first_change_time = tokens_file.stat().st_mtime_ns

    # The second call notes when the tokens that it converts were written.
    change_times = []
    write_dataset_as_pbin = standalone.write_dataset_as_pbin

    def note_change_time(prefix: object, *args: Any, **options: Any) -> PbinCounts:
        change_times.append(os.stat(f"{prefix}.bin").st_mtime_ns)
        return write_dataset_as_pbin(prefix, *args, **options)

    monkeypatch.setattr(standalone, "write_dataset_as_pbin", note_change_time)
    write_pbin_of([GOLDEN / "docs.jsonl"], target, options)

    assert change_times == [first_change_time]
    assert target.read_bytes() == (GOLDEN / "docs.pbin").read_bytes()
    assert list(options.scratch.iterdir()) == []


# An indexed dataset


@pytest.fixture
def pair(tmp_path: Path) -> Path:
    """The prefix of an indexed dataset of three documents, with tokens of four bytes."""
    prefix = tmp_path / "pair"
    with MMapIndexedDatasetBuilder(prefix, np.int32) as builder:
        for document in ([5, 6], [7, 0], [8]):
            builder.add_document(document, [len(document)])
    return prefix


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_a_dataset_is_converted_with_tokens_of_the_same_size(target, pair, ending):
    write_pbin_of([f"{pair}{ending}"], target, PbinOptions())

    assert read_documents(target) == [[5, 6], [7, 0], [8]]
    assert PackedDataset(target).token_bytes == 4


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_end_tokens_are_added_to_documents_of_a_dataset_that_lack_them(target, pair, ending):
    write_pbin_of([f"{pair}{ending}"], target, text_options(append_eod=True))

    assert read_documents(target) == [[5, 6, 0], [7, 0], [8, 0]]
    assert PackedDataset(target).token_bytes == 2  # by the vocabulary of the tokenizer


def test_a_notice_says_that_an_end_token_is_not_added_to_a_dataset(target, pair):
    result = write_pbin_of([pair], target, text_options(eod=EOD))

    assert read_documents(target) == [[5, 6], [7, 0], [8]]
    (notice,) = result.notices
    assert f"--eod {EOD!r} has no effect without --append-eod" in notice


@pytest.mark.parametrize("ending", ["", ".bin", ".idx"])
def test_tokens_of_a_dataset_get_the_size_that_a_vocabulary_needs(target, pair, ending):
    write_pbin_of([f"{pair}{ending}"], target, PbinOptions(vocab_size=256))

    assert PackedDataset(target).token_bytes == 1


# Calls that are refused


def test_text_needs_a_tokenizer(target):
    with pytest.raises(ConfigError, match="--tokenizer: no tokenizer is named"):
        write_pbin_of([GOLDEN / "docs.jsonl"], target, PbinOptions())


def test_end_tokens_of_a_dataset_need_a_tokenizer(target, pair):
    with pytest.raises(ConfigError, match="--tokenizer: no tokenizer is named"):
        write_pbin_of([pair], target, PbinOptions(append_eod=True))


def test_a_dataset_and_text_are_not_converted_together(target, pair):
    with pytest.raises(ConfigError, match="one dataset is converted at a time"):
        write_pbin_of([pair, GOLDEN / "docs.jsonl"], target, text_options())


def test_a_pbin_is_not_converted(target):
    with pytest.raises(ConfigError, match=r"u1\.pbin: this is a .pbin already"):
        write_pbin_of([GOLDEN / "u1.pbin"], target, text_options())


def test_a_missing_input_is_reported(tmp_path, target):
    with pytest.raises(MissingError, match="no such file"):
        write_pbin_of([tmp_path / "none"], target, text_options())


def test_an_end_token_that_the_tokenizer_does_not_have_is_refused(target):
    with pytest.raises(ConfigError, match="--eod"):
        write_pbin_of([GOLDEN / "docs.jsonl"], target, text_options(eod="<|none|>"))
