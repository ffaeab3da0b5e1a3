"""Runs whole commands in turn (A B C A B C …) and prints what each cost as ratios to the first."""

from __future__ import annotations

import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Command:
    """A command to time, and what shows that it did its work. Without such a sign nothing is timed."""

    words: Sequence[str]
    """program and arguments"""
    makes: Sequence[Path] = ()
    """files or folders; removed before each run, and there and not empty after it"""
    prints: str = ""
    """regular expression that is found in what it prints"""
    environment: Mapping[str, str] = field(default_factory=dict)
    """variables that are set for it"""
    prepare: Callable[[], object] = lambda: None
    """called before each run, after what it makes was removed"""
    look: Callable[[], object] = lambda: None
    """called after each run, while what it made is there"""

    def __post_init__(self) -> None:
        if not self.makes and not self.prints:
            raise ValueError(f"{' '.join(self.words)}: say what the command makes or prints, so that it can be seen")

    def reset(self) -> None:
        """Take away what an earlier run left, which could spare this one its work."""
        for path in self.makes:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.prepare()

    def check(self, output: str) -> None:
        """Raise RuntimeError where the run did not do its work."""
        missing = [str(path) for path in self.makes if not holds_bytes(path)]
        if missing:
            raise RuntimeError(f"{' '.join(self.words)} did not make {', '.join(missing)}:\n{output[-3000:]}")
        if not re.search(self.prints, output, re.MULTILINE):
            raise RuntimeError(f"{' '.join(self.words)} did not print {self.prints!r}:\n{output[-3000:]}")
        self.look()


IMPORT_NUMPY = Command([sys.executable, "-c", "import numpy; print(numpy.__name__)"], prints="^numpy$")
"""What a process costs that does nothing yet."""


@dataclass
class Cost:
    """What the runs of one command took."""

    cpu: list[float] = field(default_factory=list)
    """seconds of processor time, its children's included"""
    wall: list[float] = field(default_factory=list)
    """seconds"""
    peak: list[float] = field(default_factory=list)
    """MB of the largest single process"""


def run(command: Command) -> tuple[float, float, float]:
    """Run a command from nothing to its end; → (cpu seconds, wall seconds, peak MB).

    Raises:
        RuntimeError: it failed, or did not do its work.
    """
    command.reset()
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(
        command.words,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **command.environment},
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    with process.stdout:
        output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    after = os.times()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command.words)} failed:\n{output[-3000:]}")
    command.check(output)
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return max(cpu, 0.01), wall, usage.ru_maxrss / 1024  # the system counts in hundredths of a second


def interleaved(commands: Mapping[str, Command], rounds: int) -> dict[str, Cost]:
    """Run every command once a round, `rounds` times, after one round that is not counted; each run from nothing."""
    costs = {name: Cost() for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            cpu, wall, peak = run(command)
            if number:
                costs[name].cpu.append(cpu)
                costs[name].wall.append(wall)
                costs[name].peak.append(peak)
    return costs


def holds_bytes(path: Path) -> bool:
    """Whether a file is not empty, or a folder holds such a file."""
    files = path.rglob("*") if path.is_dir() else [path]
    return any(file.is_file() and file.stat().st_size for file in files)


def show(costs: Mapping[str, Cost], megabytes: float) -> None:
    """A Markdown table: medians, spread of the CPU, ratios to the first row."""
    first = next(iter(costs.values()))
    print("| command | CPU s (min–max) | MB / CPU s | wall s | peak MB | CPU ratio | wall ratio |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for name, cost in costs.items():
        cpu, wall = statistics.median(cost.cpu), statistics.median(cost.wall)
        ratio = statistics.median(a / b for a, b in zip(cost.cpu, first.cpu, strict=True))
        wall_ratio = statistics.median(a / b for a, b in zip(cost.wall, first.wall, strict=True))
        print(
            f"| {name} | {cpu:.2f} ({min(cost.cpu):.2f}–{max(cost.cpu):.2f}) | {megabytes / cpu:.1f} | {wall:.2f} "
            f"| {max(cost.peak):,.0f} | {ratio:.2f} | {wall_ratio:.2f} |"
        )
