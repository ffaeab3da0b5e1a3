"""Builds in processes of their own, which may be killed; what became of each."""

from __future__ import annotations

import contextlib
import importlib
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from faults.interruptions.subject import Subject, build_stages

from nanoset_core.errors import NanosetError

End = Literal["done", "refused", "killed", "hung", "crashed"]
SECONDS = 300.0
"""for one build"""
_IMPORTED = (
    "pyarrow.compute",
    "pyarrow.parquet",
    "numpy.random",
    "email.parser",
    "isal.igzip_threaded",
    "isal.isal_zlib",
    "zstandard",
    "tokenizers",
)
_DONE, _REFUSED, _CRASHED = 0, 71, 72


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a build ended."""

    end: End
    """done; refused: an error of ours, as text; killed by SIGKILL; hung; crashed: anything else"""
    detail: str = ""
    """the error's text"""


class Build:
    """A build under way, in a process group of its own."""

    def __init__(self, pid: int, notes: Path) -> None:
        self.pid, self._notes = pid, notes
        self._status: int | None = None

    def kill(self, *, workers: bool = True) -> bool:
        """Kill the build, with its workers or alone; → whether it was still running."""
        if self.poll() is None:
            if workers:
                os.killpg(self.pid, signal.SIGKILL)
            else:
                os.kill(self.pid, signal.SIGKILL)
            self.wait()
        return self._status is not None and os.WIFSIGNALED(self._status)

    def poll(self) -> int | None:
        if self._status is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status

    def wait(self, seconds: float = SECONDS) -> Outcome:
        """How it ended; one that does not end in time is killed."""
        end = time.monotonic() + seconds
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                return Outcome("hung", f"more than {seconds:g} s\n{self._told()}")
            time.sleep(0.002)
        return self._outcome()

    def _told(self) -> str:
        return self._notes.read_text(errors="replace") if self._notes.exists() else ""

    def _outcome(self) -> Outcome:
        text = self._told()
        status = self._status or 0
        if os.WIFSIGNALED(status):
            signal_number = os.WTERMSIG(status)
            killed = signal_number == signal.SIGKILL
            return Outcome("killed" if killed else "crashed", f"signal {signal_number}\n{text}")
        code = os.WEXITSTATUS(status)
        if code == _DONE:
            return Outcome("done")
        is_ours = code == _REFUSED or (
            code == 1 and "Traceback" not in text and ("error: " in text or "failed: " in text)
        )
        return Outcome("refused" if is_ours else "crashed", text)


def import_everything() -> None:
    """What builds import on their way, so that forks need neither time nor memory for it."""
    for name in _IMPORTED:
        importlib.import_module(name)
    if find_spec("boto3") is not None:
        importlib.import_module("boto3.session")


def start(subject: Subject, *, rebuild: bool = False, prepare: Callable[[], object] = lambda: None) -> Build:
    """Build by the core's stage functions, in a fork of this process; `prepare` is called there first."""
    notes = subject.folder / f".notes-{time.monotonic_ns()}"
    notes.touch()
    notes.chmod(0o666)
    child = os.fork()
    if child == 0:
        os._exit(_run(subject, notes, rebuild, prepare))
    with contextlib.suppress(PermissionError, ProcessLookupError):
        os.setpgid(child, child)
    return Build(child, notes)


def _run(subject: Subject, notes: Path, rebuild: bool, prepare: Callable[[], object]) -> int:
    """The child's whole life; → its exit status."""
    with contextlib.suppress(PermissionError):
        os.setpgid(0, 0)
    file = os.open(notes, os.O_WRONLY | os.O_APPEND)
    os.dup2(file, 1)
    os.dup2(file, 2)
    try:
        prepare()
        build_stages(subject.config, rebuild=rebuild)
    except NanosetError as error:
        os.write(file, str(error).encode())
        return _REFUSED
    except BaseException:  # noqa: BLE001 - nothing of the parent may go on in the child
        os.write(file, traceback.format_exc().encode())
        return _CRASHED
    return _DONE


def start_command(subject: Subject, home: Path, *arguments: str) -> Build:
    """`nanoset build` itself, with Dagster and its history in `home`."""
    home.mkdir(exist_ok=True)
    notes = subject.folder / f".notes-{time.monotonic_ns()}"
    environment = os.environ | {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "nanoset_core.cli", "build", "--config", str(subject.config), *arguments]
    with notes.open("wb") as file:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    process.returncode = 0  # it is waited for by number, here and not there
    return Build(process.pid, notes)
