"""Documents that the settings forbid in train: what is refused, what is built, and what is kept.

The present settings decide, whether or not an output was built before they were changed.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from helpers.command import invoke_nanoset, run_nanoset
from helpers.contamination import QUESTIONS, documents_with, searched_project, write_questions
from helpers.inspecting import graph_of, node_at
from helpers.sample_project import outputs_of
from nanoset_core.project.project import Project

FILES = {"0.jsonl": documents_with(60, {4: QUESTIONS[0], 17: QUESTIONS[2]})}
NANOSET = {
    "sequence_length": 16,
    "samples": {},
    "tokenizer_identifiers": {"class": "none"},
    "trainer_path": "/outputs",  # names of index files depend on it, and not on the test's folder
}
SETTINGS = {
    "contamination": {
        "evals": {
            "files": "evals/*.jsonl",
            "text_keys": ["question"],
            "of": ["web"],
            "policy": "warn",
        }
    },
    "nanosets": {
        "dirty": {"blend": "web", "split": "1,0,0", **NANOSET},
        "good": {"blend": "clean", "split": "1,0,0", **NANOSET},
        "leaky": {
            "blend_per_split": {"train": "clean", "valid": "clean"},
            "held_out": "warn",
            **NANOSET,
        },
    },
}
"""Allows everything. `dirty` reads contaminated documents, and `leaky` trains on its valid."""
FOUND = "2 documents that training reads hold texts of evals"
DIRTY_ROWS = {"nanoset dirty train": "failing", "nanoset dirty handoff": "stale"}


def write_settings(config: Path, *changes: tuple[str, object]) -> None:
    """Change settings of a nanoset.yaml.

    Args:
        config: The file.
        changes: Pairs of the path of a key, with dots, and its value.
    """
    settings = json.loads(config.read_text())
    for path, value in changes:
        *sections, key = path.split(".")
        target = settings
        for section in sections:
            target = target.setdefault(section, {})
        target[key] = value
    config.write_text(json.dumps(settings))


BLOCK = ("contamination.evals.policy", "block")
WARN = ("contamination.evals.policy", "warn")
BLOCK_HELD_OUT = ("nanosets.leaky.held_out", "block")


@pytest.fixture(scope="module")
def searched(tmp_path_factory, tokenizer_file) -> Path:
    """The nanoset.yaml of a project whose corpus was searched; not to be changed."""
    folder = tmp_path_factory.mktemp("forbidden") / "searched"
    config = searched_project(folder, tokenizer_file, FILES, QUESTIONS[:2])
    write_questions(folder / "evals" / "a.jsonl", QUESTIONS)
    config.write_text(json.dumps(json.loads(config.read_text()) | SETTINGS))
    return config


@pytest.fixture(scope="module")
def built(searched, tmp_path_factory) -> Path:
    """The nanoset.yaml of a project that was built when everything was allowed."""
    folder = tmp_path_factory.mktemp("forbidden") / "built"
    shutil.copytree(searched.parent, folder, symlinks=True)
    run_nanoset("build", "--config", folder / "nanoset.yaml")
    return folder / "nanoset.yaml"


@pytest.fixture
def config(built, tmp_path) -> Path:
    """The nanoset.yaml of a copy of the built project."""
    shutil.copytree(built.parent, tmp_path / "project", symlinks=True)
    return tmp_path / "project" / "nanoset.yaml"


def states_of(config: Path) -> dict[str, str]:
    """Return the rows of `nanoset status` that are not up to date, with their states."""
    outcome = invoke_nanoset(["status", "--config", config, "--json"])
    rows = json.loads(outcome.stdout)
    states = {}
    for row in rows:
        if row["state"] != "up to date":
            label = " ".join(name for name in (row["kind"], row["name"], row["part"]) if name)
            states[label] = row["state"]
    return states


# After settings have changed


def test_a_build_refuses_what_was_built_when_it_was_allowed(config):
    outputs = outputs_of(config)
    write_settings(config, BLOCK)

    outcome = invoke_nanoset(["build", "--config", config])

    assert outcome.exit_code == 1
    assert "failed: dirty/index_mappings [train]" in outcome.output
    assert FOUND in outcome.output
    assert "raw/web/0.jsonl:5" in outcome.output
    assert "not made, since they need what failed: dirty/handoff" in outcome.output
    assert states_of(config) == DIRTY_ROWS

    # Allowed again, it is current, and no byte has changed.
    write_settings(config, WARN)
    assert states_of(config) == {}
    run_nanoset("build", "--config", config)
    outputs_after = outputs_of(config)
    assert outputs.items() <= outputs_after.items()


@pytest.mark.parametrize("command", ["status", "build --dry-run", "verify", "map dirty"])
def test_each_command_refuses_what_was_built_when_it_was_allowed(config, command):
    write_settings(config, BLOCK)

    outcome = invoke_nanoset([*command.split(), "--config", config])

    assert outcome.exit_code == 1
    assert FOUND in outcome.output + str(outcome.exception)


def test_a_leak_is_refused_after_held_out_was_set_to_block(config):
    write_settings(config, BLOCK_HELD_OUT)

    outcome = invoke_nanoset(["build", "--config", config])

    assert outcome.exit_code == 1
    assert "documents that are held out are in train" in outcome.output
    assert states_of(config) == {
        "nanoset leaky train": "failing",
        "nanoset leaky handoff": "stale",
    }


def test_a_build_refuses_what_its_own_search_forbids(config):
    write_questions(config.parent / "evals" / "a.jsonl", ["How are " + "you? " * 20])
    write_settings(config, BLOCK)
    run_nanoset("build", "--config", config)
    write_questions(config.parent / "evals" / "a.jsonl", QUESTIONS)

    outcome = invoke_nanoset(["build", "--config", config])

    assert outcome.exit_code == 1
    assert "failed: dirty/index_mappings [train]" in outcome.output
    assert FOUND in outcome.output


def test_other_outputs_can_be_selected(config):
    write_settings(config, BLOCK)

    outcome = run_nanoset("build", "--config", config, "--select", "good", "--force")

    assert "failed" not in outcome.output


# A first build


def test_only_what_trains_on_forbidden_documents_is_not_built(searched, tmp_path):
    shutil.copytree(searched.parent, tmp_path / "project", symlinks=True)
    config = tmp_path / "project" / "nanoset.yaml"
    write_settings(config, BLOCK)

    outcome = invoke_nanoset(["build", "--config", config])

    assert outcome.exit_code == 1
    assert states_of(config) == {
        "nanoset dirty train": "failing",
        "nanoset dirty handoff": "missing",
    }


# Formats


@pytest.mark.parametrize(
    ("setting", "value", "address"),
    [
        ("pbin", ["web"], "packed/web"),
        ("exports.copy", {"of": "web", "format": "datatrove"}, "exports/copy"),
        (
            "webdatasets.tars",
            {"corpora": ["web"], "sequence_length": 17, "samples_per_shard": 8},
            "shuffle_plans/tars",
        ),
    ],
)
def test_every_format_for_trainers_is_forbidden(config, setting, value, address):
    write_settings(config, BLOCK, (setting, value))
    graph = graph_of(Project.open(config), "web")

    prohibition = graph.prohibition(node_at(address))

    assert prohibition is not None
    assert prohibition.what == FOUND
