"""The tables of a corpus's documents, row group by row group, as the rules of views read them.

Every shard has a table of its documents (file, line, id, tokens). Tables with further columns are
aligned with it: row n of each of them is document n of the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.columns.aligned import AlignedColumns
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.shard_sets import some_shards
from nanoset_core.stages.views.conditions import ColumnStatistics

DOCUMENT_COLUMNS = frozenset({"file", "line", "byte_offset", "id", "tokens"})
"""Columns that every table of documents has."""
_SHARDS_PER_FETCH = 64
"""Shards whose tables are fetched from a bucket at once."""


class _ShardTables(NamedTuple):
    """The opened tables of one shard."""

    documents: DocumentRows
    columns: AlignedColumns | None
    """How the files with further columns are read; None if none are needed."""
    files: list[Any]
    """These files, a pyarrow.parquet.ParquetFile each."""


@dataclass(frozen=True, slots=True)
class DocumentGroup:
    """A row group of a shard's tables; implements `rules.RowGroup`."""

    tables: _ShardTables
    number: int
    """Number of the row group in each table."""
    first: int
    """Number of its first document in the corpus."""
    rows: int
    """Number of documents."""

    def read(self, columns: list[str]) -> Any:
        """Return some columns as an Arrow table; columns that no table has are absent."""
        import pyarrow as pa

        arrays = {}
        document_columns = [name for name in columns if name in DOCUMENT_COLUMNS]
        if document_columns:
            table = self.tables.documents.columns(self.number, document_columns)
            for name in document_columns:
                arrays[name] = table.column(name)
        if self.tables.columns is not None:
            arrays |= self.tables.columns.read(self.tables.files, self.number, columns)
        return pa.table(arrays)

    def statistics(self) -> Mapping[str, ColumnStatistics]:
        """Return what the files say about the columns, without reading the columns."""
        statistics = statistics_of(self.tables.documents.metadata(self.number))
        if self.tables.columns is not None:
            parts = self.tables.columns.statistics(self.tables.files, self.number)
            for metadata, names in parts:
                for name, column in statistics_of(metadata).items():
                    if name in names:
                        statistics[name] = column
        return statistics


def statistics_of(metadata: Any) -> dict[str, ColumnStatistics]:
    """Return the statistics of the columns of a Parquet row group, by name.

    Args:
        metadata: A pyarrow.parquet.RowGroupMetaData.
    """
    statistics = {}
    for number in range(metadata.num_columns):
        column = metadata.column(number)
        stored = column.statistics
        if stored is None:
            continue
        minimum = None
        maximum = None
        if stored.has_min_max:
            minimum = stored.min
            maximum = stored.max
        null_count = stored.null_count if stored.has_null_count else None
        statistics[column.path_in_schema] = ColumnStatistics(
            minimum, maximum, null_count, metadata.num_rows
        )
    return statistics


def document_groups(
    project: Project, corpus: str, dataset: Manifest, columns: Collection[str] = ()
) -> Iterator[DocumentGroup]:
    """Yield the row groups of the tables of a dataset's documents, in order.

    Args:
        project: The project.
        corpus: The corpus.
        dataset: A version of the corpus's dataset.
        columns: Columns that are needed in addition to `DOCUMENT_COLUMNS`.

    Raises:
        MissingError: The shards or the tables of the columns were not made, or were deleted.
        FormatError: A table is damaged.
    """
    access = project.outputs.access
    tokenized = shards_of(project.outputs, dataset)
    aligned = columns_of(project, corpus, tokenized, columns)
    shards = some_shards(project, corpus, tokenized.facts[SHARDS])

    def open_tables(number: int) -> _ShardTables:
        shard = shards[number]
        documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        files = [] if aligned is None else aligned.open_tables(number)
        return _ShardTables(documents, aligned, files)

    # Files from a bucket are fetched in parallel, unless the space for copies is limited.
    can_fetch_ahead = access.has_copies and access.capacity is None
    shards_per_fetch = _SHARDS_PER_FETCH if can_fetch_ahead else 1
    first_document = 0
    for start in range(0, len(shards), shards_per_fetch):
        numbers = range(len(shards))[start : start + shards_per_fetch]
        for tables in access.each(open_tables, numbers):
            n_documents = 0
            for group, (group_start, group_stop) in enumerate(tables.documents.groups):
                yield DocumentGroup(
                    tables, group, first_document + group_start, group_stop - group_start
                )
                n_documents = group_stop
            first_document += n_documents
