"""Clocks that jump, and file times that lie."""

from __future__ import annotations

import os
import random
import time
from pathlib import Path

from faults.interruptions.places import Place, conclude
from faults.interruptions.processes import start
from faults.interruptions.trials import Trial

_DAY = 86400
_JUMPS = (-30 * 365 * _DAY, -8 * _DAY, -3700, -2, 0, 2, 3700, 8 * _DAY, 30 * 365 * _DAY)
"""seconds by which a clock may be wrong: the limits of sweeps and of racy times lie between"""
_JUMP_CHANCE = 0.7
"""at each look at the clock"""


def jumping_clock(place: Place, rng: random.Random) -> Trial:
    """Build with a clock that jumps to and fro, kill it, let all file times lie, and build with such a clock again."""
    trial = Trial(faults=0)
    subject = place.new()
    _shift_times(subject.folder / "raw", rng)
    for last in (False, True):
        seed = rng.getrandbits(64)
        jumps = subject.folder / ".jumps"
        jumps.write_bytes(b"")
        build = start(subject, prepare=lambda seed=seed, jumps=jumps: jump(seed, jumps))
        if not last:
            time.sleep(rng.uniform(0, place.seconds(1)))
            build.kill()
        trial.ended(build.wait(), "done", *(() if last else ("killed",)))
        trial.faults += jumps.stat().st_size
        trial.wrong += place.look(subject)
        _shift_times(subject.folder, rng)
    trial.wrong += place.judge(subject)
    return conclude(place, subject, trial)


def jump(seed: int, jumps: Path | None = None) -> None:
    """In a build: let time.time and time.time_ns jump, and note each jump as a byte of a file."""
    rng, offset, (true, true_ns) = random.Random(seed), 0, (time.time, time.time_ns)
    notes = os.open(os.devnull if jumps is None else jumps, os.O_WRONLY | os.O_APPEND)

    def look() -> int:
        nonlocal offset
        if rng.random() < _JUMP_CHANCE:
            offset = rng.choice(_JUMPS)
            os.write(notes, b".")
        return offset

    time.time = lambda: true() + look()
    time.time_ns = lambda: true_ns() + look() * 10**9


def _shift_times(folder: Path, rng: random.Random) -> None:
    """Let a third of the files below a folder look as if written long ago, or years from now."""
    now = time.time()
    for path in sorted(folder.rglob("*")):
        if rng.random() < 0.34 and path.is_file() and not path.is_symlink():
            then = max(0.0, now + rng.choice(_JUMPS))
            os.utime(path, (then, then))
