"""Runs whole commands, or calls in this process, in turn (A B C A B C …); prints their costs as
ratios to the first.
"""

from __future__ import annotations

import argparse
import multiprocessing
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
from typing import Any


def options(doc: str | None, *folders: str, **defaults: Any) -> argparse.Namespace:
    """Read the options of a benchmark from the command line; its text says what they mean.

    Args:
        doc: that text.
        folders: names of words that come first.
        defaults: option → its default, whose type is that of the option; a list takes several
            words, an empty one has to be given, and so has a type in a tuple.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in folders:
        parser.add_argument(name, type=Path)
    for name, default in defaults.items():
        given: dict[str, Any] = {"default": default, "type": type(default)}
        if isinstance(default, list):
            given = {
                "nargs": "+",
                "default": default,
                "type": type(next(iter(default), "")),
                "required": not default,
            }
        elif isinstance(default, tuple):
            given = {"type": default[0], "required": True}
        parser.add_argument(f"--{name.replace('_', '-')}", **given)
    return parser.parse_args()


def apart(function: Callable[..., None], *arguments: object) -> None:
    """Run in a process of its own: what this one holds would count as the peak of every command."""
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} failed")


@dataclass(frozen=True)
class Command:
    """A command to time, and a sign that it did its work. Without the sign nothing is timed."""

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
            raise ValueError(
                f"{' '.join(self.words)}: say what the command makes or prints, so that it can be "
                "seen"
            )

    def reset(self) -> None:
        """Take away what an earlier run left, which could spare this one its work."""
        for path in self.makes:
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        self.prepare()

    def check(self, output: str) -> None:
        """Raise RuntimeError where the run did not do its work."""
        missing = [str(path) for path in self.makes if not holds_bytes(path)]
        if missing:
            raise RuntimeError(
                f"{' '.join(self.words)} did not make {', '.join(missing)}:\n{output[-3000:]}"
            )
        if not re.search(self.prints, output, re.MULTILINE):
            raise RuntimeError(
                f"{' '.join(self.words)} did not print {self.prints!r}:\n{output[-3000:]}"
            )
        self.look()


IMPORT_NUMPY = Command(
    [sys.executable, "-c", "import numpy; print(numpy.__name__)"], prints="^numpy$"
)
"""What a process costs that does nothing yet."""


@dataclass
class Cost:
    """What the runs of one command or call took."""

    cpu: list[float] = field(default_factory=list)
    """seconds of processor time, those of its children or threads included"""
    wall: list[float] = field(default_factory=list)
    """seconds"""
    peak: list[float] = field(default_factory=list)
    """MB of the largest single process, of commands"""


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
    cpu = (
        after.children_user + after.children_system - before.children_user - before.children_system
    )
    # the system counts in hundredths of a second
    return max(cpu, 0.01), wall, usage.ru_maxrss / 1024


def interleaved(commands: Mapping[str, Command], rounds: int) -> dict[str, Cost]:
    """Run every command once a round, `rounds` times, after one round that is not counted; each run
    from nothing.
    """
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


def interleaved_calls(
    calls: Mapping[str, Callable[[], Any]], rounds: int, same: Callable[[Any, Any], bool]
) -> dict[str, Cost]:
    """Make every call once a round, `rounds` times, after one round that is not counted.

    Args:
        calls: name → what is timed.
        rounds: that are counted.
        same: whether a result is right, from the first call's result and this one.

    Raises:
        RuntimeError: a result is wrong, so that the call did not do the work that is timed.
    """
    costs = {name: Cost() for name in calls}
    for number in range(rounds + 1):
        first: Any = None
        for name, call in calls.items():
            cpu, wall = time.process_time(), time.perf_counter()
            result = call()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if number:
                costs[name].cpu.append(cpu)
                costs[name].wall.append(wall)
            first = result if first is None else first
            if not same(first, result):
                raise RuntimeError(f"{name} gives another result than {next(iter(calls))}")
            del result
    return costs


def head(title: str, megabytes: float = 0) -> None:
    """Print the first lines of a Markdown table, as `show` fills it."""
    print(
        f"\n| {title} | CPU s (min–max) | wall s | CPU ratio | wall ratio |"
        + " MB / CPU s | peak MB |" * (megabytes > 0)
    )
    print("| --- |" + " ---: |" * (6 if megabytes else 4), flush=True)


def show(costs: Mapping[str, Cost], megabytes: float = 0, label: str = "") -> None:
    """Print rows of a Markdown table: medians, spread of the CPU, ratios to the first row in the
    same round.
    """
    first = next(iter(costs.values()))
    for name, cost in costs.items():
        pairs = [(cost.cpu, first.cpu), (cost.wall, first.wall)]
        cpu_ratio, wall_ratio = (
            statistics.median(a / b for a, b in zip(*pair, strict=True)) for pair in pairs
        )
        cpu, wall = statistics.median(cost.cpu), statistics.median(cost.wall)
        cells = [
            label + name,
            f"{cpu:.3g} ({min(cost.cpu):.3g}–{max(cost.cpu):.3g})",
            f"{wall:.3g}",
        ]
        cells += [f"{cpu_ratio:.2f}", f"{wall_ratio:.2f}"]
        cells += [f"{megabytes / cpu:.1f}", f"{max(cost.peak):,.0f}"] if megabytes else []
        print(f"| {' | '.join(cells)} |", flush=True)


def compare(
    commands: Mapping[str, Command], rounds: int, megabytes: float, title: str = "command"
) -> None:
    """Run commands in turn and print a table of what they took."""
    costs = interleaved(commands, rounds)
    head(title, megabytes)
    show(costs, megabytes)
