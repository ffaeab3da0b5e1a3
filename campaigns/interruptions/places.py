"""Storage for the projects of trials, and the steps that all trials have in common.

A trial builds a new project, disturbs the build, checks what readers see of its outputs, and builds
again. The outputs must then be the same as after a build that nothing disturbed.
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

CORE = "core, 1 process"
WORKERS = "core, 2 workers"
EITHER = "core, 1 process or 2 workers"
COMMAND = "`nanoset build`"
WORKER_COUNTS = {CORE: (1,), WORKERS: (2,), EITHER: (1, 1, 2), COMMAND: (2,)}
"""Way to build, as the table names it → numbers of workers, of which each trial draws one."""
Prepare = Callable[[], object]
"""A function that the process of a build calls before it builds."""


@dataclass(slots=True, eq=False)
class Place(ABC):
    """Storage for projects that all have the same text and settings, and so the same outputs."""

    base: Path
    """A folder for all projects, which is empty at first."""
    expected: dict[str, str] = field(default_factory=dict)
    """Name → digest of each output of a build that nothing disturbed."""
    seconds: dict[tuple[int, bool], float] = field(default_factory=dict)
    """(number of workers, whether the command builds) → duration of a build without disturbance."""
    _numbers: itertools.count = field(default_factory=itertools.count)
    """Numbers for the names of the projects' folders."""

    @abstractmethod
    def new(self, *, workers: int = 1) -> Subject:
        """Write another project, which is not built yet, and return it."""

    @abstractmethod
    def look(self, subject: Subject) -> list[str]:
        """Return what is wrong with the outputs that readers see; a build may be running."""

    @abstractmethod
    def judge(self, subject: Subject) -> list[str]:
        """Return what is wrong with the outputs after a build that succeeded."""

    def undisturbed(
        self, prepare: Prepare = lambda: None, *, workers: int = 1, command: bool = False
    ) -> float:
        """Build a new project, which must succeed, and return the seconds that the build took.

        Args:
            prepare: Called in the process of the build first.
            workers: Number of worker processes.
            command: Whether `nanoset build` builds, and not the core.
        """
        subject = self.new(workers=workers)
        start_time = time.monotonic()
        outcome = start(subject, prepare, command=command).wait()
        seconds = time.monotonic() - start_time
        outcome.require_done(*self.judge(subject))
        shutil.rmtree(subject.folder)
        return seconds


@dataclass(slots=True, eq=False)
class LocalPlace(Place):
    """Projects that have their outputs in a local folder."""

    def __post_init__(self) -> None:
        """Build a project without disturbance, and keep its outputs as the template."""
        self.base.mkdir(parents=True)
        subject = self.new()
        start(subject).wait().require_done()
        self.expected = outputs(subject.root)
        subject.root.rename(self.template)

    @property
    def template(self) -> Path:
        """The folder with the outputs of a build that nothing disturbed."""
        return self.base / "template"

    def new(self, *, workers: int = 1) -> Subject:
        """Write another project, which is not built yet, and return it."""
        return write_subject(self.base / f"project-{next(self._numbers)}", workers=workers)

    def look(self, subject: Subject) -> list[str]:
        """Return what is wrong with the outputs that readers see; a build may be running."""
        return partial(subject.root, self.expected)

    def judge(self, subject: Subject) -> list[str]:
        """Return what is wrong with the outputs after a build that succeeded."""
        return differences(outputs(subject.root), self.expected) + self.look(subject)


def start(
    subject: Subject,
    prepare: Prepare = lambda: None,
    *,
    rebuild: bool = False,
    command: bool = False,
) -> Child:
    """Start a build of a project in a fork of this process.

    Args:
        subject: The project.
        prepare: Called in the fork first. It has no effect on a build by the command, which
            replaces the program of the fork.
        rebuild: Whether outputs that exist are built again.
        command: Whether `nanoset build` builds, and not the core without Dagster.
    """
    if command:
        return _start_command(subject, rebuild=rebuild)

    def build() -> None:
        os.environ.update(subject.environment)
        prepare()
        build_stages(subject.config, rebuild=rebuild)

    return Child(build)


def _start_command(subject: Subject, *, rebuild: bool) -> Child:
    """Start `nanoset build`, with `--force` if outputs that exist are to be built again."""
    # Dagster keeps its history in a folder of the project, so that trials share none.
    home = subject.folder / ".home"
    home.mkdir(exist_ok=True)
    environment = os.environ | {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    environment |= subject.environment

    words = [sys.executable, "-m", "nanoset_core.cli", "build", "--config", str(subject.config)]
    if rebuild:
        words.append("--force")
    return Child(lambda: os.execve(sys.executable, words, environment))


@dataclass(slots=True)
class BuildAttempt:
    """A project whose builds are disturbed, and what the trial has counted and found wrong."""

    place: Place
    """Where the project is."""
    subject: Subject
    """The project."""
    rng: random.Random
    """Random numbers of the trial."""
    share: float
    """Share of the trials of this kind that precede this trial, from 0 to below 1."""
    command: bool = False
    """Whether `nanoset build` builds, and not the core."""
    trial: Trial = field(default_factory=Trial)
    """The result."""

    def start(self, prepare: Prepare = lambda: None, *, rebuild: bool = False) -> Child:
        """Start a build; see the function `start` of this module."""
        return start(self.subject, prepare, rebuild=rebuild, command=self.command)

    def sleep(self, max_share: float = 1.0) -> None:
        """Sleep until a random moment of a build that was just started.

        Args:
            max_share: The latest moment, as a share of the time that a build without disturbance
                takes.
        """
        key = (self.subject.workers, self.command)
        if key not in self.place.seconds:
            self.place.seconds[key] = self.place.undisturbed(
                workers=self.subject.workers, command=self.command
            )
        time.sleep(self.rng.uniform(0, max_share * self.place.seconds[key]))

    def step(self, n_steps: int) -> int:
        """Return the number, from 1 to `n_steps`, of the step that this trial disturbs.

        All trials of a kind together cover the steps evenly. For example, the first of four trials
        disturbs step 1 of 100, and the others disturb steps 26, 51 and 76.
        """
        # `share` is 1 or more in trials that are run beyond the planned number.
        return 1 + int(self.share * n_steps) % n_steps

    def wait(self, *builds: Child, allowed: tuple[End, ...] = ("refused", "done")) -> None:
        """Wait until builds have ended, and check how they ended and what readers see then.

        Each build that does not succeed counts as a fault.

        Args:
            builds: The processes.
            allowed: How they may end; any other end is wrong.
        """
        for build in builds:
            outcome = build.wait()
            self.trial.ended(outcome, *allowed)
            if outcome.end != "done":
                self.trial.counts["faults"] += 1
        self.trial.wrong += self.place.look(self.subject)

    def conclude(self) -> None:
        """Build again without disturbance, and check that this succeeds with the right outputs."""
        outcome = self.start().wait()
        if outcome.end != "done":
            self.trial.wrong.append(
                f"the build after the fault ended as {outcome.end}: {outcome.said[-1500:]}"
            )
        self.trial.wrong += self.place.judge(self.subject)


def trials_of(
    place: Callable[[], Place],
    fault: str,
    storage: str,
    build: str,
    count: int,
    disturb: Callable[..., Iterator[None]],
    **options: object,
) -> Kind:
    """Return a kind of trials that disturb a build, build again, and compare the outputs.

    Args:
        place: Returns the place of the projects; called when the first trial starts.
        fault: Name of the fault in the table.
        storage: Name of the storage in the table.
        build: Name of the way to build in the table: a key of WORKER_COUNTS, or another name for a
            build by the core in one process.
        count: Number of trials.
        disturb: A generator function that gets a `BuildAttempt`. It starts and disturbs builds, and
            yields once, after they have ended. What it does after that runs when the trial has
            built again, for example to unmount a disk.
        options: Keyword arguments of `disturb`.
    """
    disturbance = contextmanager(disturb)

    def run_trial(rng: random.Random, number: int) -> Trial:
        workers = rng.choice(WORKER_COUNTS.get(build, (1,)))
        attempt = BuildAttempt(
            place=place(),
            subject=place().new(workers=workers),
            rng=rng,
            share=number / count,
            command=build == COMMAND,
        )
        with disturbance(attempt, **options):
            attempt.conclude()

        # The folder of a bad trial stays, for whoever looks for the reason.
        if not attempt.trial.wrong:
            shutil.rmtree(attempt.subject.folder)
        return attempt.trial

    return each((fault, storage, build), count, run_trial)
