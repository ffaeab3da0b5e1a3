"""Read the rows of Parquet and Arrow files, in slices of record batches, up to the first fault."""

from __future__ import annotations

import mmap
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO, TypeVar

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.arrow_batches import ARROW_MAGIC, BoundedFile, arrow_batches, map_file
from nanoset_core.text.columns import row_bytes
from nanoset_core.text.content_kinds import HEAD_BYTES, looks_like
from nanoset_core.text.endings import format_of
from nanoset_core.text.parquet_batches import parquet_batches
from nanoset_core.text.raw_files import open_raw, source_changed, status_of
from nanoset_core.text.record_batches import (
    SLICE_BYTES,
    ColumnChooser,
    TableDamageError,
    TooFarError,
    rows_between,
)
from nanoset_core.text.rejects import FaultError

_PARQUET_MAGIC = b"PAR1"
_MAX_SLICE_ROWS = SLICE_BYTES >> 6
_MAX_MESSAGE_CHARACTERS = 300

T = TypeVar("T")


def read_table(
    path: RawFolder,
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

    Raises:
        FaultError: The file cannot be read to its end.
        SourceChangedError: The file has another size than `expected_bytes`.
        MissingError, InputError: See open_raw.
    """
    import pyarrow as pa

    is_parquet = format_of(path.name) == "parquet"
    with open_raw(path) as file:
        size = status_of(file).st_size
        if expected_bytes is not None and size != expected_bytes:
            raise source_changed(path, f"{size:,} bytes", f"{expected_bytes:,} bytes")

        row = 1  # the first row that was not converted, for the message of a fault
        try:
            mapped_file = None
            if is_parquet:
                batches = parquet_batches(file, choose, rows, most_skipped_bytes)
            else:
                mapped_file = map_file(file, size)
                batches = arrow_batches(mapped_file or BoundedFile(file, size), choose)

            for first_row, batch in batches:
                if isinstance(batch, TooFarError):
                    yield convert(batch, first_row)
                    continue
                stop_row = first_row + batch.num_rows
                step = 1 if rows else _slice_rows(batch)
                for row in rows_between(rows, first_row, stop_row)[::step]:
                    yield convert(batch.slice(row - first_row, step), row)
                    if mapped_file is not None:
                        # Release the pages; they are mapped again when they are read again.
                        mapped_file.madvise(mmap.MADV_DONTNEED)
                row = stop_row

        except MemoryError:
            raise  # pyarrow's is also an ArrowException, but says nothing about the file
        except (
            pa.ArrowException,
            TableDamageError,
            OSError,
            UnicodeDecodeError,
            EOFError,
            IndexError,
        ) as error:
            if _is_about_storage(error):
                raise
            raise _fault(file, is_parquet, row, error) from error


def _slice_rows(batch: Any) -> int:
    """Return how many rows of a record batch have about SLICE_BYTES of values."""
    bytes_per_row = sum(row_bytes(column) for column in batch.columns)
    n_rows = SLICE_BYTES / max(bytes_per_row, 1)
    return int(max(1, min(n_rows, _MAX_SLICE_ROWS)))


def _is_about_storage(error: Exception) -> bool:
    """Return whether an error comes from the disk or bucket, and not from damaged data."""
    if isinstance(error, NanosetError):
        return True
    # pyarrow raises OSError for damaged data, too, but without a number.
    return isinstance(error, OSError) and error.errno is not None


def _fault(file: BinaryIO, is_parquet: bool, row: int, error: Exception) -> FaultError:
    """Return the fault of a file whose rows cannot be read from `row` on."""
    message = " ".join(str(error).split())[:_MAX_MESSAGE_CHARACTERS]
    message = message or type(error).__name__
    detail = f"{message}; nothing was read from row {row:,} on"

    # Often the file is something else, such as a page that a server sent instead.
    file.seek(0)
    magic = _PARQUET_MAGIC if is_parquet else ARROW_MAGIC
    content = looks_like(file.read(HEAD_BYTES), magic)
    if content is not None:
        detail = f"the file is {content}; {detail}"

    reason = "corrupt_parquet" if is_parquet else "corrupt_arrow"
    return FaultError(reason, detail, line=row)
