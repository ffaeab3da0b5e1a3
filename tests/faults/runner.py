"""What all campaigns share: trials in forks, their seeds, the table, and the line that repeats a bad one."""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
import time
import traceback
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from child_processes import members

from nanoset_core.errors import NanosetError

TESTS = Path(__file__).parents[1]
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where campaigns keep their files."""
_PASSES_RIGHTS = (1, 2)
"""CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH: by these, root may read and write everything"""
_VALUE = "\x1e"
"""Stands before each value that a fork gives."""
_CRASHED = 99
End = Literal["done", "refused", "killed", "hung", "crashed"]


class Skipped(Exception):
    """A kind of trial cannot be done on this machine, for the reason given."""


@dataclass(slots=True)
class Trial:
    """What one trial gave."""

    counts: Counter[str] = field(default_factory=Counter)
    """columns of the table; others are shown beside it"""
    wrong: list[str] = field(default_factory=list)
    """whatever should not have come of it"""

    def ended(self, outcome: Outcome, *allowed: End) -> None:
        """Note how a disturbed process ended; one that may not end so is wrong."""
        self.counts[outcome.end] += 1
        if outcome.end == "refused":
            self.counts[f"said {_without_place(outcome.said)!r}"] += 1
        if outcome.end not in allowed:
            self.wrong.append(f"it ended as {outcome.end}: {outcome.said[-1500:]}")


def _without_place(error: str) -> str:
    """Return what an error says: `<place>: <what>`, and further lines."""
    lines = error.splitlines()
    begins = [number + 1 for number, line in enumerate(lines) if line.startswith("failed: ")]  # as the command has it
    told = (line for line in lines[begins[0] if begins else 0 :] if ": " in line)
    return next(told, error[:200]).rpartition(": ")[2]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of trial: what is built, and what happens to it."""

    cells: tuple[str, ...]
    """in the table"""
    trials: int
    run: Callable[[range], Iterable[Trial]]
    """the trials of these numbers; raises Skipped"""

    @property
    def name(self) -> str:
        return ", ".join(self.cells)


def each(cells: str | Sequence[str], trials: int, run: Callable[[random.Random, int], Trial]) -> Kind:
    """Return a kind of trials that are made one by one, from a seeded generator and their number."""
    cells = (cells,) if isinstance(cells, str) else tuple(cells)
    name = ", ".join(cells)
    return Kind(cells, trials, lambda numbers: (run(seeded(name, number), number) for number in numbers))


def seeded(name: str, number: int) -> random.Random:
    """Return the generator of a trial: the same for the same name and number."""
    return random.Random(zlib.crc32(name.encode()) << 32 | number)


def run_kinds(
    campaign: str,
    kinds: Iterable[Kind],
    head: Sequence[str],
    columns: Sequence[str],
    options: argparse.Namespace,
) -> int:
    """Run the trials of the selected kinds and print a table; → how many were bad.

    Args:
        campaign: its name, for the lines that repeat bad trials.
        kinds: all of them.
        head: what their cells are.
        columns: what is counted.
        options: select, patterns of names; first, number of the first trial; only, so many trials of each kind.
    """
    rows, total = [], Counter[str]()
    for kind in kinds:
        if not any(fnmatchcase(kind.name, pattern) for pattern in options.select):
            continue
        counts, told, begun = Counter[str](), set[str](), time.monotonic()
        numbers = range(options.first, options.first + (kind.trials if options.only is None else options.only))
        try:
            for number, trial in zip(numbers, kind.run(numbers), strict=True):
                counts += trial.counts + Counter(trials=1, bad=int(bool(trial.wrong)))
                if trial.wrong and trial.wrong[0][:60] not in told:  # the first of each sort
                    told.add(trial.wrong[0][:60])
                    repeat = f"python -m faults {campaign} --select '{kind.name}' --first {number} --only 1"
                    _say(f"BAD: {'; '.join(trial.wrong[:5])[:3000]}\n  again: {repeat}")
        except Skipped as reason:
            rows.append((*kind.cells, f"skipped: {reason}", *[""] * (len(columns) + 1)))
            continue
        rows.append((*kind.cells, *(counts[name] for name in ("trials", *columns, "bad"))))
        total += counts
        others = {name: count for name, count in counts.items() if name not in ("trials", *columns, "bad")}
        _say(f"{kind.name}: {counts['trials']} trials, {time.monotonic() - begun:.1f} s {others or ''}")
    last = ("all", *[""] * (len(head) - 1), *(total[name] for name in ("trials", *columns, "bad")))
    print(markdown((*head, "trials", *columns, "bad"), [*rows, last], text_columns=len(head)))
    return total["bad"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def markdown(head: Sequence[str], rows: Iterable[Sequence[object]], text_columns: int = 1) -> str:
    """Return a Markdown table; numbers get separators."""
    lines = [head, ["---" if number < text_columns else "---:" for number in range(len(head))], *rows]
    return "\n".join(f"| {' | '.join(map(_cell, cells))} |" for cells in lines)


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


class Outcome(NamedTuple):
    """How a process ended."""

    end: End
    """done; refused: an error of ours; killed by SIGKILL; hung; crashed: anything else"""
    said: str = ""
    """on both of its outputs"""
    code: int = 0
    """exit code, or minus the signal"""

    def require_done(self, *wrong: str) -> None:
        """Raise RuntimeError unless a process that nothing disturbed ended well, with nothing wrong."""
        if self.end != "done" or wrong:
            raise RuntimeError(f"nothing disturbed this: {self}, {wrong[:5]}")


class Child:
    """Work in a fork of this process, which leads a group of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._reader, writer = os.pipe()
        self._said, self._status = bytearray(), None
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            _live(work, writer)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.pid, self.pid)
        os.close(writer)
        os.set_blocking(self._reader, False)
        self._handle = os.pidfd_open(self.pid)
        self._status: int | None

    def poll(self, seconds: float = 0.0) -> bool:
        """Return whether it has ended; waits for so long."""
        deadline, watched = time.monotonic() + seconds, [self._handle, self._reader]
        while self._status is None:
            ready = select.select(watched, [], [], max(0.0, deadline - time.monotonic()))[0]
            if not self._hear():
                watched = [self._handle]  # it may close its outputs before its end
            if self._handle in ready:
                self._status = os.waitpid(self.pid, 0)[1]
                self._hear()
                os.close(self._handle)
                os.close(self._reader)
            elif time.monotonic() >= deadline:
                return False
        return True

    def _hear(self) -> bool:
        """Take what it has said; → whether it can say more."""
        with contextlib.suppress(BlockingIOError):
            while more := os.read(self._reader, 1 << 16):
                self._said += more
            return False
        return True

    def send(self, number: signal.Signals, *, group: bool = True) -> None:
        """Send a signal to it, with the processes that it has started or alone."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)

    def kill(self, *, workers: bool = True) -> bool:
        """Kill it, with its workers or alone; → whether it was still running."""
        if not self.poll():
            self.send(signal.SIGKILL, group=workers)
            self.poll(60)
        return os.WIFSIGNALED(self._status or 0)

    def wait(self, seconds: float = 300.0, still_seconds: float = 3600.0) -> Outcome:
        """Wait for its end.

        Args:
            seconds: of a processor, without a word, after which it hangs and is killed.
            still_seconds: of the clock; on a busy machine, a sound process takes long.
        """
        size, since, spent = -1, 0.0, 0.0
        while not self.poll(min(1.0, seconds, still_seconds)):
            if len(self._said) != size:
                size, since, spent = len(self._said), time.monotonic(), _processor_seconds(self.pid)
            elif time.monotonic() - since > still_seconds or _processor_seconds(self.pid) - spent > seconds:
                self.kill()
                return Outcome("hung", self.said())
        code = os.waitstatus_to_exitcode(self._status or 0)
        return Outcome(_end(code, self.said()), self.said(), code)

    def said(self) -> str:
        """Return what it has said so far."""
        return self._said.decode(errors="replace")


def _end(code: int, said: str) -> End:
    if code in (0, -signal.SIGKILL):
        return "killed" if code else "done"
    is_ours = code == 1 and "Traceback" not in said and ("error: " in said or "failed: " in said)
    return "refused" if is_ours else "crashed"


def _live(work: Callable[[], object], writer: int) -> None:
    """Be the child, to its end."""
    code: object = _CRASHED
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (1, 2):
            os.dup2(writer, descriptor)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        work()
        code = 0
    except SystemExit as left:
        code = left.code or 0
    except NanosetError as error:
        code = 1
        print(f"error: {error}", file=sys.stderr)
    except BaseException:  # noqa: BLE001 - nothing of the parent may go on in the child
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def in_fork(
    work: Callable[[], object], *, extra_bytes: int, seconds: float, still_seconds: float = 300.0
) -> tuple[list[Any], Outcome]:
    """Run work in a fork with little memory; → the values that it gave, and how it ended. For limits see `Child`."""
    outcome = Child(lambda: [limit_memory(extra_bytes), work()]).wait(seconds, still_seconds)
    return [json.JSONDecoder().raw_decode(text)[0] for text in outcome.said.split(_VALUE)[1:]], outcome


def give(value: object) -> None:
    """Give a value, which JSON can hold, from within a fork."""
    os.write(1, f"{_VALUE}{json.dumps(value)}\n".encode())


def limit_memory(extra_bytes: int) -> None:
    """Let this process have so much address space on top of what it has, as under `ulimit -v`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra_bytes, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _processor_seconds(group: int) -> float:
    """Return what the processes of a group have taken, and those that the living ones have waited for."""
    ticks = 0
    for process in members(group):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += sum(map(int, fields[11:15]))
    return ticks / os.sysconf("SC_CLK_TCK")


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


def run_module(module: str, folder: Path, *options: str, code: int | None = 0) -> tuple[str, str]:
    """Run `python -m MODULE` of the tests in a folder, which must end with a code; → what it prints on both outputs."""
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), str(TESTS.parent)])}
    command = [sys.executable, "-m", module, *options]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=False)
    assert code in (None, done.returncode), done.stdout + done.stderr
    return done.stdout, done.stderr


def run_campaign(folder: Path, *words: str) -> dict[str, int]:
    """Run a campaign, which must end well; → the last row of its table."""
    lines = run_module("faults", folder, *words)[0].splitlines()
    head, row = ([cell.strip() for cell in line.split("|")[1:-1]] for line in (lines[0], lines[-1]))
    return {name: int(cell.replace(",", "")) for name, cell in zip(head, row, strict=True) if cell[:1].isdigit()}
