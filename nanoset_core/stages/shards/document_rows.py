"""Read documents.parquet, the table of a shard's documents; `document_table` explains it."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.relation import TableSource
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.stages.shards.arrow_arrays import number_array
from nanoset_core.storage.regular_files import open_regular

COLUMNS = ("file", "line", "byte_offset", "id", "tokens")


class DocumentRows:
    """The rows of a table of documents; only the row groups that are needed are read.

    Raises:
        FormatError: A row group is damaged; raised when it is read.
    """

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
        with explaining_errors(path):
            self._file = pq.ParquetFile(path)
            metadata = self._file.metadata
            names = self._file.schema_arrow.names
            if metadata.num_rows != documents or tuple(names) != COLUMNS:
                raise ValueError(f"{metadata.num_rows:,} rows, columns {', '.join(names)}")
            rows_per_group = [
                metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)
            ]
        self._starts: list[int] = list(accumulate(rows_per_group, initial=0))
        """First row of each row group, and the number of rows."""

    @property
    def groups(self) -> Sequence[tuple[int, int]]:
        """Rows of each row group: half-open ranges (start, stop)."""
        return list(pairwise(self._starts))

    def read(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """Return column → value of some rows, in the order of `rows`."""
        # Read each row group once.
        rows_by_group: dict[int, list[int]] = {}
        for row in sorted(set(rows)):
            group = bisect_right(self._starts, row) - 1
            rows_by_group.setdefault(group, []).append(row)

        values_by_row: dict[int, dict[str, Any]] = {}
        for group, group_rows in rows_by_group.items():
            table = self.columns(group, list(COLUMNS))
            positions = number_array(np.array(group_rows) - self._starts[group], "int64")
            values = table.take(positions).to_pylist()
            values_by_row.update(zip(group_rows, values, strict=True))
        return [values_by_row[row] for row in rows]

    def columns(self, group: int, names: list[str]) -> Any:
        """Read some columns of a row group.

        Args:
            group: Number of the row group.
            names: Names of the columns.

        Returns:
            A pyarrow.Table.

        Raises:
            FormatError: The row group is damaged.
        """
        import pyarrow as pa

        with explaining_errors(self.path):
            table = self._file.read_row_group(group, columns=names)
            table.validate(full=True)
            if "tokens" in names:
                tokens = table.column("tokens")
                if tokens.null_count or not pa.types.is_integer(tokens.type):
                    raise ValueError(f"tokens as {tokens.type}, {tokens.null_count:,} of them null")
        return table

    @property
    def count(self) -> int:
        """Number of rows."""
        return self._starts[-1]

    @property
    def source(self) -> TableSource:
        """The table as a part of the relation of the shard's documents."""
        return TableSource(
            paths=(self.path,),
            stored=self._file.schema_arrow,
            metadata=(self._file.metadata,),
        )

    def lengths(self) -> Iterator[tuple[int, NDArray[np.int32]]]:
        """Yield (first row; tokens of each document, int32, shape (n_rows,)) of each row group."""
        for group, start in enumerate(self._starts[:-1]):
            tokens = self.columns(group, ["tokens"]).column("tokens")
            yield start, tokens.to_numpy(zero_copy_only=False)

    def search(self, values: Mapping[str, object]) -> Iterator[tuple[int, dict[str, Any]]]:
        """Find the rows that have certain values in some columns.

        Args:
            values: Column → value; a row must have all of them.

        Yields:
            (number of the row, column → value of all columns).

        Raises:
            FormatError: A row group is damaged.
        """
        import pyarrow.compute as pc

        for group, start in enumerate(self._starts[:-1]):
            table = self.columns(group, list(values))
            is_match = None  # (n_rows_of_group,) Arrow array of booleans
            for name, value in values.items():
                kind = "string" if isinstance(value, str) else "int64"
                is_equal = pc.equal(table.column(name).cast(kind), value)
                is_match = is_equal if is_match is None else pc.and_(is_match, is_equal)

            # A document without an id has null there, which equals nothing.
            positions = pc.indices_nonzero(pc.fill_null(is_match, False)).to_pylist()
            rows = [start + position for position in positions]
            yield from zip(rows, self.read(rows), strict=True)


@contextmanager
def explaining_errors(path: Path) -> Iterator[None]:
    """Explain what goes wrong in the block while a table of documents is read.

    Raises:
        MissingError: There is no such table.
        FormatError: It is damaged, or is another file.
    """
    import pyarrow as pa

    rebuild = "run `nanoset build`: it makes the shard again"
    try:
        open_regular(path).close()  # refuses a named pipe, for whose writer pyarrow would wait
        yield
    except FileNotFoundError as error:
        raise MissingError(
            "a shard's table of documents is missing", where=path, remedy=rebuild
        ) from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "this is not the table of the shard's documents",
            where=path,
            found=str(error)[:500],
            expected="a Parquet file with a row for each document and the columns "
            f"{', '.join(COLUMNS)}",
            remedy=f"delete the shard's folder and {rebuild}",
        ) from error
