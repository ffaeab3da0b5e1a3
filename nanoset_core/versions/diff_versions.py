"""Finding the two versions that `nanoset diff` compares, and what each was made from."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.outputs.manifest import MANIFEST, Manifest
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.outputs.root import OutputRoot, read_current
from nanoset_core.pipeline import indexed, raw, tokenization
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.pieces import Inventory, Piece, cut_ranges
from nanoset_core.versions.file_changes import read_inventory

_PREFIX = re.compile(r"[0-9a-f]{4,20}")


@dataclass(frozen=True, slots=True)
class DatasetVersion:
    """One version of a merged dataset, with the files and shards that it was made from."""

    dataset: Manifest
    tokenized: Manifest
    files: dict[str, list[Piece]]
    """path → its pieces, in document order"""
    shards: dict[str, tuple[str, ...]]
    """digest of each shard → the files that it reads, in document order"""
    shards_folder: Path

    @property
    def corpus(self) -> str:
        return self.dataset.name

    @property
    def digest(self) -> str:
        return self.dataset.digest


def find_versions(project: Project, first: str, second: str | None) -> tuple[DatasetVersion, DatasetVersion]:
    """The versions that two digests (or their beginnings) name; or, of a corpus, the previous and the current one.

    Raises:
        ConfigError: no such corpus or version, several, or versions of two corpora.
        MissingError: there is no previous version, or the inventory or the shards of one are gone.
    """
    place = project.outputs.folder / indexed.STAGE
    project.outputs.access.fetch_all(place, MANIFEST)
    if second is None:
        old, new = _previous_and_current(project.outputs, place / check_corpus_name(first, "CORPUS"), first)
    else:
        old, new = (_named(project.outputs, place, digest) for digest in (first, second))
    if old.name != new.name:
        raise ConfigError(
            "these are datasets of two corpora",
            found=f"{old.name} and {new.name}",
            expected="two versions of one corpus",
        )
    return _open(project, old), _open(project, new)


def _versions(outputs: OutputRoot, folder: Path) -> list[Path]:
    found = (path for path in folder.glob(f"*/{MANIFEST}") if not path.parent.is_symlink())
    return [path.parent for path in found if outputs.access.size(path) is not None]


def _previous_and_current(outputs: OutputRoot, folder: Path, corpus: str) -> tuple[Manifest, Manifest]:
    digest, problem, _ = read_current(folder, outputs.access)
    if digest is None:
        names = sorted(path.name for path in folder.parent.glob("*") if path.is_dir())
        raise ConfigError(
            "no such corpus, or it has no dataset yet",
            where=folder,
            found=problem or repr(corpus),
            expected=f"one of {', '.join(names)}; or two digests" if names else "a corpus that was built",
            remedy="name one of these corpora" if names else "run `nanoset build` first",
        )
    others = [version for version in _versions(outputs, folder) if version.name != digest]
    if not others:
        raise MissingError(
            "this corpus has no previous version",
            where=folder,
            found=f"the current one alone, {digest}",
            remedy="name two digests, or build again once its text or settings changed",
        )
    latest = max(others, key=lambda version: (outputs.access.written_ns(version / MANIFEST), version.name))
    return _read(outputs, latest), _read(outputs, folder / digest)


def _named(outputs: OutputRoot, place: Path, digest: str) -> Manifest:
    known = [version for folder in sorted(place.glob("*")) for version in _versions(outputs, folder)]
    found = [version for version in known if _PREFIX.fullmatch(digest) and version.name.startswith(digest)]
    if len(found) != 1:
        rows = [f"{version.parent.name} {version.name}" for version in found or known]
        raise ConfigError(
            "several datasets have digests that begin so" if found else "no such version of a dataset",
            where=place,
            found=repr(digest),
            expected=f"at least four digits of one of {', '.join(rows[:10])}" if rows else "a dataset that was built",
            remedy="name one of these, or a corpus alone" if rows else "run `nanoset build` first",
        )
    return _read(outputs, found[0])


def _read(outputs: OutputRoot, folder: Path) -> Manifest:
    manifest = outputs.manifest_at(folder)
    if manifest is None:
        raise MissingError("this version of a dataset has no manifest", where=folder, remedy="run `nanoset build`")
    return manifest


def _open(project: Project, dataset: Manifest) -> DatasetVersion:
    folder = project.outputs.folder
    tokenized = indexed.shards_of(project.outputs, dataset)
    place = folder / raw.STAGE / dataset.name / dataset.recipe["parents"]["inventory"]
    inventory = project.outputs.manifest_at(place)
    if inventory is None:
        raise MissingError(
            "the inventory of this version is gone",
            where=place,
            remedy="compare versions that `nanoset gc` has not taken apart",
        )
    files = read_inventory(inventory)
    pieces = Inventory(dataset.name, tuple(piece for found in files.values() for piece in found))
    ranges = cut_ranges(pieces, tokenized.recipe["options"]["range_bytes"])
    digests = tokenized.facts["shards"]
    if len(ranges) != len(digests):
        raise FormatError(
            "the shards of this version are not those of its inventory",
            where=tokenized.folder,
            found=f"{len(digests):,} shards",
            expected=f"{len(ranges):,}",
            remedy="delete the folder and run `nanoset build`",
        )
    shards = {digest: source.files for digest, source in zip(digests, ranges, strict=True)}
    return DatasetVersion(dataset, tokenized, files, shards, folder / tokenization.SHARDS / dataset.name)
