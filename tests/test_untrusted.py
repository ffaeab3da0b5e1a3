"""Text from outside: what is shown of it, what is hidden, and how it reaches a shell."""

from __future__ import annotations

import ast
import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from nanoset_core.errors import ConfigError, MissingError, combined, one_line
from nanoset_core.untrusted import (
    Multiline,
    markdown_text,
    safe_logger,
    shell_line,
    shell_word,
    visible,
    visible_json,
    visible_value,
    without_secrets,
)

ROOT = Path(__file__).parents[1]
STEERING = [
    "\x1b[2J",
    "\x9b31m",
    "a\nb",
    "a\rb",
    "\x07",
    "\u2028",
    "\u202e",
    "\u2066",
    "\u200b",
    "\ufeff",
    "\u00ad",
]
STEERING += ["\U000e0041", "\u3164", "\udc9b", "\x7f", "\x85"]
"""Each steers a terminal, ends a line, turns the direction of writing, or cannot be seen."""
SECRETS = [
    "s3://AKIA:s3cret@bucket/key",
    "s3://AKIA:s3cr/et+s3cret@bucket/key",
    "ftp://user:s3cret@host/file",
    "sftp://user:p@s3cret@host/file",
    "HTTPS://user:s3cret@host/file",
    "Http://s3cret@host",
    "tcp://user:s3cret@host:8786",
    "proxy //user:s3cret@host:3128",
    "simplecache::ftp://user:s3cret@host/file",
    "https://h/f?X-Amz-Signature=s3cret&X-Amz-Date=2020",
    "https://h/f?x=1&X-Amz-Security-Token=s3cret",
    "https://h/f?X-AMZ-CREDENTIAL=s3cret/2020",
    "https://h/f?X-Goog-Signature=s3cret",
    "https://acc.blob.core.windows.net/c/f?sv=2020&sig=s3cret%3D&se=1",
    "https://h/f?token=s3cret",
    "https://h/f?Access_Token=s3cret#top",
    "https://h/f?api_key=s3cret",
    "https://h/f?key=s3cret",
    "https://h/f#access_token=s3cret",
    "DefaultEndpointsProtocol=https;AccountKey=s3cret==",
    "Authorization: Bearer s3cret0123456789",
]
PLAIN = [
    "s3://bucket/key",
    "tcp://scheduler:8786/a@b",
    "http://[::1]:9000/x",
    "abfs://container@account.dfs.core.windows.net/x",
    "hf://datasets/org/name@main/file",
    "https://h/f?sha256=00ff&X-Amz-Date=2020",
    "sha256=0123456789abcdef",
    "a@b.org",
    "corpus/file.jsonl:12",
    "<|im_start|>",
]


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_what_steers_a_terminal_is_escaped(text):
    assert visible(text).isprintable()
    assert len(visible(text).splitlines()) == 1


def test_text_that_can_be_seen_stays():
    text = "naïve 漢字 🙂 <b>[red]|x|</b> C:\\n"
    assert visible(text) == text


def test_own_line_ends_stay_and_nothing_else_does():
    assert visible(Multiline("a\n\tb\x1b[1m\r")) == "a\n\tb\\x1b[1m\\r"


@pytest.mark.parametrize("text", SECRETS)
def test_passwords_tokens_and_signatures_are_hidden(text):
    assert "s3cr" not in without_secrets(text)
    assert "s3cr" not in visible(f"cannot read {text!r}, nor {text}: no")


@pytest.mark.parametrize("text", PLAIN)
def test_addresses_without_secrets_and_digests_stay(text):
    assert without_secrets(text) == text


def test_hiding_twice_changes_nothing():
    assert [without_secrets(without_secrets(text)) for text in SECRETS] == list(
        map(without_secrets, SECRETS)
    )


@pytest.mark.parametrize("text", STEERING, ids=ascii)
def test_json_stays_the_same_value_and_shows_no_steering_character(text):
    shown = visible_json(json.dumps({text: [text]}, ensure_ascii=False))
    assert shown.isprintable()
    assert json.loads(shown) == {text: [text]}


def test_values_to_be_printed_hold_no_secrets():
    assert "s3cr" not in json.dumps(
        visible_value({SECRETS[0]: [SECRETS[1], {"a": (SECRETS[9], 1, None)}]})
    )


@pytest.mark.parametrize(
    "text", ["<|im_start|>", "$(touch x)", "a b", "it's", "`x`", "a\nb", "\x1b[1m'\\", "\udcff", ""]
)
def test_a_word_for_a_shell_is_that_word_and_one_line(text):
    line = shell_line("printf", "%s", text)
    assert line.isprintable()
    said = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert said == text.encode("utf-8", "surrogateescape")


def test_a_plain_word_for_a_shell_is_not_quoted():
    assert shell_word("/data/nanosets/web-1.0") == "/data/nanosets/web-1.0"


def test_markdown_shows_text_as_it_is():
    shown = markdown_text("[a](http://b) | **c** <img src=x> `d`\n# e")
    for character in "[](|*<`#":
        assert all(shown[at - 1] == "\\" for at, found in enumerate(shown) if found == character)


def test_errors_escape_names_and_hide_secrets_in_every_part():
    text = "\x1b[1m\nremedy: run rm -rf\u202e ftp://u:s3cret@h"
    error = ConfigError(text, where=text, found=text, expected=text, remedy=text)
    assert len(str(error).splitlines()) == 4
    assert all(line.isprintable() for line in str(error).splitlines())
    parts = [
        str(error),
        one_line(error),
        error.what,
        error.where,
        error.found,
        error.expected,
        error.remedy,
    ]
    assert not [part for part in parts if "s3cret" in part]


def test_an_error_with_several_mistakes_keeps_its_lines():
    listed = combined(
        [ConfigError("first", where="a"), ConfigError("second\nx", where="b")], "file"
    )
    assert str(listed).splitlines() == [
        "file: 2 mistakes:",
        "  a: first",
        "  b: second\\nx",
        "  remedy: correct each of them",
    ]


def test_an_exception_of_a_library_is_one_line():
    assert one_line(OSError("a\n  b\x1b")) == "a b\\x1b"


def test_log_records_are_safe_whatever_prints_them(caplog):
    safe_logger("nanoset_core.hostile").warning(
        "%s: no answer from %s", "ftp://u:s3cret@h", "\x1b]0;x\n"
    )
    assert caplog.messages == ["ftp://…@h: no answer from \\x1b]0;x\\n"]
    assert safe_logger("nanoset_core.hostile") is logging.getLogger("nanoset_core.hostile")


def test_paths_in_errors_from_workers_stay_safe():
    error = MissingError("gone", where="/scratch/a\x1b").with_places("/scratch", "s3://bucket")
    assert str(error) == "s3://bucket/a\\x1b: gone"


PRINTING = {
    *("nanoset_core/cli/echo.py", "nanoset_core/cli/terminal.py", "nanoset_core/cli/progress.py"),
    "nanoset_core/stages/handoff/preflight.py",
    *(
        "nanoset_core/config.py",
        "nanoset_core/shuffling.py",
        "nanoset_core/stages/pbin/settings.py",
    ),
}
"""`echo` itself, tables, JSON, bars, and a script that runs without this package: each makes
visible what it prints.

The last three warn of names that are deprecated.
"""


def calls(path: Path) -> Iterator[tuple[int, str]]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call):
            yield node.lineno, ast.unparse(node.func)


def test_nothing_prints_or_logs_but_by_the_functions_that_make_text_visible():
    printing = {
        "print",
        "click.echo",
        "click.secho",
        "console.print",
        "sys.stdout.write",
        "sys.stderr.write",
    }
    printing |= {"logging.getLogger(__name__)", "warnings.warn"}
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: {name}"
        for package in ("nanoset_core", "nanoset_assets")
        for path in sorted((ROOT / package).rglob("*.py"))
        if path.relative_to(ROOT).as_posix() not in PRINTING
        for line, name in calls(path)
        if name in printing
    ]
    assert wrong == []
