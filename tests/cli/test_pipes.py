"""A named pipe where any file should be: an error, and not a command that waits for ever."""

from __future__ import annotations

import os
import re
import signal

import pytest
from click.testing import CliRunner

from helpers.building import build_all
from helpers.sample_project import EOD, jsonl, sentences
from nanoset_core.cli import nanoset
from nanoset_core.errors import NanosetError

COMMANDS = (
    ["status"],
    ["verify"],
    ["explain", "pretrain", "train", "0"],
)


def one_of_each_kind(folder):
    """Files whose names differ in more than numbers and digests, the first of each."""
    kinds = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and not path.is_symlink() and ".in-use" not in path.parts:
            name = re.sub(r"[0-9a-f]{16,}|[0-9]+", "#", path.relative_to(folder).as_posix())
            kinds.setdefault(
                re.sub(r"(datasets|shards|nanosets|webdatasets|inventories)/[^/]+", r"\1", name),
                path,
            )
    return list(kinds.values())


def hung(number, frame):
    pytest.fail("it waits for a writer")


def test_no_command_waits_for_a_writer(tmp_path, tokenizer_file, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "raw" / "web").mkdir(parents=True)
    (tmp_path / "raw" / "web" / "a.jsonl").write_bytes(jsonl(sentences("web", 40)))
    (tmp_path / "nanoset.yaml").write_text(
        f'raw: raw\nroot: data\ntokenizer: {{path: {tokenizer_file}, eod: "{EOD}"}}\n'
        'nanosets: {pretrain: {blend: web, sequence_length: 16, split: "1,0,0", trainer_path: '
        "/data}}\n"
        "webdatasets: {shuffled: {corpora: [web], sequence_length: 16}}\n"
    )
    build_all(tmp_path / "nanoset.yaml")
    found = [
        *one_of_each_kind(tmp_path / "data"),
        tmp_path / "nanoset.yaml",
        tmp_path / "raw/web/a.jsonl",
    ]
    assert len(found) > 20
    before = signal.signal(signal.SIGALRM, hung)
    refused = 0
    try:
        for path in found:
            content = path.read_bytes()
            path.unlink()
            os.mkfifo(path)
            signal.alarm(30)
            for command in COMMANDS:
                outcome = CliRunner().invoke(nanoset, command)
                error = outcome.exception
                assert error is None or isinstance(error, NanosetError | SystemExit), (
                    path,
                    command,
                    error,
                )
                refused += outcome.exit_code != 0
            signal.alarm(0)
            path.unlink(missing_ok=True)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)
    assert refused > 30
