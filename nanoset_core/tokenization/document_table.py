"""documents.parquet: where every document of a shard came from, and how many tokens it has."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
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

        self._schema = pa.schema(
            [
                ("file", pa.dictionary(pa.int32(), pa.string())),
                ("line", pa.int64()),
                ("byte_offset", pa.int64()),
                ("id", pa.string()),
                ("tokens", pa.int32()),
            ]
        )
        self._files = _strings(files)
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_rows = 0

    def add(self, batch: DocumentBatch, lengths: NDArray[np.int32], kept: NDArray[np.bool_] | None = None) -> None:
        """Add the documents of a batch.

        Args:
            batch: the documents.
            lengths: int32, shape (documents,): their tokens.
            kept: bool, shape (documents,): which ones to add; all where it is None.
        """
        import pyarrow as pa

        columns = [
            pa.DictionaryArray.from_arrays(_numbers(np.array(batch.files, np.int32)), self._files),
            _numbers(np.array(batch.lines, np.int64)),
            _numbers(np.array(batch.offsets, np.int64)),
            _strings(batch.ids),
            _numbers(lengths.astype(np.int32, copy=False)),
        ]
        rows = pa.RecordBatch.from_arrays(columns, schema=self._schema)
        if kept is not None and not kept.all():
            rows = rows.take(_numbers(np.flatnonzero(kept)))
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush(self._waiting_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def _flush(self, rows: int) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table.slice(0, rows), row_group_size=ROW_GROUP_ROWS)
        self._waiting = table.slice(rows).to_batches()
        self._waiting_rows -= rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._waiting_rows:
            self._flush(self._waiting_rows)
        self._writer.close()


# pyarrow.array would import pandas, where that is installed, which takes longer than many a small shard.
def _numbers(values: NDArray[np.integer[Any]]) -> Any:
    """Return an Arrow array of numbers."""
    import pyarrow as pa

    kind = {"int32": pa.int32(), "int64": pa.int64()}[values.dtype.name]
    return pa.Array.from_buffers(kind, len(values), [None, pa.py_buffer(np.ascontiguousarray(values))])


def _strings(values: Sequence[str | None]) -> Any:
    """Return an Arrow array of strings and nulls."""
    import pyarrow as pa

    encoded = [b"" if value is None else value.encode() for value in values]
    offsets = np.zeros(len(encoded) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, encoded), np.int32, len(encoded)), out=offsets[1:])
    missing = np.fromiter((value is None for value in values), bool, len(encoded))
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    return pa.Array.from_buffers(
        pa.string(), len(encoded), [valid, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    )


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

    counts: dict[str, FileCounts] = {}
    rows = 0
    with _explained(path), pq.ParquetFile(path) as table:
        for batch in table.iter_batches(batch_size=ROW_GROUP_ROWS, columns=["file", "tokens"]):
            batch.validate(full=True)
            rows += batch.num_rows
            names = batch.column("file")
            names = names if isinstance(names, pa.DictionaryArray) else names.dictionary_encode()
            grouped = group_counts(names.indices.to_numpy(), batch.column("tokens").to_numpy())
            for name, found in zip(names.dictionary.to_pylist(), grouped, strict=False):
                counts[name] = counts.get(name, FileCounts()) + found
        if rows != table.metadata.num_rows:
            raise ValueError(f"{rows:,} of {table.metadata.num_rows:,} rows")
    return {name: found for name, found in counts.items() if found.documents}


def tokens_by_file(files: Iterable[str], tables: Iterable[Path]) -> dict[str, int]:
    """Return the tokens of each file, 0 where it gave none, added up over tables; raises as `counts_by_file`."""
    counts = dict.fromkeys(files, 0)
    for table in tables:
        for path, found in counts_by_file(table).items():
            counts[path] += found.tokens
    return counts


def group_counts(files: NDArray[np.int32], tokens: NDArray[np.int32]) -> list[FileCounts]:
    """Return the counts of file 0, 1, … up to the greatest number in `files`; both int32, shape (documents,)."""
    documents = np.bincount(files)
    # float64 sums are exact below 2^53 tokens
    sums = np.bincount(files, weights=tokens, minlength=len(documents))
    return [FileCounts(int(count), int(total)) for count, total in zip(documents, sums, strict=True)]


class DocumentRows:
    """Rows of one shard's documents.parquet."""

    def __init__(self, path: Path, documents: int) -> None:
        """Open a table that must have so many rows."""
        import pyarrow.parquet as pq

        self.path = path
        with _explained(path):
            self._file = pq.ParquetFile(path)
        metadata = self._file.metadata
        self._ends: list[int] = []
        for group in range(metadata.num_row_groups):
            self._ends.append(metadata.row_group(group).num_rows + (self._ends[-1] if self._ends else 0))
        if metadata.num_rows != documents or self._file.schema_arrow.names != _COLUMNS:
            raise _not_table(path, f"{metadata.num_rows:,} rows, columns {', '.join(self._file.schema_arrow.names)}")

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return the values of some rows, in the order asked for."""
        groups = {bisect_right(self._ends, row) for row in rows}
        values: dict[int, dict[str, Any]] = {}
        for group in sorted(groups):
            table, begin = self._group(group, _COLUMNS), self._begin(group)
            for row in rows:
                if begin <= row < self._ends[group]:
                    values[row] = table.slice(row - begin, 1).to_pylist()[0]
        return [values[row] for row in rows]

    def lengths(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield first row, and tokens of each document as int32, shape (rows,), of every row group."""
        import pyarrow as pa

        for group in range(len(self._ends)):
            column = self._group(group, ["tokens"]).column("tokens")
            if column.null_count or not pa.types.is_integer(column.type):
                raise _not_table(self.path, f"tokens as {column.type}, {column.null_count:,} of them null")
            yield self._begin(group), column.to_numpy(zero_copy_only=False)

    def tokens(self) -> int:
        """Return the tokens of all documents."""
        return sum(int(lengths.sum(dtype=np.int64)) for _, lengths in self.lengths())

    def search(self, wanted: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Yield (row, values) of every row that has these values; row groups that cannot hold them are not read."""
        import pyarrow.compute as pc

        for group in range(len(self._ends)):
            with _explained(self.path):
                may_hold = self._may_hold(group, wanted)
            if not may_hold:
                continue
            table = self._group(group, list(wanted))
            hits = None
            for name, value in wanted.items():
                same = pc.equal(table.column(name).cast(_type_of(value)), value)
                hits = same if hits is None else pc.and_(hits, same)
            numbers = pc.indices_nonzero(pc.fill_null(hits, False)).to_pylist()
            begin = self._begin(group)
            for number, values in zip(numbers, self.read([begin + number for number in numbers]), strict=True):
                yield begin + number, values

    def _begin(self, group: int) -> int:
        return self._ends[group - 1] if group else 0

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


def _type_of(value: object) -> Any:
    import pyarrow as pa

    return pa.string() if isinstance(value, str) else pa.int64()


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
