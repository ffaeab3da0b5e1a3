"""The commands that need no Dagster, as typed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.building import build_all
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.cli import main, nanoset
from nanoset_core.project.status import project_status

ROOT = str(Path(__file__).parents[2])


def run(*arguments):
    outcome = CliRunner().invoke(
        nanoset, [str(argument) for argument in arguments], catch_exceptions=False
    )
    assert outcome.exit_code == 0, outcome.output
    return outcome.output


def test_init_says_what_it_found_and_its_first_build_succeeds(tmp_path, tokenizer_file):
    for corpus, count in (("web", 3), ("code", 30)):
        (tmp_path / "raw" / corpus).mkdir(parents=True)
        (tmp_path / "raw" / corpus / "a.jsonl").write_bytes(jsonl(sentences(corpus, count)))
    (tmp_path / "raw/web/notes.txt").touch()
    (tmp_path / "raw/c4").mkdir()
    said = run("init", tmp_path)
    assert "found web: 1 file, " in said
    assert "found code: 1 file, " in said
    assert "notice: web: 1 file is not read: 1 .txt (notes.txt)" in said
    assert "not read: c4: a folder in which nothing is read: it is empty" in said
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    project = build_all(tmp_path / "nanoset.yaml")
    assert {row.state for row in project_status(project)} == {"up to date", "not read"}


def test_init_again_where_nothing_was_edited(tmp_path):
    """As after Ctrl-C in the moment when it was written."""
    assert f"wrote {tmp_path}/nanoset.yaml, which names no corpus" in run("init", tmp_path)
    before = (tmp_path / "nanoset.yaml").stat()
    assert f"nothing was changed: {tmp_path}/nanoset.yaml" in run("init", tmp_path)
    assert (tmp_path / "nanoset.yaml").stat() == before
    with (tmp_path / "nanoset.yaml").open("a") as file:
        file.write("# mine\n")
    outcome = CliRunner().invoke(nanoset, ["init", str(tmp_path)])
    assert "there is a configuration already" in str(outcome.exception)
    (tmp_path / "nanoset.yaml").unlink()
    (tmp_path / "nanoset.yaml").mkdir()
    assert "there is a configuration already" in str(
        CliRunner().invoke(nanoset, ["init", str(tmp_path)]).exception
    )


def started(folder, *words, **streams):
    """Run a command in a process of its own."""
    command = [sys.executable, "-m", "nanoset_core.cli", *map(str, words)]
    return subprocess.run(command, cwd=folder, env=os.environ | {"PYTHONPATH": ROOT}, **streams)


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_closed_streams_are_no_outputs(tmp_path, closed):
    """Without a stdout, the first file that is opened would be it."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(sentences("web", 5)))
    words = ("pbin", "raw-index", "a.jsonl")
    assert (
        started(
            tmp_path, *words, preexec_fn=lambda: [os.close(number) for number in closed]
        ).returncode
        == 0
    )
    run("pbin", "raw-index", tmp_path / "a.jsonl", "--output", tmp_path / "b.idx")
    assert (tmp_path / "a.idx").read_bytes() == (tmp_path / "b.idx").read_bytes()


def test_words_that_cannot_be_written_to_standard_error_are_lost_and_no_work(
    tmp_path, tokenizer_file
):
    """As when the disk of a log is full."""
    (tmp_path / "a.jsonl").write_bytes(jsonl(sentences("web", 5)))
    words = (
        "tokenize",
        "--input",
        "a.jsonl",
        "--tokenizer",
        tokenizer_file,
        "--eod",
        EOD,
        "--output-prefix",
        "x",
    )
    with open("/dev/full", "wb") as full:
        assert started(tmp_path, *words, stdout=subprocess.DEVNULL, stderr=full).returncode == 0
    assert (tmp_path / "x_text_document.idx").exists()


def test_import_parquet(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = sentences("web", 7)
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert "7 rows of 1 files" in run(
        "import-parquet", tmp_path / "a.parquet", "--output", tmp_path / "a.jsonl"
    )
    assert [json.loads(line) for line in (tmp_path / "a.jsonl").read_bytes().splitlines()] == rows
    run(
        "import-parquet",
        tmp_path / "a.parquet",
        "--output",
        tmp_path / "b.jsonl",
        "--columns",
        "text",
    )
    assert list(json.loads((tmp_path / "b.jsonl").read_bytes().splitlines()[0])) == ["text"]


def test_our_errors_are_text_and_exit_1(tmp_path, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["inspect", str(tmp_path / "nothing")])
    assert stopped.value.code == 1
    said = capsys.readouterr().err
    assert said.startswith("error: ")
    assert "Traceback" not in said
