"""What `nanoset gc` reports: what can be removed, and what is left alone for a reason."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from nanoset_core.storage.removing.freed_space import FileSizes, freed_bytes

GarbageKind = Literal["version", "unfinished", "cache file", "tokens", "log"]
"""A complete version; a version whose build never ended; an index file of a trainer; the tokens of
a shard, which its dataset contains as well; or the log of a Slurm job.
"""
_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """Which versions are kept although no current version needs them."""

    keep: int = 0
    """How many older versions of each output are kept."""
    older_than_days: float | None = None
    """Versions that were replaced less than this many days ago are kept, and files that were
    written since then; None if age does not matter.
    """
    unfinished: bool = False
    """Whether versions that are newer than the current one may be removed. The user says by this
    that they belong to builds that were interrupted, and not to running ones.
    """

    def keeps(self, written_ns: int, current_since_ns: int, replaced_ns: int | None = None) -> bool:
        """Return whether a version (build) of an output that nothing needs is kept for its age.

        For example, the current version became current on Friday, and today is Monday:

            written      replaced     kept
            Saturday     never        yes: a build may be about to complete it
            Saturday     never        no with `unfinished`: the user knows that no build is running
            last May     on Friday    no
            last May     on Friday    yes with `older_than_days=7`: it was used 3 days ago

        Args:
            written_ns: When the version, or a file of it, was written, in nanoseconds since 1970.
            current_since_ns: When the current version became current; 0 if there is none, so that
                any version may be one that a build is about to complete.
            replaced_ns: When another version took its place. None if that is not known: then its
                age counts from `written_ns`.
        """
        is_newer_than_current = written_ns > current_since_ns
        if is_newer_than_current and not self.unfinished:
            return True  # a running build may be about to complete it
        last_used_ns = written_ns if replaced_ns is None else replaced_ns
        return self.is_recent(last_used_ns)

    def is_recent(self, last_used_ns: int) -> bool:
        """Return whether a version or file was used within the last `older_than_days` days.

        Args:
            last_used_ns: When it was last used, in nanoseconds since 1970.
        """
        if self.older_than_days is None:
            return False  # the user gives no limit
        limit_ns = time.time_ns() - self.older_than_days * _DAY_NS
        return last_used_ns > limit_ns


KEEP_NOTHING_OLD = Policy()
"""The policy of `nanoset gc` without options."""


@dataclass(frozen=True, slots=True)
class Garbage:
    """A version or file that nothing needs and that may be removed."""

    path: Path
    """Folder of the version, or the file."""
    output: str
    """The output that it belongs to: folder of the stage, and name. For logs, what these are."""
    leased_name: str
    """The corpus, nanoset, webdataset or view that it belongs to, on which a build has a lease.
    Empty for logs, which belong to none.
    """
    kind: GarbageKind
    """What it is."""
    sizes: FileSizes
    """The sizes of its files. Some of these may have other paths that stay."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """A version or file that nothing is known to need, but that is not removed."""

    path: Path
    """Folder of the version, or the file."""
    why: str
    """Why it is not removed, as a clause."""
    refused: bool = False
    """Whether removing it was tried, and the file system refused."""


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """What a collection removed, or would remove."""

    garbage: tuple[Garbage, ...] = ()
    """What nothing needs: it was removed, or would be."""
    left_alone: tuple[LeftAlone, ...] = ()
    """What is not removed although nothing is known to need it."""
    unfinished: tuple[Path, ...] = ()
    """Unfinished files that were removed, or would be. A running process may still own one."""
    unseen: str | None = None
    """Which running work a collection cannot notice, if the outputs are in a bucket."""

    @property
    def size(self) -> int:
        """Bytes of disk space that are freed if all of the garbage is removed."""
        return sum(self.freed_bytes().values())

    def freed_bytes(self) -> dict[Garbage, int]:
        """Return how many bytes of disk space each item frees if all of the garbage is removed.

        A file with several paths, such as the tokens of a dataset and its views, counts only if all
        of its paths are removed, and then in the first of these items.
        """
        byte_counts = freed_bytes([item.sizes for item in self.garbage])
        return dict(zip(self.garbage, byte_counts, strict=True))

    def by_output(self) -> dict[str, list[Garbage]]:
        """Group the garbage by output."""
        by_output: dict[str, list[Garbage]] = {}
        for item in self.garbage:
            by_output.setdefault(item.output, []).append(item)
        return by_output
