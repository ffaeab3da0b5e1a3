"""With --json, standard output has the JSON and nothing else, for every command."""

from __future__ import annotations

import json
from pathlib import Path

import click
import pytest

from helpers.building import build_all
from helpers.command import invoke_nanoset
from helpers.sample_project import write_project
from nanoset_core.cli import nanoset
from nanoset_core.cli.terminal import FILE_COLUMNS, wide_console

CHANGES = {"nanosets:\n": "views:\n  kept: {of: web, documents: 50}\nnanosets:\n"}
"""Replacements in the settings of the sample project, for a view."""

CALLS = [
    "build --dry-run",
    "build --dry-run --force",
    "columns web",
    "diff web",
    "explain pretrain train 0",
    "explain pretrain train --document web-1",
    "gc",
    "gc --yes",
    "map --plan",
    "map",
    "map pretrain",
    "status",
    "status --warnings",
    "verify",
    "verify --deep",
    "view kept",
]
"""Calls of all commands that have the option --json."""


@pytest.fixture(scope="module")
def project_file(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project with an older version of a corpus, and with warnings."""
    folder = tmp_path_factory.mktemp("json") / "project"
    file = write_project(folder, tokenizer_file, CHANGES)
    build_all(file)
    with (folder / "raw/web/more.jsonl").open("w") as raw_text:
        raw_text.write('{"id": "new", "text": "one that is new"}\nno json\n')
    (folder / "raw/web/empty.jsonl").touch()  # is a notice
    build_all(file)
    return file


def commands_with_json() -> set[str]:
    """Return the names of the commands that have the option --json."""
    context = click.Context(nanoset)
    names = set()
    for name in nanoset.list_commands(context):
        command = nanoset.get_command(context, name)
        if any("--json" in parameter.opts for parameter in command.params):
            names.add(name)
    return names


def test_every_command_with_json_is_tested():
    assert {call.split()[0] for call in CALLS} == commands_with_json()


@pytest.mark.parametrize("call", CALLS)
def test_standard_output_is_json_alone_also_if_colours_are_forced(project_file, monkeypatch, call):
    # CI systems set this for tools that do not see a terminal.
    monkeypatch.setenv("FORCE_COLOR", "1")

    outcome = invoke_nanoset([*call.split(), "--json", "--config", project_file])

    assert outcome.exit_code in (0, 1), outcome.output
    json.loads(outcome.stdout)


@pytest.mark.parametrize("command", ["status", "verify"])
def test_no_spinner_is_drawn_in_a_log_with_forced_colours(project_file, monkeypatch, command):
    monkeypatch.setenv("FORCE_COLOR", "1")

    output = invoke_nanoset([command, "--config", project_file]).output

    assert "\x1b[?25l" not in output  # hides the cursor while the spinner is drawn


def test_tables_in_a_log_with_forced_colours_are_as_wide_as_in_other_files(monkeypatch, capsys):
    monkeypatch.setenv("FORCE_COLOR", "1")

    assert wide_console().width == FILE_COLUMNS


def test_run_yaml_is_refused_as_json(tmp_path):
    log = tmp_path / "train.log"
    log.touch()

    outcome = invoke_nanoset(["explain", "--run", "run.yaml", "--from-log", log, "--json"])

    assert outcome.exit_code == 2
    assert "omit --json" in outcome.output
