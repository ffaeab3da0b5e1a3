"""Drafts: where the files of an output are written before they are put in their places.

A draft is a local folder. If the output will be on this machine, the draft is next to it, so that
finished files need only be renamed. Otherwise it is below TMPDIR, and its files are uploaded.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Any

from nanoset_core.storage.atomic import (
    claim_scratch,
    fsync_folder,
    move_into_place,
    sha256_file,
    sweep_abandoned,
)
from nanoset_core.storage.location import Location
from nanoset_core.storage.os_errors import explained, writing_to
from nanoset_core.storage.working_copies import scratch_root, temporary_folder


@dataclass(slots=True)
class Draft:
    """The finished files of an output, before they are delivered."""

    folder: Path
    """Where the files are, under their final names."""
    facts: Mapping[str, Any] | None = None
    """Counts and other findings for the receipt."""
    more: dict[str, Any] = field(default_factory=dict)
    """Further keys and values of the receipt."""
    sha256_by_name: dict[str, str] = field(default_factory=dict)
    """Checksums of files that were computed while the files were written."""
    writers: dict[str, Callable[[], object]] = field(default_factory=dict)
    """Functions that write a file directly to its final place, by the file's name.

    A bucket can join a large object from others, for example, so that it is not in the draft.
    """

    def hash_files(self, names: Iterable[str]) -> None:
        """Compute the checksums of files, except those that are known or not in the draft.

        Args:
            names: Names of the files.
        """
        for name in names:
            path = self.folder / name
            if name not in self.sha256_by_name and path.exists():
                self.sha256_by_name[name] = sha256_file(path)


@contextmanager
def writing_into(folder: Location, *, expected: str | None = None) -> Iterator[None]:
    """Check that a folder can be written to, and explain errors of the system in the block.

    Args:
        folder: The folder, which is created if it does not exist.
        expected: What the errors say was expected.

    Raises:
        StorageError: It cannot be written to, or is full.
    """
    if isinstance(folder, Path):
        with writing_to(folder, expected=expected):
            yield
        return

    # Begin an upload to the bucket, and abort it: this fails now rather than after the work.
    folder.place.check_writable(".probe")
    # The block writes its files to a local temporary folder first, so errors of the system are
    # about that folder.
    with explained(scratch_root(), expected=expected):
        yield


@contextmanager
def draft_folder(folder: Location, name: str, swept_names: Iterable[str] = ()) -> Iterator[Path]:
    """Yield a local folder for unfinished files, which is removed when the block ends.

    Args:
        folder: Where the files will go.
        name: Name of one of the files, after which the temporary folder is named.
        swept_names: Names of files. What killed processes left of them is removed first.
    """
    # The file may be in a subfolder, which need not exist yet.
    base_name = PurePosixPath(name).name
    if isinstance(folder, Path):
        for swept_name in swept_names:
            sweep_abandoned(folder, swept_name)
        # On the same file system as the output, so that finished files can be renamed.
        context = claim_scratch(folder / base_name)
    else:
        context = temporary_folder(base_name)
    with context as scratch:
        yield scratch


def put_in_folder(
    path: Path, folder: Location, name: str, sha256: str | None = None, *, is_new: bool = False
) -> None:
    """Move a finished file to a local folder, or upload it to a folder in a bucket.

    Args:
        path: The file.
        folder: The folder.
        name: Name of the file in the folder.
        sha256: Checksum with which an upload is compared, if known.
        is_new: Whether the folder is known to have no file of this name.
    """
    if isinstance(folder, Path):
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(path, target)
    else:
        # The file stays in the draft, so that a call that is killed can upload it again.
        folder.place.put_file(name, path, sha256=sha256, is_new=is_new)


def deliver_folder(draft: Path, target: Path) -> None:
    """Rename a folder that is finished, and contains its receipt, in place of an earlier one.

    Args:
        draft: The folder, on the file system of `target`.
        target: Its new path.
    """
    fsync_folder(draft)
    # Remove an earlier output that a killed call had moved away.
    sweep_abandoned(target.parent, target.name)
    move_into_place(draft, target)
