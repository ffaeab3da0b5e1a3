"""Tasks run in the same way in this process, in processes of this machine, and on clusters."""

from __future__ import annotations

import errno
import math
import platform
import re
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from helpers import dask_cluster, ray_cluster
from helpers.building import make_inventory, make_shards
from helpers.sample_project import tree
from helpers.worker_tasks import (
    NewFile,
    create_file,
    raise_error,
    raise_input_error,
    report_and_wait,
)
from nanoset_core.errors import InputError, NanosetError
from nanoset_core.execution.cluster import TaskCluster
from nanoset_core.execution.cluster_connection import connections_kept
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import TaskNote, progress_reported_to, report_progress
from nanoset_core.execution.ray_cluster import RayCluster
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess

DASK_WORKER = rf"on the worker tcp://[\d.:]+ of {re.escape(platform.node())}"
"""How messages name a worker of Dask."""
RAY_WORKER = rf"on the Ray worker [\d.]+ \(process \d+\) of {re.escape(platform.node())}"
"""How messages name a worker of Ray."""

Work = Callable[[Any], Any]
"""A function of a task."""
Results = Iterator[tuple[int, Any]]
"""Yields (number of a task, its result)."""
Run = Callable[[Work, Iterable[Any]], Results]
"""Calls a function for each task."""


@pytest.fixture(scope="module")
def dask_scheduler(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DaskScheduler]:
    """A Dask cluster with two workers."""
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with dask_cluster.running(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.staff(2)
        yield DaskScheduler(cluster.address)


@pytest.fixture(scope="module")
def ray_nodes() -> Iterator[RayCluster]:
    """A Ray cluster with two workers, to which this process stays connected, to save time."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with ray_cluster.running() as nodes, connections_kept():
        nodes.add_node(n_cpus=2)
        yield RayCluster(nodes.address)


def run_in_this_process(work: Work, tasks: Iterable[Any]) -> Results:
    """Run tasks one after another."""
    return run_tasks(work, tasks, 1)


def run_in_processes(work: Work, tasks: Iterable[Any]) -> Results:
    """Run tasks in three processes of this machine."""
    return run_tasks(work, tasks, 3)


@pytest.fixture(params=["this process", "processes", "dask", "ray"])
def run(request: pytest.FixtureRequest, tmp_path: Path) -> Run:
    """A function that runs tasks."""
    if request.param == "this process":
        return run_in_this_process
    if request.param == "processes":
        return run_in_processes
    fixture = "dask_scheduler" if request.param == "dask" else "ray_nodes"
    cluster: TaskCluster = request.getfixturevalue(fixture)
    return ClusterExecutor(cluster, FileAccess(tmp_path / "shared")).run


def test_each_task_has_one_result_with_its_number(run):
    tasks = list(range(23))  # more than are handed out at a time

    results = run(math.factorial, tasks)

    expected_results = [math.factorial(task) for task in tasks]
    assert sorted(results) == list(enumerate(expected_results))


def test_no_tasks_have_no_results(run):
    assert list(run(math.factorial, [])) == []


def test_the_first_error_ends_a_run(run, tmp_path):
    """Tasks that were not in progress never begin."""
    n_files = 200
    files = [NewFile(tmp_path / str(number), sleep_seconds=0.1) for number in range(n_files)]

    with pytest.raises(ZeroDivisionError):
        list(run(create_file, [None, *files]))

    assert len(list(tmp_path.glob("*[0-9]"))) < n_files / 2


@pytest.mark.parametrize(
    ("run", "where"),
    [
        pytest.param("this process", "a:3", id="this process"),
        pytest.param("processes", "a:3", id="processes"),
        pytest.param("dask", f"a:3, {DASK_WORKER}", id="dask"),
        pytest.param("ray", f"a:3, {RAY_WORKER}", id="ray"),
    ],
    indirect=["run"],
)
def test_an_error_of_nanoset_keeps_its_parts_and_a_cluster_adds_the_worker(run, where):
    with pytest.raises(InputError) as caught:
        list(run(raise_input_error, [1, 2]))

    assert type(caught.value) is InputError
    assert caught.value.what == "what"
    assert re.fullmatch(where, caught.value.where)
    assert caught.value.remedy == "what to do"


@pytest.mark.parametrize(
    ("run", "worker"),
    [pytest.param("dask", DASK_WORKER, id="dask"), pytest.param("ray", RAY_WORKER, id="ray")],
    indirect=["run"],
)
@pytest.mark.parametrize(
    ("error", "what"),
    [
        pytest.param(
            OSError(errno.ENOSPC, "No space left on device"), "the disk is full", id="disk"
        ),
        pytest.param(MemoryError("malloc failed"), "there is not enough memory", id="memory"),
    ],
)
def test_a_cluster_names_the_worker_that_lacks_disk_space_or_memory(
    run, worker, error, what, tmp_path
):
    with pytest.raises(NanosetError) as caught:
        list(run(raise_error, [error]))

    assert caught.value.what == what
    # It also names the folder that the worker writes outputs to, since the system does not say
    # which one is full.
    shared_folder = re.escape(str(tmp_path / "shared"))
    assert re.fullmatch(f"{shared_folder}, {worker}", caught.value.where)


def test_the_notes_of_a_task_arrive_before_its_result(run):
    tasks = [TaskNote(str(number)) for number in range(6)]
    notes: list[TaskNote] = []

    with progress_reported_to(notes.append):
        for number, _result in run(report_progress, tasks):
            assert tasks[number] in notes

    assert sorted(notes, key=lambda note: note.text) == tasks


def test_notes_after_the_block_that_receives_them_are_dropped(run):
    notes: list[TaskNote] = []
    with progress_reported_to(notes.append):
        pass

    list(run(report_progress, [TaskNote("1"), TaskNote("2")]))

    assert notes == []


def test_the_notes_of_a_task_arrive_while_it_is_in_progress(run, tmp_path):
    """Each task waits for a file that is created when its note arrives."""
    files = [tmp_path / str(number) for number in range(4)]

    with progress_reported_to(lambda note: Path(note.text).touch()):
        results = list(run(report_and_wait, files))

    assert sorted(results) == [(0, True), (1, True), (2, True), (3, True)]


def test_shards_that_workers_of_dask_have_made_are_those_of_this_process(
    dask_scheduler, make_project
):
    # tests/execution/test_dask.py builds everything on a cluster, which takes long.
    executor = f"executor: {{kind: dask, address: '{dask_scheduler.address}'}}\n"
    remote = Project.open(make_project("remote", {"nanosets:\n": f"{executor}nanosets:\n"}))
    local = Project.open(make_project("local"))

    for project in (remote, local):
        make_inventory(project, "web")
        make_shards(project, "web")

    assert tree(remote.outputs.folder / "shards") == tree(local.outputs.folder / "shards")
