"""Name of the folder of the stage `views`, and its version."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "views"
"""Folder of the views, below the output root."""
