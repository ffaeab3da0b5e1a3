"""What is known about the files of an output before they are put in their places.

A command writes `web.bin` and `web.idx` to a temporary folder first, the draft. Along with them it
passes on what it knows: counts for the receipt, and checksums, so that no file is read again.
`nanoset_core/storage/drafts.py` has the folders that such files are in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoset_core.storage.atomic import sha256_file


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

        Some functions compute the checksum while they write a file, so that it need not be read
        again.

        Args:
            names: Names of the files.
        """
        for name in names:
            path = self.folder / name
            if name not in self.sha256_by_name and path.exists():
                self.sha256_by_name[name] = sha256_file(path)
