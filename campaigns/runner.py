"""Run trials in processes of their own, count how they end, and print a table.

Every campaign yields kinds of trials (`Kind`). `run_kinds` runs the trials of each kind, and prints
one row of a table for it. For a bad trial, it also prints the command that repeats this trial.

A trial usually runs in a fork of this process (`Child`, `in_fork`), which may crash, hang or use
too much memory without ending the campaign.
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
_VALUE_MARK = "\x1e"
"""Comes before each value that a fork sends; a character that no program prints."""
_STEP_EVENTS = frozenset(
    {"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree"}
)
"""Python's audit events of changes to a folder."""
_WRITING_FLAGS = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_PIPE_BYTES = 1 << 20
"""Size of the pipe that takes what a child prints: more is never printed before it is read."""
_PATIENCE_SECONDS = 1800.0
"""A process that has not ended by then hangs. On a busy machine, a healthy one takes long, too."""
_PR_CAPBSET_DROP = 24
"""Option of prctl(2)."""
_CAPABILITY_VERSION_3 = 0x20080522
End = Literal["done", "refused", "killed", "hung", "crashed"]
"""How a process ends; see `Outcome`."""


class Skipped(Exception):
    """A kind of trial cannot be done on this machine, for the reason given."""


@dataclass(slots=True)
class Trial:
    """The result of one trial."""

    counts: Counter[str] = field(default_factory=Counter)
    """Counts for the columns of the table. Counts that have no column are printed below it."""
    wrong: list[str] = field(default_factory=list)
    """Messages that say what should not have happened; empty if all is well."""

    def ended(self, outcome: Outcome, *allowed: End) -> None:
        """Count how a disturbed process ended.

        Args:
            outcome: How it ended.
            allowed: How it may end; any other end is wrong.
        """
        self.counts[outcome.end] += 1
        if outcome.end == "refused":
            reason = _first_message(outcome.said).rpartition(": ")[2]
            self.counts[f"said {reason!r}"] += 1
        if outcome.end not in allowed:
            self.wrong.append(f"it ended as {outcome.end}: {outcome.said[-1500:]}")


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of trial: what is built, and what happens to it."""

    cells: tuple[str, ...]
    """First cells of its row in the table."""
    trials: int
    """Number of trials."""
    run: Callable[[range], Iterable[Trial]]
    """Runs the trials with these numbers; raises Skipped if this machine cannot."""

    @property
    def name(self) -> str:
        """The name by which `--select` chooses it."""
        return ", ".join(self.cells)


def _first_message(text: str) -> str:
    """Return the first line of a text that is a message, such as `error: no such file`."""
    for line in text.splitlines():
        if ": " in line:
            return line
    return text[:200]


def each(cells: tuple[str, ...], trials: int, run: Callable[[random.Random, int], Trial]) -> Kind:
    """Return a kind whose trials are run one by one.

    Args:
        cells: First cells of its row in the table.
        trials: Number of trials.
        run: Runs a trial, given its random numbers, which are the same in every run, and its number.
    """
    name = ", ".join(cells)

    def run_all(numbers: range) -> Iterator[Trial]:
        for number in numbers:
            yield run(seeded(name, number), number)

    return Kind(cells, trials, run_all)


def forked(
    cells: tuple[str, ...],
    trials: int,
    run: Callable[[int], Trial],
    *,
    batch: int = 1,
    dies: bool = False,
    **limits: int,
) -> Kind:
    """Return a kind whose trials run in forks with little memory and time.

    Args:
        cells: First cells of its row in the table.
        trials: Number of trials.
        run: Runs the trial with a number.
        batch: Number of trials in one fork. A trial that crashes, hangs or runs out of memory ends
            its fork, and is bad; another fork continues with the next trial.
        dies: Whether a trial may end its process by a signal.
        limits: See `in_fork`; the time is for each trial.
    """

    def run_all(numbers: range) -> Iterator[Trial]:
        start = numbers.start
        while start < numbers.stop:
            batch_numbers = range(start, min(start + batch, numbers.stop))

            def run_batch(batch_numbers: range = batch_numbers) -> None:
                for number in batch_numbers:
                    _run_and_give(run, number, limits["seconds"])

            results, outcome = in_fork(run_batch, **limits)
            for counts, wrong in results:
                yield Trial(Counter(counts), wrong)

            # If a result is missing, its trial has ended the fork.
            n_trials = len(results)
            if n_trials < len(batch_numbers):
                n_trials += 1
                may_die = dies and outcome.code < 0
                wrong = [f"{outcome.end}, {outcome.code}: {outcome.said[-400:]}"]
                yield Trial(Counter([outcome.end]), [] if may_die else wrong)
            start += n_trials

    return Kind(cells, trials, run_all)


def _run_and_give(run: Callable[[int], Trial], number: int, seconds: int) -> None:
    """Run a trial with a limit of processor time, and send its result to the parent."""
    _limit(resource.RLIMIT_CPU, int(time.process_time()) + 1 + seconds)
    trial = run(number)
    give([trial.counts, trial.wrong])


def seeded(name: str, number: int) -> random.Random:
    """Return the random numbers of a trial: the same for the same name and number."""
    return random.Random(zlib.crc32(name.encode()) << 32 | number)


def run_kinds(
    campaign: str,
    kinds: Iterable[Kind],
    head: Sequence[str],
    columns: Sequence[str],
    options: argparse.Namespace,
) -> int:
    """Run the trials of the selected kinds, and print a table.

    Args:
        campaign: Name of the campaign, for the commands that repeat bad trials.
        kinds: All kinds of trials.
        head: Headings of the cells of kinds.
        columns: Names of the counts that have columns.
        options: `select`: patterns of the names of kinds; `first`: number of the first trial;
            `only`: number of trials of each kind, or None for all.

    Returns:
        The number of bad trials.
    """
    count_columns = ("trials", *columns, "bad")
    print(f"| {' | '.join((*head, *count_columns))} |")
    print(f"|{' --- |' * len(head)}{' ---: |' * len(count_columns)}")
    total: Counter[str] = Counter()
    for kind in kinds:
        if not any(fnmatchcase(kind.name, pattern) for pattern in options.select):
            continue
        start = time.monotonic()
        try:
            counts = _run_kind(campaign, kind, options)
        except Skipped as reason:
            empty_cells = " |" * (len(count_columns) - 1)
            print(f"| {' | '.join(kind.cells)} | skipped: {reason} |{empty_cells}")
            continue
        _print_row(kind.cells, counts, count_columns)
        total += counts

        others = {name: count for name, count in counts.items() if name not in count_columns}
        seconds = time.monotonic() - start
        _report(f"{kind.name}: {counts['trials']} trials, {seconds:.1f} s {others or ''}")
    _print_row(("all", *[""] * (len(head) - 1)), total, count_columns)
    return total["bad"]


def _run_kind(campaign: str, kind: Kind, options: argparse.Namespace) -> Counter[str]:
    """Run the trials of a kind, report the first bad trial of each sort, and return all counts."""
    n_trials = kind.trials if options.only is None else options.only
    numbers = range(options.first, options.first + n_trials)
    counts: Counter[str] = Counter()
    reported: set[str] = set()
    for number, trial in zip(numbers, kind.run(numbers), strict=True):
        counts += trial.counts
        counts["trials"] += 1
        if not trial.wrong:
            continue
        counts["bad"] += 1

        # Messages that begin alike are about the same problem.
        problem = trial.wrong[0][:60]
        if problem not in reported:
            reported.add(problem)
            repeat = (
                f"python -m campaigns {campaign} --select '{kind.name}' --first {number} --only 1"
            )
            _report(f"BAD: {'; '.join(trial.wrong[:5])[:3000]}\n  again: {repeat}")
    return counts


def _report(text: str) -> None:
    """Print a line next to the table."""
    print(text, file=sys.stderr, flush=True)


def _print_row(cells: Sequence[str], counts: Counter[str], columns: Sequence[str]) -> None:
    """Print a row of the table."""
    numbers = [f"{counts[name]:,}" for name in columns]
    print(f"| {' | '.join((*cells, *numbers))} |", flush=True)


class Outcome(NamedTuple):
    """How a process ended."""

    end: End
    """`done`; `refused`: it reported an error; `killed`: by SIGKILL; `hung`: it took too long, or
    too much processor time; `crashed`: anything else, such as a traceback.
    """
    said: str = ""
    """What it printed to standard output and standard error."""
    code: int = 0
    """Its exit code, or minus the number of the signal that ended it."""

    def require_done(self, *wrong: str) -> None:
        """Check the end of a process that nothing disturbed.

        Args:
            wrong: What else is wrong.

        Raises:
            RuntimeError: It did not end well, or something is wrong.
        """
        if self.end != "done" or wrong:
            raise RuntimeError(f"nothing disturbed this: {self}, {wrong[:5]}")


class Child:
    """Work in a fork of this process, which is the leader of its own process group."""

    def __init__(self, work: Callable[[], object]) -> None:
        self._reader, writer = os.pipe()
        ready_reader, ready_writer = os.pipe()
        fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        self._said = b""
        self._status: int | None = None
        # The garbage collector of the child ignores what exists now; otherwise it would copy it.
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

    def poll(self, seconds: float = 0.0) -> bool:
        """Wait up to some seconds for its end, and return whether it has ended."""
        if self._status is None and select.select([self._handle], [], [], seconds)[0]:
            self._status = os.waitpid(self.pid, 0)[1]
            self.said()
            os.close(self._handle)
            os.close(self._reader)
            self._reader = -1
        return self._status is not None

    def send(self, number: signal.Signals, *, group: bool = True) -> None:
        """Send it a signal, and also to the processes that it has started if `group` is set."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            (os.killpg if group else os.kill)(self.pid, number)

    def kill(self, *, workers: bool = True) -> bool:
        """Kill it, with its workers or alone, and return whether a signal ended it."""
        if not self.poll():
            self.send(signal.SIGKILL, group=workers)
            self.poll(60)
        return os.WIFSIGNALED(self._status or 0)

    def wait(self, seconds: float = _PATIENCE_SECONDS) -> Outcome:
        """Wait for its end, and return how it ended; after these seconds, it is killed."""
        if not self.poll(seconds):
            self.kill()
            return Outcome("hung", self.said())
        code = os.waitstatus_to_exitcode(self._status or 0)
        return Outcome(_end(code, self.said()), self.said(), code)

    def said(self) -> str:
        """Return what it has printed so far."""
        # An OSError says that nothing more can be read now, or that the pipe is closed.
        with contextlib.suppress(OSError):
            while more := os.read(self._reader, _PIPE_BYTES):
                self._said += more
        return self._said.decode(errors="replace")


def _end(code: int, output: str) -> End:
    """Return how a process ended, by its exit code and by what it printed."""
    ends: dict[int, End] = {0: "done", -signal.SIGKILL: "killed", -signal.SIGXCPU: "hung"}
    if code in ends:
        return ends[code]
    has_message = "error: " in output or "failed: " in output
    if code == 1 and has_message and "Traceback" not in output:
        return "refused"
    return "crashed"


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
        sys.stdout = open(1, "w", closefd=False)  # noqa: SIM115
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os.close(ready_writer)
        work()
        code = 0
    except SystemExit as ending:
        code = ending.code or 0
    except NanosetError as error:
        code = 1
        print(f"error: {error}", file=sys.stderr)
    except BaseException:  # noqa: BLE001 - the child must not continue the parent's work
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()
        os._exit(code if isinstance(code, int) else 1)


def in_fork(
    work: Callable[[], object],
    *,
    extra_bytes: int,
    seconds: int,
    clock_seconds: float = _PATIENCE_SECONDS,
) -> tuple[list[Any], Outcome]:
    """Run work in a fork with little memory and processor time.

    Args:
        work: What the fork does; it sends values by `give`.
        extra_bytes: Address space that it may use in addition to that of this process.
        seconds: Processor time.
        clock_seconds: Time after which it is killed.

    Returns:
        The values that it sent, and how it ended.
    """

    def limited() -> None:
        limit_memory(extra_bytes)
        _limit(resource.RLIMIT_CPU, seconds)
        work()

    outcome = Child(limited).wait(clock_seconds)
    decoder = json.JSONDecoder()
    values: list[Any] = []
    for text in outcome.said.split(_VALUE_MARK)[1:]:
        value, _ = decoder.raw_decode(text)
        values.append(value)
    return values, outcome


def give(value: object) -> None:
    """Send a value, which JSON can represent, from a fork to its parent."""
    os.write(1, f"{_VALUE_MARK}{json.dumps(value)}\n".encode())


def limit_memory(extra_bytes: int) -> None:
    """Limit the address space of this process to what it has and some bytes, as `ulimit -v` does."""
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    _limit(resource.RLIMIT_AS, used + extra_bytes)
    _limit(resource.RLIMIT_CORE, 0)


def _limit(limit: int, value: int) -> None:
    """Set the soft value of a resource limit, such as RLIMIT_CPU."""
    resource.setrlimit(limit, (value, resource.RLIM_INFINITY))


def drop_rights() -> None:
    """Take away root's right to read and write files of any permissions.

    A process of another user never had it.
    """
    if os.geteuid() != 0:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    # CAP_DAC_OVERRIDE and CAP_DAC_READ_SEARCH, also for programs that this process starts.
    for capability in (1, 2):
        libc.prctl(_PR_CAPBSET_DROP, capability, 0, 0, 0)
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    no_capabilities = (ctypes.c_uint32 * 6)()
    if libc.capset(header, no_capabilities) != 0:
        raise OSError(ctypes.get_errno(), "capset")


def watch(folder: Path, last_step: int, notes: Path | None = None) -> None:
    """Kill this process just before one of its changes to a folder, or count the changes.

    Args:
        folder: The folder. Steps are changes to it: renames, removals, new folders and links, and
            files that are opened for writing.
        last_step: Number of the step, from 1, before which the process is killed.
        notes: If given, the process is not killed; a byte is appended to this file for each step.
    """
    prefix = str(folder)
    n_steps = 0
    notes_file = None
    if notes is not None:
        notes_file = os.open(notes, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal n_steps
        if event == "open":
            flags = arguments[2]
            is_step = isinstance(flags, int) and bool(flags & _WRITING_FLAGS)
        else:
            is_step = event in _STEP_EVENTS
        if not is_step or not os.path.abspath(str(arguments[0])).startswith(prefix):
            return
        n_steps += 1
        if notes_file is not None:
            os.write(notes_file, b".")
        elif n_steps == last_step:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def run_campaign(
    folder: Path, *words: str, code: int | None = 0
) -> tuple[list[dict[str, Any]], str]:
    """Run a campaign as a program.

    Args:
        folder: The current folder of the program.
        words: Its command line: the name of the campaign, and options.
        code: The exit code that it must end with; None: any.

    Returns:
        The rows of its table as dictionaries by heading, the last one that of all kinds; and what
        it printed to standard error.
    """
    environment = os.environ | {"PYTHONPATH": f"{REPOSITORY / 'tests'}{os.pathsep}{REPOSITORY}"}
    command = [sys.executable, "-m", "campaigns", *words]
    done = subprocess.run(
        command, env=environment, cwd=folder, capture_output=True, text=True, check=False
    )
    assert code in (None, done.returncode), done.stdout + done.stderr

    lines = [_cells(line) for line in done.stdout.splitlines()]
    headings = lines[0]
    rows: list[dict[str, Any]] = []
    for cells in lines[2:]:  # the second line divides the headings from the rows
        rows.append(dict(zip(headings, map(_number, cells), strict=True)))
    return rows, done.stderr


def _cells(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.split("|")[1:-1]]


def _number(cell: str) -> int | str:
    """Return the number in a cell, or its text."""
    digits = cell.replace(",", "")
    return int(digits) if digits.isdigit() else cell
