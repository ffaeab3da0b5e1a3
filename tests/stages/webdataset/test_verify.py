"""What tars are compared with when they are verified."""

from __future__ import annotations

from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np

from helpers.building import make_corpora, make_webdataset
from helpers.inspecting import current_output
from nanoset_core.errors import MissingError
from nanoset_core.project.project import Project
from nanoset_core.stages.webdataset import verify as webdataset
from nanoset_core.stages.webdataset.make import current_plan


def test_a_padding_token_outside_of_the_vocabulary_is_allowed_even_if_datasets_were_deleted(
    make_project, monkeypatch
):
    project = Project.open(make_project())
    make_corpora(project)
    make_webdataset(project, "shuffled")
    tars = current_output(project, "webdatasets/shuffled")

    # The plan has such a padding token, and its datasets were deleted.
    manifest, plan = current_plan(project, "shuffled")
    pad_id = project.tokenizer.max_id + 3
    padded_plan = SimpleNamespace(settings=SimpleNamespace(pad_id=pad_id), table=plan.table)
    monkeypatch.setattr(webdataset, "current_plan", lambda *_: (manifest, padded_plan))
    error = MissingError("the dataset was deleted")
    monkeypatch.setattr(webdataset, "_open_source", Mock(side_effect=error))

    plan_digest = tars.recipe["parents"]["plan"]
    expected = webdataset._expected_contexts(project, tars, plan_digest=plan_digest, deep=True)

    assert expected.greatest_id == pad_id
    assert expected.plan is None


def test_a_wrong_context_is_quoted_from_the_first_token_on_that_differs():
    planned = np.arange(100)
    context = planned.copy()
    context[70] = 7

    difference = webdataset._compare_context(
        context, webdataset._ExpectedContexts(length=100, greatest_id=99), planned
    )

    assert difference.found == "from token 70 on: [7, 71, 72, 73, 74, 75, 76, 77] …"
    assert difference.expected == "[70, 71, 72, 73, 74, 75, 76, 77] …, by the plan"
