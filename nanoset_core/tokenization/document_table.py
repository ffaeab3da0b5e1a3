"""documents.parquet: where every document of a shard came from, and how many tokens it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from itertools import accumulate
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.raw.documents import DocumentBatch
from nanoset_core.storage.regular_files import open_regular

ROW_GROUP_ROWS = 1 << 16
_COLUMNS = ["file", "line", "byte_offset", "id", "tokens"]


class DocumentTable:
    """Writes one row a document, in document order; a context manager.

    Columns: file (string), line (int64, 1-based; in a Parquet or Arrow file the row; in a file that was cut unread it
    counts within the piece, see line_numbers.py), byte_offset (int64, of the line in the decompressed file; -1 for a
    row), id (string or null), tokens (int32, the end-of-document token included). Row groups hold 65,536 rows, however
    the documents came in batches, so that the same documents give the same bytes.
    """

    def __init__(self, path: Path, files: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = pa.dictionary(pa.int32(), pa.string()), pa.int64(), pa.int64(), pa.string(), pa.int32()
        self._schema = pa.schema(list(zip(_COLUMNS, types, strict=True)))
        self._files = _strings(files)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting = pa.Table.from_batches([], self._schema)

    def add(self, batch: DocumentBatch, lengths: NDArray[np.int32], kept: NDArray[np.bool_] | None = None) -> None:
        """Add the documents of a batch.

        Args:
            batch: the documents.
            lengths: int32, shape (documents,): their tokens.
            kept: bool, shape (documents,): which ones to add; all where it is None.
        """
        import pyarrow as pa

        columns = [
            pa.DictionaryArray.from_arrays(_numbers(batch.files, "int32"), self._files),
            _numbers(batch.lines, "int64"),
            _numbers(batch.offsets, "int64"),
            _strings(batch.ids),
            _numbers(lengths, "int32"),
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if kept is not None and not kept.all():
            rows = rows.take(_numbers(np.flatnonzero(kept), "int64"))
        self._waiting = pa.concat_tables([self._waiting, pa.Table.from_batches([rows])])
        if self._waiting.num_rows >= ROW_GROUP_ROWS:
            self._flush(self._waiting.num_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def _flush(self, rows: int) -> None:
        self._writer.write_table(self._waiting.slice(0, rows), row_group_size=ROW_GROUP_ROWS)
        self._waiting = self._waiting.slice(rows)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._waiting.num_rows:
            self._flush(self._waiting.num_rows)
        self._writer.close()


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


def tokens_by_file(files: Iterable[str], tables: Iterable[Path]) -> dict[str, int]:
    """Return the tokens of each file, 0 where it gave none, added up over tables; raises as `counts_by_file`."""
    counts = dict.fromkeys(files, 0)
    for table in tables:
        for path, found in counts_by_file(table).items():
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
            raise _not_table(path, f"{metadata.num_rows:,} rows, columns {', '.join(names)}")

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the values of some rows, in the order asked for."""
        values: dict[int, dict[str, Any]] = {}
        for group in sorted({bisect_right(self._begins, row) - 1 for row in rows}):
            table, begin, end = self._group(group, _COLUMNS), self._begins[group], self._begins[group + 1]
            for row in rows:
                if begin <= row < end:
                    values[row] = table.slice(row - begin, 1).to_pylist()[0]
        return [values[row] for row in rows]

    def lengths(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield first row, and tokens of each document as int32, shape (rows,), of every row group."""
        import pyarrow as pa

        for group, begin in enumerate(self._begins[:-1]):
            column = self._group(group, ["tokens"]).column("tokens")
            if column.null_count or not pa.types.is_integer(column.type):
                raise _not_table(self.path, f"tokens as {column.type}, {column.null_count:,} of them null")
            yield begin, column.to_numpy(zero_copy_only=False)

    def tokens(self) -> int:
        """Return the tokens of all documents."""
        return sum(int(lengths.sum(dtype=np.int64)) for _, lengths in self.lengths())

    def search(self, wanted: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (row, values) of every row that has these values; row groups that cannot hold them are not read."""
        import pyarrow.compute as pc

        for group, begin in enumerate(self._begins[:-1]):
            with _explained(self.path):
                may_hold = self._may_hold(group, wanted)
            if not may_hold:
                continue
            table = self._group(group, list(wanted))
            same = (
                pc.equal(table.column(name).cast("string" if isinstance(value, str) else "int64"), value)
                for name, value in wanted.items()
            )
            hits = pc.indices_nonzero(pc.fill_null(reduce(pc.and_, same), False)).to_pylist()
            rows = [begin + number for number in hits]
            yield from zip(rows, self.read(rows), strict=True)

    def _may_hold(self, group: int, wanted: Mapping[str, object]) -> bool:
        # pyarrow aborts the process where a column's metadata is damaged, unless reading the column has said so before.
        next(self._file.iter_batches(1, row_groups=[group], columns=_COLUMNS), None)
        metadata = self._file.metadata.row_group(group)
        for name, value in wanted.items():
            facts = metadata.column(_COLUMNS.index(name)).statistics
            if facts is not None and facts.has_min_max and not facts.min <= value <= facts.max:
                return False
        return True

    def _group(self, group: int, columns: list[str]) -> Any:
        with _explained(self.path):
            table = self._file.read_row_group(group, columns=columns)
            table.validate(full=True)
        return table


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        open_regular(path).close()  # the library would wait for the writer of a pipe
        yield
    except FileNotFoundError as error:
        raise MissingError(
            "a shard's table of documents is not there",
            where=path,
            remedy="run `nanoset build`: it makes the shard again",
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_table(path, str(error)[:500]) from error


def _not_table(path: Path, found: str) -> FormatError:
    return FormatError(
        "this is not the table of the shard's documents",
        where=path,
        found=found,
        expected=f"a Parquet file with a row for each document and the columns {', '.join(_COLUMNS)}",
        remedy="delete the shard's folder and run `nanoset build`: it makes the shard again",
    )
