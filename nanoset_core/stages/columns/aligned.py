"""Find the tables with the columns of a corpus's documents: one table for each shard.

Row k of the table belongs to document k of the shard. For example, the column `language` of a shard
with the documents of web/a.jsonl says "en" in row 0 if the first of them is in English.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.document_tables.relation import TableSource
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.columns.column_table import TABLE
from nanoset_core.untrusted import shortened

_REMEDY = "run `nanoset build`"


class TablesOfOutput(NamedTuple):
    """The tables of one output, one for each shard of a corpus."""

    folder: str
    """Folder of the tables, below the root."""
    corpus: str
    """Name of the corpus."""
    digests: Sequence[str]
    """Digest of each table, in the order of the shards."""


@dataclass(frozen=True, slots=True)
class AlignedColumns:
    """Columns of the documents of a corpus, and the tables in which they are stored.

    The tables of a shard have the rows, and the row groups, of the table of its documents. A column
    can have a narrower type in one shard than in the whole corpus: it is converted when it is read.
    """

    schema: Any
    """pyarrow.Schema of all columns, with the types that they have in the whole corpus."""
    outputs: OutputRoot
    """The outputs of the project."""
    tables: tuple[TablesOfOutput, ...]
    """The tables of each output that has some of the columns."""

    def sources(self, shard: int, n_documents: int) -> list[TableSource]:
        """Return the tables that have further values of some documents, after checking their sizes.

        There may be two of them, each with a row for each document: one with values from the raw
        text, such as the language, and one with values from elsewhere, such as scores.

        Args:
            shard: Number of the documents' shard, which is a part of the corpus.
            n_documents: Number of documents.

        Raises:
            MissingError: A table was deleted.
            FormatError: A file is not a table, or has another number of rows.
        """
        sources = []
        for tables in self.tables:  # of languages, and of scores; each has a table for each shard
            manifest = self.outputs.version(
                stage=tables.folder,
                name=tables.corpus,
                digest=tables.digests[shard],
                what_if_missing="a table of columns was deleted",
                remedy=_REMEDY,
            )
            sources.append(_table_with_rows(manifest, n_documents))
        return sources


def _table_with_rows(manifest: Manifest, n_documents: int) -> TableSource:
    """Return a table of columns, after a check that it has a row for each document of its shard.

    A shard of 1,000 documents, for example, needs a table of 1,000 rows, such as their languages.

    Args:
        manifest: Manifest of the table.
        n_documents: Number of documents of the shard.

    Raises:
        FormatError: The file is not a table, or has another number of rows.
    """
    table = _open_table(manifest.path(TABLE))
    if table.n_rows != n_documents:
        raise FormatError(
            "a table of columns does not have a row for each document of its shard",
            where=manifest.folder / TABLE,
            found=f"{table.n_rows:,} rows",
            expected=f"{n_documents:,} rows",
            remedy="run `nanoset verify`, delete what it reports, and run `nanoset build`",
        )
    return table.source


class _OpenedTable(NamedTuple):
    """A table of columns whose metadata was read."""

    source: TableSource
    """The table, for reading its columns."""
    n_rows: int
    """Number of its rows."""


def _open_table(path: Path) -> _OpenedTable:
    """Open a Parquet file with values of documents, and read its metadata.

    The table has a row for each document, and a column for each value:

        language    score
        en          0.7
        de          0.2

    Args:
        path: Path of the file.

    Raises:
        FormatError: The file is damaged, or no Parquet file.
    """
    import pyarrow as pa

    try:
        with RowGroups(path) as file:
            source = TableSource((path,), file.schema, metadata=(file.metadata,))
            return _OpenedTable(source, file.metadata.num_rows)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(
            "a table of columns cannot be read",
            where=path,
            found=shortened(str(error)),
            remedy=_REMEDY,
        ) from error
