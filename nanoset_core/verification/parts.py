"""Deep checks in parts: each part looks at some of the bytes, on whatever machine, and the outcomes make one report."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Generic, Protocol, TypeVar

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.execution.processes import Executor
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.store import in_parallel
from nanoset_core.verification.report import Report

PART_BYTES = 128 << 20
"""How much one part reads, about."""
Part = TypeVar("Part")
Outcome = TypeVar("Outcome")


class DeepCheck(ABC, Generic[Part, Outcome]):
    """What is done with every part of something large; it pickles, and holds nothing that grows with the parts."""

    at_once: ClassVar[int] = 1
    """Parts that one process looks at together."""

    @abstractmethod
    def look(self, part: Part) -> Outcome:
        """Look at one part, here or on a worker.

        Raises:
            NanosetError: it cannot be read.
        """

    @abstractmethod
    def conclude(self, outcomes: Sequence[Outcome]) -> Report:
        """What the outcomes, in the order of their parts, say together."""


@dataclass(frozen=True, slots=True)
class ProjectCheck(DeepCheck[Part, Outcome]):
    """A check that looks at outputs of a project, of which a worker makes copies of its own."""

    project: Project

    def look(self, part: Part) -> Outcome:
        with self.project.in_task() as project:
            return self.look_within(project, part)

    @abstractmethod
    def look_within(self, project: Project, part: Part) -> Outcome:
        """As `look`, with the project as this process has it."""


class Runner(Protocol):
    """Has a check done, now or later."""

    def __call__(self, check: DeepCheck[Part, Outcome], parts: Sequence[Part]) -> Report:
        """Do it, or see to it that it will be done; → what is known of it by now."""
        ...


def done_here(check: DeepCheck[Part, Outcome], parts: Sequence[Part]) -> Report:
    """The Runner that does all parts at once, in this process.

    A part that cannot be read is an error of the report.

    Raises:
        StorageError: the store cannot be reached: other parts are not waited for, too.
    """

    def look(part: Part) -> Any:
        outcome = _look((check, part))
        if isinstance(outcome, StorageError):
            raise outcome
        return outcome

    return _concluded(check, dict(enumerate(in_parallel(look, parts, check.at_once))))


@dataclass(frozen=True, slots=True)
class Deferred:
    """A check that waits to be done."""

    check: DeepCheck[Any, Any]
    parts: Sequence[Any]


@dataclass(slots=True)
class Later:
    """The Runner that notes checks, to be done by `done_by`."""

    project: Project
    """As whoever hands out the parts has it."""
    noted: list[Deferred] = field(default_factory=list)

    def __call__(self, check: DeepCheck[Part, Outcome], parts: Sequence[Part]) -> Report:
        if isinstance(check, ProjectCheck):
            check = replace(check, project=self.project)
        self.noted.append(Deferred(check, parts))
        return Report("")


def done_by(executor: Executor, noted: Sequence[Deferred]) -> Iterator[Report]:
    """The reports of many checks, in their order, each as soon as all of its parts, and those before it, are done.

    A part that cannot be read is an error of its check's report.
    """
    outcomes: list[dict[int, Any]] = [{} for _ in noted]
    places = [(number, part) for number, one in enumerate(noted) for part in range(len(one.parts))]
    tasks = ((noted[number].check, noted[number].parts[part]) for number, part in places)
    given = 0
    for task, outcome in executor.run(_look, tasks):
        number, part = places[task]
        outcomes[number][part] = outcome
        while given < len(noted) and len(outcomes[given]) == len(noted[given].parts):
            yield _concluded(noted[given].check, outcomes[given])
            outcomes[given] = {}
            given += 1
    yield from (_concluded(one.check, {}) for one in noted[given:])


def _look(task: tuple[DeepCheck[Any, Any], Any]) -> Any:
    check, part = task
    try:
        return check.look(part)
    except NanosetError as error:
        return error


def _concluded(check: DeepCheck[Any, Any], outcomes: dict[int, Any]) -> Report:
    listed = [outcomes[part] for part in sorted(outcomes)]
    report = check.conclude([outcome for outcome in listed if not isinstance(outcome, NanosetError)])
    for error in (outcome for outcome in listed if isinstance(outcome, NanosetError)):
        with report.catching():
            raise error
        break
    return report


def runs(sizes: Sequence[int], most: int = PART_BYTES) -> Iterator[range]:
    """Runs of numbers from 0, of things with these sizes: each ends with the first that makes it `most` or more."""
    begin, total = 0, 0
    for number, size in enumerate(sizes):
        total += size
        if total >= most:
            yield range(begin, number + 1)
            begin, total = number + 1, 0
    if begin < len(sizes):
        yield range(begin, len(sizes))
