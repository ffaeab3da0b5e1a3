"""documents.parquet: where every document of a shard came from, and how many tokens it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.text.documents import DocumentBatch
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject

ROW_GROUP_ROWS = 1 << 16
_COLUMNS = ["file", "line", "byte_offset", "id", "tokens"]


Add: TypeAlias = Callable[[DocumentBatch, NDArray[np.int32], NDArray[np.bool_]], None]
"""(documents; their tokens; which ones to add: shape (documents,)) → nothing."""


@contextmanager
def document_table(path: Path, files: Sequence[str]) -> Iterator[Add]:
    """Yield what adds the documents of a batch to a table: one row a document, in document order.

    Columns: file (string), line (int64, 1-based; in a Parquet or Arrow file the row; in a file that was cut unread it
    counts within the piece, see `LineNumbers`), byte_offset (int64, of the line in the decompressed file; -1 for a
    row), id (string or null), tokens (int32, the end-of-document token included). Row groups hold 65,536 rows, however
    the documents came in batches, so that the same documents give the same bytes.
    """
    import pyarrow as pa

    schema, names = _schema(), _strings(files)

    def add(batch: DocumentBatch, lengths: NDArray[np.int32], kept: NDArray[np.bool_]) -> None:
        columns = [
            pa.DictionaryArray.from_arrays(_numbers(batch.files, "int32"), names),
            _numbers(batch.lines, "int64"),
            _numbers(batch.offsets, "int64"),
            _strings(batch.ids),
            _numbers(lengths, "int32"),
        ]
        rows = pa.Table.from_arrays(columns, schema=schema)
        put(rows if kept.all() else rows.take(_numbers(np.flatnonzero(kept), "int64")))

    with _row_groups(path, schema) as put:
        yield add


@contextmanager
def _row_groups(path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Yield what adds rows to a table of row groups of 65,536, however they come."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    waiting = pa.Table.from_batches([], schema)

    def flush(rows: int) -> None:
        nonlocal waiting
        if rows:
            writer.write_table(waiting.slice(0, rows), row_group_size=ROW_GROUP_ROWS)
            waiting = waiting.slice(rows)

    def put(rows: Any) -> None:
        nonlocal waiting
        waiting = pa.concat_tables([waiting, rows])
        flush(waiting.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        yield put
        flush(waiting.num_rows)


def copy_without(table: DocumentRows, rows: NDArray[np.int64], path: Path, files: Sequence[str]) -> None:
    """Write a table of documents without some rows, byte for byte as `document_table` writes it of the others.

    `files`: those of the range, in order, as `document_table` was given them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    names = _strings(files)
    with _row_groups(path, _schema()) as put:
        for group, (begin, end) in enumerate(table.groups):
            here = rows[(rows >= begin) & (rows < end)] - begin
            kept = np.delete(np.arange(end - begin), here)
            found = table.columns(group, _COLUMNS).take(_numbers(kept, "int64"))
            numbers = pc.index_in(found.column("file").cast(pa.string()), names).combine_chunks()
            columns = [pa.DictionaryArray.from_arrays(numbers, names), *found.columns[1:]]
            put(pa.Table.from_arrays(columns, schema=_schema()))


def _schema() -> Any:
    import pyarrow as pa

    types = pa.dictionary(pa.int32(), pa.string()), pa.int64(), pa.int64(), pa.string(), pa.int32()
    return pa.schema(list(zip(_COLUMNS, types, strict=True)))


# pyarrow.array would import pandas, where that is installed, which takes longer than many a small shard.
def _numbers(values: Sequence[int] | NDArray[np.integer[Any]], kind: str) -> Any:
    import pyarrow as pa

    data = np.ascontiguousarray(values, kind)
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(data), [None, pa.py_buffer(data)])


def _strings(values: Sequence[str | None]) -> Any:
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


@dataclass(frozen=True, slots=True)
class FileCounts:
    """What one file, or all of them, gave."""

    documents: int = 0
    tokens: int = 0
    """Special ones included."""

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(self.documents + other.documents, self.tokens + other.tokens)


def counts_by_file(path: Path) -> dict[str, FileCounts]:
    """Return documents and tokens of each file that gave documents, in document order.

    Raises:
        MissingError, FormatError: The table is not there, or cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _explained(path), pq.ParquetFile(path) as file:
        table = file.read(columns=["file", "tokens"], use_threads=False)
        table.validate(full=True)
        nulls = sum(column.null_count for column in table.columns)
        if nulls or table.num_rows != file.metadata.num_rows:
            raise ValueError(f"{table.num_rows:,} of {file.metadata.num_rows:,} rows, with {nulls:,} nulls")
        rows = pa.table({"file": table.column("file").cast(pa.string()), "tokens": table.column("tokens")})
        groups = rows.group_by("file", use_threads=False).aggregate([("tokens", "count"), ("tokens", "sum")])
        names, counts, sums = (groups.column(name).to_pylist() for name in ("file", "tokens_count", "tokens_sum"))
    return {name: FileCounts(*found) for name, *found in zip(names, counts, sums, strict=True)}


def tokens_by_file(files: Iterable[str], tables: Iterable[Mapping[str, FileCounts]]) -> dict[str, int]:
    """Return the tokens of each file, 0 where it gave none, given what `counts_by_file` returned of some tables."""
    counts = dict.fromkeys(files, 0)
    for table in tables:
        for path, found in table.items():
            counts[path] += found.tokens
    return counts


class DocumentRows:
    """Rows of one shard's documents.parquet."""

    def __init__(self, path: Path, documents: int) -> None:
        """Open a table that must have so many rows."""
        import pyarrow.parquet as pq

        self.path = path
        with _explained(path):
            self._file = pq.ParquetFile(path)
            metadata, names = self._file.metadata, self._file.schema_arrow.names
            rows = (metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))
            self._begins = list(accumulate(rows, initial=0))
            """First row of each row group, and the end of the last one."""
            if metadata.num_rows != documents or names != _COLUMNS:
                raise ValueError(f"{metadata.num_rows:,} rows, columns {', '.join(names)}")

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the values of some rows, in the order asked for."""
        values: dict[int, dict[str, Any]] = {}
        for group, members in groupby(sorted({*rows}), lambda row: bisect_right(self._begins, row) - 1):
            wanted = list(members)
            places = _numbers(np.array(wanted) - self._begins[group], "int64")
            values |= zip(wanted, self._group(group, _COLUMNS).take(places).to_pylist(), strict=True)
        return [values[row] for row in rows]

    @property
    def groups(self) -> Sequence[tuple[int, int]]:
        """First row and end of each row group."""
        return list(pairwise(self._begins))

    def columns(self, group: int, names: list[str]) -> Any:
        """Return some columns of a row group as an Arrow table."""
        return self._group(group, names)

    def metadata(self, group: int) -> Any:
        """Return what the file says of a row group, with statistics of its columns."""
        return self._file.metadata.row_group(group)

    def lengths(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield first row, and tokens of each document as int32, shape (rows,), of every row group."""
        for group, begin in enumerate(self._begins[:-1]):
            yield begin, self._group(group, ["tokens"]).column("tokens").to_numpy(zero_copy_only=False)

    def search(self, wanted: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (row, values) of every row that has these values."""
        import pyarrow.compute as pc

        for group, begin in enumerate(self._begins[:-1]):
            table, hits = self._group(group, list(wanted)), None
            for name, value in wanted.items():
                same = pc.equal(table.column(name).cast("string" if isinstance(value, str) else "int64"), value)
                hits = same if hits is None else pc.and_(hits, same)
            rows = [begin + number for number in pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist()]
            yield from zip(rows, self.read(rows), strict=True)

    def _group(self, group: int, columns: list[str]) -> Any:
        import pyarrow as pa

        with _explained(self.path):
            table = self._file.read_row_group(group, columns=columns)
            table.validate(full=True)
            tokens = table.column("tokens") if "tokens" in columns else None
            if tokens is not None and (tokens.null_count or not pa.types.is_integer(tokens.type)):
                raise ValueError(f"tokens as {tokens.type}, {tokens.null_count:,} of them null")
        return table


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    import pyarrow as pa

    remedy = "run `nanoset build`: it makes the shard again"
    try:
        open_regular(path).close()  # the library would wait for the writer of a pipe
        yield
    except FileNotFoundError as error:
        raise MissingError("a shard's table of documents is not there", where=path, remedy=remedy) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "this is not the table of the shard's documents",
            where=path,
            found=str(error)[:500],
            expected=f"a Parquet file with a row for each document and the columns {', '.join(_COLUMNS)}",
            remedy=f"delete the shard's folder and {remedy}",
        ) from error


FACT = "piece_lines"
"""Among the facts of shards, and of a corpus's set of shards: path → (first byte, lines) of each piece, in order. It is
absent where the lines of all files were counted before."""


class LineNumbers:
    """Numbers of lines in their pieces ↔ numbers in their files; the same in files that were counted before."""

    def __init__(self, pieces: Mapping[str, Sequence[Sequence[int]]] | None = None) -> None:
        """Take pieces as FACT holds them, of all pieces of each file."""
        self._files: dict[str, tuple[list[int], list[int]]] = {}
        """Path → (first byte of each piece, lines before each and in all)."""
        for path, found in (pieces or {}).items():
            begins, lines = zip(*sorted(map(tuple, found)), strict=True)
            self._files[path] = list(begins), [0, *accumulate(lines)]

    @staticmethod
    def of(facts: Mapping[str, Any]) -> LineNumbers:
        """Return the line numbers by the facts of a corpus's set of shards."""
        return LineNumbers(facts.get(FACT))

    def in_file(self, path: str, byte: int, line: int) -> int:
        """Return the number in its file of the line that begins at a byte, given its number in its piece."""
        begins, before = self._files.get(path, ([0], [0]))
        return before[bisect_right(begins, byte) - 1] + line

    def in_piece(self, path: str, line: int) -> tuple[int, int] | None:
        """Return (first byte of the piece that holds a line, its number there); None where numbers are the same."""
        if path not in self._files:
            return None
        begins, before = self._files[path]
        number = min(bisect_right(before, line - 1), len(before) - 1) - 1
        return begins[number], line - before[number]

    def of_reject(self, reject: Reject) -> Reject:
        """Return a reject of rejects.jsonl with its number in its file."""
        if reject.file not in self._files:
            return reject
        return replace(reject, line=self.in_file(reject.file, reject.offset, reject.line))


def count_facts(counted: Iterable[tuple[Piece, int]]) -> dict[str, Any]:
    """Return the facts of a shard about its pieces, given those that had not been counted, with their lines."""
    return _facts((piece.path, [(piece.begin, lines)]) for piece, lines in counted)


def joined_facts(shards: Iterable[Manifest], pieces: Iterable[Piece]) -> dict[str, Any]:
    """Return the facts of a corpus's set of shards about all pieces; nothing where all lines were counted before."""
    if all(piece.first_line > 0 for piece in pieces):
        return {}
    return _facts(found for shard in shards for found in shard.facts.get(FACT, {}).items())


def _facts(found: Iterable[tuple[str, Sequence[Sequence[int]]]]) -> dict[str, Any]:
    joined: dict[str, list[Sequence[int]]] = {}
    for path, counts in found:
        joined.setdefault(path, []).extend(counts)
    return {FACT: joined} if joined else {}


def place_in(source: SourceRange, path: str, line: int, byte: int) -> str:
    """Return how a line of a range, which begins at a byte, is named while the range is read.

    That is `path:line`; the path alone where it is not known how many lines lie before those of the piece.
    """
    pieces = (piece for piece in source.pieces if piece.path == path and piece.begin <= byte < piece.end)
    return f"{path}:{line}" if all(piece.is_counted for piece in pieces) else path
