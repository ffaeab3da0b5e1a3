"""Parquet and Arrow files → record batches, and where they are broken."""

from __future__ import annotations

import mmap
import shutil
import struct
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from nanoset_core.errors import NanosetError
from nanoset_core.raw.arrow_guard import FileGuard, StreamGuard, UnpackedTooLargeError
from nanoset_core.raw.content import HEAD_BYTES, looks_like
from nanoset_core.raw.decompression import Fault
from nanoset_core.raw.endings import is_parquet
from nanoset_core.raw.opening import open_raw, source_changed, status_of
from nanoset_core.raw.rejects import NO_OFFSET
from nanoset_core.storage.remote_folder import RawFolder

BATCH_BYTES = 1 << 20
"""Of values, about, that are read from Parquet at once."""
BATCH_ROWS = 1024
COUNTED_ROWS = 1 << 20
"""Of which no column is read: pyarrow notes every batch of a row group before it gives the first."""
REPEATED_BYTES = 256 << 20
"""Of one batch, when each row holds the longest value that a dictionary can have."""
LISTED_VALUES = 1 << 24
"""Values in the lists of one column of a row group: nulls take no room, so that a small file may hold 2^31."""
READ_BYTES = 1 << 20
ROWS_PER_BYTE, FREE_ROWS = 1032, 1 << 20
"""A file gives no more rows than this: as many as gzip can make lines of a byte. Nulls, runs and numbers of rows take
no room, so that a file of a few hundred bytes could hold 2^62 of them."""
_FILE_MAGIC = b"ARROW1"
_FILE_HEAD_BYTES = 8
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"

Choose = Callable[[Any], Sequence[str] | None]
"""Takes a file's Arrow schema and gives the columns to read (a.b for field b of the struct a), or None for all."""


@dataclass(frozen=True, slots=True)
class TableBatch:
    """Consecutive rows."""

    rows: Any
    """A pyarrow.RecordBatch, with the chosen columns at least."""
    first_row: int
    """1-based number, in its file, of the first row."""
    position: int
    """Stored bytes up to its end, roughly."""
    release: Callable[[], None]
    """Lets go of the memory of what was read so far; what is read again comes back by itself."""


class _DamageError(Exception):
    """A file that is damaged in a way that Arrow does not notice."""


_DAMAGE = (_DamageError, UnpackedTooLargeError, UnicodeDecodeError, EOFError, IndexError, struct.error)


def read_table(path: RawFolder, choose: Choose, expected_bytes: int | None = None) -> Iterator[TableBatch | Fault]:
    """Rows of a Parquet or Arrow file in order; a fault comes last, after every batch that could be read.

    Parquet is read page by page, in slices of about 1 MiB of the chosen columns. Arrow files, in the file format or
    the stream format, are mapped: memory does not grow with their record batches, if the caller releases what it has
    read, unless these are compressed; then one may unpack to 2 GiB. (Who truncates a mapped file meanwhile kills its
    reader.) An Arrow file without its footer is read as the stream that it holds. A stream without an end-of-stream
    mark, or with more bytes after it, has a fault; so has a file with far more rows than bytes.

    Args:
        path: the file; one that does not end in .parquet is an Arrow file.
        choose: names the columns to read.
        expected_bytes: the file's size in the inventory.

    Raises:
        MissingError, InputError: see open_raw; it is also raised where memory runs out.
        SourceChangedError: the file has another size.
    """
    import pyarrow as pa

    rows = 0
    with open_raw(path) as file:
        size = status_of(file).st_size
        if expected_bytes not in (None, size):
            raise source_changed(path, f"{size:,} bytes", f"{expected_bytes:,} bytes")
        try:
            for batch, position, release in (_parquet_batches if is_parquet(path.name) else _arrow_batches)(
                file, size, choose
            ):
                _check_rows(rows + batch.num_rows, size)
                yield TableBatch(batch, rows + 1, position, release)
                rows += batch.num_rows
        except MemoryError:
            raise  # pyarrow's is an ArrowException as well
        except (pa.ArrowException, OSError, *_DAMAGE) as error:
            if isinstance(error, NanosetError) or (isinstance(error, OSError) and error.errno is not None):
                raise  # the disk and not the data; pyarrow's own have no number
            yield _named(table_fault(path, rows + 1, error), file)


def _named(fault: Fault, file: BinaryIO) -> Fault:
    """The fault of a table, with what the file looks like where that is no table of its kind."""
    file.seek(0)
    head = file.read(HEAD_BYTES)
    magic = {"corrupt_parquet": b"PAR1", "corrupt_arrow": _FILE_MAGIC}[fault.reason]
    kind = looks_like(head, magic)
    return fault if kind is None else replace(fault, detail=f"the file is {kind}; {fault.detail}")


def table_fault(path: RawFolder, row: int, error: Exception) -> Fault:
    """A table that cannot be read from a row onwards."""
    reason = "corrupt_parquet" if is_parquet(path.name) else "corrupt_arrow"
    message = " ".join(str(error).split())[:300] or type(error).__name__
    return Fault(NO_OFFSET, reason, f"{message}; nothing was read from row {row:,} on", row)


def _check_rows(rows: int, size: int) -> None:
    if rows > ROWS_PER_BYTE * size + FREE_ROWS:
        raise _DamageError(f"more rows than a file of {size:,} bytes can be meant to hold: {rows:,} or more")


def _nothing() -> None:
    pass


def _parquet_batches(file: BinaryIO, size: int, choose: Choose) -> Iterator[tuple[Any, int, Callable[[], None]]]:
    import pyarrow.parquet as pq

    # Without pre_buffer=False a row group is held whole, whatever the buffer's size.
    table = pq.ParquetFile(file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True)
    columns = choose(table.schema_arrow)
    total, given = table.metadata.num_rows, 0
    _check_rows(total, size)
    for number in range(table.metadata.num_row_groups):
        group = table.metadata.row_group(number)
        before = given
        _check_rows(given + group.num_rows, size)
        step = COUNTED_ROWS if columns == [] else _batch_rows(file, table, number, columns)
        for batch in table.iter_batches(step, row_groups=[number], columns=columns, use_threads=False):
            given += batch.num_rows
            yield batch, size * given // max(total, 1), _nothing
        if given - before != group.num_rows:
            raise _DamageError(f"row group {number} gave {given - before:,} of its {group.num_rows:,} rows")
    if given != total:
        raise _DamageError(f"the row groups hold {given:,} of the {total:,} rows that the footer promises")


def _batch_rows(file: BinaryIO, table: Any, number: int, columns: Sequence[str] | None) -> int:
    """So many rows that their values are about a batch, by the average of the row group; fewer where each of them
    may repeat a long value of a dictionary."""
    group, paths = table.metadata.row_group(number), [table.schema.column(n).path for n in range(len(table.schema))]
    _check_lists(table, number, columns)
    # pyarrow aborts the process where a column's metadata is damaged, unless reading the column has said so before.
    next(table.iter_batches(1, row_groups=[number], columns=columns, use_threads=False), None)
    chosen = [
        group.column(place)
        for place, path in enumerate(paths)
        if columns is None or any(f"{path}.".startswith(f"{name}.") for name in columns)
    ]
    row_bytes = sum(chunk.total_uncompressed_size for chunk in chosen) / max(group.num_rows, 1)
    repeated_bytes = sum(_dictionary_bytes(file, chunk) for chunk in chosen)
    most = min(BATCH_ROWS, BATCH_BYTES / max(row_bytes, 1), REPEATED_BYTES / max(repeated_bytes, 1))
    return int(max(1, most))


def _check_lists(table: Any, number: int, columns: Sequence[str] | None) -> None:
    """Refuse columns of lists that memory may not hold: all values of a row are read at once."""
    for place in range(len(table.schema)):
        column = table.schema.column(place)
        is_chosen = columns is None or any(f"{column.path}.".startswith(f"{name}.") for name in columns)
        if is_chosen and column.max_repetition_level:
            count = table.metadata.row_group(number).column(place).num_values
            if count > LISTED_VALUES:
                raise _DamageError(f"{count:,} values in the lists of {column.path}, more than {LISTED_VALUES:,}")


def _dictionary_bytes(file: BinaryIO, chunk: Any) -> int:
    """Size of a column chunk's dictionary, unpacked: no value in it is longer. 0 where it has none.

    The chunk begins with a PageHeader in Thrift's compact protocol: field 1 is the page's type (2: a dictionary), field
    2 its unpacked size; each a byte 0x15 and a zigzag varint.
    """
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    file.seek(max(begin, 0))
    head = file.read(16)
    if head[:2] != b"\x15\x04":
        return 0
    size = 0
    for place, byte in enumerate(head[3:8]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return size >> 1 if head[2:3] == b"\x15" else 0


def _arrow_batches(file: BinaryIO, size: int, choose: Choose) -> Iterator[tuple[Any, int, Callable[[], None]]]:
    import pyarrow as pa

    if size == 0:
        raise _DamageError("the file is empty")
    mapped = _mapped(file, size)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    data = pa.py_buffer(mapped)
    is_file = mapped[: len(_FILE_MAGIC)] == _FILE_MAGIC
    batches = _file_batches(data, choose) if is_file else _stream_batches(data, 0, choose)
    for batch, position in batches:
        yield batch, position, lambda: mapped.madvise(mmap.MADV_DONTNEED)


def _mapped(file: BinaryIO, size: int) -> mmap.mmap:
    """The file as a memory map; an object in a bucket is copied to the disk first, into a file without a name."""
    if not hasattr(file, "facts"):
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, READ_BYTES)
        copy.flush()
        return mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)


def _file_batches(data: Any, choose: Choose) -> Iterator[tuple[Any, int]]:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(data)
    except pa.ArrowException as error:
        yield from _stream_batches(data, _FILE_HEAD_BYTES, choose)
        raise _DamageError(f"the footer cannot be read: {error}") from error
    choose(reader.schema)  # all are read nevertheless: of chosen ones Arrow would make copies
    guard = FileGuard(data)
    for number in range(reader.num_record_batches):
        guard.check(number)
        batch = reader.get_batch(number)
        batch.validate()
        yield batch, data.size * (number + 1) // reader.num_record_batches


def _stream_batches(data: Any, begin: int, choose: Choose) -> Iterator[tuple[Any, int]]:
    import pyarrow as pa

    source = pa.BufferReader(data)
    source.seek(begin)
    options = _read_options(pa.ipc.open_stream(source).schema, choose)
    source.seek(begin)
    reader = pa.ipc.open_stream(source, options=options)
    guard = StreamGuard(pa.BufferReader(data.slice(begin)))
    while True:
        guard.next_batch()
        batch = next(reader, None)
        if batch is None:
            break
        batch.validate()
        yield batch, source.tell()
    end = source.tell()
    if begin == 0:
        _check_stream_end(data, end)


def _check_stream_end(data: Any, end: int) -> None:
    """That a stream was ended by its writer, and is all of the file."""
    # Before Arrow 0.15 messages began without a continuation mark, and so did the end.
    ending = _END_OF_STREAM if data.slice(0, 4).to_pybytes() == _END_OF_STREAM[:4] else _END_OF_STREAM[4:]
    if data.slice(max(end - len(ending), 0), len(ending)).to_pybytes() != ending:
        raise _DamageError("the stream has no end-of-stream mark, so its last batches may be missing")
    if end != data.size:
        raise _DamageError(f"{data.size - end:,} bytes follow the end of the stream at byte {end:,}")


def _read_options(schema: Any, choose: Choose) -> Any:
    import pyarrow as pa

    columns = choose(schema)
    if columns is None:
        return pa.ipc.IpcReadOptions(use_threads=False)
    wanted = [
        number
        for number, name in enumerate(schema.names)
        if any(f"{column}.".startswith(f"{name}.") for column in columns)
    ]
    return pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted)
