"""The commands and options that the documentation shows exist."""

from __future__ import annotations

import copy
import re
import shlex

import click
import pytest
from docs.conftest import PAGES, TOP, Block, blocks

from nanoset_core.cli.entry import nanoset

OTHER_PROGRAMS = {
    ".",
    "aws",
    "create-dagster",
    "dask",
    "dg",
    "docker",
    "export",
    "kubectl",
    "openssl",
    "pip",
    "sbatch",
    "uv",
}
COMMANDS = [
    (block, line)
    for block in blocks("bash")
    for line in block.code.replace("\\\n", " ").splitlines()
]


@pytest.mark.parametrize(("block", "line"), COMMANDS, ids=lambda value: str(value)[:60])
def test_commands_exist(block: Block, line: str):
    words = shlex.split(line, comments=True)
    if not words or words[0] in OTHER_PROGRAMS:
        return
    if words[0] == "make":
        assert re.search(rf"^{words[1]}:", (TOP / "Makefile").read_text(), re.MULTILINE), (
            f"no target {words[1]}"
        )
    elif words[:2] == ["python", "-m"]:
        assert (TOP / words[2].replace(".", "/")).with_suffix(".py").is_file()
    else:
        assert words[0] == "nanoset", f"{words[0]} is not known here"
        _parse(nanoset, words[1:], click.Context(nanoset, info_name="nanoset"))


def _parse(command: click.Command, words: list[str], context: click.Context) -> None:
    """Every option exists and has its value; what the values are is not looked at."""
    if isinstance(command, click.Group) and words:
        name = words[0] if command.get_command(context, words[0]) else "write"
        inner = command.get_command(context, name)
        assert inner is not None, f"no command {name}"
        _parse(
            inner, words[name == words[0] :], click.Context(inner, info_name=name, parent=context)
        )
    else:
        plain = copy.copy(command)
        plain.params = [copy.copy(parameter) for parameter in command.params]
        for parameter in plain.params:
            parameter.type = click.STRING
        plain.parse_args(context, list(words))


def test_an_unknown_option_is_found():
    block = Block("page.md", 1, "bash", "")
    with pytest.raises(click.UsageError):
        test_commands_exist(block, "nanoset build --no-such-option")
    with pytest.raises(AssertionError):
        test_commands_exist(block, "nanoset bild")


def test_commands_in_paragraphs_exist():
    named = [
        name
        for page in PAGES
        for name in re.findall(r"`nanoset\s([a-z][a-z-]+)[^`]*`", page.read_text())
    ]
    assert len(named) > 10
    assert set(named) <= set(nanoset.list_commands(click.Context(nanoset)))
