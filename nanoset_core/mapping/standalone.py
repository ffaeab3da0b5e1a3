"""Index files without a project: written where a trainer looks for them, and nothing else replaced."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError
from nanoset_core.mapping.cache import FileSet, blend_set, cache_dir_of, member_set, write_blend, write_member
from nanoset_core.mapping.config import NanosetConfig
from nanoset_core.mapping.plan import LengthReader, plan_split
from nanoset_core.mapping.planned import MemberPlan, SplitPlan
from nanoset_core.mapping.splits import SPLITS, SplitName
from nanoset_core.storage.atomic import write_atomic
from nanoset_core.storage.os_errors import writing_to
from nanoset_core.storage.regular_files import read_regular

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
    folder: Path | None
    """Of the split's own files; None for a blend that the trainer keeps in memory, where it has no cache folder."""
    made: bool
    """False where all files were there already."""


def write_index_files(config: NanosetConfig, *, overwrite: bool = False) -> list[SplitFiles]:
    """Write the index files of all splits that have a share, unless they are there.

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


def _check(files: FileSet) -> None:
    foreign = files.foreign()
    if foreign is None or _begun(files) == files.made_from:
        return
    raise ConfigError(
        "other index files are there already",
        where=files.folder,
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
    own = plan.members[0] if plan.blend is None else plan.blend
    return SplitFiles(plan.split, plan.samples, own.hash, folder, any(made))


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
    sidecar = files.folder / files.sidecar
    return sidecar.with_name(f".{sidecar.name}.begun")


def _begun(files: FileSet) -> Any:
    try:
        return json.loads(read_regular(_mark(files)))
    except (OSError, ValueError, RecursionError):
        return None
