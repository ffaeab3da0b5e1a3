"""Read the rows of Parquet and Arrow files, in slices of record batches, up to the first fault.

`read_table` is the one function for both formats. The modules `parquet_batches` and `arrow_batches`
read record batches, whose size the file determines; here they are divided into slices of about 1
MiB, which limits the memory that a caller needs for the values of a slice.
"""

from __future__ import annotations

import mmap
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import Location
from nanoset_core.storage.reading.input_files import status_of
from nanoset_core.text.files.content_kinds import HEAD_BYTES, describe_mismatch
from nanoset_core.text.files.endings import format_of
from nanoset_core.text.files.raw_files import open_raw, source_changed
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.arrow_batches import ARROW_MAGIC, BoundedFile, arrow_batches, map_file
from nanoset_core.text.tables.columns import row_bytes
from nanoset_core.text.tables.parquet_batches import parquet_batches
from nanoset_core.text.tables.record_batches import (
    SLICE_BYTES,
    ColumnChooser,
    NumberedBatch,
    TableDamageError,
    TooFarError,
    rows_between,
)

_PARQUET_MAGIC = b"PAR1"
"""The first bytes of every Parquet file."""
_MAX_SLICE_ROWS = SLICE_BYTES >> 6
"""Rows of a slice if values are small: as many as if each row had 64 bytes."""
_MAX_MESSAGE_CHARACTERS = 300

T = TypeVar("T")


def read_table(
    path: Location,
    choose: ColumnChooser,
    convert: Callable[[Any, int], T],
    expected_bytes: int | None = None,
    *,
    rows: Sequence[int] | None = None,
    most_skipped_bytes: int | None = None,
) -> Iterator[T]:
    """Read the rows of a Parquet or Arrow file in order, about 1 MiB at a time.

    Parquet is read page by page. Local Arrow files are mapped into memory, and those in a bucket
    are read one record batch at a time. An Arrow stream without an end-of-stream mark, or with more
    bytes after it, has a fault.

    Args:
        path: The file. A file whose name does not end in .parquet is an Arrow file.
        choose: Chooses the columns to read.
        convert: Called with each slice, a pyarrow.RecordBatch that has at least the chosen columns,
            and with the 1-based number of its first row. It returns what this function yields. An
            Arrow exception that it raises counts as a fault of the file.
        expected_bytes: The size of the file in the inventory, if that is to be checked.
        rows: 1-based numbers of the only rows to read, ascending; each of them is a slice. Row
            groups of a Parquet file without any of them are not read.
        most_skipped_bytes: How many bytes of a row group may be decompressed to get to one of
            `rows`. For each row that is further inside, `convert` gets a TooFarError instead.

    Yields:
        What `convert` returns for each slice.

    Raises:
        FaultError: The file cannot be read to its end.
        SourceChangedError: The file has another size than `expected_bytes`.
        MissingError: The file does not exist.
        InputError: The file cannot be opened or read.
    """
    is_parquet = format_of(path.name) == "parquet"
    with open_raw(path) as file:
        # Notice a changed file before anything is read.
        size = status_of(file).st_size
        if expected_bytes is not None and size != expected_bytes:
            raise source_changed(path, f"{size:,} bytes", f"{expected_bytes:,} bytes")

        next_row = 1  # the first row that was not converted, for the message of a fault
        try:
            # Open the record batches, whose size the file determines.
            mapped_file = None
            if is_parquet:
                batches = parquet_batches(file, choose, rows, most_skipped_bytes)
            else:
                mapped_file = map_file(file, size)
                batches = arrow_batches(mapped_file or BoundedFile(file, size), choose)

            # Divide each into slices of about 1 MiB, and convert these.
            for first_row, batch in batches:
                if isinstance(batch, TooFarError):  # in place of a row that was not read
                    yield convert(batch, first_row)
                    continue
                for next_row, table_slice in _slices(first_row, batch, rows):
                    yield convert(table_slice, next_row)
                    if mapped_file is not None:
                        # Release the pages; they are mapped again when they are read again.
                        mapped_file.madvise(mmap.MADV_DONTNEED)
                next_row = first_row + batch.num_rows

        except Exception as error:
            if _is_damage(error):
                raise _fault(file, is_parquet, next_row, error) from error
            raise


def _slices(first_row: int, batch: Any, rows: Sequence[int] | None) -> Iterator[NumberedBatch]:
    """Divide a batch of rows of a table into slices.

    If all rows are requested, slices have about SLICE_BYTES of values each. If only some rows are,
    each of them is a slice by itself. For a batch with the rows 101 to 200, of which 130 and 170
    are requested:

        row 130, and row 170

    Args:
        first_row: Number of the first row of the batch in the file, from 1.
        batch: A pyarrow.RecordBatch.
        rows: Numbers of the requested rows of the file, ascending; None for all rows.

    Yields:
        The slices, each with the number of its first row.
    """
    stop_row = first_row + batch.num_rows
    if rows is None:
        rows_per_slice = _rows_of_slice(batch)
        slice_starts: Sequence[int] = range(first_row, stop_row, rows_per_slice)
    else:
        rows_per_slice = 1
        slice_starts = rows_between(rows, first_row, stop_row)
    for row in slice_starts:
        yield NumberedBatch(row, batch.slice(row - first_row, rows_per_slice))


def _rows_of_slice(batch: Any) -> int:
    """Return how many rows of a table have about 1 MiB of values; at least one.

    For example, with 1,024 bytes in each row these are 1,024 rows. A single row may be larger.

    Args:
        batch: Rows of the table, as a pyarrow.RecordBatch.
    """
    bytes_per_row = sum(row_bytes(column) for column in batch.columns)
    n_rows = SLICE_BYTES / max(bytes_per_row, 1)
    return int(max(1, min(n_rows, _MAX_SLICE_ROWS)))


def _is_damage(error: Exception) -> bool:
    """Return whether an exception shows that a table, such as a Parquet file, is damaged.

    Then this is reported as a fault of the file, and settings decide whether the run may continue
    without the rest of it. All other exceptions end the run, since they say nothing about the file:

        pyarrow.ArrowInvalid                    True
        OSError without a number, by pyarrow    True: it could not decompress a page, for example
        OSError: [Errno 5] …                    False: the disk has failed
        MemoryError                             False: the machine is too small
        TypeError                               False: a mistake in this program

    Args:
        error: An exception that was raised while the table was read.
    """
    import pyarrow as pa

    # The MemoryError of pyarrow is also an ArrowException, so it has to be recognized first.
    if isinstance(error, MemoryError | NanosetError):
        return False
    if isinstance(error, OSError):
        # Errors of the system have a number. pyarrow raises OSError for damaged data without one.
        return error.errno is None
    damage_errors = (
        pa.ArrowException,
        TableDamageError,
        UnicodeDecodeError,
        EOFError,
        IndexError,
    )
    return isinstance(error, damage_errors)


def _fault(file: BinaryIO, is_parquet: bool, row: int, error: Exception) -> FaultError:
    """Return the fault of a table that could not be read to its end, for the list of rejected rows.

    Args:
        file: The file, which is open. Its first bytes may show that it is something else, such as a
            web page that a server sent instead.
        is_parquet: True for Parquet, False for Arrow.
        row: Number of the first row that was not read, from 1.
        error: The exception with which reading failed.

    Returns:
        For example the reason `corrupt_parquet` with the detail "Unexpected end of stream; nothing
        was read from row 7 on".
    """
    message = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS]
    message = message or type(error).__name__
    detail = f"{message}; nothing was read from row {row:,} on"

    # Often the file is something else, such as a page that a server sent instead.
    file.seek(0)
    magic = _PARQUET_MAGIC if is_parquet else ARROW_MAGIC
    content = describe_mismatch(file.read(HEAD_BYTES), re.compile(magic))
    if content is not None:
        detail = f"the file is {content}; {detail}"

    reason = "corrupt_parquet" if is_parquet else "corrupt_arrow"
    return FaultError(reason, detail, line=row)
