"""Runs record the process that executes them, so that runs of processes that died are closed."""

from __future__ import annotations

import multiprocessing
import os
import socket
from typing import Any

import dagster as dg
import pytest

from helpers.sample_platform import Platform
from nanoset_assets.build.builder import USER_TAG
from nanoset_assets.history.run_owner import close_abandoned_runs, is_run_process, owner_tag
from nanoset_assets.names import Names
from nanoset_assets.tags import OWNER_TAG
from nanoset_core.storage.in_use import process_marks

DEAD_PROCESS = 2**22 - 7
"""A process id that is not in use."""
PLACE, PROCESS, STARTED_AT, _ = owner_tag(Names())[OWNER_TAG].split(":")
"""The machine or container of this process, its id, and when it was started."""


@pytest.fixture
def platform(make_project, instance) -> Platform:
    """A project of which nothing is built."""
    return Platform(make_project(), instance)


def start_run(platform: Platform, owner: str | None, **options: Any) -> str:
    """Start a run of a corpus in the name of a process, and return its id."""
    tags = {}
    if owner is not None:
        tags[OWNER_TAG] = owner
    run = platform.instance.create_run_for_job(
        job_def=platform.definitions.resolve_job_def("corpus"),
        status=dg.DagsterRunStatus.STARTED,
        tags=tags,
        **options,
    )
    return run.run_id


def started_runs(instance: dg.DagsterInstance) -> set[str]:
    """Return the ids of all runs that have not ended."""
    started = dg.RunsFilter(statuses=[dg.DagsterRunStatus.STARTED])
    return {run.run_id for run in instance.get_runs(started)}


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(f"{PLACE}:{DEAD_PROCESS}:1:", id="a process that has ended"),
        pytest.param(
            f"{PLACE}:{PROCESS}:{int(STARTED_AT) + 1}:",
            id="an earlier process with the id of this one",
        ),
    ],
)
def test_a_run_whose_process_has_died_is_closed(platform, owner):
    run_id = start_run(platform, owner)

    assert close_abandoned_runs(platform.instance, Names()) == [run_id]
    assert started_runs(platform.instance) == set()


@pytest.mark.parametrize(
    "owner",
    [
        pytest.param(owner_tag(Names())[OWNER_TAG], id="this process"),
        pytest.param(f"other-{PLACE}:{DEAD_PROCESS}:1:", id="a process on another machine"),
        pytest.param(
            f"{socket.gethostname()}:{DEAD_PROCESS}:1:",
            id="a process of an earlier version, perhaps in another container with this host name",
        ),
        pytest.param(None, id="an unknown process"),
    ],
)
def test_a_run_whose_process_may_be_alive_is_left_alone(platform, owner):
    run_id = start_run(platform, owner)

    assert close_abandoned_runs(platform.instance, Names()) == []
    assert started_runs(platform.instance) == {run_id}


def test_a_run_whose_process_was_killed_but_is_still_listed_is_closed(platform):
    # Linux lists a process (as a zombie) until its parent asks for its exit code.
    read_end, write_end = os.pipe()
    process = os.fork()
    if process == 0:
        os.write(write_end, owner_tag(Names())[OWNER_TAG].encode())
        os._exit(1)
    owner = os.read(read_end, 1000).decode()
    os.waitid(os.P_PID, process, os.WEXITED | os.WNOWAIT)  # does not ask for the exit code

    run_id = start_run(platform, owner)
    closed = close_abandoned_runs(platform.instance, Names())
    os.waitpid(process, 0)

    assert closed == [run_id]


def test_a_process_of_another_container_with_the_same_host_name_is_not_looked_up(
    platform, monkeypatch
):
    owner = f"{PLACE}:{DEAD_PROCESS}:1:"
    run_id = start_run(platform, owner)
    monkeypatch.setattr(os, "readlink", lambda path: "pid:[4026532999]")  # another namespace
    process_marks.place_of_process_ids.cache_clear()

    closed = close_abandoned_runs(platform.instance, Names())
    process_marks.place_of_process_ids.cache_clear()

    assert closed == []
    assert started_runs(platform.instance) == {run_id}


@pytest.mark.parametrize("sensor", ["raw_text", "missing_or_stale"])
def test_each_sensor_closes_runs_whose_process_has_died(platform, sensor):
    start_run(platform, f"{PLACE}:{DEAD_PROCESS}:1:")

    platform.evaluate(sensor)

    assert started_runs(platform.instance) == set()


def test_a_retry_that_copied_the_process_of_its_parent_is_left_alone(platform):
    # Dagster copies the tags of the parent before the retry has a process of its own.
    parent_id = start_run(platform, f"{PLACE}:{DEAD_PROCESS}:1:")
    retry_id = start_run(
        platform,
        f"{PLACE}:{DEAD_PROCESS}:1:{parent_id}",
        parent_run_id=parent_id,
        root_run_id=parent_id,
    )

    assert close_abandoned_runs(platform.instance, Names()) == [parent_id]
    assert started_runs(platform.instance) == {retry_id}


def test_the_process_of_a_step_is_not_the_process_of_its_run():
    # No pool: it ends its workers by SIGTERM, which Dagster may have let this process ignore.
    step_process = multiprocessing.get_context("fork").Process(
        target=lambda: os._exit(int(is_run_process()))
    )
    step_process.start()
    step_process.join()

    assert is_run_process()
    assert step_process.exitcode == 0


def test_every_run_of_a_build_records_its_process(built_platform):
    for run in built_platform.instance.get_runs():
        assert run.tags[OWNER_TAG] == owner_tag(Names(), run.run_id)[OWNER_TAG]


def test_the_tags_of_a_build_are_hidden_in_the_ui_except_for_the_user(built_platform):
    for run in built_platform.instance.get_runs():
        for tag in run.tags:
            assert tag == USER_TAG or tag.startswith((".dagster/", "dagster/"))
