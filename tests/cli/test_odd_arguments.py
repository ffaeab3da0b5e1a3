"""Arguments that nobody means: each gives an error that says what is wrong, and none an internal
one.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from helpers.sample_project import CONFIG, write_raw
from nanoset_core.cli import nanoset
from nanoset_core.cli.entry import message
from nanoset_core.cli.terminal import print_json, print_rows
from nanoset_core.stages.report import Finding

NOT_UTF_8 = "\udcff"
TOKENIZE = ["tokenize", "--input", "raw/books", "--tokenizer", "tokenizer.json", "--output-prefix"]
CASES = [
    ["map", "--data-path", "http://[::1", "--seq-length", "16", "--plan"],
    ["map", "--data-path", "s3://key:s3cret@bucket/x", "--seq-length", "16", "--plan"],
    ["pbin", "write", "raw/books", "--output", ""],
    ["pack", "repair", ""],
    ["pbin", "raw-index", ""],
    ["purge", NOT_UTF_8],
    ["purge", "\x1b]0;x\x07\u202e"],
    [*TOKENIZE, ""],
    [*TOKENIZE, NOT_UTF_8],
    [*TOKENIZE, "o/x", "--bos", NOT_UTF_8],
    [*TOKENIZE, "~nobody-of-that-name/x"],
    ["verify", "/"],
    ["inspect", "/"],
    ["inspect", "reference://x"],
    ["inspect", "HTTPS://me:s3cret@host/x"],
    ["status", "-c", "\x1b[2J"],
    ["no\x1b[31m-such-command"],
]


@pytest.fixture
def project(tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "nanoset.yaml").write_text(CONFIG)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    write_raw(tmp_path / "raw")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", CASES, ids=ascii)
def test_an_odd_argument_gives_a_proper_message(project, arguments):
    outcome = CliRunner().invoke(nanoset, arguments)
    said = (
        outcome.output
        if isinstance(outcome.exception, SystemExit | None)
        else message(outcome.exception)
    )
    assert "internal error" not in said
    assert "s3cret" not in said
    assert said.strip()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("raw: reference://x", "no place of its own"),
        ("raw: simplecache://x", "no place of its own"),
        ("raw: ~nobody-of-that-name/raw", "home folder"),
        ("raw: ftp://me:s3cret@host/raw", "user's name or password"),
        ("raw: s3://key:s3/cret@bucket/raw", "user's name or password"),
        ("raw: HTTPS://me:s3cret@host/raw", "user's name or password"),
        ("raw: sftp://me:s3cret@host/raw", "user's name or password"),
        ("raw: https://host/raw?X-Amz-Signature=s3cret", "a query"),
        ("raw: abfs://c@a/raw?sig=s3cret", "a query"),
    ],
)
@pytest.mark.parametrize("command", ["status", "verify", "map"])
def test_places_that_cannot_be_read_are_mistakes_of_the_configuration(
    project, command, line, words
):
    (project / "nanoset.yaml").write_text(CONFIG.replace("raw: raw", line))
    outcome = CliRunner().invoke(nanoset, [command])
    said = message(outcome.exception)
    assert words in said
    assert "s3cret" not in said
    assert "s3/cret" not in said
    assert "internal error" not in said


HOSTILE = "id\x1b[2J\x9b31m\nFAKE: done\u202e\u200b[red]|[x](http://h)"


@pytest.mark.parametrize("style", [None, "red"])
def test_a_table_shows_foreign_text_as_it_is_in_one_line(capsys, style):
    print_rows([{"document": HOSTILE if style is None else (HOSTILE, style)}])
    said = capsys.readouterr().out
    assert "id\\x1b[2J\\x9b31m\\nFAKE: done\\u202e\\u200b[red]|[x](http://h)" in said


def test_json_shows_foreign_text_escaped_and_unchanged(capsys):
    print_json({"id": HOSTILE, "url": "ftp://me:s3cret@host"}, ensure_ascii=False)
    said = capsys.readouterr().out
    assert all(line.isprintable() for line in said.splitlines())
    assert json.loads(said) == {"id": HOSTILE, "url": "ftp://…@host"}


def test_a_finding_shows_foreign_text_in_one_line_each():
    finding = Finding("error", "datasets/web", HOSTILE, HOSTILE, HOSTILE, HOSTILE, HOSTILE)
    assert [line.isprintable() for line in str(finding).splitlines()] == [True] * 5
