"""Two builds of the same thing at once."""

from __future__ import annotations

import random
import time

from faults.interruptions.clocks import jump
from faults.interruptions.places import Place, conclude
from faults.interruptions.processes import start, start_command
from faults.interruptions.trials import Trial


def two_builds(place: Place, rng: random.Random) -> Trial:
    """Two builds, started together or one a moment after the other; either may make everything again."""
    subject = place.new(workers=rng.choice((1, 1, 2)))
    builds = []
    for _ in range(2):
        rebuild, clock = rng.random() < 0.4, rng.getrandbits(64)
        jumping = rng.random() < 0.3
        builds.append(
            start(subject, rebuild=rebuild, prepare=lambda seed=clock, on=jumping: jump(seed) if on else None)
        )
        time.sleep(rng.choice((0.0, rng.uniform(0, place.seconds(1)))))
    trial = Trial()
    for build in builds:
        trial.ended(build.wait(), "done", "refused")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def _set_clock(seed: int | None) -> None:
    if seed is not None:
        jump(seed)


def one_of_two_killed(place: Place, rng: random.Random) -> Trial:
    """Two builds at once, one of them killed: the other goes on."""
    subject = place.new()
    builds = [start(subject) for _ in range(2)]
    time.sleep(rng.uniform(0, place.seconds(1)))
    trial = Trial(faults=int(builds[0].kill()))
    trial.ended(builds[0].wait(), "killed", "done")
    trial.ended(builds[1].wait(), "done", "refused")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)


def two_commands(place: Place, rng: random.Random) -> Trial:
    """`nanoset build` twice at once, with one history."""
    subject = place.new()
    home = subject.folder / ".home"
    builds = []
    for _ in range(2):
        builds.append(start_command(subject, home, *(["--force"] if rng.random() < 0.3 else [])))
        time.sleep(rng.uniform(0, 3))
    trial = Trial()
    for build in builds:
        trial.ended(build.wait(), "done", "refused")
    trial.wrong += place.look(subject)
    return conclude(place, subject, trial)
