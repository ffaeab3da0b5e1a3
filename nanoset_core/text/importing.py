"""Write Parquet and Arrow files as JSON lines."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, Protocol

import orjson

from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.outputs.deliver import make_once
from nanoset_core.records.json_records import from_plain
from nanoset_core.storage.atomic import atomic_file
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.files.endings import ARROW, PARQUET, is_table
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.json_values import NotJsonError, json_values
from nanoset_core.text.tables.rows import read_table

TARGETS = (".jsonl", ".jsonl.gz", ".jsonl.zst")
"""Endings that the name of a target may have."""
_GZIP_LEVEL = 1
_GZIP_WBITS = 31
"""zlib's number for the gzip format with its largest window."""
_ZSTD_LEVEL = 3
_MAX_NAMES_SHOWN = 20


@dataclass(frozen=True, slots=True)
class ImportFacts:
    """What an import wrote."""

    ignores_unknown_keys: ClassVar[bool] = True

    files: int
    """Tables read."""
    rows: int
    """Lines written, one a row."""
    written_bytes: int
    """Bytes of JSON lines, before compression."""
    stored_bytes: int
    """Size of the target."""


def import_parquet(
    sources: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    target: str | os.PathLike[str],
    *,
    columns: Sequence[str] | None = None,
) -> ImportFacts:
    """Write the rows of Parquet and Arrow files as JSON lines, one object a row.

    Each object has every column of its file as a key, in their order, also if the value is null;
    see `json_values` for the values. Reading the target gives the same documents as reading the
    tables themselves.

    The target appears when it is complete. The same tables give the same bytes with the same
    versions of the compressor and of orjson, which decides how floats are written. Memory is
    bounded as in `read_table`.

    This does what nanotron's tools/hf_datasets_to_json.py does, for datasets on a disk.

    Args:
        sources: Files, and folders of .parquet and .arrow files, including those of Hugging Face
            `datasets`. The files of a folder are read in natural order.
        target: Its name ends in .jsonl, .jsonl.gz or .jsonl.zst, which decides on the compression.
        columns: Names of the columns to write, in their order in the objects; by default all.

    Raises:
        ConfigError: The target has another ending, or a column is named twice.
        MissingError: A source does not exist.
        InputError: A folder has no tables, a column is missing, or one has values that JSON cannot
            hold.
        FormatError: A table is damaged.
    """
    target = Path(target)
    _check_target(target)
    if columns is not None:
        _check_column_names(columns)
    paths = _table_files([sources] if isinstance(sources, str | os.PathLike) else sources)
    n_rows = 0
    n_bytes = 0
    with atomic_file(target) as file:
        compressor = _new_compressor(target.name)
        for path in paths:
            for block in _json_lines(path, columns):
                n_rows += block.n_rows
                n_bytes += len(block.lines)
                file.write(compressor.compress(block.lines))
        file.write(compressor.flush())
        stored_bytes = file.tell()
    return ImportFacts(len(paths), n_rows, n_bytes, stored_bytes)


def _check_target(target: Path) -> None:
    """Check that the file to write has a name for JSON lines, such as web.jsonl.gz.

    Args:
        target: The file.

    Raises:
        ConfigError: It has another ending.
    """
    if not target.name.endswith(TARGETS):
        raise ConfigError(
            "the target is not a file of JSON lines",
            where=target,
            expected=f"a name ending in {', '.join(TARGETS)}",
            remedy="rename it",
        )


def _check_column_names(columns: Sequence[str]) -> None:
    """Check that the user named some columns, and none of them twice.

    Args:
        columns: The names, such as ["id", "text"].

    Raises:
        ConfigError: There are none, or one of them is named twice.
    """
    if not columns or len(set(columns)) != len(columns):
        raise ConfigError(
            "no columns are named, or one of them twice",
            found=list(columns),
            remedy="name each once",
        )


def import_once(
    sources: Sequence[Path],
    target: Path,
    *,
    columns: Sequence[str] | None = None,
    overwrite: bool = False,
) -> tuple[ImportFacts, bool]:
    """Write tables as JSON lines, unless the target was already made from the same tables.

    A hidden file next to the target says what it was made from. So a second call with the same
    arguments finds that it has nothing to do.

    Args:
        sources: Files, and folders of .parquet and .arrow files; see `import_parquet`.
        target: The file to write, such as web.jsonl.gz.
        columns: Names of the columns to write; None for all.
        overwrite: Whether a target that something else has written may be replaced.

    Returns:
        (facts of the import, whether the target was written now).

    Raises:
        ConfigError: The target is one of the sources, or may not be replaced, or its name has
            another ending.
        MissingError: A source does not exist.
        InputError: A folder has no tables, or a column cannot be written.
        FormatError: A table is damaged.
    """

    def make(path: Path) -> dict[str, int]:
        """Write the target to a path; called only if it was not made from the same tables."""
        return asdict(import_parquet(sources, path, columns=columns))

    facts, is_made = make_once(
        "import-parquet",
        target,
        _table_files(sources),
        {"columns": columns},
        make,
        overwrite=overwrite,
    )
    return from_plain(ImportFacts, facts), is_made


def _table_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Return the tables that a user has named, by files or by their folders.

        a.parquet     this file
        data          data/b.arrow, data/c.parquet, … : all tables in this folder, and below it

    Args:
        sources: The files and folders.

    Raises:
        MissingError: A file or folder does not exist.
        InputError: Nothing is named, or a folder has no tables.
    """
    paths: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            paths += _tables_in(source)
        elif source.exists():
            paths.append(source)
        else:
            raise MissingError(
                "no such file or folder", where=source, remedy="name a file or folder that exists"
            )
    if not paths:
        raise InputError(
            "nothing to import", expected="at least one file or folder", remedy="name one"
        )
    return paths


def _tables_in(folder: Path) -> list[Path]:
    """Return the Parquet and Arrow files in a folder, and in the folders below it.

    They are in natural order: a2.parquet comes before a10.parquet. Other files are ignored.

    Args:
        folder: The folder.

    Raises:
        MissingError: The folder does not exist.
        InputError: The folder has no tables, or contains a folder that is named like one.
    """
    contents = contents_of(folder)
    # A folder such as a.parquet/ without any table in it: probably a.parquet was unpacked wrongly.
    misnamed_folders = [path for path in contents.misnamed_folders if is_table(path)]
    if misnamed_folders:
        raise InputError(
            "a folder has the name of a table, and nothing in it is read",
            where=folder / misnamed_folders[0],
            expected="a file",
            remedy="fetch or unpack the table again, or move the folder away",
        )
    paths = [folder / file.path for file in contents.ordered if is_table(file.path)]
    if not paths:
        raise InputError(
            "the folder has no tables",
            where=folder,
            expected=f"files ending in {PARQUET}, {ARROW}",
            remedy="name another folder",
        )
    return paths


class _JsonLines(NamedTuple):
    """Some rows of a table as JSON lines."""

    n_rows: int
    lines: bytes


def _json_lines(path: Path, columns: Sequence[str] | None) -> Iterator[_JsonLines]:
    r"""Yield the rows of a table as JSON lines, in order, about a MiB of values at a time.

    For example, two rows become b'{"id":1,"text":"Hello"}\n{"id":2,"text":"World"}\n'.

    Args:
        path: The table.
        columns: Names of the columns to write; None for all.

    Raises:
        InputError: A column is missing, or has values that JSON cannot hold.
        FormatError: The table is damaged.
    """

    def choose(schema: Any) -> Sequence[str] | None:
        """Return the columns to read of a table with this schema; called once, at first."""
        _check_columns(path, schema, columns)
        return columns

    def as_lines(rows: Any, first_row: int) -> _JsonLines:
        """Return some rows of the table, a record batch, as JSON lines."""
        lines = _objects(path, first_row, rows, columns)
        return _JsonLines(n_rows=rows.num_rows, lines=lines)

    try:
        yield from read_table(path, choose=choose, convert=as_lines)
    except FaultError as fault:
        # An import stops here, so that no part of a table is missing unnoticed. When a corpus is
        # built, the rows before the fault are used.
        raise FormatError(
            "a table is damaged",
            where=path,
            found=fault.detail,
            remedy="fetch or write it again; as a file of a corpus, it is read up to the fault",
        ) from fault


def _check_columns(path: Path, schema: Any, columns: Sequence[str] | None) -> None:
    """Check that a table has each of the columns that are written, and each only once.

    Arrow allows several columns of the same name, but a JSON object has each key only once.

    Args:
        path: The table.
        schema: The Arrow schema of the table.
        columns: Names of the columns to write; None for all columns of the table.

    Raises:
        InputError: A column is missing, or several columns have its name.
    """
    chosen_names = schema.names if columns is None else columns
    for name in chosen_names:
        count = schema.names.count(name)
        if count == 1:
            continue
        problem = "missing" if count == 0 else "there twice"
        names = ", ".join(map(repr, schema.names[:_MAX_NAMES_SHOWN]))
        raise InputError(
            f"the column {name!r} is {problem}",
            where=path,
            found=f"columns {names}",
            remedy="choose other columns",
        )


def _objects(path: Path, first_row: int, rows: Any, columns: Sequence[str] | None) -> bytes:
    r"""Return some rows of a table as JSON lines, each with one object.

    For example, a row becomes b'{"id":1,"text":"Hello"}\n'.

    Args:
        path: The table, for messages.
        first_row: Number of the first of these rows in the table, from 1; for messages.
        rows: The rows, as a pyarrow.RecordBatch.
        columns: Names of the columns to write; None for all.

    Raises:
        InputError: A column has values that JSON cannot hold.
    """
    names = columns or rows.schema.names
    if not names:  # the table has no columns
        return b"{}\n" * int(rows.num_rows)

    # Convert each column as a whole, which is faster than row by row.
    values_by_column = [_values_of_column(path, first_row, rows, name) for name in names]
    lines: list[bytes] = []
    for values in zip(*values_by_column, strict=True):
        lines.append(orjson.dumps(dict(zip(names, values, strict=True))) + b"\n")
    return b"".join(lines)


def _values_of_column(path: Path, first_row: int, rows: Any, name: str) -> list[Any]:
    """Return a column of a table as values that JSON can hold.

    Args:
        path: The table, for messages.
        first_row: Number of the first of the rows in the table, from 1; for messages.
        rows: The rows, as a pyarrow.RecordBatch.
        name: Name of the column. If several have this name, the first one is taken.

    Raises:
        InputError: JSON cannot hold the values.
    """
    import pyarrow as pa

    column = rows.column(rows.schema.names.index(name))
    try:
        return json_values(column)
    except MemoryError:
        raise  # pyarrow's MemoryError is an ArrowException, too
    except (NotJsonError, pa.ArrowException) as error:
        last_row = first_row + rows.num_rows - 1
        raise InputError(
            f"the column {name!r} cannot be written as JSON",
            where=path,
            found=f"{error}, in rows {first_row:,} to {last_row:,}",
            expected="text, numbers, times, and lists and structs of them",
            remedy="name the columns to write, without this one",
        ) from error


class _Compressor(Protocol):
    """The interface that the compressors of gzip and zstd share."""

    def compress(self, data: bytes, /) -> bytes: ...

    def flush(self) -> bytes: ...


class _NoCompressor:
    """Passes bytes on unchanged."""

    def compress(self, data: bytes, /) -> bytes:
        return data

    def flush(self) -> bytes:
        return b""


def _new_compressor(name: str) -> _Compressor:
    """Return a new compressor for a file: gzip for web.jsonl.gz, zstd for web.jsonl.zst.

    For web.jsonl, it is an object with the same methods that compresses nothing.

    Args:
        name: Name of the file.
    """
    from isal import isal_zlib
    from zstandard import ZstdCompressor

    compressor: _Compressor
    if name.endswith(".gz"):
        compressor = isal_zlib.compressobj(_GZIP_LEVEL, isal_zlib.DEFLATED, _GZIP_WBITS)
    elif name.endswith(".zst"):
        compressor = ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
    else:
        compressor = _NoCompressor()
    return compressor
