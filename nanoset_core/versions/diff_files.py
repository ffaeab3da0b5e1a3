"""Documents and tokens of two versions of a dataset, by source file."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.storage.mirror import bring
from nanoset_core.tokenization.shards import DOCUMENTS
from nanoset_core.versions.diff_versions import DatasetVersion


@dataclass(frozen=True, slots=True)
class Counts:
    """What one file, or a whole version, gave."""

    documents: int = 0
    tokens: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(self.documents + other.documents, self.tokens + other.tokens)


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One source file that is not in both versions alike."""

    path: str
    """relative to the corpus's folder"""
    change: Literal["added", "removed", "changed", "other settings"]
    """other settings: the same bytes gave other counts"""
    before: Counts
    after: Counts

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
        was, now = before.get(path, Counts()), after.get(path, Counts())
        if path not in old.files:
            found.append(FileDiff(path, "added", was, now))
        elif path not in new.files:
            found.append(FileDiff(path, "removed", was, now))
        elif old.files[path] != new.files[path]:
            found.append(FileDiff(path, "changed", was, now))
        elif was != now:
            found.append(FileDiff(path, "other settings", was, now))
    return found


def _count(version: DatasetVersion, paths: set[str]) -> dict[str, Counts]:
    counts: dict[str, Counts] = {}
    for digest, files in version.shards.items():
        if not paths.isdisjoint(files):
            for path, found in counts_by_file(version.shards_folder / digest / DOCUMENTS).items():
                counts[path] = counts.get(path, Counts()) + found
    return counts


def counts_by_file(table: Path) -> dict[str, Counts]:
    """Documents and tokens of each file that a documents.parquet names; reads two columns by row groups.

    Raises:
        MissingError, FormatError: the table is not there, or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: dict[str, Counts] = {}
    bring(table)
    try:
        with pq.ParquetFile(table) as opened:
            for batch in opened.iter_batches(batch_size=1 << 16, columns=["file", "tokens"]):
                names = batch.column("file")
                names = names if isinstance(names, pa.DictionaryArray) else names.dictionary_encode()
                files, tokens = names.indices.to_numpy(zero_copy_only=False), batch.column("tokens").to_numpy()
                for path, found in zip(names.dictionary.to_pylist(), _grouped(files, tokens), strict=False):
                    counts[path] = counts.get(path, Counts()) + found
    except FileNotFoundError as error:
        raise MissingError("a shard's table of documents is gone", where=table, remedy="run `nanoset build`") from error
    except (pa.ArrowException, OSError) as error:
        raise FormatError(
            "this is not the table of a shard's documents",
            where=table,
            found=error,
            remedy="delete the shard's folder and run `nanoset build`",
        ) from error
    return {path: found for path, found in counts.items() if found.documents}


def _grouped(files: np.ndarray, tokens: np.ndarray) -> Iterable[Counts]:
    """Counts of each file number; files int32[documents], tokens int32[documents]."""
    documents = np.bincount(files)
    # float64 sums are exact below 2^53 tokens
    sums = np.bincount(files, weights=tokens, minlength=len(documents))
    return [Counts(int(count), int(total)) for count, total in zip(documents, sums, strict=True)]
