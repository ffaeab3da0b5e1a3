"""The documents of shards as one relation, whose columns are stored in several Parquet files.

The files of a shard have the same rows in the same order: row n of each is document n of the shard.
So they are joined by position, without a key:

    documents.parquet      columns.parquet       columns.parquet of attributes
    file   id   tokens     lang   quality        score
    a      x    12         en     3              0.5       document 0
    a      y    7          de     4              0.1       document 1

Shards whose tables have the same columns are read together: their files follow each other.

In SQL, columns have numbers in place of names, since DuckDB takes `Lang` and `lang` for the same
name. `column_reference` returns what to write for a column.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.connection import (
    BATCH_DOCUMENTS,
    exact_path,
    explaining_memory,
    text_literal,
)
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.errors import FormatError, NanosetError, StorageError
from nanoset_core.text.tables.values import as_type
from nanoset_core.untrusted import shortened

FILE_NUMBER = "file_number"
"""An expression for `DocumentRelation.batches`: number of the shard of a document, from 0, among
the shards of the relation.
"""
ROW_NUMBER = "row_number"
"""An expression for `DocumentRelation.batches`: number of a document in its shard, from 0."""
LISTED_IDS = "listed_ids"
"""Name in SQL of a table of ids, for `DocumentRelation.batches`."""


def column_reference(schema: Any, column: str) -> str:
    """Return how SQL names a column.

    Args:
        schema: pyarrow.Schema of the relation.
        column: A column of the schema.

    Returns:
        The column's position in the schema as a name, such as `c2`: names of columns may differ
        only in capital letters, which SQL ignores.
    """
    return f"c{schema.get_field_index(column)}"


def value_type(arrow_type: Any) -> Any:
    """Return the type of the values of a dictionary, or any other Arrow type as it is.

    Args:
        arrow_type: A pyarrow.DataType, such as dictionary<values=string>, which gives string.
    """
    import pyarrow as pa

    if pa.types.is_dictionary(arrow_type):
        return arrow_type.value_type
    return arrow_type


@dataclass(frozen=True, slots=True)
class TableSource:
    """A table with one row for each document of one or several shards."""

    paths: tuple[Path, ...]
    """The Parquet files that have the rows, one for each shard, unless `table` has them."""
    stored_schema: Any
    """pyarrow.Schema of all columns of the table, in the order in which they are stored."""
    table: Any = None
    """A pyarrow.Table with the rows, if they are in memory."""
    metadata: tuple[Any, ...] = ()
    """pyarrow.parquet.FileMetaData of each file, or nothing if they are not known."""

    def may_be_null(self, column: str) -> bool:
        """Return whether a document may have no value in a column, so that nulls must be expected.

        Args:
            column: Name of a column of the table.

        Returns:
            False if there is certainly a value in each row: Parquet files usually say how many
            nulls they have. True if there are nulls, or if it is not known.
        """
        if self.table is not None:
            return bool(self.table.column(column).null_count)
        if not self.metadata:
            return True
        index = self.stored_schema.get_field_index(column)
        return any(_may_be_null(metadata, index) for metadata in self.metadata)

    def read(self, columns: list[str]) -> Any:
        """Return a table with some columns of all documents.

        The rows are in memory already, or in Parquet files, one for each shard of a corpus. Files
        of 3 and 5 rows give a table of 8 rows.

        Args:
            columns: Names of the columns. A table in memory may have more columns: it is returned
                as it is.

        Returns:
            A pyarrow.Table with the rows in the order of the files.

        Raises:
            OSError: A file cannot be read.
            pyarrow.ArrowException: A file is damaged.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        if self.table is not None:
            return self.table
        return pa.concat_tables([pq.read_table(path, columns=columns) for path in self.paths])


def _may_be_null(metadata: Any, index: int) -> bool:
    """Return whether a column of a Parquet file may have nulls.

    Args:
        metadata: pyarrow.parquet.FileMetaData of the file.
        index: Position of the column.
    """
    for group in range(metadata.num_row_groups):
        statistics = metadata.row_group(group).column(index).statistics
        if statistics is None or not statistics.has_null_count or statistics.null_count:
            return True
    return False


@dataclass(frozen=True, slots=True)
class DocumentRelation:
    """The documents of one or several shards, as DuckDB reads them.

    To ask something about all these documents, write SQL expressions over its columns:

        quality = column_reference(relation.schema, "quality")
        expressions = [f"{quality} >= 3", f"{quality} IS NULL"]
        connection = shared_connection(relation.folders)
        for batch in relation.batches(connection, ["quality"], expressions):
            is_good, is_missing = batch.columns  # Arrow arrays, one value for each document

    `DocumentScan` writes such expressions for columns and conditions.
    """

    schema: Any
    """pyarrow.Schema of the columns that can be used, with their types in the whole corpus. A shard
    may store a column in a narrower type; it is converted.
    """
    sources: tuple[TableSource, ...]
    """The tables, at least one. If several have a column of one name, the first of them counts."""

    @property
    def folders(self) -> frozenset[Path]:
        """Folders that contain the files: for each, that of all versions of its output."""
        folders: set[Path] = set()
        for source in self.sources:
            if source.table is None:
                folders.update(path.resolve().parent.parent for path in source.paths)
        return frozenset(folders)

    @property
    def first_rows(self) -> NDArray[np.int64]:
        """Number in the relation of the first document of each shard, shape (n_shards,).

        If the tables are in memory, there is a single shard.
        """
        # Documents of each shard, [3, 5, 2], → numbers of the first ones, [0, 3, 8].
        metadata = self.sources[0].metadata
        n_documents = [file.num_rows for file in metadata]
        starts = np.cumsum([0, *n_documents])  # (n_shards + 1,) the last is the number of all
        return starts[: max(1, len(metadata))]

    def has_layout_of(self, other: DocumentRelation) -> bool:
        """Return whether two relations have the same columns in the same tables.

        If so, `concatenated` can make one relation of both.

        Args:
            other: The other relation.
        """
        layout = [source.stored_schema for source in self.sources]
        other_layout = [source.stored_schema for source in other.sources]
        return self.schema == other.schema and layout == other_layout

    def may_be_null(self, column: str) -> bool:
        """Return whether some documents may have no value in a column.

        For example, documents may lack an id. Then the caller also reads their files and lines, to
        identify them by these. If several tables have a column of this name, the first one counts.

        Args:
            column: Name of the column.

        Returns:
            False if all documents certainly have a value. True if some have none, if no table has
            the column, or if it is not known.
        """
        for source in self.sources:
            if column in source.stored_schema.names:
                return source.may_be_null(column)
        return True

    def batches(
        self,
        connection: Any,
        columns: Collection[str],
        expressions: Sequence[str],
        where: str = "",
        listed_ids: Any = None,
    ) -> Iterator[Any]:
        """Compute SQL expressions for documents, and yield the results in the documents' order.

        For example, the expressions f"{quality} >= 3" and ROW_NUMBER give, for each document,
        whether its quality is at least 3, and its number in its shard. `quality` is what
        `column_reference` returns for the column.

        Args:
            connection: As `shared_connection` returns it for `folders`.
            columns: Names of all columns that the expressions and `where` use.
            expressions: SQL in which columns are written as `column_reference` returns them;
                FILE_NUMBER and ROW_NUMBER say which document it is.
            where: SQL that is true for the documents that are needed; empty if all are.
            listed_ids: Arrow array of texts, which SQL reads as `SELECT id FROM {LISTED_IDS}`.

        Yields:
            A pyarrow.RecordBatch of at most BATCH_DOCUMENTS documents. It has a column for each
            expression, in order.

        Raises:
            FormatError: A file is damaged.
            StorageError: DuckDB fails for another reason: it may need more than MEMORY_LIMIT.
        """
        import duckdb
        import pyarrow as pa

        sources = self._sources_of(columns)
        try:
            # A connection runs one query at a time, but each cursor of it may run another one.
            with explaining_memory(), connection.cursor() as cursor:
                if listed_ids is not None:
                    cursor.register(LISTED_IDS, pa.table({"id": listed_ids}))
                query = self._query(cursor, sources, columns, expressions)
                if where:
                    query += f" WHERE {where}"
                yield from cursor.sql(query).to_arrow_reader(BATCH_DOCUMENTS)
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            raise _explained(error, sources) from error

    def _sources_of(self, columns: Collection[str]) -> list[TableSource]:
        """Return the tables from which some columns must be read.

        The columns of a document are in several tables: those of the raw text in one, scores that
        were computed later in another. If both have a column of one name, that of the first table
        counts.

            tables (lang, url), (quality, lang)
            columns lang                           only the first table
            columns url, quality                   both

        Args:
            columns: Names of the columns.

        Returns:
            The tables. If no column is needed, the first one, which says how many documents there
            are.
        """
        sources = []
        missing = set(columns)
        for source in self.sources:
            names = source.stored_schema.names
            if missing.intersection(names):
                sources.append(source)
                missing.difference_update(names)
        return sources or [self.sources[0]]

    def _query(
        self,
        connection: Any,
        sources: Sequence[TableSource],
        columns: Collection[str],
        expressions: Sequence[str],
    ) -> str:
        """Return an SQL query that computes expressions for each document.

        The columns of the documents may be in several tables. An inner query joins these, and names
        columns by numbers: c2 is the third column of the documents, such as `quality`. So the
        expression "c2 >= 3" gives

            SELECT c2 >= 3 AS r0 FROM (SELECT … AS c2 FROM …)

        Args:
            connection: The connection to DuckDB that will run the query.
            sources: The tables that have the columns: Parquet files, or tables in memory.
            columns: Names of the columns that the expressions use, such as `quality`.
            expressions: The expressions. Their results are the columns r0, r1, … of the query.
        """
        tables = []
        for table_number, source in enumerate(sources):
            # If a column has floats here and texts in other files, read the floats as texts.
            table = self._with_floats_as_texts(source, columns)
            _register_if_in_memory(connection, table_number, table)  # so that SQL can read it
            tables.append(table)

        documents_sql = self._documents_sql(tables, columns)  # the inner query
        results = [f"{sql} AS r{number}" for number, sql in enumerate(expressions)]
        return f"SELECT {', '.join(results)} FROM ({documents_sql})"

    def _documents_sql(self, tables: Sequence[TableSource], columns: Collection[str]) -> str:
        """Return an SQL query that reads some columns of all documents, from one or several tables.

        All tables have the same documents in the same order, so their rows are joined by position:

            SELECT t0.file_index AS file_number, t0.file_row_number AS row_number,
                   t0_1 AS c2, t1_0 AS c3
            FROM read_parquet(['…']) AS t0(t0_0, t0_1)
            POSITIONAL JOIN read_parquet(['…']) AS t1(t1_0)

        So c2 is the second column of the first table. The file and the row say which document it
        is.

        Args:
            tables: The tables that have the columns.
            columns: Names of the columns.
        """
        first_table = _table_alias(0)  # "t0"; the others have the same rows
        selected = [
            f"{first_table}.file_index AS {FILE_NUMBER}",
            f"{first_table}.file_row_number AS {ROW_NUMBER}",
        ]
        for column, value_sql in self._value_by_column(tables, columns).items():
            number_name = column_reference(self.schema, column)  # such as "c2"
            selected.append(f"{value_sql} AS {number_name}")

        tables_sql = [_table_sql(number, table) for number, table in enumerate(tables)]
        joined_sql = " POSITIONAL JOIN ".join(tables_sql)
        return f"SELECT {', '.join(selected)} FROM {joined_sql}"

    def _value_by_column(
        self, tables: Sequence[TableSource], columns: Collection[str]
    ) -> dict[str, str]:
        """Return the SQL that reads each column from the table that has it.

        Args:
            tables: The tables that have the columns.
            columns: Names of the columns.

        Returns:
            Name → SQL. {"lang": "t0_2"} is the third column of the first table. A column of
            integers that has floats in other files is converted: {"quality": "CAST(t1_0 AS
            DOUBLE)"}.
        """
        value_by_column: dict[str, str] = {}
        for table_number, table in enumerate(tables):
            for index, field in enumerate(table.stored_schema):
                # If several tables have a column of this name, the first of them counts.
                if field.name in columns and field.name not in value_by_column:
                    value_by_column[field.name] = _converted(
                        _stored_column(table_number, index),
                        stored_type=field.type,
                        target_type=self.schema.field(field.name).type,
                    )
        return value_by_column

    def _with_floats_as_texts(self, source: TableSource, columns: Collection[str]) -> TableSource:
        """Convert columns of floats to texts if other files have texts in the same columns.

        For example, with 0.5 and 3.0 in this file, and "high" in another one, users see a column of
        texts: "0.5", "3" and "high". DuckDB could convert the floats, too, but would write "3.0".

        Args:
            source: The table, in the types in which it is stored.
            columns: Names of the columns that are needed; others may be left out.

        Returns:
            A table in memory; or the same table if it has no such column, which is nearly always
            so.
        """
        import pyarrow as pa

        names = [name for name in source.stored_schema.names if name in columns]
        if not any(self._has_floats_for_texts(source, name) for name in names):
            return source

        table = source.read(names)
        arrays = {}
        for name in names:
            type_for_users = self.schema.field(name).type
            arrays[name] = as_type(table.column(name), type_for_users)  # writes 3.0 as "3"
        converted = pa.table(arrays)
        return TableSource(paths=source.paths, stored_schema=converted.schema, table=converted)

    def _has_floats_for_texts(self, source: TableSource, column: str) -> bool:
        """Return whether a table has floats in a column that has texts in the whole corpus."""
        import pyarrow as pa

        has_floats = source.stored_schema.field(column).type == pa.float64()
        is_of_texts = self.schema.field(column).type == pa.string()
        return bool(has_floats and is_of_texts)


def _table_alias(table_number: int) -> str:
    """Return how a query names a table, by its position: such as `t0`."""
    return f"t{table_number}"


def _stored_column(table_number: int, index: int) -> str:
    """Return how a query names a column of a table, by their positions: such as `t0_2`."""
    return f"{_table_alias(table_number)}_{index}"


def _register_if_in_memory(connection: Any, table_number: int, source: TableSource) -> None:
    """Let SQL queries of DuckDB read a table that is in memory, by a name such as `table_0`.

    For each document, a query has to say which row of which file it is. DuckDB knows this for
    Parquet files, but not for a table in memory. So the table gets two more columns:

        lang    quality    file_row_number    file_index
        en      3          0                  0
        de      4          1                  0

    Args:
        connection: The connection to DuckDB that will run the query.
        table_number: Position of the table in the query, which becomes a part of its name.
        source: The table. If its rows are in files, nothing is done.
    """
    import pyarrow as pa

    if source.table is None:
        return
    # DuckDB counts the rows of files, but not of tables in memory. So they get two more columns.
    n_rows = source.table.num_rows
    row_numbers = pa.array(range(n_rows), pa.int64())
    file_numbers = pa.repeat(pa.scalar(0, pa.uint64()), n_rows)
    numbered = source.table.append_column("file_row_number", row_numbers)
    numbered = numbered.append_column("file_index", file_numbers)
    connection.register(f"table_{table_number}", numbered)


def _table_sql(table_number: int, source: TableSource) -> str:
    """Return the SQL that names a table in the FROM clause of a query, and numbers its columns.

    The first table with two columns becomes

        read_parquet(['/data/columns.parquet'], …) AS t0(t0_0, t0_1)

    Columns get numbers since DuckDB cannot tell `Lang` and `lang` apart.

    Args:
        table_number: Position of the table in the query.
        source: The table, in files or in memory.
    """
    names = [_stored_column(table_number, index) for index in range(len(source.stored_schema))]
    if source.table is None:
        rows = _files_sql(source.paths)
    else:
        rows = f"table_{table_number}"  # the name by which DuckDB knows a table in memory
        # A table in memory has two more columns, which DuckDB itself adds to files.
        names += ["file_row_number", "file_index"]
    return f"{rows} AS {_table_alias(table_number)}({', '.join(names)})"


def _files_sql(paths: Iterable[Path]) -> str:
    """Return the SQL that reads the rows of Parquet files, in order."""
    literals = [text_literal(exact_path(str(path.resolve()))) for path in paths]
    return f"read_parquet([{', '.join(literals)}], hive_partitioning = false)"


def _converted(value: str, stored_type: Any, target_type: Any) -> str:
    """Return SQL that converts a value to the type that its column has in the whole corpus.

    A column may have integers in one file of a corpus, and floats in another one. Then it is a
    column of floats, and the integers are converted: `t0_1` becomes `CAST(t0_1 AS DOUBLE)`.

    Args:
        value: SQL of the value.
        stored_type: Arrow type in which this file has the value.
        target_type: Arrow type of the column in the whole corpus.
    """
    import pyarrow as pa

    # DuckDB reads a dictionary of texts as an ENUM, which it sorts by position in the dictionary.
    # So a dictionary is converted to texts even if the column has the same type in the corpus.
    is_enum = pa.types.is_dictionary(stored_type)
    if stored_type == target_type and not is_enum:
        return value
    return f"CAST({value} AS {_sql_type(value_type(target_type))})"


def _sql_type(arrow_type: Any) -> str:
    """Return the name in SQL of the type of a column."""
    import pyarrow as pa

    sql_types = {
        pa.bool_(): "BOOLEAN",
        pa.int32(): "INTEGER",
        pa.int64(): "BIGINT",
        pa.float64(): "DOUBLE",
        pa.string(): "VARCHAR",
        pa.large_string(): "VARCHAR",
    }
    return sql_types[arrow_type]


def concatenated(relations: Sequence[DocumentRelation]) -> DocumentRelation:
    """Put the documents of several shards one after another, so that one query can read them all.

    The documents of a shard are described by several tables, such as `documents` and `columns`. The
    result has the same tables, each with the files of all shards.

    Args:
        relations: The tables of each shard, in order. All shards have the same tables with the same
            columns.
    """
    sources_by_shard = [relation.sources for relation in relations]
    joined_sources = []
    for sources in zip(*sources_by_shard, strict=True):  # the first table of each shard, and so on
        joined_sources.append(_joined_source(sources))
    return DocumentRelation(relations[0].schema, tuple(joined_sources))


def _joined_source(sources: Sequence[TableSource]) -> TableSource:
    """Return one table with the files of several tables that have the same columns."""
    paths: list[Path] = []
    metadata: list[Any] = []
    for source in sources:
        paths.extend(source.paths)
        metadata.extend(source.metadata)
    return TableSource(tuple(paths), sources[0].stored_schema, metadata=tuple(metadata))


def _explained(error: Exception, sources: Sequence[TableSource]) -> NanosetError:
    """Return the error that explains why DuckDB could not read some tables of documents.

    DuckDB's error does not always name the file. So each file is read again: if one is damaged, the
    error names it, and says how to make it again.

    Args:
        error: What DuckDB raised.
        sources: The tables.
    """
    paths: list[Path] = []
    for source in sources:
        paths.extend(source.paths)
    damaged = _damaged_paths(paths)
    found = shortened(str(error))
    if damaged:
        return FormatError(
            "a table of documents cannot be read",
            where=", ".join(map(str, damaged)),
            found=found,
            expected="a Parquet file with one row for each document of the shard",
            remedy="delete the folder of the damaged file, and run `nanoset build`",
        )
    return StorageError(
        "tables of documents could not be searched, although each of them can be read",
        where=", ".join(map(str, paths)),
        found=found,
        remedy="run the command again; if it needs more memory, use shorter lists of values",
    )


def _damaged_paths(paths: Iterable[Path]) -> list[Path]:
    """Return which of some Parquet files cannot be read.

    A query of DuckDB on several files has failed, and its error does not always name the file. So
    each file is read completely, which is slow, but only happens after an error.

    Args:
        paths: The files.
    """
    import pyarrow as pa

    damaged = []
    for path in paths:
        try:
            with RowGroups(path) as file:
                for group in range(len(file.ranges)):
                    file.read(group)
        except (pa.ArrowException, OSError):
            damaged.append(path)
    return damaged
