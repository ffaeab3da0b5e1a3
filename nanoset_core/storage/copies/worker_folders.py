"""Folders of a cluster's workers, in which each task keeps its temporary copies.

A worker process of a cluster runs tasks that another machine gives out. It may have a folder on its
own disk, and its own copies of files, such as the tokenizer, that are elsewhere on that machine.
Processes that are not workers of a cluster have neither.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import claim_scratch, sweep_abandoned


@dataclass(frozen=True, slots=True)
class WorkerFolder:
    """What belongs to one worker of a cluster."""

    folder: Path | None = None
    """A folder that only this worker uses. It need not exist yet; None if this is not a worker."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """Path of a file on the machine that gives out tasks → path of a local file that is the same.
    """


_current_folder = ContextVar("worker", default=WorkerFolder())  # noqa: B039 - it is frozen
"""The folder of the worker that runs the current task."""


@contextmanager
def working_at(place: WorkerFolder) -> Iterator[None]:
    """Let the functions `worker_folder` and `local_copy_of` know this worker in the block.

    A worker is a process of a cluster. It runs tasks that another machine has prepared, one at a
    time, and has a folder of its own on its disk.

    Args:
        place: The folder of the worker, and which files it has copies of.
    """
    token = _current_folder.set(place)
    try:
        yield
    finally:
        _current_folder.reset(token)


def worker_folder() -> Path | None:
    """Return the folder of this worker, or None if the process is not a worker of a cluster."""
    return _current_folder.get().folder


@contextmanager
def task_folder() -> Iterator[Path | None]:
    """Yield an empty folder for one task of a worker, which is removed at the end of the block.

    A worker of a cluster is a process that runs tasks of another machine. A task that is killed
    cannot remove its folder, so the next task of this worker does.

    Yields:
        The folder; None if the process is not a worker of a cluster.
    """
    folder = worker_folder()
    if folder is None:
        yield None
        return
    folder.mkdir(parents=True, exist_ok=True)
    # Earlier tasks may have been killed before they could remove their folders.
    sweep_abandoned(folder)
    with claim_scratch(folder / "task") as scratch:
        yield scratch


def local_copy_of(path: Path) -> Path:
    """Return the path of this worker's copy of a file, which the task names by its original path.

    A task was prepared on another machine, where the tokenizer is `/home/ada/tokenizer.json`, for
    example. This machine may have a copy of it in `/scratch/worker-3/tokenizer.json`.

    Args:
        path: Path of the file on the machine that gave out the task.

    Returns:
        Path of the copy; `path` itself if there is none, since the machines share the file then.
    """
    return _current_folder.get().files.get(path, path)


@contextmanager
def for_a_task(access: FileAccess) -> Iterator[FileAccess]:
    """Yield the access to files that one task uses: downloads go to a folder of the task.

    A worker of a cluster has its own disk, so each task downloads into a folder of its own, which
    is removed at the end of the block. Elsewhere, tasks share the copies that were downloaded
    before.

    Args:
        access: Access to the files of a bucket, with the folder that has copies of them.

    Yields:
        Access to the same files.
    """
    with task_folder() as folder:
        yield access if folder is None else access.with_copies_in(folder)
