"""Running a command in a fork of this process, under limits, without rights, and with signals; what it said and did."""

from __future__ import annotations

import contextlib
import hashlib
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from child_processes import members

from nanoset_core.cli import main

SECONDS = 600.0
"""for one command"""
_NOT_COMPARED = (".dagster/", "data/.in-use/", "cache/")
_FINGERPRINTS = ".fingerprints.json"


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended."""

    code: int
    said: str
    """both of its outputs"""
    seconds: float
    left: int
    """processes that it left behind"""


def run(
    folder: Path,
    words: Sequence[str],
    *,
    prepare: Callable[[], object] = lambda: None,
    stop: tuple[float, signal.Signals, bool] | None = None,
    patience: float = 5,
) -> Ended:
    """Run `nanoset` in a folder.

    Args:
        folder: its working directory.
        words: its arguments.
        prepare: called in its process first.
        stop: seconds after which a signal is sent; the signal; whether to all its processes, as a terminal would.
        patience: seconds that other processes may take to end after it.
    """
    reader, writer = os.pipe()
    started = time.monotonic()
    child = os.fork()
    if child == 0:
        code = 98
        try:
            code = _in_child(folder, words, writer, prepare)
        finally:
            os._exit(code)
    os.close(writer)
    os.read(reader, 1)  # it begins
    said, status, begun = bytearray(), None, time.monotonic()
    while status is None:
        if stop is not None and time.monotonic() - begun >= stop[0]:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                (os.killpg if stop[2] else os.kill)(child, stop[1])
            stop = None
        if select.select([reader], [], [], 0.005)[0]:
            said += os.read(reader, 1 << 16)
        pid, found = os.waitpid(child, os.WNOHANG)
        status = found if pid else None
        if status is None and time.monotonic() - started > SECONDS:
            with contextlib.suppress(ProcessLookupError):  # it may end just now
                os.killpg(child, signal.SIGKILL)
            said += b"\nHUNG"
    seconds = time.monotonic() - started
    left = _left(child, patience)
    while select.select([reader], [], [], 0)[0] and (more := os.read(reader, 1 << 16)):
        said += more
    os.close(reader)
    code = os.waitstatus_to_exitcode(status)
    return Ended(code, said.decode(errors="replace"), seconds, left)


def _left(group: int, patience: float) -> int:
    deadline = time.monotonic() + patience
    while members(group) and time.monotonic() < deadline:
        time.sleep(0.02)
    left = members(group)
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    return len(left)


def _in_child(folder: Path, words: Sequence[str], writer: int, prepare: Callable[[], object]) -> int:
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    for descriptor in (1, 2):
        os.dup2(writer, descriptor)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    try:
        os.chdir(folder)
        os.environ |= {"XDG_CACHE_HOME": str(folder / "cache"), "COLUMNS": "200", "TMPDIR": str(folder / "cache")}
        prepare()
        os.write(writer, b"\0")
        main(list(words))
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else 0
    except BaseException:  # noqa: BLE001 - it is what the campaign looks for
        traceback.print_exc()
        code = 99
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError):
            stream.flush()
    return code


def tree(folder: Path) -> dict[str, str]:
    """Relative path → sha256 of every file, the target of every link; without history, locks and remembered times."""
    found = {}
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if name.startswith(_NOT_COMPARED) or path.name == _FINGERPRINTS:
            continue
        if path.is_symlink():
            found[name] = f"-> {path.readlink()}"
        elif path.is_file():
            found[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
