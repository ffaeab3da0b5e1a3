"""What a worker of a cluster does around a task."""

from __future__ import annotations

import errno
import uuid
from pathlib import Path

import pytest

from helpers.worker_tasks import raise_error
from nanoset_core.errors import StorageError
from nanoset_core.execution.cluster import Message
from nanoset_core.execution.cluster_worker import TaskWorker, run_on_worker
from nanoset_core.execution.compatibility import compatibility_check
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.stores.memory import MemoryStore


class WorkerOfThisProcess(TaskWorker):
    """A worker that is not part of a cluster."""

    def __init__(self, folder: Path) -> None:
        """Use a folder for temporary files."""
        self._folder = folder

    @property
    def folder(self) -> Path:
        return self._folder

    @property
    def place(self) -> str:
        return "on worker 1"

    def send(self, message: Message) -> None:
        raise AssertionError(message)


def test_a_full_disk_of_a_worker_is_that_of_its_own_folder_if_outputs_are_in_a_bucket(tmp_path):
    """The error of the system does not name a file."""
    bucket = MemoryStore(f"memory://{uuid.uuid4().hex}")
    worker = WorkerOfThisProcess(tmp_path / "worker")
    error = OSError(errno.ENOSPC, "No space left on device")

    with (
        compatibility_check(FileAccess(tmp_path / "mirror", bucket)) as check,
        pytest.raises(StorageError, match="the disk is full") as caught,
    ):
        run_on_worker(worker, check, raise_error, error)

    assert caught.value.where == f"{tmp_path}/worker, on worker 1"
    assert "--local-directory" in caught.value.expected
