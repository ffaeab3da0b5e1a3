"""What is shown says what readers of Megatron-LM's and webdataset's documentation expect, and no
private word.
"""

from __future__ import annotations

import re
import shlex

import click
import pytest

from helpers.command import invoke_nanoset
from helpers.locations import REPOSITORY
from nanoset_core.cli import nanoset
from nanoset_core.project.template import schema_text

ROOT = REPOSITORY
RIDDLES = (
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
"""Words that readers stumbled over."""
ODD_IN_TARS = r"\b(shards?|sequences?) "
"""Of tars and contexts."""

# (arguments, what is said, what is not, a pattern, exit code), in a project with all outputs
CASES = [
    (
        "verify",
        ["contexts 816,", "unreadable files 0", "highest token id"],
        "faults|greatest|1 errors",
        0,
    ),
    (
        "verify -s shuffled",
        ["tars ", "contexts ", "rank correlation of the order before and after"],
        ODD_IN_TARS,
        0,
    ),
    ("status", ["tars", "contexts", "unused tokens"], ODD_IN_TARS, 0),
    (
        "map --plan pretrain",
        ["weight", "tokens per epoch", "unused tokens", "unused samples", "repeated tokens"],
        "asked|given|unseen|spare",
        0,
    ),
    ("diff nope", ["expected: one of books, code, web"], "none", 1),
    ("diff 123456789a bcdef", ["expected: the first four digits or more one of books"], "none", 1),
    ("explain pretrain train 99999", ["expected: 0 to ", "to -1 from the end"], "expected: -", 1),
    ("explain nope train 0", ["expected: one of nemo/test, nemo/train"], "none", 1),
    (
        "explain pretrain train 3",
        ["of the sample are tokens", "of the document", "document "],
        "its tokens",
        0,
    ),
    ("explain shuffled --document web-77", ["(number ", "of all) in shard-"], "its tokens", 0),
    ("gc", ["to be removed: "], "garbage|sweep", 0),
    (
        "verify data/datasets/web/current/web_text_document --eod x",
        ["--eod needs a --tokenizer"],
        "passed",
        2,
    ),
]


@pytest.mark.parametrize(("line", "said", "odd", "code"), CASES, ids=[case[0] for case in CASES])
def test_a_command_says_it_in_usual_words(built, monkeypatch, line, said, odd, code):
    monkeypatch.chdir(built)
    outcome = invoke_nanoset(shlex.split(line), env={"COLUMNS": "300"})
    shown = f"{outcome.output}\n{outcome.exception or ''}"
    assert outcome.exit_code == code, shown
    assert [words for words in said if words not in shown] == [], shown
    assert re.search(odd, shown.replace("shard-", "")) is None, shown
    assert [words for words in RIDDLES if words in shown] == []


def _help_texts(command: click.Command, name: str) -> dict[str, str]:
    context = click.Context(command, info_name=name, terminal_width=300)
    found = {name: command.get_help(context)}
    if isinstance(command, click.Group):
        for sub in command.list_commands(context):
            found |= _help_texts(command.get_command(context, sub), f"{name} {sub}")
    return found


def test_help_schema_and_documentation_hold_no_riddle():
    texts = _help_texts(nanoset, "nanoset") | {"schema": schema_text()}
    texts |= {
        page.name: page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md"))
    }
    told = {
        name: re.sub(r"--mid-level-dataset-surplus|\*surplus\* in its JSON", "", text)
        for name, text in texts.items()
    }
    assert [
        (name, words) for name, text in told.items() for words in RIDDLES if words in text
    ] == []
