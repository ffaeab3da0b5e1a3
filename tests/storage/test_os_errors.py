"""Errors of the operating system are raised with the file, an explanation and a remedy."""

from __future__ import annotations

import errno
import os
import pickle
from pathlib import Path
from types import SimpleNamespace

import pytest

from nanoset_core.errors import MissingError, NanosetError, StorageError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import survey_corpus
from nanoset_core.storage import access as access_module
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import unfinished_name
from nanoset_core.storage.in_use.leases import leased
from nanoset_core.storage.os_errors import explained, explained_error, explaining_all


def os_error(number: int, file: str | None) -> OSError:
    """Return the error of a system call on a file, which some calls do not name."""
    return OSError(number, os.strerror(number), file)


# Disks that refuse to write


@pytest.mark.parametrize(
    ("number", "message", "remedy"),
    [
        pytest.param(errno.ENOSPC, "the disk is full", "make room", id="disk full"),
        pytest.param(errno.EDQUOT, "quota", "make room", id="quota used up"),
        pytest.param(errno.EROFS, "read-only", "mount", id="read-only"),
        pytest.param(errno.EACCES, "may not be written", "right", id="no permission"),
        pytest.param(errno.EFBIG, "may not grow", "ulimit", id="file too large"),
    ],
)
def test_a_file_that_cannot_be_written_is_named_with_a_remedy(tmp_path, number, message, remedy):
    with pytest.raises(StorageError, match=message) as caught, explained(tmp_path):
        raise os_error(number, "/disk/file")

    assert caught.value.where == "/disk/file"
    assert remedy in caught.value.remedy
    assert str(number) in caught.value.found


@pytest.mark.parametrize(
    "number",
    [errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EFBIG, errno.EMFILE],
    ids=errno.errorcode.get,
)
def test_the_folder_is_named_if_the_system_names_no_file(tmp_path, number):
    with pytest.raises(StorageError) as caught, explained(tmp_path):
        raise os_error(number, None)

    assert caught.value.where == str(tmp_path)


def test_an_outer_block_adds_what_the_room_was_for_to_an_explained_error(tmp_path):
    with (
        pytest.raises(StorageError, match="the disk is full") as caught,
        explained(tmp_path, expected="room for tars"),
        explaining_all(tmp_path / "web"),
    ):
        raise os_error(errno.ENOSPC, None)

    assert caught.value.where == str(tmp_path / "web")
    assert caught.value.expected == "room for tars"


def test_an_outer_block_adds_what_the_room_was_for_to_the_error_of_another_process(tmp_path):
    with pytest.raises(StorageError) as caught, explaining_all(tmp_path):
        raise os_error(errno.ENOSPC, None)
    error = pickle.loads(pickle.dumps(caught.value))

    with pytest.raises(StorageError) as caught, explained(tmp_path, expected="room for tars"):
        raise error

    assert caught.value.expected == "room for tars"


def test_a_file_that_cannot_be_read_gets_no_advice_on_room(tmp_path):
    with (
        pytest.raises(StorageError, match="this may not be read") as caught,
        explained(tmp_path, expected="room for tars"),
        explained(tmp_path, only_reads=True),
    ):
        raise os_error(errno.EACCES, str(tmp_path / "missing"))

    assert caught.value.expected is None


def test_a_file_that_does_not_exist_is_named(tmp_path):
    with (
        pytest.raises(StorageError, match="there is no such file") as caught,
        explaining_all(tmp_path),
    ):
        raise os_error(errno.ENOENT, str(tmp_path / "nope.txt"))

    assert caught.value.where == str(tmp_path / "nope.txt")
    assert "correct the path" in caught.value.remedy


def test_a_wrong_path_gets_no_advice_on_room(tmp_path):
    with (
        pytest.raises(StorageError, match="the system refuses this") as caught,
        explained(tmp_path, expected="room for tars"),
        explaining_all(tmp_path),
    ):
        raise os_error(errno.ENAMETOOLONG, None)

    assert caught.value.expected is None


def test_the_finished_file_is_named_and_not_its_temporary_name(tmp_path):
    unfinished = unfinished_name(tmp_path / "my-text") / "tokens.bin"

    with pytest.raises(StorageError) as caught, explained(tmp_path):
        raise os_error(errno.ENOSPC, str(unfinished))

    assert caught.value.where == str(tmp_path / "my-text/tokens.bin")


def test_the_finished_folder_is_named_and_not_its_temporary_name(tmp_path):
    unfinished_folder = unfinished_name(tmp_path / "my-text")

    with pytest.raises(StorageError) as caught, explaining_all(unfinished_folder):
        raise os_error(errno.ENOSPC, None)

    assert caught.value.where == str(tmp_path / "my-text")


def test_a_hidden_folder_of_the_user_keeps_its_name_in_errors(tmp_path):
    file = tmp_path / ".tmp-anna" / "tokens.bin"

    with pytest.raises(StorageError) as caught, explained(tmp_path):
        raise os_error(errno.ENOSPC, str(file))

    assert caught.value.where == str(file)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param(b"/data/tokens.bin", "/data/tokens.bin", id="bytes"),
        pytest.param(5, "/data", id="the number of an open file"),
    ],
)
def test_a_file_that_the_system_names_in_another_way_is_explained(name, expected):
    error = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), name)

    explanation = explained_error(error, "/data")

    assert isinstance(explanation, StorageError)
    assert explanation.where == expected


@pytest.mark.parametrize(
    ("n_inodes", "n_available", "n_blocks", "message"),
    [
        pytest.param(100, 0, 5, "the disk can have no more files", id="no inode left"),
        pytest.param(100, 9, 5, "the disk is full", id="some inodes left"),
        pytest.param(0, 0, 5, "the disk is full", id="inodes without a limit"),
        pytest.param(100, 0, 0, "the disk is full", id="neither inodes nor room, as ZFS reports"),
    ],
)
def test_a_disk_without_inodes_is_not_called_full(
    tmp_path, monkeypatch, n_inodes, n_available, n_blocks, message
):
    status = SimpleNamespace(f_files=n_inodes, f_favail=n_available, f_bavail=n_blocks)
    monkeypatch.setattr(os, "statvfs", lambda folder: status)

    with pytest.raises(StorageError, match=message), explained(tmp_path):
        raise os_error(errno.ENOSPC, str(tmp_path / "file"))


def test_what_there_should_be_room_for_is_not_mentioned_if_something_may_not_be_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    explanation = explained(tmp_path, expected="a folder that takes an empty file")

    with pytest.raises(StorageError, match="may not be read") as caught, explanation:
        raise os_error(errno.EACCES, str(tmp_path))

    assert caught.value.expected is None


def test_too_many_open_files_are_not_the_fault_of_the_last_one(tmp_path):
    with pytest.raises(StorageError, match="too many files") as caught, explained(tmp_path):
        raise os_error(errno.EMFILE, "/site-packages/library.py")

    assert caught.value.where == str(tmp_path)
    assert "ulimit" in caught.value.remedy


# Other errors


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("/x/_csv.so: failed to map segment from shared object"),
    ],
    ids=repr,
)
def test_too_little_memory_is_an_error_with_a_remedy(tmp_path, error):
    with pytest.raises(NanosetError, match="not enough memory") as caught, explained(tmp_path):
        raise error

    assert "workers" in caught.value.remedy


@pytest.mark.parametrize(
    "error",
    [RuntimeError("other"), OSError(errno.ENOENT, "no"), MissingError("gone"), ValueError()],
    ids=repr,
)
def test_all_other_errors_are_raised_unchanged(tmp_path, error):
    with pytest.raises(type(error)) as caught, explained(tmp_path):
        raise error

    assert caught.value is error


# Where errors are explained


@pytest.fixture
def project(make_project) -> Project:
    """A project that was not built."""
    return Project.open(make_project())


@pytest.fixture
def read_only_disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk on which no folder can be created."""

    def refuse(path: Path, **_options: object) -> None:
        raise os_error(errno.EROFS, str(path))

    monkeypatch.setattr(Path, "mkdir", refuse)


def test_errors_of_a_stage_are_explained(project):
    with (
        pytest.raises(StorageError, match="the disk is full"),
        leased(project.outputs.access, ["web"]),
    ):
        raise os_error(errno.ENOSPC, "/disk/file")


def test_errors_of_a_survey_are_explained(project, read_only_disk):
    with pytest.raises(StorageError, match="read-only"):
        survey_corpus(project, "web")


def test_a_lease_that_cannot_be_written_is_explained(project, read_only_disk):
    new_root = FileAccess(project.outputs.folder / "new")

    with pytest.raises(StorageError, match="read-only"), leased(new_root, ["web"]):
        pass


@pytest.fixture
def unreadable_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of another user, which this one may not open."""

    def refuse(path: os.PathLike[str]) -> bytes:
        raise os_error(errno.EACCES, os.fspath(path))

    monkeypatch.setattr(access_module, "read_regular", refuse)


def test_a_file_that_may_not_be_read_is_not_called_damaged(project, unreadable_files):
    with pytest.raises(StorageError, match="this may not be read") as caught:
        project.outputs.current("datasets", "web")

    assert caught.value.where == str(project.outputs.folder / "datasets/web/current.json")
    assert "the right to read it" in caught.value.remedy
