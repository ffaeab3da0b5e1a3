"""How two inventories of a corpus are compared, in words."""

from __future__ import annotations

from helpers.sample_project import jsonl, sentences
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.changes import what_changed
from nanoset_core.stages.inventory.make import survey_corpus


def test_an_inventory_says_what_changed(make_project):
    project = Project.open(make_project())
    folder = project.config.raw_folder / "web"
    before = survey_corpus(project, "web")
    assert what_changed(None, before) == "the first inventory"
    assert what_changed(before, survey_corpus(project, "web")) == "nothing"
    (folder / "part-0" / "web-0.jsonl").unlink()
    (folder / "part-0" / "web-1.jsonl").write_bytes(jsonl(sentences("other", 3)))
    (folder / "new-0.jsonl").write_bytes(jsonl(sentences("new", 2)))
    (folder / "new-1.jsonl").write_bytes(jsonl(sentences("new", 1)))
    assert (
        what_changed(before, survey_corpus(project, "web"))
        == "2 files added, 1 file removed, 1 file changed"
    )
