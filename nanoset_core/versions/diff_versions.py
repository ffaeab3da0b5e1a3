"""The two versions that `nanoset diff` compares, what each was made from, and how their source files differ."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.pipeline import indexed, raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import Inventory, Piece, cut_ranges
from nanoset_core.tokenization.document_table import FileCounts, counts_by_file
from nanoset_core.tokenization.shards import DOCUMENTS
from nanoset_core.versions.file_changes import read_inventory

Change = Literal["added", "removed", "changed", "other settings"]
_PREFIX = re.compile(r"[0-9a-f]{4,20}")


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a merged dataset, with the files and shards that it was made from."""

    dataset: Manifest
    tokenized: Manifest
    files: dict[str, list[Piece]]
    """Path → its pieces, in document order."""
    shards: dict[str, tuple[str, ...]]
    """Digest of each shard → the files that it reads, in document order."""
    shards_folder: Path

    @property
    def corpus(self) -> str:
        return self.dataset.name

    @property
    def digest(self) -> str:
        return self.dataset.digest


def find_versions(project: Project, first: str, second: str | None) -> tuple[DatasetVersion, DatasetVersion]:
    """Return the versions that two digests (or their beginnings) name; or, of a corpus, the previous and current one.

    Raises:
        ConfigError: no such corpus or version, several, or versions of two corpora.
        MissingError: there is no previous version, or the inventory or the shards of one are gone.
    """
    if second is None:
        old, new = _previous_and_current(project.outputs, check_corpus_name(first, "CORPUS"))
    else:
        old, new = (_named(project.outputs, digest) for digest in (first, second))
    if old.name != new.name:
        found, expected = f"{old.name} and {new.name}", "two versions of one corpus"
        remedy = "name two versions of one corpus"
        raise ConfigError("these are datasets of two corpora", found=found, expected=expected, remedy=remedy)
    return _open(project, old), _open(project, new)


def _previous_and_current(outputs: OutputRoot, corpus: str) -> tuple[Manifest, Manifest]:
    current, folder = outputs.current_version(indexed.STAGE, corpus), outputs.folder / indexed.STAGE / corpus
    if current.manifest is None:
        raise ConfigError(
            "no such corpus, or it has no dataset yet",
            where=folder,
            found=current.problem if current.exists else repr(corpus),
            expected=f"one of {', '.join(sorted(outputs.access.names(folder.parent))) or 'none'}; or two digests",
            remedy="name one of these corpora, or run `nanoset build` first",
        )
    for version in outputs.versions(indexed.STAGE, corpus, strict=True):
        if version.digest != current.manifest.digest:
            return version, current.manifest
    found = f"the current one alone, {current.manifest.digest}"
    remedy = "name two digests, or build again once its text or settings changed"
    raise MissingError("this corpus has no previous version", where=folder, found=found, remedy=remedy)


def _named(outputs: OutputRoot, digest: str) -> Manifest:
    place = outputs.folder / indexed.STAGE
    known = [
        place / corpus / one for corpus in outputs.access.names(place) for one in outputs.digests_in(place / corpus)
    ]
    found = [one for one in known if _PREFIX.fullmatch(digest) and one.name.startswith(digest)]
    if len(found) != 1:
        rows = sorted(f"{one.parent.name} {one.name}" for one in found or known)
        raise ConfigError(
            "several datasets have digests that begin so" if found else "no such version of a dataset",
            where=place,
            found=repr(digest),
            expected=f"at least four digits of one of {', '.join(rows[:10]) or 'none: nothing was built'}",
            remedy="name one of these, or a corpus alone" if rows else "run `nanoset build` first",
        )
    manifest = outputs.manifest_at(found[0])
    if manifest is None:
        raise MissingError("this version of a dataset has no manifest", where=found[0], remedy="run `nanoset build`")
    return manifest


def _open(project: Project, dataset: Manifest) -> DatasetVersion:
    folder = project.outputs.folder
    tokenized = indexed.shards_of(project.outputs, dataset)
    place = folder / raw.STAGE / dataset.name / dataset.recipe["parents"]["inventory"]
    inventory = project.outputs.manifest_at(place)
    if inventory is None:
        remedy = "compare versions that `nanoset gc` has not taken apart"
        raise MissingError("the inventory of this version is gone", where=place, remedy=remedy)
    files = read_inventory(inventory)
    pieces = Inventory(dataset.name, tuple(piece for found in files.values() for piece in found))
    ranges, digests = cut_ranges(pieces, tokenized.recipe["options"]["range_bytes"]), tokenized.facts["shards"]
    if len(ranges) != len(digests):
        what, remedy = "the shards of this version are not those of its inventory", "delete the folder, and build again"
        found = f"{len(digests):,} shards instead of {len(ranges):,}"
        raise FormatError(what, where=tokenized.folder, found=found, remedy=remedy)
    shards = {digest: source.files for digest, source in zip(digests, ranges, strict=True)}
    return DatasetVersion(dataset, tokenized, files, shards, folder / tokenization.SHARDS / dataset.name)


@dataclass(frozen=True, slots=True)
class FileDiff:
    """One source file that is not in both versions alike."""

    path: str
    """Relative to the corpus's folder."""
    change: Change
    """other settings: the same bytes gave other counts."""
    before: FileCounts
    after: FileCounts


def compare_files(old: DatasetVersion, new: DatasetVersion) -> list[FileDiff]:
    """Return every file that was added, removed or changed, or of which other settings made something else.

    Only tables of shards that hold such files are read: under the same settings, equal bytes give equal documents.

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
        there, here = old.files.get(path), new.files.get(path)
        if there == here and was == now:
            continue
        change: Change = "added" if there is None else "removed" if here is None else "changed"
        found.append(FileDiff(path, "other settings" if there == here else change, was, now))
    return found


def _count(version: DatasetVersion, paths: set[str]) -> dict[str, FileCounts]:
    counts: dict[str, FileCounts] = {}
    for digest, files in version.shards.items():
        if not paths.isdisjoint(files):
            table = version.dataset.access.fetch(version.shards_folder / digest / DOCUMENTS)
            for path, found in counts_by_file(table).items():
                counts[path] = counts.get(path, FileCounts()) + found
    return counts
