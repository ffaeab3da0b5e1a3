"""The report of a verification, and what all verifications share: checks of files, work in parts.

A deep verification reads every byte. If an output is large, this work is divided into parts
(`Parts`), which a function of the type `Run` has done: in this process (`run_here`), or by workers
on other machines (`project/verify.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.errors import MissingError, NanosetError, StorageError
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import in_parallel
from nanoset_core.untrusted import visible

BUILD = "run `nanoset build`"
"""Remedy for an output that is missing or stale."""
AGAIN = "run `nanoset build --force`"
"""Remedy for an output that a build would take for complete."""
PART_BYTES = 128 << 20
"""About how many bytes one part of deep work reads."""
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
    """Which output, such as datasets/web."""
    what: str
    """What is wrong, in a few words."""
    where: str | None = None
    """File, and position in it."""
    found: str | None = None
    """What is there instead of `expected`."""
    expected: str | None = None
    """What should be there."""
    remedy: str | None = None
    """What the user should do."""

    def __str__(self) -> str:
        lines = [visible(f"{self.severity}: {self.output}: {self.what}")]
        for name in ("where", "found", "expected", "remedy"):
            value = getattr(self, name)
            if value is not None:
                lines.append(f"{name}: {visible(value)}")
        return "\n  ".join(lines)


@dataclass(slots=True)
class Report:
    """The problems that were found in one output, and what was measured on the way."""

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

    def note(
        self,
        severity: Severity,
        what: str,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: object = None,
    ) -> None:
        """Add a finding.

        Args:
            severity: Whether it is an error or a warning.
            what: What is wrong, in a few words.
            where: File, and position in it.
            found: What is there instead of `expected`.
            expected: What should be there.
            remedy: What the user should do.
        """
        details = [where, found, expected, remedy]
        texts = [None if detail is None else str(detail) for detail in details]
        self.findings.append(Finding(severity, self.output, what, *texts))

    def error(
        self,
        what: str,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: object = None,
    ) -> None:
        """Add an error; see `note`."""
        self.note("error", what, where, found, expected, remedy)

    def warn(
        self,
        what: str,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: object = None,
    ) -> None:
        """Add a warning; see `note`."""
        self.note("warning", what, where, found, expected, remedy)

    def compare(
        self, what: str, where: object, found: object, expected: object, remedy: str
    ) -> bool:
        """Add an error if two values differ; return whether they are equal."""
        if found == expected:
            return True
        self.error(what, where, _with_commas(found), _with_commas(expected), remedy)
        return False

    def note_error(
        self, error: NanosetError, severity: Severity = "error", remedy: str | None = None
    ) -> None:
        """Add a NanosetError as a finding.

        Args:
            error: The error.
            severity: Whether the finding is an error or a warning.
            remedy: What the user should do if the error does not say it.
        """
        self.note(
            severity, error.what, error.where, error.found, error.expected, error.remedy or remedy
        )

    @contextmanager
    def catching(self, remedy: str | None = None) -> Iterator[None]:
        """Turn a NanosetError that leaves the block into a finding.

        Args:
            remedy: What the user should do if the error does not say it.
        """
        try:
            yield
        except NanosetError as error:
            self.note_error(error, remedy=remedy)

    def count(self, name: str, number: Figure) -> None:
        """Add to a figure that is a count."""
        self.figures[name] = int(self.figures.get(name, 0)) + int(number)

    def add_up(self, parts: Sequence[Report]) -> None:
        """Add the findings of several reports on parts of the output, and add up their figures."""
        for part in parts:
            self.findings.extend(part.findings)
            for name, figure in part.figures.items():
                self.count(name, figure)

    def include(self, other: Report) -> None:
        """Add the findings and figures of a report on a part of this output.

        Findings that this report already has are not repeated. For example, lost text is reported
        for the shards of a corpus and again for its dataset.
        """
        known_findings = [replace(finding, output="") for finding in self.findings]
        for finding in other.findings:
            if replace(finding, output="") not in known_findings:
                self.findings.append(finding)
        self.figures.update(other.figures)

    def with_places(self, folder: object, url: object) -> Report:
        """Replace a local folder in all findings by the address that it is a copy of.

        Args:
            folder: The folder on this machine.
            url: Its address, such as s3://bucket/data.

        Returns:
            This report.
        """
        for number, finding in enumerate(self.findings):
            replaced: dict[str, Any] = {}
            for name in ("where", "found", "remedy"):
                text = getattr(finding, name)
                if text:
                    replaced[name] = text.replace(str(folder), str(url))
            self.findings[number] = replace(finding, **replaced)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {"output": self.output, "passed": self.passed, **asdict(self)}


def _with_commas(value: object) -> object:
    """Return an integer as text with commas, and any other value unchanged."""
    return f"{value:,}" if isinstance(value, int) else value


# Checks of files.


def live_manifest(outputs: OutputRoot, stage: str, name: str) -> Manifest:
    """Return the manifest of an output's current version, without checking its files.

    Raises:
        MissingError: The output has not been built.
        FormatError: The manifest is damaged.
    """
    manifest = outputs.live(stage, name)
    if manifest is None:
        raise MissingError(
            "this output has not been built",
            where=outputs.access.url(outputs.folder / stage / name),
            remedy=BUILD,
        )
    return manifest


def check_files(report: Report, manifest: Manifest, *, deep: bool) -> None:
    """Check that every file that a manifest lists exists, with the size that was written.

    Args:
        report: Report to add to.
        manifest: Manifest of the output.
        deep: Read the files, and compare their sha256. A file that a bucket joined has none in the
            manifest: its pieces are compared as its tokens are read.
    """
    manifest = replace(manifest, stored=manifest.sizes())
    for name in manifest.files:
        check_file(report, manifest, name, deep)


def check_file(
    report: Report, manifest: Manifest, name: str, deep: bool, remedy: str = BUILD
) -> bool:
    """Check that one file of an output is as it was written; return whether it is.

    Args:
        report: Report to add to.
        manifest: Manifest of the output.
        name: Name of the file.
        deep: Read the file, and compare its sha256.
        remedy: What the user should do if the file is missing or has another size.
    """
    path, _ = manifest.place(name)
    if manifest.stored is None:
        size = manifest.access.size(path)
    else:
        size = manifest.stored.get(name)
    # A build compares only sizes: it replaces other bytes only if the manifest is deleted.
    remedy_for_bytes = f"delete {manifest.url()}, and {remedy}"
    return check_written(
        report,
        manifest.access,
        path,
        size,
        manifest.files[name],
        (remedy, remedy_for_bytes),
        deep=deep,
    )


def check_written(
    report: Report,
    access: FileAccess,
    path: Path,
    size: int | None,
    fact: FileFact,
    remedies: tuple[str, str],
    *,
    deep: bool,
    kind: str = "a file",
) -> bool:
    """Check that a file is as it was written; return whether it is.

    Args:
        report: Report to add to.
        access: Reaches the file.
        path: Path of the file.
        size: Its size now; None if it is missing.
        fact: Size and sha256 that were recorded as it was written.
        remedies: What the user should do if the file is missing or has another size; and if it has
            other bytes, which a build does not notice.
        deep: Read the file and compare its sha256, if one was recorded.
        kind: What messages call the file.
    """
    remedy_for_size, remedy_for_bytes = remedies
    url = access.url(path)
    expected_size = f"{fact.size:,} bytes"
    if size is None:
        report.error(f"{kind} is missing", url, expected=expected_size, remedy=remedy_for_size)
        return False
    if size != fact.size or not deep or fact.sha256 is None:
        what = f"{kind} has another size than when it was written"
        return report.compare(what, url, f"{size:,} bytes", expected_size, remedy_for_size)

    # The bytes may be a range of a file of another output.
    if fact.within is None:
        stored = access.stored(path)
    else:
        stored = access.stored(path, fact.begin, fact.size)
    sha256 = access.store.sha256_of(stored)
    what = f"{kind} has other bytes than when it was written"
    return report.compare(what, url, f"sha256 {sha256}", f"sha256 {fact.sha256}", remedy_for_bytes)


# Deep work in parts.


@dataclass(frozen=True, slots=True)
class Parts:
    """Work on something large that is divided into parts; it pickles."""

    look: Callable[..., Any]
    """Checks one part, here or on a worker, and returns the outcome.

    It is called with the part, or with a project and the part if `project` is set.
    """
    parts: Sequence[Any]
    """The parts, such as ranges of tokens or lists of tars."""
    conclude: Callable[[Report, list[Any]], None] = Report.add_up
    """Adds to a report what follows from the outcomes, which are in the order of the parts."""
    project: Project | None = None
    """The project; each task gets a copy with its own connections."""
    at_once: int = 1
    """Number of parts that one process checks at the same time."""

    def note(self, report: Report, outcomes: Sequence[Any]) -> None:
        """Add to a report what follows from the outcomes.

        If parts could not be read, the first of their errors is added, too.

        Args:
            report: Report to add to.
            outcomes: What `look_at` returned for each part, in order.
        """
        errors: list[NanosetError] = []
        results: list[Any] = []
        for outcome in outcomes:
            if isinstance(outcome, NanosetError):
                errors.append(outcome)
            else:
                results.append(outcome)
        self.conclude(report, results)
        if errors:
            report.note_error(errors[0])


Run = Callable[[Report, Parts], None]
"""Has parts checked and adds the outcomes to a report, either at once or later."""


class PartTask(NamedTuple):
    """The check of one part of an output, as a task for any process."""

    look: Callable[..., Any]
    """See `Parts.look`."""
    project: Project | None
    part: Any


def run_here(report: Report, parts: Parts) -> None:
    """Check all parts in this process, and add the outcomes to a report.

    Raises:
        StorageError: A store cannot be reached. Other errors of parts become findings.
    """

    def look(part: Any) -> Any:
        outcome = look_at(PartTask(parts.look, parts.project, part))
        if isinstance(outcome, StorageError):
            raise outcome
        return outcome

    parts.note(report, in_parallel(look, parts.parts, parts.at_once))


def look_at(task: PartTask) -> Any:
    """Check one part; return the outcome, or the NanosetError that the check raised."""
    try:
        if task.project is None:
            return task.look(task.part)
        with task.project.in_task() as project:
            return task.look(project, task.part)
    except NanosetError as error:
        return error


def runs(sizes: Sequence[int], min_bytes: int = PART_BYTES) -> Iterator[range]:
    """Divide things into runs of consecutive ones that have at least `min_bytes` together.

    A run ends as soon as it reaches that size; the last one may be smaller. Sizes of 3, 4, 9 and 2
    with `min_bytes=5` give the runs 0 to 1, 2, and 3.

    Args:
        sizes: Size of each thing.
        min_bytes: Smallest size of a run.

    Yields:
        The numbers of the things in each run.
    """
    start = 0
    run_bytes = 0
    for number, size in enumerate(sizes):
        run_bytes += size
        if run_bytes >= min_bytes:
            yield range(start, number + 1)
            start = number + 1
            run_bytes = 0
    if start < len(sizes):
        yield range(start, len(sizes))
