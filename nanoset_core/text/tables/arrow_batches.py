"""Read the record batches of an Arrow file, in the file format or the stream format.

Both formats store a sequence of record batches; the file format starts with `ARROW1`, and ends with
a list of its batches. A local file is mapped into memory, so that memory does not grow with its
record batches, except for compressed ones, which Arrow decompresses as a whole. If a mapped file is
truncated while it is read, the operating system kills the process that reads it.
"""

from __future__ import annotations

import io
import mmap
from collections.abc import Iterator
from typing import Any, BinaryIO

from nanoset_core.text.tables.record_batches import (
    ColumnChooser,
    NumberedBatch,
    TableDamageError,
    column_indices,
)

ARROW_MAGIC = b"ARROW1"
_FILE_PREFIX_BYTES = 8
"""Bytes before the first message of the file format: the magic bytes, and two zeros."""
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_CONTINUATION = _END_OF_STREAM[:4]
_OLD_END_OF_STREAM = _END_OF_STREAM[4:]
"""The end of a stream before Arrow 0.15, when messages did not start with `_CONTINUATION`."""


def map_file(file: BinaryIO, size: int) -> mmap.mmap | None:
    """Map a local file into memory, so that its bytes can be used without copying them.

    Args:
        file: The open file.
        size: Its size in bytes.

    Returns:
        The map. None if the file is an object in a bucket, which can only be read.

    Raises:
        TableDamageError: The file is empty, so that there is nothing to map.
    """
    if size == 0:
        raise TableDamageError("the file is empty")
    try:
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    except io.UnsupportedOperation:  # objects have no file descriptor
        return None


class BoundedFile:
    """A file for Arrow to read, which never returns more bytes than the file has.

    A damaged file may claim that a batch has terabytes. Arrow would ask for these at once, and the
    file would reserve memory for them.
    """

    closed = False

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file = file
        self._size = size

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to a position in the file.

        Args:
            offset: Bytes from the place that `whence` names.
            whence: As for `io.IOBase.seek`.

        Returns:
            The new position from the start.
        """
        return self._file.seek(offset, whence)

    def tell(self) -> int:
        """Return the current offset."""
        return self._file.tell()

    def close(self) -> None:
        """Do nothing: the caller that opened the file closes it."""

    def read(self, count: int = -1) -> bytes:
        """Read bytes for Arrow, but never ask the file for more than it has.

        A damaged file may say that its next batch of rows has a terabyte. Arrow would then ask for
        a terabyte, and Python's `read` would reserve memory for it. For a file of 100 bytes, of
        which 80 were read:

            read(10)       10 bytes
            read(10**12)   the 20 bytes that are left
            read(-1)       the 20 bytes that are left

        Args:
            count: The most bytes to read; a negative number for all that are left.

        Returns:
            The bytes; b"" at the end of the file.
        """
        available = max(0, self._size - self._file.tell())
        if count < 0:
            return self._file.read(available)
        return self._file.read(min(count, available))


def arrow_batches(file: mmap.mmap | BoundedFile, choose: ColumnChooser) -> Iterator[NumberedBatch]:
    """Yield the rows of an Arrow file in the batches in which they are stored.

    An Arrow file is a table, such as one with a column of texts. It stores its rows in record
    batches. For a file with two batches of 100 rows each:

        first row    rows
        1            a pyarrow.RecordBatch with the rows 1 to 100
        101          a pyarrow.RecordBatch with the rows 101 to 200

    Args:
        file: The file, mapped into memory if it is on a disk.
        choose: Called with the schema of the file, returns the names of the columns to read, such
            as ["id", "text"], or None for all columns.

    Yields:
        Each batch, with the number of its first row in the file, counted from 1.

    Raises:
        TableDamageError: A file in Arrow's stream format is cut off, or has bytes after its end.
        pyarrow.ArrowException: The file is damaged in another way.
    """
    import pyarrow as pa

    if isinstance(file, mmap.mmap):
        # The arrays of a batch will be views of the map, so nothing is copied.
        file.madvise(mmap.MADV_SEQUENTIAL)
        source = pa.BufferReader(pa.py_buffer(file))
    else:
        source = pa.PythonFile(file, "r")

    # An Arrow file is in the file format, which starts with the magic bytes, or else a stream.
    if source.read_at(len(ARROW_MAGIC), 0) == ARROW_MAGIC:
        batches = _file_batches(source, choose)
    else:
        batches = _stream_batches(source, choose)

    first_row = 1
    for batch in batches:
        batch.validate()
        yield NumberedBatch(first_row, batch)
        first_row += batch.num_rows


def stored_bytes_of_rows(file: BinaryIO, n_rows: int) -> int:
    """Return how many bytes of an Arrow file store its first rows, to estimate the rest from them.

    An Arrow file stores its rows in batches. For a file with two batches of 100 rows, which end at
    the bytes 1,000 and 1,800:

        rows    bytes
        100     1,000
        150     1,400    half of the second batch counts
        200     1,800

    Args:
        file: The open file.
        n_rows: How many rows.

    Raises:
        pyarrow.ArrowException: The file is damaged before the end of these rows.
    """
    import pyarrow as pa

    source = pa.PythonFile(file, "r")
    source.seek(_start_of_stream(file))
    batch_start = 0  # the first batch counts with all bytes before it
    rows_before = 0
    options = pa.ipc.IpcReadOptions(use_threads=False)
    for batch in pa.ipc.open_stream(source, options=options):
        batch_stop = int(source.tell())
        missing_rows = n_rows - rows_before
        if batch.num_rows >= missing_rows:
            share = missing_rows / max(batch.num_rows, 1)
            return batch_start + int(share * (batch_stop - batch_start))
        batch_start = batch_stop
        rows_before += batch.num_rows
    return batch_start


def _start_of_stream(file: BinaryIO) -> int:
    """Return the position in an Arrow file from which it can be read as a stream of batches.

    A file in the stream format is nothing but a stream. One in the file format has the same stream
    between a few bytes and a table of contents.

    Args:
        file: The file, of which nothing was read.
    """
    is_file_format = file.read(len(ARROW_MAGIC)) == ARROW_MAGIC
    return _FILE_PREFIX_BYTES if is_file_format else 0


def _file_batches(source: Any, choose: ColumnChooser) -> Iterator[Any]:
    """Yield the chosen columns of each batch of rows of an Arrow file in the file format.

    Args:
        source: The file, which Arrow has opened.
        choose: Chooses the columns to read.
    """
    import pyarrow as pa

    reader = pa.ipc.open_file(source)
    # Read all columns, and select some afterwards: Arrow copies columns that it selects itself.
    indices = column_indices(reader.schema.names, choose(reader.schema))
    for number in range(reader.num_record_batches):
        yield reader.get_batch(number).select(indices)


def _stream_batches(source: Any, choose: ColumnChooser) -> Iterator[Any]:
    """Yield the chosen columns of each batch of rows of an Arrow file in the stream format.

    Such a file starts with its schema, the names and types of its columns. The batches follow one
    after another, and a mark ends them. There is no table of contents.

    Args:
        source: The file, which Arrow has opened.
        choose: Called with the schema, returns the names of the columns to read, such as ["id",
            "text"], or None for all columns.

    Raises:
        TableDamageError: The mark at the end is missing, or more bytes follow it. This is only
            checked after the last batch.
    """
    import pyarrow as pa

    # Open the stream twice: the columns can only be chosen once its schema is known.
    source.seek(0)
    schema = pa.ipc.open_stream(source).schema
    source.seek(0)
    indices = column_indices(schema.names, choose(schema))
    options = pa.ipc.IpcReadOptions(use_threads=False, included_fields=indices)
    yield from pa.ipc.open_stream(source, options=options)
    _check_end_of_stream(source)


def _check_end_of_stream(source: Any) -> None:
    """Check that a file in Arrow's stream format is complete: it must end with a mark.

    If the file was cut off between two batches of rows, Arrow reads the batches before the cut
    without an error, and nobody would notice that rows are missing. The mark shows it:

        schema, batch, batch, mark           complete
        schema, batch                        cut off: TableDamageError
        schema, batch, batch, mark, bytes    something was appended: TableDamageError

    Args:
        source: The file, from which Arrow has just read the last batch.

    Raises:
        TableDamageError: There is no mark, or bytes follow it.
    """
    # Ask for the position first: reading other bytes moves it, if Python reads the file.
    stop = source.tell()
    end_mark = _end_mark(source)
    last_bytes = source.read_at(nbytes=len(end_mark), offset=max(stop - len(end_mark), 0))
    if last_bytes != end_mark:
        raise TableDamageError(
            "the stream has no end-of-stream mark, so its last batches may be missing"
        )
    excess_bytes = source.size() - stop
    if excess_bytes != 0:
        raise TableDamageError(
            f"{excess_bytes:,} bytes follow the end of the stream at byte {stop:,}"
        )


def _end_mark(source: Any) -> bytes:
    """Return the mark with which a file in Arrow's stream format must end, by its version.

    Since Arrow 0.15, every message of a stream starts with four bytes that older versions did not
    write, and so does the mark at the end.

    Args:
        source: The file, at whose start is the first message.
    """
    first_bytes = source.read_at(nbytes=len(_CONTINUATION), offset=0)
    if first_bytes == _CONTINUATION:
        return _END_OF_STREAM
    return _OLD_END_OF_STREAM
