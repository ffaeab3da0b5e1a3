"""Workers check that they run the software of the process that gives them tasks, and that they see
its folder of outputs; they receive the files that they lack.
"""

from __future__ import annotations

import os
import re
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from nanoset_core.errors import MissingError, StaleError
from nanoset_core.execution import compatibility
from nanoset_core.execution.compatibility import (
    FOLDER,
    SoftwareVersion,
    compatibility_check,
    software,
    sweep_runs,
)
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.local import LocalStore


@pytest.fixture
def short_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let workers wait only a moment for a marker to appear."""
    monkeypatch.setattr(compatibility, "_APPEARS_WITHIN_SECONDS", 0.2)


# The folder of a run


def test_a_worker_of_a_run_passes_its_check(tmp_path):
    with compatibility_check(FileAccess(tmp_path / "root")) as check:
        check.check()

        assert check.store == LocalStore(tmp_path / "root")


def test_a_live_run_is_not_swept(tmp_path):
    access = FileAccess(tmp_path)
    with compatibility_check(access) as check:
        sweep_runs(access)

        check.check()


def test_a_run_leaves_no_files(tmp_path):
    with compatibility_check(FileAccess(tmp_path / "root")):
        assert list((tmp_path / "root").iterdir())

    assert list((tmp_path / "root").iterdir()) == []


def test_a_worker_is_refused_after_the_end_of_the_run(tmp_path, short_patience):
    with compatibility_check(FileAccess(tmp_path)) as check:
        check.check()

    with pytest.raises(MissingError):
        check.check()


def test_the_files_of_a_killed_run_are_swept(tmp_path):
    process = subprocess.Popen(["true"])
    process.wait()
    access = FileAccess(tmp_path)
    with compatibility_check(access) as live_run:
        dead_folder = live_run.run_folder.replace(f"-{os.getpid()}.", f"-{process.pid}.")
        access.store.put(f"{dead_folder}/marker", b"token")

        sweep_runs(access)

        assert access.store.read(f"{dead_folder}/marker") is None
        live_run.check()


def test_a_run_may_begin_when_another_one_ends(tmp_path, monkeypatch):
    """The other run removes the folder of all runs just before the new one uses it."""
    original_mkdir = os.mkdir
    names_made: list[str] = []

    def mkdir(path: str, *arguments: object) -> None:
        original_mkdir(path, *arguments)
        names_made.append(Path(path).name)
        if names_made == [FOLDER]:
            os.rmdir(path)

    monkeypatch.setattr(os, "mkdir", mkdir)

    with compatibility_check(FileAccess(tmp_path)) as check:
        check.check()

    assert names_made[:2] == [FOLDER, FOLDER]


# The folder of outputs must be shared


@pytest.mark.parametrize(
    ("marker", "found"),
    [
        pytest.param(None, "no such file", id="no marker"),
        pytest.param(b"of another run", "another file of that name", id="another marker"),
    ],
)
def test_a_worker_that_does_not_see_the_output_folder_is_refused(
    tmp_path, short_patience, marker, found
):
    store_of_worker = LocalStore(tmp_path / "worker")

    with compatibility_check(FileAccess(tmp_path / "owner")) as check:
        if marker is not None:
            store_of_worker.put(f"{check.run_folder}/marker", marker)
        with pytest.raises(MissingError, match="does not see the output folder") as caught:
            replace(check, store=store_of_worker).check()

    assert str(tmp_path / "worker") in caught.value.where
    assert caught.value.found == found
    assert "one file system" in caught.value.remedy


def test_a_worker_waits_for_a_marker_that_appears_late(tmp_path, monkeypatch):
    """A network file system takes a moment to show a file of another machine."""
    with compatibility_check(FileAccess(tmp_path)) as check:
        contents = iter([None, None, check.token])
        monkeypatch.setattr(LocalStore, "read", lambda store, name: next(contents))

        check.check()

        assert list(contents) == []


# Files that workers lack


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Two files of the same name."""
    paths = [tmp_path / "vocab.json", tmp_path / "a" / "vocab.json"]
    for number, path in enumerate(paths):
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"file {number}")
    return paths


def test_a_worker_downloads_files_under_their_names(tmp_path, files):
    with compatibility_check(FileAccess(tmp_path / "root"), files) as check:
        for file in files:
            file.unlink()

        copy_by_path = check.download(tmp_path / "worker")

    assert [copy_by_path[file].read_text() for file in files] == ["file 0", "file 1"]
    assert {copy.name for copy in copy_by_path.values()} == {"vocab.json"}


def test_a_worker_downloads_files_only_once(tmp_path, files):
    with compatibility_check(FileAccess(tmp_path / "root"), files) as check:
        copy_by_path = check.download(tmp_path / "worker")
        times = [copy.stat().st_mtime_ns for copy in copy_by_path.values()]

        assert check.download(tmp_path / "worker") == copy_by_path

    assert [copy.stat().st_mtime_ns for copy in copy_by_path.values()] == times


def test_files_cannot_be_downloaded_after_the_end_of_the_run(tmp_path, files):
    with compatibility_check(FileAccess(tmp_path / "root"), files) as check:
        pass

    with pytest.raises(MissingError):
        check.download(tmp_path / "worker")


# Software


def test_a_worker_with_other_software_is_refused(tmp_path):
    older_software: list[SoftwareVersion] = []
    for item in software():
        if item.name == "numpy":
            item = item._replace(version="1.26.4")
        older_software.append(item)

    with compatibility_check(FileAccess(tmp_path)) as check:
        check_of_older_owner = replace(check, software=tuple(older_software))
        with pytest.raises(StaleError, match="other software") as caught:
            check_of_older_owner.check()

    assert caught.value.expected == "numpy 1.26.4"
    assert re.fullmatch(r"numpy [0-9.]+", caught.value.found)


def test_a_worker_with_an_edited_source_file_is_told_that_its_version_may_be_the_same(tmp_path):
    other_software: list[SoftwareVersion] = []
    for item in software():
        if item.name == "nanoset_core":
            item = item._replace(version="0123456789abcdef")
        other_software.append(item)

    with compatibility_check(FileAccess(tmp_path)) as check:
        check_of_other_owner = replace(check, software=tuple(other_software))
        with pytest.raises(StaleError, match="other software") as caught:
            check_of_other_owner.check()

    assert caught.value.expected == "nanoset_core with source files 0123456789abcdef"
    assert "its source files were edited on a machine" in caught.value.remedy


def test_the_version_of_the_core_is_the_digest_of_its_source():
    core = software()[1]

    assert core.name == "nanoset_core"
    assert core.version == compatibility._source_digest()


def test_the_digest_of_the_source_changes_with_every_line_and_every_module(tmp_path, monkeypatch):
    digest = compatibility._source_digest()

    # Let another folder be that of the package.
    module = tmp_path / "execution" / "compatibility.py"
    module.parent.mkdir()
    module.write_bytes(Path(compatibility.__file__).read_bytes() + b"#")
    monkeypatch.setattr(compatibility, "__file__", str(module))
    digest_with_another_line = compatibility._source_digest()
    (tmp_path / "more.py").touch()
    digest_with_another_module = compatibility._source_digest()

    assert len({digest, digest_with_another_line, digest_with_another_module}) == 3
