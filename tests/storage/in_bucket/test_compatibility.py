"""The files in a bucket by which workers on other machines check that they belong to a run."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from helpers.buckets import objects
from nanoset_core.errors import MissingError, StorageError
from nanoset_core.execution import compatibility
from nanoset_core.execution.compatibility import FOLDER, compatibility_check, sweep_runs
from nanoset_core.project.gc.collect import collect
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.in_use import heartbeats
from nanoset_core.storage.stores.s3.store import S3Store

# What workers must have in common with the process that gives them tasks


def test_a_worker_that_reads_another_bucket_of_the_same_name_is_refused(
    place, tmp_path, monkeypatch
):
    monkeypatch.setattr(compatibility, "_APPEARS_WITHIN_SECONDS", 0.2)

    with compatibility_check(FileAccess(tmp_path, place)) as check:
        check.check()
        check_elsewhere = replace(check, store=replace(place, prefix="elsewhere"))
        with pytest.raises(MissingError, match="reaches another store") as caught:
            check_elsewhere.check()

    assert "endpoint" in caught.value.remedy


def test_a_worker_is_refused_after_the_end_of_the_run(place, tmp_path, monkeypatch):
    monkeypatch.setattr(compatibility, "_APPEARS_WITHIN_SECONDS", 0.2)
    with compatibility_check(FileAccess(tmp_path, place)) as check:
        check.check()

    assert objects(place) == {}
    with pytest.raises(MissingError):
        check.check()


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    """A file that workers may lack."""
    path = tmp_path / "tokenizer.json"
    path.write_text("{}")
    return path


def test_a_worker_downloads_the_files_that_it_lacks(place, tmp_path, tokenizer):
    access = FileAccess(tmp_path / "mirror", place)

    with compatibility_check(access, [tokenizer]) as check:
        copy_by_path = check.download(tmp_path / "worker")

    assert copy_by_path[tokenizer].read_text() == "{}"
    assert objects(place) == {}


def test_a_downloaded_file_with_other_bytes_is_refused(place, tmp_path, tokenizer):
    access = FileAccess(tmp_path / "mirror", place)

    with compatibility_check(access, [tokenizer]) as check:
        check.store.put(check.files[0].name, b"others")
        with pytest.raises(StorageError, match="other bytes"):
            check.download(tmp_path / "worker")


# Files of runs that were killed


def let_other_objects_be_new(monkeypatch: pytest.MonkeyPatch, old_name: str) -> None:
    """Let all objects be written in the future, except those with a text in their names."""
    original_list = S3Store.list

    def list_objects(store, folder=""):
        for stored in original_list(store, folder):
            if old_name in stored.name:
                yield stored
            else:
                yield replace(stored, written_ns=1 << 62)

    monkeypatch.setattr(S3Store, "list", list_objects)


def test_the_files_of_a_killed_run_are_removed_after_a_while(place, tmp_path, monkeypatch):
    access = FileAccess(tmp_path / "mirror", place)
    with compatibility_check(access) as live_run:
        access.store.put(f"{FOLDER}/dead/marker", b"token")
        sweep_runs(access)
        assert len(objects(place)) == 2, "the run may be alive on another machine"

        monkeypatch.setattr(heartbeats, "LEASE_SECONDS", -3600)
        let_other_objects_be_new(monkeypatch, "dead")
        sweep_runs(access)

        assert set(objects(place)) == {f"{live_run.run_folder}/marker"}


def id_of_ended_process() -> int:
    """Return the id of a process that has just ended."""
    with subprocess.Popen([sys.executable, "-c", ""]) as process:
        pass
    return process.pid


def test_garbage_collection_removes_the_files_of_a_run_that_was_killed_on_this_machine(
    remote_project, place
):
    project = Project.open(remote_project())
    dead_pid = id_of_ended_process()
    with compatibility_check(project.outputs.access) as live_run:
        dead_folder = live_run.run_folder.replace(f"-{os.getpid()}.", f"-{dead_pid}.")
        assert dead_folder != live_run.run_folder
        for name in ("0-tokenizer.json", "marker"):
            project.outputs.access.store.put(f"{dead_folder}/{name}", b"{}")

        collect(project)

        assert set(objects(place)) == {f"{live_run.run_folder}/marker"}
    assert objects(place) == {}
