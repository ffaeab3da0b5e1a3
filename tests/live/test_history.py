"""The UI shows the runs of `nanoset build`, although `dagster dev` has not launched them."""

from __future__ import annotations

import dagster as dg
import pytest
from live.dagster_dev import dagster_dev, query

from nanoset_assets.build.builder import build
from nanoset_assets.history.instance import dagster_home
from nanoset_core.project.project import Project

LOCATION = "nanoset_assets.definitions"
RUNS_OF_JOB = """
{
  pipelineOrError(params: {
    pipelineName: "corpus", repositoryName: "__repository__", repositoryLocationName: "%s"
  }) {
    ... on Pipeline { runs(limit: 10) { status } }
  }
}
"""
"""What the page of a job asks for."""
RUNS_OF_TIMELINE = """
{
  runsOrError(limit: 100) {
    ... on Runs { results {
      status
      repositoryOrigin { repositoryName repositoryLocationName }
    } }
  }
}
"""
"""What the timeline asks for."""


@pytest.mark.parametrize("module", [None, LOCATION], ids=["workspace.yaml", "a module"])
def test_runs_of_a_build_are_on_the_timeline_and_on_the_page_of_their_job(
    make_project, tmp_path, monkeypatch, module
):
    # Build three corpora.
    home = tmp_path / "home"
    monkeypatch.setenv("DAGSTER_HOME", str(home))
    settings = "raw: raw\nautomation: {enabled: false}\n"
    config_file = make_project(replacements={"raw: raw\n": settings})
    project = Project.open(config_file)
    with dg.DagsterInstance.from_config(str(dagster_home(project.config))) as instance:
        assert not build(project, instance, select="raw_jsonl").failed

    with dagster_dev(config_file, home, tmp_path / "dev.log", module=module) as address:
        job = query(address, RUNS_OF_JOB % LOCATION)["pipelineOrError"]
        timeline = query(address, RUNS_OF_TIMELINE)["runsOrError"]["results"]

    origin = {"repositoryName": "__repository__", "repositoryLocationName": LOCATION}
    assert job["runs"] == [{"status": "SUCCESS"}] * 3
    assert timeline == [{"status": "SUCCESS", "repositoryOrigin": origin}] * 3
