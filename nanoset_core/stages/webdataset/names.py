"""Names of folders of the stages of webdatasets, and their version."""

from __future__ import annotations

VERSION = 2
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
PLANS_FOLDER = "shuffle_plans"
"""Folder of the plans, below the output root."""
FOLDER = "webdatasets"
"""Folder of the tars, below the output root. Manifests of `nanoset shuffle` name it, too."""
