"""`nanoset diff`: what went in and out between two versions of a dataset, and what that means downstream."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from nanoset_core.outputs.manifest import MANIFEST
from nanoset_core.pipeline.project import Project
from nanoset_core.versions.diff_files import FileCounts, FileDiff, compare_files
from nanoset_core.versions.diff_versions import DatasetVersion, find_versions
from nanoset_core.versions.outputs import made_at_ns
from nanoset_core.versions.reasons import of_options
from nanoset_core.versions.survivors import Outcome, outcomes

_COUNTS = ("documents", "sequences", "tokens", "rejected", "faults")


@dataclass(frozen=True, slots=True)
class DatasetDiff:
    """Two versions of a dataset, compared."""

    old: DatasetVersion
    new: DatasetVersion
    settings: list[str]
    """settings that differ, as `name: before → after`"""
    files: list[FileDiff]
    """source files that differ, in document order, removed ones in between"""
    outcomes: list[Outcome]
    """what becomes of each output of the present configuration"""

    @property
    def unchanged(self) -> int:
        """Files that are the same in both."""
        return len(self.new.files) - sum(file.change != "removed" for file in self.files)

    @property
    def shards_kept(self) -> int:
        """Shards that both versions share."""
        return len(self.old.shards.keys() & self.new.shards.keys())

    def total(self, side: str) -> FileCounts:
        """Sum over the files that differ; side: before or after."""
        return sum((getattr(file, side) for file in self.files), FileCounts())

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "corpus": self.new.corpus,
            "old": _version(self.old),
            "new": _version(self.new),
            "settings": self.settings,
            "files": [file.to_json() for file in self.files],
            "files_unchanged": self.unchanged,
            "shards_kept": self.shards_kept,
            "outcomes": [outcome.to_json() for outcome in self.outcomes],
        }


def diff_datasets(project: Project, first: str, second: str | None = None) -> DatasetDiff:
    """Compare two versions of a dataset.

    Args:
        project: the project.
        first: the older version's digest, or its first digits; or, without `second`, a corpus.
        second: the newer version's digest. Without it, the previous version of the corpus is compared with the current.

    Raises:
        ConfigError: no such version or corpus.
        MissingError, FormatError: what a version was made from is gone, or cannot be read.
    """
    old, new = find_versions(project, first, second)
    settings = of_options(
        {**old.tokenized.recipe["options"], **old.dataset.recipe["options"]},
        {**new.tokenized.recipe["options"], **new.dataset.recipe["options"]},
    )
    return DatasetDiff(old, new, settings, compare_files(old, new), list(outcomes(project, old, new)))


def _version(version: DatasetVersion) -> dict[str, Any]:
    facts = version.dataset.facts
    made_at = made_at_ns(version.dataset.folder / MANIFEST) / 1e9
    counts = {name: facts[name] for name in _COUNTS}
    return {"digest": version.digest, "made_at": made_at, **counts, "files": len(version.files)}
