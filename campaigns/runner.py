"""What all campaigns share: trials in forks, their seeds, the table, and the line that repeats a
bad one.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import fcntl
import gc
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
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.errors import NanosetError

REPOSITORY = Path(__file__).parents[1]
_VALUE = "\x1e"
"""Stands before each value that a fork gives."""
_STEPS = frozenset(
    {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree"}
)
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
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
            told = next(
                (line for line in outcome.said.splitlines() if ": " in line), outcome.said[:200]
            )
            self.counts[f"said {told.rpartition(': ')[2]!r}"] += 1
        if outcome.end not in allowed:
            self.wrong.append(f"it ended as {outcome.end}: {outcome.said[-1500:]}")


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


def each(cells: tuple[str, ...], trials: int, run: Callable[[random.Random, int], Trial]) -> Kind:
    """Return a kind of trials that are made one by one, from a seeded generator and their number."""
    name = ", ".join(cells)
    return Kind(
        cells, trials, lambda numbers: (run(seeded(name, number), number) for number in numbers)
    )


def forked(
    cells: tuple[str, ...],
    trials: int,
    run: Callable[[int], Trial],
    *,
    batch: int = 1,
    dies: bool = False,
    **limits: int,
) -> Kind:
    """Return a kind of trials that are made in forks with little memory and time; the table shows
    all that they give.

    Args:
        cells: in the table.
        trials: how many.
        run: makes the trial of a number.
        batch: trials of a fork; one that crashes, hangs or runs out of memory is wrong, and another
            fork goes on.
        dies: what is tried may end the process by a signal.
        limits: see `in_fork`; the time is of each trial.
    """

    def all_of(numbers: range) -> Iterator[Trial]:
        at = numbers.start
        while at < numbers.stop:
            some = range(at, min(at + batch, numbers.stop))
            given, outcome = in_fork(
                lambda some=some: [_give_trial(run, one, limits["seconds"]) for one in some],
                **limits,
            )
            yield from (Trial(Counter(counts), wrong) for counts, wrong in given)
            if len(given) < len(some):
                wrong = [f"{outcome.end}, {outcome.code}: {outcome.said[-400:]}"]
                yield Trial(Counter([outcome.end]), [] if dies and outcome.code < 0 else wrong)
            at += min(len(given) + 1, len(some))

    return Kind(cells, trials, all_of)


def _give_trial(run: Callable[[int], Trial], number: int, seconds: int) -> None:
    _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + seconds)
    trial = run(number)
    give([trial.counts, trial.wrong])


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
        options: select, patterns of names; first, number of the first trial; only, so many trials
            of each kind.
    """
    columns, total = ("trials", *columns, "bad"), Counter[str]()
    print(f"| {' | '.join((*head, *columns))} |\n|{' --- |' * len(head)}{' ---: |' * len(columns)}")
    for kind in kinds:
        if not any(fnmatchcase(kind.name, pattern) for pattern in options.select):
            continue
        counts, told, begun = Counter[str](), set[str](), time.monotonic()
        numbers = range(
            options.first, options.first + (kind.trials if options.only is None else options.only)
        )
        try:
            for number, trial in zip(numbers, kind.run(numbers), strict=True):
                counts += trial.counts + Counter(trials=1, bad=int(bool(trial.wrong)))
                if trial.wrong and trial.wrong[0][:60] not in told:  # the first of each sort
                    told.add(trial.wrong[0][:60])
                    repeat = (
                        f"python -m campaigns {campaign} --select '{kind.name}' --first {number} "
                        "--only 1"
                    )
                    _say(f"BAD: {'; '.join(trial.wrong[:5])[:3000]}\n  again: {repeat}")
        except Skipped as reason:
            print(f"| {' | '.join(kind.cells)} | skipped: {reason} |{' |' * (len(columns) - 1)}")
            continue
        _row(kind.cells, counts, columns)
        total += counts
        others = {name: count for name, count in counts.items() if name not in columns}
        _say(
            f"{kind.name}: {counts['trials']} trials, {time.monotonic() - begun:.1f} s "
            f"{others or ''}"
        )
    _row(("all", *[""] * (len(head) - 1)), total, columns)
    return total["bad"]


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _row(cells: Sequence[str], counts: Counter[str], columns: Sequence[str]) -> None:
    print(f"| {' | '.join((*cells, *(f'{counts[name]:,}' for name in columns)))} |", flush=True)


class Outcome(NamedTuple):
    """How a process ended."""

    end: End
    """done; refused: an error of ours; killed by SIGKILL; hung; crashed: anything else"""
    said: str = ""
    """on both of its outputs"""
    code: int = 0
    """exit code, or minus the signal"""

    def require_done(self, *wrong: str) -> None:
        """Raise RuntimeError unless a process that nothing disturbed ended well, with nothing
        wrong.
        """
        if self.end != "done" or wrong:
            raise RuntimeError(f"nothing disturbed this: {self}, {wrong[:5]}")


class Child:
    """Work in a fork of this process, which leads a group of its own."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._reader, writer = os.pipe()
        ready_reader, ready_writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, 1 << 20)  # more is never said before it is heard
        self._said, self._status = b"", None
        # collecting garbage in the child need not look at, and so copy, all that there is
        gc.freeze()
        self.pid = os.fork()
        if self.pid == 0:
            os.close(self._reader)
            os.close(ready_reader)
            _live(work, writer, ready_writer)
        with contextlib.suppress(PermissionError, ProcessLookupError):
            os.setpgid(self.pid, self.pid)
        os.close(writer)

        # Wait until the child has set up its outputs and handlers. A signal that reached it earlier
        # would end it without a word, which is no fault of the command that it runs.
        os.close(ready_writer)
        os.read(ready_reader, 1)
        os.close(ready_reader)

        os.set_blocking(self._reader, False)
        self._handle = os.pidfd_open(self.pid)
        self._status: int | None

    def poll(self, seconds: float = 0.0) -> bool:
        """Return whether it has ended; waits for so long."""
        if self._status is None and select.select([self._handle], [], [], seconds)[0]:
            self._status = os.waitpid(self.pid, 0)[1]
            self.said()
            os.close(self._handle)
            os.close(self._reader)
            self._reader = -1
        return self._status is not None

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

    def wait(self, seconds: float = 1800.0) -> Outcome:
        """Wait for its end; after so many seconds it hangs, and is killed: a sound one takes long
        on a busy machine.
        """
        if not self.poll(seconds):
            self.kill()
            return Outcome("hung", self.said())
        code = os.waitstatus_to_exitcode(self._status or 0)
        return Outcome(_end(code, self.said()), self.said(), code)

    def said(self) -> str:
        """Return what it has said so far."""
        with contextlib.suppress(OSError):  # nothing more for now, or at all
            while more := os.read(self._reader, 1 << 20):
                self._said += more
        return self._said.decode(errors="replace")


def _end(code: int, said: str) -> End:
    ends: dict[int, End] = {0: "done", -signal.SIGKILL: "killed", -signal.SIGXCPU: "hung"}
    is_ours = code == 1 and "Traceback" not in said and ("error: " in said or "failed: " in said)
    return ends.get(code, "refused" if is_ours else "crashed")


def _live(work: Callable[[], object], writer: int, ready_writer: int) -> None:
    """Run the child's work, and end the process.

    Args:
        work: what the child does.
        writer: pipe that takes both of its outputs.
        ready_writer: pipe that is closed when the child can be sent signals.
    """
    code: object = 99
    try:
        with contextlib.suppress(PermissionError):
            os.setpgid(0, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        for descriptor in (1, 2):
            os.dup2(writer, descriptor)
        sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
        os.close(ready_writer)
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
    work: Callable[[], object], *, extra_bytes: int, seconds: int, clock_seconds: float = 1800.0
) -> tuple[list[Any], Outcome]:
    """Run work in a fork with little memory and processor time; → the values that it gave, and how
    it ended.
    """

    def limited() -> None:
        limit_memory(extra_bytes)
        _limit(resource.RLIMIT_CPU, seconds)
        work()

    outcome = Child(limited).wait(clock_seconds)
    return [
        json.JSONDecoder().raw_decode(text)[0] for text in outcome.said.split(_VALUE)[1:]
    ], outcome


def give(value: object) -> None:
    """Give a value, which JSON can hold, from within a fork."""
    os.write(1, f"{_VALUE}{json.dumps(value)}\n".encode())


def limit_memory(extra_bytes: int) -> None:
    """Let this process have so much address space on top of what it has, as under `ulimit -v`."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, used + extra_bytes)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(what: int, most: int) -> None:
    resource.setrlimit(what, (most, resource.RLIM_INFINITY))


def drop_rights() -> None:
    """Let root be refused what other users are refused; others are as they are."""
    if os.geteuid() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        # CAP_DAC_OVERRIDE and _READ_SEARCH: a process started later lacks them, too
        for capability in (1, 2):
            libc.prctl(24, capability, 0, 0, 0)
        if libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)()) != 0:
            raise OSError(ctypes.get_errno(), "capset")


def watch(folder: Path, last: int, counted: Path | None = None) -> None:
    """Count the steps of this process below a folder, such as renames; end at the last, or note
    each in a file.
    """
    prefix, seen = str(folder), 0
    notes = None if counted is None else os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        is_write = event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES
        if not (event in _STEPS or is_write) or not os.path.abspath(str(arguments[0])).startswith(
            prefix
        ):
            return
        seen += 1
        if notes is not None:
            os.write(notes, b".")
        elif seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def run_campaign(
    folder: Path, *words: str, code: int | None = 0
) -> tuple[list[dict[str, Any]], str]:
    """Run a campaign, which must end with a code; → its table, the last row that of all kinds, and
    what it says.
    """
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY / 'tests'}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-m", "campaigns", *words]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert code in (None, done.returncode), done.stdout + done.stderr
    head, _, *rows = (
        [cell.strip() for cell in line.split("|")[1:-1]] for line in done.stdout.splitlines()
    )
    return [dict(zip(head, map(_number, row), strict=True)) for row in rows], done.stderr


def _number(cell: str) -> int | str:
    digits = cell.replace(",", "")
    return int(digits) if digits.isdigit() else cell
