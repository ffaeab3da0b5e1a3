"""Completion markers of tars: a run that was cut off goes on after the tars that have one."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nanoset_core.outputs.manifest import canonical_json
from nanoset_core.shuffling.shards import TarFacts, shard_stem
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import discard, fsync_folder, open_unfinished

MARKERS = ".shards"
"""Folder of the markers, within that of the tars."""


def marker_path(folder: Path, facts: TarFacts) -> Path:
    """Return where the marker of a shard is."""
    return folder / MARKERS / f"{facts.stem}.json"


def write_marker(folder: Path, facts: TarFacts, made_from: str) -> None:
    """Write what a finished shard holds, and what it was made from.

    Nothing is synchronised with the disk: after a power cut, a shard without its marker is made again. None is written
    where another build completes the webdataset, and so removes all markers, at the same time.
    """
    target = marker_path(folder, facts)
    with contextlib.suppress(FileNotFoundError, FileExistsError):
        file = open_unfinished(target)
        try:
            file.write(canonical_json({**asdict(facts), "made_from": made_from}))
            file.flush()
            Path(file.name).rename(target)
        finally:
            discard(file)


def read_markers(
    folder: Path, shards: Sequence[int], made_from: str, access: FileAccess | None = None
) -> dict[int, TarFacts]:
    """Return the facts of those shards whose tars are there, of the size written, and made from just this.

    Args:
        folder: of the tars.
        shards: numbers of the shards.
        made_from: digest that the markers must name.
        access: how the folder is reached; None = as a local one.
    """
    access = access or FileAccess(folder)
    names = {shard: (f"{shard_stem(shard)}.tar", f"{MARKERS}/{shard_stem(shard)}.json") for shard in shards}
    sizes = access.sizes(folder, [name for pair in names.values() for name in pair])
    both = [shard for shard, pair in names.items() if sizes.keys() >= set(pair)]
    found = access.each(lambda shard: _read(access, folder / names[shard][1], made_from), both)
    return {
        shard: facts
        for shard, facts in zip(both, found, strict=True)
        if facts is not None and (facts.shard, facts.size_bytes) == (shard, sizes[names[shard][0]])
    }


def _read(access: FileAccess, path: Path, made_from: str) -> TarFacts | None:
    """Return what a marker says; None where it is gone, damaged by a power cut, or of something else."""
    try:
        marker = json.loads(access.read_current(path))
        return TarFacts(**marker) if marker.pop("made_from") == made_from else None
    except (FileNotFoundError, ValueError, RecursionError, KeyError, TypeError, AttributeError):
        return None


def send_tars(access: FileAccess, folder: Path, shards: Sequence[TarFacts]) -> None:
    """Send tars, and then their markers, to where their folder is stored."""
    tars = {folder / f"{facts.stem}.tar": facts.sha256 for facts in shards}
    access.send(tars, tars)
    markers = (marker_path(folder, facts) for facts in shards)
    access.send(marker for marker in markers if marker.is_file())


def clear_markers(folder: Path, access: FileAccess | None = None) -> None:
    """Remove the markers, once a manifest says what they say; `access` as in `read_markers`."""
    (access or FileAccess(folder)).remove_all(folder / MARKERS)
    if (folder / MARKERS).is_dir():
        shutil.rmtree(folder / MARKERS, ignore_errors=True)
        fsync_folder(folder)
