"""Names, version and facts of the stage `attributes`."""

from __future__ import annotations

VERSION = 1
"""Version of the algorithm. It is part of every recipe: another version makes other outputs."""
FOLDER = "attributes"
"""Folder of the attributes of each corpus, below the output root."""
TABLES_FOLDER = "attribute_tables"
"""Folder of the tables, below the root; one version for each shard."""
PROGRESS_NAME = "document_attributes"
"""What the work is called while it runs."""

MISSING = "missing"
"""Fact: documents without a row in the attribute tables."""
WITHOUT_ID = "without_id"
"""Fact: those of them that have no id."""
DUPLICATES = "duplicates"
"""Fact: documents whose id has several rows."""
UNMATCHED = "unmatched"
"""Fact: ids of the attribute tables that no document has."""
COUNTS = (MISSING, WITHOUT_ID, DUPLICATES, UNMATCHED)
FIRST_MISSING = "first_missing"
"""Fact: the first id of a document without a row, or empty."""
ROWS = "rows"
"""Fact: rows of the attribute tables."""
