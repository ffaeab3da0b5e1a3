"""Commands refuse a named pipe in place of any file, and do not wait for its writer."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import Result

from helpers.building import build_all
from helpers.command import invoke_nanoset
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.errors import NanosetError

COMMANDS = (
    ["status"],
    ["verify"],
    ["explain", "pretrain", "train", "0"],
)
SECONDS = 30
"""After this time, commands that meet a pipe are assumed to wait for its writer."""

NUMBER_OR_DIGEST = re.compile(r"[0-9a-f]{16,}|[0-9]+")
NAMED_FOLDER = re.compile(r"(datasets|shards|nanosets|webdatasets|inventories)/[^/]+")


def kind_of(name: str) -> str:
    """Return the name of an output's file without numbers, digests, and the output's own name."""
    without_numbers = NUMBER_OR_DIGEST.sub("#", name)
    return NAMED_FOLDER.sub(r"\1", without_numbers)


def one_file_of_each_kind(folder: Path) -> list[Path]:
    """Return the first of the files below a folder that differ only in numbers and digests."""
    path_by_kind: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        # The files of leases come and go with each command.
        is_lease = ".in-use" in path.parts
        if path.is_file() and not path.is_symlink() and not is_lease:
            kind = kind_of(path.relative_to(folder).as_posix())
            path_by_kind.setdefault(kind, path)
    return list(path_by_kind.values())


@contextmanager
def time_limit() -> Iterator[None]:
    """Fail the test if the block takes longer than SECONDS."""

    def fail(number, frame):
        pytest.fail("the command waits for a writer of the pipe")

    previous_handler = signal.signal(signal.SIGALRM, fail)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous_handler)


def run_with_pipe_at(path: Path) -> list[Result]:
    """Run COMMANDS while a named pipe takes the place of a file; return their outcomes."""
    content = path.read_bytes()
    path.unlink()
    os.mkfifo(path)
    with time_limit():
        outcomes = [invoke_nanoset(command) for command in COMMANDS]

    # A command may have deleted the pipe with its folder.
    path.unlink(missing_ok=True)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return outcomes


@pytest.fixture
def built_project(tmp_path, tokenizer_file, monkeypatch) -> Path:
    """The folder of a built project of one corpus, which is the current folder."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw" / "web").mkdir(parents=True)
    (tmp_path / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("web", 40)))
    (tmp_path / "nanoset.yaml").write_text(
        "raw: raw\n"
        "root: data\n"
        f'tokenizer: {{path: {tokenizer_file}, eod: "{EOD}"}}\n'
        "nanosets:\n"
        '  pretrain: {blend: web, sequence_length: 16, split: "1,0,0", trainer_path: /data}\n'
        "webdatasets:\n"
        "  shuffled: {corpora: [web], sequence_length: 16}\n"
    )
    build_all(tmp_path / "nanoset.yaml")
    return tmp_path


def test_no_command_waits_for_the_writer_of_a_named_pipe(built_project):
    files = [
        *one_file_of_each_kind(built_project / "data"),
        built_project / "nanoset.yaml",
        built_project / "raw" / "web" / "a.jsonl",
    ]
    assert len(files) > 20

    n_refusals = 0
    for path in files:
        for command, outcome in zip(COMMANDS, run_with_pipe_at(path), strict=True):
            error = outcome.exception
            is_expected = error is None or isinstance(error, NanosetError | SystemExit)
            assert is_expected, (path, command, error)
            n_refusals += outcome.exit_code != 0

    # Not every command reads every file, but the pipes that were read must have been refused.
    assert n_refusals > 30
