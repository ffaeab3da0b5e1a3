"""Taking documents out by their ids."""

import pytest

from helpers.building import build_all, make_view
from helpers.command import invoke_nanoset
from helpers.inspecting import find_document, leased_by_a_build
from nanoset_core.errors import ConfigError
from nanoset_core.lineage.takedown import add_ids, holdings
from nanoset_core.project.project import Project

CHANGES = {
    "nanosets:\n": "views:\n  kept: {of: web, exclude: drop.txt}\nnanosets:\n",
    "blend: {web: 0.7, code: 0.3}": "blend: {kept: 0.7, code: 0.3}",
    "samples: {train: 400}\n": "schedule: {iterations: 40, global_batch_size: 10, eval_interval: 100, eval_iters: 1}\n",
    "groups: 3": "groups: 1",
}


@pytest.fixture
def project(make_project) -> Project:
    """A built project with a view."""
    file = make_project("project", CHANGES)
    (file.parent / "drop.txt").write_text("web-3\n")
    return build_all(file)


def test_what_holds_documents_is_told_with_samples_and_steps(project):
    found = {one.output: one for one in holdings(project, ["web-20", "web-11", "web-3", "nobody"])}
    assert found["corpus web"].documents == 3
    assert found["view kept"].documents == 2
    samples = [
        appearance.sample
        for identity in ("web-20", "web-11")
        for place in find_document(project, "pretrain", "train", identity=identity)
        for appearance in place.appearances
    ]
    assert found["nanoset pretrain train"].samples == (min(samples), max(samples))
    assert found["nanoset pretrain train"].steps == (min(samples) // 10, max(samples) // 10)
    assert found["webdataset shuffled"].documents == 3
    assert not [output for output in found if "books" in output]


def test_the_command_adds_to_the_list_that_views_exclude(project):
    file = project.config.file
    words = [
        "takedown",
        "web-20",
        "web-3",
        "--reason",
        "asked\nfor",
        "--config",
        str(file),
        "--no-build",
    ]
    said = invoke_nanoset(words, catch_exceptions=False).output
    assert "1 id added, 1 already listed" in said
    lines = (file.parent / "drop.txt").read_text().splitlines()
    assert (lines[0], lines[1][-11:], lines[2]) == ("web-3", ": asked for", "web-20")
    again = make_view(Project.open(file), "kept")
    assert again.facts["documents"] == 238
    file.write_text(file.read_text().replace("exclude: drop.txt", "exclude: drop/*.txt"))
    with pytest.raises(ConfigError, match="it is not clear which list to add to"):
        invoke_nanoset(words, catch_exceptions=False)


def test_during_a_build_the_command_names_it_and_what_to_do(project):
    words = [
        "takedown",
        "web-20",
        "--reason",
        "asked for",
        "--config",
        str(project.config.file),
        "--no-build",
    ]
    with leased_by_a_build(project, "web"):
        output = invoke_nanoset(words, catch_exceptions=False).output
    assert "notice: a running build may still include these documents: process " in output
    assert "makes web; run `nanoset build` once it has ended" in output


@pytest.mark.parametrize("identity", ["", "a\nb", "# a"])
def test_an_id_that_no_line_can_hold_is_refused(tmp_path, identity):
    with pytest.raises(ConfigError, match="cannot be a line"):
        add_ids(tmp_path / "list.txt", ["x", identity], "reason", "2026-01-01")
    assert not (tmp_path / "list.txt").exists()
