"""Write index files without a project, for `nanoset map`, to where a trainer looks for them.

Files of another origin are never replaced, unless that is requested.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.recorded import OutputPlace
from nanoset_core.sampling.cache import FileSet, index_sets
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.plan import plan_splits
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.storage.location import Location, is_remote, remote_location
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
    """Folder of the split's own files; None for a blend without a cache folder, which the trainer
    keeps in memory.
    """
    made: bool
    """Whether any file was written; False if all files existed already."""


class PlacedSet(NamedTuple):
    """A set of index files, and where it is stored: in its folder, or in a bucket."""

    files: FileSet
    place: OutputPlace


def write_index_files(config: NanosetConfig, *, overwrite: bool = False) -> list[SplitFiles]:
    """Write the index files of all splits that have a share of the data, except those that exist.

    Files for a bucket are first written below TMPDIR, one set at a time.

    Args:
        config: Names the data, and the folder of the index files.
        overwrite: Replace files of another dataset or of unknown origin.

    Raises:
        ConfigError: There are such files, and they may not be replaced; or as `plan_splits`.
    """
    planned = plan_splits(config, SPLITS, LengthReader())
    plans = [plan for plan in planned.values() if plan is not None]
    _check_cache_folder(config, plans)
    with ExitStack() as stack:
        bucket: Location | None = None
        if config.path_to_cache is not None and is_remote(config.path_to_cache):
            bucket = remote_location(config.path_to_cache, where="--data-cache-path")
            scratch = stack.enter_context(temporary_folder("index-files"))
            config = replace(config, path_to_cache=str(scratch))

        # Check all sets before the first is written.
        sets_by_split: dict[SplitName, list[PlacedSet]] = {}
        for plan in plans:
            placed_sets = [
                PlacedSet(files, OutputPlace(bucket or files.folder))
                for files in index_sets(plan, config)
            ]
            sets_by_split[plan.split] = placed_sets
            if not overwrite:
                for placed in placed_sets:
                    _check_replaceable(placed)
        return [_write_split(plan, config, sets_by_split[plan.split]) for plan in plans]


def _check_cache_folder(config: NanosetConfig, plans: Sequence[SplitPlan]) -> None:
    """Check that a folder for index files is named if a dataset is in a bucket.

    Trainers look next to local datasets, but not next to those in a bucket.

    Raises:
        ConfigError: It is not.
    """
    if config.path_to_cache is not None:
        return
    for plan in plans:
        for member in plan.members:
            if is_remote(member.prefix):
                raise ConfigError(
                    "a dataset in a bucket needs a folder for its index files",
                    where="--data-cache-path",
                    found=f"{member.prefix}, and no folder for index files",
                    expected="a folder of this machine, or s3://bucket/path",
                    remedy="name one with --data-cache-path",
                )


def _check_replaceable(placed: PlacedSet) -> None:
    """Check that writing a set replaces no files of another origin.

    Raises:
        ConfigError: Files of another dataset, or of unknown origin, have the names of the set's.
    """
    files, place = placed
    existing = next((name for name in files.files.values() if place.has(name)), None)
    if existing is None:
        return
    difference = files.foreign(existing, place.store.read(files.sidecar))
    if difference is None:
        return
    # A killed call that was writing the same set left its mark: see `_write_set`.
    if place.store.read(_mark_name(files)) == _mark_content(files):
        return
    raise ConfigError(
        "other index files are there already",
        where=place.folder,
        found=difference,
        expected="none of these names, or those of the same dataset",
        remedy="name another --data-cache-path, or replace them with --overwrite",
    )


def _write_split(
    plan: SplitPlan, config: NanosetConfig, placed_sets: Sequence[PlacedSet]
) -> SplitFiles:
    """Write the sets of one split."""
    are_new = [_write_set(placed) for placed in placed_sets]
    description_hash = plan.members[0].hash if plan.blend is None else plan.blend.hash
    is_in_memory = plan.blend is not None and config.path_to_cache is None
    folder = None if is_in_memory else placed_sets[0].place.folder
    return SplitFiles(plan.split, plan.samples, description_hash, folder, any(are_new))


def _write_set(placed: PlacedSet) -> bool:
    """Write a set of index files, unless it already exists.

    A small file, the mark, exists while the set is written, and says what the set is made from. It
    is put before the first file and deleted after the last one. If a call is killed in between,
    the mark remains: it lets `_check_replaceable` see in the next call that the incomplete files
    are of this set, and may be replaced without --overwrite.

    Returns:
        Whether the set was written; False if it existed.
    """
    files, place = placed
    mark = _mark_name(files)
    if _is_stored(placed):
        # A call that was killed just after it had written all files leaves its mark.
        if place.has(mark):
            place.store.delete(mark)
        return False

    is_local = isinstance(place.folder, Path)
    with place.writing():
        place.store.put(mark, _mark_content(files))
        if is_local:
            files.write()
        else:
            _write_remote(placed)
        place.store.delete(mark)
    return True


def _is_stored(placed: PlacedSet) -> bool:
    """Return whether a set is complete: its files exist with the sizes that its sidecar lists."""
    files, place = placed
    notes = files.notes_in(place.store.read(files.sidecar))
    if notes is None:
        return False
    return all(place.has(name, note["bytes"]) for name, note in notes.items())


def _write_remote(placed: PlacedSet) -> None:
    """Write a set to its local folder, and move it into the bucket.

    A trainer that finds the description takes the set for complete. So it is deleted first and put
    last.
    """
    files, place = placed
    descriptions = [files.files["description"]] if "description" in files.files else []
    for name in (*descriptions, files.sidecar):
        place.store.delete(name)
    sha256_by_name = files.write()
    arrays = [name for name in sha256_by_name if name not in descriptions]
    for name in (*arrays, files.sidecar, *descriptions):
        place.take(files.folder / name, name, sha256=sha256_by_name.get(name))


def _mark_name(files: FileSet) -> str:
    """Return the name of the mark, which exists while a set is written: see `_write_set`."""
    sidecar = PurePosixPath(files.sidecar)
    return str(sidecar.with_name(f".{sidecar.name}.begun"))


def _mark_content(files: FileSet) -> bytes:
    """Return the content of the mark: what the set is made from."""
    return json.dumps(files.made_from).encode()
