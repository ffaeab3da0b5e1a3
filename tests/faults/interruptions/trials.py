"""Kinds of faults, trials of them, and the table of what became of all."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from faults.interruptions.processes import Outcome
from faults.runner import markdown


@dataclass(slots=True)
class Trial:
    """What one trial gave."""

    faults: int = 1
    """how many of its faults struck before the build's end"""
    ends: list[str] = field(default_factory=list)
    """how the disturbed builds ended"""
    said: list[str] = field(default_factory=list)
    """clear errors: their first lines, without the place"""
    details: Counter[str] = field(default_factory=Counter)
    """its faults by name, where there are several"""
    wrong: list[str] = field(default_factory=list)
    """lost, repeated, partial or stray outputs; builds that crashed, hung, or failed though nothing disturbed them"""

    def ended(self, outcome: Outcome, *allowed: str) -> None:
        """Note how a disturbed build ended; one that may not end so is wrong."""
        self.ends.append(outcome.end)
        if outcome.end == "refused":
            self.said.append(_without_place(outcome.detail))
        if outcome.end not in allowed:
            self.wrong.append(f"the build ended as {outcome.end}: {outcome.detail[-1500:]}")


def _without_place(error: str) -> str:
    """What an error says: `<place>: <what>`, and further lines."""
    lines = error.splitlines()
    begins = [number + 1 for number, line in enumerate(lines) if line.startswith("failed: ")]  # as the command has it
    told = (line for line in lines[begins[0] if begins else 0 :] if ": " in line)
    return next(told, error[:200]).rpartition(": ")[2]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of fault in a kind of build."""

    fault: str
    """in the table"""
    storage: str
    """local or S3"""
    build: str
    """what is disturbed: the core's stages in so many processes, or `nanoset build`"""
    trials: int
    """how many"""
    run: Callable[[random.Random, int], Trial | str]
    """one trial, from a seeded generator and its number; a text where it cannot be done here, with the reason"""

    @property
    def name(self) -> str:
        return f"{self.fault}, {self.storage}, {self.build}"


@dataclass(slots=True)
class Tally:
    """What the trials of one kind gave."""

    kind: Kind
    trials: int = 0
    faults: int = 0
    ends: Counter[str] = field(default_factory=Counter)
    said: Counter[str] = field(default_factory=Counter)
    details: Counter[str] = field(default_factory=Counter)
    wrong: dict[int, list[str]] = field(default_factory=dict)
    skipped: str = ""
    seconds: float = 0.0

    def add(self, number: int, trial: Trial) -> None:
        self.trials += 1
        self.faults += trial.faults
        self.ends.update(trial.ends)
        self.said.update(trial.said)
        self.details.update(trial.details)
        if trial.wrong:
            self.wrong[number] = trial.wrong


def table(tallies: Iterable[Tally]) -> str:
    """The figures as Markdown."""
    total, rows = Tally(Kind("all", "", "", 0, lambda _rng, _number: "")), []
    for tally in tallies:
        if tally.skipped:
            rows.append((tally.kind.fault, tally.kind.storage, f"skipped: {tally.skipped}", *[""] * 7))
            continue
        rows.append(_row(tally))
        total.trials += tally.trials
        total.faults += tally.faults
        total.ends += tally.ends
        total.wrong |= {len(total.wrong) + number: wrong for number, wrong in enumerate(tally.wrong.values())}
    head = "fault, storage, build, trials, faults, killed, clear error, went on, same digests, bad"
    return markdown(head.split(", "), [*rows, _row(total)], text_columns=3)


def _row(tally: Tally) -> tuple[object, ...]:
    kind, bad = tally.kind, len(tally.wrong)
    ends = (tally.ends[end] for end in ("killed", "refused", "done"))
    return kind.fault, kind.storage, kind.build, tally.trials, tally.faults, *ends, tally.trials - bad, bad
