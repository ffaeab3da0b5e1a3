"""Build the splits of a nanoset, or open those that were built before.

train, valid, test = NanosetBuilder(config).build()
train[0]["tokens"]
"""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path

from nanoset_core.errors import ConfigError, MissingError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.loading.blended_nanoset import BlendedNanoset, open_split
from nanoset_core.loading.nanoset import Nanoset, open_nanoset
from nanoset_core.outputs.recorded_tokenization import check_same_tokenizer
from nanoset_core.sampling.cache import (
    FileSet,
    blend_set,
    cache_dir_of,
    index_sets,
    member_set,
    open_blend,
)
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.indices import build_blend_indices, build_member_indices
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.planned import MemberPlan, SplitPlan
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.storage.location import Location, is_remote, location, path_on_this_machine
from nanoset_core.storage.paths import nearest_existing

Split = Nanoset | BlendedNanoset
Splits = tuple[Split | None, Split | None, Split | None]
"""train, valid and test, each None without a share of the data."""


class NanosetBuilder:
    """Builds the splits train, valid and test of a configuration.

    Index files are read from `path_to_cache`, or from the trainer's own folder next to the data.
    Those that are missing, or were made from other data or settings, are built and written there.
    If the folder does not allow this, because of its permissions or since it is mounted read-only,
    indices are only kept in memory. The same applies to data in a bucket without a `path_to_cache`.
    Other failures, such as a full disk, are errors. Processes that build at the same time write the
    same bytes, and each file appears complete.

    Pickles of the splits contain paths as they were given. If these are relative, unpickle in the
    same working directory.
    """

    def __init__(self, config: NanosetConfig) -> None:
        """Create a builder of the splits that a configuration describes.

        Args:
            config: Datasets, sizes of the splits, and all other settings.

        Raises:
            ConfigError: It is something else, such as a dictionary of settings, or its
                `path_to_cache` cannot be a folder on this machine.
        """
        if not isinstance(config, NanosetConfig):
            raise ConfigError(
                "the settings are not a NanosetConfig",
                where="config",
                found=f"an object of type {type(config).__name__}",
                remedy="pass NanosetConfig(…), or NanosetConfig.from_json(…) for a dictionary",
            )
        if config.path_to_cache is not None:
            _check_can_be_folder(config.path_to_cache)
        self.config = config

    def build(self) -> Splits:
        """Build the splits, or open those that exist.

        Returns:
            (train, valid, test), each None for a split without a share of the data.

        Raises:
            ConfigError: The splits cannot be filled as the settings request.
            MissingError: A dataset does not exist.
            FormatError: A dataset is damaged, or two have different tokenizers, as the receipts of
                `nanoset tokenize` next to them say.
            StorageError: An index file cannot be written although its folder allows it, for
                example because the disk is full.
        """
        check_same_tokenizer(self._dataset_locations())
        # Plan every split before anything is built, so that an error leaves no files behind.
        plans = self._plan()
        train, valid, test = [None if plan is None else self._build(plan) for plan in plans]
        return train, valid, test

    def wait(self, timeout_seconds: float = 3600.0, poll_seconds: float = 0.5) -> Splits:
        """Wait until another process has built the index files of the splits, and open them.

        This is for training on many machines that share a folder: one process builds, and the
        others wait. Without an index file for `timeout_seconds`, an error says which one is
        missing.

        Args:
            timeout_seconds: How long to wait.
            poll_seconds: Time between two checks.

        Returns:
            (train, valid, test), each None for a split without a share of the data.

        Raises:
            ConfigError: The configuration has no `path_to_cache`, the shared folder.
            MissingError: The wait timed out.
        """
        folder = self.config.path_to_cache
        if folder is None:
            raise ConfigError(
                "waiting needs a shared cache folder",
                where="path_to_cache",
                remedy="set path_to_cache",
            )
        plans = self._plan()
        self._wait_for_files(plans, folder, timeout_seconds, poll_seconds)

        splits = [None if plan is None else open_split(plan, self.config, folder) for plan in plans]
        train, valid, test = splits
        return train, valid, test

    def _wait_for_files(
        self,
        plans: Sequence[SplitPlan | None],
        folder: str,
        timeout_seconds: float,
        poll_seconds: float,
    ) -> None:
        """Wait until all index files of some splits exist, which another process is building.

        Args:
            plans: The plan of each split (train, valid and test), which names its files.
            folder: The folder of the files, for the error.
            timeout_seconds: How long to wait, such as 3600.
            poll_seconds: Time between two checks, such as 0.5.

        Raises:
            MissingError: The wait timed out.
        """
        deadline = time.monotonic() + timeout_seconds
        missing_file = self._missing_file(plans)
        while missing_file is not None:
            if time.monotonic() > deadline:
                raise MissingError(
                    f"index files did not appear within {timeout_seconds:g} s",
                    where=folder,
                    expected=missing_file,
                    remedy="see why its builder stopped",
                )
            time.sleep(poll_seconds)
            missing_file = self._missing_file(plans)

    def _dataset_locations(self) -> list[Location]:
        """Return the prefixes of the datasets of all splits, each once."""
        prefixes: dict[str, None] = {}
        for split in SPLITS:
            blend = self.config.blend(split)
            if blend is not None:
                prefixes.update(dict.fromkeys(blend[0]))
        locations: list[Location] = []
        for prefix in prefixes:
            if is_remote(prefix):
                locations.append(location(prefix))
            else:
                locations.append(path_on_this_machine(prefix))
        return locations

    def _plan(self) -> list[SplitPlan | None]:
        """Return the plan of each split, None for one without a share of the data."""
        reader = LengthReader()
        return [plan_split(self.config, split, reader) for split in SPLITS]

    def _missing_file(self, plans: Sequence[SplitPlan | None]) -> str | None:
        """Return the name of an index file that does not exist yet, or None if all exist.

        Another process writes the files, and the caller waits for it.

        Args:
            plans: The plan of each split (train, valid and test), None for one without a share of
                the data.
        """
        for plan in plans:
            if plan is None:
                continue
            # Each dataset has a set of files, and so has the mixture of several datasets.
            for file_set in index_sets(plan, self.config):
                if not file_set.is_complete():
                    # The files of a set are written in order, so at least the last one is missing.
                    file_names = list(file_set.files.values())
                    return file_names[-1]
        return None

    def _build(self, plan: SplitPlan) -> Split:
        """Build the index files of a split, or open those that exist.

        A split, such as train, may mix several datasets. Then each dataset has index files, and so
        has the mixture (the blend).

        Args:
            plan: What the split consists of.
        """
        datasets = [self._build_member(member) for member in plan.members]
        if plan.blend is None:
            return datasets[0]

        folder = self.config.path_to_cache
        if folder is None or not _write_if_possible(blend_set(plan, plan.blend, folder)):
            # There is no folder that can be written to: keep the arrays of the blend in memory.
            return BlendedNanoset(datasets, plan, self.config, build_blend_indices(plan))
        return BlendedNanoset(datasets, plan, self.config, open_blend(plan, folder), folder)

    def _build_member(self, member: MemberPlan) -> Nanoset:
        """Build the samples of one dataset, or open them if they exist."""
        is_next_to_data = self.config.path_to_cache is None
        has_folder = not (is_next_to_data and is_remote(member.prefix))
        if has_folder:
            folder = cache_dir_of(member, self.config)
            if _write_if_possible(member_set(member, self.config, folder)):
                return open_nanoset(member, self.config, folder)
        # There is no folder that can be written to: keep the index arrays in memory.
        dataset = MMapIndexedDataset(member.prefix)
        indices = build_member_indices(member, self.config, dataset.sequence_lengths)
        return Nanoset(dataset, member, self.config, indices)


def _check_can_be_folder(path: str) -> None:
    """Check that the folder of index files exists, or can be created.

    If this user only lacks the right to create it, this is no error.

    Args:
        path: The setting `path_to_cache`.

    Raises:
        ConfigError: It is empty, the address of a bucket, a file, or below a file.
    """
    if is_remote(path):
        raise ConfigError(
            "index files are not written to a bucket",
            where="path_to_cache",
            found=path,
            expected="a folder on a local or mounted file system",
        )
    if not path:
        raise ConfigError(
            "the folder of the index files has no name",
            where="path_to_cache",
            found="''",
            expected="a folder, or None for the trainer's default",
            remedy="write '.' for the working directory",
        )
    existing_path = nearest_existing(Path(path))
    if not existing_path.is_dir():
        raise ConfigError(
            "a file is in the way of the folder of the index files",
            where="path_to_cache",
            found=f"{path}: {existing_path} is a file",
            expected="a folder, which need not exist yet",
        )


def _write_if_possible(files: FileSet) -> bool:
    """Write index files unless they exist; return False if their folder cannot be written to.

    The trainer's cache may be a folder that only its owner may change. Then the caller keeps the
    indexes in memory. If the folder does not exist, it is created in the nearest folder above it
    that exists: for /data/cache/web, that may be /data.

    Args:
        files: The index files of one dataset, or of a mixture of several.

    Returns:
        Whether the files exist now.
    """
    if files.is_complete():
        return True

    # If the folder does not exist, it will be created in the nearest folder above it that exists:
    # this one must be writable.
    folder = nearest_existing(files.folder)
    is_writable = folder.is_dir() and os.access(folder, os.W_OK | os.X_OK)
    if is_writable:
        files.write()
    return is_writable
