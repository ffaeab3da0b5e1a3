"""Index files without a project: written where a trainer looks for them, and nothing else replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.cache import FileSet, blend_set, cache_dir_of, member_set, write_blend, write_member
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.plan import LengthReader, plan_split
from nanoset_core.mapping.planned import MemberPlan, SplitPlan
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.outputs.places import OutputPlace, place_of
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.location import is_remote
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.regular_files import read_regular
from nanoset_core.storage.remote_folder import Location, RemoteFolder, remote_location
from nanoset_core.storage.working_copies import claimed_room

_THREADS = min(2, os.cpu_count() or 1)


@dataclass(frozen=True, slots=True)
class SplitFiles:
    """The index files of a split."""

    split: SplitName
    """train, valid or test."""
    samples: int
    """Its length."""
    hash: str
    """The trainer's, of its description."""
    folder: Location | None
    """Of the split's own files; None for a blend that the trainer keeps in memory, where it has no cache folder."""
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
        target = remote_location(config.path_to_cache, where="--data-cache-path")
        return _write_to_bucket(plans, config, target, overwrite=overwrite)
    if not overwrite:
        for plan in plans:
            for files, _ in _sets(plan, config):
                _check(files)
    return [_write_split(plan, config) for plan in plans]


def _sets(plan: SplitPlan, config: NanosetConfig) -> Iterator[tuple[FileSet, MemberPlan | None]]:
    """All files of a split: each set, and the dataset that it is of; None for the blend's."""
    for member in plan.members:
        yield member_set(member, config, cache_dir_of(member, config)), member
    if plan.blend is not None and config.path_to_cache is not None:
        yield blend_set(plan, plan.blend, config.path_to_cache), None


def _check_local(plans: Sequence[SplitPlan]) -> None:
    """Refuse to put index files beside a dataset in a bucket: no trainer looks there."""
    remote = next((member.prefix for plan in plans for member in plan.members if is_remote(member.prefix)), None)
    if remote is not None:
        raise ConfigError(
            "the index files need a place of their own, since this dataset lies in a bucket",
            where="--data-cache-path",
            found=f"{remote}, and no folder for index files",
            expected="a folder of this machine, or s3://bucket/path",
            remedy="name one with --data-cache-path",
        )


def _check(files: FileSet) -> None:
    foreign = files.foreign()
    if foreign is not None and _begun(files) != files.made_from:
        raise _others(files.folder, foreign)


def _others(folder: Location, foreign: str) -> ConfigError:
    return ConfigError(
        "other index files are there already",
        where=folder,
        found=foreign,
        expected="none of these names, or those of the same dataset",
        remedy="name another --data-cache-path, or replace them with --overwrite",
    )


def _write_split(plan: SplitPlan, config: NanosetConfig) -> SplitFiles:
    made = [_write(files, member, plan, config) for files, member in _sets(plan, config)]
    if plan.blend is None:
        folder: Path | None = cache_dir_of(plan.members[0], config)
    else:
        folder = None if config.path_to_cache is None else Path(config.path_to_cache)
    return _described(plan, folder, made)


def _described(plan: SplitPlan, folder: Location | None, made: Sequence[bool]) -> SplitFiles:
    own = plan.members[0] if plan.blend is None else plan.blend
    return SplitFiles(plan.split, plan.samples, own.hash, folder, any(made))


def _write_to_bucket(
    plans: Sequence[SplitPlan], config: NanosetConfig, folder: RemoteFolder, *, overwrite: bool
) -> list[SplitFiles]:
    place, found = place_of(folder), []
    with claimed_room("index-files") as room:
        here = replace(config, path_to_cache=str(room))
        if not overwrite:
            for files, _ in (one for plan in plans for one in _sets(plan, here)):
                _check_there(files, place, folder)
        for plan in plans:
            made = [_send(files, member, plan, here, place) for files, member in _sets(plan, here)]
            found.append(_described(plan, folder, made))
    return found


def _check_there(files: FileSet, place: OutputPlace, folder: RemoteFolder) -> None:
    there = next((name for name in files.files.values() if place.has(name)), None)
    foreign = None if there is None else files.foreign_by(there, place.read(files.sidecar))
    if foreign is not None and _parsed(place.read(_mark_name(files))) != files.made_from:
        raise _others(folder, foreign)


def _send(
    files: FileSet, member: MemberPlan | None, plan: SplitPlan, config: NanosetConfig, place: OutputPlace
) -> bool:
    """As `_write`, of a set that goes to a bucket by way of the folder of `files`."""
    noted, mark = files.notes_in(place.read(files.sidecar)), _mark_name(files)
    if noted is not None and all(place.has_size(name, note["bytes"]) for name, note in noted.items()):
        if place.has(mark):  # of a call that was killed just after it had sent all
            place.remove(mark)
        return False
    with place.writing():
        place.write(mark, json.dumps(files.made_from).encode())
        description = files.files.get("description")
        for name in filter(None, [description, files.sidecar]):
            place.remove(name)
        sums = write_blend(plan, config, files.folder) if member is None else write_member(member, config, files.folder)
        arrays = [name for name in sums if name != description]
        for name in [*arrays, files.sidecar, *filter(None, [description])]:
            place.take(files.folder / name, name, sha256=sums.get(name))
        place.remove(mark)
    return True


def _write(files: FileSet, member: MemberPlan | None, plan: SplitPlan, config: NanosetConfig) -> bool:
    """Write a set unless it is there; → whether it was not."""
    mark = _mark(files)
    if files.complete(deep=False) is None:
        with writing_to(files.folder):
            write_atomic(mark, json.dumps(files.made_from).encode())
            if member is None:
                write_blend(plan, config, files.folder)
            else:
                write_member(member, config, files.folder, threads=_THREADS)
            mark.unlink(missing_ok=True)  # the same call elsewhere may have written all as well
        return True
    mark.unlink(missing_ok=True)  # of a call that was killed just after it had written all
    return False


def _mark(files: FileSet) -> Path:
    """Says, while a set is written, what it is made from: a call that was killed may go on."""
    return files.folder / _mark_name(files)


def _mark_name(files: FileSet) -> str:
    sidecar = PurePosixPath(files.sidecar)
    return str(sidecar.with_name(f".{sidecar.name}.begun"))


def _begun(files: FileSet) -> Any:
    try:
        return _parsed(read_regular(_mark(files)))
    except OSError:
        return None


def _parsed(data: bytes | None) -> Any:
    try:
        return json.loads(data or b"")
    except (ValueError, RecursionError):
        return None
