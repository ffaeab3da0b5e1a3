"""Where outputs are kept, and how they are looked at: a local folder."""

from __future__ import annotations

import itertools
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from faults.interruptions.processes import Build, Outcome, start, start_command
from faults.interruptions.subject import Subject, differences, outputs, partial, write_subject
from faults.interruptions.trials import Trial


class Place(Protocol):
    """A kind of storage with projects that are to be disturbed, all of which should give the same outputs."""

    name: str
    """in the table"""

    def new(self, *, workers: int = 1) -> Subject:
        """Another project, not yet built."""
        ...

    def look(self, subject: Subject) -> list[str]:
        """What is wrong with what readers can see at this moment."""
        ...

    def judge(self, subject: Subject) -> list[str]:
        """What is wrong with the outputs of a build that ended well."""
        ...

    def seconds(self, workers: int) -> float:
        """How long an undisturbed build takes."""
        ...


@dataclass(slots=True)
class LocalPlace:
    """Outputs in a local folder."""

    base: Path
    """an empty folder, for all projects"""
    expected: dict[str, str] = field(default_factory=dict)
    """name → sha256 of the outputs of an undisturbed build"""
    name: str = "local"
    _seconds: dict[int, float] = field(default_factory=dict)
    _numbers: itertools.count = field(default_factory=itertools.count)

    def __post_init__(self) -> None:
        self.base.mkdir(parents=True)
        self.seconds(1)

    def new(self, *, workers: int = 1) -> Subject:
        return write_subject(self.base / f"project-{next(self._numbers)}", workers=workers)

    def look(self, subject: Subject) -> list[str]:
        return partial(subject.root, self.expected)

    def judge(self, subject: Subject) -> list[str]:
        return differences(outputs(subject.root), self.expected) + self.look(subject)

    def seconds(self, workers: int) -> float:
        if workers not in self._seconds:
            self._seconds[workers] = min(self._undisturbed(workers) for _ in range(2))
        return self._seconds[workers]

    def _undisturbed(self, workers: int) -> float:
        subject = self.new(workers=workers)
        begun = time.monotonic()
        outcome = start(subject).wait()
        seconds = time.monotonic() - begun
        outcome.require_done()
        self.expected = self.expected or outputs(subject.root)
        outcome.require_done(*self.judge(subject))
        if self.template.exists():
            dispose(subject)
        else:
            subject.root.rename(self.template)
        return seconds

    @property
    def template(self) -> Path:
        """The outputs of an undisturbed build."""
        return self.base / "template"


def dispose(subject: Subject) -> None:
    """Remove a project that is no longer needed."""
    shutil.rmtree(subject.folder)


def begin(subject: Subject, command: bool) -> Build:
    """Start a build by the core's stages, or by the command."""
    return start_command(subject, subject.folder / ".home") if command else start(subject)


def conclude(place: Place, subject: Subject, trial: Trial, *, command: bool = False, keep: bool = False) -> Trial:
    """Build once more, undisturbed: that must end well, with the outputs of any other such build.

    keep: leave the project where it is, though all be well.
    """
    outcome: Outcome = begin(subject, command).wait()
    if outcome.end != "done":
        trial.wrong.append(f"the build after the fault ended as {outcome.end}: {outcome.detail[-1500:]}")
    trial.wrong += place.judge(subject)
    if not trial.wrong and not keep:
        dispose(subject)
    return trial
