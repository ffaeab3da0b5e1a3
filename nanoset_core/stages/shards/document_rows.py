"""Read documents.parquet, the table of a shard's documents; `document_table` explains it.

Its rows are found by the number of the document, by its id, or by the values of its columns.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import values_equal
from nanoset_core.document_tables.relation import DocumentRelation, TableSource
from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.document_tables.scan import DocumentScan, ScannedRows
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.untrusted import shortened

COLUMNS = ("file", "line", "byte_offset", "id", "tokens")


class DocumentRows:
    """The table of a shard's documents.

    DuckDB finds documents by their values. Documents that are named by their numbers are read
    without it: DuckDB takes 100 MB of memory in each process that uses it, and most builds do not.

    Raises:
        FormatError: A row group is damaged; raised when it is read.
    """

    def __init__(self, path: Path, documents: int) -> None:
        """Open the table of a shard's documents.

        Args:
            path: Path of the table, a Parquet file.
            documents: Number of rows that the table must have: one for each document.

        Raises:
            MissingError: There is no such table.
            FormatError: The table is damaged, or has other columns or another number of rows.
        """
        self.path = path
        self.count = documents
        """Number of rows."""
        with explaining_errors(path):
            self._file = RowGroups(path)
            metadata = self._file.metadata
            names = self._file.schema.names
            if metadata.num_rows != documents or tuple(names) != COLUMNS:
                raise ValueError(f"{metadata.num_rows:,} rows, columns {', '.join(names)}")
            self.source = TableSource((path,), self._file.schema, metadata=(metadata,))
            """The table as a part of the relation of the shard's documents."""

    @property
    def relation(self) -> DocumentRelation:
        """The documents as a relation of their own."""
        return DocumentRelation(document_schema(), (self.source,))

    @property
    def groups(self) -> Sequence[tuple[int, int]]:
        """Rows of each row group: half-open ranges (start, stop)."""
        return self._file.ranges

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return some rows of the table, each as a mapping from columns to values.

        The table is stored in row groups, each of which is read at once. For row groups of 100
        rows, the rows 105 and 7 are in group 1, at position 5, and in group 0, at position 7.

        Args:
            rows: Numbers of the rows, in any order; a row may be named several times.

        Returns:
            Column → value of each row, in the order of `rows`.
        """
        values_by_row: dict[int, dict[str, Any]] = {}
        for group, rows_of_group in self._rows_by_group(rows).items():
            first_row, _ = self.groups[group]
            positions = [row - first_row for row in rows_of_group]  # in the row group
            row_group = self.columns(group, list(COLUMNS))
            values = row_group.take(positions).to_pylist()
            values_by_row.update(zip(rows_of_group, values, strict=True))
        return [values_by_row[row] for row in rows]

    def _rows_by_group(self, rows: Iterable[int]) -> dict[int, list[int]]:
        """Group rows of the table by the row group that contains them, which is read at once.

        For row groups of 100 rows, the rows 105, 7 and 5 are grouped as `{0: [5, 7], 1: [105]}`.

        Args:
            rows: Numbers of the rows, in any order; a row may be named several times.

        Returns:
            Number of the row group → its rows, ascending, each once.
        """
        group_starts = [start for start, _ in self.groups]
        rows_by_group: dict[int, list[int]] = {}
        for row in sorted(set(rows)):
            # The last row group that starts at this row or before it.
            group = bisect_right(group_starts, row) - 1
            rows_by_group.setdefault(group, []).append(row)
        return rows_by_group

    def search(self, values: Mapping[str, str | int]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield the documents of the table that have certain values in certain columns.

        `{"file": "a.jsonl", "line": 7}` yields `(0, {"file": "a.jsonl", "line": 7, "tokens": 250,
        …})` if it is the first row.

        Args:
            values: Column → value; a row must have all of them.

        Yields:
            (number of the row, column → value) with all columns of the table, in the order of the
            rows.
        """
        # Read all columns in batches, but only the rows with these values.
        scan = DocumentScan(COLUMNS, only=[values_equal(values)])
        yield from _values_of_rows(scan.batches(self.relation))

    def with_ids(self, ids: Any) -> Iterator[tuple[int, dict[str, Any]]]:
        """Find the documents with certain ids in a table of documents, for example to delete them.

            row    file       line    byte_offset    id        tokens
            0      a.jsonl    1       0              doc-17    812
            1      a.jsonl    2       4,096          doc-18    95

        For the ids "doc-18" and "doc-99", this yields (1, {"file": "a.jsonl", "line": 2, …}).

        Args:
            ids: Arrow array of ids. One that no document has gives no row.

        Yields:
            (row, column → value) with all columns of the table, in the order of the rows.

        Raises:
            FormatError: The table is damaged.
        """
        # Read the table in batches, and keep those rows of each whose id is one of `ids`.
        scan = DocumentScan(COLUMNS, only_ids=ids)  # COLUMNS are all columns of the table
        yield from _values_of_rows(scan.batches(self.relation))

    def lengths(self) -> Iterator[tuple[int, NDArray[np.integer]]]:
        """Yield the number of tokens of each document, one row group of the table at a time.

        For row groups of 3 rows: (0, [50, 30, 20]), then (3, [40]).

        Yields:
            (row of the first document of the row group; the tokens of each of its documents,
            integers, shape (n_documents,)).

        Raises:
            FormatError: The table is damaged, or some numbers of tokens are no integers.
        """
        self._check_token_type()
        for group, (first_row, _stop_row) in enumerate(self.groups):
            token_counts = self.columns(group, ["tokens"]).column("tokens")
            n_missing = token_counts.null_count
            if n_missing:
                with explaining_errors(self.path):  # turns the ValueError into a FormatError
                    raise ValueError(f"{n_missing:,} documents have no number of tokens")
            yield first_row, token_counts.to_numpy()

    def _check_token_type(self) -> None:
        """Check that the table has integers in the column `tokens`.

        Raises:
            FormatError: The column has another type.
        """
        import pyarrow as pa

        with explaining_errors(self.path):  # turns the ValueError into a FormatError
            column_type = self.source.stored_schema.field("tokens").type
            if not pa.types.is_integer(column_type):
                raise ValueError(f"tokens as {column_type}")

    def columns(self, group: int, names: list[str]) -> Any:
        """Read some columns of a part of the table of documents.

        A Parquet file consists of row groups, parts that are read one by one to bound memory. This
        table has row groups of 65,536 documents.

        Args:
            group: Number of the row group.
            names: Names of the columns, such as `["id", "tokens"]`.

        Returns:
            A pyarrow.Table.

        Raises:
            FormatError: The row group is damaged.
        """
        with explaining_errors(self.path):
            return self._file.read(group, names)


def _values_of_rows(scanned: Iterable[ScannedRows]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield (row, column → value) of each document that a scan returned.

        a part of the scan     rows [3, 7], columns {"file": ["a.jsonl", "b.jsonl"], "line": [4, 1]}
        yielded                3, {"file": "a.jsonl", "line": 4}
                               7, {"file": "b.jsonl", "line": 1}

    Args:
        scanned: Parts of the result: numbers of rows, and an Arrow array for each column.
    """
    for part in scanned:
        names = list(part.columns)  # "file", "line"
        values_by_column = [column.to_pylist() for column in part.columns.values()]
        values_by_row = zip(*values_by_column, strict=True)  # ("a.jsonl", 4), ("b.jsonl", 1)
        for row, values in zip(part.rows.tolist(), values_by_row, strict=True):
            yield row, dict(zip(names, values, strict=True))


def document_schema() -> Any:
    """Return the columns of the table that says where each tokenized document comes from.

        file       line    byte_offset    id        tokens
        a.jsonl    1       0              doc-17    812
        a.jsonl    2       4,096          doc-18    95

    Returns:
        A pyarrow.Schema, with the name and type of each column.
    """
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


@contextmanager
def explaining_errors(path: Path) -> Iterator[None]:
    """Turn errors of a block that reads a table of documents into errors that say what to do.

        FileNotFoundError             MissingError: a shard's table of documents is missing
        ArrowInvalid, KeyError, …     FormatError: this is not the table of …

    Args:
        path: Path of the table, which belongs to a shard.

    Raises:
        MissingError: There is no such table.
        FormatError: It is damaged, or is another file.
    """
    import pyarrow as pa

    rebuild = "run `nanoset build`: it makes the shard again"
    try:
        open_regular(path).close()  # refuses a named pipe, for whose writer pyarrow would wait
        yield
    except FileNotFoundError as error:
        raise MissingError(
            "a shard's table of documents is missing", where=path, remedy=rebuild
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "this is not the table of the shard's documents",
            where=path,
            found=shortened(str(error)),
            expected="a Parquet file with a row for each document and the columns "
            f"{', '.join(COLUMNS)}",
            remedy=f"delete the shard's folder and {rebuild}",
        ) from error
