"""Record which tars of a webdataset are finished, so that a build that was killed can resume.

Each finished tar gets a marker: a small JSON file with the facts of the tar, and the digest of the
recipe that it was made from. When the webdataset is complete, its manifest has these facts, and the
markers are removed.
"""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Container, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from nanoset_core.errors import FormatError
from nanoset_core.records.json_records import JsonForm, Record, dump, load
from nanoset_core.stages.webdataset.tars import TarFacts, shard_stem, tar_name
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import fsync_folder
from nanoset_core.storage.removing.removals import remove_stored_folder
from nanoset_core.storage.writing.uploads import upload_files

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
        """Return the marker of a finished tar: a small file that says that the tar is complete.

        A build that was killed is resumed by these: tars with a marker are not written again. The
        marker has the counts, size and sha256 of the tar, and a digest of everything it was made
        from. So a marker of a build with other settings is not mistaken for one of this build.

        Args:
            tar: Counts, size and sha256 of the tar.
            made_from: The digest, such as "3f2a…".
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
    """Record that some tar files are complete, so that a later build need not write them again.

    Each tar gets a marker, a small JSON file in a folder next to the tars, such as

        shard-00000007.json     {"shard": 7, "sequences": 8192, ..., "made_from": "3f2a…"}

    Args:
        folder: Folder of the tars on this machine.
        tars: Counts, size and sha256 of each tar.
        made_from: Digest of everything that the tars were made from.
        access: Sends the markers to a bucket, if the folder is in one.
    """
    paths: list[Path] = []
    with _folder_may_disappear():
        (folder / MARKERS).mkdir(exist_ok=True)
        for facts in tars:
            path = folder / MARKERS / f"{facts.stem}.json"
            # No temporary file: a marker that was cut off is not valid JSON, and is ignored.
            path.write_bytes(dump(TarMarker.of(facts, made_from)))
            paths.append(path)
    upload_files(access, [path for path in paths if path.is_file()])


def _folder_may_disappear() -> AbstractContextManager[None]:
    """Ignore the error if the folder of markers is deleted while the `with` block writes markers.

    Another build has then completed the dataset, and the markers are not needed. The error is
    FileExistsError if the folder is deleted during `mkdir`.
    """
    return contextlib.suppress(FileNotFoundError, FileExistsError)


def read_markers(
    folder: Path,
    shards: Sequence[int],
    made_from: str,
    access: FileAccess,
) -> dict[int, TarFacts]:
    """Find out which tar files are complete already, when a build is resumed.

    Each complete tar has a marker, a small file that records its size and what it was made from:

        tar      marker      its size      made from        is complete
        0        yes         the same      the same         yes
        1        yes         smaller                        no: it was cut off
        2        yes         the same      something else   no: the settings have changed
        3        no                                         no

    Args:
        folder: Folder of the tars.
        shards: Numbers of the tars to look for.
        made_from: Digest of what they should be made from.
        access: Reads the folder, which may be in a bucket.

    Returns:
        Number of each complete tar → its counts, size and sha256.
    """
    tar_names = [tar_name(shard) for shard in shards]
    marker_names = [_marker_name(shard) for shard in shards]
    sizes = access.sizes(folder, tar_names + marker_names)  # of those that exist

    # `each` reads markers in a bucket with several requests at the same time.
    shards_with_both = [shard for shard in shards if _has_tar_and_marker(shard, sizes)]
    read = partial(_read_marker, folder, made_from, access)
    all_facts = access.each(read, shards_with_both)

    complete: dict[int, TarFacts] = {}
    for shard, facts in zip(shards_with_both, all_facts, strict=True):
        if facts is not None and facts.size_bytes == sizes[tar_name(shard)]:
            complete[shard] = facts
    return complete


def may_be_complete_by_now(
    folder: Path, unreadable_shards: Sequence[int], access: FileAccess
) -> bool:
    """Return whether another build may have completed a dataset of tars in the meantime.

    Each finished tar has a marker, a small file. The build that finishes the last tar writes the
    manifest, a file that describes the whole dataset, and then deletes all markers:

        this build                                 another build
        1. lists the folder, which has markers
           but no manifest
                                                   2. writes the manifest, deletes the markers
        3. reads a marker: it does not exist

    So a marker that was listed, and cannot be read now, may have been deleted in step 2. If none of
    the unreadable markers was listed, their tars were just not finished: the result is False.
    (Markers that were deleted before step 1 do not matter: then the manifest would be listed.)

    Args:
        folder: Folder of the tars.
        unreadable_shards: Numbers of the tars whose markers could not be read.
        access: What the markers were read with. It has a listing if the folder is in a bucket. For
            a folder on a disk there is none, so anything may have happened, and the result is True.
    """
    listing = access.known_listing(access.name(folder))  # of step 1
    if listing is None:
        return True
    for shard in unreadable_shards:
        marker = access.name(folder / _marker_name(shard))
        was_listed = listing.file(marker) is not None
        if was_listed:
            return True
    return False


def _has_tar_and_marker(shard: int, names: Container[str]) -> bool:
    """Return whether both files of a shard exist.

    A tar without a marker may be from another plan. A marker without a tar remains if the tar was
    deleted.

    Args:
        shard: Number of the shard.
        names: Names of the files that exist.
    """
    return tar_name(shard) in names and _marker_name(shard) in names


def _read_marker(folder: Path, made_from: str, access: FileAccess, shard: int) -> TarFacts | None:
    """Read the marker of a tar file, the small file that says that the tar is complete.

    Args:
        folder: Folder of the tars.
        made_from: Digest of what the tar should be made from.
        access: Reads the folder, which may be in a bucket.
        shard: Number of the tar.

    Returns:
        Counts, size and sha256 of the tar. None if the marker does not count: it was cut off when a
        build was killed, or the tar was made from something else.
    """
    path = folder / _marker_name(shard)
    try:
        marker = load(TarMarker, access.read_current(path), path)
    except (FileNotFoundError, FormatError):
        return None
    if marker.made_from != made_from or marker.shard != shard:
        return None
    return marker.tar


def _marker_name(shard: int) -> str:
    return f"{MARKERS}/{shard_stem(shard)}.json"


def clear_markers(folder: Path, access: FileAccess) -> None:
    """Delete the markers of tar files, after the dataset is complete.

    A marker is a small file that says that a tar is complete. When all tars are, the manifest of
    the dataset records them, and the markers are not needed any more.

    Args:
        folder: Folder of the tars on this machine.
        access: Deletes the markers in the bucket, too, if the folder is in one.
    """
    remove_stored_folder(access, folder / MARKERS)
    if (folder / MARKERS).is_dir():
        shutil.rmtree(folder / MARKERS, ignore_errors=True)
        fsync_folder(folder)
