"""Work for worker processes: they import it by its name, on this machine and on a cluster."""

from __future__ import annotations

import logging
import os
import time
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import InputError
from nanoset_core.execution.progress import TaskNote, report_progress

WAIT_SECONDS = 30.0
"""How long a task waits for a file before it gives up."""


def process_id(_task: object) -> int:
    """Return the id of the process that runs the task."""
    return os.getpid()


def process_id_after(seconds: float) -> int:
    """Sleep, and return the id of the process that runs the task."""
    time.sleep(seconds)
    return os.getpid()


def note_process_id_and_sleep(file: Path) -> None:
    """Append the id of the process that runs the task to a file, and sleep for a minute."""
    with file.open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    time.sleep(60)


class NewFile(NamedTuple):
    """A task that creates a file."""

    path: Path
    sleep_seconds: float
    """How long the task sleeps afterwards."""


def create_file(task: NewFile | None) -> None:
    """Create a file, and sleep.

    Raises:
        ZeroDivisionError: The task is None.
    """
    if task is None:
        raise ZeroDivisionError
    task.path.touch()
    time.sleep(task.sleep_seconds)


def raise_input_error(_task: object) -> None:
    """Raise an error of nanoset, with all its parts."""
    raise InputError("what", where="a:3", remedy="what to do")


def raise_error(error: Exception) -> None:
    """Raise the error that is the task."""
    raise error


class LateNote(NamedTuple):
    """A task that reports a note once a file exists."""

    text: str | None
    """The note. None: nothing is reported."""
    awaited_file: Path | None
    """None: the task does not wait."""


def report_note(task: LateNote) -> None:
    """Wait for a file, and report a note."""
    if task.awaited_file is not None:
        assert wait_for_file(task.awaited_file)
    if task.text is not None:
        report_progress(TaskNote(task.text))


def report_and_wait(file: Path) -> bool:
    """Report the path of a file as a note, and return whether the file then appears."""
    report_progress(TaskNote(str(file)))
    return wait_for_file(file)


def wait_for_file(file: Path) -> bool:
    """Wait until a file exists, and return whether it does."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not file.exists():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def report_many_notes(n_notes: int) -> int:
    """Report long notes, and return how many."""
    for _ in range(n_notes):
        report_progress(TaskNote("x" * 500))
    return n_notes


def warn_of_bucket(text: str) -> None:
    """Log a warning of the code that accesses buckets."""
    logging.getLogger("nanoset_core.storage.any").warning(text)


def wait_for_interruption(folder: Path) -> None:
    """Create a file `begun` in a folder, and a file `interrupted` when the task is interrupted."""
    (folder / "begun").touch()
    try:
        wait_for_file(folder / "never")
    except KeyboardInterrupt:
        (folder / "interrupted").touch()
        raise


class DeadlyResult:
    """A result that cannot be sent to the owner of the task: the worker dies as it is pickled."""

    def __reduce__(self) -> tuple[object, ...]:
        os._exit(1)


def deadly_result(_task: object) -> DeadlyResult:
    """Return a result that kills the worker when it is sent."""
    return DeadlyResult()
