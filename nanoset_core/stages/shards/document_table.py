"""documents.parquet: where every document of a shard came from, and how many tokens it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject

ROW_GROUP_ROWS = 1 << 16
_COLUMNS = ["file", "line", "byte_offset", "id", "tokens"]

Add: TypeAlias = Callable[[DocumentBatch, NDArray[np.int32], NDArray[np.bool_]], None]
"""Adds documents to a table: (documents, tokens of each, which of them to add); arrays have shape
(documents,).
"""


@contextmanager
def document_table(path: Path, files: Sequence[str]) -> Iterator[Add]:
    """Yield a function that adds the documents of a batch to a table: one row a document, in
    document order.

    Row groups have 65,536 rows, however the documents came in batches, so that the same documents
    give the same bytes. The columns are:

    - file: string.
    - line: int64, 1-based. In a Parquet or Arrow file it is the row. In a file that was cut without being read, lines
      are counted within each piece; see `LineNumbers`.
    - byte_offset: int64, of the line in the decompressed file; -1 for a row of a table.
    - id: string or null.
    - tokens: int32, including special tokens.

    Args:
        path: Of the table.
        files: Files of the shard's range, in order.
    """
    import pyarrow as pa

    schema = _schema()
    file_names = _strings(files)

    def add(batch: DocumentBatch, lengths: NDArray[np.int32], is_kept: NDArray[np.bool_]) -> None:
        columns = [
            pa.DictionaryArray.from_arrays(_numbers(batch.files, "int32"), file_names),
            _numbers(batch.lines, "int64"),
            _numbers(batch.offsets, "int64"),
            _strings(batch.ids),
            _numbers(lengths, "int32"),
        ]
        rows = pa.Table.from_arrays(columns, schema=schema)
        if not is_kept.all():
            rows = rows.take(_numbers(np.flatnonzero(is_kept), "int64"))
        writer.add(rows)

    with _RowGroupWriter(path, schema) as writer:
        yield add


class _RowGroupWriter:
    """Writes rows of a Parquet file in row groups of 65,536, however they are added."""

    def __init__(self, path: Path, schema: Any) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._pending = pa.Table.from_batches([], schema)
        self._file = pq.ParquetWriter(path, schema, compression="zstd")

    def add(self, rows: Any) -> None:
        """Add the rows of an Arrow table."""
        import pyarrow as pa

        self._pending = pa.concat_tables([self._pending, rows])
        self._write(self._pending.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def _write(self, n_rows: int) -> None:
        """Write the first pending rows, as row groups of at most 65,536."""
        if n_rows:
            self._file.write_table(self._pending.slice(0, n_rows), row_group_size=ROW_GROUP_ROWS)
            self._pending = self._pending.slice(n_rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                self._write(self._pending.num_rows)
        finally:
            self._file.close()


def copy_without(
    table: DocumentRows, rows: NDArray[np.int64], path: Path, files: Sequence[str]
) -> None:
    """Copy a table of documents without some rows, byte for byte as `document_table` writes the
    others.

    Args:
        table: The table.
        rows: Rows to leave out, int64, ascending.
        path: Of the copy.
        files: Files of the shard's range, in order, as `document_table` was given them.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    schema = _schema()
    file_names = _strings(files)
    with _RowGroupWriter(path, schema) as writer:
        for group, (start, stop) in enumerate(table.groups):
            removed = rows[(rows >= start) & (rows < stop)] - start
            kept = np.delete(np.arange(stop - start), removed)
            kept_rows = table.columns(group, _COLUMNS).take(_numbers(kept, "int64"))

            # Dictionaries that were read have only the names of their row group: number the files
            # anew.
            file_numbers = pc.index_in(
                kept_rows.column("file").cast(pa.string()), file_names
            ).combine_chunks()
            file_column = pa.DictionaryArray.from_arrays(file_numbers, file_names)
            writer.add(pa.Table.from_arrays([file_column, *kept_rows.columns[1:]], schema=schema))


def _schema() -> Any:
    import pyarrow as pa

    types = [
        pa.dictionary(pa.int32(), pa.string()),
        pa.int64(),
        pa.int64(),
        pa.string(),
        pa.int32(),
    ]
    return pa.schema(list(zip(_COLUMNS, types, strict=True)))


# The next two functions replace pyarrow.array, which imports pandas if that is installed: it takes
# longer than a small shard.
def _numbers(values: Sequence[int] | NDArray[np.integer[Any]], kind: str) -> Any:
    """Return numbers as an Arrow array of a type such as "int32"."""
    import pyarrow as pa

    data = np.ascontiguousarray(values, kind)
    return pa.Array.from_buffers(pa.type_for_alias(kind), len(data), [None, pa.py_buffer(data)])


def _strings(values: Sequence[str | None]) -> Any:
    """Return texts as an Arrow array."""
    import pyarrow as pa

    builder = pa.lib.StringBuilder()
    builder.append_values(values)
    return builder.finish()


@dataclass(frozen=True, slots=True)
class FileCounts:
    """Documents and tokens of one file, or of several."""

    documents: int = 0
    tokens: int = 0
    """Special tokens included."""

    def __add__(self, other: FileCounts) -> FileCounts:
        return FileCounts(self.documents + other.documents, self.tokens + other.tokens)


def counts_by_file(path: Path) -> dict[str, FileCounts]:
    """Return documents and tokens of each file that gave documents, in document order.

    Args:
        path: Of a table of documents.

    Raises:
        MissingError: There is no such table.
        FormatError: It cannot be read.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _explained(path), pq.ParquetFile(path) as file:
        table = file.read(columns=["file", "tokens"], use_threads=False)
        table.validate(full=True)
        n_nulls = sum(column.null_count for column in table.columns)
        if n_nulls or table.num_rows != file.metadata.num_rows:
            raise ValueError(
                f"{table.num_rows:,} of {file.metadata.num_rows:,} rows, with {n_nulls:,} nulls"
            )
        rows = pa.table(
            {"file": table.column("file").cast(pa.string()), "tokens": table.column("tokens")}
        )
        groups = rows.group_by("file", use_threads=False).aggregate(
            [("tokens", "count"), ("tokens", "sum")]
        )
        counts: dict[str, FileCounts] = {}
        for row in groups.to_pylist():
            counts[row["file"]] = FileCounts(row["tokens_count"], row["tokens_sum"])
    return counts


def tokens_by_file(
    files: Iterable[str], tables: Iterable[Mapping[str, FileCounts]]
) -> dict[str, int]:
    """Return the tokens of each file; 0 for a file without documents.

    Args:
        files: Paths of all files.
        tables: What `counts_by_file` returned for several tables.
    """
    tokens = dict.fromkeys(files, 0)
    for table in tables:
        for path, counts in table.items():
            tokens[path] += counts.tokens
    return tokens


class DocumentRows:
    """Rows of one shard's documents.parquet."""

    def __init__(self, path: Path, documents: int) -> None:
        """Open a table.

        Args:
            path: Of the table.
            documents: Number of rows that it must have.

        Raises:
            MissingError: There is no such table.
            FormatError: It is damaged, or has another number of rows.
        """
        import pyarrow.parquet as pq

        self.path = path
        with _explained(path):
            self._file = pq.ParquetFile(path)
            metadata = self._file.metadata
            names = self._file.schema_arrow.names
            rows_per_group = [
                metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)
            ]
            self._starts = list(accumulate(rows_per_group, initial=0))
            """First row of each row group, and the number of rows."""
            if metadata.num_rows != documents or names != _COLUMNS:
                raise ValueError(f"{metadata.num_rows:,} rows, columns {', '.join(names)}")

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return column → value of some rows, in the order of `rows`."""
        rows_by_group: dict[int, list[int]] = {}
        for row in sorted(set(rows)):
            group = bisect_right(self._starts, row) - 1
            rows_by_group.setdefault(group, []).append(row)

        values_by_row: dict[int, dict[str, Any]] = {}
        for group, group_rows in rows_by_group.items():
            positions = _numbers(np.array(group_rows) - self._starts[group], "int64")
            values = self._read_group(group, _COLUMNS).take(positions).to_pylist()
            values_by_row.update(zip(group_rows, values, strict=True))
        return [values_by_row[row] for row in rows]

    @property
    def groups(self) -> Sequence[tuple[int, int]]:
        """(first row, row after the last) of each row group."""
        return list(pairwise(self._starts))

    def columns(self, group: int, names: list[str]) -> Any:
        """Return some columns of a row group as an Arrow table."""
        return self._read_group(group, names)

    def metadata(self, group: int) -> Any:
        """Return what the file says about a row group, with statistics of its columns."""
        return self._file.metadata.row_group(group)

    def lengths(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield (first row; tokens of each document, int32, shape (n_rows,)) of every row group."""
        for group, start in enumerate(self._starts[:-1]):
            tokens = self._read_group(group, ["tokens"]).column("tokens")
            yield start, tokens.to_numpy(zero_copy_only=False)

    def search(self, wanted: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (row, column → value) of every row with certain values.

        Args:
            wanted: Column → value; a row must have all of them.
        """
        import pyarrow.compute as pc

        for group, start in enumerate(self._starts[:-1]):
            table = self._read_group(group, list(wanted))
            is_match = None
            for name, value in wanted.items():
                kind = "string" if isinstance(value, str) else "int64"
                is_equal = pc.equal(table.column(name).cast(kind), value)
                is_match = is_equal if is_match is None else pc.and_(is_match, is_equal)
            positions = pc.indices_nonzero(pc.fill_null(is_match, False)).to_pylist()
            rows = [start + position for position in positions]
            yield from zip(rows, self.read(rows), strict=True)

    def _read_group(self, group: int, columns: list[str]) -> Any:
        """Read some columns of a row group as an Arrow table; FormatError for a damaged one."""
        import pyarrow as pa

        with _explained(self.path):
            table = self._file.read_row_group(group, columns=columns)
            table.validate(full=True)
            if "tokens" in columns:
                tokens = table.column("tokens")
                if tokens.null_count or not pa.types.is_integer(tokens.type):
                    raise ValueError(f"tokens as {tokens.type}, {tokens.null_count:,} of them null")
        return table


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    """Raise MissingError or FormatError for what goes wrong in the block while a table is read."""
    import pyarrow as pa

    remedy = "run `nanoset build`: it makes the shard again"
    try:
        open_regular(path).close()  # refuses a pipe, for whose writer pyarrow would wait
        yield
    except FileNotFoundError as error:
        raise MissingError(
            "a shard's table of documents is not there", where=path, remedy=remedy
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "this is not the table of the shard's documents",
            where=path,
            found=str(error)[:500],
            expected=f"a Parquet file with a row for each document and the columns {', '.join(_COLUMNS)}",
            remedy=f"delete the shard's folder and {remedy}",
        ) from error


FACT = "piece_lines"
"""Fact of shards, and of a corpus's set of shards: path → (first byte, lines) of each piece, in
order. It is absent if the lines of all files had been counted before."""


@dataclass(frozen=True, slots=True)
class _FileLines:
    """The pieces of one file, and their lines."""

    starts: list[int]
    """First byte of each piece."""
    lines_before: list[int]
    """Lines before each piece, and of the whole file."""


class LineNumbers:
    """Translates between numbers of lines in their pieces and in their files.

    The numbers are the same in a file whose lines were counted before it was cut.

    Args:
        pieces: The fact FACT, with all pieces of each file.
    """

    def __init__(self, pieces: Mapping[str, Sequence[Sequence[int]]] | None = None) -> None:
        self._files: dict[str, _FileLines] = {}
        for path, counts in (pieces or {}).items():
            ordered = sorted((start, lines) for start, lines in counts)
            starts = [start for start, _ in ordered]
            lines_before = list(accumulate((lines for _, lines in ordered), initial=0))
            self._files[path] = _FileLines(starts, lines_before)

    @staticmethod
    def of(facts: Mapping[str, Any]) -> LineNumbers:
        """Return the line numbers by the facts of a corpus's set of shards."""
        return LineNumbers(facts.get(FACT))

    def in_file(self, path: str, byte: int, line: int) -> int:
        """Return the number of a line in its file.

        Args:
            path: The file.
            byte: First byte of the line.
            line: Its number in its piece.
        """
        file = self._files.get(path)
        if file is None:
            return line
        piece = bisect_right(file.starts, byte) - 1
        return file.lines_before[piece] + line

    def in_piece(self, path: str, line: int) -> tuple[int, int] | None:
        """Return (first byte of the piece that has a line of a file, its number there), or None if
        that is the same.
        """
        file = self._files.get(path)
        if file is None:
            return None
        n_pieces = len(file.starts)
        piece = min(bisect_right(file.lines_before, line - 1), n_pieces) - 1
        return file.starts[piece], line - file.lines_before[piece]

    def of_reject(self, reject: Reject) -> Reject:
        """Return a reject of rejects.jsonl with the number of its line in its file."""
        if reject.file not in self._files:
            return reject
        return replace(reject, line=self.in_file(reject.file, reject.offset, reject.line))


def count_facts(counted: Iterable[tuple[Piece, int]]) -> dict[str, Any]:
    """Return the facts of a shard about its pieces, given those whose lines had not been counted,
    with their lines.
    """
    counts_by_path: dict[str, list[tuple[int, int]]] = {}
    for piece, lines in counted:
        counts_by_path.setdefault(piece.path, []).append((piece.begin, lines))
    return {FACT: counts_by_path} if counts_by_path else {}


def joined_facts(shards: Iterable[Manifest], pieces: Iterable[Piece]) -> dict[str, Any]:
    """Return the facts of a corpus's set of shards about all pieces; nothing if all lines had been
    counted before.
    """
    if all(piece.first_line > 0 for piece in pieces):
        return {}
    counts_by_path: dict[str, list[Sequence[int]]] = {}
    for shard in shards:
        for path, counts in shard.facts.get(FACT, {}).items():
            counts_by_path.setdefault(path, []).extend(counts)
    return {FACT: counts_by_path} if counts_by_path else {}


def place_in(source: SourceRange, path: str, line: int, byte: int) -> str:
    """Return how a line of a range is named while the range is read: `path:line`.

    It is the path alone if it is not known how many lines are before those of the piece.

    Args:
        source: The range.
        path: The file.
        line: Number of the line in its piece.
        byte: First byte of the line.
    """
    for piece in source.pieces:
        if piece.path == path and piece.begin <= byte < piece.end and not piece.is_counted:
            return path
    return f"{path}:{line}"
