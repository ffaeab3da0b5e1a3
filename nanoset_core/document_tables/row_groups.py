"""Read a Parquet file row group by row group.

DuckDB answers questions about documents. Row groups are read one by one for what it does not do:
outputs that have the row groups of their input, and checks of each row group of a file.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self


class ValueRange(NamedTuple):
    """The smallest and the largest value of a column in a row group."""

    smallest: Any
    largest: Any


class RowGroups:
    """The row groups of a Parquet file; a context manager that closes the file.

    Raises:
        OSError: The file cannot be read; also raised by the methods that read.
        pyarrow.ArrowException: The file is damaged; also raised by the methods that read.
    """

    def __init__(self, path: Path) -> None:
        """Open a file, and read its metadata.

        Args:
            path: Path of the Parquet file.
        """
        import pyarrow.parquet as pq

        self.path = path
        self._file = pq.ParquetFile(path)
        self.schema: Any = self._file.schema_arrow
        """The pyarrow.Schema of the columns."""
        self.metadata: Any = self._file.metadata
        """The pyarrow.parquet.FileMetaData of the file."""

    @property
    def ranges(self) -> Sequence[tuple[int, int]]:
        """Rows of each row group: half-open ranges (start, stop)."""
        groups = range(self.metadata.num_row_groups)
        n_rows = [self.metadata.row_group(group).num_rows for group in groups]
        bounds = accumulate(n_rows, initial=0)  # [3, 5] → [0, 3, 8]
        return list(pairwise(bounds))  # → [(0, 3), (3, 8)]

    def read(self, group: int, columns: Sequence[str] | None = None) -> Any:
        """Read one row group of a Parquet file, which is a block of consecutive rows.

        A damaged file may contain texts that are not UTF-8, or lists that lead out of the memory.
        Arrow does not notice that when it reads. So everything is checked here, before a caller
        uses it.

        Args:
            group: Number of the row group, from 0.
            columns: Names of the columns to read; None for all.

        Returns:
            A pyarrow.Table with the rows of the group.

        Raises:
            OSError: The file cannot be read.
            pyarrow.ArrowException: The row group is damaged, or a text is not UTF-8.
        """
        table = self._file.read_row_group(group, columns=columns)
        # Arrow trusts what it reads: texts may, for example, not be UTF-8.
        table.validate(full=True)
        return table

    def value_range(self, group: int, column: str) -> ValueRange | None:
        """Return the smallest and the largest value of a column in one block of rows.

        Parquet files store them for each block, a row group, so that no rows have to be read. If a
        caller looks for the document 7 and the range is 100 to 200, it can skip the block.

        Args:
            group: Number of the row group, from 0.
            column: Name of the column.

        Returns:
            The range, or None if the file does not store it. For long texts, Parquet may store
            shortened values, so the actual values may only fill a part of the range.
        """
        index = self.schema.get_field_index(column)
        statistics = self.metadata.row_group(group).column(index).statistics
        if statistics is None:
            return None
        return ValueRange(statistics.min, statistics.max)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()
