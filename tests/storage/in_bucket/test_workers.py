"""Dask workers on other machines, which share nothing with this one except the bucket."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from helpers.buckets import objects, upload_raw
from helpers.building import build_all, make_inventory, make_shards
from helpers.child_processes import wait_until
from helpers.dask_cluster import Cluster, can_hide, running
from helpers.inspecting import corpus_names
from helpers.progress import RecordingDisplay
from helpers.s3_server import restore
from helpers.sample_project import outputs_of
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.s3.store import S3Store

pytestmark = pytest.mark.slow
"""The tests start a Dask cluster, and kill its workers."""

TOKENIZATION_STAGES = ("inventory", "shards", "tokenized")
"""Folders of the outputs that exist after a corpus was tokenized."""


@pytest.fixture(scope="module")
def hidden_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of all temporary folders of the tests, which workers do not see."""
    return tmp_path_factory.getbasetemp()


@pytest.fixture(scope="module")
def cluster(
    endpoint: str, hidden_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Cluster]:
    """A Dask cluster with two workers, which see none of the files of the tests."""
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    if not can_hide():
        pytest.skip("processes cannot mount file systems of their own on this machine")
    with running(tmp_path_factory.mktemp("cluster")) as cluster:
        cluster.staff(2, hidden=hidden_folder)
        yield cluster


@pytest.fixture
def project(
    remote_project: Callable[..., Path], cluster: Cluster, hidden_folder: Path, place: S3Store
) -> Project:
    """A project on the cluster with text and outputs in the bucket.

    Its settings and its tokenizer are in a folder that no worker sees.
    """
    cluster.staff(2, hidden=hidden_folder)
    return put_on_cluster(remote_project("project"), place, cluster)


@pytest.fixture
def project_of_any_bucket(
    project_in_any_bucket: Callable[..., Path],
    cluster: Cluster,
    hidden_folder: Path,
    any_bucket: Store,
) -> Project:
    """The same in a bucket of each cloud."""
    # Workers find other servers by environment variables: start workers that have them.
    if not isinstance(any_bucket, S3Store):
        cluster.dismiss()
    cluster.staff(2, hidden=hidden_folder)
    return put_on_cluster(project_in_any_bucket("project"), any_bucket, cluster)


def put_on_cluster(config: Path, place: Store, cluster: Cluster) -> Project:
    """Move the raw text of a project into a bucket, and let the cluster build it."""
    raw = upload_raw(config.parent / "raw", place)
    shutil.rmtree(config.parent / "raw")
    settings = config.read_text().replace("raw: raw", f"raw: {raw.url()}")
    config.write_text(f"{settings}executor: {{kind: dask, address: '{cluster.address}'}}\n")
    return Project.open(config)


def scratch_folder(worker: subprocess.Popen[bytes], hidden_folder: Path) -> Path:
    """Return the path at which this process sees the scratch folder of a worker."""
    return Path(f"/proc/{worker.pid}/root{hidden_folder}/scratch")


def file_names_of_workers(cluster: Cluster, hidden_folder: Path) -> set[str]:
    """Return the names of the files of nanoset in the scratch folders of all workers."""
    names: set[str] = set()
    for worker in cluster.workers:
        for path in scratch_folder(worker, hidden_folder).rglob("nanoset/**/*"):
            if path.is_file():
                names.add(path.name)
    return names


# Builds on the cluster


def test_a_build_on_the_cluster_has_the_bytes_of_a_local_one(
    project_of_any_bucket, cluster, hidden_folder, any_bucket, local_build
):
    build_all(project_of_any_bucket.config.file)

    assert objects(any_bucket) == outputs_of(local_build)
    assert file_names_of_workers(cluster, hidden_folder) == {"tokenizer.json"}


def test_shards_of_workers_do_not_pass_through_this_machine(project):
    for corpus in ("web", "code"):
        make_inventory(project, corpus)
        make_shards(project, corpus)

    folder = project.config.file.parent
    assert not list(folder.rglob("*.bin"))
    assert not list(folder.rglob("documents.parquet"))


def findings_in(reports: Sequence[Any]) -> list[object]:
    """Return the findings of all reports."""
    findings: list[object] = []
    for report in reports:
        findings.extend(report.findings)
    return findings


def test_a_deep_verification_on_the_cluster_reports_what_a_local_one_does(
    project, cluster, hidden_folder, place, built_objects, local_build
):
    restore(place, built_objects)
    copies = [path for path in project.outputs.folder.rglob("*") if path.is_file()]
    assert not copies
    local_targets = targets(Project.open(local_build))
    local_reports = [target.verify(deep=True) for target in local_targets]

    reports = list(verify_project(project, deep=True))

    outputs = [report.output for report in local_reports]
    figures = [report.figures for report in local_reports]
    assert [report.output for report in reports] == outputs
    assert [report.figures for report in reports] == figures
    assert findings_in(reports) == []
    # Workers read the tokens in the bucket, and keep no copies.
    assert not list(project.outputs.folder.rglob("*.bin"))
    assert file_names_of_workers(cluster, hidden_folder) <= {"tokenizer.json"}


def is_tokenizing(worker: subprocess.Popen[bytes], hidden_folder: Path) -> bool:
    """Return whether a worker has begun to write a shard."""
    # os.walk and not rglob, which fails if a folder is removed meanwhile.
    for folder, subfolders, _ in os.walk(scratch_folder(worker, hidden_folder)):
        if "/.tmp-task-" in folder and "shards" in subfolders:
            return True
    return False


def test_shards_that_a_killed_worker_began_are_made_by_another_one(
    project, cluster, hidden_folder, place, local_build
):
    corpora = corpus_names(project)
    for corpus in corpora:
        make_inventory(project, corpus)
    display = RecordingDisplay()
    project_with_display = replace(project, progress=display.progress)

    def make_all_shards() -> None:
        for corpus in corpora:
            make_shards(project_with_display, corpus)

    killed_pids: list[int] = []

    def kill_a_busy_worker() -> bool:
        for worker in cluster.workers:
            if is_tokenizing(worker, hidden_folder):
                os.kill(worker.pid, signal.SIGKILL)
                killed_pids.append(worker.pid)
                return True
        return False

    # Kill one of two workers while it writes a shard.
    thread = threading.Thread(target=make_all_shards)
    thread.start()
    assert wait_until(kill_a_busy_worker, pause=0)
    thread.join(timeout=120)
    assert not thread.is_alive()
    dead_pids = [worker.pid for worker in cluster.workers if worker.poll() is not None]
    assert dead_pids == killed_pids

    # The progress counts work that was done twice only once: it never goes back, nor beyond the
    # total. On a slow machine, the same amount may be shown twice.
    for corpus in corpora:
        works = [work for work in display.works if work.name == corpus]
        amounts = [work.done for work in works]
        assert amounts == sorted(amounts)
        assert {work.total for work in works} == {amounts[-1]}

    # The outputs are complete, and nothing that the dead worker wrote is among them.
    digests: dict[str, str] = {}
    for name, digest in outputs_of(local_build).items():
        if Path(name).parts[0] in TOKENIZATION_STAGES:
            digests[name] = digest
    assert objects(place) == digests
