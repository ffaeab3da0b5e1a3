"""Where a worker of a cluster keeps what it works on: in a folder of its own, since it shares nothing but the store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path

_TASK = "task"


@dataclass(frozen=True, slots=True)
class Workplace:
    """What a worker has for itself."""

    folder: Path
    """Of this process alone; it need not be there yet."""
    files: Mapping[Path, Path] = field(default_factory=dict)
    """Path of a file where the run's owner has it → where this process has the same bytes."""


_here: ContextVar[Workplace | None] = ContextVar("workplace", default=None)


@contextmanager
def working_at(place: Workplace) -> Iterator[None]:
    """Let the tasks of this block, which come one at a time, work there."""
    token = _here.set(place)
    try:
        yield
    finally:
        _here.reset(token)


@contextmanager
def task_folder() -> Iterator[Path | None]:
    """An empty folder for one task, gone afterwards; None in a process that works where its owner does."""
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


def own_folder() -> Path | None:
    """The folder that this process has for itself; None where it works where its owner does."""
    place = _here.get()
    return None if place is None else place.folder


def at_hand(path: Path) -> Path:
    """Where this process has a file that whoever handed out its task has at a path."""
    place = _here.get()
    return path if place is None else place.files.get(path, path)
