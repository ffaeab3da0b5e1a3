"""The runs of `nanoset build` belong to a code location, so that Dagster's pages show them."""

from __future__ import annotations

import time
from collections.abc import Iterator

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from nanoset_assets.build.builder import build
from nanoset_core.project.project import Project

REPOSITORY_TAG = ".dagster/repository"
"""The tag by which the pages of jobs look for their runs."""
DEFAULT_LOCATION = "nanoset_assets.definitions"
"""The code location of the command that `nanoset build` prints."""


@pytest.fixture
def project(make_project) -> Project:
    """A project that is not built."""
    return Project.open(make_project())


@pytest.fixture
def stored_instance(tmp_path) -> Iterator[dg.DagsterInstance]:
    """An instance with a history on disk, which also records sensors."""
    home = tmp_path / "home"
    home.mkdir()
    with dg.DagsterInstance.local_temp(str(home)) as instance:
        yield instance


def record_tick(
    instance: dg.DagsterInstance,
    location: str,
    *,
    seconds_ago: float,
    sensor: str = "overview",
) -> None:
    """Record that a sensor of a code location has ticked."""
    repository = RemoteRepositoryOrigin(
        GrpcServerCodeLocationOrigin("host", 4000, None, location), "__repository__"
    )
    state = InstigatorState(
        repository.get_instigator_origin(sensor),
        InstigatorType.SENSOR,
        InstigatorStatus.DECLARED_IN_CODE,
        SensorInstigatorData(last_tick_timestamp=time.time() - seconds_ago),
    )
    instance.add_instigator_state(state)


def build_corpora(project: Project, instance: dg.DagsterInstance) -> None:
    """Run a build."""
    assert not build(project, instance, select="raw_jsonl", rebuild=True).failed


def check_location(instance: dg.DagsterInstance, location: str) -> None:
    """Check that all runs belong to a code location, and that the pages of its jobs find them."""
    label = f"__repository__@{location}"
    runs = instance.get_runs()
    assert {run.remote_job_origin.repository_origin.get_label() for run in runs} == {label}
    assert instance.get_runs(dg.RunsFilter(tags={REPOSITORY_TAG: label}))


def test_runs_belong_to_the_location_whose_overview_ticked_last(project, stored_instance):
    record_tick(stored_instance, "old", seconds_ago=1000)
    record_tick(stored_instance, "platform", seconds_ago=10)
    record_tick(stored_instance, "somebody_elses", seconds_ago=1, sensor="another__overview")

    build_corpora(project, stored_instance)

    check_location(stored_instance, "platform")


def test_before_the_first_tick_runs_belong_to_the_location_of_the_printed_command(
    project, stored_instance
):
    build_corpora(project, stored_instance)

    check_location(stored_instance, DEFAULT_LOCATION)
    run = stored_instance.get_runs()[0]
    assert run.remote_job_origin.location_name == DEFAULT_LOCATION
    assert run.tags["dagster/code_location"] == DEFAULT_LOCATION


def test_runs_in_a_history_in_memory_belong_to_the_location_of_the_printed_command(
    project, instance
):
    build_corpora(project, instance)

    check_location(instance, DEFAULT_LOCATION)


def test_dagster_does_not_retry_the_runs_of_a_killed_build(project, stored_instance):
    build_corpora(project, stored_instance)

    assert {run.tags["dagster/max_retries"] for run in stored_instance.get_runs()} == {"0"}


def test_a_build_leaves_the_instance_as_it_was(project, instance):
    build_corpora(project, instance)

    assert "create_run_for_job" not in vars(instance)
