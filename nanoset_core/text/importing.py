"""Parquet and Arrow files → JSON lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.outputs.recorded import make_once
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.text.columns import is_bytes_array, plain_array, to_strings
from nanoset_core.text.contents import contents_of
from nanoset_core.text.endings import ARROW, PARQUET, is_table
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables import read_table

TARGETS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
_GZIP_LEVEL = 1
_ZSTD_LEVEL = 3


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What an import wrote."""

    files: int
    """Tables read."""
    rows: int
    """Lines written, one a row."""
    written_bytes: int
    """Of JSON lines, before compression."""
    stored_bytes: int
    """Size of the target."""


def import_parquet(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
) -> ImportFacts:
    """Write the rows of Parquet and Arrow files as JSON lines: one object a row, in order, UTF-8,
    columns as keys.

    Every column is in every object, null or not, in the order of its file; for values see
    json_values. Reading the target gives the documents that reading the tables themselves gives.

    The target appears when it is whole. The same tables give the same bytes with the same versions
    of orjson (which decides how floats are spelled) and of the compressor. Memory is bounded as in
    read_table.

    Does what nanotron's tools/hf_datasets_to_json.py does for data sets that are on disk.

    Args:
        sources: files, and folders of .parquet and .arrow files, which are taken in natural order;
            those of Hugging Face `datasets` too.
        target: ends in .jsonl, .jsonl.gz or .jsonl.zst, which decides on the compression.
        columns: names of the columns to keep, in the order in which they are written; all when
            absent.

    Raises:
        ConfigError: the target has another ending, or a column is named twice.
        MissingError: a source is not there.
        InputError: a folder has no tables, a column is missing, or one has values that JSON cannot
            hold.
        FormatError: a table is damaged.
    """
    target = Path(target)
    if not target.name.endswith(TARGETS):
        expected = f"a name ending in {', '.join(TARGETS)}"
        raise ConfigError(
            "a target that is no JSON lines", where=target, expected=expected, remedy="rename it"
        )
    if columns is not None and (not columns or len(set(columns)) != len(columns)):
        raise ConfigError(
            "no columns, or one of them twice", found=list(columns), remedy="name each once"
        )
    paths = _table_files([sources] if isinstance(sources, str | os.PathLike) else sources)
    rows = written = 0
    with atomic_file(target) as file:
        compress, finish = _compressor(target.name)
        for path in paths:
            for count, lines in _lines(path, columns):
                rows += count
                written += len(lines)
                file.write(compress(lines))
        file.write(finish())
        stored = file.tell()
    return ImportFacts(len(paths), rows, written, stored)


def import_once(
    sources: Sequence[Path],
    target: Path,
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
) -> tuple[ImportFacts, bool]:
    """Write what `import_parquet` writes, unless it was made from these tables already; → (facts,
    whether it was made).

    Raises as import_parquet, and ConfigError where the target is a source, or something else that
    may not be replaced.
    """

    def make(path: Path) -> dict[str, int]:
        return asdict(import_parquet(sources, path, columns=columns))

    facts, made = make_once(
        "import-parquet",
        target,
        _table_files(sources),
        {"columns": columns},
        make,
        overwrite=overwrite,
    )
    return ImportFacts(**facts), made


def _table_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    paths: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            contents = contents_of(source)
            misnamed = [path for path in contents.misnamed if is_table(path)]
            if misnamed:
                raise InputError(
                    "a folder has the name of a table, and nothing in it is read",
                    where=source / misnamed[0],
                    expected="a file",
                    remedy="fetch or unpack the table again, or move the folder away",
                )
            found = [source / file.path for file in contents.ordered if is_table(file.path)]
            if not found:
                expected = f"files ending in {PARQUET}, {ARROW}"
                raise InputError(
                    "the folder has no tables",
                    where=source,
                    expected=expected,
                    remedy="name another",
                )
            paths += found
        elif source.exists():
            paths.append(source)
        else:
            raise MissingError(
                "no such file or folder", where=source, remedy="name a file or folder that is there"
            )
    if not paths:
        raise InputError(
            "nothing to import", expected="at least one file or folder", remedy="name one"
        )
    return paths


def _lines(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, their lines) of a table, in order, about a MiB of values at a time."""

    def chosen(schema: Any) -> Sequence[str] | None:
        for name in schema.names if columns is None else columns:
            if schema.names.count(name) != 1:
                raise InputError(
                    f"the column {name!r} is {'missing' if name not in schema.names else 'there twice'}",
                    where=path,
                    found=f"columns {', '.join(map(repr, schema.names[:20]))}",
                    remedy="choose other columns",
                )
        return columns

    try:
        yield from read_table(
            path, chosen, lambda rows, row: (rows.num_rows, _objects(path, row, rows, columns))
        )
    except FaultError as fault:
        raise FormatError(
            "a table is damaged",
            where=path,
            found=fault.detail,
            remedy="fetch or write it anew; as a file of a corpus, it is read up to the fault",
        ) from fault


def _objects(path: Path, first_row: int, rows: Any, columns: Sequence[str] | None) -> bytes:
    import pyarrow as pa

    names = columns or rows.schema.names
    values: list[list[Any]] = []
    for name in names:
        try:
            values.append(json_values(rows.column(rows.schema.names.index(name))))
        except MemoryError:
            raise  # pyarrow's is an ArrowException as well
        except (NotJsonError, pa.ArrowException) as error:
            raise InputError(
                f"the column {name!r} cannot be written as JSON",
                where=path,
                found=f"{error}, in rows {first_row:,} to {first_row + rows.num_rows - 1:,}",
                expected="text, numbers, times, and lists and structs of them",
                remedy="name the columns to keep, without this one",
            ) from error
    objects = zip(*values, strict=True) if names else [()] * rows.num_rows
    return b"".join(orjson.dumps(dict(zip(names, row, strict=True))) + b"\n" for row in objects)


def _compressor(name: str) -> tuple[Callable[[bytes], bytes], Callable[[], bytes]]:
    """Return (compress, finish) as the ending of a name asks."""
    from isal import isal_zlib
    from zstandard import ZstdCompressor

    if name.endswith(".jsonl"):
        return bytes, bytes
    made = (
        isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, 31)
        if name.endswith(".gz")
        else ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    )
    return made.compress, made.flush


class NotJsonError(ValueError):
    """Values that cannot be written as JSON without a loss; caught where the file and column are
    known.
    """


def json_values(array: Any) -> list[Any]:
    """Return one Python value per entry of an Arrow array, each of which JSON can hold; nulls are
    None.

    Integers and booleans are themselves. Floats are themselves, widened exactly to 64 bits; NaN and
    the infinities, which JSON lacks, are None. Decimals are strings with all their digits. Bytes
    are text. Times are ISO 8601 strings in the column's unit: 2024-01-31, 23:59:59.000001,
    2024-01-31T23:59:59.000001, and with a Z, in UTC, where the column has a time zone; durations
    are whole numbers of the column's unit. Lists are lists, structs are dicts, maps are lists of
    [key, value]. Dictionary-encoded and extension types are as the values that they stand for.

    Raises:
        NotJsonError: bytes that are not UTF-8, a struct with two fields of one name, an instant
            that has no ISO form, or a type that is not listed above.
        pyarrow.ArrowException: the array is damaged.
    """
    import pyarrow as pa
    from pyarrow import types

    array = plain_array(array)
    if types.is_struct(array.type):
        return _structs(array)
    if types.is_nested(array.type) and not types.is_union(array.type):
        return _lists(array)
    if types.is_timestamp(array.type):
        return _timestamps(array)
    for is_of, kind in (
        (types.is_fixed_size_binary, pa.binary()),
        (types.is_duration, pa.int64()),
        (types.is_decimal, pa.string()),
        (types.is_date, pa.string()),
        (types.is_time, pa.string()),
        (types.is_floating, pa.float64()),
    ):
        array = array.cast(kind) if is_of(array.type) else array
    return _scalars(array)


def _scalars(array: Any) -> list[Any]:
    import pyarrow.compute as pc
    from pyarrow import types

    if is_bytes_array(array):
        try:
            return to_strings(array)
        except UnicodeDecodeError as error:
            raise NotJsonError(f"bytes that are not UTF-8: {error.object[:20]!r}") from error
    if types.is_floating(array.type):
        array = pc.if_else(pc.is_finite(array), array, None)
    elif not any(
        is_of(array.type)
        for is_of in (types.is_integer, types.is_boolean, types.is_null, types.is_string)
    ):
        raise NotJsonError(f"a column of {array.type}")
    values: list[Any] = array.to_pylist()
    return values


def _timestamps(array: Any) -> list[Any]:
    import pyarrow as pa
    import pyarrow.compute as pc

    suffix = "Z" if array.type.tz is not None else ""
    texts = array.cast(pa.timestamp(array.type.unit)).cast(pa.string())
    if pc.any(pc.starts_with(texts, "<")).as_py():
        raise NotJsonError(f"an instant beyond the calendar, in a column of {array.type}")
    return [None if text is None else text.replace(" ", "T") + suffix for text in texts.to_pylist()]


def _structs(array: Any) -> list[Any]:
    names = [field.name for field in array.type]
    if len(set(names)) != len(names):
        raise NotJsonError(f"two fields of one name, in a column of {array.type}")
    columns = [json_values(array.field(number)) for number in range(len(names))]
    rows = zip(array.is_valid().to_pylist(), *columns, strict=True)
    return [dict(zip(names, row, strict=True)) if is_there else None for is_there, *row in rows]


def _lists(array: Any) -> list[Any]:
    """Convert lists of all kinds, and maps."""
    import pyarrow as pa
    import pyarrow.compute as pc

    is_map = pa.types.is_map(array.type)
    array = array.cast(pa.list_(array.type.field(0))) if is_map else array
    lengths = pc.list_value_length(array).to_pylist()
    values = json_values(array.flatten())
    left = iter([list(pair.values()) for pair in values] if is_map else values)
    return [None if length is None else list(islice(left, length)) for length in lengths]
