"""`nanoset takedown` adds documents to the list that views exclude, and says what holds them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from click.testing import Result

from helpers.building import build_all, make_view
from helpers.command import invoke_nanoset
from helpers.inspecting import find_document, leased_by_a_build
from helpers.sample_project import write_project
from nanoset_core.errors import ConfigError
from nanoset_core.lineage.takedown import add_ids, holdings
from nanoset_core.project.project import Project

CHANGES = {
    "nanosets:\n": "views:\n  kept: {of: web, exclude: drop.txt}\nnanosets:\n",
    "blend: {web: 0.7, code: 0.3}": "blend: {kept: 0.7, code: 0.3}",
    "samples: {train: 400}\n": "schedule: {iterations: 40, global_batch_size: 10, eval_interval: 100, eval_iters: 1}\n",
    "groups: 3": "groups: 1",
}
"""Replacements in the settings of the sample project: a view, and a nanoset with training steps."""
BATCH_SIZE = 10


@pytest.fixture(scope="module")
def built_with_view(tmp_path_factory, tokenizer_file) -> Path:
    """The folder of a built project with a view that excludes a document; not to be written to."""
    folder = tmp_path_factory.mktemp("takedown") / "project"
    file = write_project(folder, tokenizer_file, CHANGES)
    (folder / "drop.txt").write_text("web-3\n")
    build_all(file)
    return folder


@pytest.fixture
def project(built_with_view, tmp_path) -> Project:
    """A copy of the built project with a view, to be changed."""
    folder = shutil.copytree(built_with_view, tmp_path / "project", symlinks=True)
    return Project.open(folder / "nanoset.yaml")


def take_down(project: Project, *ids: str, reason: str = "requested") -> Result:
    """Run `nanoset takedown` without a build; errors are raised."""
    command = ["takedown", *ids, "--reason", reason, "--no-build"]
    return invoke_nanoset([*command, "--config", project.config.file], catch_exceptions=False)


# What holds the documents


def test_each_output_with_the_documents_says_how_many_it_holds(built_with_view):
    project = Project.open(built_with_view / "nanoset.yaml")

    found = holdings(project, ["web-20", "web-11", "web-3", "nobody"])

    documents_by_output = {holding.output: holding.documents for holding in found}
    assert documents_by_output["corpus web"] == 3
    # The view excludes web-3.
    assert documents_by_output["view kept"] == 2
    assert documents_by_output["webdataset shuffled"] == 3
    assert not [output for output in documents_by_output if "books" in output]


def test_a_nanoset_says_which_samples_and_steps_have_the_documents(built_with_view):
    project = Project.open(built_with_view / "nanoset.yaml")
    samples = []
    for identity in ("web-20", "web-11"):
        for place in find_document(project, "pretrain", "train", identity=identity):
            samples += [appearance.sample for appearance in place.appearances]

    found = holdings(project, ["web-20", "web-11", "web-3", "nobody"])

    (train,) = [holding for holding in found if holding.output == "nanoset pretrain train"]
    first_sample = min(samples)
    last_sample = max(samples)
    assert train.samples == (first_sample, last_sample)
    # Steps are counted from 1, as `nanoset explain --step` and the logs of trainers do.
    assert train.steps == (1 + first_sample // BATCH_SIZE, 1 + last_sample // BATCH_SIZE)


# The list


def test_the_command_adds_the_ids_with_the_reason_to_the_list(project):
    # A reason with a line break is written on one line.
    outcome = take_down(project, "web-20", "web-3", reason="asked\nfor")

    assert "1 id added, 1 already listed" in outcome.output
    list_file = project.config.file.parent / "drop.txt"
    first_line, comment, new_line = list_file.read_text().splitlines()[:3]
    assert first_line == "web-3"
    assert comment.endswith(": asked for")
    assert new_line == "web-20"

    # The view excludes both.
    view = make_view(Project.open(project.config.file), "kept")
    assert view.facts["documents"] == 238


def test_a_pattern_of_lists_is_an_error(project):
    file = project.config.file
    file.write_text(file.read_text().replace("exclude: drop.txt", "exclude: drop/*.txt"))

    with pytest.raises(ConfigError, match="it is not clear which list to add to"):
        take_down(project, "web-20")


@pytest.mark.parametrize("identity", ["", "a\nb", "# a"], ids=repr)
def test_an_id_that_no_line_can_hold_is_refused(tmp_path, identity):
    with pytest.raises(ConfigError, match="cannot be a line"):
        add_ids(tmp_path / "list.txt", ["x", identity], "reason", "2026-01-01")

    assert not (tmp_path / "list.txt").exists()


def test_a_running_build_is_named_with_what_to_do_after_it(project):
    with leased_by_a_build(project, "web"):
        output = take_down(project, "web-20").output

    assert "notice: a running build may still include these documents: process " in output
    assert "makes web; run `nanoset build` once it has ended" in output
