"""Read a Parquet file page by page: record batches of about 1 MiB, whatever the row groups hold.

A Parquet file consists of row groups, each of which stores one chunk of every column. A chunk
consists of compressed pages, and of a dictionary, to whose values the pages may refer. Row groups
may have several GB, so they are never decompressed as a whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

from nanoset_core.text.tables.record_batches import (
    SLICE_BYTES,
    ColumnChooser,
    NumberedBatch,
    TableDamageError,
    TooFarError,
    column_indices,
    rows_between,
)

READ_BYTES = 1 << 20
"""Size of the buffer through which each column chunk is read."""
BATCH_ROWS = 1024
"""Largest number of rows of a batch."""
REPEATED_BYTES = 256 << 20
"""Largest size of a batch in the worst case: if every row has the longest value of a dictionary."""


def parquet_batches(
    file: BinaryIO,
    choose: ColumnChooser,
    rows: Sequence[int] | None,
    most_skipped_bytes: int | None,
) -> Iterator[NumberedBatch]:
    """Yield the rows of a Parquet file in order.

    Args:
        file: The opened file.
        choose: Chooses the columns to read.
        rows: Numbers of the requested rows, ascending; None requests all rows. Row groups without a
            requested row are not read, and other ones only up to their last requested row.
        most_skipped_bytes: How many bytes of a row group may be decompressed to get to a requested
            row. Instead of rows that are further inside, a TooFarError is yielded for each.

    Raises:
        TableDamageError: The file has fewer rows than its metadata says.
        pyarrow.ArrowException: The file is damaged.
    """
    import pyarrow.parquet as pq

    # Without pre_buffer=False, pyarrow holds a whole row group, whatever the buffer's size.
    table = pq.ParquetFile(
        file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
    )
    metadata = table.metadata
    columns = choose(table.schema_arrow)
    if columns == []:
        # Read one column, because batches without columns have no number of rows.
        columns = table.schema_arrow.names[:1]

    first_row = 1
    for number in range(metadata.num_row_groups):
        group = _RowGroup(table, number, columns, first_row)
        if rows is None:
            yield from group.batches(group.stop_row)
        else:
            yield from _requested_rows(group, rows, most_skipped_bytes)
        first_row = group.stop_row

    n_rows = first_row - 1
    if n_rows != metadata.num_rows:
        raise TableDamageError(
            f"the row groups hold {n_rows:,} of the {metadata.num_rows:,} rows of the footer"
        )


def _requested_rows(
    group: _RowGroup, rows: Sequence[int], most_skipped_bytes: int | None
) -> Iterator[NumberedBatch]:
    """Yield the rows of a row group from its start to the last one that is requested.

    A Parquet file consists of row groups, which are compressed. To read row 900 of a group, the
    rows before it have to be decompressed, too. If these are very large, an error is yielded
    instead:

        requested    0           900              950
        yielded      rows 0 to 900 in batches     TooFarError for row 950

    Args:
        group: The row group.
        rows: Numbers of the requested rows of the file, ascending.
        most_skipped_bytes: How many bytes may be decompressed to get to a requested row; None for
            any number.

    Yields:
        Batches of rows, and then a TooFarError in place of each row that is too far away.
    """
    near_rows = []
    errors = []
    row_bytes = max(group.average_row_bytes, 1)
    for row in rows_between(rows, group.first_row, group.stop_row):
        skipped_bytes = (row - group.first_row) * row_bytes  # about
        if most_skipped_bytes is None or skipped_bytes <= most_skipped_bytes:
            near_rows.append(row)
        else:
            error = TooFarError(f"{int(skipped_bytes):,} bytes into a row group")
            errors.append(NumberedBatch(row, error))

    if near_rows:
        yield from group.batches(stop_row=near_rows[-1] + 1)
    yield from errors


@dataclass(frozen=True, slots=True)
class _RowGroup:
    """One row group of a Parquet file."""

    table: Any
    """The pyarrow.parquet.ParquetFile."""
    number: int
    """Number of the row group in the file, from 0."""
    columns: Sequence[str] | None
    """Columns to read, or None for all."""
    first_row: int
    """1-based number of its first row in the file."""

    @property
    def metadata(self) -> Any:
        """What the footer of the file says about the row group."""
        return self.table.metadata.row_group(self.number)

    @property
    def stop_row(self) -> int:
        """Number of the row after its last one."""
        return self.first_row + int(self.metadata.num_rows)

    @property
    def average_row_bytes(self) -> float:
        """Average size of a row with all columns, decompressed."""
        return float(self.metadata.total_byte_size / max(self.metadata.num_rows, 1))

    def batches(self, stop_row: int) -> Iterator[NumberedBatch]:
        """Yield the rows of this row group up to a certain one, in batches that fit into memory.

        Args:
            stop_row: Number of the row after the last one to yield. If it is in the middle of the
                group, the rest of the group is not read.

        Raises:
            TableDamageError: The row group has fewer rows than its metadata says. This is only
                noticed if all of it is read.
        """
        batch_start = self.first_row
        for batch in self._batches_of_columns(self._batch_rows()):
            n_requested = max(stop_row - batch_start, 0)
            yield NumberedBatch(batch_start, batch.slice(0, n_requested))
            batch_start += batch.num_rows

            # After the last row of the group, ask for another batch nevertheless: it shows rows
            # that the metadata does not mention.
            is_end_of_group = batch_start >= self.stop_row
            if batch_start >= stop_row and not is_end_of_group:
                return
        self._check_number_of_rows(n_read=batch_start - self.first_row)

    def _check_number_of_rows(self, n_read: int) -> None:
        """Check that as many rows were read of this group as its metadata says.

        Args:
            n_read: How many rows were read.

        Raises:
            TableDamageError: There were fewer or more.
        """
        n_rows = self.stop_row - self.first_row
        if n_read != n_rows:
            raise TableDamageError(
                f"row group {self.number} gave {n_read:,} of its {n_rows:,} rows"
            )

    def _batches_of_columns(self, n_rows: int) -> Iterator[Any]:
        """Yield the chosen columns of this group of rows in batches.

        Args:
            n_rows: Largest number of rows of a batch.
        """
        yield from self.table.iter_batches(
            n_rows, row_groups=[self.number], columns=self.columns, use_threads=False
        )

    def _batch_rows(self) -> int:
        """Choose how many rows of a Parquet file to read at once, so that they fit into memory.

        A file may store a value once for many rows, in a dictionary. Then rows are larger in memory
        than in the file: 1,000 rows with the same text of 1 MB take 1 MB in the file, and 1 GB in
        memory. So there are two limits: for rows of average size, and for the largest rows that
        there can be. In these, the value of each column takes up its whole dictionary.
        """
        self._check_readable()
        chunks = self._column_chunks()
        total_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        average_row_bytes = total_bytes / max(self.metadata.num_rows, 1)
        rows_by_average = SLICE_BYTES / max(average_row_bytes, 1)

        largest_row_bytes = sum(_dictionary_bytes(chunk) for chunk in chunks)
        rows_by_largest = REPEATED_BYTES / max(largest_row_bytes, 1)
        return int(max(1, min(BATCH_ROWS, rows_by_average, rows_by_largest)))

    def _check_readable(self) -> None:
        """Read a row, so that damaged metadata is noticed before its sizes are used.

        pyarrow aborts the process if it is asked for sizes in damaged metadata. When it reads a
        row, it raises an exception instead.

        Raises:
            pyarrow.ArrowException: The file is damaged.
        """
        next(self._batches_of_columns(1), None)

    def _column_chunks(self) -> list[Any]:
        """Return the metadata of the chosen columns in this row group."""
        schema = self.table.schema
        metadata = self.metadata
        paths = [schema.column(index).path for index in range(len(schema))]
        return [metadata.column(index) for index in column_indices(paths, self.columns)]


def _dictionary_bytes(chunk: Any) -> float:
    """Estimate the decompressed size of a column's dictionary, 0 if it has none.

    If a column has few different values, a Parquet file may store each value once, in a dictionary,
    and then a small number for each row. The metadata does not say how large the dictionary is when
    it is decompressed. It is assumed to be compressed as well as the column as a whole:

        column        100 kB, which become 300 kB: 3 times as much
        dictionary     20 kB, which become some 60 kB

    Args:
        chunk: The pyarrow.parquet.ColumnChunkMetaData of the column in one row group.
    """
    if not chunk.dictionary_page_offset:
        return 0.0
    # The dictionary is stored before the first page of data.
    stored_bytes = max(chunk.data_page_offset - chunk.dictionary_page_offset, 0)
    # The metadata only says how well the whole chunk is compressed: assume the same here.
    expansion = chunk.total_uncompressed_size / max(chunk.total_compressed_size, 1)
    return float(stored_bytes * expansion)
