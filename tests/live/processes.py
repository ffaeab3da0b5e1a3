"""Children that are ended by their numbers, and seen to be gone: those of `dagster dev` outlive it otherwise."""

from __future__ import annotations

import os
import signal
import subprocess
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

Found = TypeVar("Found")
MARK = "NANOSET_LIVE_TEST"
Process = tuple[int, int]  # number and time of start, since numbers come again


def until(look: Callable[[], Found], seconds: float, problem: Callable[[], str]) -> Found:
    """Look again and again until something is found; TimeoutError, with what `problem` says, after some seconds."""
    deadline = time.monotonic() + seconds
    while not (found := look()):
        if time.monotonic() > deadline:
            raise TimeoutError(problem())
        time.sleep(0.1)
    return found


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    patience: float = 5.0,
) -> Iterator[subprocess.Popen[bytes]]:
    """A child process; at the end it and whatever it started are ended, and seen to be gone.

    They are told from all others by a session of their own, and by a mark in their environment that no other bears.
    patience: seconds for which they may end by themselves.
    """
    mark = f"{MARK}={uuid.uuid4().hex}"
    named = os.environ | dict(environment or {}) | {MARK: mark.partition("=")[2]}
    with log.open("ab") as output:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=named,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        end(process, mark, patience)


def end(process: subprocess.Popen[bytes], mark: str, patience: float) -> None:
    """End a child and everything that it started: first politely, then by force.

    RuntimeError where one of them is still there afterwards.
    """
    seen: set[Process] = set()
    for sign in (signal.SIGTERM, signal.SIGKILL):
        told: set[Process] = set()
        deadline = time.monotonic() + patience
        while True:
            seen |= family(process.pid, mark)
            living = set(filter(is_alive, seen))
            if not living or time.monotonic() > deadline:
                break
            for number, _ in living - told:
                with suppress(ProcessLookupError):
                    os.kill(number, sign)
            told |= living
            process.poll()
            time.sleep(0.05)
    process.wait(timeout=10)
    if left := sorted(filter(is_alive, seen)):
        raise RuntimeError(f"these processes would not end: {[number for number, _ in left]}")


def family(leader: int, mark: str) -> set[Process]:
    """Living processes of a session, or with `mark`, a NAME=value, in their environment.

    One that is about to be gone has no environment any more: whoever waits for its end goes by `is_alive`.
    """
    numbers = (int(folder.name) for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return {(number, found[2]) for number in numbers if (found := looked_at(number)) and _belongs(number, leader, mark)}


def is_alive(process: Process) -> bool:
    """Whether a process has not ended yet."""
    number, began = process
    found = looked_at(number)
    return found is not None and found[0] != "Z" and found[2] == began


def _belongs(number: int, leader: int, mark: str) -> bool:
    found = looked_at(number)
    if found is None or found[0] == "Z":
        return False
    with suppress(OSError):  # gone meanwhile, or another user's
        return found[1] == leader or mark.encode() in Path(f"/proc/{number}/environ").read_bytes().split(b"\0")
    return False


def looked_at(number: int) -> tuple[str, int, int] | None:
    """State, session and time of start of a process; None if there is none."""
    try:
        fields = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return fields[0], int(fields[3]), int(fields[19])
