"""Tasks that run on a Dask cluster, and builds that give their work to one."""

from __future__ import annotations

import json
import logging
import math
import pickle
import platform
import re
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from helpers.build_processes import start_build
from helpers.building import (
    build_all,
    finish_webdataset,
    make_corpora,
    make_inventory,
    make_shuffle_plan,
    make_tars,
    make_webdataset,
)
from helpers.child_processes import wait_until
from helpers.dask_cluster import Cluster, executor_on, running, within
from helpers.inspecting import current_output, node_at
from helpers.interrupted_builds import check_build_is_interrupted
from helpers.killed_writers import kill_first_writer
from helpers.progress import RecordingDisplay
from helpers.sample_project import FEWER, ONE_LARGE_TAR, tree
from helpers.worker_tasks import (
    LateNote,
    NewFile,
    create_file,
    deadly_result,
    process_id_after,
    report_note,
    warn_of_bucket,
)
from nanoset_core.errors import MissingError, NanosetError
from nanoset_core.execution.cluster_connection import connections_kept
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.dask_scheduler import DaskScheduler
from nanoset_core.execution.progress import (
    TaskNote,
    progress_reported_to,
)
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project

pytestmark = pytest.mark.slow
"""The tests start a Dask cluster, and kill its workers."""

WORKER = rf"on the worker tcp://[\d.:]+ of {re.escape(platform.node())}"
"""How messages name a worker."""

Work = Callable[[Any], Any]
"""A function of a task."""
Results = Iterator[tuple[int, Any]]
"""Yields (number of a task, its result)."""
Run = Callable[[Work, Iterable[Any]], Results]
"""Calls a function for each task."""


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A Dask cluster, to which tests add workers."""
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture
def executor(cluster: Cluster, tmp_path: Path) -> ClusterExecutor:
    """An executor on the cluster with two workers."""
    cluster.staff(2)
    return executor_on(tmp_path / "shared", cluster.address)


@pytest.fixture(scope="module")
def on_cluster(cluster: Cluster) -> dict[str, str]:
    """Replacements in the settings of the sample project that give its work to the cluster."""
    executor_settings = f"executor: {{kind: dask, address: '{cluster.address}'}}\n"
    return {"webdatasets:\n": f"{executor_settings}webdatasets:\n"}


def digests_of_outputs(project: Project) -> dict[str, str]:
    """Return the sha256 of each file of the outputs of a project."""
    return tree(project.outputs.folder)


# Runs


def test_concurrent_runs_receive_only_the_notes_of_their_own_tasks(executor, tmp_path):
    file = tmp_path / "go on"
    long_notes: list[TaskNote] = []
    short_notes: list[TaskNote] = []

    with connections_kept(), progress_reported_to(long_notes.append):
        first_task = LateNote(text=None, awaited_file=None)
        second_task = LateNote("long", awaited_file=file)
        long_run = executor.run(report_note, [first_task, second_task])
        next(long_run)

        # Another run begins and ends while the second task of the first run waits.
        with progress_reported_to(short_notes.append):
            list(executor.run(report_note, [LateNote("short", awaited_file=None)]))

        file.touch()
        list(long_run)

    assert [note.text for note in long_notes] == ["long"]
    assert [note.text for note in short_notes] == ["short"]


def test_a_warning_about_a_bucket_names_the_worker(executor, caplog):
    list(executor.run(warn_of_bucket, ["s3://b/k: no answer"]))

    [warning] = caplog.messages
    assert re.fullmatch(rf"s3://b/k: no answer \({WORKER}\)", warning)


def test_all_workers_take_part(cluster, executor):
    results = executor.run(process_id_after, [0.05] * 12)

    assert {pid for _number, pid in results} == set(cluster.staff(2))


def test_tasks_do_not_begin_after_the_results_are_no_longer_read(executor, tmp_path):
    tasks = [NewFile(tmp_path / f"file {number}", sleep_seconds=0.3) for number in range(40)]
    results = executor.run(create_file, tasks)
    next(results)

    results.close()

    time.sleep(1.0)  # in which more tasks could begin
    files = list(tmp_path.glob("file *"))
    assert 1 <= len(files) <= 5
    assert list(executor.shared.folder.iterdir()) == []


# Builds


def test_a_build_on_a_cluster_has_the_bytes_of_a_local_one(make_project, on_cluster, cluster):
    cluster.staff(2)
    local = build_all(make_project("local", FEWER))
    remote = build_all(make_project("remote", on_cluster | FEWER))

    # It uses the scheduler of the settings, and workers receive the tokenizer.
    scheduler = DaskScheduler(cluster.address, where=f"{remote.config.file}: executor.address")
    tokenizer = remote.config.tokenizer_file
    assert remote.executor == ClusterExecutor(scheduler, remote.config.root_access, (tokenizer,))

    digests = digests_of_outputs(remote)
    assert digests == digests_of_outputs(local)
    assert not [name for name in digests if ".tmp-" in name]

    # A deep verification on the cluster reports the same.
    local_reports = list(verify_project(local, deep=True))
    remote_reports = list(verify_project(remote, deep=True))
    local_json = [report.to_json() for report in local_reports]
    assert [report.to_json() for report in remote_reports] == local_json
    assert len(remote_reports) == len(targets(local))
    assert all(report.passed for report in remote_reports)


def test_all_engines_write_the_same_tars_on_a_cluster(make_project, on_cluster, cluster):
    """The tasks of the engine `buckets` remove the files that they worked on."""
    cluster.staff(2)
    tars_by_engine: dict[str, dict[str, str]] = {}
    for engine in ("mmap", "buckets"):
        replacements = on_cluster | {
            "    groups: 3": f"    groups: 2\n    engine: {engine}",
            "member: npy": "member: json.gz",
        }
        project = Project.open(make_project(engine, replacements))
        make_corpora(project)
        make_webdataset(project, "shuffled")
        tars: dict[str, str] = {}
        for name, digest in digests_of_outputs(project).items():
            if "shard-" in name:
                tars[name] = digest
        tars_by_engine[engine] = tars

    assert tars_by_engine["mmap"]
    assert tars_by_engine["mmap"] == tars_by_engine["buckets"]


def test_a_build_does_not_change_recipes_because_of_its_executor(make_project, on_cluster):
    """Otherwise, all outputs would be built again on a cluster."""
    local = Project.open(make_project("local"))
    remote = Project.open(make_project("remote", on_cluster))
    assert local.executor is None
    shards = node_at("tokenized/web")
    digests: list[str] = []

    for project in (local, remote):
        make_inventory(project, "web")
        recipe = shards.stage.recipe(project, shards.key, {"inventory": "0" * 20})
        digests.append(recipe.digest)

    assert digests[0] == digests[1]


def test_a_project_can_be_sent_to_a_worker(make_project, on_cluster):
    project = Project.open(make_project("remote", on_cluster))

    unpickled = pickle.loads(pickle.dumps(targets(project)))

    assert unpickled[0].name == targets(project)[0].name


# Workers that are killed


def test_a_tar_that_a_killed_worker_began_is_written_by_another_one(
    make_project, on_cluster, cluster
):
    pids = cluster.staff(2)
    local = Project.open(make_project("local", ONE_LARGE_TAR))
    make_corpora(local)
    make_webdataset(local, "shuffled")
    local_folder = current_output(local, "webdatasets/shuffled").folder
    remote = Project.open(make_project("remote", ONE_LARGE_TAR | on_cluster))
    make_corpora(remote)
    make_shuffle_plan(remote, "shuffled")
    remote = Project.open(remote.config.file)

    def write_tars() -> None:
        for group in range(3):
            make_tars(remote, "shuffled", group)

    folder = remote.outputs.folder / local_folder.relative_to(local.outputs.folder)
    killed_pid = kill_first_writer(write_tars, folder, lambda: pids)
    finish_webdataset(remote, "shuffled")

    dead_pids = [worker.pid for worker in cluster.workers if worker.poll() is not None]
    assert dead_pids == [killed_pid]
    tars = tree(local.outputs.folder / "webdatasets")
    assert tree(remote.outputs.folder / "webdatasets") == tars


def test_a_task_that_kills_every_worker_is_reported(executor):
    with pytest.raises(NanosetError, match="workers were killed, one after the other") as caught:
        list(executor.run(signal.raise_signal, [signal.SIGKILL]))

    # The error does not name the function, which says nothing to a user.
    assert caught.value.where is None
    assert "more memory" in caught.value.remedy


def test_workers_that_do_not_share_the_output_folder_are_reported(cluster, tmp_path, monkeypatch):
    cluster.staff(2)
    monkeypatch.chdir(tmp_path)
    # It is another folder in each process.
    executor = executor_on(Path("/proc/self/cwd/shared"), cluster.address)

    with pytest.raises(MissingError, match="a worker does not see the output folder") as caught:
        list(executor.run(abs, [-1, -2]))

    assert "/proc/self/cwd/shared, on the worker tcp://" in caught.value.where
    assert "one file system" in caught.value.remedy


# Clusters without workers, and without a scheduler


@pytest.fixture
def log_records() -> Iterator[list[logging.LogRecord]]:
    """What Dask's client logs in a test."""
    records: list[logging.LogRecord] = []
    handler = logging.Handler()
    handler.emit = records.append
    logger = logging.getLogger("distributed.client")
    logger.addHandler(handler)
    yield records
    logger.removeHandler(handler)


def test_a_run_ends_if_the_workers_or_the_scheduler_disappear(tmp_path, log_records):
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    with running(tmp_path) as cluster:
        executor = executor_on(tmp_path / "shared", cluster.address, wait_seconds=0.3)

        # No worker was ever started.
        with pytest.raises(MissingError, match="has no workers") as caught:
            list(executor.run(abs, [-1]))
        assert f"dask worker {cluster.address}" in caught.value.remedy

        # The only worker dies, and nobody starts another one.
        cluster.staff(1)
        with pytest.raises(MissingError, match="has no workers"):
            list(executor.run(deadly_result, [1]))

        # The scheduler dies in the middle of a run.
        [worker_pid] = cluster.staff(1)
        results = executor.run(process_id_after, [0, 60])
        assert next(results) == (0, worker_pid)
        cluster.scheduler.kill()
        with pytest.raises(NanosetError, match="the Dask cluster dropped the tasks"):
            next(results)

    assert list((tmp_path / "shared").iterdir()) == []
    # Dask's client tries to connect again until this package closes it, and logs no traceback.
    assert [record.getMessage() for record in log_records if record.exc_info] == []


def test_a_run_waits_for_its_scheduler_and_workers_and_says_so(tmp_path):
    scheduler_file = tmp_path / "scheduler.json"
    display = RecordingDisplay()
    executor = executor_on(
        tmp_path / "shared", file=scheduler_file, wait_seconds=60, progress=display.progress
    )
    results: list[tuple[int, int]] = []

    def run_all() -> None:
        results.extend(executor.run(math.factorial, range(5)))

    def is_shown(name: str) -> bool:
        return name in {work.name for work in display.works}

    with within() as late_cluster:  # it has no workers yet
        thread = threading.Thread(target=run_all)
        thread.start()
        assert wait_until(lambda: is_shown(f"for the Dask scheduler {scheduler_file}"))

        # At first, the file is incomplete, as one that is just being written. The run may read it
        # in this state, or only afterwards.
        scheduler_file.write_text('{"addr')
        scheduler_file.write_text(json.dumps({"address": late_cluster.scheduler_address}))
        assert wait_until(lambda: is_shown(f"for workers of {scheduler_file}"))
        assert wait_until(lambda: len(late_cluster.scheduler.tasks) == 5)

        # The cluster starts workers because there are tasks.
        late_cluster.adapt(minimum=0, maximum=2, interval="50ms")
        thread.join(20)

    assert sorted(results) == [(0, 1), (1, 1), (2, 2), (3, 6), (4, 24)]
    assert {work.stage for work in display.works} == {"waiting"}
    last_work_by_name = {work.name: work for work in display.works}
    assert len(last_work_by_name) == 2  # the scheduler, and its workers
    for work in last_work_by_name.values():
        assert work.done == work.total


def test_sigterm_ends_a_build_that_waits_for_workers(make_project, monkeypatch):
    """Slurm sends SIGTERM. The build has said what it waits for."""
    config = make_project("remote")
    with within() as idle_cluster:
        address = idle_cluster.scheduler_address
        monkeypatch.setenv("NANOSET_DASK_ADDRESS", address)
        build = start_build(config, "--corpus", "web")
        build.wait_for_line("waiting for workers")
        assert wait_until(lambda: idle_cluster.scheduler.tasks)
        build.process.terminate()
        build.process.join(60)

    messages = build.output.read_text()
    assert build.process.exitcode == 128 + signal.SIGTERM, messages
    assert f"waiting for workers of {address}: 0 s so far, up to 1 min" in messages
    assert messages.splitlines()[-1].startswith("ended by SIGTERM: ")
    assert "Traceback" not in messages


def test_a_signal_ends_a_build_and_its_tasks(tmp_path, tokenizer_file, cluster):
    cluster.staff(2)
    scheduler_file = str(cluster.folder / "scheduler.json")
    settings = {"executor": {"kind": "dask", "scheduler_file": scheduler_file}}

    check_build_is_interrupted(
        tmp_path, tokenizer_file, [signal.SIGINT, signal.SIGINT], settings=settings
    )


# Connections


@pytest.fixture
def clients(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """All clients of Dask that are created in a test."""
    import distributed

    clients: list[Any] = []
    original_client = distributed.Client

    def create_client(*arguments, **options):
        client = original_client(*arguments, **options)
        clients.append(client)
        return client

    monkeypatch.setattr(distributed, "Client", create_client)
    return clients


def statuses(clients: Sequence[Any]) -> list[str]:
    """Return whether each client is running or closed."""
    return [client.status for client in clients]


def test_a_run_closes_its_connection(executor, clients):
    assert list(executor.run(abs, [-1])) == [(0, 1)]

    assert statuses(clients) == ["closed"]


def test_a_build_connects_once_for_all_runs(executor, clients):
    with connections_kept():
        for _ in range(2):
            assert list(executor.run(abs, [-1])) == [(0, 1)]
        assert statuses(clients) == ["running"]

    assert statuses(clients) == ["closed"]


def test_a_build_connects_again_after_it_has_lost_its_connection(executor, clients):
    with connections_kept():
        list(executor.run(abs, [-1]))
        clients[0].close()

        # A block within another one keeps the connection of the outer one.
        with connections_kept():
            assert list(executor.run(abs, [-1])) == [(0, 1)]
        assert statuses(clients) == ["closed", "running"]

    assert statuses(clients) == ["closed", "closed"]


def test_a_connection_is_retried_if_a_worker_joins_meanwhile(executor, monkeypatch):
    """Then a message of the scheduler arrives together with its greeting, and Dask's client fails
    with an AssertionError.
    """
    import distributed

    n_attempts = 0

    class InterruptedClient(distributed.Client):
        async def _ensure_connected(self, timeout=None):
            nonlocal n_attempts
            n_attempts += 1
            assert n_attempts > 2
            await super()._ensure_connected(timeout)

    monkeypatch.setattr(distributed, "Client", InterruptedClient)

    assert sorted(executor.run(abs, [-1, -2])) == [(0, 1), (1, 2)]

    assert n_attempts == 3
