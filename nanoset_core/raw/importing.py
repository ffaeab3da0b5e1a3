"""Parquet and Arrow files → JSON lines."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import orjson

from nanoset_core.errors import ConfigError, FormatError, InputError, MissingError
from nanoset_core.outputs.recorded import make_once
from nanoset_core.raw.columns import NotJsonError, json_values
from nanoset_core.raw.contents import list_files
from nanoset_core.raw.endings import ARROW, PARQUET, is_table, is_text
from nanoset_core.raw.rejects import FaultError
from nanoset_core.raw.tables import read_table
from nanoset_core.storage.atomic import atomic_file

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
    """Write the rows of Parquet and Arrow files as JSON lines: one object a row, in order, UTF-8, columns as keys.

    Every column is in every object, null or not, in the order of its file; for values see json_values. Reading the
    target gives the documents that reading the tables themselves gives.

    The target appears when it is whole. The same tables give the same bytes with the same versions of orjson (which
    decides how floats are spelled) and of the compressor. Memory is bounded as in read_table.

    Does what nanotron's tools/hf_datasets_to_json.py does for data sets that are on disk.

    Args:
        sources: files, and folders of .parquet and .arrow files, which are taken in natural order; those of Hugging
            Face `datasets` too.
        target: ends in .jsonl, .jsonl.gz or .jsonl.zst, which decides on the compression.
        columns: names of the columns to keep, in the order in which they are written; all when absent.

    Raises:
        ConfigError: the target has another ending, or a column is named twice.
        MissingError: a source is not there.
        InputError: a folder has no tables, a column is missing, or one has values that JSON cannot hold.
        FormatError: a table is damaged.
    """
    target = Path(target)
    if not target.name.endswith(TARGETS):
        expected = f"a name ending in {', '.join(TARGETS)}"
        raise ConfigError("a target that is no JSON lines", where=target, expected=expected, remedy="rename it")
    if columns is not None and (not columns or len(set(columns)) != len(columns)):
        raise ConfigError("no columns, or one of them twice", found=list(columns), remedy="name each once")
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
    """Write what `import_parquet` writes, unless it was made from these tables already; → (facts, whether it was made).

    Raises as import_parquet, and ConfigError where the target is a source, or something else that may not be replaced.
    """

    def make(path: Path) -> dict[str, int]:
        return asdict(import_parquet(sources, path, columns=columns))

    facts, made = make_once(
        "import-parquet", target, _table_files(sources), {"columns": columns}, make, overwrite=overwrite
    )
    return ImportFacts(**facts), made


def _table_files(sources: Sequence[str | os.PathLike[str]]) -> list[Path]:
    paths: list[Path] = []
    for source in map(Path, sources):
        if source.is_dir():
            found = [source / file.path for file in list_files(source) if is_table(file.path) and is_text(file.path)]
            if not found:
                expected = f"files ending in {PARQUET}, {ARROW}"
                raise InputError("the folder has no tables", where=source, expected=expected, remedy="name another")
            paths += found
        elif source.exists():
            paths.append(source)
        else:
            raise MissingError("no such file or folder", where=source, remedy="name a file or folder that is there")
    if not paths:
        raise InputError("nothing to import", expected="at least one file or folder", remedy="name one")
    return paths


def _lines(path: Path, columns: Sequence[str] | None) -> Iterator[tuple[int, bytes]]:
    """Yield (rows, their lines) of a table, in order, about a MiB of values at a time."""
    try:
        for first_row, rows in read_table(path, lambda schema: _chosen(path, schema, columns)):
            yield rows.num_rows, _objects(path, first_row, rows, columns or rows.schema.names)
    except FaultError as fault:
        raise FormatError(
            "a table is damaged",
            where=path,
            found=fault.detail,
            expected="a whole Parquet file" if fault.reason == "corrupt_parquet" else "a whole Arrow file",
            remedy="fetch or write it anew; as a file of a corpus, it is read up to the fault",
        ) from fault


def _chosen(path: Path, schema: Any, columns: Sequence[str] | None) -> list[str] | None:
    names = schema.names if columns is None else columns
    for name in names:
        if schema.names.count(name) != 1:
            raise InputError(
                f"the column {name!r} is missing" if name not in schema.names else f"two columns are named {name!r}",
                where=path,
                found=f"columns {', '.join(map(repr, schema.names[:20]))}",
                expected="each column once" if columns is None else f"each of {', '.join(map(repr, columns))} once",
                remedy="choose other columns",
            )
    return None if columns is None else list(columns)


def _objects(path: Path, first_row: int, rows: Any, names: Sequence[str]) -> bytes:
    import pyarrow as pa

    values: list[list[Any]] = []
    for name in names:
        try:
            values.append(json_values(rows.column(rows.schema.names.index(name))))
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
