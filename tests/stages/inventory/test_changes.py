"""The comparison of two inventories of a corpus, in words."""

from __future__ import annotations

import pytest

from helpers.sample_project import jsonl, sentences
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.changes import changed_files, what_changed
from nanoset_core.stages.inventory.make import survey_corpus


@pytest.fixture
def project(make_project) -> Project:
    """The sample project, whose corpus web has four files."""
    return Project.open(make_project())


def test_without_an_earlier_inventory_it_is_the_first(project):
    assert what_changed(None, survey_corpus(project, "web")) == "the first inventory"


def test_between_equal_inventories_nothing_changed(project):
    inventory = survey_corpus(project, "web")

    assert what_changed(inventory, survey_corpus(project, "web")) == "nothing"


def test_added_removed_and_changed_files_are_counted(project):
    before = survey_corpus(project, "web")
    folder = project.config.raw_folder / "web"
    (folder / "part-0" / "web-0.jsonl").unlink()
    (folder / "part-0" / "web-1.jsonl").write_bytes(jsonl(sentences("other", 3)))
    (folder / "new-0.jsonl").write_bytes(jsonl(sentences("new", 2)))
    (folder / "new-1.jsonl").write_bytes(jsonl(sentences("new", 1)))

    changes = what_changed(before, survey_corpus(project, "web"))

    assert changes == "2 files added, 1 file removed, 1 file changed"


def test_changed_files_are_named_in_the_order_of_both_lists(project):
    pieces = survey_corpus(project, "web").pieces[:2]
    before = {"a.jsonl": pieces[:1], "b.jsonl": pieces[:1], "d.jsonl": pieces[:1]}
    after = {"a.jsonl": pieces[1:], "c.jsonl": pieces[1:], "d.jsonl": pieces[:1]}

    changes = changed_files(before, after)

    assert list(changes.items()) == [
        ("a.jsonl", "changed"),
        ("b.jsonl", "removed"),
        ("c.jsonl", "added"),
    ]


def test_a_file_whose_pieces_are_not_known_counts_as_changed(project):
    pieces = survey_corpus(project, "web").pieces[:1]

    assert changed_files({"a.jsonl": pieces}, {"a.jsonl": None}) == {"a.jsonl": "changed"}
