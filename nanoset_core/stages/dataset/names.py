"""Name of the folder of the stage `dataset`, and its version."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "datasets"
"""Folder of the datasets of corpora, below the output root."""
