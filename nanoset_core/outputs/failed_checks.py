"""Records of outputs whose last check has found an error, stored below a project's root.

Damaged files may have the right sizes, so that an output looks up to date. A build verifies each
output that it makes, and records here if that fails. `nanoset verify` does the same. So `nanoset
status`, a dry run, and the next build, also on another machine, know that the output is not right:

    <root>/failed_checks/1f0c….json    {"stage": "packed", "name": "web", "version": "3f9c…"}

When a check of the output passes, its record is removed. If a deep check has found the error, a
quick check, which does not read every byte, may miss it: then only a deep check or a rebuild
removes the record. It does not say what was wrong, since that may quote text: `nanoset verify`
finds it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from nanoset_core.outputs.notebook import Note, Notebook
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.records.json_records import JsonForm
from nanoset_core.records.stored_fields import stored

FOLDER = "failed_checks"
"""Folder of the records, below the root."""


@dataclass(frozen=True, slots=True)
class FailedCheck(Note):
    """The last check of an output has found an error."""

    json_form: ClassVar = JsonForm("this is not a record of a failed check", indent=2)

    stage: str
    """First folder of the output's path below the root, such as `packed`."""
    name: str
    """The rest of its path, such as `web`."""
    version: str | None
    """Digest of the version that was checked; None for a part, which has no version of its own."""
    is_deep: bool = field(default=False, metadata=stored(omit_default=True))
    """Whether the check has read every byte, so that a quick check may miss the error."""

    def identity(self) -> Any:
        """Return what identifies the output: only its last check is recorded."""
        return [self.stage, self.name]


NOTEBOOK = Notebook(FOLDER, FailedCheck, skips_damaged=True)
"""All records. A damaged one is skipped: `nanoset verify` finds the error again."""


@dataclass(frozen=True, slots=True)
class FailedChecks:
    """The records of a root, as they were read at one moment."""

    version_by_output: Mapping[tuple[str, str], str | None]
    """(folder of the stage, name of the output) → digest of the version that was checked."""
    found_by_deep_check: frozenset[tuple[str, str]] = frozenset()
    """(folder, name) of the outputs whose check has read every byte."""

    @staticmethod
    def read(outputs: OutputRoot) -> FailedChecks:
        """Read all records. Usually there is none, and this only lists a folder.

        Args:
            outputs: The root of the project's outputs.
        """
        records = NOTEBOOK.read(outputs)
        version_by_output = {(record.stage, record.name): record.version for record in records}
        deep = frozenset((record.stage, record.name) for record in records if record.is_deep)
        return FailedChecks(version_by_output, deep)

    def includes_output(self, stage: str, name: str) -> bool:
        """Return whether the last check of an output has found an error in any version.

        Args:
            stage: First folder of the output's path.
            name: The rest of its path.
        """
        return (stage, name) in self.version_by_output

    def includes(self, stage: str, name: str, digest: str) -> bool:
        """Return whether the last check of a version has found an error.

        Args:
            stage: First folder of the output's path.
            name: The rest of its path.
            digest: Digest of the version.
        """
        if not self.includes_output(stage, name):
            return False
        return self.version_by_output[stage, name] in (None, digest)

    def needs_deep_check(self, stage: str, name: str, digest: str | None) -> bool:
        """Return whether an error in a version was found by a check that has read every byte.

        Args:
            stage: First folder of the output's path.
            name: The rest of its path.
            digest: Digest of the version; None for a part, which has no version.
        """
        if (stage, name) not in self.found_by_deep_check:
            return False
        return self.version_by_output[stage, name] in (None, digest)


def record_failure(
    outputs: OutputRoot, stage: str, name: str, digest: str | None, *, is_deep: bool = False
) -> None:
    """Record that a check of an output has found an error.

    Args:
        outputs: The root of the project's outputs.
        stage: First folder of the output's path.
        name: The rest of its path.
        digest: Digest of the version that was checked; None for a part, which has no version.
        is_deep: Whether the check has read every byte, so that a quick check may miss the error.
    """
    NOTEBOOK.add(outputs, FailedCheck(stage, name, digest, is_deep))


def record_success(outputs: OutputRoot, stage: str, name: str) -> None:
    """Record that a check of an output has passed: remove the record of an earlier failure, if any.

    Args:
        outputs: The root of the project's outputs.
        stage: First folder of the output's path.
        name: The rest of its path.
    """
    NOTEBOOK.remove(outputs, FailedCheck(stage, name, version=None))
