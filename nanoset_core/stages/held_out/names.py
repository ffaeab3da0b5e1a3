"""Names of folders, files and facts of the stage `held_out`, and its version."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "held_out"
"""Folder of a nanoset with the versions of its comparison."""
SHARED = "shared.parquet"
"""File that lists the leaked documents: those of valid or test that train reads, too."""
MAX_LISTED = 10_000
"""Rows that this file has at most."""
FURTHER_COPIES = "further_copies"
"""Fact: number of further copies, also of those that MAX_LISTED leaves out of the file.

Each leaked document has a row in the file, with one document of train. Each further copy, another
document of train with the same tokens, has a row of its own. Comparisons of older versions have
neither these rows nor the fact. It is also missing if no document is leaked.
"""
HASHES_FOLDER = "token_hashes"
"""Folder of the hashes of documents, below the root; one version for each shard."""
HASHES = "hashes"
"""Fact: digests of the hashes that were compared."""
TRAIN_COPIES = "train_copies"
"""Fact: documents of train that are copies of another document of train, by corpus. Comparisons of
older versions, and those without hashes, do not have it.
"""
