"""Write index files without a project, for `nanoset map`, to where a trainer looks for them.

A trainer finds index files by their names, which contain a hash of its settings. Existing files
with these names may be of another dataset or of unknown origin. They are never replaced, unless
that is requested.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import PurePosixPath
from typing import NamedTuple

from nanoset_core.errors import ConfigError
from nanoset_core.outputs.receipts import parse_receipt
from nanoset_core.sampling.cache import FileSet, index_sets
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.plan import plan_splits
from nanoset_core.sampling.planned import SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS, SplitName
from nanoset_core.storage.location import Location, is_remote, remote_location, store_of
from nanoset_core.storage.store import Store


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
    """The index files of one dataset or of a blend, and where they are stored."""

    files: FileSet
    folder: Location
    """The folder where the trainer looks for them, or a folder in a bucket."""


def write_index_files(config: NanosetConfig, *, overwrite: bool = False) -> list[SplitFiles]:
    """Write the index files of all splits that have a share of the data, except those that exist.

    An index file has the order in which a trainer reads the samples of a dataset. If it exists, the
    trainer does not build it itself. With the shares 98, 2 and 0:

        train    5ce5…-GPTDataset-train-shuffle_index.npy and others
        valid    a07e…-GPTDataset-valid-shuffle_index.npy and others
        test     none

    Args:
        config: Names the data, and the folder of the index files.
        overwrite: Replace files of another dataset or of unknown origin.

    Returns:
        What was written for each split that has a share of the data.

    Raises:
        ConfigError: Such files may not be replaced, or the settings contradict each other.
    """
    planned = plan_splits(config, SPLITS, LengthReader())
    plans = [plan for plan in planned.values() if plan is not None]
    _check_cache_folder(config, plans)
    sets_of_plans = [_placed_sets(plan, config) for plan in plans]

    # Check all files before the first is written, so that an error leaves nothing behind.
    if not overwrite:
        for placed in chain.from_iterable(sets_of_plans):
            _check_replaceable(placed)
    return [
        _write_split(plan, config, placed_sets)
        for plan, placed_sets in zip(plans, sets_of_plans, strict=True)
    ]


def _placed_sets(plan: SplitPlan, config: NanosetConfig) -> list[PlacedSet]:
    """Return which index files a split of the training data needs, and where they go.

    Index files have the order in which a trainer reads samples. The option `--data-cache-path` says
    where it looks for them:

        --data-cache-path s3://bucket/cache     all files go to the bucket
        --data-cache-path /cache                all files go to this folder
        (no such option)                        a folder next to the .bin and .idx of each dataset

    Args:
        plan: The plan of the split: its datasets, and how many samples of each.
        config: The settings, with this path.

    Returns:
        The files of each dataset, and those of the blend if there is one.
    """
    bucket: Location | None = None
    if config.path_to_cache is not None and is_remote(config.path_to_cache):
        bucket = remote_location(config.path_to_cache, where="--data-cache-path")
    return [PlacedSet(files, bucket or files.folder) for files in index_sets(plan, config)]


def _check_cache_folder(config: NanosetConfig, plans: Sequence[SplitPlan]) -> None:
    """Check that the settings name a folder for index files if a dataset is in a bucket.

    Without such a folder, trainers look for index files next to the dataset. For /data/web.bin,
    that is /data; next to s3://bucket/web.bin, they could not look.

    Args:
        config: The settings.
        plans: The plan of each split, with the datasets that it reads.

    Raises:
        ConfigError: A dataset is in a bucket, and no folder is named.
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
                    expected="a folder of this machine, or an address such as s3://bucket/path",
                    remedy="name one with --data-cache-path",
                )


def _check_replaceable(placed: PlacedSet) -> None:
    """Check that writing the index files of a dataset replaces no files of another origin.

        files of these names           result
        none                           fine
        made from the same dataset     fine: they are written again
        made from another dataset      an error
        of unknown origin              an error

    Args:
        placed: The index files of a dataset or a blend, and where they will be written.

    Raises:
        ConfigError: Files of another dataset, or of unknown origin, have the same names.
    """
    file_set, folder = placed
    store = store_of(folder)
    names = file_set.files.values()
    existing_name = _first_existing(names, store)
    if existing_name is None:
        return

    # Files of the same dataset may be replaced. The sidecar, a file next to them, names it.
    difference = file_set.describe_mismatch(existing_name, store.read(file_set.sidecar))
    if difference is None:
        return

    # Old versions of this program had another file that names the dataset of an incomplete set.
    mark = parse_receipt(store.read(_mark_name(file_set)))
    if mark is not None and mark.content == file_set.made_from:
        return
    raise ConfigError(
        "other index files are there already",
        where=folder,
        found=difference,
        expected="none of these names, or those of the same dataset",
        remedy="name another --data-cache-path, or replace them with --overwrite",
    )


def _first_existing(names: Iterable[str], store: Store) -> str | None:
    """Return the first of some names that a store has, or None."""
    for name in names:
        if store.stat(name) is not None:
            return name
    return None


def _write_split(
    plan: SplitPlan, config: NanosetConfig, placed_sets: Sequence[PlacedSet]
) -> SplitFiles:
    """Write the index files of one split (train, valid or test), and say how a trainer finds them.

        data of the split     files that are written
        web alone             its files
        web and code          files of web, files of code, and those of the blend, which say which
                              dataset each sample is from

    Trainers find the files of a split by the hash in their names: of web in the first case, and of
    the blend in the second.

    Args:
        plan: The plan of the split: its datasets, and how many samples of each.
        config: The settings of the training data.
        placed_sets: A set of files for each dataset, and one for the blend if there is one; each
            with the folder that it goes to.
    """
    are_new = [_write_set(placed) for placed in placed_sets]

    # The files that belong to the split itself are those of its blend, or else those of its only
    # dataset.
    if plan.blend is None:
        description_hash = plan.members[0].hash
    else:
        description_hash = plan.blend.hash
    # All sets are in the cache folder. If the settings have none, trainers make the index of a
    # blend in memory, so there is no folder in which it would be found.
    is_in_memory = plan.blend is not None and config.path_to_cache is None
    folder = None if is_in_memory else placed_sets[0].folder
    return SplitFiles(plan.split, plan.samples, description_hash, folder, made=any(are_new))


def _write_set(placed: PlacedSet) -> bool:
    """Write the index files of a dataset, unless they exist already.

    A trainer needs all files of the set, so they are written together:

        5ce5…-document_index.npy, 5ce5…-sample_index.npy, 5ce5…-shuffle_index.npy,
        5ce5…-description.txt

    Args:
        placed: The set, and the folder that it goes to, which may be in a bucket.

    Returns:
        Whether the set was written; False if it existed.
    """
    file_set, folder = placed
    # `find` returns None if the set is missing or incomplete, or is of other data. In the last case
    # it would raise an error without `overwrite`. But the caller has checked already that such a
    # set may be replaced.
    delivery = file_set.delivery(folder, compares_sizes=True)
    is_stored = delivery.find(overwrite=True) is not None
    if not is_stored:
        file_set.write(folder=folder)

    # While old versions of this program wrote a set, a hidden file marked it as incomplete. If one
    # is left, delete it, since the set is complete now.
    store = store_of(folder)
    mark_name = _mark_name(file_set)
    if store.stat(mark_name) is not None:
        store.delete(mark_name)
    return not is_stored


def _mark_name(files: FileSet) -> str:
    """Return the name of the mark that older versions wrote next to an incomplete set.

    It contained what the set is made from. The sidecar says that by now; see
    `nanoset_core/outputs/receipts.py`.
    """
    sidecar = PurePosixPath(files.sidecar)
    return str(sidecar.with_name(f".{sidecar.name}.begun"))
