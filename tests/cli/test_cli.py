"""Commands that need no Dagster, as users type them: `init`, `import-parquet`, streams and errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from helpers.building import build_all
from helpers.command import invoke_nanoset, output_of
from helpers.locations import REPOSITORY
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.cli import main
from nanoset_core.project.status import project_status


@pytest.fixture
def raw_text(tmp_path) -> Path:
    """A folder with two corpora in `raw`, and with files and a folder that are not read."""
    for corpus, n_documents in [("web", 3), ("code", 30)]:
        folder = tmp_path / "raw" / corpus
        folder.mkdir(parents=True)
        (folder / "a.jsonl").write_bytes(jsonl(sentences(corpus, n_documents)))
    (tmp_path / "raw/web/notes.txt").touch()
    (tmp_path / "raw/c4").mkdir()
    return tmp_path


def test_init_lists_the_corpora(raw_text):
    output = output_of("init", raw_text)

    assert "found web: 1 file, " in output
    assert "found code: 1 file, " in output


def test_init_names_files_and_folders_that_are_not_read(raw_text):
    output = output_of("init", raw_text)

    assert "notice: web: 1 file is not read: 1 .txt (notes.txt)" in output
    assert "not read: c4: a folder in which nothing is read: it is empty" in output


def test_the_first_build_after_init_succeeds(raw_text, tokenizer_file):
    output_of("init", raw_text)
    (raw_text / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())

    project = build_all(raw_text / "nanoset.yaml")

    assert {row.state for row in project_status(project)} == {"up to date", "not read"}


def test_init_without_text_writes_a_configuration_that_names_no_corpus(tmp_path):
    output = output_of("init", tmp_path)

    assert f"wrote {tmp_path}/nanoset.yaml, which names no corpus" in output


def test_init_does_not_write_a_configuration_again_that_was_not_edited(tmp_path):
    # As after Ctrl-C in the moment when the file was written.
    output_of("init", tmp_path)
    status_before = (tmp_path / "nanoset.yaml").stat()

    output = output_of("init", tmp_path)

    assert f"nothing was changed: {tmp_path}/nanoset.yaml" in output
    assert (tmp_path / "nanoset.yaml").stat() == status_before


def test_init_refuses_to_replace_a_configuration_that_was_edited(tmp_path):
    output_of("init", tmp_path)
    with (tmp_path / "nanoset.yaml").open("a") as file:
        file.write("# mine\n")

    outcome = invoke_nanoset(["init", tmp_path])

    assert "there is a configuration already" in str(outcome.exception)


def test_init_refuses_to_replace_a_folder_with_the_name_of_the_configuration(tmp_path):
    (tmp_path / "nanoset.yaml").mkdir()

    outcome = invoke_nanoset(["init", tmp_path])

    assert "there is a configuration already" in str(outcome.exception)


def run_in_process(folder: Path, *arguments: object, **options: Any) -> int:
    """Run `nanoset` in a folder, in a process of its own, and return its exit code."""
    command = [sys.executable, "-m", "nanoset_core.cli", *map(str, arguments)]
    environment = os.environ | {"PYTHONPATH": str(REPOSITORY)}
    return subprocess.run(command, cwd=folder, env=environment, **options).returncode


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 1, 2)])
def test_a_command_writes_its_file_although_standard_streams_are_closed(tmp_path, closed):
    # The first file that a program opens has the lowest free descriptor. Without precautions, what
    # the program prints would be written to this file.
    (tmp_path / "a.jsonl").write_bytes(jsonl(sentences("web", 5)))

    def close_streams() -> None:
        for descriptor in closed:
            os.close(descriptor)

    code = run_in_process(tmp_path, "pbin", "raw-index", "a.jsonl", preexec_fn=close_streams)

    assert code == 0
    output_of("pbin", "raw-index", tmp_path / "a.jsonl", "--output", tmp_path / "b.idx")
    assert (tmp_path / "a.idx").read_bytes() == (tmp_path / "b.idx").read_bytes()


def test_a_command_finishes_its_work_if_it_cannot_write_to_standard_error(tmp_path, tokenizer_file):
    # As if the disk with its log were full.
    (tmp_path / "a.jsonl").write_bytes(jsonl(sentences("web", 5)))
    arguments = ["--input", "a.jsonl", "--tokenizer", tokenizer_file, "--eod", EOD]
    arguments += ["--output-prefix", "x"]

    with open("/dev/full", "wb") as full:
        code = run_in_process(
            tmp_path, "tokenize", *arguments, stdout=subprocess.DEVNULL, stderr=full
        )

    assert code == 0
    assert (tmp_path / "x_text_document.idx").exists()


def test_a_command_says_if_the_current_folder_was_deleted(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "deleted"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.rmdir()

    with pytest.raises(SystemExit) as exit_request:
        main(["status"])

    assert exit_request.value.code == 1
    assert "the current folder does not exist any more" in capsys.readouterr().err


ROWS = sentences("web", 7)


@pytest.fixture
def parquet_file(tmp_path) -> Path:
    """A Parquet file of some documents."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), file)
    return file


def test_import_parquet_writes_all_columns_of_each_row(tmp_path, parquet_file):
    target = tmp_path / "a.jsonl"

    output = output_of("import-parquet", parquet_file, "--output", target)

    assert "7 rows of 1 files" in output
    assert [json.loads(line) for line in target.read_bytes().splitlines()] == ROWS


def test_import_parquet_writes_only_the_named_columns(tmp_path, parquet_file):
    target = tmp_path / "b.jsonl"

    output_of("import-parquet", parquet_file, "--output", target, "--columns", "text")

    first_row = json.loads(target.read_bytes().splitlines()[0])
    assert list(first_row) == ["text"]


def test_an_error_of_ours_is_a_message_without_a_traceback_and_exit_code_1(tmp_path, capsys):
    with pytest.raises(SystemExit) as exit_request:
        main(["inspect", str(tmp_path / "nothing")])

    assert exit_request.value.code == 1
    stderr = capsys.readouterr().err
    assert stderr.startswith("error: ")
    assert "Traceback" not in stderr
