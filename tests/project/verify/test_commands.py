"""`nanoset explain` and `nanoset verify`, as users type them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError, MissingError

FILE = "part-0/web-1.jsonl"
"""A file of the corpus web."""
LINE = 18
"""The line of the document web-77 in this file."""


def run(*arguments: object, code: int = 0) -> str:
    """Run a command, expect an exit code, and return what it prints."""
    outcome = invoke_nanoset(arguments, catch_exceptions=False)
    assert outcome.exit_code == code, outcome.output
    return outcome.output


@pytest.fixture
def explain(built):
    """A function that runs `nanoset explain` on the training data, and returns what it prints."""

    def explain_train(*arguments: object, code: int = 0) -> str:
        config = built / "nanoset.yaml"
        return run("explain", "pretrain", "train", *arguments, "--config", config, code=code)

    return explain_train


# A sample


def test_a_sample_is_explained_with_the_source_of_its_tokens(explain):
    text = explain(3)

    assert text.startswith("pretrain train sample 3, which is sample ")
    assert "33 tokens from" in text
    assert "source: '" in text


def test_json_names_the_same_lines_of_raw_text_as_the_text(explain):
    text = explain(3)

    value = json.loads(explain(3, "--json"))

    origin = value["pieces"][0]["origin"]
    assert f"{origin['corpus']}/{origin['file']}:{origin['line']}" in text


# A document


def test_a_document_is_found_by_its_id_with_its_samples(explain):
    text = explain("--document", "web-77")

    assert text.startswith(f"1 document found\nweb/{FILE}:{LINE} (byte ")
    assert "train sample " in text


def test_only_the_requested_number_of_samples_is_printed(explain):
    text = explain("--file", FILE, "--line", LINE, "--show", 1)

    assert "… and 1 more sample (--show)" in text


def test_a_document_of_another_split_has_a_reason_why_it_has_no_samples(explain):
    documents = json.loads(explain("--document", "code-119", "--json"))

    assert "belongs to the test split" in documents[0]["reason"]


@pytest.fixture
def explanation(explain) -> str:
    """The explanation of the document at LINE of FILE."""
    text = explain("--file", FILE, "--line", LINE)
    assert text.startswith(f"1 document found\nweb/{FILE}:{LINE} (byte ")
    return text


@pytest.mark.parametrize(
    "arguments",
    [
        ["--file", f"web/{FILE}:{LINE}"],
        ["--file", f"{FILE}:{LINE}"],
        ["--file", f"web/{FILE}", "--line", LINE],
        ["--file", f"web/{FILE}:{LINE}", "--corpus", "web"],
    ],
)
def test_a_document_is_found_by_the_place_that_was_printed(explain, explanation, arguments):
    assert explain(*arguments) == explanation


def test_a_line_of_another_corpus_is_not_found(explain):
    with pytest.raises(MissingError, match="no such document"):
        explain("--file", f"web/{FILE}:{LINE}", "--corpus", "code")


def test_a_line_that_was_rejected_is_not_found_for_this_reason(explain):
    with pytest.raises(MissingError, match="the line was rejected"):
        explain("--file", "web/part-0/web-0.jsonl:64")


def test_a_file_without_a_line_is_refused(explain):
    with pytest.raises(ConfigError, match="a file alone names no document"):
        explain("--file", f"web/{FILE}")


def test_an_id_that_no_document_has_is_not_found(explain):
    with pytest.raises(MissingError, match="no such document"):
        explain("--document", "nobody")


def test_neither_a_sample_nor_a_document_is_a_wrong_use(explain):
    assert "give a SAMPLE, or a document" in explain(code=2)


@pytest.mark.parametrize("arguments", [["--document", "a"], ["--corpus", "web"]])
def test_both_a_sample_and_a_document_are_a_wrong_use(explain, arguments):
    assert "not both" in explain(3, *arguments, code=2)


# A project


def test_verify_reports_the_number_of_errors_and_warnings(built):
    text = run("verify", "--config", built / "nanoset.yaml")

    assert "11 outputs" not in text
    # The warning is of a line that is no JSON.
    assert "0 errors, 1 warning" in text


def test_json_has_a_report_for_each_selected_output(built):
    text = run(
        "verify",
        "--select",
        "pretrain/train",
        "--deep",
        "--json",
        "--config",
        built / "nanoset.yaml",
    )

    [report] = json.loads(text)
    assert report["output"] == "nanosets/pretrain/train"
    assert report["passed"] is True


def test_verify_reports_a_missing_file_with_a_remedy(copy):
    project = copy()
    tars = project.outputs.folder / "webdatasets" / "shuffled" / "current"
    (tars / "shard-00000002.tar").unlink()

    text = run("verify", "-s", "shuffled", "-c", project.config.file, code=1)

    assert "error: webdatasets/shuffled: a file is missing" in text
    # A build makes the file again: with --force, it would also rebuild everything else.
    assert "remedy: run `nanoset build`\n" in text


def test_a_split_that_is_not_built_is_one_error(built, tmp_path):
    settings = (built / "nanoset.yaml").read_text()
    config = tmp_path / "nanoset.yaml"
    config.write_text(settings.replace("root: data", f"root: {tmp_path}/data"))
    for name in ("raw", "tokenizer.json"):
        (tmp_path / name).symlink_to(built / name)

    text = run("verify", "--select", "pretrain/train", "--config", config, code=1)

    assert "1 output: 1 error" in text


# A dataset


@pytest.fixture
def pair(tmp_path) -> Path:
    """The prefix of a dataset whose second document does not end with the end token."""
    prefix = tmp_path / "data"
    with MMapIndexedDatasetBuilder(prefix, np.uint16) as builder:
        builder.add_document(np.array([5, 6, 0], np.uint16), [3])
        builder.add_document(np.array([5, 6], np.uint16), [2])
    return prefix


def test_a_dataset_of_tokens_in_the_vocabulary_has_no_errors(pair, tokenizer_file):
    assert "0 errors" in run("verify", pair, "--tokenizer", tokenizer_file)


def test_a_document_without_the_given_end_token_is_an_error(pair, tokenizer_file):
    arguments = ["--tokenizer", tokenizer_file, "--eod", "<|endoftext|>"]

    text = run("verify", pair, *arguments, code=1)

    assert "a sequence does not begin and end with the tokens that it should" in text


def test_no_project_in_a_folder_above_is_looked_for_to_verify_a_dataset(pair, monkeypatch):
    (pair.parent / "nanoset.yaml").touch()
    subfolder = pair.parent / "subfolder"
    subfolder.mkdir()
    monkeypatch.chdir(subfolder)

    assert "nanoset.yaml" not in run("verify", pair)  # it would be named on standard error


def test_outputs_cannot_be_selected_in_a_dataset(pair):
    assert "--select is for projects" in run("verify", pair, "--select", "a", code=2)


@pytest.fixture
def tokenized_pair(tmp_path, tokenizer_file) -> Path:
    """The prefix of a dataset that `nanoset tokenize` has written."""
    text = tmp_path / "a.jsonl"
    text.write_text('{"text": "the data"}\n{"text": "a model"}\n')
    options: list[Any] = ["--tokenizer", tokenizer_file, "--workers", 1]
    options += ["--append-eod", "--eod", "<|endoftext|>"]
    run("tokenize", "--input", text, "--output-prefix", tmp_path / "out", *options)
    return tmp_path / "out_text_document"


def test_a_dataset_of_tokenize_has_no_errors(tokenized_pair):
    assert "0 errors" in run("verify", tokenized_pair, "--deep")


def test_a_changed_token_in_a_dataset_of_tokenize_is_an_error(tokenized_pair):
    token_file = tokenized_pair.with_name("out_text_document.bin")
    content = bytearray(token_file.read_bytes())
    content[-2:] = b"\x07\x00"
    token_file.write_bytes(content)

    text = run("verify", tokenized_pair, "--deep", code=1)

    assert "a sequence does not begin and end" in text
    assert "a file has other bytes than when it was written" in text
