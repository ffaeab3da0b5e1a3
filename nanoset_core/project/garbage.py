"""What `nanoset gc` reports: what nothing needs, and what stays nevertheless."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

GarbageKind = Literal["version", "unfinished", "cache file", "tokens"]
"""A version's folder; one whose build never ended; an index file of trainers; tokens of a shard
that a dataset has.
"""
_DAY_NS = 24 * 3600 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Policy:
    """What is kept although no current version needs it."""

    keep: int = 0
    """How many older versions of each output are kept."""
    older_than_days: float | None = None
    """Age from which on versions may be removed, in days; None if age does not matter."""
    unfinished: bool = False
    """Whether versions newer than the current one may go: they belong to a build that has not
    ended.
    """

    def keeps(self, written_ns: int, current_since_ns: int) -> bool:
        """Return whether something is kept because of its age.

        Args:
            written_ns: When it was written, in nanoseconds since 1970.
            current_since_ns: When the current version became current; 0 if there is none.
        """
        if written_ns > current_since_ns and not self.unfinished:
            return True
        if self.older_than_days is None:
            return False
        return written_ns > time.time_ns() - self.older_than_days * _DAY_NS


@dataclass(frozen=True, slots=True)
class Garbage:
    """Something that nothing needs."""

    path: Path
    output: str
    """Folder of its stage, and its name."""
    subject: str
    """The corpus, nanoset or webdataset that a build of it would hold."""
    kind: GarbageKind
    size: int
    """Its size in bytes."""


@dataclass(frozen=True, slots=True)
class LeftAlone:
    """Something that nothing is known to need, but that is not removed."""

    path: Path
    why: str
    """Why it stays, as a clause."""
    refused: bool = False
    """Whether it was to be removed, and the file system refused."""


@dataclass(frozen=True, slots=True)
class GarbageCollection:
    """What a collection found, or removed."""

    garbage: tuple[Garbage, ...] = ()
    """What nothing needs: removed, or to be removed."""
    left_alone: tuple[LeftAlone, ...] = ()
    """What stays although nothing is known to need it."""
    unfinished: tuple[Path, ...] = ()
    """Unfinished files that exist (plan) or were removed; a running process may own one."""
    unseen: str | None = None
    """Which work no collection can know of, if the outputs are in a bucket."""

    @property
    def size(self) -> int:
        """Bytes of the garbage."""
        return sum(item.size for item in self.garbage)

    def by_output(self) -> dict[str, list[Garbage]]:
        """Return output → its garbage."""
        by_output: dict[str, list[Garbage]] = {}
        for item in self.garbage:
            by_output.setdefault(item.output, []).append(item)
        return by_output
