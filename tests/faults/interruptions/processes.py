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

from child_processes import members
from faults.interruptions.subject import Subject, build_stages

from nanoset_core.errors import NanosetError

End = Literal["done", "refused", "killed", "hung", "crashed"]
SECONDS = 300.0
"""of a processor, for one build"""
STILL_SECONDS = 3600.0
"""after which a build hangs that takes none: on a machine with much else to do, a sound one takes long"""
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

    def require_done(self, *wrong: str) -> None:
        """Raise RuntimeError unless a build that nothing disturbed ended well, with nothing wrong."""
        if self.end != "done" or wrong:
            raise RuntimeError(f"a build that nothing disturbed: {self}, {wrong[:5]}")


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

    def wait(self) -> Outcome:
        """How it ended; one that does not end in time is killed."""
        begun = looked = time.monotonic()
        while self.poll() is None:
            if time.monotonic() - looked > 1:
                looked = time.monotonic()
                spent = _processor_seconds(self.pid)
                if spent > SECONDS or looked - begun > STILL_SECONDS:
                    self.kill()
                    return Outcome("hung", f"{looked - begun:.0f} s, {spent:.0f} s of a processor\n{self.told()}")
            time.sleep(0.002)
        return self._outcome()

    def told(self) -> str:
        """What it has said."""
        return self._notes.read_text(errors="replace") if self._notes.exists() else ""

    def _outcome(self) -> Outcome:
        text = self.told()
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


def _processor_seconds(group: int) -> float:
    """What the processes of a group have taken, and those that the living ones have waited for."""
    ticks = 0
    for process in members(group):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


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
