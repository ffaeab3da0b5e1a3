"""What tars are compared with when they are verified."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

from helpers.building import make_corpora, make_webdataset
from helpers.inspecting import current_output
from nanoset_core.errors import MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset import verify as webdataset
from nanoset_core.stages.webdataset.make import current_plan


def test_pads_outside_of_the_vocabulary_where_the_datasets_are_gone(make_project, monkeypatch):
    project = Project.open(make_project())
    make_corpora(project)
    make_webdataset(project, "shuffled")
    manifest, plan = current_plan(project, "shuffled")
    pad = project.tokenizer.max_id + 3
    padded = SimpleNamespace(settings=SimpleNamespace(pad_id=pad), table=plan.table)
    monkeypatch.setattr(webdataset, "current_plan", lambda *_: (manifest, padded))
    monkeypatch.setattr(
        webdataset, "_open_source", Mock(side_effect=MissingError("the dataset is gone"))
    )
    tars = current_output(project, "webdatasets/shuffled")

    plan_digest = tars.recipe["parents"]["plan"]
    found = webdataset._expected_contexts(project, tars, plan_digest=plan_digest, deep=True)

    assert (found.greatest_id, found.plan) == (pad, None)
