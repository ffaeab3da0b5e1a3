"""Run commands, or calls in this process, in turn (A B C A B C …), and print what they cost.

Running them in turn spreads whatever else the machine does over all of them. Costs are printed as
medians, and as ratios to the first command or call in the same round.
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
from typing import Any, NamedTuple

_MAX_OUTPUT_SHOWN = 3000
"""Characters of a failed command's output that an error shows, the last ones."""
_MIN_CPU_SECONDS = 0.01
"""The system counts processor time in hundredths of a second."""


def options(doc: str | None, *folders: str, **defaults: Any) -> argparse.Namespace:
    """Read the options of a benchmark from the command line.

    Args:
        doc: The help text, which says what the options mean.
        folders: Names of arguments without a dash, each the path of a folder.
        defaults: Name of each option → its default. The option has the type of its default. If the
            default is a list, the option takes several words; if that list is empty, the option is
            required. A type in a tuple, such as `(str,)`, is a required option of that type.
    """
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name in folders:
        parser.add_argument(name, type=Path)
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", **_option_settings(default))
    return parser.parse_args()


def _option_settings(default: Any) -> dict[str, Any]:
    """Return the arguments of `add_argument` for an option, by its default; see `options`."""
    if isinstance(default, tuple):
        [required_type] = default
        return {"type": required_type, "required": True}
    if isinstance(default, list):
        item_type = type(default[0]) if default else str
        return {"nargs": "+", "default": default, "type": item_type, "required": not default}
    return {"default": default, "type": type(default)}


def run_in_new_process(function: Callable[..., None], *arguments: object) -> None:
    """Call a function in a separate process, which starts with little memory.

    The memory of the process that starts a command counts towards the command's peak: a child is
    first a copy of its parent. So work that takes much memory is done in a process that ends.

    Args:
        function: A function of a module.
        arguments: Its arguments.

    Raises:
        RuntimeError: The function failed.
    """
    process = multiprocessing.get_context("spawn").Process(target=function, args=arguments)
    process.start()
    process.join()
    if process.exitcode:
        raise RuntimeError(f"{function.__name__} failed")


@dataclass(frozen=True)
class Command:
    """A command to time, and a sign that it did its work. Without the sign, it is not timed."""

    words: Sequence[str]
    """The program and its arguments."""
    makes: Sequence[Path] = ()
    """Files or folders that it makes. They are removed before each run, and must not be empty
    afterwards.
    """
    prints: str = ""
    """A regular expression that must match some of its output."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Environment variables that are set for it."""
    prepare: Callable[[], object] = lambda: None
    """Called before each run, after the files that it makes were removed."""
    inspect: Callable[[], object] = lambda: None
    """Called after each run, while the files that it made exist."""

    def __post_init__(self) -> None:
        if not self.makes and not self.prints:
            raise ValueError(
                f"{' '.join(self.words)}: say what the command makes or prints, so that it can be "
                "seen"
            )

    def reset(self) -> None:
        """Remove what an earlier run has made, so that this one cannot save work."""
        for path in self.makes:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        self.prepare()

    def check(self, output: str) -> None:
        """Check that a run did its work.

        Args:
            output: What it printed.

        Raises:
            RuntimeError: The run did not make the files, or did not print the text.
        """
        output_end = output[-_MAX_OUTPUT_SHOWN:]
        missing = [str(path) for path in self.makes if not has_content(path)]
        if missing:
            raise RuntimeError(
                f"{' '.join(self.words)} did not make {', '.join(missing)}:\n{output_end}"
            )
        if not re.search(self.prints, output, re.MULTILINE):
            raise RuntimeError(
                f"{' '.join(self.words)} did not print {self.prints!r}:\n{output_end}"
            )
        self.inspect()


IMPORT_NUMPY = Command(
    [sys.executable, "-c", "import numpy; print(numpy.__name__)"], prints="^numpy$"
)
"""Shows what a process costs that does nothing yet."""


def has_content(path: Path) -> bool:
    """Return whether a file is not empty, or a folder contains such a file."""
    files = path.rglob("*") if path.is_dir() else [path]
    return any(file.is_file() and file.stat().st_size for file in files)


class RunCost(NamedTuple):
    """What one run of a command took."""

    cpu: float
    """Seconds of processor time, with those of processes that it started."""
    wall: float
    """Seconds."""
    peak: float
    """Memory of the largest single process, in MiB."""


@dataclass
class Cost:
    """What all runs of one command or call took."""

    cpu: list[float] = field(default_factory=list)
    """Seconds of processor time of each run, with those of child processes or threads."""
    wall: list[float] = field(default_factory=list)
    """Seconds of each run."""
    peak: list[float] = field(default_factory=list)
    """Memory of the largest single process of each run, in MiB; empty for calls."""


def run(command: Command) -> RunCost:
    """Run a command from nothing to its end, and measure it.

    Raises:
        RuntimeError: The command failed, or did not do its work.
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

    # `wait4` also returns the peak memory of the process, which `Popen.wait` does not.
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    after = os.times()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        output_end = output[-_MAX_OUTPUT_SHOWN:]
        raise RuntimeError(f"{' '.join(command.words)} failed:\n{output_end}")
    command.check(output)

    user_seconds = after.children_user - before.children_user
    system_seconds = after.children_system - before.children_system
    cpu = max(user_seconds + system_seconds, _MIN_CPU_SECONDS)
    return RunCost(cpu=cpu, wall=wall, peak=usage.ru_maxrss / 1024)


def interleaved(commands: Mapping[str, Command], rounds: int) -> dict[str, Cost]:
    """Run every command once in each round, and measure it.

    A first round is not counted: it fills the caches of the system.

    Args:
        commands: Name → command.
        rounds: Number of rounds that are counted.

    Returns:
        Name → what its runs took.
    """
    costs = {name: Cost() for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            measured = run(command)
            if number > 0:
                costs[name].cpu.append(measured.cpu)
                costs[name].wall.append(measured.wall)
                costs[name].peak.append(measured.peak)
    return costs


def interleaved_calls(
    calls: Mapping[str, Callable[[], Any]], rounds: int, same: Callable[[Any, Any], bool]
) -> dict[str, Cost]:
    """Make every call once in each round, and measure it.

    A first round is not counted: it fills the caches of the system.

    Args:
        calls: Name → function that is timed.
        rounds: Number of rounds that are counted.
        same: Returns whether a result is right, given that of the first call and this one.

    Returns:
        Name → what its calls took.

    Raises:
        RuntimeError: A result is wrong, so that the call did not do the work that is timed.
    """
    costs = {name: Cost() for name in calls}
    first_name = next(iter(calls))
    for number in range(rounds + 1):
        first_result: Any = None
        for name, call in calls.items():
            cpu_started = time.process_time()
            started = time.perf_counter()
            result = call()
            cpu = time.process_time() - cpu_started
            wall = time.perf_counter() - started
            if number > 0:
                costs[name].cpu.append(cpu)
                costs[name].wall.append(wall)

            if name == first_name:
                first_result = result
            if not same(first_result, result):
                raise RuntimeError(f"{name} gives another result than {first_name}")
            del result  # so that the next call has its memory
    return costs


def print_head(title: str, megabytes: float = 0) -> None:
    """Print the first lines of a Markdown table, whose rows `print_rows` prints.

    Args:
        title: Heading of the first column.
        megabytes: Size of the input, if rates and memory are printed, too.
    """
    headings = [title, "CPU s (min–max)", "wall s", "CPU ratio", "wall ratio"]
    if megabytes:
        headings += ["MB / CPU s", "peak MiB"]
    n_numbers = len(headings) - 1
    print(f"\n| {' | '.join(headings)} |")
    print("| --- |" + " ---: |" * n_numbers, flush=True)


def print_rows(costs: Mapping[str, Cost], megabytes: float = 0, label: str = "") -> None:
    """Print rows of a Markdown table: medians, the range of processor times, and ratios.

    Args:
        costs: Name → what its runs took. Ratios are to the first one in the same round.
        megabytes: Size of the input, if rates and memory are printed, too.
        label: Printed before each name.
    """
    first = next(iter(costs.values()))
    for name, cost in costs.items():
        cpu = statistics.median(cost.cpu)
        wall = statistics.median(cost.wall)
        cells = [
            label + name,
            f"{cpu:.3g} ({min(cost.cpu):.3g}–{max(cost.cpu):.3g})",
            f"{wall:.3g}",
            f"{_median_ratio(cost.cpu, first.cpu):.2f}",
            f"{_median_ratio(cost.wall, first.wall):.2f}",
        ]
        if megabytes:
            cells += [f"{megabytes / cpu:.1f}", f"{max(cost.peak):,.0f}"]
        print(f"| {' | '.join(cells)} |", flush=True)


def _median_ratio(values: Sequence[float], first_values: Sequence[float]) -> float:
    """Return the median of the ratios of values to those of the first row in the same round."""
    return statistics.median(
        value / first for value, first in zip(values, first_values, strict=True)
    )


def compare(
    commands: Mapping[str, Command], rounds: int, megabytes: float, title: str = "command"
) -> None:
    """Run commands in turn, and print a table of what they took.

    Args:
        commands: Name → command.
        rounds: Number of rounds that are counted.
        megabytes: Size of the input, for rates.
        title: Heading of the first column.
    """
    costs = interleaved(commands, rounds)
    print_head(title, megabytes)
    print_rows(costs, megabytes)
