"""Text from outside is shown without control characters and secrets.

It reaches a shell as one word, and Markdown as plain text.
"""

from __future__ import annotations

import ast
import json
import logging
import re
import subprocess
from collections.abc import Iterator

import pytest

from helpers.locations import REPOSITORY
from nanoset_core.errors import ConfigError, MissingError, combined, one_line
from nanoset_core.untrusted import (
    Multiline,
    escaped,
    markdown_text,
    safe_logger,
    shell_line,
    shell_word,
    shortened,
    visible,
    visible_json,
    without_secrets,
)

CONTROLS = [
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
    "\U000e0041",
    "\u3164",
    "\udc9b",
    "\x7f",
    "\x85",
]
"""Each controls a terminal, ends a line, changes the direction of writing, or is invisible."""
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
"""Each contains a secret that begins with s3cr."""
WITHOUT_SECRETS = [
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


def test_a_long_text_is_cut_after_some_characters_with_a_mark():
    assert shortened("a long story", 6) == "a long…"


def test_a_text_that_is_short_enough_is_not_cut():
    assert shortened("a story", 7) == "a story"


@pytest.mark.parametrize("text", CONTROLS, ids=ascii)
def test_what_controls_a_terminal_is_escaped(text):
    shown = visible(text)

    assert shown.isprintable()
    assert len(shown.splitlines()) == 1


def test_visible_text_does_not_change():
    text = "naïve 漢字 🙂 <b>[red]|x|</b> C:\\n"

    assert visible(text) == text


def test_in_text_of_several_lines_only_the_ends_of_lines_and_tabs_do_not_change():
    assert visible(Multiline("a\n\tb\x1b[1m\r")) == "a\n\tb\\x1b[1m\\r"


@pytest.mark.parametrize("text", SECRETS)
def test_passwords_tokens_and_signatures_are_hidden(text):
    assert "s3cr" not in without_secrets(text)
    assert "s3cr" not in visible(f"cannot read {text!r}, nor {text}: no")


@pytest.mark.parametrize("text", WITHOUT_SECRETS)
def test_addresses_without_secrets_and_digests_do_not_change(text):
    assert without_secrets(text) == text


@pytest.mark.parametrize("text", SECRETS)
def test_hiding_secrets_twice_is_the_same_as_once(text):
    hidden = without_secrets(text)

    assert without_secrets(hidden) == hidden


@pytest.mark.parametrize("text", CONTROLS, ids=ascii)
def test_json_remains_the_same_value_without_control_characters(text):
    shown = visible_json(json.dumps({text: [text]}, ensure_ascii=False))

    assert shown.isprintable()
    assert json.loads(shown) == {text: [text]}


@pytest.mark.parametrize("text", SECRETS)
def test_results_are_shown_in_full(text):
    assert escaped(text) == text
    assert escaped(f"{text}\x1b[1m") == f"{text}\\x1b[1m"


@pytest.mark.parametrize(
    "text", ["<|im_start|>", "$(touch x)", "a b", "it's", "`x`", "a\nb", "\x1b[1m'\\", "\udcff", ""]
)
def test_a_shell_reads_text_as_one_word_of_one_line(text):
    line = shell_line("printf", "%s", text)

    assert line.isprintable()
    output = subprocess.run(["bash", "-c", line], capture_output=True, check=True).stdout
    assert output == text.encode("utf-8", "surrogateescape")


def test_a_plain_word_for_a_shell_is_not_quoted():
    assert shell_word("/data/nanosets/web-1.0") == "/data/nanosets/web-1.0"


def test_markdown_shows_text_as_it_is():
    shown = markdown_text("[a](http://b) | **c** <img src=x> `d`\n# e")

    for position, character in enumerate(shown):
        if character in "[](|*<`#":
            assert shown[position - 1] == "\\"


HOSTILE_TEXT = "\x1b[1m\nremedy: run rm -rf\u202e ftp://u:s3cret@h"


@pytest.fixture
def hostile_error() -> ConfigError:
    """An error, each part of which has control characters, the end of a line, and a secret."""
    return ConfigError(
        HOSTILE_TEXT,
        where=HOSTILE_TEXT,
        found=HOSTILE_TEXT,
        expected=HOSTILE_TEXT,
        remedy=HOSTILE_TEXT,
    )


def test_an_error_has_a_printable_line_for_each_of_its_parts(hostile_error):
    lines = str(hostile_error).splitlines()

    assert len(lines) == 4
    for line in lines:
        assert line.isprintable()


def test_an_error_hides_secrets_in_every_part(hostile_error):
    parts = [
        str(hostile_error),
        one_line(hostile_error),
        hostile_error.what,
        hostile_error.where,
        hostile_error.found,
        hostile_error.expected,
        hostile_error.remedy,
    ]

    for part in parts:
        assert "s3cret" not in part


def test_an_error_with_several_mistakes_has_a_line_for_each():
    mistakes = [ConfigError("first", where="a"), ConfigError("second\nx", where="b")]

    error = combined(mistakes, "file")

    assert str(error).splitlines() == [
        "file: 2 mistakes:",
        "  a: first",
        "  b: second\\nx",
        "  remedy: correct each of them",
    ]


def test_an_exception_of_a_library_is_one_line():
    assert one_line(OSError("a\n  b\x1b")) == "a b\\x1b"


def test_log_messages_are_safe_whichever_handler_prints_them(caplog):
    logger = safe_logger("nanoset_core.hostile")

    logger.warning("%s: no answer from %s", "ftp://u:s3cret@h", "\x1b]0;x\n")

    assert caplog.messages == ["ftp://…@h: no answer from \\x1b]0;x\\n"]


def test_a_log_message_of_several_lines_keeps_its_lines(caplog):
    logger = safe_logger("nanoset_core.hostile")

    logger.warning(Multiline("nanoset.yaml is not loaded:\n  found: \x1b]0;x"))

    assert caplog.messages == ["nanoset.yaml is not loaded:\n  found: \\x1b]0;x"]


def test_a_safe_logger_is_the_logger_of_that_name():
    assert safe_logger("nanoset_core.hostile") is logging.getLogger("nanoset_core.hostile")


def test_paths_in_errors_from_workers_are_safe():
    error = MissingError("gone", where="/scratch/a\x1b")

    relocated_error = error.with_places("/scratch", "s3://bucket")

    assert str(relocated_error) == "s3://bucket/a\\x1b: gone"


PRINTING_MODULES = {
    # `echo` itself, tables, and bars: they make text visible before they print it.
    "nanoset_core/cli/echo.py",
    "nanoset_core/cli/terminal.py",
    "nanoset_core/cli/progress.py",
    # A script that runs without this package, and therefore makes text visible itself.
    "nanoset_core/stages/handoff/preflight.py",
    # These warn of names that are deprecated.
    "nanoset_core/config.py",
    "nanoset_core/shuffling.py",
    "nanoset_core/stages/pbin/settings.py",
}
"""Modules that may print."""
PRINTING_FUNCTIONS = {
    "print",
    "click.echo",
    "click.secho",
    "console.print",
    "sys.stdout.write",
    "sys.stderr.write",
    "logging.getLogger(__name__)",
    "warnings.warn",
}


CALLED_NAME = re.compile(r"\b(print|echo|secho|write|getLogger|warn)\(")
"""How the text of a module that calls one of them looks: others need not be parsed."""


def calls_in(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the function of each call in a module that may print."""
    if not CALLED_NAME.search(text):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Call):
            function = ast.unparse(node.func)
            # With its argument: only a module's own logger logs messages.
            if function == "logging.getLogger":
                function = ast.unparse(node)
            yield node.lineno, function


def test_no_other_module_prints_or_logs_text_that_was_not_made_visible():
    printing_calls = []
    for package in ("nanoset_core", "nanoset_assets"):
        for path in sorted((REPOSITORY / package).rglob("*.py")):
            module = path.relative_to(REPOSITORY).as_posix()
            if module in PRINTING_MODULES:
                continue
            for line, function in calls_in(path.read_text()):
                if function in PRINTING_FUNCTIONS:
                    printing_calls.append(f"{module}:{line}: {function}")

    assert printing_calls == []
