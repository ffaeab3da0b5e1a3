"""What the system refuses is said as an error of ours, with the file and what to do."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from nanoset_core.errors import MissingError, NanosetError, StorageError
from nanoset_core.project.project import Project
from nanoset_core.stages.inventory.make import survey_corpus
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.leases import leased
from nanoset_core.storage.os_errors import explained


def refuse(number, file="/disk/file"):
    raise OSError(number, os.strerror(number), file)


@pytest.mark.parametrize(
    ("number", "what", "remedy"),
    [
        (errno.ENOSPC, "the disk is full", "make room"),
        (errno.EDQUOT, "quota", "make room"),
        (errno.EROFS, "read-only", "mount"),
        (errno.EACCES, "may not be written", "right"),
        (errno.EFBIG, "may not grow", "ulimit"),
        (errno.EMFILE, "too many files", "ulimit"),
    ],
)
def test_file_system_that_takes_nothing(tmp_path, number, what, remedy):
    with pytest.raises(StorageError, match=what) as caught, explained(tmp_path):
        refuse(number)
    assert caught.value.where == "/disk/file"
    assert remedy in caught.value.remedy
    assert str(number) in caught.value.found
    with pytest.raises(StorageError) as caught, explained(tmp_path):
        refuse(number, None)
    assert caught.value.where == str(tmp_path)


@pytest.mark.parametrize(
    "error",
    [
        MemoryError(),
        OSError(errno.ENOMEM, "Cannot allocate memory"),
        RuntimeError("can't start new thread"),
        ImportError("/x/_csv.so: failed to map segment from shared object"),
    ],
)
def test_want_of_memory(tmp_path, error):
    with pytest.raises(NanosetError, match="not enough memory") as caught, explained(tmp_path):
        raise error
    assert "workers" in caught.value.remedy


@pytest.mark.parametrize(
    "error",
    [RuntimeError("other"), OSError(errno.ENOENT, "no"), MissingError("gone"), ValueError()],
)
def test_everything_else_is_left_as_it_is(tmp_path, error):
    with pytest.raises(type(error)) as caught, explained(tmp_path):
        raise error
    assert caught.value is error


def test_stages_and_surveys_say_it(make_project, monkeypatch):
    project = Project.open(make_project())
    with (
        pytest.raises(StorageError, match="the disk is full"),
        leased(project.outputs.access, ["web"]),
    ):
        refuse(errno.ENOSPC)
    monkeypatch.setattr(Path, "mkdir", lambda path, **options: refuse(errno.EROFS, str(path)))
    with pytest.raises(StorageError, match="read-only"):
        survey_corpus(project, "web")
    with (
        pytest.raises(StorageError, match="read-only"),
        leased(FileAccess(project.outputs.folder / "new"), ["web"]),
    ):
        pass
