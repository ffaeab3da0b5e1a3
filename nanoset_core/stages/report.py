"""The report of a verification, and checks that are divided into parts.

`nanoset verify` returns a `Report` on each output: a list of `Finding`s, which are errors or
warnings, and figures that were measured.

With `--deep`, every byte is read. If an output is large, this is a `DividedCheck`: a function that
checks one part, and the list of parts. A `CheckRunner` is a function that has the parts checked: in
this process (`run_here`), or by workers on other machines (`project/verify.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from numbers import Integral
from typing import Any, Literal, NamedTuple

from nanoset_core.errors import (
    ConfigError,
    ForbiddenError,
    InputError,
    MissingError,
    NanosetError,
    StorageError,
)
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.storage.requests import in_parallel
from nanoset_core.untrusted import visible

BUILD = "run `nanoset build`"
"""Remedy for an output that is missing or stale, so that the next build makes it."""
FORCE_BUILD = "run `nanoset build --force`"
"""Remedy if outputs contradict each other or their text, and any of them may be the wrong one.

If it is known which output is wrong, use `remedy_for_bytes` in `checking.py`: it names this output.
"""
DELETE_FILE = f"delete the file, and {BUILD}"
"""Remedy for a wrong file that a build writes again without the other files of its output."""
PART_BYTES = 128 << 20
"""About how many bytes one part of a divided check reads."""
_NO_DAMAGE = (ConfigError, ForbiddenError, InputError, MissingError, StorageError)
"""Exceptions that say nothing about the bytes of an output: its settings or its raw text are wrong,
or a server did not answer. If a file is missing, everything that needs the output notices that.
"""
Severity = Literal["error", "warning"]
Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Finding:
    """One problem of an output."""

    severity: Severity
    """An error if the data is wrong or unusable.

    A warning if it is correct, but not what the present inputs and settings would give.
    """
    output: str
    """Path of the output below the root, such as datasets/web."""
    what: str
    """What is wrong, in a few words."""
    where: str | None = None
    """File, and position in it."""
    found: str | None = None
    """The faulty value, or what is known about it."""
    expected: str | None = None
    """What should be there."""
    remedy: str | None = None
    """What the user should do."""
    is_damage: bool = True
    """Whether an error is about what the output contains. False if it could not be examined: for
    example, a server did not answer.
    """
    is_certain: bool = True
    """Whether it is certain that this output is wrong, and not the dataset that it was compared
    with. A quick check does not read large datasets to find that out.
    """

    def __str__(self) -> str:
        """Return the finding as lines of text: what is wrong, then each known detail.

        Control characters, which file names may contain, are made visible.
        """
        lines = [visible(f"{self.severity}: {self.output}: {self.what}")]
        for name in ("where", "found", "expected", "remedy"):
            value = getattr(self, name)
            if value is not None:
                lines.append(f"{name}: {visible(value)}")
        return "\n  ".join(lines)

    def with_replaced_text(self, old: str, new: str) -> Finding:
        """Return this finding with a text replaced by another one, wherever it names a file.

        For example, the path of a local copy becomes the address of the file in a bucket:

            where: /cache/mirror/web.bin    →    where: s3://bucket/web.bin

        Args:
            old: The text, such as the path of a folder.
            new: What it is replaced by.
        """
        changed_fields: dict[str, Any] = {}
        for name in ("where", "found", "remedy"):
            value = getattr(self, name)
            if value:
                changed_fields[name] = value.replace(old, new)
        return replace(self, **changed_fields)


@dataclass(slots=True)
class Report:
    """The problems that were found in one output, and what was measured on the way."""

    output: str
    """Path of the output below the root, such as datasets/web."""
    findings: list[Finding] = field(default_factory=list)
    """Errors and warnings, in the order in which they were found."""
    figures: dict[str, Figure] = field(default_factory=dict)
    """Counts and shares by name; a share is a fraction from 0 to 1."""

    @property
    def errors(self) -> list[Finding]:
        """The findings that are errors."""
        return [finding for finding in self.findings if finding.severity == "error"]

    @property
    def warnings(self) -> list[Finding]:
        """The findings that are warnings."""
        return [finding for finding in self.findings if finding.severity == "warning"]

    @property
    def passed(self) -> bool:
        """Whether the output has no error; warnings are allowed."""
        return not self.errors

    @property
    def has_damage(self) -> bool:
        """Whether an error is about what the output contains."""
        return any(error.is_damage for error in self.errors)

    def error(
        self,
        what: str,
        *,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: str | None = None,
    ) -> None:
        """Add an error: the data is wrong or unusable.

        Args:
            what: What is wrong, in a few words.
            where: File, and position in it; converted by `str`.
            found: The faulty value, or what is known about it; converted by `str`.
            expected: What should be there; converted by `str`.
            remedy: What the user should do.
        """
        self.add(what, severity="error", where=where, found=found, expected=expected, remedy=remedy)

    def warn(
        self,
        what: str,
        *,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: str | None = None,
    ) -> None:
        """Add a warning: the data is correct, but the user may want to change something.

        Args:
            what: What is unusual, in a few words.
            where: File, and position in it; converted by `str`.
            found: The unusual value, or what is known about it; converted by `str`.
            expected: What would be usual; converted by `str`.
            remedy: What the user should do.
        """
        self.add(
            what, severity="warning", where=where, found=found, expected=expected, remedy=remedy
        )

    def add(
        self,
        what: str,
        *,
        severity: Severity,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: str | None = None,
        is_damage: bool = True,
    ) -> None:
        """Add a finding whose severity is decided at run time.

        Args:
            what: What is wrong, in a few words.
            severity: Whether it is an error, so that the output does not pass, or a warning.
            where: File, and position in it; converted by `str`.
            found: The faulty value, or what is known about it; converted by `str`.
            expected: What should be there; converted by `str`.
            remedy: What the user should do.
            is_damage: Whether an error is about what the output contains.
        """
        finding = Finding(
            severity=severity,
            output=self.output,
            what=what,
            where=_text_or_none(where),
            found=_text_or_none(found),
            expected=_text_or_none(expected),
            remedy=remedy,
            is_damage=is_damage,
        )
        self.findings.append(finding)

    def compare(
        self, what: str, *, where: object, found: object, expected: object, remedy: str
    ) -> bool:
        """Add an error to this report, unless a value of the output is the expected one.

        For example, `report.compare("the file has another size", where="web.bin", found=4096,
        expected=8192, remedy="run `nanoset build`")` adds this error:

            error: datasets/web: the file has another size
              where: web.bin
              found: 4,096
              expected: 8,192
              remedy: run `nanoset build`

        Args:
            what: What is wrong if they differ, in a few words.
            where: File, and position in it; converted by `str`.
            found: The value in the output.
            expected: The value that the output should have.
            remedy: What the user should do.

        Returns:
            Whether the values are equal.
        """
        if found == expected:
            return True
        self.error(
            what,
            where=where,
            found=_with_commas(found),
            expected=_with_commas(expected),
            remedy=remedy,
        )
        return False

    def add_exception(
        self, error: NanosetError, *, severity: Severity = "error", remedy: str | None = None
    ) -> None:
        """Add a finding with the texts of an exception.

        Args:
            error: The exception.
            severity: Whether the finding is an error or a warning.
            remedy: What the user should do if the exception does not say it.
        """
        self.add(
            error.what,
            severity=severity,
            where=error.where,
            found=error.found,
            expected=error.expected,
            remedy=error.remedy or remedy,
            is_damage=not isinstance(error, _NO_DAMAGE),
        )

    @contextmanager
    def catching(self, *, remedy: str | None = None) -> Iterator[None]:
        """Add an error if a NanosetError leaves the `with` block, instead of raising it.

        Args:
            remedy: What the user should do if the exception does not say it.
        """
        try:
            yield
        except NanosetError as error:
            self.add_exception(error, remedy=remedy)

    def copy_facts(self, manifest: Manifest, names: Sequence[str]) -> None:
        """Add facts of a manifest, such as its number of tokens, as figures of the same names.

        Args:
            manifest: The manifest.
            names: Names of facts that are counts, such as `["documents", "tokens"]`.
        """
        for name in names:
            self.figures[name] = manifest.facts[name]

    def count(self, name: str, number: Figure) -> None:
        """Increase a figure that is a count, which starts at 0.

        Args:
            name: Name of the figure.
            number: How much is added, a whole number.
        """
        self.figures[name] = int(self.figures.get(name, 0)) + int(number)

    def add_up(self, parts: Sequence[Report]) -> None:
        """Add the findings of reports on parts of this output, and the sums of their figures.

        Args:
            parts: The reports, whose figures are counts.
        """
        for part in parts:
            self.findings.extend(part.findings)
            for name, figure in part.figures.items():
                self.count(name, figure)

    def include(self, other: Report) -> None:
        """Add the findings and figures of a report on another output that is made of the same text.

        For example, if text was lost, the check of a corpus's token files reports it, and so does
        the check of the dataset that was merged from them. Together, it should be reported once. So
        findings that this report has already are not repeated.

        Args:
            other: The other report. Its figures replace those with the same name.
        """
        # Findings on two outputs are equal if they differ only in the output.
        known_findings = [replace(finding, output="") for finding in self.findings]
        for finding in other.findings:
            if replace(finding, output="") not in known_findings:
                self.findings.append(finding)
        self.figures.update(other.figures)

    def mark_uncertain(self) -> None:
        """Note of all findings that another output may be wrong instead: `Finding.is_certain`."""
        self.findings = [replace(finding, is_certain=False) for finding in self.findings]

    def with_places(self, folder: object, url: object) -> Report:
        """Let all findings name files in a bucket by their addresses, instead of local copies.

        To check files in a bucket, they are copied to this machine. The path of a copy means
        nothing to the user, so the start of it is replaced:

            /cache/mirror/datasets/web.bin    →    s3://bucket/data/datasets/web.bin

        Args:
            folder: Folder of the copies on this machine, here `/cache/mirror`.
            url: Address of the originals, here `s3://bucket/data`.

        Returns:
            This report, which has been changed.
        """
        self.findings = [
            finding.with_replaced_text(str(folder), str(url)) for finding in self.findings
        ]
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the report as values that JSON can express, for `nanoset verify --json`."""
        content = asdict(self)
        for finding in content["findings"]:
            # These two only decide whether the error is recorded.
            del finding["is_damage"]
            del finding["is_certain"]
        return {"output": self.output, "passed": self.passed, **content}


def _text_or_none(value: object) -> str | None:
    """Return a value as text, and None unchanged."""
    return None if value is None else str(value)


def _with_commas(value: object) -> object:
    """Return an integer as text such as 12,345, and any other value unchanged."""
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)  # also one of numpy
    return f"{value:,}" if is_integer else value


@dataclass(frozen=True, slots=True, kw_only=True)
class DividedCheck:
    """A check of something large, divided into parts that any process can check; it pickles."""

    parts: Sequence[Any]
    """The parts, such as ranges of tokens or lists of tars."""
    check_part: Callable[..., Any]
    """Checks one part, here or on a worker, and returns the outcome.

    It is called with the part, or with a project and the part if `project` is set.
    """
    add_outcomes: Callable[[Report, list[Any]], None] = Report.add_up
    """Adds what follows from the outcomes to a report.

    The outcomes are in the order of the parts. The default is for outcomes that are reports.
    """
    project: Project | None = None
    """The project that `check_part` needs; each task gets a copy with its own connections."""
    at_once: int = 1
    """Number of parts that one process checks at the same time."""

    def conclude(self, report: Report, outcomes: Sequence[Any]) -> None:
        """Add the outcomes of all parts of a check to a report.

        For example, the tokens of a dataset were checked in three ranges, by different processes:

            part       tokens 0 to 999    tokens 1000 to 1999    tokens 2000 to 2999
            outcome    nothing wrong      nothing wrong          an error: the file cannot be read

        Args:
            report: The report on the dataset.
            outcomes: For each part, in order, what its check returned, or the NanosetError that it
                raised.
        """
        results = [outcome for outcome in outcomes if not isinstance(outcome, NanosetError)]
        self.add_outcomes(report, results)
        errors = [outcome for outcome in outcomes if isinstance(outcome, NanosetError)]
        if errors:
            report.add_exception(errors[0])  # the others probably have the same cause


CheckRunner = Callable[[Report, DividedCheck], None]
"""Has the parts of a check done and adds the outcomes to a report, either at once or later."""


class PartTask(NamedTuple):
    """The check of one part of an output, as a task for any process."""

    check_part: Callable[..., Any]
    """Checks the part; called with the part, or with the project and the part."""
    project: Project | None
    """The project, or None if the function does not need it."""
    part: Any
    """The part, such as a range of tokens."""


def run_here(report: Report, check: DividedCheck) -> None:
    """Check all parts of a large output in this process, and add the outcomes to a report.

    A check that reads many gigabytes is divided into parts, such as ranges of tokens. Several
    processes can share it; this function does all of it in threads of this process.

    Args:
        report: Report on the output.
        check: The parts, and the function that checks one of them.

    Raises:
        StorageError: A bucket cannot be reached, so nothing is known about the output. Any other
            NanosetError, such as for a damaged file, becomes an error in the report.
    """
    tasks = [PartTask(check.check_part, check.project, part) for part in check.parts]
    outcomes = in_parallel(_check_reachable_part, tasks, check.at_once)
    check.conclude(report, outcomes)  # adds them to the report


def _check_reachable_part(task: PartTask) -> Any:
    """Check one part of an output. Raise an error only if its files cannot be reached.

    Args:
        task: The part, such as a range of tokens, and the function that checks it.

    Returns:
        What the function returned, or the NanosetError that it raised, such as for a damaged file.

    Raises:
        StorageError: The disk or bucket cannot be reached.
    """
    outcome = check_part_task(task)
    if isinstance(outcome, StorageError):
        raise outcome
    return outcome


def check_part_task(task: PartTask) -> Any:
    """Check one part of an output, in this process or on a worker of a cluster.

    An error is returned instead of raised, so that a worker sends it back like any other outcome,
    and the checks of the other parts continue.

    Args:
        task: The part, such as a range of tokens, and the function that checks it.

    Returns:
        What the function returned, or the NanosetError that it raised.
    """
    try:
        if task.project is None:  # the function does not need one
            return task.check_part(task.part)
        # A copy of the project for this task, with its own folder for downloads.
        with task.project.in_task() as project:
            return task.check_part(project, task.part)
    except NanosetError as error:
        return error


def group_by_bytes(sizes: Sequence[int], min_bytes: int = PART_BYTES) -> Iterator[range]:
    """Group consecutive items, such as files, so that each group is worth a task of its own.

    A group ends as soon as it has at least `min_bytes`. The last group may be smaller. For example,
    with `min_bytes=5`:

        item              0    1    2    3
        its size          3    4    9    2
        group             0    0    1    2
        bytes of group    7         9    2

    Args:
        sizes: Size of each item in bytes.
        min_bytes: Smallest size of a group.

    Yields:
        The numbers of the items in each group: here range(0, 2), range(2, 3) and range(3, 4).
    """
    start = 0
    group_bytes = 0
    for number, size in enumerate(sizes):
        group_bytes += size
        if group_bytes >= min_bytes:
            yield range(start, number + 1)
            start = number + 1
            group_bytes = 0
    if start < len(sizes):  # the items after the last full group
        yield range(start, len(sizes))
