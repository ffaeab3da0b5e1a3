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
    for sign in (signal.SIGTERM, signal.SIGKILL):
        for number in family(process.pid, mark):
            with suppress(ProcessLookupError):
                os.kill(number, sign)
        deadline = time.monotonic() + patience
        while family(process.pid, mark) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.05)
    process.wait(timeout=10)
    if left := family(process.pid, mark):
        raise RuntimeError(f"these processes would not end: {left}")


def family(leader: int, mark: str) -> list[int]:
    """Living processes of a session, or with `mark`, a NAME=value, in their environment."""
    folders = (folder for folder in Path("/proc").iterdir() if folder.name.isdigit())
    return [int(folder.name) for folder in folders if _belongs(folder, leader, mark.encode())]


def _belongs(folder: Path, leader: int, mark: bytes) -> bool:
    try:
        state, _, _, session = (folder / "stat").read_text().rpartition(")")[2].split()[:4]
        return state != "Z" and (int(session) == leader or mark in (folder / "environ").read_bytes().split(b"\0"))
    except OSError:
        return False  # gone meanwhile, or another user's
