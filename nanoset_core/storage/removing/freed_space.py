"""Count how much disk space is freed if files are removed, some of which have several paths.

A view has the tokens of its corpus without storing them: its `.bin` is a hard link to that of the
dataset, a second path of the same file. Removing the view frees no space for them. It is only freed
when the last path of the file is removed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from nanoset_core.storage.listing import Entry, Inode


class LinkedFile(NamedTuple):
    """A file that has several paths."""

    inode: Inode
    """Which file it is, and the number of its paths."""
    size: int
    """Its size in bytes."""


@dataclass(frozen=True, slots=True)
class FileSizes:
    """The sizes of files that are removed together, such as those in the folder of a version."""

    unlinked_bytes: int = 0
    """Size of all files that have only one path, in bytes."""
    linked_files: tuple[LinkedFile, ...] = ()
    """The others. A file is listed once for each of its paths in the folder."""

    @staticmethod
    def of(entries: Iterable[Entry]) -> FileSizes:
        """Return the sizes of files.

        Args:
            entries: The files as they were listed, without folders.
        """
        unlinked_bytes = 0
        linked_files: list[LinkedFile] = []
        for entry in entries:
            if entry.inode is None:
                unlinked_bytes += entry.size
            else:
                linked_files.append(LinkedFile(entry.inode, entry.size))
        return FileSizes(unlinked_bytes, tuple(linked_files))


def freed_bytes(removed: Sequence[FileSizes]) -> list[int]:
    """Return how many bytes of disk space each of several folders frees if all of them are removed.

    For example, a dataset and two views of it, with index files of 1 MB each:

        removed                                the file of tokens (800 MB) counts
        the dataset and both views             in the first of them
        both views                             nowhere: it stays, as the dataset's file
        all, but somebody has linked the file  nowhere: it stays at the fourth path

    Args:
        removed: The sizes of the files in each folder.

    Returns:
        The bytes, in the order of `removed`.
    """
    n_removed_paths: Counter[Inode] = Counter()
    for sizes in removed:
        n_removed_paths.update(file.inode for file in sizes.linked_files)

    counted_inodes: set[Inode] = set()
    byte_counts: list[int] = []
    for sizes in removed:
        n_bytes = sizes.unlinked_bytes
        for file in sizes.linked_files:
            is_freed = n_removed_paths[file.inode] >= file.inode.n_paths
            if is_freed and file.inode not in counted_inodes:
                n_bytes += file.size
                counted_inodes.add(file.inode)
        byte_counts.append(n_bytes)
    return byte_counts
