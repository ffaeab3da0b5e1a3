"""Run the `nanoset` command in the process of a test."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from nanoset_core.cli import nanoset
from nanoset_core.cli.commands.status import print_tables
from nanoset_core.cli.entry import message
from nanoset_core.project.project import Project
from nanoset_core.project.status import StatusRow


def invoke_nanoset(arguments: Iterable[object], **options: Any) -> Result:
    """Run `nanoset` with arguments; an error that it raises is in the result.

    Args:
        arguments: Words after `nanoset`; paths and numbers are written out.
        options: See `click.testing.CliRunner.invoke`; `catch_exceptions=False` lets errors through.
    """
    words = [str(argument) for argument in arguments]
    return CliRunner().invoke(nanoset, words, **options)


def run_nanoset(*arguments: object) -> Result:
    """Run `nanoset` with arguments, and expect success."""
    outcome = invoke_nanoset(arguments, catch_exceptions=False)
    assert outcome.exit_code == 0, outcome.output
    return outcome


def output_of(*arguments: object) -> str:
    """Run `nanoset` with arguments, and return all that it printed."""
    return run_nanoset(*arguments).output


def json_of(*arguments: object) -> Any:
    """Run `nanoset` with arguments, and return the JSON that it printed to standard output."""
    return json.loads(run_nanoset(*arguments).stdout)


def messages_of(outcome: Result) -> str:
    """Return all that a person is told: what the command printed, and the message of its error."""
    if isinstance(outcome.exception, Exception):
        return outcome.output + message(outcome.exception)
    return outcome.output


def print_status(rows: Sequence[StatusRow]) -> None:
    """Print rows as `nanoset status` does."""
    print_tables(rows)


def hide_command(monkeypatch: pytest.MonkeyPatch, hidden: str) -> None:
    """Let `nanoset` behave as if one of its commands were not installed."""
    get_command = nanoset.get_command

    def get_others(context: click.Context, name: str) -> click.Command | None:
        return None if name == hidden else get_command(context, name)

    monkeypatch.setattr(nanoset, "get_command", get_others)


def report_of(config: Path, command: str) -> str:
    """Return what a command prints, without the place of the outputs and the times of builds.

    Args:
        config: The project's nanoset.yaml.
        command: The command and its options, divided by spaces.
    """
    text = run_nanoset(*command.split(), "--config", config).output
    settings = Project.open(config).config
    places = [str(settings.root_folder), str(config.parent)]
    if settings.root_place:
        places.append(str(settings.root))
    for place in places:
        text = text.replace(place, "<place>")
    return re.sub(r'"(made_at|seconds)": [^,}]*', "", text)
