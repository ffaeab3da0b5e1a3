"""Name of the folder of the stage `inventory`, and its version."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "inventory"
"""Folder of the lists of raw files, below the output root."""
