"""The tables of a corpus's documents, as the rules of views read them.

A corpus is tokenized in shards. Every shard has a table of its documents, with their file, line, id
and number of tokens. Columns that users add, such as `quality`, are in further tables, up to two
for each shard. They are aligned with the first one: row n of each is document n of the shard. For
a corpus of two shards with 3 and 2 documents:

    document of the corpus    0  1  2  3  4
    shard                     0  0  0  1  1
    row of its tables         0  1  2  0  1

The tables of several small shards are joined, so that one query of DuckDB reads them all.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from nanoset_core.document_tables.relation import DocumentRelation, concatenated
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.project.project import Project
from nanoset_core.stages.attributes.column_sources import columns_of
from nanoset_core.stages.columns.aligned import AlignedColumns
from nanoset_core.stages.dataset.origin import shards_of
from nanoset_core.stages.per_shard import SHARDS
from nanoset_core.stages.sharded import Sharded
from nanoset_core.stages.shards.document_rows import DocumentRows, document_schema
from nanoset_core.stages.shards.one_shard import DOCUMENTS
from nanoset_core.stages.shards.shard_sets import some_shards
from nanoset_core.stages.views.rules import DocumentValues
from nanoset_core.storage.access import FileAccess

DOCUMENT_COLUMNS = frozenset({"file", "line", "byte_offset", "id", "tokens"})
"""Columns that every table of documents has."""
_SHARDS_PER_FETCH = 64
"""Shards whose tables are opened, and fetched from a bucket, at once."""
_DOCUMENTS_PER_QUERY = 1 << 23
"""Documents that one query reads, if a shard does not have more: 8 million."""


@dataclass(frozen=True, slots=True)
class ShardTables:
    """The tables of one shard."""

    n_documents: int
    """Number of documents."""
    n_tokens: int
    """Number of tokens of all documents together."""
    relation: DocumentRelation
    """All columns of the documents, for DuckDB."""


@dataclass(frozen=True, slots=True)
class JoinedTables:
    """The tables of consecutive shards, which one query reads; see `rules.ShardDocuments`."""

    first: int
    """Number of their first document in the corpus."""
    n_documents: int
    """Number of documents."""
    n_tokens: int
    """Number of tokens of all documents together."""
    relation: DocumentRelation
    """All columns of the documents, for DuckDB."""


def document_values(
    project: Project,
    corpus: str,
    dataset: Manifest,
    columns: Collection[str] = (),
    *,
    identifying: Collection[str] = (),
    only_ids: Any = None,
) -> Iterator[DocumentValues]:
    """Read some columns of all documents of a corpus, and yield them, some documents at a time.

    Args:
        project: The project.
        corpus: The corpus.
        dataset: A version of the corpus's dataset.
        columns: The columns to read, such as `id`, which all documents have, or `quality`, which
            users add.
        identifying: Further columns to read, by which the caller tells documents apart, such as
            `id`. If a document has no value, its file, line and byte offset are read as well.
        only_ids: An Arrow array of texts. Only documents with one of these ids are returned. None
            for all documents.

    Yields:
        Some consecutive documents, with their numbers in the corpus and their values.

    Raises:
        MissingError: The shards or the tables of the columns were not made, or were deleted.
        FormatError: A table is damaged.
    """
    further_columns = set(columns) - DOCUMENT_COLUMNS
    scan = DocumentScan(columns, identifying=identifying, only_ids=only_ids)
    # The documents are in several tables. In each, `scan` counts its rows from 0 on.
    for tables in document_shards(project, corpus, dataset, further_columns):
        for scanned in scan.batches(tables.relation):
            yield DocumentValues(tables.first, scanned)


def origin_texts(project: Project, dataset: Manifest, documents: Collection[int]) -> dict[int, str]:
    """Look up from which line of which file some documents of a corpus come, to name them to users.

    Args:
        project: The project.
        dataset: The dataset of the corpus.
        documents: Numbers of the documents in the corpus, such as {8}.

    Returns:
        Number of the document → its file, line, and id if it has one, such as
        `{8: "web/part-0.jsonl:17, id 'x1'"}`.

    Raises:
        MissingError: The shards of the corpus, or their tables, were deleted.
        FormatError: A table is damaged.
    """
    if not documents:
        return {}  # without reading a table

    texts: dict[int, str] = {}
    sharded = Sharded.of(project, dataset)
    for place in sharded.places(project, sorted(documents)):
        text = f"{dataset.name}/{place['file']}:{place['line']}"
        if place["id"] is not None:
            text += f", id {place['id']!r}"
        texts[place["document"]] = text
    return texts


def document_shards(
    project: Project, corpus: str, dataset: Manifest, columns: Collection[str] = ()
) -> Iterator[JoinedTables]:
    """Yield tables with a row for each document of a corpus: its file, line, id and so on.

    The documents of a corpus are in several parts, called shards, so there are several tables. This
    yields those of the shards that a dataset was made from, which may be older than the present
    ones.

    Args:
        project: The project.
        corpus: The corpus.
        dataset: A dataset of the corpus.
        columns: Further columns that are needed, such as `quality`, which users add.

    Raises:
        MissingError: The shards or the tables of the columns were not made, or were deleted.
        FormatError: A table is damaged.
    """
    list_of_shards = shards_of(project.outputs, dataset)
    return tokenized_shards(project, corpus, list_of_shards, columns)


def tokenized_shards(
    project: Project, corpus: str, tokenized: Manifest, columns: Collection[str] = ()
) -> Iterator[JoinedTables]:
    """Yield tables with a row for each document of a corpus, in the order of the documents.

    A corpus is stored in shards, and each shard has a table of its documents. If users have added
    columns, there are further tables for each shard:

        id       line    tokens         quality
        doc-1    1       340            0.7         row n of both is document n of the shard
        doc-2    2       95             0.3

    Args:
        project: The project.
        corpus: The corpus.
        tokenized: The set of its shards.
        columns: Columns of users that are needed, such as `quality`.

    Raises:
        MissingError: The shards or the tables of the columns were not made, or were deleted.
        FormatError: A table is damaged.
    """
    shards = some_shards(project, corpus, tokenized.facts[SHARDS])
    opener = _TableOpener.of(shards, columns_of(project, corpus, tokenized, columns))
    access = project.outputs.access
    first_document = 0
    for numbers in _groups_of_shards(len(shards), access):
        tables = access.each(opener.open, numbers)
        for joined in joined_tables(tables, first_document):  # small ones of several shards
            yield joined
            first_document += joined.n_documents


@dataclass(frozen=True, slots=True)
class _TableOpener:
    """Opens the tables with the documents of shards."""

    shards: Sequence[Manifest]
    further_columns: AlignedColumns | None
    """Tables with columns that users have added; None if none of these is needed."""
    schema: Any
    """All columns of the tables together, as a pyarrow.Schema."""

    @staticmethod
    def of(shards: Sequence[Manifest], further_columns: AlignedColumns | None) -> _TableOpener:
        """Return what opens the tables of some shards, with the columns that they have together.

        Args:
            shards: Manifests of the shards.
            further_columns: Tables with columns that users have added; None if there are none.
        """
        schema = document_schema()  # the columns that all documents have
        if further_columns is not None:
            schema = joined_schema(further_columns.schema)
        return _TableOpener(shards, further_columns, schema)

    def open(self, number: int) -> ShardTables:
        """Open the tables of a shard, which are fetched first if they are in a bucket.

        Args:
            number: Position of the shard in `shards`.
        """
        shard = self.shards[number]
        n_documents = shard.facts["documents"]
        tables = [DocumentRows(shard.path(DOCUMENTS), n_documents).source]
        if self.further_columns is not None:
            tables += self.further_columns.sources(number, n_documents)
        relation = DocumentRelation(self.schema, tuple(tables))
        return ShardTables(n_documents, shard.facts["tokens"], relation)


def _groups_of_shards(n_shards: int, access: FileAccess) -> Iterator[range]:
    """Yield the numbers of shards whose tables are fetched from a bucket in parallel, in groups.

    If the disk space for local copies is limited, these are single shards. For then, the tables of
    a shard may be deleted as soon as those of the next one are fetched.

    Args:
        n_shards: Number of shards.
        access: How tables are fetched.
    """
    shards_per_fetch = 1 if access.is_space_limited else _SHARDS_PER_FETCH
    for start in range(0, n_shards, shards_per_fetch):
        yield range(start, min(start + shards_per_fetch, n_shards))


def joined_schema(further: Any) -> Any:
    """Return all columns that a condition such as `quality > 3` may name, as a pyarrow.Schema.

    All documents have columns such as `id` and `tokens`. Users can add others, such as `quality`.

    Args:
        further: pyarrow.Schema of the columns of users. One with the name of a column that all
            documents have is left out.
    """
    schema = document_schema()
    for field in further:
        if field.name not in DOCUMENT_COLUMNS:
            schema = schema.append(field)
    return schema


def joined_tables(tables: Iterable[ShardTables], first_document: int) -> Iterator[JoinedTables]:
    """Group the tables of consecutive shards of a corpus, so that one query reads a whole group.

    DuckDB prepares each query for some milliseconds. In this time it could read 100,000 documents,
    so a query for each small shard would take much longer than one for several.

    Args:
        tables: The tables of each shard, in order.
        first_document: Number of their first document in the corpus.

    Yields:
        The tables of up to _DOCUMENTS_PER_QUERY (8 million) documents, or of one shard with more.
        All of these have the same columns, since one query cannot read different ones.
    """
    group: list[ShardTables] = []  # shards that the next query reads
    n_documents = 0  # of the group
    for shard in tables:
        if group:
            is_too_large = n_documents + shard.n_documents > _DOCUMENTS_PER_QUERY
            has_same_columns = shard.relation.has_layout_of(group[0].relation)
            if is_too_large or not has_same_columns:
                yield _joined(group, first_document)
                first_document += n_documents
                group = []
                n_documents = 0
        group.append(shard)
        n_documents += shard.n_documents
    if group:
        yield _joined(group, first_document)


def _joined(tables: Sequence[ShardTables], first_document: int) -> JoinedTables:
    """Join the tables of consecutive shards, which have the same columns, to one table for a query.

    For example, shards of 3 and 2 documents become a table of 5.

    Args:
        tables: The tables of each shard.
        first_document: Number of the first document in the corpus.
    """
    return JoinedTables(
        first=first_document,
        n_documents=sum(shard.n_documents for shard in tables),
        n_tokens=sum(shard.n_tokens for shard in tables),
        relation=concatenated([shard.relation for shard in tables]),
    )
