"""What a verification found (findings with their remedies, and figures), checks of files, and deep
work in parts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from nanoset_core.errors import MissingError, NanosetError, StorageError
from nanoset_core.outputs.manifest import FileFact, Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.project.project import Project
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.store import in_parallel
from nanoset_core.untrusted import visible

BUILD = "run `nanoset build`"
AGAIN = "run `nanoset build --force`"
PART_BYTES = 128 << 20
"""About how much one part of deep work reads."""
Severity = Literal["error", "warning"]
Figure = int | float | str


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is not as it should be."""

    severity: Severity
    """Error: the data is wrong or cannot be used; warning: it is right, but not what the present
    inputs ask for.
    """
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
        lines = [visible(f"{self.severity}: {self.output}: {self.what}")]
        for name in ("where", "found", "expected", "remedy"):
            value = getattr(self, name)
            if value is not None:
                lines.append(f"{name}: {visible(value)}")
        return "\n  ".join(lines)


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

    def note(
        self,
        severity: Severity,
        what: str,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: object = None,
    ) -> None:
        """Note a finding; None stands for a detail that is not known."""
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
        """Note an error; see `note`."""
        self.note("error", what, where, found, expected, remedy)

    def warn(
        self,
        what: str,
        where: object = None,
        found: object = None,
        expected: object = None,
        remedy: object = None,
    ) -> None:
        """Note a warning; see `note`."""
        self.note("warning", what, where, found, expected, remedy)

    def compare(
        self, what: str, where: object, found: object, expected: object, remedy: str
    ) -> bool:
        """Note an error if two values differ; return whether they are equal."""
        if found == expected:
            return True
        self.error(what, where, _with_commas(found), _with_commas(expected), remedy)
        return False

    def note_error(
        self, error: NanosetError, severity: Severity = "error", remedy: str | None = None
    ) -> None:
        """Note a NanosetError; `remedy` is taken where the error has none."""
        self.note(
            severity, error.what, error.where, error.found, error.expected, error.remedy or remedy
        )

    @contextmanager
    def catching(self, remedy: str | None = None) -> Iterator[None]:
        """Turn a NanosetError that leaves the block into a finding; `remedy` is taken where it has
        none.
        """
        try:
            yield
        except NanosetError as error:
            self.note_error(error, remedy=remedy)

    def count(self, name: str, number: Figure) -> None:
        """Add to a figure that is a count."""
        self.figures[name] = int(self.figures.get(name, 0)) + int(number)

    def add_up(self, parts: Sequence[Report]) -> None:
        """Add the findings of reports on parts of the work, and add up their figures."""
        for part in parts:
            self.findings.extend(part.findings)
            for name, figure in part.figures.items():
                self.count(name, figure)

    def include(self, other: Report) -> None:
        """Add the findings and figures of a report on a part of this output.

        A finding that this report has already is not repeated: what was lost on the way to the
        shards of a corpus, say, is reported for the shards and for the dataset.
        """
        known = [replace(finding, output="") for finding in self.findings]
        self.findings.extend(
            finding for finding in other.findings if replace(finding, output="") not in known
        )
        self.figures.update(other.figures)

    def with_places(self, folder: object, url: object) -> Report:
        """Name paths below a folder by the addresses that they stand for; return this report."""
        names, old, new = ("where", "found", "remedy"), str(folder), str(url)
        for number, one in enumerate(self.findings):
            said = {name: text.replace(old, new) for name in names if (text := getattr(one, name))}
            self.findings[number] = replace(one, **said)
        return self

    def to_json(self) -> dict[str, Any]:
        """Return the report as plain values."""
        return {"output": self.output, "passed": self.passed, **asdict(self)}


def _with_commas(value: object) -> object:
    """Return a number as text with commas, and any other value as it is."""
    return f"{value:,}" if isinstance(value, int) else value


def live_manifest(outputs: OutputRoot, stage: str, name: str) -> Manifest:
    """Return the manifest of an output's current version, whether or not its files are whole.

    MissingError where it was not built, FormatError where it cannot be read.
    """
    manifest = outputs.live(stage, name)
    if manifest is None:
        where = outputs.access.url(outputs.folder / stage / name)
        raise MissingError("this output has not been built", where=where, remedy=BUILD)
    return manifest


def check_files(report: Report, manifest: Manifest, *, deep: bool) -> None:
    """Check every file that a manifest lists: it is there, of the size written, and with `deep` of
    the sha256 noted.

    Of a file that was joined within a store no sha256 is noted: its pieces are compared as its
    tokens are read.
    """
    manifest = replace(manifest, stored=manifest.sizes())
    for name in manifest.files:
        check_file(report, manifest, name, deep)


def check_file(
    report: Report, manifest: Manifest, name: str, deep: bool, remedy: str = BUILD
) -> bool:
    """Note what is wrong with one file of an output; return whether nothing is."""
    path, access = manifest.place(name)[0], manifest.access
    found = access.size(path) if manifest.stored is None else manifest.stored.get(name)
    again = f"delete {manifest.url()}, and {remedy}"
    return check_written(
        report, access, path, found, manifest.files[name], (remedy, again), deep=deep
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
    """Note where a file is missing, or not as it was written; return whether nothing is wrong.

    `size` is what it has now, None where it is missing. The remedies are for that and for another
    size, and for other bytes, which a build takes for whole; these are looked for with `deep`,
    where a sha256 is noted.
    """
    where, expected = access.url(path), f"{fact.size:,} bytes"
    if size is None:
        report.error(f"{kind} is missing", where, None, expected, remedies[0])
        return False
    if size != fact.size or not deep or fact.sha256 is None:
        what = f"{kind} has another size than when it was written"
        return report.compare(what, where, f"{size:,} bytes", expected, remedies[0])
    stored = (
        access.stored(path) if fact.within is None else access.stored(path, fact.begin, fact.size)
    )
    found, what = (
        f"sha256 {access.store.sha256_of(stored)}",
        f"{kind} has other bytes than when it was written",
    )
    return report.compare(what, where, found, f"sha256 {fact.sha256}", remedies[1])


@dataclass(frozen=True, slots=True)
class Parts:
    """Parts of something large, and what is done with each; it pickles."""

    look: Callable[..., Any]
    """Looks at one part, here or on a worker: (part) → outcome, or (project, part) where there is a
    project.
    """
    parts: Sequence[Any]
    conclude: Callable[[Report, list[Any]], None] = Report.add_up
    """Notes in a report what the outcomes say, which are in the order of their parts."""
    project: Project | None = None
    """Of which a worker makes copies of its own."""
    at_once: int = 1
    """Parts that one process looks at together."""

    def note(self, report: Report, outcomes: Sequence[Any]) -> None:
        """Note what the outcomes say; of the parts that could not be read, the first is an error."""
        errors = [outcome for outcome in outcomes if isinstance(outcome, NanosetError)]
        self.conclude(
            report, [outcome for outcome in outcomes if not isinstance(outcome, NanosetError)]
        )
        for error in errors[:1]:
            report.note_error(error)


Run = Callable[[Report, Parts], None]
"""Looks at parts, or puts them off, and notes in a report what is known then."""


def run_here(report: Report, parts: Parts) -> None:
    """Look at all parts in this process; one that cannot be read is an error, an unreachable store
    a StorageError.
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
    """Cut things of these sizes into runs of numbers: each run ends with the first that makes it
    `most` or more.
    """
    begin, total = 0, 0
    for number, size in enumerate(sizes):
        total += size
        if total >= most:
            yield range(begin, number + 1)
            begin, total = number + 1, 0
    if begin < len(sizes):
        yield range(begin, len(sizes))
