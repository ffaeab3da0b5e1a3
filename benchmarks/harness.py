"""Runs whole commands in turn (A B C A B C …) and prints what each cost as ratios to the first."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field


@dataclass
class Cost:
    """What the runs of one command took."""

    cpu: list[float] = field(default_factory=list)
    """seconds of processor time, its children's included"""
    wall: list[float] = field(default_factory=list)
    """seconds"""
    peak: list[float] = field(default_factory=list)
    """MB of the largest single process"""


def run(command: Sequence[str], environment: Mapping[str, str] | None = None) -> tuple[float, float, float]:
    """Run a command to its end; → (cpu seconds, wall seconds, peak MB). Raises when it fails."""
    before = os.times()
    started = time.perf_counter()
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, **(environment or {})}
    )
    output = process.stdout.read()
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    after = os.times()
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{output.decode(errors='replace')[-3000:]}")
    cpu = after.children_user + after.children_system - before.children_user - before.children_system
    return cpu, wall, usage.ru_maxrss / 1024


def interleaved(
    commands: Mapping[str, Sequence[str]],
    rounds: int,
    reset: Callable[[str], object] = lambda name: None,
    check: Callable[[str], object] = lambda name: None,
    environments: Mapping[str, Mapping[str, str]] | None = None,
) -> dict[str, Cost]:
    """Run every command once a round, `rounds` times, after one round that is not counted.

    Args:
        commands: name → words of the command.
        rounds: that are counted.
        reset: called before each run: what an earlier run left must not spare this one its work.
        check: called after each run; raises where the command did not do its work.
        environments: name → variables that are set for its command.
    """
    costs = {name: Cost() for name in commands}
    for number in range(rounds + 1):
        for name, command in commands.items():
            reset(name)
            cpu, wall, peak = run(command, (environments or {}).get(name))
            check(name)
            if number:
                costs[name].cpu.append(cpu)
                costs[name].wall.append(wall)
                costs[name].peak.append(peak)
    return costs


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
