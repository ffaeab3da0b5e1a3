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
    """Write the index files of train, valid and test, so that a trainer need not compute them.

    An index file has the order in which a trainer reads the samples of a dataset, such as
    5ce5…-GPTDataset-train-shuffle_index.npy. Files that exist already are kept.

    Args:
        config: Names the data, and the folder of the index files.
        overwrite: If there are files of these names that were made from another dataset, replace
            them.

    Returns:
        What was written for train, valid and test, without those that have no data.

    Raises:
        ConfigError: There are such files, and they may not be replaced; or the settings contradict
            each other.
    """
    plan_by_split = plan_splits(config, SPLITS, LengthReader())
    plans = [plan for plan in plan_by_split.values() if plan is not None]
    _check_cache_folder(config, plans)

    sets_of_plans = [_placed_sets(plan, config) for plan in plans]
    if not overwrite:
        # All files are checked before the first one is written: an error leaves nothing behind.
        for placed_set in chain.from_iterable(sets_of_plans):
            _check_replaceable(placed_set)

    written: list[SplitFiles] = []
    for plan, placed_sets in zip(plans, sets_of_plans, strict=True):
        written.append(_write_split(plan, config, placed_sets))
    return written


def _placed_sets(plan: SplitPlan, config: NanosetConfig) -> list[PlacedSet]:
    """Return which index files a trainer needs for its samples, and in which folder it looks.

        --data-cache-path s3://bucket/cache     all of them in the bucket
        --data-cache-path /cache                all of them in this folder
        without this option                     next to the .bin and .idx of each dataset

    Args:
        plan: Which samples of which datasets are read.
        config: The settings. Its `path_to_cache` is the option.

    Returns:
        A set of files for each dataset; and one that says how datasets are mixed, if there are
        several.
    """
    file_sets = index_sets(plan, config)
    if config.path_to_cache is not None and is_remote(config.path_to_cache):
        bucket = remote_location(config.path_to_cache, where="--data-cache-path")
        return [PlacedSet(files, bucket) for files in file_sets]
    return [PlacedSet(files, files.folder) for files in file_sets]


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
    """Check that writing index files does not replace files that were made from other data.

        files of these names                result
        none                                fine
        made from the same dataset          fine
        made from another, or unknown       an error

    Args:
        placed: The index files of a dataset, and the folder into which they will be written.

    Raises:
        ConfigError: There are such files.
    """
    store = store_of(placed.folder)
    existing_name = _first_existing(placed.files.files.values(), store)
    if existing_name is None:
        return

    # A receipt next to the files says what they were made from. `difference` says in words how that
    # differs from the present dataset; None if it does not.
    receipt = store.read(placed.files.receipt_name)
    difference = placed.files.describe_mismatch(existing_name, receipt)
    if difference is None or _has_old_mark(placed):
        return
    raise ConfigError(
        "other index files are there already",
        where=placed.folder,
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
    """Write the index files of train, valid or test, and return where a trainer finds them.

        the split reads web             the files of web
        the split reads web and code    the files of web and those of code; and those of the blend,
                                        which say which of the two each sample is from

    Args:
        plan: Which samples of which datasets are read.
        config: The settings of the training data.
        placed_sets: The files of each dataset, and those of the blend if it has files; each with
            its folder.

    Returns:
        Hash and folder of the files that the trainer opens first: those of the blend, or else those
        of the only dataset.
    """
    are_new = [_write_set(placed) for placed in placed_sets]
    folder: Location | None = placed_sets[0].folder
    if plan.blend is None:
        first_hash = plan.members[0].hash
    else:
        first_hash = plan.blend.hash
        if config.path_to_cache is None:
            folder = None  # without a cache folder, the trainer computes the blend when it starts
    return SplitFiles(plan.split, plan.samples, first_hash, folder, made=any(are_new))


def _write_set(placed: PlacedSet) -> bool:
    """Write the index files of a dataset, unless all of them exist already.

        5ce5…-document_index.npy, 5ce5…-sample_index.npy, 5ce5…-shuffle_index.npy,
        5ce5…-description.txt

    Files of these names that were made from another dataset are replaced. The caller has checked
    that this is allowed; see `_check_replaceable`.

    Args:
        placed: The files, and their folder, which may be in a bucket.

    Returns:
        Whether they were written.
    """
    are_complete = _are_complete(placed)
    if not are_complete:
        placed.files.write(folder=placed.folder)
    _delete_old_mark(placed)
    return not are_complete


def _are_complete(placed: PlacedSet) -> bool:
    """Return whether all index files of a dataset exist, and were made from this dataset.

    A receipt next to the files says what they were made from, and their sizes.

    Args:
        placed: The files, and the folder in which they would be.
    """
    delivery = placed.files.delivery(placed.folder, compares_sizes=True)
    # With `overwrite`, files of another dataset count as missing. Without it, they are an error.
    receipt = delivery.find(overwrite=True)
    return receipt is not None


def _has_old_mark(placed: PlacedSet) -> bool:
    """Return whether index files were begun by an old version of this program for the same dataset.

    Old versions wrote a hidden file first, the mark, which says what the index files are made from.
    If they were interrupted, there are index files and the mark, but no receipt.

    Args:
        placed: The index files, and their folder.
    """
    store = store_of(placed.folder)
    mark = parse_receipt(store.read(_mark_name(placed.files)))
    return mark is not None and mark.content == placed.files.made_from


def _delete_old_mark(placed: PlacedSet) -> None:
    """Delete the hidden file by which old versions of this program marked incomplete index files.

    Args:
        placed: The index files, which are complete now, and their folder.
    """
    store = store_of(placed.folder)
    mark_name = _mark_name(placed.files)
    if store.stat(mark_name) is not None:
        store.delete(mark_name)


def _mark_name(files: FileSet) -> str:
    """Return the name of the mark that older versions wrote next to an incomplete set.

    It contained what the set is made from. The receipt says that by now; see
    `nanoset_core/outputs/receipts.py`.
    """
    receipt_path = PurePosixPath(files.receipt_name)
    return str(receipt_path.with_name(f".{receipt_path.name}.begun"))
