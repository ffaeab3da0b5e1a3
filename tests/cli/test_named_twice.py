"""Commands refuse an input that is named in two ways, as they refuse it under one name twice."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from helpers.command import invoke_nanoset, run_nanoset
from helpers.sample_pairs import write_pair
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.errors import NanosetError
from nanoset_core.stages.pbin.conversion import write_dataset_as_pbin

SPELLINGS = [
    pytest.param("a", id="the same name"),
    pytest.param("./a", id="from the current folder"),
    pytest.param("e/../a", id="through another folder"),
    pytest.param("{folder}/a", id="absolute"),
    pytest.param("d/a", id="through a linked folder"),
    pytest.param("symbolic", id="symbolic link"),
    pytest.param("hard", id="hard link"),
]
"""Names of the input `a`; `{folder}` stands for the current folder."""
SPELLINGS_OF_OTHER_FILES = SPELLINGS[2:]
"""Those that differ from `a` by more than a leading `./`."""


@pytest.fixture
def folder(tmp_path, monkeypatch, tokenizer_file) -> Path:
    """The current folder, with a pair, a text and a .pbin named a, each under several names."""
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


@pytest.fixture(params=SPELLINGS)
def second_name(request, folder) -> str:
    """Another name of the input `a`, or the same one again."""
    return request.param.format(folder=folder)


def refusal(*arguments: object) -> str:
    """Run `nanoset`, and return the message of the error that it raises."""
    result = invoke_nanoset(arguments)
    assert result.exit_code == 1, result.output
    assert isinstance(result.exception, NanosetError)
    return str(result.exception)


# Datasets


def test_map_refuses_a_dataset_that_is_named_twice(second_name):
    message = refusal(
        "map", "--data-path", "a", second_name, "--seq-length", 8, "--split", "1,0,0", "--plan"
    )

    assert "a dataset is named twice" in message
    assert "--data-path" in message


def test_map_refuses_a_dataset_that_is_named_twice_with_weights(second_name):
    blend = ["0.5", "a", "0.5", second_name]

    message = refusal("map", "--data-path", *blend, "--seq-length", 8, "--split", "1,0,0", "--plan")

    assert "a dataset is named twice" in message
    assert "--data-path" in message


def test_map_refuses_a_dataset_that_is_named_twice_in_a_file_of_arguments(second_name):
    Path("args").write_text(f"0.5 a 0.5 {second_name}")

    message = refusal("map", "--data-args-path", "args", "--seq-length", 8, "--plan")

    assert "a dataset is named twice" in message


def test_map_refuses_a_dataset_that_is_named_twice_in_a_file_of_splits(second_name):
    blends = {"train": ["a", second_name], "valid": None, "test": None}
    Path("splits.json").write_text(json.dumps(blends))

    message = refusal(
        "map", "--per-split-data-args-path", "splits.json", "--seq-length", 8, "--plan"
    )

    assert "a dataset is named twice" in message


def test_one_dataset_may_be_train_and_valid(folder):
    run_nanoset(
        "map", "--train-data-path", "a", "--valid-data-path", "./a", "--seq-length", 8, "--plan"
    )


def test_shuffle_refuses_a_dataset_that_is_named_twice(second_name):
    message = refusal("shuffle", "--input", "a", second_name, "--output", "tars", "--seqlen", 8)

    assert "a dataset is named twice" in message


@pytest.mark.parametrize("link", [os.symlink, os.link], ids=["symbolic", "hard"])
def test_merge_refuses_a_folder_with_two_names_of_a_dataset(folder, link):
    Path("pairs").mkdir()
    for ending in ("bin", "idx"):
        os.rename(f"a.{ending}", f"pairs/a.{ending}")
        link(folder / f"pairs/a.{ending}", f"pairs/b.{ending}")

    message = refusal("merge", "--input", "pairs", "--output-prefix", "o")

    assert "documents would be joined twice" in message
    assert "pairs/a and pairs/b" in message


def test_merge_joins_views_that_share_their_tokens(folder):
    # Two indexes with other documents of the same tokens, as `nanoset` writes them for views.
    Path("pairs").mkdir()
    write_pair("pairs/a", [10] * 20)
    write_pair("pairs/b", [100, 100])
    Path("pairs/b.bin").unlink()
    os.link("pairs/a.bin", "pairs/b.bin")

    result = run_nanoset("merge", "--input", "pairs", "--output-prefix", "o")

    assert "22 documents" in result.output


# Text


@pytest.mark.parametrize(
    "spelling", [*SPELLINGS, pytest.param("file://{folder}/a", id="address of a file")]
)
@pytest.mark.parametrize(
    "command",
    [
        pytest.param(
            "tokenize --tokenizer tokenizer.json --output-prefix o/x --input", id="tokenize"
        ),
        pytest.param(
            f"shuffle --tokenizer tokenizer.json --eod {EOD} --output tars --input", id="shuffle"
        ),
        pytest.param(f"pbin --tokenizer tokenizer.json --eod {EOD} --output o.pbin", id="pbin"),
    ],
)
def test_text_that_is_named_twice_is_refused(folder, command, spelling):
    second_name = f"{spelling.format(folder=folder)}.jsonl"

    assert "a file is named twice" in refusal(*command.split(), "a.jsonl", second_name)


def test_a_folder_with_a_link_to_one_of_its_files_is_refused(folder):
    Path("raw").mkdir()
    os.link("a.jsonl", "raw/x.jsonl")
    os.symlink("x.jsonl", "raw/y.jsonl")

    message = refusal(
        "tokenize", "--input", "raw", "--output-prefix", "o/x", "--tokenizer", "tokenizer.json"
    )

    assert "raw/x.jsonl" in message
    assert "raw/y.jsonl" in message


# Packed files

PBIN_COMMANDS = [
    pytest.param("merge", id="merge"),
    pytest.param("shuffle --seed 1 --chunk 0 --chunks 1", id="shuffle"),
]


@pytest.mark.parametrize("spelling", SPELLINGS_OF_OTHER_FILES)
@pytest.mark.parametrize("command", PBIN_COMMANDS)
def test_pbin_refuses_a_pbin_that_is_named_in_two_ways(folder, command, spelling):
    second_name = f"{spelling.format(folder=folder)}.pbin"

    message = refusal("pbin", *command.split(), "a.pbin", second_name, "-o", "o.pbin")

    assert "a file is named twice" in message


@pytest.mark.parametrize("command", PBIN_COMMANDS)
def test_pbin_repeats_a_pbin_that_is_named_twice_in_one_way_and_says_so(folder, command):
    result = run_nanoset("pbin", *command.split(), "a.pbin", "a.pbin", "-o", "o.pbin")

    assert "40 documents" in result.stdout
    assert "notice: a.pbin is read 2 times, since it is named that many times" in result.stderr
