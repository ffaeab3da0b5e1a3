"""Names of folders of the stage `shards`, and the version of a shard."""

from __future__ import annotations

VERSION = 2
"""Version of the algorithm. It is part of the recipe of every shard: another one makes others."""
SHARDS_FOLDER = "shards"
"""Folder of the shards, below the output root."""
FOLDER = "tokenized"
"""Folder of the sets of shards, below the output root; each corpus has one."""
