"""Write the trainer's index files into the cache folder of a nanoset.

A trainer such as Megatron-LM looks there for the order in which it reads the samples of a dataset,
and builds the files itself if they are missing. If the output root is in a bucket, the files are
uploaded, and those that it has already are not written again.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.formats.indexed.layout import idx_path
from nanoset_core.outputs.manifest import first_fault
from nanoset_core.sampling.cache import FileSet, blend_set, member_set, open_blend
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.planned import BlendPlan, MemberPlan, SplitPlan
from nanoset_core.storage.access import FileAccess
from nanoset_core.storage.uploads import upload_files

FileNotes = Mapping[str, Mapping[str, Any]]
"""Name of an index file → its `bytes` and `sha256`."""
_ENTRIES_AT_ONCE = 1 << 22
"""Entries of a blend that are counted together, so that memory stays bounded."""


class IndexFileWriter:
    """Writes sets of index files, except those that a bucket already has, and uploads them."""

    def __init__(self, folder: Path, access: FileAccess, *, rebuild: bool) -> None:
        """Prepare to write index files.

        Args:
            folder: Cache folder of the nanoset, in which the trainer looks for them.
            access: How files of the output root are read and stored.
            rebuild: Write every set, even if a bucket has it.
        """
        self._folder = folder
        self._access = access
        # The same, but one listing of the folder answers all questions about files in it.
        self._access_with_listing = access.with_listing(folder)
        self._rebuild = rebuild
        self._sha256_not_uploaded: dict[str, str] = {}
        """Name → sha256 of the index files that are not uploaded yet."""
        self._sidecars_not_uploaded: list[str] = []
        """Names of the notes next to these files, which say what they were made from."""

    def write_member(self, member: MemberPlan, config: NanosetConfig) -> FileNotes:
        """Write the index files of a dataset, by which a trainer reads its samples in order.

        With outputs in a bucket, the files are written to a local folder first, and uploaded later
        by `upload`. If the bucket has them already, nothing is written. The space of the local
        folder may be limited. Then each dataset's files are uploaded before those of the next one
        are written, so that they can be deleted if the space is needed.

        Args:
            member: The plan of the dataset.
            config: The settings of its nanoset, which decide the order of samples.

        Returns:
            Size and sha256 of each file, such as `{"5ce5…-shuffle_index.npy": {"bytes": 800,
            "sha256": "77cd…"}}`.

        Raises:
            StorageError: The files, together with the dataset's .idx, exceed the disk space for
                working copies.
        """
        files = member_set(member, config, self._folder)
        stored_notes = self._stored_notes(files)
        if stored_notes is not None:
            return stored_notes  # a bucket has the files

        # The index files are built from the dataset's .idx, which may have to be downloaded. If the
        # disk space is limited, `_write` calls `make_room` with the size of the index files before
        # it writes them. This deletes other copies, but leaves room for the .idx, too.
        idx = self._access.fetch(idx_path(Path(member.prefix)))
        make_room = partial(self._make_room_keeping, idx)
        notes = self._write(files, make_room)

        # Files that were uploaded may be deleted, too, when the next dataset needs the space.
        if self._access.is_space_limited:
            self.upload()
        return notes

    def write_blend(self, plan: SplitPlan, blend: BlendPlan) -> FileNotes:
        """Write the index of a blend, which says which dataset each sample is from.

        For example, with 0.7 of web and 0.3 of code, the first samples are from web, code, web and
        web.

        Args:
            plan: Plan of the split: its datasets, and how many samples of each.
            blend: Plan of its blend.

        Returns:
            Size and sha256 of each file.

        Raises:
            StorageError: The files exceed the disk space for working copies.
        """
        files = blend_set(plan, blend, self._folder)
        stored = self._stored_notes(files)
        if stored is not None:
            return stored
        return self._write(files, self._access.make_room)

    def upload(self) -> None:
        """Upload the index files that were written since the last upload, if there is a bucket.

        Descriptions go last: a trainer that finds the description of a set takes the set for
        complete.

            first    5ce5…-shuffle_index.npy, 5ce5…-nanoset.json and others
            then     5ce5…-description.txt
        """
        sha256_by_path: dict[Path, str] = {}
        for name, sha256 in self._sha256_not_uploaded.items():
            sha256_by_path[self._folder / name] = sha256
        arrays = [path for path in sha256_by_path if path.suffix == ".npy"]
        descriptions = [path for path in sha256_by_path if path.suffix != ".npy"]
        sidecars = [self._folder / name for name in self._sidecars_not_uploaded]

        upload_files(self._access, [*arrays, *sidecars], sha256_by_path)
        upload_files(self._access, descriptions, sha256_by_path)
        self._sha256_not_uploaded = {}
        self._sidecars_not_uploaded = []

    def _stored_notes(self, files: FileSet) -> FileNotes | None:
        """Return size and sha256 of the index files of a dataset, if a bucket has them.

        Then they need not be written again. Next to the index files is a sidecar, a small file that
        says what they were made from, and the size and sha256 of each. So one request for the
        sidecar, and one for a listing of the folder, are enough to know whether the files are
        right.

            5ce5…-shuffle_index.npy      an index file
            5ce5…-nanoset.json           the sidecar

        Args:
            files: The index files that are planned.

        Returns:
            Such as `{"5ce5…-shuffle_index.npy": {"bytes": 800, "sha256": "77cd…"}}`. None if the
            files have to be written, or if they are on a disk, where `FileSet.write` itself looks
            whether they exist.
        """
        access = self._access_with_listing
        if self._rebuild or not access.takes_requests:
            return None

        # The sidecar is a file next to the others. It says what they were made from, and has the
        # size and sha256 of each of them.
        try:
            sidecar = access.read_current(files.folder / files.sidecar)
        except FileNotFoundError:
            return None
        notes = files.file_notes_in(sidecar)
        if notes is None:  # the files were made from something else than is planned now
            return None

        # All files must exist, with the sizes in the sidecar.
        expected_sizes = {name: note["bytes"] for name, note in notes.items()}
        stored_sizes = access.sizes(files.folder, expected_sizes)
        if first_fault(stored_sizes, expected_sizes) is not None:
            return None
        return notes

    def _write(self, files: FileSet, make_room: Callable[[int, str], object]) -> FileNotes:
        """Write the index files of a dataset to a local folder, and remember to upload them later.

        A trainer needs all files of the set, to read the samples of the dataset in order. Next to
        them, `files.write` writes a sidecar: a small file that says what the set was made from.

            5ce5…-document_index.npy, 5ce5…-shuffle_index.npy and others
            5ce5…-nanoset.json      the sidecar

        If the outputs are in a bucket, the method `upload` copies to it what is noted here: the
        names of the files, each with its sha256, and the names of the sidecars.

        Args:
            files: The set: which files, and how they are computed.
            make_room: Called before anything is written, with the bytes that are needed and the
                name of the folder. It deletes older local copies of files if the disk space for
                them is limited.

        Returns:
            Size and sha256 of each file, such as `{"5ce5…-shuffle_index.npy": {"bytes": 800,
            "sha256": "77cd…"}}`.
        """
        sha256_by_name = files.write(make_room)  # {"5ce5…-shuffle_index.npy": "77cd…", …}

        # Note for `upload` what it has to upload.
        self._sha256_not_uploaded |= sha256_by_name
        self._sidecars_not_uploaded.append(files.sidecar)

        # The caller also wants to know the sizes.
        notes: dict[str, dict[str, Any]] = {}
        for name, sha256 in sha256_by_name.items():
            size = (self._folder / name).stat().st_size
            notes[name] = {"bytes": size, "sha256": sha256}
        return notes

    def _make_room_keeping(self, idx: Path, size: int, folder: str) -> None:
        """Make room on the disk for index files and for the .idx that they are built from.

        The disk space for copies of files in a bucket may be limited. Then copies are deleted for
        new files, first those that were not used for longest. The .idx is such a copy, too. It was
        used just now, so it would be the last one.

            the index files                 600 MB
            the .idx                        100 MB
            room that must be available     700 MB, or there is an error

        Args:
            idx: The local copy of the dataset's .idx.
            size: Bytes of the index files.
            folder: Their folder, for errors.
        """
        total = size + idx.stat().st_size
        self._access.make_room(total, f"{folder}: the index files of a dataset, with its .idx")


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
