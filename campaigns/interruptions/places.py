"""Where projects keep their outputs, how these are looked at, and what one trial does to a build of
them.
"""

from __future__ import annotations

import itertools
import os
import random
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial as given
from pathlib import Path

from campaigns.interruptions.subject import (
    Subject,
    build_stages,
    differences,
    outputs,
    partial,
    write_subject,
)
from campaigns.runner import Child, End, Kind, Trial, each

CORE, WORKERS, EITHER = "core, 1 process", "core, 2 workers", "core, 1 process or 2 workers"
COMMAND = "`nanoset build`"
BUILDS = {CORE: (1,), WORKERS: (2,), EITHER: (1, 1, 2), COMMAND: (2,)}
"""What is run → numbers of workers, of which one is drawn."""
Prepare = Callable[[], object]


@dataclass(slots=True, eq=False)
class Place(ABC):
    """A kind of storage with projects that are to be disturbed, all of which should give the same
    outputs.
    """

    base: Path
    """an empty folder, for all projects"""
    expected: dict[str, str] = field(default_factory=dict)
    """name → digest of the outputs of an undisturbed build"""
    seconds: dict[tuple[int, bool], float] = field(default_factory=dict)
    """workers and whether it is the command → how long an undisturbed build takes"""
    _numbers: itertools.count = field(default_factory=itertools.count)

    @abstractmethod
    def new(self, *, workers: int = 1) -> Subject:
        """Another project, not yet built."""

    @abstractmethod
    def look(self, subject: Subject) -> list[str]:
        """What is wrong with what readers can see at this moment."""

    @abstractmethod
    def judge(self, subject: Subject) -> list[str]:
        """What is wrong with the outputs of a build that ended well."""

    def undisturbed(
        self, prepare: Prepare = lambda: None, *, workers: int = 1, command: bool = False
    ) -> float:
        """Build a project of its own, which must end well; → seconds."""
        subject, begun = self.new(workers=workers), time.monotonic()
        outcome = start(subject, prepare, command=command).wait()
        seconds = time.monotonic() - begun
        outcome.require_done(*self.judge(subject))
        shutil.rmtree(subject.folder)
        return seconds


@dataclass(slots=True, eq=False)
class LocalPlace(Place):
    """Outputs in a local folder."""

    def __post_init__(self) -> None:
        self.base.mkdir(parents=True)
        subject = self.new()
        start(subject).wait().require_done()
        self.expected = outputs(subject.root)
        subject.root.rename(self.template)

    @property
    def template(self) -> Path:
        """The outputs of an undisturbed build."""
        return self.base / "template"

    def new(self, *, workers: int = 1) -> Subject:
        return write_subject(self.base / f"project-{next(self._numbers)}", workers=workers)

    def look(self, subject: Subject) -> list[str]:
        return partial(subject.root, self.expected)

    def judge(self, subject: Subject) -> list[str]:
        return differences(outputs(subject.root), self.expected) + self.look(subject)


def start(
    subject: Subject,
    prepare: Prepare = lambda: None,
    *,
    rebuild: bool = False,
    command: bool = False,
) -> Child:
    """Build in a fork of this process, where `prepare` is called first: by the core's stages, or by
    the command.
    """
    if not command:
        return Child(lambda: [prepare(), build_stages(subject.config, rebuild=rebuild)])
    home = subject.folder / ".home"
    home.mkdir(exist_ok=True)
    environment = os.environ | {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    words = [
        sys.executable,
        "-m",
        "nanoset_core.cli",
        "build",
        "--config",
        str(subject.config),
        *["--force"] * rebuild,
    ]
    return Child(lambda: os.execve(sys.executable, words, environment))


@dataclass(slots=True)
class Attempt:
    """A project that is built while something happens to it."""

    place: Place
    subject: Subject
    rng: random.Random
    share: float
    """of the trials of its kind, which have gone before"""
    command: bool = False
    trial: Trial = field(default_factory=Trial)

    def start(self, prepare: Prepare = lambda: None, *, rebuild: bool = False) -> Child:
        """Start a build of it."""
        return start(self.subject, prepare, rebuild=rebuild, command=self.command)

    def sleep(self, most: float = 1.0) -> None:
        """Wait for a moment drawn evenly from the time of an undisturbed build, or from so much of
        it.
        """
        key = (self.subject.workers, self.command)
        if key not in self.place.seconds:
            self.place.seconds[key] = self.place.undisturbed(workers=key[0], command=key[1])
        time.sleep(self.rng.uniform(0, most * self.place.seconds[key]))

    def step(self, steps: int) -> int:
        """From 1, evenly over all."""
        return 1 + int(self.share * steps) % steps

    def wait(self, *builds: Child, allowed: tuple[End, ...] = ("refused", "done")) -> None:
        """Wait for builds, and look at what readers see; those that do not end well count as
        faults.
        """
        for build in builds:
            outcome = build.wait()
            self.trial.ended(outcome, *allowed)
            self.trial.counts["faults"] += outcome.end != "done"
        self.trial.wrong += self.place.look(self.subject)

    def conclude(self) -> None:
        """Build once more, undisturbed: that must end well, with the outputs of any other such
        build.
        """
        outcome = self.start().wait()
        if outcome.end != "done":
            self.trial.wrong.append(
                f"the build after the fault ended as {outcome.end}: {outcome.said[-1500:]}"
            )
        self.trial.wrong += self.place.judge(self.subject)


Damage = Callable[[Attempt], Iterator[None]]
"""Starts a build and disturbs it; yields once it has ended, and mends what its surroundings must
not keep.
"""


def trials_of(
    place: Callable[[], Place],
    fault: str,
    storage: str,
    build: str,
    count: int,
    damage: Callable[..., Iterator[None]],
    **options: object,
) -> Kind:
    """Return a kind of trials: a build is disturbed, looked at, gone on with, and compared.

    Args:
        place: where; made when the first trial begins.
        fault: in the table, as storage and build.
        storage: in the table.
        build: one of BUILDS, or a name for one process.
        count: of trials.
        damage: what is done to it.
        options: of the damage.
    """

    def trial(rng: random.Random, number: int) -> Trial:
        subject = place().new(workers=rng.choice(BUILDS.get(build, (1,))))
        on = Attempt(place(), subject, rng, number / count, command=build == COMMAND)
        with contextmanager(given(damage, **options))(on):
            on.conclude()
        if not on.trial.wrong:
            shutil.rmtree(subject.folder)
        return on.trial

    return each((fault, storage, build), count, trial)
