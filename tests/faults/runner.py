"""What all campaigns share: work in a fork with limits, seeds, tables, and folders in memory."""

from __future__ import annotations

import ctypes
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zlib
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

TESTS = Path(__file__).parents[1]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where campaigns keep their files."""

_PASSES_RIGHTS = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: by these, root may read and write everything"""


class Limits(NamedTuple):
    """What a fork may take."""

    extra_bytes: int
    """address space on top of the process as it is"""
    seconds: float
    """of a processor, from one thing that it says to the next"""
    still_seconds: float = 300.0
    """after which a fork hangs that takes no processor: on a busy machine, a sound one takes long"""


def in_fork(work: Callable[[Callable[[Any], None]], object], limits: Limits) -> tuple[list[Any], str]:
    """Run `work` in a fork of this process.

    Args:
        work: takes a function by which it says values that JSON can hold.
        limits: on memory and time; a fork beyond its time is killed.

    Returns:
        What it said, and how it ended: nothing to say, "hung", or "crashed" with the status.
    """
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _be_child(work, writer, limits)
    os.close(writer)
    said, since, spent, hung = b"", time.monotonic(), 0.0, ""
    while True:
        if select.select([reader], [], [], 0.05)[0]:
            if not (more := os.read(reader, 1 << 20)):
                break
            said, since, spent = said + more, time.monotonic(), processor_seconds(child)
        elif time.monotonic() - since > limits.still_seconds or processor_seconds(child) - spent > limits.seconds:
            os.kill(child, signal.SIGKILL)
            hung = "hung"
    os.close(reader)
    status = os.waitpid(child, 0)[1]
    return [json.loads(line) for line in said.splitlines()], hung or (f"crashed: status {status}" if status else "")


def _be_child(work: Callable[[Callable[[Any], None]], object], writer: int, limits: Limits) -> None:
    code = 1
    try:
        pages = int(Path("/proc/self/statm").read_text().split()[0])
        most = pages * resource.getpagesize() + limits.extra_bytes
        resource.setrlimit(resource.RLIMIT_AS, (most, most))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        work(lambda value: os.write(writer, json.dumps(value).encode() + b"\n"))
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of this process may go on in the child
        traceback.print_exc()
    finally:
        os._exit(code)


def processor_seconds(process: int) -> float:
    """Return the processor time of a process."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def seeded(name: str, number: int) -> random.Random:
    """Return the generator of a trial: the same for the same name and number."""
    return random.Random(zlib.crc32(name.encode()) << 32 | number)


def drop_rights() -> None:
    """Let root be refused what other users are refused; others are as they are."""
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    for capability in _PASSES_RIGHTS:  # from the bounding set, so that a process started later lacks them, too
        libc.prctl(24, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(0x20080522, 0)
    sets = (ctypes.c_uint32 * 6)()
    if libc.capget(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capget")
    for number in (0, 1, 2):  # effective, permitted, inheritable
        for capability in _PASSES_RIGHTS:
            sets[number] &= ~(1 << capability) & 0xFFFFFFFF
    if libc.capset(header, sets) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def scratch_folder() -> tempfile.TemporaryDirectory[str]:
    """Return a new folder, in memory where that can be, for the caches of this process too."""
    folder = tempfile.TemporaryDirectory(prefix="nanoset-faults-", dir=MEMORY)
    os.environ["XDG_CACHE_HOME"] = f"{folder.name}/cache"
    return folder


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1) -> str:
    """Return a Markdown table; numbers get separators."""
    lines = [head, ["---" if number < text_columns else "---:" for number in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(map(_cell, cells))} |" for cells in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def run_campaign(module: str, folder: Path, *options: str) -> list[list[str]]:
    """Run `python -m faults.MODULE`, which must end well; → the cells of each row of its last table."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    command = [sys.executable, "-m", f"faults.{module}", *options]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()]
