"""Parquet and Arrow files → slices of record batches, up to the first fault."""

from __future__ import annotations

import mmap
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any, BinaryIO

from nanoset_core.errors import NanosetError
from nanoset_core.raw.columns import forget_dictionaries, row_bytes
from nanoset_core.raw.endings import HEAD_BYTES, is_parquet, looks_like
from nanoset_core.raw.rejects import FaultError
from nanoset_core.raw.stored import open_raw, source_changed, status_of
from nanoset_core.storage.location import RawFolder

SLICE_BYTES = 1 << 20
"""Of values, about, that are read and given at once."""
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


class TooFarError(Exception):
    """Something would be slow or large to read."""


def read_table(
    path: RawFolder,
    choose: Choose,
    expected_bytes: int | None = None,
    *,
    first_row: int = 1,
    most_skipped_bytes: int | None = None,
) -> Iterator[tuple[int, Any]]:
    """Read the rows of a Parquet or Arrow file in order, in slices of about 1 MiB of the chosen columns.

    Parquet is read page by page. Arrow files, in the file format or the stream format, are mapped: memory does not grow
    with their record batches, unless these are compressed; those are unpacked whole. (Who truncates a mapped file
    meanwhile kills its reader.) An Arrow file without its footer is read as the stream that it holds. A stream without
    an end-of-stream mark, or with more bytes after it, has a fault; so has a file with far more rows than bytes.

    Args:
        path: the file; one that does not end in .parquet is an Arrow file.
        choose: names the columns to read.
        expected_bytes: the file's size in the inventory.
        first_row: 1-based number of the row to begin with.
        most_skipped_bytes: how much of a Parquet file may be unpacked to get there.

    Yields:
        (1-based number of the first row in the file, pyarrow.RecordBatch with the chosen columns at least).

    Raises:
        FaultError: the file cannot be read to its end.
        MissingError, InputError: see open_raw; InputError, too, where memory runs out.
        SourceChangedError: the file has another size.
        TooFarError: more would have to be unpacked than `most_skipped_bytes`.
    """
    import pyarrow as pa

    row = 1
    with open_raw(path) as file:
        size = status_of(file).st_size
        if expected_bytes not in (None, size):
            raise source_changed(path, f"{size:,} bytes", f"{expected_bytes:,} bytes")
        batches = (
            _parquet_batches(file, size, choose, first_row, most_skipped_bytes)
            if is_parquet(path.name)
            else _arrow_batches(file, size, choose)
        )
        try:
            for begin, batch, release in batches:
                _check_rows(begin - 1 + batch.num_rows, size)
                step, row, end = _slice_rows(batch), max(begin, first_row), begin + batch.num_rows
                while row < end:
                    part = batch.slice(row - begin, step)
                    yield row, part
                    row += part.num_rows
                    release()
                row = end
                forget_dictionaries()
        except MemoryError:
            raise  # pyarrow's is an ArrowException as well
        except (pa.ArrowException, OSError, UnicodeDecodeError, EOFError, IndexError) as error:
            if isinstance(error, NanosetError) or (isinstance(error, OSError) and error.errno is not None):
                raise  # the disk and not the data; pyarrow's own have no number
            file.seek(0)
            raise table_fault(path.name, row, error, file.read(HEAD_BYTES)) from error
        finally:
            forget_dictionaries()


def table_fault(path: str, row: int, error: Exception, head: bytes = b"") -> FaultError:
    """Return the fault of a table that cannot be read from a row onwards; `head` tells what else the file may be."""
    kind, magic = ("parquet", b"PAR1") if is_parquet(path) else ("arrow", _FILE_MAGIC)
    other = looks_like(head, magic)
    message = " ".join(str(error).split())[:300] or type(error).__name__
    detail = f"{'' if other is None else f'the file is {other}; '}{message}; nothing was read from row {row:,} on"
    return FaultError(f"corrupt_{kind}", detail, line=row)


def _check_rows(rows: int, size: int) -> None:
    if rows > ROWS_PER_BYTE * size + FREE_ROWS:
        raise _damage(f"more rows than a file of {size:,} bytes can be meant to hold: {rows:,} or more")


def _damage(what: str) -> Exception:
    """Return an error for damage that Arrow does not notice."""
    import pyarrow as pa

    error: Exception = pa.ArrowInvalid(what)
    return error


def _slice_rows(batch: Any) -> int:
    most = SLICE_BYTES / max(sum(map(row_bytes, batch.columns)), 1)
    return int(max(1, min(most, SLICE_BYTES >> 6)))


def _is_chosen(path: str, columns: Sequence[str] | None) -> bool:
    """Return whether a column, or a field within it, is one of those to be read."""
    return columns is None or any(f"{path}.".startswith(f"{name}.") for name in columns)


def _parquet_batches(
    file: BinaryIO, size: int, choose: Choose, first_row: int, most_skipped_bytes: int | None
) -> Iterator[tuple[int, Any, Callable[[], object]]]:
    import pyarrow.parquet as pq

    # Without pre_buffer=False a row group is held whole, whatever the buffer's size.
    table = pq.ParquetFile(file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True)
    metadata, columns, row = table.metadata, choose(table.schema_arrow), 1
    _check_rows(metadata.num_rows, size)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        end = row + group.num_rows
        _check_rows(end - 1, size)
        if end <= first_row:
            row = end
            continue
        skipped = group.total_byte_size * max(first_row - row, 0) // max(group.num_rows, 1)
        if most_skipped_bytes is not None and skipped > most_skipped_bytes:
            raise TooFarError(f"{skipped:,} bytes into a row group")
        step = COUNTED_ROWS if columns == [] else _batch_rows(file, table, number, columns)
        for batch in table.iter_batches(step, row_groups=[number], columns=columns, use_threads=False):
            yield row, batch, bool
            row += batch.num_rows
        if row != end:
            raise _damage(f"row group {number} gave {group.num_rows - end + row:,} of its {group.num_rows:,} rows")
    if row - 1 != metadata.num_rows:
        raise _damage(f"the row groups hold {row - 1:,} of the {metadata.num_rows:,} rows that the footer promises")


def _batch_rows(file: BinaryIO, table: Any, number: int, columns: Sequence[str] | None) -> int:
    """Choose how many rows of a row group to read at once: about SLICE_BYTES, by its average.

    Fewer where each may repeat a long value of a dictionary. Lists that memory may not hold are refused: all values of
    a row are read at once.
    """
    group, schema = table.metadata.row_group(number), table.schema
    paths = [schema.column(place).path for place in range(len(schema))]
    chosen = [place for place, path in enumerate(paths) if _is_chosen(path, columns)]
    for place in chosen:
        is_listed = schema.column(place).max_repetition_level > 0
        if is_listed and (count := group.column(place).num_values) > LISTED_VALUES:
            raise _damage(f"{count:,} values in the lists of {paths[place]}, more than {LISTED_VALUES:,}")
    # pyarrow aborts the process where a column's metadata is damaged, unless reading the column has said so before.
    next(table.iter_batches(1, row_groups=[number], columns=columns, use_threads=False), None)
    chunks = [group.column(place) for place in chosen]
    row_size = sum(chunk.total_uncompressed_size for chunk in chunks) / max(group.num_rows, 1)
    repeated = sum(_dictionary_bytes(file, chunk) for chunk in chunks)
    return int(max(1, min(BATCH_ROWS, SLICE_BYTES / max(row_size, 1), REPEATED_BYTES / max(repeated, 1))))


def _dictionary_bytes(file: BinaryIO, chunk: Any) -> int:
    """Return the size of a column chunk's dictionary, unpacked: no value in it is longer. 0 where it has none.

    The chunk begins with a PageHeader in Thrift's compact protocol: field 1 is the page's type (2: a dictionary), field
    2 its unpacked size; each a byte 0x15 and a zigzag varint.
    """
    begin = chunk.data_page_offset
    if chunk.has_dictionary_page and 0 < chunk.dictionary_page_offset < begin:
        begin = chunk.dictionary_page_offset
    file.seek(max(begin, 0))
    head = file.read(8)
    if head[:3] != b"\x15\x04\x15":
        return 0
    size = 0
    for place, byte in enumerate(head[3:]):
        size |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            break
    return size >> 1


def _arrow_batches(file: BinaryIO, size: int, choose: Choose) -> Iterator[tuple[int, Any, Callable[[], object]]]:
    import pyarrow as pa

    if size == 0:
        raise _damage("the file is empty")
    mapped = _mapped(file, size)
    mapped.madvise(mmap.MADV_SEQUENTIAL)
    data = pa.py_buffer(mapped)
    is_file = mapped[: len(_FILE_MAGIC)] == _FILE_MAGIC
    row = 1
    for batch in _file_batches(data, choose) if is_file else _stream_batches(data, 0, choose):
        batch.validate()
        yield row, batch, lambda: mapped.madvise(mmap.MADV_DONTNEED)  # it is mapped again when it is read
        row += batch.num_rows


def _mapped(file: BinaryIO, size: int) -> mmap.mmap:
    """Map the file into memory; an object in a bucket is copied to a file without a name first."""
    if not hasattr(file, "facts"):
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    with tempfile.TemporaryFile() as copy:
        shutil.copyfileobj(file, copy, READ_BYTES)
        copy.flush()
        return mmap.mmap(copy.fileno(), size, access=mmap.ACCESS_READ)


def _file_batches(data: Any, choose: Choose) -> Iterator[Any]:
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(data)
    except pa.ArrowException as error:
        yield from _stream_batches(data, _FILE_HEAD_BYTES, choose)
        raise _damage(f"the footer cannot be read: {error}") from error
    # All columns are read, and others left out after: of chosen ones Arrow would make copies.
    wanted = _places(reader.schema, choose)
    for number in range(reader.num_record_batches):
        batch = reader.get_batch(number)
        yield batch if wanted is None else batch.select(wanted)


def _stream_batches(data: Any, begin: int, choose: Choose) -> Iterator[Any]:
    import pyarrow as pa

    source = pa.BufferReader(data)
    source.seek(begin)
    wanted = _places(pa.ipc.open_stream(source).schema, choose)
    source.seek(begin)
    yield from pa.ipc.open_stream(source, options=pa.ipc.IpcReadOptions(use_threads=False, included_fields=wanted))
    end = source.tell()
    if begin:
        return  # the caller reports the damaged footer
    # Before Arrow 0.15 messages began without a continuation mark, and so did the end.
    ending = _END_OF_STREAM if data.slice(0, 4).to_pybytes() == _END_OF_STREAM[:4] else _END_OF_STREAM[4:]
    if data.slice(max(end - len(ending), 0), len(ending)).to_pybytes() != ending:
        raise _damage("the stream has no end-of-stream mark, so its last batches may be missing")
    if end != data.size:
        raise _damage(f"{data.size - end:,} bytes follow the end of the stream at byte {end:,}")


def _places(schema: Any, choose: Choose) -> list[int] | None:
    """Return the numbers of the columns to read; None for all."""
    columns = choose(schema)
    if columns is None:
        return None
    return [n for n, name in enumerate(schema.names) if any(f"{column}.".startswith(f"{name}.") for column in columns)]
