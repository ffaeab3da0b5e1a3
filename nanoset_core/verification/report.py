"""What a verification found: findings with their remedies, and figures."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from nanoset_core.errors import NanosetError

Severity = Literal["error", "warning"]
Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    """Error: the data is wrong or cannot be used; warning: it is right, but not what the present inputs ask for."""
    output: str
    """Which output, such as datasets/web."""
    what: str
    """What is wrong, in a few words."""
    where: str | None = None
    """File, and place in it."""
    found: str | None = None
    expected: str | None = None
    remedy: str | None = None
    """What to do."""

    def __str__(self) -> str:
        details = {name: getattr(self, name) for name in ("where", "found", "expected", "remedy")}
        lines = [f"{self.severity}: {self.output}: {self.what}"]
        return "\n  ".join(lines + [f"{name}: {value}" for name, value in details.items() if value is not None])


@dataclass(slots=True)
class Report:
    """What was found in one output, and what was measured on the way."""

    output: str
    """Which output, such as datasets/web."""
    findings: list[Finding] = field(default_factory=list)
    """In the order in which they were found."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Counts and shares; a share is a fraction from 0 to 1."""

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == "warning"]

    @property
    def passed(self) -> bool:
        """Whether there is no error."""
        return not self.errors

    def note(self, severity: Severity, what: str, *details: object) -> None:
        """Note a finding; details are where, found, expected and remedy, in this order, as far as they are known."""
        texts = [None if detail is None else str(detail) for detail in details]
        self.findings.append(Finding(severity, self.output, what, *texts))

    def error(self, what: str, *details: object) -> None:
        """Note an error; arguments as for `note`."""
        self.note("error", what, *details)

    def warn(self, what: str, *details: object) -> None:
        """Note a warning; arguments as for `note`."""
        self.note("warning", what, *details)

    def compare(self, what: str, where: object, found: object, expected: object, remedy: str) -> bool:
        """Note an error where two values differ; return whether they are equal."""
        if found != expected:
            values = (f"{value:,}" if isinstance(value, int) else value for value in (found, expected))
            self.error(what, where, *values, remedy)
        return found == expected

    def note_error(self, error: NanosetError, severity: Severity = "error", remedy: str | None = None) -> None:
        """Note a NanosetError; `remedy` is taken where the error has none."""
        self.note(severity, error.what, error.where, error.found, error.expected, error.remedy or remedy)

    @contextmanager
    def catching(self, remedy: str | None = None) -> Iterator[None]:
        """Turn a NanosetError that leaves the block into a finding; `remedy` is taken where it has none."""
        try:
            yield
        except NanosetError as error:
            self.note_error(error, remedy=remedy)

    def count(self, name: str, number: Figure) -> None:
        """Add to a figure that is a count."""
        self.figures[name] = int(self.figures.get(name, 0)) + int(number)

    def include(self, other: Report) -> None:
        """Add the findings and figures of a report on a part of this output."""
        self.findings.extend(other.findings)
        self.figures.update(other.figures)

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {"output": self.output, "passed": self.passed, **asdict(self)}
