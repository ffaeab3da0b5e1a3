"""Name of the folder of the stage `exports`, and its version."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "exports"
"""Folder of the exports, below the output root."""
