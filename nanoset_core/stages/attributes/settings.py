"""The section `attributes` of nanoset.yaml: tables with further values of a corpus's documents."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal

from nanoset_core.errors import ConfigError
from nanoset_core.records.rules import Section
from nanoset_core.stages.shards.settings import column_errors


@dataclass(frozen=True, slots=True)
class AttributesSpec(Section):
    """Tables with further values for the documents of a corpus, such as scores, joined by id."""

    files: str = field(metadata={"example": "scores/*.parquet"})
    """Parquet or Arrow files with the same columns: one, all of a folder, or those that fit a
    pattern; relative paths start at nanoset.yaml's folder; or s3://bucket/path."""
    id: str = "id"
    """The column of the tables that contains the ids of the documents."""
    columns: tuple[str, ...] | None = None
    """Columns to take; absent = all except the id."""
    on_missing: Literal["keep", "fail"] = "keep"
    """What happens if a document has no row: its values are null (keep), or the build fails."""
    on_duplicate: Literal["first", "fail"] = "first"
    """What happens if a document has several rows: the first one counts, or the build fails."""

    def broken_rules(self, where: str) -> Iterator[ConfigError]:
        """Yield an error for each column that documents cannot have."""
        yield from column_errors(f"{where}.columns", self.columns or ())
