"""A corpus is surveyed at little cost, however many files it has."""

from __future__ import annotations

from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import survey_corpus
from nanoset_core.text.contents import Contents


def test_files_are_added_up_once_for_all(make_project, monkeypatch):
    project = Project.open(make_project())
    sizes, real = list[int](), Contents.size
    monkeypatch.setattr(
        Contents, "size", property(lambda contents: sizes.append(real.fget(contents)) or sizes[-1])
    )
    taken = survey_corpus(project, "web")
    assert len(taken.files) == 4
    assert {*sizes} == {sum(piece.size for piece in taken.pieces)}
    assert len(sizes) <= 2, "not again for each file"
