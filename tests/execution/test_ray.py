"""Tasks that run on a Ray cluster, and builds that give their work to one."""

from __future__ import annotations

import os
import re
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.building import (
    build_all,
    finish_webdataset,
    make_corpora,
    make_shuffle_plan,
    make_tars,
)
from helpers.child_processes import wait_until
from helpers.inspecting import current_output
from helpers.killed_writers import kill_first_writer
from helpers.progress import RecordingDisplay
from helpers.ray_cluster import RayNode, RayNodes, running
from helpers.sample_project import ONE_LARGE_TAR, tree
from helpers.worker_tasks import process_id_after, wait_for_interruption, warn_of_bucket
from nanoset_core.errors import ConfigError, MissingError, NanosetError, StaleError
from nanoset_core.execution import compatibility
from nanoset_core.execution.cluster_connection import connections_kept
from nanoset_core.execution.cluster_executor import ClusterExecutor
from nanoset_core.execution.compatibility import SoftwareVersion
from nanoset_core.execution.progress import (
    SILENT,
    Progress,
    TaskNote,
    progress_reported_to,
    report_progress,
)
from nanoset_core.execution.ray_cluster import RayCluster
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.storage.access import FileAccess


@pytest.fixture(scope="module")
def nodes() -> Iterator[RayNodes]:
    """A Ray cluster with a node that runs two tasks at a time."""
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with running() as nodes:
        nodes.add_node(n_cpus=2)
        yield nodes


@pytest.fixture
def executor(nodes: RayNodes, tmp_path: Path) -> ClusterExecutor:
    """An executor on this cluster."""
    return executor_on(tmp_path / "shared", nodes.address)


@pytest.fixture(scope="module")
def on_ray(nodes: RayNodes) -> dict[str, str]:
    """Replacements in the settings of the sample project that give its work to the cluster."""
    return replacements_for(nodes)


def replacements_for(nodes: RayNodes) -> dict[str, str]:
    """Return replacements in the sample project's settings that give its work to a cluster."""
    executor_settings = f"executor: {{kind: ray, address: '{nodes.address}'}}\n"
    return {"webdatasets:\n": f"{executor_settings}webdatasets:\n"}


def executor_on(
    folder: Path, address: str, progress: Progress = SILENT, **settings: object
) -> ClusterExecutor:
    """Return an executor on a Ray cluster.

    Args:
        folder: The folder that this process shares with the workers.
        address: Of the cluster.
        progress: Shows what is waited for.
        settings: Of the cluster.
    """
    return ClusterExecutor(RayCluster(address, **settings), FileAccess(folder), progress=progress)


# Runs


def test_a_warning_about_a_bucket_names_the_worker(executor, caplog):
    list(executor.run(warn_of_bucket, ["s3://b/k: no answer"]))

    [warning] = caplog.messages
    assert re.fullmatch(r"s3://b/k: no answer \(on the Ray worker [\d.]+ \(process .*\)", warning)


def test_all_workers_take_part(executor, nodes):
    results = list(executor.run(process_id_after, [0.2] * 12))

    pids = {pid for _number, pid in results}
    assert len(pids) == 2


def test_a_run_without_tasks_needs_no_cluster(tmp_path):
    executor = executor_on(tmp_path / "shared", "ray://127.0.0.1:1")

    assert list(executor.run(abs, [])) == []

    assert not (tmp_path / "shared").exists()


def test_a_task_is_interrupted_when_its_result_is_no_longer_read(executor, tmp_path):
    """It can clean up: it gets a KeyboardInterrupt."""
    folder = tmp_path / "task"
    folder.mkdir()
    with connections_kept():
        results = executor.run(wait_for_interruption_or_return, [None, folder])
        assert next(results) == (0, None)
        assert wait_until((folder / "begun").exists)

        results.close()

        assert wait_until((folder / "interrupted").exists)
    assert list(executor.shared.folder.iterdir()) == []


def wait_for_interruption_or_return(folder: Path | None) -> None:
    """Run `wait_for_interruption` in a folder; do nothing without one."""
    if folder is not None:
        wait_for_interruption(folder)


def test_notes_arrive_after_the_mailbox_was_killed(executor, nodes):
    """Ray starts this actor again, which passes on the notes of tasks."""
    notes: list[TaskNote] = []
    with connections_kept(), progress_reported_to(notes.append):
        list(executor.run(report_progress, [TaskNote("before")]))
        for pid in nodes.nodes[0].worker_pids():
            os.kill(pid, signal.SIGKILL)

        # A note is lost if the mailbox dies at this moment.
        def notes_arrive() -> bool:
            list(executor.run(report_progress, [TaskNote("after")]))
            return TaskNote("after") in notes

        assert wait_until(notes_arrive)


def test_a_task_that_kills_every_worker_is_reported(executor):
    with pytest.raises(NanosetError, match="workers were killed, one after the other") as caught:
        list(executor.run(signal.raise_signal, [signal.SIGKILL]))

    assert caught.value.where == "raise_signal"
    assert "more memory" in caught.value.remedy


def test_workers_that_do_not_share_the_output_folder_are_reported(nodes, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    # It is another folder in each process.
    executor = executor_on(Path("/proc/self/cwd/shared"), nodes.address)

    with pytest.raises(MissingError, match="a worker does not see the output folder") as caught:
        list(executor.run(abs, [-1, -2]))

    assert "/proc/self/cwd/shared, on the Ray worker" in caught.value.where
    assert "one file system" in caught.value.remedy


def test_workers_with_other_software_are_refused(executor, monkeypatch):
    other_software = (SoftwareVersion("numpy", "1.26.4"),)
    monkeypatch.setattr(compatibility, "software", lambda: other_software)

    with pytest.raises(StaleError, match="a worker runs other software") as caught:
        list(executor.run(abs, [-1]))

    assert "numpy 1.26.4" in caught.value.expected


# Builds


def test_a_build_on_ray_has_the_bytes_of_a_local_one(make_project, nodes, on_ray):
    local = build_all(make_project("local"))
    with connections_kept():
        remote = build_all(make_project("remote", on_ray))
        remote_json = [report.to_json() for report in verify_project(remote, deep=True)]

    # It uses the cluster of the settings, and workers receive the tokenizer.
    cluster = RayCluster(nodes.address, where=f"{remote.config.file}: executor.address")
    tokenizer = remote.config.tokenizer_file
    assert remote.executor == ClusterExecutor(cluster, remote.config.root_access, (tokenizer,))

    digests = tree(remote.outputs.folder)
    assert digests == tree(local.outputs.folder)
    assert not [name for name in digests if ".tmp-" in name]

    # A deep verification on the cluster reports the same.
    local_json = [report.to_json() for report in verify_project(local, deep=True)]
    assert remote_json == local_json
    assert len(remote_json) == len(targets(local))


def test_workers_remove_the_temporary_folders_of_earlier_workers(executor, nodes):
    def folders_after_a_run() -> set[Path]:
        list(executor.run(process_id_after, [0.1] * 4))
        return set(nodes.temporary_folder.glob(".tmp-nanoset*"))

    earlier_folders = folders_after_a_run()
    # The earlier workers have to end before.
    assert wait_until(lambda: not nodes.nodes[0].worker_pids())

    assert earlier_folders.isdisjoint(folders_after_a_run())


# Workers that are killed


def webdataset_with_killed_worker(
    remote: Project, local: Project, nodes: list[RayNode], *, kill_node: bool
) -> None:
    """Write a tar, and kill the worker that does it, or its whole node.

    Args:
        remote: The project, on a cluster.
        local: The same project without a cluster, which was built.
        nodes: The nodes with workers.
        kill_node: Whether to kill the whole node.
    """
    make_corpora(remote)
    make_shuffle_plan(remote, "shuffled")
    remote = Project.open(remote.config.file)

    def write_tars() -> None:
        for group in range(3):
            make_tars(remote, "shuffled", group)

    def worker_pids() -> list[int]:
        pids: list[int] = []
        for node in nodes:
            pids += node.worker_pids()
        return pids

    def kill(pid: int) -> None:
        if not kill_node:
            os.kill(pid, signal.SIGKILL)
            return
        [node] = [node for node in nodes if pid in node.pids()]
        node.kill()

    local_folder = current_output(local, "webdatasets/shuffled").folder
    folder = remote.outputs.folder / local_folder.relative_to(local.outputs.folder)
    kill_first_writer(write_tars, folder, worker_pids, kill)
    finish_webdataset(remote, "shuffled")


@pytest.mark.parametrize("kill_node", [False, True], ids=["process", "node"])
def test_a_tar_that_a_killed_worker_began_is_written_by_another_one(make_project, kill_node):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    local = build_all(make_project("local", ONE_LARGE_TAR))
    with running() as nodes, connections_kept():
        for _ in range(2):
            nodes.add_node(n_cpus=1)
        settings = ONE_LARGE_TAR | replacements_for(nodes)
        remote = Project.open(make_project("remote", settings))

        webdataset_with_killed_worker(remote, local, nodes.nodes, kill_node=kill_node)

    tars = tree(local.outputs.folder / "webdatasets")
    assert tree(remote.outputs.folder / "webdatasets") == tars


# Clusters that cannot be used


def test_a_run_waits_for_workers_and_says_so(tmp_path):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    display = RecordingDisplay()
    shared = tmp_path / "shared"
    with running() as nodes:
        impatient = executor_on(shared, nodes.address, wait_seconds=0.3)
        with pytest.raises(MissingError, match="the Ray cluster has no workers") as caught:
            list(impatient.run(abs, [-1]))
        assert "ray start --address=127.0.0.1:6379" in caught.value.remedy

        patient = executor_on(shared, nodes.address, display.progress, wait_seconds=120)
        results: list[tuple[int, int]] = []
        thread = threading.Thread(target=lambda: results.extend(patient.run(abs, [-1, -2])))
        thread.start()
        name = f"for workers of {nodes.address}"
        assert wait_until(lambda: name in {work.name for work in display.works})
        nodes.add_node()
        thread.join(120)

    assert sorted(results) == [(0, 1), (1, 2)]


# A thread of gRPC may notice that Ray closes the connection, and raise an error.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_run_ends_if_the_head_is_lost_and_the_next_one_connects_again(tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    # How long Ray tries to restore the connection.
    monkeypatch.setenv("RAY_CLIENT_RECONNECT_GRACE_PERIOD", "1")
    with running() as nodes:
        nodes.add_node()
        executor = executor_on(tmp_path / "shared", nodes.address)
        results = executor.run(process_id_after, [0, 600])
        next(results)

        nodes.head.kill()

        with pytest.raises(NanosetError, match="the Ray cluster dropped the tasks"):
            next(results)
    assert list((tmp_path / "shared").iterdir()) == []

    with running() as nodes:
        nodes.add_node()
        assert list(executor_on(tmp_path / "shared", nodes.address).run(abs, [-1])) == [(0, 1)]


@pytest.mark.parametrize("head_has_nanoset", [False, True], ids=["head", "node"])
def test_a_machine_without_nanoset_is_reported(tmp_path, head_has_nanoset):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    with running(has_nanoset=head_has_nanoset) as nodes:
        nodes.add_node(has_nanoset=False)

        with pytest.raises(ConfigError, match=r"cannot load|refuses") as caught:
            list(executor_on(tmp_path / "shared", nodes.address).run(abs, [-1]))

    assert "No module named 'nanoset_core'" in caught.value.found
    assert "nanoset-platform" in caught.value.expected


@pytest.mark.parametrize("is_mute", [True, False], ids=["no answer", "nobody listens"])
def test_an_address_without_a_cluster_is_reported(tmp_path, monkeypatch, is_mute):
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    from ray.util.client import worker

    monkeypatch.setattr(worker, "INITIAL_TIMEOUT_SEC", 0.3)
    monkeypatch.setattr(worker, "MAX_TIMEOUT_SEC", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"ray://127.0.0.1:{server.getsockname()[1]}"
        if not is_mute:
            server.close()
        where = "n.yaml: executor.address"
        executor = executor_on(tmp_path, address, wait_seconds=0.2, where=where)

        with pytest.raises(ConfigError, match="no Ray cluster answers") as caught:
            list(executor.run(abs, [1]))

    assert caught.value.where == where
    assert address in caught.value.found
    assert list(tmp_path.iterdir()) == []


def test_a_cluster_with_another_version_of_ray_is_refused(executor, monkeypatch):
    import ray

    monkeypatch.setattr(ray, "__version__", "2.0.0")

    with pytest.raises(ConfigError, match="the Ray cluster refuses the connection") as caught:
        list(executor.run(abs, [1]))

    assert "2.0.0" in caught.value.found
    assert "the same versions" in caught.value.remedy


def test_a_process_that_is_connected_to_ray_is_not_connected_to_another_cluster(executor):
    import ray

    with (
        ray.init(executor.cluster.address, log_to_driver=False),
        pytest.raises(ConfigError, match="already connected") as caught,
    ):
        list(executor.run(abs, [1]))

    assert "ray.shutdown()" in caught.value.remedy


def test_a_connection_does_not_change_the_handlers_of_signals(executor):
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    handlers = [signal.getsignal(number) for number in numbers]

    with connections_kept():
        list(executor.run(abs, [-1]))
        assert [signal.getsignal(number) for number in numbers] == handlers


def test_without_the_package_the_error_says_how_to_install_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    executor = executor_on(tmp_path, "ray://127.0.0.1:1")

    with pytest.raises(ConfigError, match="is not installed") as caught:
        list(executor.run(abs, [1]))

    assert caught.value.remedy.startswith("pip install 'nanoset-platform[ray]'")
