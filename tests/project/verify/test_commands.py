"""`nanoset explain` and `nanoset verify` as they are typed."""

from __future__ import annotations

import json

import numpy as np
import pytest

from helpers.command import invoke_nanoset
from nanoset_core import MMapIndexedDatasetBuilder
from nanoset_core.errors import ConfigError, MissingError


def run(*arguments, code=0):
    outcome = invoke_nanoset(arguments, catch_exceptions=False)
    assert outcome.exit_code == code, outcome.output
    return outcome.output


@pytest.fixture
def config(built):
    return "--config", built / "nanoset.yaml"


def test_explain_a_sample(config):
    text = run("explain", "pretrain", "train", 3, *config)
    assert text.startswith("pretrain train sample 3, which is sample ")
    assert "33 tokens from" in text
    assert "source: '" in text
    value = json.loads(run("explain", "pretrain", "train", 3, "--json", *config))
    origin = value["pieces"][0]["origin"]
    assert f"{origin['corpus']}/{origin['file']}:{origin['line']}" in text


def test_explain_a_document(config):
    text = run("explain", "pretrain", "train", "--document", "web-77", *config)
    assert text.startswith("1 document found\nweb/part-0/web-1.jsonl:18 (byte ")
    assert "train sample " in text
    text = run(
        "explain",
        "pretrain",
        "train",
        "--file",
        "part-0/web-1.jsonl",
        "--line",
        18,
        "--show",
        1,
        *config,
    )
    assert "… and 1 more sample (--show)" in text
    value = json.loads(
        run("explain", "pretrain", "train", "--document", "code-119", "--json", *config)
    )
    assert "belongs to the test split" in value[0]["reason"]


def test_explain_takes_the_place_that_it_prints(config):
    expected = run(
        "explain", "pretrain", "train", "--file", "part-0/web-1.jsonl", "--line", 18, *config
    )
    assert expected.startswith("1 document found\nweb/part-0/web-1.jsonl:18 (byte ")
    places = ["web/part-0/web-1.jsonl:18", "part-0/web-1.jsonl:18"]
    for place in places:
        assert run("explain", "pretrain", "train", "--file", place, *config) == expected
    assert (
        run(
            "explain",
            "pretrain",
            "train",
            "--file",
            "web/part-0/web-1.jsonl",
            "--line",
            18,
            *config,
        )
        == expected
    )
    assert (
        run("explain", "pretrain", "train", "--file", places[0], "--corpus", "web", *config)
        == expected
    )
    with pytest.raises(MissingError, match="no such document"):
        run("explain", "pretrain", "train", "--file", places[0], "--corpus", "code", *config)
    with pytest.raises(MissingError, match="the line was rejected"):
        run("explain", "pretrain", "train", "--file", "web/part-0/web-0.jsonl:64", *config)
    with pytest.raises(ConfigError, match="a file alone names no document"):
        run("explain", "pretrain", "train", "--file", "web/part-0/web-1.jsonl", *config)


def test_explain_needs_one_question(config):
    assert "give a SAMPLE, or a document" in run("explain", "pretrain", "train", *config, code=2)
    for given in (["--document", "a"], ["--corpus", "web"]):
        assert "not both" in run("explain", "pretrain", "train", 3, *given, *config, code=2)
    with pytest.raises(MissingError, match="no such document"):
        run("explain", "pretrain", "train", "--document", "nobody", *config)


def test_verify_a_project(config, copy):
    text = run("verify", *config)
    assert "11 outputs" not in text
    assert "0 errors, 1 warning" in text, "of a line that is no JSON"
    reports = json.loads(run("verify", "--select", "pretrain/train", "--deep", "--json", *config))
    assert [(report["output"], report["passed"]) for report in reports] == [
        ("nanosets/pretrain/train", True)
    ]
    project = copy()
    next(project.outputs.folder.glob("webdatasets/shuffled/*/shard-00000002.tar")).unlink()
    text = run("verify", "-s", "shuffled", "-c", project.config.file, code=1)
    assert "error: webdatasets/shuffled: a file is missing" in text
    assert "remedy: run `nanoset build --force`" in text


def test_verify_a_prefix(tmp_path, tokenizer_file):
    builder = MMapIndexedDatasetBuilder(tmp_path / "data", np.uint16)
    builder.add_document(np.array([5, 6, 0], np.uint16), [3])
    builder.add_document(np.array([5, 6], np.uint16), [2])
    builder.finalize()
    assert "0 errors" in run("verify", tmp_path / "data", "--tokenizer", tokenizer_file)
    text = run(
        "verify", tmp_path / "data", "--tokenizer", tokenizer_file, "--eod", "<|endoftext|>", code=1
    )
    assert "a sequence does not begin and end with the tokens that it should" in text
    assert "--select is for projects" in run("verify", tmp_path / "data", "--select", "a", code=2)


def test_verify_what_tokenize_left(tmp_path, tokenizer_file):
    source = tmp_path / "a.jsonl"
    source.write_text('{"text": "the data"}\n{"text": "a model"}\n')
    arguments = (
        "--input",
        source,
        "--output-prefix",
        tmp_path / "out",
        "--tokenizer",
        tokenizer_file,
        "--workers",
        1,
    )
    run("tokenize", *arguments, "--append-eod", "--eod", "<|endoftext|>")
    prefix = tmp_path / "out_text_document"
    assert "0 errors" in run("verify", prefix, "--deep")
    content = bytearray(prefix.with_name("out_text_document.bin").read_bytes())
    content[-2:] = b"\x07\x00"
    prefix.with_name("out_text_document.bin").write_bytes(content)
    text = run("verify", prefix, "--deep", code=1)
    assert "a sequence does not begin and end" in text
    assert "a file has other bytes than when it was written" in text


def test_a_split_that_is_not_built_is_one_finding(built, tmp_path):
    config = tmp_path / "nanoset.yaml"
    config.write_text(
        (built / "nanoset.yaml").read_text().replace("root: data", f"root: {tmp_path}/data")
    )
    for name in ("raw", "tokenizer.json"):
        (tmp_path / name).symlink_to(built / name)
    shown = run("verify", "--select", "pretrain/train", "--config", config, code=1)
    assert "1 output: 1 error" in shown
