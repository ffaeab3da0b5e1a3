"""Memory that is short: a worker killed by the kernel, an allocation refused."""

from __future__ import annotations

import os
import random
import resource
import signal
import time
from pathlib import Path

from child_processes import wait_until
from faults.interruptions.places import Place, conclude
from faults.interruptions.processes import Build, start
from faults.interruptions.trials import Trial

_PATIENCE = 60.0
"""seconds for a build that may wait for a thread that never came to life"""
_STILLBORN = "Exception ignored in thread started by"
"""What Python says when there is no memory for a new thread's first steps; who started it then waits forever, and is
killed by hand. Python's own code has no remedy for it, nor have we."""


def killed_worker(place: Place, rng: random.Random) -> Trial:
    """Kill the worker with the most memory in mid-task, as the kernel does when there is none left."""
    trial = Trial(faults=0)
    subject = place.new(workers=2)
    build = start(subject)
    moment = time.monotonic() + rng.uniform(0, place.seconds(2))
    while build.poll() is None and time.monotonic() < moment + _PATIENCE:
        if time.monotonic() > moment and (largest := _largest_worker(build)) is not None:
            os.kill(largest, signal.SIGKILL)
            trial.faults = 1
            break
        time.sleep(0.002)
    trial.ended(build.wait(), "refused", "done")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def _largest_worker(build: Build) -> int | None:
    """The worker process of a build that holds the most memory; None while there is none."""
    sizes = {}
    for child in _children(build.pid):
        try:
            is_worker = b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()
            pages = int(Path(f"/proc/{child}/statm").read_text().split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
        if is_worker:
            sizes[child] = pages
    return max(sizes, key=sizes.__getitem__, default=None)


def _children(pid: int) -> list[int]:
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except (FileNotFoundError, ProcessLookupError):
        return []


def refused_memory(place: Place, rng: random.Random) -> Trial:
    """Build with little more address space than the process has, as under `ulimit -v`; then with enough."""
    trial = Trial()
    subject = place.new()
    extra = int(2 ** rng.uniform(21, 29))
    build = start(subject, prepare=lambda: _limit(extra))
    if not wait_until(lambda: build.poll() is not None, _PATIENCE) and _STILLBORN in build.told():
        build.kill()
    outcome = build.wait()
    trial.ended(outcome, "refused", "done", "killed")
    trial.faults = int(outcome.end != "done")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def _limit(extra: int) -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
