"""Workers of a cluster that share nothing but the bucket with the process that gives them work, nor
with each other.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.building import build_all, make_inventory, make_shards
from helpers.child_processes import wait_until
from helpers.dask_cluster import Cluster, can_hide, running
from helpers.inspecting import corpus_names
from helpers.progress import RecordingDisplay
from helpers.s3_server import objects, restore, upload_raw
from helpers.sample_project import outputs_of
from nanoset_core.errors import MissingError, StorageError
from nanoset_core.execution import compatibility
from nanoset_core.execution.compatibility import FOLDER, compatibility_check, sweep_runs
from nanoset_core.project.gc import collect
from nanoset_core.project.project import Project
from nanoset_core.project.verify import targets, verify_project
from nanoset_core.storage import heartbeats
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.s3 import S3Store

TOKENIZED = ("inventory", "shards", "tokenized")
"""Stages whose outputs are there once a corpus was tokenized."""


@pytest.fixture(scope="module")
def cluster(endpoint: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    pytest.importorskip("distributed", reason="the extra `dask` is not installed")
    if not can_hide():
        pytest.skip("no process may have file systems of its own here")
    with running(tmp_path_factory.mktemp("cluster")) as started:
        started.staff(2, hidden=tmp_path_factory.getbasetemp())
        yield started


@pytest.fixture
def project(
    remote_project: Callable[..., Path],
    cluster: Cluster,
    place: S3Store,
    tmp_path_factory: pytest.TempPathFactory,
) -> Project:
    """All in the bucket, but settings and tokenizer, which lie in a folder that no worker sees."""
    cluster.staff(2, hidden=tmp_path_factory.getbasetemp())
    config = remote_project("project")
    raw_text = upload_raw(config.parent / "raw", place)
    shutil.rmtree(config.parent / "raw")
    text = config.read_text().replace("raw: raw", f"raw: {raw_text.url()}")
    config.write_text(f"{text}executor: {{kind: dask, address: '{cluster.address}'}}\n")
    return Project.open(config)


def left_by_workers(cluster: Cluster, hidden: Path) -> list[str]:
    """Names of files in the workers' own scratch folders, as they see them."""
    folders = [Path(f"/proc/{worker.pid}/root{hidden}/scratch") for worker in cluster.workers]
    return [
        path.name for folder in folders for path in folder.rglob("nanoset/**/*") if path.is_file()
    ]


def test_a_whole_build_has_the_bytes_of_a_local_one(
    project, cluster, place, built_here, tmp_path_factory
):
    build_all(project.config.file)
    assert objects(place) == outputs_of(built_here)
    assert set(left_by_workers(cluster, tmp_path_factory.getbasetemp())) == {"tokenizer.json"}


def test_this_process_moves_no_tokens(project):
    for corpus in ("web", "code"):
        make_inventory(project, corpus)
        make_shards(project, corpus)
    assert not [
        *project.config.file.parent.rglob("*.bin"),
        *project.config.file.parent.rglob("documents.parquet"),
    ]


def test_deep_verification_is_that_of_a_local_project(
    project, cluster, place, stored, built_here, tmp_path_factory
):
    restore(place, stored)
    copied = {path for path in project.outputs.folder.rglob("*") if path.is_file()}
    assert not copied
    local, there = Project.open(built_here), list(verify_project(project, deep=True))
    wanted = [target.verify(deep=True) for target in targets(local)]
    assert [report.output for report in there] == [report.output for report in wanted]
    assert not [finding for report in there for finding in report.findings]
    assert [report.figures for report in there] == [report.figures for report in wanted]
    assert not list(project.outputs.folder.rglob("*.bin"))
    assert set(left_by_workers(cluster, tmp_path_factory.getbasetemp())) <= {"tokenizer.json"}


def test_a_worker_killed_in_mid_task(project, cluster, place, tmp_path_factory, built_here):
    """The other one does what it began, and nothing of what it left is taken for data."""
    hidden = tmp_path_factory.getbasetemp()
    for corpus in corpus_names(project):
        make_inventory(project, corpus)
    shown = RecordingDisplay()
    heard = replace(project, progress=shown.progress)
    thread = threading.Thread(
        target=lambda: [make_shards(heard, corpus) for corpus in corpus_names(project)]
    )
    thread.start()
    killed: list[int] = []

    def works(worker: subprocess.Popen[bytes]) -> bool:
        # Not by rglob, which fails over folders that come and go.
        places = os.walk(f"/proc/{worker.pid}/root{hidden}/scratch")
        return any("/.tmp-task-" in place and "shards" in folders for place, folders, _ in places)

    def kill() -> bool:
        for worker in cluster.workers:
            if works(worker):
                os.kill(worker.pid, signal.SIGKILL)
                killed.append(worker.pid)
                return True
        return False

    assert wait_until(kill, pause=0)
    thread.join(timeout=120)
    assert not thread.is_alive()
    assert [worker.pid for worker in cluster.workers if worker.poll() is not None] == killed
    for corpus in corpus_names(project):
        done = [(event.done, event.total) for event in shown.works if event.name == corpus]
        assert done == sorted(set(done)), "what is done twice counts once"
        assert done[-1][0] == done[-1][1]
    wanted = {
        name: sha for name, sha in outputs_of(built_here).items() if name.split("/")[0] in TOKENIZED
    }
    assert objects(place) == wanted


def test_a_worker_that_reaches_another_bucket_of_that_name(place, tmp_path, monkeypatch):
    monkeypatch.setattr(compatibility, "_APPEARS_WITHIN_SECONDS", 0.2)
    other = replace(place, prefix="elsewhere")
    with compatibility_check(FileAccess(tmp_path, place)) as met:
        met.check()
        with pytest.raises(MissingError, match="reaches another store") as caught:
            replace(met, store=other).check()
        assert "endpoint" in caught.value.remedy
    assert objects(place) == {}
    with pytest.raises(MissingError):
        met.check()


def test_what_a_killed_run_left_for_its_workers_is_swept(place, tmp_path, monkeypatch):
    access = FileAccess(tmp_path / "mirror", place)
    with compatibility_check(access) as goes_on:
        access.store.put(f"{FOLDER}/dead/marker", b"token")
        sweep_runs(access)
        assert len(objects(place)) == 2
        monkeypatch.setattr(heartbeats, "LEASE_SECONDS", -3600)
        monkeypatch.setattr(
            S3Store,
            "list",
            lambda store, folder="", listed=S3Store.list: (
                found if "dead" in found.name else replace(found, written_ns=1 << 62)
                for found in listed(store, folder)
            ),
        )
        sweep_runs(access)
        assert set(objects(place)) == {f"{goes_on.run_folder}/marker"}


def test_what_was_killed_on_this_machine_left_goes_with_a_collection(remote_project, place):
    project = Project.open(remote_project())
    with subprocess.Popen([sys.executable, "-c", ""]) as gone:
        pass
    with compatibility_check(project.outputs.access) as goes_on:
        left = goes_on.run_folder.replace(f"-{os.getpid()}.", f"-{gone.pid}.")
        for name in ("0-tokenizer.json", "marker"):
            project.outputs.access.store.put(f"{left}/{name}", b"{}")
        collect(project)
        assert set(objects(place)) == {f"{goes_on.run_folder}/marker"}
    assert objects(place) == {}


def test_files_are_brought_whole(place, tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with compatibility_check(
        FileAccess(tmp_path / "mirror", place), [tmp_path / "tokenizer.json"]
    ) as met:
        assert met.download(tmp_path / "own")[tmp_path / "tokenizer.json"].read_text() == "{}"
        met.store.put(met.files[0].name, b"others")
        with pytest.raises(StorageError, match="other bytes"):
            met.download(tmp_path / "another")
    assert objects(place) == {}
