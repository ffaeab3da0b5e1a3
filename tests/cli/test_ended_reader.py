"""A command finishes its work, with its usual exit code, if nobody reads its output any more."""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest

from helpers.building import build_all
from helpers.child_processes import start_forked
from helpers.command import output_of
from helpers.locations import REPOSITORY
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.cli import main, nanoset


def run_without_reader(*arguments: str, stdout: int | None = None) -> tuple[int, str]:
    """Run `nanoset` as in `nanoset … | head -0`; return its exit code and what stderr got.

    Args:
        arguments: Words after `nanoset`.
        stdout: Descriptor to print to instead.
    """
    read_end, write_end = os.pipe()
    os.close(read_end)
    outcome = subprocess.run(
        [sys.executable, "-m", "nanoset_core.cli", *arguments],
        env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
        stdout=write_end if stdout is None else stdout,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(write_end)
    return outcome.returncode, outcome.stderr


def run_forked_without_reader(folder: Path, *arguments: str) -> tuple[int | None, str]:
    """Do the same in a process that has imported Dagster already.

    Args:
        folder: Takes a file of what the command prints to stderr.
        arguments: Words after `nanoset`.
    """
    reader, writer = multiprocessing.Pipe(duplex=False)
    reader.close()
    process = start_forked(
        *arguments, "--config", folder / "nanoset.yaml", output=folder / ".stderr", stdout=writer
    )
    process.join()
    return process.exitcode, (folder / ".stderr").read_text()


@pytest.fixture
def project(tmp_path, tokenizer_file, monkeypatch) -> Path:
    """The folder of a project of one corpus, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw" / "web").mkdir(parents=True)
    (tmp_path / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("web", 40)))
    (tmp_path / "nanoset.yaml").write_text(
        f'raw: raw\nroot: data\ntokenizer: {{path: {tokenizer_file}, eod: "{EOD}"}}\n'
        "documents: {id_key: id}\n"
        'nanosets: {pretrain: {blend: web, sequence_length: 16, split: "1,0,0"}}\n'
    )
    return tmp_path


def test_a_build_whose_output_is_not_read_succeeds(project):
    code, stderr = run_forked_without_reader(project, "build")

    assert code == 0, stderr
    assert run_without_reader("status") == (0, "")


def test_commands_keep_their_exit_code_if_their_output_is_not_read(project):
    # Nothing is built yet.
    assert run_without_reader("status") == (1, "")
    assert run_without_reader("--help") == (0, "")


def test_a_purge_whose_list_is_not_read_erases_the_documents(project):
    build_all(project / "nanoset.yaml")

    code, stderr = run_forked_without_reader(project, "purge", "web-1", "--yes")

    assert code == 0, stderr
    assert "web-1: erased" in output_of("purge", "web-1")


def test_a_full_disk_is_still_an_error(project):
    with open("/dev/full", "wb") as full:
        code, stderr = run_without_reader("status", stdout=full.fileno())

    assert code == 1
    assert stderr.startswith("error: standard output: the disk is full")


def test_another_broken_pipe_is_an_error_with_a_message(monkeypatch, capsys):
    @click.command()
    def broken() -> None:
        raise BrokenPipeError(32, "Broken pipe")

    monkeypatch.setattr(nanoset, "get_command", lambda context, name: broken)

    with pytest.raises(SystemExit) as end:
        main(["broken"])

    assert end.value.code == 1
    assert "a pipe or a connection is broken" in capsys.readouterr().err
