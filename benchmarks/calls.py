"""Runs calls in turn within one process (A B C A B C …) and prints what each cost as ratios to the first."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

HEAD = "| {} | CPU s (min–max) | wall s | CPU ratio | wall ratio | result |"
RULE = "| --- | ---: | ---: | ---: | ---: | --- |"


@dataclass
class Timing:
    """What the runs of one call took."""

    cpu: list[float] = field(default_factory=list)
    """seconds of processor time, all threads"""
    wall: list[float] = field(default_factory=list)
    """seconds"""


def interleaved(
    calls: Mapping[str, Callable[[], Any]], rounds: int, same: Callable[[Any, Any], bool], *, warm: bool = True
) -> dict[str, Timing]:
    """Make every call once a round, `rounds` times, after one round that is not counted (where `warm`).

    Args:
        calls: name → what is timed.
        rounds: that are counted.
        same: whether a result is right, from the first call's result and this one.
        warm: whether a round that is not counted goes before.

    Raises:
        RuntimeError: a result is wrong, so that the call did not do the work that is timed.
    """
    timings = {name: Timing() for name in calls}
    for number in range(rounds + warm):
        first: Any = None
        for name, call in calls.items():
            cpu, wall = time.process_time(), time.perf_counter()
            result = call()
            cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
            if number >= warm:
                timings[name].cpu.append(cpu)
                timings[name].wall.append(wall)
            first = result if first is None else first
            if not same(first, result):
                raise RuntimeError(f"{name} gives another result than {next(iter(calls))}")
            del result
    return timings


def head(title: str) -> None:
    """The first lines of a Markdown table."""
    print(f"\n{HEAD.format(title)}\n{RULE}", flush=True)


def show(label: str, timings: Mapping[str, Timing]) -> None:
    """Rows of a Markdown table: medians, spread of the CPU, ratios to the first call."""
    base = next(iter(timings.values()))
    for name, timing in timings.items():
        cpu, wall = statistics.median(timing.cpu), statistics.median(timing.wall)
        ratio = statistics.median(a / b for a, b in zip(timing.cpu, base.cpu, strict=True))
        wall_ratio = statistics.median(a / b for a, b in zip(timing.wall, base.wall, strict=True))
        result = "—" if timing is base else "the same"
        print(
            f"| {label}, {name} | {cpu:.3g} ({min(timing.cpu):.3g}–{max(timing.cpu):.3g}) | {wall:.3g} "
            f"| {ratio:.2f} | {wall_ratio:.2f} | {result} |",
            flush=True,
        )
