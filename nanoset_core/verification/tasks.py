"""Deep checks in parts: each part looks at some of the bytes, on any machine, and the outcomes make one report."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.pipeline.project import Project
from nanoset_core.storage.store import in_parallel
from nanoset_core.verification.report import Report

PART_BYTES = 128 << 20
"""About how much one part reads."""


def add_up(report: Report, outcomes: Sequence[Report]) -> None:
    """Put the findings of reports on parts together, and add up their figures."""
    for outcome in outcomes:
        report.findings.extend(outcome.findings)
        for name, figure in outcome.figures.items():
            report.count(name, figure)


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of something large, and what is done with each; it pickles."""

    look: Callable[..., Any]
    """Looks at one part, here or on a worker: (part) → outcome, or (project, part) where there is a project."""
    parts: Sequence[Any]
    conclude: Callable[[Report, list[Any]], None] = add_up
    """Notes in a report what the outcomes say, which are in the order of their parts."""
    project: Project | None = None
    """Of which a worker makes copies of its own."""
    at_once: int = 1
    """Parts that one process looks at together."""

    def note(self, report: Report, outcomes: Sequence[Any]) -> None:
        """Note what the outcomes say; of the parts that could not be read, the first is an error."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, NanosetError)]
        self.conclude(report, [outcome for outcome in outcomes if not isinstance(outcome, NanosetError)])
        for error in errors[:1]:
            report.note_error(error)


Run = Callable[[Report, Parts], None]
"""Looks at parts, or puts them off, and notes in a report what is known then."""


def run_here(report: Report, parts: Parts) -> None:
    """Look at all parts in this process; a part that cannot be read is an error of the report.

    Raises:
        StorageError: The store cannot be reached; the other parts are not tried.
    """

    def look(part: Any) -> Any:
        outcome = look_at((parts.look, parts.project, part))
        if isinstance(outcome, StorageError):
            raise outcome
        return outcome

    parts.note(report, in_parallel(look, parts.parts, parts.at_once))


def look_at(task: tuple[Callable[..., Any], Project | None, Any]) -> Any:
    """Look at one part; return the outcome, or the error where it cannot be read."""
    look, project, part = task
    try:
        if project is None:
            return look(part)
        with project.in_task() as own:
            return look(own, part)
    except NanosetError as error:
        return error


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
