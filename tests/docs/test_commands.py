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
    "cd",
    "create-dagster",
    "dask",
    "dg",
    "docker",
    "export",
    "kubectl",
    "openssl",
    "pip",
    "ray",
    "rsync",
    "sbatch",
    "uv",
}
"""Programs of other projects, whose options are not checked."""


def documented_commands() -> list[tuple[Block, str]]:
    """Return each line of shell code in the documentation, with the block that it is in."""
    commands = []
    for block in blocks("bash"):
        for line in block.code.replace("\\\n", " ").splitlines():
            commands.append((block, line))
    return commands


@pytest.mark.parametrize(
    ("block", "line"), documented_commands(), ids=lambda value: str(value)[:60]
)
def test_commands_and_options_in_blocks_of_code_exist(block: Block, line: str):
    check_command(line)


def check_command(line: str) -> None:
    """Fail if a line of shell code runs something of this project that does not exist.

    Raises:
        click.UsageError: An option of `nanoset` does not exist, or an argument is missing.
    """
    words = shlex.split(line, comments=True)
    if not words or words[0] in OTHER_PROGRAMS:
        return

    program = words[0]
    if program == "make":
        makefile = (TOP / "Makefile").read_text()
        target = re.search(rf"^{words[1]}:", makefile, re.MULTILINE)
        assert target, f"no target {words[1]}"
    elif words[:2] == ["python", "-m"]:
        module = TOP / words[2].replace(".", "/")
        assert module.with_suffix(".py").is_file(), f"no module {words[2]}"
    else:
        assert program == "nanoset", f"{program} is not known here"
        _parse(nanoset, words[1:], click.Context(nanoset, info_name="nanoset"))


def _parse(command: click.Command, arguments: list[str], context: click.Context) -> None:
    """Check that every option exists and has a value, whatever the value is.

    Args:
        command: The command, or a group of commands.
        arguments: What follows its name.
        context: The context of the command.

    Raises:
        click.UsageError: An option does not exist, or an argument is missing.
    """
    if isinstance(command, click.Group) and arguments:
        _parse_in_group(command, arguments, context)
        return

    # A copy of the command that accepts any text as a value: the files of examples do not exist.
    lenient_command = copy.copy(command)
    lenient_command.params = [copy.copy(parameter) for parameter in command.params]
    for parameter in lenient_command.params:
        parameter.type = click.STRING
        parameter.callback = None  # would look for the files
    lenient_command.parse_args(context, list(arguments))


def _parse_in_group(group: click.Group, arguments: list[str], context: click.Context) -> None:
    """Check the command of a group; without a name, it is `write`, as in `nanoset pbin FILE`."""
    name = "write"
    if group.get_command(context, arguments[0]):
        name = arguments[0]
        arguments = arguments[1:]
    command = group.get_command(context, name)
    assert command is not None, f"no command {name}"
    _parse(command, arguments, click.Context(command, info_name=name, parent=context))


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("nanoset build --no-such-option", click.UsageError),
        ("nanoset bild", AssertionError),
        ("make no-such-target", AssertionError),
        ("python -m benchmarks.no_such_module", AssertionError),
        ("no-such-program", AssertionError),
    ],
)
def test_mistakes_in_commands_are_found(line, error):
    with pytest.raises(error):
        check_command(line)


def test_commands_in_paragraphs_exist():
    known_names = nanoset.list_commands(click.Context(nanoset))

    documented_names: list[str] = []
    for page in PAGES:
        documented_names += re.findall(r"`nanoset\s([a-z][a-z-]+)[^`]*`", page.read_text())

    assert len(documented_names) > 10
    assert set(documented_names) <= set(known_names)
