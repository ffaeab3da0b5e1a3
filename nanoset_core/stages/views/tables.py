"""The tables of a corpus's documents, shard by shard, as the rules of views read them.

Every shard has a table of its documents (file, line, id, tokens). Tables with further columns are
aligned with it: row n of each of them is document n of the shard.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Any

from nanoset_core.document_tables.relation import DocumentRelation, TableSource
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.columns.aligned import AlignedColumns, OpenTable
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.stages.shards.make import DOCUMENTS, SHARDS
from nanoset_core.stages.shards.shard_sets import some_shards

DOCUMENT_COLUMNS = frozenset({"file", "line", "byte_offset", "id", "tokens"})
"""Columns that every table of documents has."""
_SHARDS_PER_FETCH = 64
"""Shards whose tables are fetched from a bucket at once."""


@dataclass(frozen=True, slots=True)
class ShardTables:
    """The opened tables of one shard; implements `rules.ShardDocuments`."""

    first: int
    """Number of the shard's first document in the corpus."""
    documents: DocumentRows
    columns: AlignedColumns | None
    """How the files with further columns are read; None if none are needed."""
    files: list[OpenTable]
    """These files."""

    @property
    def groups(self) -> list[DocumentGroup]:
        """The row groups, in order."""
        groups = []
        for number, (start, stop) in enumerate(self.documents.groups):
            groups.append(DocumentGroup(self, number, self.first + start, stop - start))
        return groups

    @property
    def relation(self) -> DocumentRelation:
        """All columns of the documents, as a relation that DuckDB can evaluate conditions on."""
        sources = [TableSource(self.documents.path, self.documents.schema)]
        for file in self.files:
            sources.append(TableSource(file.path, file.parquet.schema_arrow))

        # The columns that conditions may name: those of every document, then the others.
        schema = document_schema()
        if self.columns is not None:
            for field in self.columns.schema:
                if field.name not in DOCUMENT_COLUMNS:
                    schema = schema.append(field)
        return DocumentRelation(schema, tuple(sources))


@dataclass(frozen=True, slots=True)
class DocumentGroup:
    """A row group of a shard's tables; implements `rules.RowGroup`."""

    tables: ShardTables
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


def document_schema() -> Any:
    """Return the pyarrow.Schema of the columns that every document has."""
    import pyarrow as pa

    return pa.schema(
        {
            "file": pa.string(),
            "line": pa.int64(),
            "byte_offset": pa.int64(),
            "id": pa.string(),
            "tokens": pa.int32(),
        }
    )


def document_groups(
    project: Project, corpus: str, dataset: Manifest, columns: Collection[str] = ()
) -> Iterator[DocumentGroup]:
    """Yield the row groups of the tables of a dataset's documents, in order.

    See `document_shards` for the arguments and errors.
    """
    for shard in document_shards(project, corpus, dataset, columns):
        yield from shard.groups


def document_shards(
    project: Project, corpus: str, dataset: Manifest, columns: Collection[str] = ()
) -> Iterator[ShardTables]:
    """Yield the tables of each shard of a dataset's documents, in order.

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

    def open_tables(number: int) -> ShardTables:
        """Open the tables of a shard, after fetching them if they are in a bucket."""
        shard = shards[number]
        documents = DocumentRows(shard.path(DOCUMENTS), shard.facts["documents"])
        files = [] if aligned is None else aligned.open_tables(number)
        # Shards may be opened in parallel, so that their first documents are not known here.
        return ShardTables(first=0, documents=documents, columns=aligned, files=files)

    # Files from a bucket are fetched in parallel, unless the space for copies is limited.
    can_fetch_ahead = access.has_copies and access.capacity is None
    shards_per_fetch = _SHARDS_PER_FETCH if can_fetch_ahead else 1
    all_numbers = range(len(shards))
    first_document = 0
    for start in range(0, len(all_numbers), shards_per_fetch):
        for tables in access.each(open_tables, all_numbers[start : start + shards_per_fetch]):
            yield replace(tables, first=first_document)
            first_document += tables.documents.count
