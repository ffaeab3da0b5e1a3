"""Where projects keep their outputs, how these are looked at, and builds of them in processes that may be killed."""

from __future__ import annotations

import itertools
import os
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from faults.interruptions.subject import Subject, build_stages, differences, outputs, partial, write_subject
from faults.runner import Child, Trial


def start(subject: Subject, *, rebuild: bool = False, prepare: Callable[[], object] = lambda: None) -> Child:
    """Build by the core's stage functions, in a fork of this process; `prepare` is called there first."""
    return Child(lambda: [prepare(), build_stages(subject.config, rebuild=rebuild)])


def start_command(subject: Subject, *arguments: str) -> Child:
    """`nanoset build` itself, with Dagster and its history beside the project."""
    home = subject.folder / ".home"
    home.mkdir(exist_ok=True)
    environment = os.environ | {"DAGSTER_HOME": str(home), "DAGSTER_DISABLE_TELEMETRY": "1"}
    command = [sys.executable, "-m", "nanoset_core.cli", "build", "--config", str(subject.config), *arguments]
    return Child(lambda: os.execve(sys.executable, command, environment))


def begin(subject: Subject, command: bool) -> Child:
    """Start a build by the core's stages, or by the command."""
    return start_command(subject) if command else start(subject)


def dispose(subject: Subject) -> None:
    """Remove a project that is no longer needed."""
    shutil.rmtree(subject.folder)


@dataclass(slots=True)
class Place(ABC):
    """A kind of storage with projects that are to be disturbed, all of which should give the same outputs."""

    base: Path
    """an empty folder, for all projects"""
    expected: dict[str, str] = field(default_factory=dict)
    """name → digest of the outputs of an undisturbed build"""
    _seconds: dict[int, float] = field(default_factory=dict)
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

    def seconds(self, workers: int) -> float:
        """How long an undisturbed build takes."""
        if workers not in self._seconds:
            subject, begun = self.new(workers=workers), time.monotonic()
            outcome = start(subject).wait()
            self._seconds[workers] = time.monotonic() - begun
            outcome.require_done(*self.judge(subject))
            dispose(subject)
        return self._seconds[workers]


@dataclass(slots=True)
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


def disturbed(place: Place, subject: Subject, *builds: Child, allowed: tuple[str, ...] = ()) -> Trial:
    """Wait for builds that something disturbs, and look at what readers see."""
    trial = Trial()
    for build in builds:
        outcome = build.wait()
        trial.ended(outcome, "refused", "done", *allowed)
    trial.counts["faults"] = int(outcome.end != "done")
    trial.wrong += place.look(subject)
    return trial


def conclude(place: Place, subject: Subject, trial: Trial, *, command: bool = False, keep: bool = False) -> Trial:
    """Build once more, undisturbed: that must end well, with the outputs of any other such build.

    keep: leave the project where it is, though all be well.
    """
    outcome = begin(subject, command).wait()
    if outcome.end != "done":
        trial.wrong.append(f"the build after the fault ended as {outcome.end}: {outcome.said[-1500:]}")
    trial.wrong += place.judge(subject)
    if not trial.wrong and not keep:
        dispose(subject)
    return trial
