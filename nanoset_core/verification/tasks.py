"""Deep checks in parts: each part looks at some of the bytes, on any machine, and the outcomes make one report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, TypeVar

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.store import in_parallel
from nanoset_core.verification.report import Report

PART_BYTES = 128 << 20
"""About how much one part reads."""
Part = TypeVar("Part")
Outcome = TypeVar("Outcome")


class DeepCheck(ABC, Generic[Part, Outcome]):
    """A check of every part of something large; it pickles, and holds nothing that grows with the parts."""

    at_once: ClassVar[int] = 1
    """Parts that one process looks at together."""

    @abstractmethod
    def look(self, part: Part) -> Outcome:
        """Look at one part, here or on a worker.

        Raises:
            NanosetError: It cannot be read.
        """

    @abstractmethod
    def conclude(self, outcomes: Sequence[Outcome]) -> Report:
        """Make a report of the outcomes, in the order of their parts."""


@dataclass(frozen=True, slots=True)
class ProjectCheck(DeepCheck[Part, Report]):
    """A check of outputs of a project, of which a worker makes copies of its own; its outcomes are reports."""

    project: Project
    output: str
    """How the report names what is checked."""

    def look(self, part: Part) -> Report:
        with self.project.in_task() as project:
            return self.look_within(project, part)

    @abstractmethod
    def look_within(self, project: Project, part: Part) -> Report:
        """Look at one part; `project` is as this process has it."""

    def conclude(self, outcomes: Sequence[Report]) -> Report:
        """Put reports together; figures of parts are added up."""
        report = Report(self.output)
        for outcome in outcomes:
            report.findings.extend(outcome.findings)
            for name, figure in outcome.figures.items():
                report.figures[name] = int(report.figures.get(name, 0)) + int(figure)
        return report


Run = Callable[[DeepCheck[Any, Any], Sequence[Any]], Report]
"""Does a check of some parts, or defers it; returns the report as far as it is known."""


def run_here(check: DeepCheck[Any, Any], parts: Sequence[Any]) -> Report:
    """Look at all parts in this process; a part that cannot be read is an error of the report.

    Raises:
        StorageError: The store cannot be reached; the other parts are not tried.
    """

    def look(part: Any) -> Any:
        outcome = look_at((check, part))
        if isinstance(outcome, StorageError):
            raise outcome
        return outcome

    return concluded(check, in_parallel(look, parts, check.at_once))


@dataclass(slots=True)
class Deferred:
    """The checks that a worker leaves to be done in parts; called like `run_here`."""

    project: Project
    """As the process that hands out the parts has it."""
    checks: list[tuple[DeepCheck[Any, Any], Sequence[Any]]] = field(default_factory=list)

    def __call__(self, check: DeepCheck[Any, Any], parts: Sequence[Any]) -> Report:
        own = replace(check, project=self.project) if isinstance(check, ProjectCheck) else check
        self.checks.append((own, parts))
        return Report("")


def look_at(task: tuple[DeepCheck[Any, Any], Any]) -> Any:
    """Look at one part; return the outcome, or the error where it cannot be read."""
    check, part = task
    try:
        return check.look(part)
    except NanosetError as error:
        return error


def concluded(check: DeepCheck[Any, Any], outcomes: Sequence[Any]) -> Report:
    """Make the report of a check; of the parts that could not be read, the first is an error."""
    report = check.conclude([outcome for outcome in outcomes if not isinstance(outcome, NanosetError)])
    if (error := next((outcome for outcome in outcomes if isinstance(outcome, NanosetError)), None)) is not None:
        report.note_error(error)
    return report


def runs(sizes: Sequence[int], most: int = PART_BYTES) -> Iterator[range]:
    """Cut things of these sizes into runs of numbers: each run ends with the first that makes it `most` or more."""
    begin, total = 0, 0
    for number, size in enumerate(sizes):
        total += size
        if total >= most:
            yield range(begin, number + 1)
            begin, total = number + 1, 0
    if begin < len(sizes):
        yield range(begin, len(sizes))
