"""What `nanoset build` has made is in the history that the UI shows."""

from __future__ import annotations

import dagster as dg
import pytest
from live.dagster_dev import dagster_dev, query

from nanoset_assets.build import build
from nanoset_assets.instance import dagster_home
from nanoset_core.project.project import Project

LOCATION = "nanoset_assets.definitions"
JOB = """{ pipelineOrError(params: {
    pipelineName: "corpus", repositoryName: "__repository__", repositoryLocationName: "%s"
}) { ... on Pipeline { runs(limit: 10) { status } } } }"""
TIMELINE = """{ runsOrError(limit: 100) { ... on Runs { results {
    status repositoryOrigin { repositoryName repositoryLocationName } } } } }"""


@pytest.mark.parametrize("module", [None, LOCATION])
def test_runs_of_a_build_are_on_the_timeline_and_on_the_page_of_their_job(
    make_project, tmp_path, monkeypatch, module
):
    monkeypatch.setenv("DAGSTER_HOME", str(tmp_path / "home"))
    file = make_project(replacements={"raw: raw\n": "raw: raw\nautomation: {enabled: false}\n"})
    opened = Project.open(file)
    with dg.DagsterInstance.from_config(str(dagster_home(opened.config))) as instance:
        assert not build(opened, instance, select="raw_jsonl").failed
    with dagster_dev(file, tmp_path / "home", tmp_path / "dev.log", module=module) as address:
        assert (
            query(address, JOB % LOCATION)["pipelineOrError"]["runs"] == [{"status": "SUCCESS"}] * 3
        )
        runs = query(address, TIMELINE)["runsOrError"]["results"]
    origin = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}
    assert runs == [{"status": "SUCCESS", "repositoryOrigin": origin}] * 3
