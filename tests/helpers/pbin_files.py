"""Files that Modalities trains on: those that it wrote itself, and what is in one."""

from __future__ import annotations

from pathlib import Path

from helpers.locations import GOLDEN_FILES
from nanoset_core import PackedDataset

GOLDEN = GOLDEN_FILES / "modalities"
"""Folder of files that Modalities wrote, see its README."""


def read_documents(path: Path) -> list[list[int]]:
    """Return the tokens of each document of a .pbin."""
    return [document.tolist() for document in PackedDataset(path)]
