"""Write index files without a project where a trainer looks for them, and replace no others."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.cache import FileSet, cache_dir_of, index_sets
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.plan import LengthReader, plan_split
from nanoset_core.mapping.planned import SplitPlan
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.outputs.places import OutputPlace, place_of
from nanoset_core.storage.location import Location, RemoteFolder, is_remote, remote_location
from nanoset_core.storage.working_copies import temporary_folder


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The index files of a split."""

    split: SplitName
    samples: int
    """Length of the split."""
    hash: str
    """The trainer's hash of its description."""
    folder: Location | None
    """Folder of the split's own files; None for a blend without a cache folder, which the trainer keeps in memory."""
    made: bool
    """False where all files were there already."""


def write_index_files(config: NanosetConfig, *, overwrite: bool = False) -> list[SplitFiles]:
    """Write the index files of all splits that have a share, unless they are there.

    Those for a bucket are written below TMPDIR first, one set after the other.

    Args:
        config: of the nanoset.
        overwrite: whether index files of another dataset, or of unknown origin, may be replaced.

    Raises:
        ConfigError: they may not, and such files are there; or as `plan_split`.
        StorageError: the folder cannot be written to, or is full.
        MissingError, FormatError: as `plan_split`.
    """
    reader = LengthReader()
    plans = [plan for split in SPLITS if (plan := plan_split(config, split, reader)) is not None]
    if config.path_to_cache is None:
        _check_local(plans)
    elif is_remote(config.path_to_cache):
        bucket = remote_location(config.path_to_cache, where="--data-cache-path")
        with temporary_folder("index-files") as room:
            return _write_splits(plans, replace(config, path_to_cache=str(room)), bucket, overwrite=overwrite)
    return _write_splits(plans, config, None, overwrite=overwrite)


def _check_local(plans: Sequence[SplitPlan]) -> None:
    """Refuse to put index files beside a dataset in a bucket: no trainer looks there."""
    remote = next((member.prefix for plan in plans for member in plan.members if is_remote(member.prefix)), None)
    if remote is not None:
        raise ConfigError(
            "a dataset in a bucket needs a folder for its index files",
            where="--data-cache-path",
            found=f"{remote}, and no folder for index files",
            expected="a folder of this machine, or s3://bucket/path",
            remedy="name one with --data-cache-path",
        )


def _write_splits(
    plans: Sequence[SplitPlan], config: NanosetConfig, bucket: RemoteFolder | None, *, overwrite: bool
) -> list[SplitFiles]:
    """Write all sets where `config` says, and send them from there to a bucket where one is given."""
    if not overwrite:
        for files in (files for plan in plans for files in index_sets(plan, config)):
            _check_own(files, place_of(bucket or files.folder), bucket or files.folder)
    found = []
    for plan in plans:
        made = [_write(files, place_of(bucket or files.folder), bucket) for files in index_sets(plan, config)]
        folder: Location | None = bucket
        if bucket is None and (plan.blend is None or config.path_to_cache is not None):
            folder = cache_dir_of(plan.members[0], config)
        own = plan.members[0] if plan.blend is None else plan.blend
        found.append(SplitFiles(plan.split, plan.samples, own.hash, folder, any(made)))
    return found


def _check_own(files: FileSet, place: OutputPlace, folder: Location) -> None:
    """Refuse to replace files of another origin; files of an interrupted call for the same set may be replaced."""
    there = next((name for name in files.files.values() if place.has(name)), None)
    foreign = None if there is None else files.foreign(there, place.read(files.sidecar))
    if foreign is not None and _parsed(place.read(_mark(files))) != files.made_from:
        raise ConfigError(
            "other index files are there already",
            where=folder,
            found=foreign,
            expected="none of these names, or those of the same dataset",
            remedy="name another --data-cache-path, or replace them with --overwrite",
        )


def _write(files: FileSet, place: OutputPlace, bucket: RemoteFolder | None) -> bool:
    """Write a set unless it is there; return whether it was written."""
    noted, mark = files.notes_in(place.read(files.sidecar)), _mark(files)
    if noted is not None and all(place.has_size(name, note["bytes"]) for name, note in noted.items()):
        if place.has(mark):  # of a call that was killed just after it had written all
            place.remove(mark)
        return False
    with place.writing():
        place.write(mark, json.dumps(files.made_from).encode())
        if bucket is None:
            files.write()
        else:
            _send(files, place)
        place.remove(mark)
    return True


def _send(files: FileSet, place: OutputPlace) -> None:
    """Write a set to its folder, and move it to a bucket, the description last."""
    description = [files.files["description"]] if "description" in files.files else []
    for name in (*description, files.sidecar):
        place.remove(name)
    sums = files.write()
    arrays = [name for name in sums if name not in description]
    for name in (*arrays, files.sidecar, *description):
        place.take(files.folder / name, name, sha256=sums.get(name))


def _mark(files: FileSet) -> str:
    """Return the name of the file that holds `made_from` while a set is written: a killed call may be repeated."""
    sidecar = PurePosixPath(files.sidecar)
    return str(sidecar.with_name(f".{sidecar.name}.begun"))


def _parsed(data: bytes | None) -> Any:
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(data or b"")
    return None
