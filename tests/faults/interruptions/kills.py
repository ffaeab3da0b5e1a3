"""kill -9: at random moments, and before each step by which something is published."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

from faults.interruptions.places import Place, begin, conclude, dispose
from faults.interruptions.processes import start
from faults.interruptions.trials import Trial

_STEPS = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.symlink", "os.link", "shutil.rmtree"})
_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def kill_at_random(place: Place, rng: random.Random, *, workers: int = 1, seconds: float = 0.0) -> Trial:
    """Kill a build at a moment drawn evenly from its whole time, and up to three that go on with it within theirs.

    seconds: how long an undisturbed `nanoset build` takes; 0 = the core's stages are run, whose time is known.
    """
    trial, command = Trial(faults=0), bool(seconds)
    subject = place.new(workers=workers)
    whole = seconds or place.seconds(workers)
    moment = rng.uniform(0, whole)
    for _ in range(rng.randint(1, 4)):
        build = begin(subject, command)
        time.sleep(moment)
        killed = build.kill(workers=rng.random() < 0.7)
        trial.faults += killed
        trial.ended(build.wait(), "killed", "done")
        trial.wrong += place.look(subject)
        moment = rng.uniform(0, 0.6 * whole)
    return conclude(place, subject, trial, command=command)


def count_steps(place: Place) -> int:
    """How many steps an undisturbed build takes."""
    subject = place.new()
    counted = subject.folder / ".steps"
    outcome = start(subject, prepare=lambda: _watch(subject.folder, 0, counted)).wait()
    if outcome.end != "done":
        raise RuntimeError(f"a build that nothing disturbed: {outcome}")
    steps = counted.stat().st_size
    dispose(subject)
    return steps


def kill_at_step(place: Place, step: int) -> Trial:
    """Kill a build just before it renames, links, removes or opens for writing for the step-th time (from 1)."""
    trial = Trial()
    subject = place.new()
    outcome = start(subject, prepare=lambda: _watch(subject.folder, step, None)).wait()
    trial.ended(outcome, "killed")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def _watch(folder: Path, last: int, counted: Path | None) -> None:
    """In the build: count steps below a folder; end at the last, or note each as a byte of a file."""
    prefix, seen = str(folder), 0
    notes = None if counted is None else os.open(counted, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        if not (event in _STEPS or (event == "open" and isinstance(arguments[2], int) and arguments[2] & _WRITES)):
            return
        if not str(arguments[0]).startswith(prefix):
            return
        seen += 1
        if notes is not None:
            os.write(notes, b".")
        elif seen == last:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
