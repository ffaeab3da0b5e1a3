"""Trials by the thousand, in forked processes that may crash, hang or run out of memory without ending the campaign.

    PYTHONPATH=tests python -m faults.campaign --trials 3000 [--select PATTERN]

Prints a table; exits with 1 when a trial was bad, and shows the first of each kind with its number, by which
`--select FORMAT --first NUMBER --trials 1` repeats it.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from faults import datasets, outputs, settings, texts
from faults.trial import OUTCOMES, Bench, Format

EXTRA_BYTES = 1 << 30
"""address space that a trial may take on top of the process as it is"""
SECONDS = 20.0
"""of a processor, for one trial"""
STILL_SECONDS = 300.0
"""after which a trial hangs that takes none"""
_BATCH = 500
_CRASHED, _HUNG = len(OUTCOMES), len(OUTCOMES) + 1


@dataclass(slots=True)
class Tally:
    """What the trials of one format gave."""

    counts: Counter[str] = field(default_factory=Counter)
    """outcome → trials"""
    bad: dict[str, str] = field(default_factory=dict)
    """kind of failure → the first of it"""
    seconds: float = 0.0

    @property
    def trials(self) -> int:
        return sum(self.counts.values())

    def add(self, number: int, outcome: str, detail: str) -> None:
        self.counts[outcome] += 1
        if outcome not in OUTCOMES[:3]:
            self.bad.setdefault(f"{outcome}: {detail[:60]}", f"trial {number}: {detail}")


def all_formats(scratch: Path) -> list[Format]:
    """Every kind of file, made in an empty folder."""
    tokenizer = settings.tokenizer_json()
    made = [*datasets.formats(scratch), *texts.formats()]
    return [*made, *outputs.formats(scratch, tokenizer), *settings.formats(tokenizer)]


def run(kind: Format, first: int, trials: int, scratch: Path) -> Tally:
    """Trials [first, first + trials) of a format, in batches of processes."""
    tally, number, end, begun = Tally(), first, first + trials, time.monotonic()
    while number < end:
        number = _batch(kind, number, min(number + _BATCH, end), scratch, tally)
    tally.seconds = time.monotonic() - begun
    return tally


def _batch(kind: Format, first: int, end: int, scratch: Path, tally: Tally) -> int:
    """Run trials in a child; → the number of the first that was not run."""
    shared = mmap.mmap(-1, 8)
    shared[:] = first.to_bytes(8, "little")
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        notes = Path(folder) / "notes.jsonl"
        child = os.fork()
        if child == 0:
            _child(kind, range(first, end), Path(folder), notes, shared)
        status, hung = _wait(child, shared)
        done = [json.loads(line) for line in notes.read_text().splitlines()] if notes.exists() else []
    for number, outcome, detail in done:
        tally.add(number, outcome, detail)
    reached = first + len(done)
    if reached < end:
        what = "hung" if hung else "crashed"
        tally.add(reached, what, f"status {status}" if not hung else f"more than {SECONDS:g} s")
        reached += 1
    return reached


def _child(kind: Format, numbers: range, folder: Path, notes: Path, shared: mmap.mmap) -> None:
    code = 1
    try:
        place = folder / "files"
        place.mkdir()
        bench = Bench(kind, place)
        used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (used + EXTRA_BYTES, used + EXTRA_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        with notes.open("w", buffering=1) as file:
            for number in numbers:
                shared[:] = number.to_bytes(8, "little")
                outcome, detail = bench.run(number)
                file.write(json.dumps([number, outcome, detail if outcome == "bad" else ""]) + "\n")
        code = 0
    except BaseException:  # noqa: BLE001 - nothing of this process may go on in the child
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(child: int, shared: mmap.mmap) -> tuple[int, bool]:
    """(exit status, whether it had to be killed) of a child that must go on to its next trial in time.

    On a machine with much else to do, a sound trial takes as long as it likes.
    """
    seen, since, spent = bytes(shared[:]), time.monotonic(), 0.0
    while True:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status, False
        time.sleep(0.01)
        if bytes(shared[:]) != seen:
            seen, since, spent = bytes(shared[:]), time.monotonic(), _processor_seconds(child)
        elif time.monotonic() - since > STILL_SECONDS or _processor_seconds(child) - spent > SECONDS:
            os.kill(child, signal.SIGKILL)
            return os.waitpid(child, 0)[1], True


def _processor_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def table(tallies: dict[str, Tally]) -> str:
    """The figures as Markdown."""
    lines = [
        "| format | mutations | refused | unharmed | as written | bad |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
    ]
    total = Counter[str]()
    for name, tally in [*tallies.items(), ("all", None)]:
        counts = tally.counts if tally else total
        if tally:
            total += tally.counts
        bad = sum(counts.values()) - sum(counts[outcome] for outcome in OUTCOMES[:3])
        cells = [f"{sum(counts.values()):,}", *(f"{counts[outcome]:,}" for outcome in OUTCOMES[:3]), f"{bad:,}"]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(prog="faults.campaign", description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3000, help="of each format")
    parser.add_argument("--first", type=int, default=0, help="number of the first trial")
    parser.add_argument("--select", default="*", help="formats, such as '.idx' or '*tar*'")
    options = parser.parse_args()
    tallies: dict[str, Tally] = {}
    base = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=base) as folder:
        made = Path(folder) / "made"
        made.mkdir()
        os.environ["XDG_CACHE_HOME"] = str(Path(folder) / "cache")
        for kind in all_formats(made):
            if fnmatchcase(kind.name, options.select):
                trials = max(1, round(options.trials * kind.share))
                tallies[kind.name] = run(kind, options.first, trials, Path(folder))
                tally = tallies[kind.name]
                print(f"{kind.name}: {dict(tally.counts)}, {tally.seconds:.1f} s", file=sys.stderr, flush=True)
                for failure in tally.bad.values():
                    print(f"  {failure}", file=sys.stderr, flush=True)
    print(table(tallies))
    return int(any(tally.bad for tally in tallies.values()))


if __name__ == "__main__":
    sys.exit(main())
