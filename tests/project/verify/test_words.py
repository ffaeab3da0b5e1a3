"""Commands and pages use the words of Megatron-LM's and webdataset's documentation."""

from __future__ import annotations

import re
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import pytest

from helpers.command import invoke_nanoset
from helpers.locations import REPOSITORY
from nanoset_core.cli import nanoset
from nanoset_core.project.first_config.template import schema_text

UNUSUAL_PHRASES = (
    "scarcest",
    "does not fill its share",
    "still waits for",
    "instead of `blend` and `split` it is",
    "one of none",
    "framing.after",
    "canary",
    "surplus",
    "partitions of assets",
    "(s) ",
    "leaves no trace",
    "kept aside",
    "as if dealt",
)
"""Phrases that readers of earlier versions did not understand."""
OTHER_WORDS_FOR_TARS = r"\b(shards?|sequences?) "
"""Pattern of words that must not be used where tars and contexts are meant."""


@dataclass(frozen=True)
class Case:
    """A command in a project with all outputs, and the words of its output."""

    expected: Sequence[str]
    """Phrases of the output."""
    unexpected: str
    """A pattern that nothing in the output matches."""
    exit_code: int = 0


CASE_BY_COMMAND = {
    "verify": Case(
        ["contexts 816,", "unreadable files 0", "highest token id"],
        unexpected="faults|greatest|1 errors",
    ),
    "verify -s shuffled": Case(
        ["tars ", "contexts ", "rank correlation of the order before and after"],
        unexpected=OTHER_WORDS_FOR_TARS,
    ),
    "status": Case(["tars", "contexts", "unused tokens"], unexpected=OTHER_WORDS_FOR_TARS),
    "map --plan pretrain": Case(
        ["weight", "tokens per epoch", "unused tokens", "unused samples", "repeated tokens"],
        unexpected="asked|given|unseen|spare",
    ),
    "diff nope": Case(["expected: one of books, code, web"], unexpected="none", exit_code=1),
    "diff 123456789a bcdef": Case(
        ["expected: four digits or more of one of these: books"], unexpected="none", exit_code=1
    ),
    "explain pretrain train 99999": Case(
        ["expected: 0 to ", "to -1 from the end"], unexpected="expected: -", exit_code=1
    ),
    "explain nope train 0": Case(
        ["expected: one of nemo/test, nemo/train"], unexpected="none", exit_code=1
    ),
    "explain pretrain train 3": Case(
        ["of the sample are tokens", "of the document", "document "], unexpected="its tokens"
    ),
    "explain shuffled --document web-77": Case(
        ["(number ", "of all) in shard-"], unexpected="its tokens"
    ),
    "gc": Case(["to be removed: "], unexpected="garbage|sweep"),
    "verify data/datasets/web/current/web_text_document --eod x": Case(
        ["--eod needs a --tokenizer"], unexpected="passed", exit_code=2
    ),
}


def unusual_phrases_in(text: str) -> list[str]:
    """Return the unusual phrases that a text contains."""
    return [phrase for phrase in UNUSUAL_PHRASES if phrase in text]


@pytest.mark.parametrize("command", CASE_BY_COMMAND)
def test_a_command_uses_the_usual_words(built, monkeypatch, command):
    case = CASE_BY_COMMAND[command]
    monkeypatch.chdir(built)

    outcome = invoke_nanoset(shlex.split(command), env={"COLUMNS": "300"})

    output = f"{outcome.output}\n{outcome.exception or ''}"
    assert outcome.exit_code == case.exit_code, output
    missing_phrases = [phrase for phrase in case.expected if phrase not in output]
    assert missing_phrases == [], output
    # Files of tars are named `shard-…`, as webdataset's documentation names them.
    assert re.search(case.unexpected, output.replace("shard-", "")) is None, output
    assert unusual_phrases_in(output) == []


def help_texts(command: click.Command, name: str) -> dict[str, str]:
    """Return the help of a command and of all commands below it, by their names."""
    context = click.Context(command, info_name=name, terminal_width=300)
    text_by_command = {name: command.get_help(context)}
    if isinstance(command, click.Group):
        for subname in command.list_commands(context):
            subcommand = command.get_command(context, subname)
            assert subcommand is not None
            text_by_command |= help_texts(subcommand, f"{name} {subname}")
    return text_by_command


def test_the_help_of_all_commands_has_no_unusual_phrase():
    phrases_by_command = {}
    for name, text in help_texts(nanoset, "nanoset").items():
        # Megatron-LM has an option of this name.
        text = text.replace("--mid-level-dataset-surplus", "")
        phrases_by_command[name] = unusual_phrases_in(text)

    assert not any(phrases_by_command.values()), phrases_by_command


def test_the_schema_has_no_unusual_phrase():
    assert unusual_phrases_in(schema_text().replace("--mid-level-dataset-surplus", "")) == []


def name_of(page: Path) -> str:
    """Return the name of a page."""
    return page.name


PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_page_of_the_documentation_has_no_unusual_phrase(page):
    # An option of Megatron-LM has this word in its name, and so have a key of the JSON that
    # `nanoset map` prints, and an argument in Python, each named like the option.
    foreign_names = (
        r"--mid-level-dataset-surplus|called `surplus` in JSON|^\| `surplus` \|"
        r"|`\[\]\.members\[\]\.surplus`"
    )

    text = re.sub(foreign_names, "", page.read_text(), flags=re.MULTILINE)

    assert unusual_phrases_in(text) == []
