"""Files that Modalities trains on: those that it wrote itself, and others with a given index."""

from __future__ import annotations

import pickle
import struct
from collections.abc import Sequence
from pathlib import Path

from helpers.locations import GOLDEN_FILES
from nanoset_core import PackedDataset

GOLDEN = GOLDEN_FILES / "modalities"
"""Folder of files that Modalities wrote, see its README."""


def read_documents(path: Path) -> list[list[int]]:
    """Return the tokens of each document of a .pbin."""
    return [document.tolist() for document in PackedDataset(path)]


def write_with_index(path: Path, tokens: Sequence[int], entries: list[tuple[int, int]]) -> Path:
    """Write a .pbin whose index need not cover the tokens in order, and return its path.

    Args:
        path: The file.
        tokens: The tokens, of two bytes each.
        entries: The index: first byte of each document, and its number of bytes.
    """
    header = struct.pack("<QI", 2 * len(tokens), 2)
    data = struct.pack(f"<{len(tokens)}H", *tokens)
    path.write_bytes(header + data + pickle.dumps(entries, protocol=4))
    return path
