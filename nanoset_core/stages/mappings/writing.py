"""Write the trainer's index files into the cache folder of a nanoset.

A trainer such as Megatron-LM looks there for the order in which it reads the samples of a dataset,
and builds the files itself if they are missing. If the output root is in a bucket, the files are
uploaded, and those that it has already are not written again.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.outputs.manifest import first_fault
from nanoset_core.sampling.cache import FileSet, blend_set, member_set, open_blend
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.descriptions import is_description
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.writing.uploads import upload_files

FileEntries = Mapping[str, Mapping[str, Any]]
"""Name of an index file → its `bytes` and `sha256`."""
_ENTRIES_AT_ONCE = 1 << 22
"""Entries of a blend that are counted together, so that memory stays bounded."""


class IndexFileWriter:
    """Writes sets of index files, except those that a bucket already has, and uploads them."""

    def __init__(self, folder: Path, access: FileAccess, *, rebuild: bool) -> None:
        """Prepare to write index files.

        Args:
            folder: Cache folder of the nanoset, in which the trainer looks for them.
            access: How files of the output root are read and stored. For a bucket, it should have a
                listing with the folder, which answers all questions about files in it.
            rebuild: Write every set, even if a bucket has it.
        """
        self._folder = folder
        self._access = access
        self._rebuild = rebuild
        self._sha256_not_uploaded: dict[Path, str] = {}
        """Path → sha256 of the index files that are not uploaded yet."""
        self._receipts_not_uploaded: list[Path] = []
        """Receipts of these files: small files that say what they were made from."""

    def write_member(self, member: MemberPlan, config: NanosetConfig) -> FileEntries:
        """Write the index files of a dataset, by which a trainer reads its samples in order.

        If they belong into a bucket, they are written to a local folder, and uploaded later by
        `upload`. If the bucket has them already, nothing is written.

        Args:
            member: The plan of the dataset: which of its samples are read.
            config: The settings that decide the order of samples.

        Returns:
            Size and sha256 of each file, such as `{"5ce5…-shuffle_index.npy": {"bytes": 800,
            "sha256": "77cd…"}}`.

        Raises:
            StorageError: The disk space for local copies is limited, and too small for the files.
        """
        files = member_set(member, config, self._folder)
        stored_entries = self._stored_entries(files)
        if stored_entries is not None:
            return stored_entries

        # The files are made from the dataset's .idx, which is downloaded if it is in a bucket.
        idx = self._access.fetch(idx_path(Path(member.prefix)))
        entries = self._write(files, idx)
        if self._access.is_space_limited:
            self.upload()  # now, so that these files can be deleted if the next ones need the space
        return entries

    def write_blend(self, plan: SplitPlan, blend: BlendPlan) -> FileEntries:
        """Write index files that say which dataset each sample is from.

        For example, with 0.7 of web and 0.3 of code, the first samples are from web, code, web and
        web. If a bucket has the files already, nothing is written.

        Args:
            plan: The plan of the split: its datasets, and how many samples of each.
            blend: The part of the plan that names the files.

        Returns:
            Size and sha256 of each file.

        Raises:
            StorageError: The disk space for local copies is limited, and too small for the files.
        """
        files = blend_set(plan, blend, self._folder)
        stored_entries = self._stored_entries(files)
        if stored_entries is not None:
            return stored_entries
        return self._write(files, idx=None)

    def upload(self) -> None:
        """Upload the index files that were written since the last upload, if there is a bucket.

        A trainer takes the files of a dataset for complete if it finds their description. So the
        descriptions are uploaded last:

            first    5ce5…-shuffle_index.npy, other arrays, and 5ce5…-nanoset.json
            then     5ce5…-description.txt
        """
        sha256_by_path = self._sha256_not_uploaded
        descriptions = [path for path in sha256_by_path if is_description(path.name)]
        arrays = [path for path in sha256_by_path if not is_description(path.name)]
        arrays_and_receipts = [*arrays, *self._receipts_not_uploaded]
        upload_files(self._access, arrays_and_receipts, sha256_by_path)
        upload_files(self._access, descriptions, sha256_by_path)
        self._sha256_not_uploaded = {}
        self._receipts_not_uploaded = []

    def _stored_entries(self, files: FileSet) -> FileEntries | None:
        """Return size and sha256 of the index files of a dataset if a bucket has them, or None.

        A small file next to them, the receipt, says what they were made from and how large they
        are. So this takes two requests: one for the receipt, and one for a listing of the folder.

        Args:
            files: The index files that are planned.

        Returns:
            Such as `{"5ce5…-shuffle_index.npy": {"bytes": 800, "sha256": "77cd…"}}`.
        """
        is_in_bucket = self._access.takes_requests
        if self._rebuild or not is_in_bucket:
            return None  # on a disk, `FileSet.write` itself looks for existing files
        try:
            receipt = self._access.read_current(files.folder / files.receipt_name)
        except FileNotFoundError:
            return None
        entries = files.file_entries_in(receipt)
        if entries is None:
            return None  # the files were made from something else than is planned

        expected_sizes = {name: entry["bytes"] for name, entry in entries.items()}
        stored_sizes = self._access.sizes(files.folder, expected_sizes)
        has_all_files = first_fault(stored_sizes, expected_sizes) is None
        return entries if has_all_files else None

    def _write(self, files: FileSet, idx: Path | None) -> FileEntries:
        """Write index files to the local folder, unless they exist. Note them for `upload`.

        Args:
            files: Which files, and how they are computed.
            idx: The file that they are made from: the .idx of a dataset. None if they are made from
                other index files.

        Returns:
            Size and sha256 of each file, such as `{"5ce5…-shuffle_index.npy": {"bytes": 800,
            "sha256": "77cd…"}}`.
        """
        # `write` calls `make_room` as soon as it knows the size of the files.
        make_room = partial(self._make_room, idx)
        sha256_by_name = files.write(make_room)  # {"5ce5…-shuffle_index.npy": "77cd…", …}
        self._receipts_not_uploaded.append(self._folder / files.receipt_name)

        entries: dict[str, dict[str, Any]] = {}
        for name, sha256 in sha256_by_name.items():
            path = self._folder / name
            entries[name] = {"bytes": path.stat().st_size, "sha256": sha256}
            self._sha256_not_uploaded[path] = sha256
        return entries

    def _make_room(self, idx: Path | None, size: int, folder: str) -> None:
        """Make room for index files on the disk, by deleting copies of other files in a bucket.

        It only does so if the user limits the disk space for copies. For index files of 3 GB, which
        are made from an .idx of 2 GB, there must be room for 5 GB: the .idx is still needed.

        Args:
            idx: The .idx of the dataset, which is a copy, too; or None.
            size: Bytes of the index files, which will be written next.
            folder: Their folder, for the error if they do not fit.

        Raises:
            StorageError: They do not fit.
        """
        if idx is None:
            self._access.make_room(size, folder)
        else:
            what = f"{folder}: the index files of a dataset, with its .idx"
            self._access.make_room(size + idx.stat().st_size, what)


def count_samples_given(plan: SplitPlan, folder: Path, access: FileAccess) -> list[int]:
    """Count how many samples the built blend of a split takes of each dataset.

    A blend says for each sample which dataset it is from. If it has the numbers 0 1 0 0 1 0, it
    takes 4 samples of dataset 0, and 2 of dataset 1.

    Args:
        plan: Plan of the split (train, valid or test), which reads several datasets.
        folder: Cache folder with the index files of the blend.
        access: How they are read.

    Returns:
        A count for each dataset, in the order of the plan: [4, 2].
    """
    dataset_index = open_blend(plan, folder, access).dataset_index  # (n_samples,) number of dataset
    counts = np.zeros(len(plan.members), np.int64)  # (n_datasets,)
    # In chunks, since a blend may have more samples than memory holds.
    for start in range(0, len(dataset_index), _ENTRIES_AT_ONCE):
        dataset_numbers = dataset_index[start : start + _ENTRIES_AT_ONCE].astype(np.int64)
        counts += np.bincount(dataset_numbers, minlength=len(counts))
    return counts.tolist()
