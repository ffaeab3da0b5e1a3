"""The runs of `nanoset build` belong to a code location, so that Dagster's timeline and pages of
jobs show them.
"""

from __future__ import annotations

import time

import dagster as dg
import pytest
from dagster._core.remote_origin import GrpcServerCodeLocationOrigin, RemoteRepositoryOrigin
from dagster._core.scheduler.instigation import (
    InstigatorState,
    InstigatorStatus,
    InstigatorType,
    SensorInstigatorData,
)

from nanoset_assets.build import build
from nanoset_core.project.project import Project

LABEL = ".dagster/repository"
OVERVIEW_SENSOR = "overview"


@pytest.fixture
def project(make_project):
    return Project.open(make_project())


@pytest.fixture
def history(tmp_path):
    """A history on disk, which knows of sensors too."""
    (tmp_path / "home").mkdir()
    with dg.DagsterInstance.local_temp(str(tmp_path / "home")) as instance:
        yield instance


def tick(instance, location, seconds_ago, sensor=OVERVIEW_SENSOR):
    """Note that a sensor of a code location has ticked."""
    origin = RemoteRepositoryOrigin(
        GrpcServerCodeLocationOrigin("host", 4000, None, location), "__repository__"
    )
    data = SensorInstigatorData(last_tick_timestamp=time.time() - seconds_ago)
    state = InstigatorState(
        origin.get_instigator_origin(sensor),
        InstigatorType.SENSOR,
        InstigatorStatus.DECLARED_IN_CODE,
        data,
    )
    instance.add_instigator_state(state)


def locations(project, instance):
    assert not build(project, instance, select="raw_jsonl", rebuild=True).failed
    labels = {run.remote_job_origin.repository_origin.get_label() for run in instance.get_runs()}
    for label in labels:  # as the pages of jobs ask for runs
        assert instance.get_runs(dg.RunsFilter(tags={LABEL: label}))
    return labels


def test_before_any_sensor_has_ticked_it_is_that_of_the_command_that_a_build_prints(
    project, history
):
    assert locations(project, history) == {"__repository__@nanoset_assets.definitions"}
    (run, *_) = history.get_runs()
    assert run.remote_job_origin.location_name == "nanoset_assets.definitions"
    assert run.tags["dagster/code_location"] == "nanoset_assets.definitions"


def test_it_is_the_one_whose_sensor_ticked_last(project, history):
    tick(history, "old", seconds_ago=1000)
    tick(history, "platform", seconds_ago=10)
    tick(history, "somebody_elses", seconds_ago=1, sensor="another__overview")
    assert locations(project, history) == {"__repository__@platform"}


def test_a_history_in_memory_has_no_sensors_and_builds_too(project, instance):
    assert locations(project, instance) == {"__repository__@nanoset_assets.definitions"}


def test_dagster_does_not_begin_a_killed_build_again(project, history):
    assert not build(project, history, select="raw_jsonl").failed
    assert {run.tags["dagster/max_retries"] for run in history.get_runs()} == {"0"}


def test_the_instance_is_as_before_after_a_build(project, instance):
    assert not build(project, instance, select="raw_jsonl").failed
    assert "create_run_for_job" not in vars(instance)
