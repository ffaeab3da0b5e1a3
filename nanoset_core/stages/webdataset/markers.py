"""Completion markers beside the tars of a webdataset: a run that was cut off continues after the
tars that have one.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from nanoset_core.outputs.manifest import canonical_json
from nanoset_core.stages.webdataset.tars import TarFacts, shard_stem
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.atomic import fsync_folder

MARKERS = ".shards"
"""Folder of the completion markers, within that of the tars."""


def write_markers(
    folder: Path,
    tars: Sequence[TarFacts],
    made_from: str,
    access: FileAccess,
) -> None:
    """Record what finished tars hold, and the digest that they were made from, where their folder
    is stored.

    A marker that is cut off counts as none. None is written if another build completes the
    webdataset at the same time, which removes all markers.
    """
    # Written without a temporary file: a marker that is cut off is no JSON, and counts as none.
    paths: list[Path] = []
    with contextlib.suppress(FileNotFoundError):
        (folder / MARKERS).mkdir(exist_ok=True)
        for facts in tars:
            path = folder / MARKERS / f"{facts.stem}.json"
            path.write_bytes(canonical_json({**asdict(facts), "made_from": made_from}))
            paths.append(path)
    access.send(path for path in paths if path.is_file())


def read_markers(
    folder: Path,
    shards: Sequence[int],
    made_from: str,
    access: FileAccess,
) -> dict[int, TarFacts]:
    """Return shard → facts of those tars that exist, have the size written, and were made from this
    digest.
    """
    tar_names = [_tar_name(shard) for shard in shards]
    marker_names = [_marker_name(shard) for shard in shards]
    sizes = access.sizes(folder, tar_names + marker_names)

    def read(shard: int) -> TarFacts | None:
        facts = _read_marker(folder / _marker_name(shard), made_from, access)
        if facts is None or facts.shard != shard or facts.size_bytes != sizes[_tar_name(shard)]:
            return None
        return facts

    # A tar without a marker may be of another plan, a marker without a tar of one that was deleted.
    complete: list[int] = []
    for shard in shards:
        if _tar_name(shard) in sizes and _marker_name(shard) in sizes:
            complete.append(shard)
    return {facts.shard: facts for facts in access.each(read, complete) if facts is not None}


def _read_marker(path: Path, made_from: str, access: FileAccess) -> TarFacts | None:
    """Return what a marker says; None if it is cut off, or of a tar that was made from another
    digest.
    """
    try:
        marker = json.loads(access.read_current(path))
        if marker.pop("made_from") != made_from:
            return None
        return TarFacts(**marker)
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _tar_name(shard: int) -> str:
    return f"{shard_stem(shard)}.tar"


def _marker_name(shard: int) -> str:
    return f"{MARKERS}/{shard_stem(shard)}.json"


def clear_markers(folder: Path, access: FileAccess) -> None:
    """Remove the markers, once a manifest says what they say."""
    access.remove_all(folder / MARKERS)
    if (folder / MARKERS).is_dir():
        shutil.rmtree(folder / MARKERS, ignore_errors=True)
        fsync_folder(folder)
