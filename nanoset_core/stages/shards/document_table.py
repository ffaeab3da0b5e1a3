"""Write documents.parquet: where each document of a shard comes from, and how many tokens it has.

It has one row for each document, in document order, and these columns:

| column | type | meaning |
| --- | --- | --- |
| file | string | path below the corpus's folder |
| line | int64 | number of the line, or of the row in a table; starts at 1 |
| byte_offset | int64 | of the line in the decompressed file; -1 for a row of a table |
| id | string or null | the document's own id |
| tokens | int32 | tokens, special ones included |

If a file was cut into pieces without being read, its lines are counted within each piece; see
`line_numbers`.

Row groups have 65,536 rows, in whichever batches the documents were read, so that the same
documents give the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.shards.arrow_arrays import number_array, text_array
from nanoset_core.stages.shards.document_rows import COLUMNS, DocumentRows, document_schema
from nanoset_core.text.document_batch import DocumentBatch

ROW_GROUP_ROWS = 1 << 16

Add: TypeAlias = Callable[[DocumentBatch, NDArray[np.int32], NDArray[np.bool_]], None]
"""Adds documents to a table: (documents, tokens of each document, whether to add each); arrays have
the shape (n_documents,).
"""


@contextmanager
def document_table(path: Path, files: Sequence[str]) -> Iterator[Add]:
    """Create a table with a row for each document, while batches of documents are tokenized.

        with document_table(path, ["a.jsonl", "b.jsonl"]) as add:
            for batch in batches:
                add(batch, lengths, is_kept)

        file       line    byte_offset    id        tokens
        a.jsonl    1       0              doc-17    812

    The table is complete once the `with` block ends.

    Args:
        path: Path of the table, a Parquet file.
        files: Paths of the text files that the documents are read from, in order. Batches name a
            file by its number among them.

    Yields:
        A function that adds the documents of a batch: its arguments are the batch, the number of
        tokens of each document, and whether each document is kept.
    """
    file_names = text_array(files)
    with _RowGroupWriter(path, _schema()) as writer:

        def add(
            batch: DocumentBatch, lengths: NDArray[np.int32], is_kept: NDArray[np.bool_]
        ) -> None:
            """Add a row for each document of a batch that is kept; see `Add` for the arguments."""
            rows = _rows_of_batch(batch, lengths, file_names)
            if not is_kept.all():
                kept_numbers = np.flatnonzero(is_kept)
                rows = rows.take(number_array(kept_numbers, "int64"))
            writer.add(rows)

        yield add


def _rows_of_batch(batch: DocumentBatch, lengths: NDArray[np.int32], file_names: Any) -> Any:
    """Return an Arrow table with a row for each document of a batch.

        file       line    byte_offset    id        tokens
        a.jsonl    7       4096           doc-17    250

    Args:
        batch: The documents.
        lengths: Tokens of each document, shape (n_documents,).
        file_names: Arrow array of the paths of all text files. The table stores the number of a
            document's file among them.
    """
    import pyarrow as pa

    file_numbers = number_array(batch.files, "int32")
    columns = [
        pa.DictionaryArray.from_arrays(file_numbers, file_names),
        number_array(batch.lines, "int64"),
        number_array(batch.offsets, "int64"),
        text_array(batch.ids),
        number_array(lengths, "int32"),
    ]
    return pa.Table.from_arrays(columns, schema=_schema())


def copy_without(
    table: DocumentRows, rows: NDArray[np.int64], path: Path, files: Sequence[str]
) -> None:
    """Copy a table of documents without some rows.

        file       line    id
        a.jsonl    1       doc-1
        a.jsonl    2       doc-2      left out, since a user has erased the document
        a.jsonl    3       doc-3

    The copy has the bytes that `document_table` writes for the other documents. That includes the
    paths of all files, with files of which no document remains.

    Args:
        table: The table.
        rows: Numbers of the rows to leave out, ascending, shape (n_removed,).
        path: Path of the copy.
        files: Paths of the text files, in the order in which `document_table` got them.
    """
    file_names = text_array(files)
    with _RowGroupWriter(path, _schema()) as writer:
        for group in range(len(table.groups)):  # the rows are read some at a time
            remaining_rows = _row_group_without(table, group, rows)
            writer.add(_with_all_file_names(remaining_rows, file_names))


def _row_group_without(table: DocumentRows, group: int, rows: NDArray[np.int64]) -> Any:
    """Read a part of a table of documents, and leave out those that have to be deleted.

    A Parquet file consists of row groups, parts that are read one by one. If this one has the rows
    100 to 104 of the table, and the rows 7, 102 and 300 have to be deleted, it is read without row
    102.

    Args:
        table: The table.
        group: Number of the row group.
        rows: All rows of the table to leave out, ascending, shape (n_removed,).

    Returns:
        A pyarrow.Table.
    """
    start, stop = table.groups[group]  # 100 and 105
    is_in_group = (rows >= start) & (rows < stop)
    removed_positions = rows[is_in_group] - start  # [2]
    remaining_positions = np.delete(np.arange(stop - start), removed_positions)  # [0, 1, 3, 4]
    row_group = table.columns(group, list(COLUMNS))
    return row_group.take(number_array(remaining_positions, "int64"))


def _with_all_file_names(rows: Any, file_names: Any) -> Any:
    """Change the numbers by which rows name their files, so that parts of a table can be joined.

    The column `file` stores each path as its number in a list of paths. A part of a table that was
    read from a file has a list of its own, with only the files of its documents:

        list of the part        [b.jsonl]                column: 0 0 0
        list of all files       [a.jsonl, b.jsonl]       column: 1 1 1

    Args:
        rows: Arrow table of some documents.
        file_names: Arrow array of the paths of all text files.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    file_column = rows.column("file")
    paths = file_column.cast(pa.string())  # b.jsonl b.jsonl b.jsonl
    numbers = pc.index_in(paths, file_names).combine_chunks()  # 1 1 1
    new_file_column = pa.DictionaryArray.from_arrays(numbers, file_names)
    other_columns = rows.columns[1:]
    return pa.Table.from_arrays([new_file_column, *other_columns], schema=_schema())


class _RowGroupWriter:
    """Writes a Parquet file in row groups of 65,536 rows, however many are added at once."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pending = pa.Table.from_batches([], schema)
        self._file = pq.ParquetWriter(path, schema, compression="zstd")

    def add(self, rows: Any) -> None:
        """Add the rows of an Arrow table."""
        import pyarrow as pa

        self._pending = pa.concat_tables([self._pending, rows])
        n_full_groups = self._pending.num_rows // ROW_GROUP_ROWS
        self._write(n_full_groups * ROW_GROUP_ROWS)

    def _write(self, n_rows: int) -> None:
        """Write the first pending rows."""
        if n_rows:
            self._file.write_table(self._pending.slice(0, n_rows), row_group_size=ROW_GROUP_ROWS)
            self._pending = self._pending.slice(n_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            if error_type is None:
                self._write(self._pending.num_rows)
        finally:
            self._file.close()


def _schema() -> Any:
    """Return the Arrow schema of the file: paths of files are numbered, and each is stored once."""
    import pyarrow as pa

    numbered_path = pa.field("file", pa.dictionary(pa.int32(), pa.string()))
    schema = document_schema()
    return schema.set(schema.get_field_index("file"), numbered_path)
