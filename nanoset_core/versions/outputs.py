"""Which outputs lie below a root, in which versions. Only names are read here, and which version is the current one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.loading import opening
from nanoset_core.outputs.manifest import is_digest
from nanoset_core.outputs.root import CURRENT, read_current
from nanoset_core.pipeline.stages import stages
from nanoset_core.storage.listing import Listing

_DEEPEST = 4


def stage_folders() -> list[str]:
    """Folders of all stages below the root: first those of corpora, from which the others are made."""
    ordered = sorted(stages(), key=lambda stage: not stage.by_corpus)
    return list(dict.fromkeys(stage.folder for stage in ordered))


def corpus_folders() -> set[str]:
    """Folders of the stages whose subjects are corpora."""
    return {stage.folder for stage in stages() if stage.by_corpus}


@dataclass(frozen=True, slots=True)
class Version:
    """One version's folder."""

    stage: str
    name: str
    digest: str
    """name of the folder: of the recipe, when it is what it should be"""
    folder: Path
    linked: bool
    """whether a symbolic link leads to it"""

    @property
    def label(self) -> str:
        """As it is shown: without the digest."""
        return f"{self.stage}/{self.name}"

    @property
    def subject(self) -> str:
        """The corpus, nanoset or webdataset that it belongs to."""
        return self.name.partition("/")[0]


@dataclass(frozen=True, slots=True)
class Output:
    """All versions of one output."""

    stage: str
    name: str
    folder: Path
    versions: tuple[Version, ...]
    current: str | None
    """digest of the current version; None where there is none"""
    problem: str | None
    """why it cannot be told which version is the current one"""

    @property
    def subject(self) -> str:
        """The corpus, nanoset or webdataset that it belongs to."""
        return self.name.partition("/")[0]


def find_outputs(listing: Listing) -> list[Output]:
    """Every output of a root, in the order of the stages. Links are followed: what they lead to is in use too."""
    places = [(stage, listing.folder / stage) for stage in stage_folders()]
    return [output for stage, place in places for output in _outputs(listing, place, stage, "", listing.is_link(place))]


def _outputs(listing: Listing, folder: Path, stage: str, name: str, linked: bool) -> Iterator[Output]:
    entries = [entry for entry in listing.entries(folder) if entry.name[0] != "."]
    folders = [entry for entry in entries if entry.name != "current" and entry.is_folder]
    # A corpus may have a name that looks like a digest, but stands where no version can.
    found = [entry for entry in folders if name and is_digest(entry.name)]
    pointed = any(entry.name == CURRENT for entry in entries)
    if found or pointed:
        versions = tuple(
            Version(stage, name, entry.name, folder / entry.name, linked or entry.is_link) for entry in found
        )
        current, problem, _ = read_current(folder, listing) if pointed else (None, None, None)
        yield Output(stage, name, folder, versions, current, problem)
    for entry in folders:
        is_cache = stage == opening.STAGE and entry.name == opening.CACHE and "/" not in name and name != ""
        if entry not in found and not is_cache and name.count("/") < _DEEPEST:
            inner = f"{name}/{entry.name}" if name else entry.name
            yield from _outputs(listing, folder / entry.name, stage, inner, linked or entry.is_link)
