"""Record which tars of a webdataset are finished, so that a build that was killed can resume.

Each finished tar gets a marker: a small JSON file with the facts of the tar, and the digest of the
recipe that it was made from. When the webdataset is complete, its manifest has these facts, and the
markers are removed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Container, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.stages.webdataset.tars import TarFacts, shard_stem
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import fsync_folder
from nanoset_core.storage.removals import remove_stored_folder
from nanoset_core.storage.uploads import upload_files

MARKERS = ".shards"
"""Folder of the markers, within the folder of the tars."""


@dataclass(frozen=True, slots=True)
class TarMarker(Record):
    """The content of the marker of a finished tar: its `TarFacts`, and what it was made from."""

    json_form: ClassVar[JsonForm] = JsonForm(
        "this is not the marker of a tar", sorts_keys=True, is_compact=True
    )

    shard: int
    sequences: int
    tokens: int
    pad_tokens: int
    size_bytes: int
    sha256: str
    made_from: str
    """Digest of the recipe."""

    @staticmethod
    def of(tar: TarFacts, made_from: str) -> TarMarker:
        """Return the marker of a tar: a note that says that it is finished, and what is in it.

        Args:
            tar: Facts of the tar.
            made_from: Digest of the recipe that it was made from.
        """
        return TarMarker(
            shard=tar.shard,
            sequences=tar.sequences,
            tokens=tar.tokens,
            pad_tokens=tar.pad_tokens,
            size_bytes=tar.size_bytes,
            sha256=tar.sha256,
            made_from=made_from,
        )

    @property
    def tar(self) -> TarFacts:
        """Facts of the tar."""
        return TarFacts(
            shard=self.shard,
            sequences=self.sequences,
            tokens=self.tokens,
            pad_tokens=self.pad_tokens,
            size_bytes=self.size_bytes,
            sha256=self.sha256,
        )


def write_markers(
    folder: Path,
    tars: Sequence[TarFacts],
    made_from: str,
    access: FileAccess,
) -> None:
    """Write a marker for each finished tar: a note by which a later build can skip the tar.

    Args:
        folder: Folder of the tars on this machine.
        tars: Facts of the tars.
        made_from: Digest of the recipe, which says what they were made from.
        access: Sends the markers if the folder is in a store.
    """
    paths: list[Path] = []
    # Another build may complete the webdataset at this moment, and remove the folder of markers.
    # Then they are not needed. The error is FileExistsError if it is removed during `mkdir`.
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        (folder / MARKERS).mkdir(exist_ok=True)
        for facts in tars:
            path = folder / MARKERS / f"{facts.stem}.json"
            # No temporary file: a marker that was cut off is not valid JSON, and is ignored.
            path.write_bytes(dump(TarMarker.of(facts, made_from)))
            paths.append(path)
    upload_files(access, [path for path in paths if path.is_file()])


def read_markers(
    folder: Path,
    shards: Sequence[int],
    made_from: str,
    access: FileAccess,
) -> dict[int, TarFacts]:
    """Return what is in the tars that are finished, by the notes (markers) next to them.

    A tar is finished if it exists with the size that its marker records, and was made from the same
    recipe.

    Args:
        folder: Folder of the tars.
        shards: Numbers of the shards to look for.
        made_from: Digest of the recipe.
        access: Access to the folder.

    Returns:
        Number of the shard → facts of its tar.
    """
    tar_names = [_tar_name(shard) for shard in shards]
    marker_names = [_marker_name(shard) for shard in shards]
    sizes = access.sizes(folder, tar_names + marker_names)  # of those that exist

    # Markers in a bucket are read with several requests at the same time.
    shards_with_both = [shard for shard in shards if _has_tar_and_marker(shard, sizes)]
    read = partial(_read_marker, folder, made_from, access)
    all_facts = access.each(read, shards_with_both)

    finished: dict[int, TarFacts] = {}
    for shard, facts in zip(shards_with_both, all_facts, strict=True):
        if facts is not None and facts.size_bytes == sizes[_tar_name(shard)]:
            finished[shard] = facts
    return finished


def _has_tar_and_marker(shard: int, names: Container[str]) -> bool:
    """Return whether both files of a shard exist.

    A tar without a marker may be from another plan. A marker without a tar remains if the tar was
    deleted.

    Args:
        shard: Number of the shard.
        names: Names of the files that exist.
    """
    return _tar_name(shard) in names and _marker_name(shard) in names


def _read_marker(folder: Path, made_from: str, access: FileAccess, shard: int) -> TarFacts | None:
    """Return what the marker of a tar says about it.

    Args:
        folder: Folder of the tars.
        made_from: Digest of the recipe that the tar should have.
        access: Access to the folder.
        shard: Number of the tar.

    Returns:
        Counts, size and sha256 of the tar. None if the marker is cut off, or says that the tar was
        made from something else.
    """
    path = folder / _marker_name(shard)
    try:
        marker = load(TarMarker, access.read_current(path), path)
    except (FileNotFoundError, FormatError):
        return None
    if marker.made_from != made_from or marker.shard != shard:
        return None
    return marker.tar


def _tar_name(shard: int) -> str:
    return f"{shard_stem(shard)}.tar"


def _marker_name(shard: int) -> str:
    return f"{MARKERS}/{shard_stem(shard)}.json"


def clear_markers(folder: Path, access: FileAccess) -> None:
    """Remove the notes on finished tars, after the manifest of the webdataset was written.

    Args:
        folder: Folder of the tars on this machine.
        access: Removes the notes in the store, too, if the folder is in one.
    """
    remove_stored_folder(access, folder / MARKERS)
    if (folder / MARKERS).is_dir():
        shutil.rmtree(folder / MARKERS, ignore_errors=True)
        fsync_folder(folder)
