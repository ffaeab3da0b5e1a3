"""Names, version and fact of the stage `columns`."""

from __future__ import annotations

VERSION = 1
STAGE = "columns"
TABLES_FOLDER = "column_tables"
"""Folder of the tables, below the root; one version for each shard."""
SHARDS = "shards"
"""Fact of an output: digests of its tables, in the order of the corpus's shards."""
PROGRESS_NAME = "document_columns"
"""What the work is called while it runs."""
