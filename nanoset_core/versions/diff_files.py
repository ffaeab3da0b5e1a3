"""Documents and tokens of two versions of a dataset, by source file."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

from nanoset_core.tokenization.document_table import FileCounts, counts_by_file
from nanoset_core.tokenization.shards import DOCUMENTS
from nanoset_core.versions.diff_versions import DatasetVersion


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One source file that is not in both versions alike."""

    path: str
    """relative to the corpus's folder"""
    change: Literal["added", "removed", "changed", "other settings"]
    """other settings: the same bytes gave other counts"""
    before: FileCounts
    after: FileCounts

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


def compare_files(old: DatasetVersion, new: DatasetVersion) -> list[FileDiff]:
    """Every file that was added, removed or changed, or of which other settings made something else.

    Read are the tables of the shards that hold such files; where the settings are the same, a file of the same bytes
    gives the same documents, and shards without others are not looked at.

    Raises:
        MissingError, FormatError: a shard's table of documents is gone, or cannot be read.
    """
    paths = dict.fromkeys([*old.files, *new.files])
    differ = {path for path in paths if old.files.get(path) != new.files.get(path)}
    if old.dataset.recipe["options"] != new.dataset.recipe["options"]:
        differ = set(paths)
    before, after = (_count(version, differ) for version in (old, new))
    found = []
    for path in (path for path in paths if path in differ):
        was, now = before.get(path, FileCounts()), after.get(path, FileCounts())
        if path not in old.files:
            found.append(FileDiff(path, "added", was, now))
        elif path not in new.files:
            found.append(FileDiff(path, "removed", was, now))
        elif old.files[path] != new.files[path]:
            found.append(FileDiff(path, "changed", was, now))
        elif was != now:
            found.append(FileDiff(path, "other settings", was, now))
    return found


def _count(version: DatasetVersion, paths: set[str]) -> dict[str, FileCounts]:
    counts: dict[str, FileCounts] = {}
    for digest, files in version.shards.items():
        if not paths.isdisjoint(files):
            table = version.dataset.access.fetch(version.shards_folder / digest / DOCUMENTS)
            for path, found in counts_by_file(table).items():
                counts[path] = counts.get(path, FileCounts()) + found
    return counts
