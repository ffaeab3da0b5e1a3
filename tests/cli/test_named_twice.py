"""Commands refuse an input that is named in two ways, as they refuse it under one name twice."""

import json
import os
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.sample_pairs import write_pair
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.cli import nanoset
from nanoset_core.errors import NanosetError
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin

SPELLINGS = ["a", "./a", "e/../a", "{folder}/a", "d/a", "symbolic", "hard"]


@pytest.fixture
def folder(tmp_path, monkeypatch, tokenizer_file):
    """A current folder with the pair, the text, the tar and the .pbin a, each under several names."""
    monkeypatch.chdir(tmp_path)
    shutil.copyfile(tokenizer_file, "tokenizer.json")
    write_pair("a", [10] * 20)
    Path("a.jsonl").write_bytes(jsonl(sentences("a", 20)))
    write_dataset_as_pbin(Path("a"), Path("a.pbin"))
    Path("d").symlink_to(".")
    Path("e").mkdir()
    for ending in ("bin", "idx", "jsonl", "pbin"):
        os.symlink(f"a.{ending}", f"symbolic.{ending}")
        os.link(f"a.{ending}", f"hard.{ending}")
    return tmp_path


def refusal(*words):
    result = CliRunner().invoke(nanoset, list(map(str, words)))
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, NanosetError)
    return str(result.exception)


@pytest.mark.parametrize("spelling", SPELLINGS)
@pytest.mark.parametrize("weights", [True, False])
def test_map_refuses_a_dataset_that_is_named_twice(folder, spelling, weights):
    names = ["a", spelling.format(folder=folder)]
    words = ["0.5", names[0], "0.5", names[1]] if weights else names
    said = refusal("map", "--data-path", *words, "--seq-length", 8, "--split", "1,0,0", "--plan")
    assert "a dataset is named twice" in said
    assert "--data-path" in said


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_map_refuses_it_in_files_of_arguments(folder, spelling):
    names = ["a", spelling.format(folder=folder)]
    Path("args").write_text(" ".join(f"0.5 {name}" for name in names))
    Path("splits.json").write_text(json.dumps({"train": names, "valid": None, "test": None}))
    for words in (["--data-args-path", "args"], ["--per-split-data-args-path", "splits.json"]):
        assert "a dataset is named twice" in refusal("map", *words, "--seq-length", 8, "--plan")


def test_one_dataset_may_be_train_and_valid(folder):
    words = ["--train-data-path", "a", "--valid-data-path", "./a", "--seq-length", "8", "--plan"]
    assert CliRunner().invoke(nanoset, ["map", *words]).exit_code == 0


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_shuffle_refuses_a_dataset_that_is_named_twice(folder, spelling):
    words = ["--input", "a", spelling.format(folder=folder), "--output", "tars", "--seqlen", 8]
    assert "a dataset is named twice" in refusal("shuffle", *words)


@pytest.mark.parametrize("spelling", [*SPELLINGS, "file://{folder}/a"])
@pytest.mark.parametrize(
    "command",
    [
        "tokenize --tokenizer tokenizer.json --output-prefix o/x --input",
        f"shuffle --tokenizer tokenizer.json --eod {EOD} --output tars --input",
        f"pbin --tokenizer tokenizer.json --eod {EOD} --output o.pbin",
    ],
    ids=["tokenize", "shuffle", "pbin"],
)
def test_text_that_is_named_twice_is_refused(folder, command, spelling):
    said = refusal(*command.split(), "a.jsonl", f"{spelling.format(folder=folder)}.jsonl")
    assert "a file is named twice" in said


def test_a_folder_with_a_link_to_one_of_its_files_is_refused(folder):
    Path("raw").mkdir()
    os.link("a.jsonl", "raw/x.jsonl")
    os.symlink("x.jsonl", "raw/y.jsonl")
    said = refusal(
        "tokenize", "--input", "raw", "--output-prefix", "o/x", "--tokenizer", "tokenizer.json"
    )
    assert "raw/x.jsonl" in said
    assert "raw/y.jsonl" in said


@pytest.mark.parametrize(
    "spelling", [spelling for spelling in SPELLINGS if spelling not in ("a", "./a")]
)
@pytest.mark.parametrize("command", ["merge", "shuffle --seed 1 --chunk 0 --chunks 1"])
def test_pbin_refuses_a_pbin_that_is_named_in_two_ways(folder, command, spelling):
    said = refusal(
        "pbin", *command.split(), "a.pbin", f"{spelling.format(folder=folder)}.pbin", "-o", "o.pbin"
    )
    assert "a file is named twice" in said


@pytest.mark.parametrize("command", ["merge", "shuffle --seed 1 --chunk 0 --chunks 1"])
def test_pbin_repeats_a_pbin_that_is_named_twice_under_one_name_and_says_so(folder, command):
    result = CliRunner().invoke(
        nanoset, ["pbin", *command.split(), "a.pbin", "a.pbin", "-o", "o.pbin"]
    )
    assert result.exit_code == 0, result.output
    assert "40 documents" in result.stdout
    assert "notice: a.pbin is read 2 times, since it is named that many times" in result.stderr


@pytest.mark.parametrize("link", ["symbolic", "hard"])
def test_merge_refuses_a_folder_with_two_names_of_a_dataset(folder, link):
    Path("pairs").mkdir()
    for ending in ("bin", "idx"):
        os.rename(f"a.{ending}", f"pairs/a.{ending}")
        (os.link if link == "hard" else os.symlink)(
            folder / f"pairs/a.{ending}", f"pairs/b.{ending}"
        )
    said = refusal("merge", "--input", "pairs", "--output-prefix", "o")
    assert "documents would be joined twice" in said
    assert "pairs/a and pairs/b" in said


def test_merge_joins_views_that_share_their_tokens(folder):
    Path("pairs").mkdir()
    write_pair("pairs/a", [10] * 20)
    write_pair("pairs/b", [100, 100])
    Path("pairs/b.bin").unlink()
    os.link("pairs/a.bin", "pairs/b.bin")
    result = CliRunner().invoke(nanoset, ["merge", "--input", "pairs", "--output-prefix", "o"])
    assert result.exit_code == 0, result.output
    assert "22 documents" in result.output
