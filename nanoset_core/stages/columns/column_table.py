"""Write columns.parquet: values of a shard's documents, in the order of its documents.parquet.

For example, the text of a shard has lines such as {"text": …, "language": "en", "score": 3}, and
`language` and `score` are kept. Then row k of the table has both values of the shard's document k.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.stages.shards.document_table import ROW_GROUP_ROWS
from nanoset_core.text.tables.values import as_type, joined, kind_of, limited, type_of

TABLE = "columns.parquet"


class ColumnTable:
    """Writes a table, one row group at a time; a context manager.

    The type of a column is the narrowest one for all of its values. If a row group has values that
    the type so far does not hold, the row groups before it are written again with a wider type.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Start a table without rows.

        Args:
            path: Path of the file, which is complete after the context was left.
            names: Names of the columns.
        """
        self.rows = 0
        self._path = path
        self._kinds = dict.fromkeys(names, "null")
        """Name of each column → its kind, such as "int" or "string"; "null" if it has no values. A
        kind decides the Arrow type of the column in the file; see `text.values`.
        """
        self._nulls = dict.fromkeys(names, 0)
        self._left_out = dict.fromkeys(names, 0)
        self._writer = self._open_writer()

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Name and kind of each column, and how many values are null, and left out as too long."""
        return [
            {
                "name": name,
                "kind": kind,
                "nulls": self._nulls[name],
                "left_out": self._left_out[name],
            }
            for name, kind in self._kinds.items()
        ]

    def add(self, parts: Sequence[Sequence[Any]]) -> None:
        """Append rows to a table, and change the types of its columns if necessary.

        For example, the scores so far were whole numbers, and the new rows have a fraction:

            scores so far      3, 5
            scores to add      0.5
            column             3.0, 5.0, 0.5      of floating-point numbers

        Args:
            parts: The rows, in consecutive parts. Each part is a list with an Arrow array for each
                column, in the order of the columns.
        """
        # The arrays of each column, in which very long values are null.
        arrays_by_name: dict[str, list[Any]] = {}
        for number, name in enumerate(self._kinds):
            arrays_of_column = [part[number] for part in parts]
            arrays_by_name[name] = self._without_long_values(name, arrays_of_column)

        # Each column gets a type that holds the old values and the new ones.
        self._widen_types(arrays_by_name)
        columns = []
        for name, arrays in arrays_by_name.items():
            column = _converted(arrays, self._kinds[name])
            self._nulls[name] += column.null_count
            columns.append(column)
        self.rows += self._write_row_group(columns)

    def _widen_types(self, arrays_by_name: Mapping[str, Sequence[Any]]) -> None:
        """Change the types of columns if they do not hold the next values.

        For example, a column of integers gets the value 0.5. A column of a file has one type. So
        the rows so far are written again, as floating-point numbers.

        Args:
            arrays_by_name: Name of each column → Arrow arrays of its next values.
        """
        types_so_far = self._writer.schema.types
        for name, arrays in arrays_by_name.items():
            kinds_of_arrays = [kind_of(array) for array in arrays]
            # "int" so far, and "double" now, give "double".
            self._kinds[name] = joined([self._kinds[name], *kinds_of_arrays])

        new_types = [type_of(kind) for kind in self._kinds.values()]
        if new_types != types_so_far:  # two kinds may have the same type
            self._write_again()

    def _without_long_values(self, name: str, arrays: Sequence[Any]) -> list[Any]:
        """Replace the values of a column that are too long by null, and count them.

        Values should describe a document, such as its language. A value of many kilobytes is
        probably a text that got there by mistake:

            "en", "de", a text of 10,000 bytes    → "en", "de", null

        Args:
            name: Name of the column.
            arrays: Arrow arrays of its values.
        """
        short_arrays = []
        for array in arrays:
            short_array, n_too_long = limited(array)
            short_arrays.append(short_array)
            self._left_out[name] += n_too_long
        return short_arrays

    def _open_writer(self) -> Any:
        """Create the file, with columns of the current kinds, and return its pq.ParquetWriter."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, type_of(kind)) for name, kind in self._kinds.items()])
        return pq.ParquetWriter(self._path, schema, compression="zstd")

    def _write_row_group(self, columns: Sequence[Any]) -> int:
        """Write some rows, and return how many they are.

        Args:
            columns: An Arrow array for each column, of the type that it has in the file.
        """
        import pyarrow as pa

        table = pa.Table.from_arrays(columns, schema=self._writer.schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        return int(table.num_rows)

    def _write_again(self) -> None:
        """Write the rows so far to a new file, in which columns have the types of `self._kinds`.

        For example, the integers 3 and 5 become the floating-point numbers 3.0 and 5.0.
        """
        self._writer.close()
        old_path = self._path.rename(self._path.with_suffix(".before"))
        self._writer = self._open_writer()
        new_types = self._writer.schema.types

        with RowGroups(old_path) as file:
            for group in range(len(file.ranges)):
                old_columns = file.read(group).columns
                self._write_row_group(list(map(as_type, old_columns, new_types)))
        old_path.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._writer.close()


def _converted(arrays: Sequence[Any], kind: str) -> Any:
    """Return the values of a column as one chunked Arrow array of the type of a kind.

    Args:
        arrays: Arrow arrays of the values.
        kind: A kind that holds all of them, such as "double" for integers and fractions.
    """
    import pyarrow as pa

    column_type = type_of(kind)
    return pa.chunked_array([as_type(array, column_type) for array in arrays])
