"""What belongs to one worker of a cluster: its folder, files that it downloaded, copies for one task."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.storage.access import FileAccess

_TASK = "task"


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """What belongs to one worker."""

    folder: Path
    """Used by this process alone; it need not be there yet."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """Path of a file on the machine that gives out tasks → the same bytes here."""


_here: ContextVar[WorkerFolder | None] = ContextVar("workplace", default=None)


@contextlib.contextmanager
def working_at(place: WorkerFolder) -> Iterator[None]:
    """Run the tasks of this block, one at a time, with a folder of their own."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


@contextlib.contextmanager
def task_folder() -> Iterator[Path | None]:
    """Yield an empty folder for one task, removed afterwards; None in a process that is no worker of a cluster."""
    place = _here.get()
    if place is None:
        yield None
        return
    folder = place.folder / _TASK
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def worker_folder() -> Path | None:
    """Return the folder of this worker; None in a process that is no worker of a cluster."""
    place = _here.get()
    return None if place is None else place.folder


def local_copy_of(path: Path) -> Path:
    """Return the local path of a file that the machine which gave out the task has at `path`."""
    place = _here.get()
    return path if place is None else place.files.get(path, path)


@contextlib.contextmanager
def for_a_task(access: FileAccess) -> Iterator[FileAccess]:
    """Yield access to the same files for one task: on a cluster's worker with copies of its own, removed afterwards."""
    with task_folder() as folder:
        yield access if folder is None else access.with_copies_in(folder)
