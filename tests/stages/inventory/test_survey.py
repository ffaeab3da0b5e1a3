"""A survey of a corpus is cheap, however many files it has."""

from __future__ import annotations

from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import survey_corpus
from nanoset_core.text.files.contents import Contents


def test_the_sizes_of_files_are_not_added_up_for_each_file(make_project, monkeypatch):
    project = Project.open(make_project())
    sizes = []
    compute_size = Contents.size.fget

    def record_size(contents):
        size = compute_size(contents)
        sizes.append(size)
        return size

    monkeypatch.setattr(Contents, "size", property(record_size))

    inventory = survey_corpus(project, "web")

    assert len(inventory.files) == 4
    assert set(sizes) == {sum(piece.size for piece in inventory.pieces)}
    assert len(sizes) <= 2
