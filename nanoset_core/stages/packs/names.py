"""Name of the folder of the stage `packs`, and its version."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "packs"
"""Folder of the packs, below the output root."""
