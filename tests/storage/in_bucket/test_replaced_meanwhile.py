"""A deep verification notices if a file in a bucket is replaced while it is being read."""

from __future__ import annotations

from pathlib import Path

import pytest

from helpers.building import make_corpora, make_pbin
from helpers.inspecting import node_at
from nanoset_core.project.project import Project
from nanoset_core.stages.report import DividedCheck, Report, run_here
from nanoset_core.storage.stores.s3.store import S3Store


@pytest.fixture
def project(remote_project) -> Project:
    """A project in a bucket, with the .pbin of its corpus web."""
    config: Path = remote_project()
    project = Project.open(config)
    make_corpora(project, "web")
    make_pbin(project, "web")
    return Project.open(config)


@pytest.mark.parametrize("ending", [".bin", ".pbin"])
def test_a_file_that_is_replaced_while_a_pbin_is_verified_is_an_error(
    project: Project, place: S3Store, ending: str
) -> None:
    def replace_and_run(report: Report, check: DividedCheck) -> None:
        """Replace the file by a longer one with the same tokens, and then compare the tokens."""
        for folder in ("datasets/web", "packed/web"):
            for stored in place.list(folder):
                if stored.name.endswith(ending):
                    place.put(stored.name, place.read(stored.name) + b"more")
        run_here(report, check)

    pbin = node_at("packed/web")
    report = pbin.stage.verify(project, pbin.key, deep=True, run=replace_and_run)

    (error,) = report.errors
    assert error.what == "the object is not the one that was listed"
    assert error.where.endswith(ending)
