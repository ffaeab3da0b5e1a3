"""Look at files and folders."""

from __future__ import annotations

import hashlib
from pathlib import Path


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def names_in(folder: Path) -> list[str]:
    """Return the names of the files and folders in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())
