"""What `nanoset gc` would remove, and what it leaves alone since it cannot tell that it is ours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import MANIFEST, Manifest, read_manifest
from nanoset_core.pipeline.stages import stage_of
from nanoset_core.storage.listing import Entry, Listing
from nanoset_core.storage.scratch import UNFINISHED
from nanoset_core.versions.outputs import Version
from nanoset_core.versions.references import Needed


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something that nothing needs."""

    path: Path
    output: str
    """as it is shown: stage and name"""
    subject: str
    """corpus, nanoset or webdataset: by which builds hold it"""
    kind: Literal["version", "unfinished", "cache file"]
    """a version's folder, one whose build was never ended, or one index file of a trainer's"""
    size: int
    """bytes"""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Something that nothing needs, as far as can be told, and that stays."""

    path: Path
    why: str
    refused: bool = False
    """whether it was to be removed, and the file system refused"""


def judge(listing: Listing, version: Version, needed: Needed, planned: set[str]) -> Garbage | LeftAlone | None:
    """Garbage where nothing needs a version and all in it is ours; LeftAlone where that cannot be told; None if needed.

    planned: digests of versions that will be made from what stays.
    """
    if version.digest in needed.digests or version.digest in planned:
        return None
    if version.subject in needed.held:
        return LeftAlone(version.folder, f"may be needed: {needed.held[version.subject]}")
    if version.linked:
        return LeftAlone(version.folder, "a symbolic link leads to it")
    try:
        manifest = read_manifest(version.folder, listing)
    except (FormatError, OSError) as error:
        what = error.what if isinstance(error, FormatError) else str(error)
        return LeftAlone(version.folder, f"its manifest cannot be read: {what}")
    if manifest is None:
        return _judge_unfinished(listing, version)
    if (manifest.stage, manifest.name, manifest.digest) != (version.stage, version.name, version.digest):
        return LeftAlone(version.folder, f"its manifest is that of {manifest.stage}/{manifest.name}/{manifest.digest}")
    return _judge_files(listing, version, {*manifest.files, MANIFEST}, "version")


def _judge_unfinished(listing: Listing, version: Version) -> Garbage | LeftAlone:
    """A folder without a manifest: its stage knows which files in it are ours."""
    stage = stage_of(version.stage, version.name)
    ours = None if stage is None else stage.unfinished_files(listing, version.folder)
    if ours is None:
        return LeftAlone(version.folder, "it has no manifest, and no receipts of ours")
    return _judge_files(listing, version, ours, "unfinished")


def _judge_files(
    listing: Listing, version: Version, ours: set[str], kind: Literal["version", "unfinished"]
) -> Garbage | LeftAlone:
    size = 0
    for name, entry in files_below(listing, version.folder):
        if entry.is_link:
            return LeftAlone(version.folder, f"it holds a symbolic link: {name}")
        if name not in ours and not name.rpartition("/")[2].startswith(UNFINISHED):
            return LeftAlone(version.folder, f"it holds a file that is not ours: {name}")
        size += entry.size
    return Garbage(version.folder, version.label, version.subject, kind, size)


def files_below(listing: Listing, folder: Path, prefix: str = "") -> Iterator[tuple[str, Entry]]:
    """(relative name, entry) of all that is no folder; no link is followed."""
    for entry in listing.entries(folder):
        if not entry.is_link and entry.is_folder:
            yield from files_below(listing, folder / entry.name, f"{prefix}{entry.name}/")
        else:
            yield prefix + entry.name, entry


def foretold(manifests: list[Manifest]) -> set[str]:
    """Digests of versions that will be made from others, and may be in the making."""
    stages = [(stage_of(manifest.stage, manifest.name), manifest) for manifest in manifests]
    return {digest for stage, manifest in stages if stage is not None for digest in stage.future_outputs(manifest)}
