"""Write index files without a project where a trainer looks for them, and replace no others."""

from __future__ import annotations

import json
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path, PurePosixPath

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.recorded import OutputPlace
from nanoset_core.sampling.cache import FileSet, index_sets
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.plan import LengthReader, plan_splits
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
    """Folder of the split's own files; None for a blend without a cache folder, which the trainer keeps in memory."""
    made: bool
    """False where all files were there already."""


def write_index_files(config: NanosetConfig, *, overwrite: bool = False) -> list[SplitFiles]:
    """Write the index files of all splits that have a share, unless they are there.

    Those for a bucket are written below TMPDIR first, one set after the other. ConfigError where files of another
    dataset or of unknown origin are there, which only `overwrite` replaces; or as `plan_splits`.
    """
    reader, bucket = LengthReader(), None
    plans = [plan for plan in plan_splits(config, SPLITS, reader).values() if plan is not None]
    with ExitStack() as stack:
        remote = next((member.prefix for plan in plans for member in plan.members if is_remote(member.prefix)), None)
        if config.path_to_cache is None and remote is not None:  # no trainer looks beside it
            raise ConfigError(
                "a dataset in a bucket needs a folder for its index files",
                where="--data-cache-path",
                found=f"{remote}, and no folder for index files",
                expected="a folder of this machine, or s3://bucket/path",
                remedy="name one with --data-cache-path",
            )
        if config.path_to_cache is not None and is_remote(config.path_to_cache):
            bucket = remote_location(config.path_to_cache, where="--data-cache-path")
            config = replace(config, path_to_cache=str(stack.enter_context(temporary_folder("index-files"))))
        sets = [[(one, OutputPlace(bucket or one.folder)) for one in index_sets(plan, config)] for plan in plans]
        for files, place in () if overwrite else chain(*sets):
            _check_own(files, place)
        found = []
        for plan, parts in zip(plans, sets, strict=True):
            own = plan.blend or plan.members[0]
            in_memory = plan.blend is not None and config.path_to_cache is None
            made = [_write(files, place) for files, place in parts]
            folder = None if in_memory else parts[0][1].folder
            found.append(SplitFiles(plan.split, plan.samples, own.hash, folder, any(made)))
        return found


def _check_own(files: FileSet, place: OutputPlace) -> None:
    """Refuse to replace files of another origin; those of a killed call for the same set may be replaced."""
    there = next((name for name in files.files.values() if place.has(name)), None)
    foreign = None if there is None else files.foreign(there, place.store.read(files.sidecar))
    if foreign is not None and place.store.read(_mark(files)) != json.dumps(files.made_from).encode():
        raise ConfigError(
            "other index files are there already",
            where=place.folder,
            found=foreign,
            expected="none of these names, or those of the same dataset",
            remedy="name another --data-cache-path, or replace them with --overwrite",
        )


def _write(files: FileSet, place: OutputPlace) -> bool:
    """Write a set unless it is there; return whether it was written. In a bucket its description is put last."""
    noted, mark = files.notes_in(place.store.read(files.sidecar)), _mark(files)
    if noted is not None and all(place.has(name, note["bytes"]) for name, note in noted.items()):
        if place.has(mark):  # of a call that was killed just after it had written all
            place.store.delete(mark)
        return False
    with place.writing():
        place.store.put(mark, json.dumps(files.made_from).encode())
        if isinstance(place.folder, Path):
            files.write()
        else:
            last = [files.files["description"]] if "description" in files.files else []
            for name in (*last, files.sidecar):
                place.store.delete(name)
            sums = files.write()
            for name in (*(name for name in sums if name not in last), files.sidecar, *last):
                place.take(files.folder / name, name, sha256=sums.get(name))
        place.store.delete(mark)
    return True


def _mark(files: FileSet) -> str:
    """Return the name of the file that holds `made_from` while a set is written: a killed call may be repeated."""
    sidecar = PurePosixPath(files.sidecar)
    return str(sidecar.with_name(f".{sidecar.name}.begun"))
