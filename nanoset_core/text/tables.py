"""Parquet and Arrow files → slices of record batches, up to the first fault; their columns as
texts.
"""

from __future__ import annotations

import io
import mmap
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from typing import Any, BinaryIO, TypeVar

import numpy as np

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.endings import HEAD_BYTES, format_of, looks_like
from nanoset_core.text.parsing import NotADocumentError, find
from nanoset_core.text.pieces import open_raw, source_changed, status_of
from nanoset_core.text.rejects import AMBIGUOUS_COLUMN, EXCERPT_BYTES, FaultError, excerpt

SLICE_BYTES = 1 << 20
"""Of values, about, that are read and given at once."""
BATCH_ROWS = 1024
REPEATED_BYTES = 256 << 20
"""Of one batch, when each row holds the longest value that a dictionary can have."""
READ_BYTES = 1 << 20
_FILE_MAGIC = b"ARROW1"
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_UUID = "arrow.uuid"
"""Arrow's name of the type that Parquet calls UUID."""
_UUID_HYPHENS = (8, 12, 16, 20)
"""Numbers of the hexadecimal digits of a UUID before which it has a hyphen."""

Choose = Callable[[Any], Sequence[str] | None]
"""Takes a file's Arrow schema and gives the columns to read (a.b for field b of the struct a), or
None for all.
"""
Why = tuple[str, str, str]
"""Why a row holds no text: reason, detail, excerpt."""
T = TypeVar("T")


class TooFarError(Exception):
    """Something would be slow or large to read."""


class _DamageError(Exception):
    """Damage that Arrow does not notice."""


def read_table(
    path: RawFolder,
    choose: Choose,
    convert: Callable[[Any, int], T],
    expected_bytes: int | None = None,
    *,
    rows: Sequence[int] | None = None,
    most_skipped_bytes: int | None = None,
) -> Iterator[T]:
    """Read the rows of a Parquet or Arrow file in order, in slices of about 1 MiB of the chosen
    columns.

    Parquet is read page by page. Arrow files, in the file format or the stream format, are mapped:
    memory does not grow with their record batches, unless these are compressed; those are unpacked
    whole. (Who truncates a mapped file meanwhile kills its reader.) Of one in a bucket a record
    batch at a time is in memory. A stream without an end-of-stream mark, or with more bytes after
    it, has a fault.

    Args:
        path: the file; one that does not end in .parquet is an Arrow file.
        choose: names the columns to read.
        convert: makes what is given of a pyarrow.RecordBatch with these columns at least, and the
            1-based number of its first row. An error of Arrow's in it is a fault of the file.
        expected_bytes: the file's size in the inventory; SourceChangedError where it has another.
        rows: 1-based numbers, ascending, of the only rows to give, each in a slice of its own. Row
            groups of a Parquet file that hold none of them are not read.
        most_skipped_bytes: how much of a row group may be unpacked to get to one of `rows`;
            `convert` takes a TooFarError in place of those that lie further.

    Raises:
        FaultError: the file cannot be read to its end.
        MissingError, InputError: see open_raw.
    """
    import pyarrow as pa

    row, kind = 1, "parquet" if format_of(path.name) == "parquet" else "arrow"
    with open_raw(path) as file:
        size = status_of(file).st_size
        if expected_bytes not in (None, size):
            raise source_changed(path, f"{size:,} bytes", f"{expected_bytes:,} bytes")
        try:
            mapped = None if kind == "parquet" else _mapped(file, size)
            for begin, batch in (
                _parquet_batches(file, choose, rows, most_skipped_bytes)
                if kind == "parquet"
                else _arrow_batches(mapped or _Bounded(file, size), choose)
            ):
                if isinstance(batch, TooFarError):
                    yield convert(batch, begin)
                    continue
                end, step = begin + batch.num_rows, 1 if rows else _slice_rows(batch)
                for row in _within(rows, begin, end)[::step]:
                    yield convert(batch.slice(row - begin, step), row)
                    if mapped is not None:
                        mapped.madvise(mmap.MADV_DONTNEED)  # it is mapped again when it is read
                row = end
        except MemoryError:
            raise  # pyarrow's is an ArrowException as well
        except (
            pa.ArrowException,
            _DamageError,
            OSError,
            UnicodeDecodeError,
            EOFError,
            IndexError,
        ) as error:
            if isinstance(error, NanosetError) or (
                isinstance(error, OSError) and error.errno is not None
            ):
                raise  # the disk and not the data; pyarrow's own have no number
            file.seek(0)
            other = looks_like(file.read(HEAD_BYTES), b"PAR1" if kind == "parquet" else _FILE_MAGIC)
            message = " ".join(str(error).split())[:300] or type(error).__name__
            detail = f"{'' if other is None else f'the file is {other}; '}{message}; nothing was read from row {row:,} on"
            raise FaultError(f"corrupt_{kind}", detail, line=row) from error


def _slice_rows(batch: Any) -> int:
    return int(
        max(1, min(SLICE_BYTES / max(sum(map(row_bytes, batch.columns)), 1), SLICE_BYTES >> 6))
    )


def _within(rows: Sequence[int] | None, begin: int, end: int) -> Sequence[int]:
    return (
        range(begin, end)
        if rows is None
        else rows[bisect_left(rows, begin) : bisect_left(rows, end)]
    )


def _chosen(paths: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Return the places of the columns that are to be read, are within one of those, or hold one."""
    names = [""] if columns is None else [f"{name}." for name in columns]
    return [
        n
        for n, path in enumerate(paths)
        if any(f"{path}.".startswith(name) or name.startswith(f"{path}.") for name in names)
    ]


def _parquet_batches(
    file: BinaryIO, choose: Choose, rows: Sequence[int] | None, most_skipped_bytes: int | None
) -> Iterator[tuple[int, Any]]:
    import pyarrow.parquet as pq

    # Without pre_buffer=False a row group is held whole, whatever the buffer's size.
    table = pq.ParquetFile(
        file, buffer_size=READ_BYTES, pre_buffer=False, page_checksum_verification=True
    )
    metadata, columns, row = table.metadata, choose(table.schema_arrow), 1
    # rows are counted by what is there
    columns = table.schema_arrow.names[:1] if columns == [] else columns
    for number in range(metadata.num_row_groups):
        group, begin = metadata.row_group(number), row
        row += group.num_rows
        asked, row_size = _within(rows, begin, row), group.total_byte_size / max(group.num_rows, 1)
        most = row if most_skipped_bytes is None else begin + most_skipped_bytes / max(row_size, 1)
        near = asked[: bisect_right(asked, most)]
        if near or rows is None:
            yield from _group_batches(
                table, number, columns, begin, row if rows is None else near[-1] + 1
            )
        for far in asked[len(near) :]:
            yield far, TooFarError(f"{int((far - begin) * row_size):,} bytes into a row group")
    if row - 1 != metadata.num_rows:
        raise _DamageError(
            f"the row groups hold {row - 1:,} of the {metadata.num_rows:,} rows of the footer"
        )


def _group_batches(
    table: Any, number: int, columns: Sequence[str] | None, row: int, until: int
) -> Iterator[tuple[int, Any]]:
    """Yield the batches of a row group, which begins at `row`, up to the one that holds the row
    before `until`.
    """
    rows = table.metadata.row_group(number).num_rows
    end, size = row + rows, _batch_rows(table, number, columns)
    for batch in table.iter_batches(size, row_groups=[number], columns=columns, use_threads=False):
        yield row, batch.slice(0, until - row)
        row += batch.num_rows
        if until <= row < end:
            return
    if row != end:
        raise _DamageError(f"row group {number} gave {rows - end + row:,} of its {rows:,} rows")


def _batch_rows(table: Any, number: int, columns: Sequence[str] | None) -> int:
    """Choose how many rows of a row group to read at once: about SLICE_BYTES, by its average.

    Fewer where each may repeat a long value of a dictionary.
    """
    # pyarrow aborts the process where a column's metadata is damaged, unless reading the column has
    # said so before.
    next(table.iter_batches(1, row_groups=[number], columns=columns, use_threads=False), None)
    group, paths = (
        table.metadata.row_group(number),
        [table.schema.column(n).path for n in range(len(table.schema))],
    )
    chosen = [group.column(place) for place in _chosen(paths, columns)]
    row_size = sum(chunk.total_uncompressed_size for chunk in chosen) / max(group.num_rows, 1)
    repeated = sum(map(_dictionary_bytes, chosen))
    return int(
        max(1, min(BATCH_ROWS, SLICE_BYTES / max(row_size, 1), REPEATED_BYTES / max(repeated, 1)))
    )


def _dictionary_bytes(chunk: Any) -> float:
    """Estimate the size of a column chunk's dictionary, unpacked: no value in it is longer. 0 where
    it has none.
    """
    stored = chunk.data_page_offset - (chunk.dictionary_page_offset or chunk.data_page_offset)
    return float(
        max(stored, 0) * chunk.total_uncompressed_size / max(chunk.total_compressed_size, 1)
    )


def _mapped(file: BinaryIO, size: int) -> mmap.mmap | None:
    """Map the file into memory; None where it is an object in a bucket."""
    if size == 0:
        raise _DamageError("the file is empty")
    with suppress(io.UnsupportedOperation):  # an object has no number
        return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
    return None


class _Bounded:
    """An object for Arrow to read, which takes memory for as much as a damaged file says that there
    is.
    """

    def __init__(self, file: BinaryIO, size: int) -> None:
        self._file, self._size = file, size
        self.seek, self.tell, self.closed, self.close = file.seek, file.tell, False, lambda: None

    def read(self, count: int = -1) -> bytes:
        left = max(0, self._size - self._file.tell())
        return self._file.read(left if count < 0 else min(count, left))


def _arrow_batches(found: mmap.mmap | _Bounded, choose: Choose) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    if isinstance(found, mmap.mmap):
        found.madvise(mmap.MADV_SEQUENTIAL)
    source, row = (
        pa.PythonFile(found, "r")
        if isinstance(found, _Bounded)
        else pa.BufferReader(pa.py_buffer(found)),
        1,
    )
    is_file = source.read_at(len(_FILE_MAGIC), 0) == _FILE_MAGIC
    for batch in _file_batches(source, choose) if is_file else _stream_batches(source, choose):
        batch.validate()
        yield row, batch
        row += batch.num_rows


def _file_batches(source: Any, choose: Choose) -> Iterator[Any]:
    import pyarrow as pa

    reader = pa.ipc.open_file(source)
    # All columns are read, and others left out after: of chosen ones Arrow would make copies.
    wanted = _chosen(reader.schema.names, choose(reader.schema))
    return (reader.get_batch(number).select(wanted) for number in range(reader.num_record_batches))


def _stream_batches(source: Any, choose: Choose) -> Iterator[Any]:
    import pyarrow as pa

    source.seek(0)
    schema = pa.ipc.open_stream(source).schema
    source.seek(0)
    options = pa.ipc.IpcReadOptions(
        use_threads=False, included_fields=_chosen(schema.names, choose(schema))
    )
    yield from pa.ipc.open_stream(source, options=options)
    end = source.tell()
    # Before Arrow 0.15 messages began without a continuation mark, and so did the end.
    ending = _END_OF_STREAM if source.read_at(4, 0) == _END_OF_STREAM[:4] else _END_OF_STREAM[4:]
    if source.read_at(len(ending), max(end - len(ending), 0)) != ending:
        raise _DamageError(
            "the stream has no end-of-stream mark, so its last batches may be missing"
        )
    if end != source.size():
        raise _DamageError(
            f"{source.size() - end:,} bytes follow the end of the stream at byte {end:,}"
        )


def row_bytes(array: Any) -> float:
    """Return about how many bytes a row has: the average, or those of the longest value where rows
    may share values.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(array.storage)
    if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
        # A view is 16 bytes, of which the first four are its length.
        return float(
            np.frombuffer(array.buffers()[1], "<i4", 4 * len(array), 16 * array.offset)[::4].max(
                initial=0
            )
        )
    if not pa.types.is_dictionary(kind) and not pa.types.is_run_end_encoded(kind):
        return float(array.get_total_buffer_size()) / max(len(array), 1)
    shared = array.dictionary if pa.types.is_dictionary(kind) else array.values
    if is_bytes(as_bytes(shared)):
        return float(pc.max(pc.binary_length(shared)).as_py() or 0)
    return (
        float(shared.get_total_buffer_size())
        if pa.types.is_nested(shared.type)
        else row_bytes(shared)
    )


def as_bytes(array: Any) -> Any:
    """View strings as the bytes that they are, which need not be UTF-8."""
    import pyarrow as pa

    of = {
        pa.string(): pa.binary(),
        pa.large_string(): pa.large_binary(),
        pa.string_view(): pa.binary_view(),
    }
    return array.view(of[array.type]) if array.type in of else array


def is_bytes(array: Any) -> bool:
    """Return whether an array holds bytes, not as views."""
    from pyarrow import types

    return bool(types.is_binary(array.type) or types.is_large_binary(array.type))


def plain(array: Any) -> Any:
    """Unwrap extension types, dictionaries, runs and views, and turn strings into bytes, which need
    not be UTF-8.

    A UUID becomes its usual text, 6ba7b810-9dad-11d1-80b4-00c04fd430c8, and not the 16 bytes that
    store it. Dictionaries and runs are expanded: pass a slice.

    Raises:
        pyarrow.ArrowException: the array is damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(array.type, pa.BaseExtensionType):
        if array.type.extension_name == _UUID:
            return _uuid_texts(array.storage)
        return plain(array.storage)
    is_dictionary = pa.types.is_dictionary(array.type)
    if is_dictionary:
        array = pa.DictionaryArray.from_arrays(
            array.indices, as_bytes(array.dictionary), safe=False
        )
    array = as_bytes(array)
    array.validate(full=True)
    if is_dictionary:
        return plain(array.dictionary_decode())
    if pa.types.is_run_end_encoded(array.type):
        return plain(pc.run_end_decode(array))
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(array.type) else array


def _check_unambiguous(schema: Any, names: Sequence[str]) -> None:
    """Raise FaultError if one of the names that lead to a value is that of several columns or
    fields.
    """
    fields = list(schema)
    for depth, name in enumerate(names, start=1):
        matching = [field for field in fields if field.name == name]
        if len(matching) > 1:
            path = ".".join(names[:depth])
            detail = f"{len(matching)} columns are named {path!r}, so that it cannot be told which of them is meant"
            raise FaultError(AMBIGUOUS_COLUMN, f"{detail}: rename or remove all but one", line=1)
        if depth < len(names):
            fields = list(matching[0].type)


def _holds_uuids(kind: Any) -> bool:
    """Return whether a column of this Arrow type holds UUIDs, which are ids and no text."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind) or pa.types.is_run_end_encoded(kind):
        return _holds_uuids(kind.value_type)
    return isinstance(kind, pa.BaseExtensionType) and kind.extension_name == _UUID


def _uuid_texts(storage: Any) -> Any:
    """Return UUIDs as text: an Arrow array of 36 bytes of ASCII each, null where the UUID is.

    Args:
        storage: their bytes, an Arrow array of fixed_size_binary[16].
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    storage.validate(full=True)
    if storage.null_count == len(storage):
        return pa.nulls(len(storage), pa.binary())

    # (n, 16) the bytes of each UUID → (n, 36) its characters
    start, stop = storage.offset, storage.offset + len(storage)
    values = np.frombuffer(storage.buffers()[1], np.uint8, 16 * stop).reshape(-1, 16)[start:]
    hex_digits = np.frombuffer(values.tobytes().hex().encode(), np.uint8).reshape(-1, 32)
    characters = np.insert(hex_digits, _UUID_HYPHENS, ord("-"), axis=1)

    texts = pa.Array.from_buffers(
        pa.binary(36), len(storage), [None, pa.py_buffer(characters.tobytes())]
    )
    return pc.if_else(storage.is_valid(), texts.cast(pa.binary()), None)


def locate(schema: Any, key: str, *, text: bool = False) -> tuple[str, ...]:
    """Return the names that lead to a key, which is found in the fields of a schema as in a line's
    object.

    Raises:
        NotADocumentError: with the reason that every row has: missing_key, not_an_object, or
            text_not_a_string where a text is looked for in a column that holds none.
        FaultError: two columns, or two fields of a struct, have the name: which of them is meant
            cannot be told.
    """
    import pyarrow as pa

    field, names = find(schema, key, _fields)
    _check_unambiguous(schema, names)
    if text and (_holds_uuids(field.type) or not is_bytes(plain(pa.nulls(0, field.type)))):
        raise NotADocumentError("text_not_a_string", f"{key!r} is a column of {field.type}")
    return names


def _fields(value: Any, name: str) -> dict[str, Any]:
    """Return the fields by name, of a schema or of a field whose type is a struct."""
    import pyarrow as pa

    fields = value if isinstance(value, pa.Schema) else value.type
    if name and not pa.types.is_struct(fields):
        raise NotADocumentError("not_an_object", f"{name!r} is a column of {fields}")
    return {item.name: item for item in fields}


def column_at(rows: Any, names: tuple[str, ...]) -> Any:
    """Return the values at the end of some names in a record batch, as `plain` gives them; null
    below a null struct.
    """
    return plain(_field_at(rows, names))


def _field_at(rows: Any, names: tuple[str, ...]) -> Any:
    import pyarrow.compute as pc

    whole, places = rows.to_struct_array(), list[int]()
    inside = whole.type
    for name in names:
        places.append(max(number for number, item in enumerate(inside) if item.name == name))
        inside = inside[places[-1]].type
    return pc.struct_field(whole, places)


def texts_at(
    rows: Any, names: tuple[str, ...], max_bytes: int
) -> tuple[list[str | None], dict[int, Why], int]:
    """Return the texts at the end of some names, why other rows have none, and the UTF-8 bytes of
    all.

    Rows have none that are null, not UTF-8, or above `max_bytes`.
    """
    import pyarrow.compute as pc

    array = column_at(rows, names)
    lengths = pc.binary_length(array)
    texts: list[str | None] = [None] * len(array)
    bad: dict[int, Why] = {}
    with suppress(UnicodeDecodeError):
        texts = strings(array) if (pc.max(lengths).as_py() or 0) <= max_bytes else texts
    left = [row for row, text in enumerate(texts) if text is None]
    levels = [_field_at(rows, names[:depth]) for depth in range(1, len(names))] if left else []
    for row in left:
        value = array[row]
        depth = next(
            (depth for depth, level in enumerate([*levels, array], 1) if not level[row].is_valid), 0
        )
        if depth:
            reason = "text_not_a_string" if depth == len(names) else "not_an_object"
            bad[row] = reason, f"{'.'.join(names[:depth])!r} is null", ""
            continue
        data = memoryview(value.as_buffer())  # no copy of a long text
        try:
            if len(data) > max_bytes:
                bad[row] = (
                    "line_too_long",
                    f"{len(data):,} bytes",
                    excerpt(bytes(data[:EXCERPT_BYTES])),
                )
            else:
                texts[row] = str(data, "utf-8")
        except UnicodeDecodeError as error:
            found = f"byte 0x{error.object[error.start]:02x} at byte {error.start} of the text: {error.reason}"
            bad[row] = "invalid_utf8", found, excerpt(error.object)
    return texts, bad, pc.sum(lengths).as_py() or 0


def strings(array: Any, errors: str = "strict") -> list[str | None]:
    """Return an array of bytes as strings; `errors` as in `bytes.decode`."""
    import pyarrow as pa

    try:
        kind = pa.large_string() if pa.types.is_large_binary(array.type) else pa.string()
        texts: list[str | None] = array.view(kind).to_numpy(zero_copy_only=False).tolist()
    except pa.ArrowException:
        return [None if data is None else data.decode(errors=errors) for data in array.to_pylist()]
    return texts
