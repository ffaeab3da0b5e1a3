"""Names and version of the stage `columns`."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "columns"
"""Folder of the columns of each corpus, below the output root."""
TABLES_FOLDER = "column_tables"
"""Folder of the tables, below the root; one version for each shard."""
PROGRESS_NAME = "document_columns"
"""What the work is called while it runs."""
