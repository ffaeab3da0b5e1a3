"""Commands answer strange arguments and hostile text with messages that are safe to print.

A message is never an internal error, shows no password, and cannot steer the terminal.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import pytest
from click.testing import Result

from helpers.command import invoke_nanoset
from helpers.sample_project import CONFIG, write_raw
from nanoset_core.cli.entry import message
from nanoset_core.cli.terminal import StyledText, print_json, print_rows
from nanoset_core.stages.report import Finding

NOT_UTF_8 = "\udcff"
"""An argument of the byte 0xff, as Python decodes it."""

TOKENIZE = ["tokenize", "--input", "raw/books", "--tokenizer", "tokenizer.json", "--output-prefix"]
STRANGE_ARGUMENTS = [
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

UNREADABLE_LOCATIONS = [
    {"line": "raw: reference://x", "reason": "no place of its own"},
    {"line": "raw: simplecache://x", "reason": "no place of its own"},
    {"line": "raw: ~nobody-of-that-name/raw", "reason": "home folder"},
    {"line": "raw: ftp://me:s3cret@host/raw", "reason": "user's name or password"},
    {"line": "raw: s3://key:s3/cret@bucket/raw", "reason": "user's name or password"},
    {"line": "raw: HTTPS://me:s3cret@host/raw", "reason": "user's name or password"},
    {"line": "raw: sftp://me:s3cret@host/raw", "reason": "user's name or password"},
    {"line": "raw: https://host/raw?X-Amz-Signature=s3cret", "reason": "a query"},
    {"line": "raw: abfs://c@a/raw?sig=s3cret", "reason": "a query"},
]
"""A line of nanoset.yaml each, and words of the message that refuses it."""

HOSTILE = "id\x1b[2J\x9b31m\nFAKE: done\u202e\u200b[red]|[x](http://h)"
"""Text of a document that clears the screen, sets colours, forges a line and turns text around."""

HOSTILE_ESCAPED = "id\\x1b[2J\\x9b31m\\nFAKE: done\\u202e\\u200b[red]|[x](http://h)"
"""The same text as a table shows it."""


@pytest.fixture
def project(tmp_path: Path, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a project that was never built, which is the current folder."""
    (tmp_path / "nanoset.yaml").write_text(CONFIG)
    (tmp_path / "tokenizer.json").write_bytes(tokenizer_file.read_bytes())
    write_raw(tmp_path / "raw")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def text_for_user(outcome: Result) -> str:
    """Return what the user reads: the message of an error, or else what the command printed."""
    # Click prints the message of a wrong use itself, and then exits.
    if outcome.exception is None or isinstance(outcome.exception, SystemExit):
        return outcome.output
    return message(outcome.exception)


@pytest.mark.parametrize("arguments", STRANGE_ARGUMENTS, ids=ascii)
@pytest.mark.usefixtures("project")
def test_a_strange_argument_gives_no_internal_error_and_shows_no_password(arguments):
    text = text_for_user(invoke_nanoset(arguments))

    assert "internal error" not in text
    assert "s3cret" not in text
    assert text.strip()


def test_too_little_memory_for_the_process_itself_names_no_place():
    assert message(RuntimeError("can't start new thread")).startswith("there is not enough memory")


def test_after_an_unknown_error_the_user_runs_again(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the traceback is written there

    text = message(KeyError("web"))

    assert "run again: what is finished is kept; if the error occurs again, report it" in text


def test_after_a_failed_import_the_user_checks_the_installation(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))  # the traceback is written there

    text = message(ImportError("cannot import name 'stages'"))

    assert "pip check" in text
    assert "run again" not in text


@pytest.mark.parametrize("case", UNREADABLE_LOCATIONS, ids=lambda case: case["line"])
@pytest.mark.parametrize("command", ["status", "verify", "map"])
def test_a_location_that_cannot_be_read_is_refused_without_its_password(project, command, case):
    (project / "nanoset.yaml").write_text(CONFIG.replace("raw: raw", case["line"]))

    text = message(invoke_nanoset([command]).exception)

    assert case["reason"] in text
    assert "s3cret" not in text
    assert "s3/cret" not in text
    assert "internal error" not in text


@pytest.mark.parametrize(
    "cell",
    [
        pytest.param(HOSTILE, id="plain text"),
        pytest.param(StyledText(HOSTILE, "red"), id="styled text"),
    ],
)
def test_a_table_shows_hostile_text_escaped_in_one_line(capsys, cell):
    print_rows([{"document": cell}])

    assert HOSTILE_ESCAPED in capsys.readouterr().out


def test_json_output_is_printable_and_keeps_hostile_text(capsys):
    value = {"id": HOSTILE, "url": "https://host/item?code=12"}
    print_json(value, ensure_ascii=False)

    output = capsys.readouterr().out
    assert all(line.isprintable() for line in output.splitlines())
    assert json.loads(output) == value


def test_each_hostile_field_of_a_finding_is_printed_in_one_line():
    finding = Finding(
        "error",
        "datasets/web",
        what=HOSTILE,
        where=HOSTILE,
        found=HOSTILE,
        expected=HOSTILE,
        remedy=HOSTILE,
    )

    lines = str(finding).splitlines()

    assert len(lines) == 5
    assert all(line.isprintable() for line in lines)
