"""Columns of tables in files that are mapped into memory, so that any of their rows can be taken.

A column of numbers with the values 0.5, null and 2.0 is stored as

    <name>.valid    uint8     1  0  1            1 if the row has a value
    <name>.values   float64   0.5  0.0  2.0      a null is stored as 0

and a column of texts with the values "art", null and "music" as

    <name>.valid    uint8     1  0  1
    <name>.values   bytes     a r t m u s i c    all texts, concatenated
    <name>.ends     int64     0  3  3  8         text k is between ends[k] and ends[k + 1]

A column has a kind, which is the name of the Arrow type of its numbers, `string` for everything
else, or empty if no row has a value. The kind is kept by whoever opens the column.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.scratch_arrays import map_array
from nanoset_core.text.tables.values import narrowed

_DTYPES = {"int64": np.int64, "uint64": np.uint64, "double": np.float64, "bool": np.uint8}
"""Kind → type of the values in their file; values of all other kinds are texts."""
_END_BYTES = np.dtype(np.int64).itemsize


class ColumnWriter:
    """Writes the files of a column; its kind is that of its first array with a value."""

    def __init__(self, path: Path) -> None:
        """Create the files of a column.

        Args:
            path: Path of the files, without their endings.
        """
        self.n_rows = 0
        self.kind = ""  # as long as no row has a value
        self._valid_file = path.with_suffix(".valid").open("wb")
        self._values_file = path.with_suffix(".values").open("wb")
        # Only a column of texts has a file of ends, and counts the bytes of all texts so far.
        self._ends_path = path.with_suffix(".ends")
        self._ends_file: BinaryIO | None = None
        self._text_bytes = 0

    def append(self, array: Any) -> None:
        """Append the values of some rows to the files of the column.

        Whether it is a column of numbers or of texts is known from the first row with a value on:

            texts      "art", null, "music"    .valid 1 0 1    .values artmusic     .ends 0 3 3 8
            numbers    0.5, null, 2.0          .valid 1 0 1    .values 0.5 0 2.0

        Until then, only `.valid` gets an entry for each row. When the first value comes,
        `_choose_kind` adds the missing entries to the other files.

        Args:
            array: An Arrow array, of the same type as the other arrays with a value.
        """
        has_values = array.null_count < len(array)
        if has_values and not self.kind:  # the first value of the column
            self._choose_kind(str(array.type))

        is_valid = array.is_valid().to_numpy(zero_copy_only=False)
        self._valid_file.write(is_valid.astype(np.uint8))
        if self._ends_file is not None:  # texts
            self._append_texts(self._ends_file, array)
        elif self.kind:  # numbers
            self._append_numbers(array)
        self.n_rows += len(array)

    def close(self) -> None:
        """Close the files."""
        self._valid_file.close()
        self._values_file.close()
        if self._ends_file is not None:
            self._ends_file.close()

    def _choose_kind(self, arrow_type: str) -> None:
        """Note that a column has numbers or texts, and add the entries of the rows so far.

        These rows have no value. For example, 2 rows before the first value:

            type        kind        entries that are added
            double      double      .values 0 0       a missing number is stored as 0
            string      string      .ends 0 0 0       where the first text starts, and where the
                                                      two empty texts end

        Args:
            arrow_type: Name of the type of the first array with a value, such as "double".
        """
        is_numeric = arrow_type in _DTYPES
        if is_numeric:
            self.kind = arrow_type
            bytes_per_number = np.dtype(_DTYPES[arrow_type]).itemsize
            _extend_with_zeros(self._values_file, self.n_rows * bytes_per_number)
        else:
            self.kind = "string"
            self._ends_file = self._ends_path.open("wb")
            n_ends = 1 + self.n_rows
            _extend_with_zeros(self._ends_file, n_ends * _END_BYTES)

    def _append_numbers(self, array: Any) -> None:
        """Append an Arrow array of numbers to the file of values, with 0 in place of null."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if pa.types.is_null(array.type):
            array = array.cast(self.kind)
        zero: Any = False if self.kind == "bool" else 0
        numbers = pc.fill_null(array, zero).to_numpy(zero_copy_only=False)
        self._values_file.write(numbers.astype(_DTYPES[self.kind]))

    def _append_texts(self, ends_file: BinaryIO, array: Any) -> None:
        """Append texts to the file of all texts, and where each of them ends to another file.

                        file of texts       file of ends
            so far      artmusic            0 3 8
            appended    filmjazz            12 16

        Args:
            ends_file: The file of ends.
            array: The texts, such as "film" and "jazz".
        """
        import pyarrow as pa

        # Arrow also has the bytes of all texts one after another, and where each of them ends.
        texts = array.cast(pa.large_string())
        offsets = _offsets_of(texts)  # (n_rows + 1,) [0, 4, 8]
        start = int(offsets[0])
        stop = int(offsets[-1])

        _, _, text_bytes = texts.buffers()  # b"filmjazz"
        if text_bytes is not None:  # None if all texts are empty
            self._values_file.write(memoryview(text_bytes)[start:stop])

        # In the file, they follow the 8 bytes of "artmusic".
        ends: NDArray[np.int64] = self._text_bytes + offsets[1:] - start  # (n_rows,) [12, 16]
        ends_file.write(ends.data)
        self._text_bytes += stop - start  # 16


def _offsets_of(texts: Any) -> NDArray[np.int64]:
    """Return where the texts of an Arrow array start in its buffer, and where the last one ends.

    For "art" and "music", the offsets are 0 3 8.

    Args:
        texts: An Arrow array of large strings.
    """
    # A slice of an array shares the buffers of all of it: take the offsets of its own texts.
    offsets = np.frombuffer(texts.buffers()[1], np.int64)
    return offsets[texts.offset : texts.offset + len(texts) + 1]


def _extend_with_zeros(file: BinaryIO, size: int) -> None:
    """Make an empty file `size` bytes long without writing them, and continue at its end."""
    file.truncate(size)
    file.seek(size)


@dataclass(frozen=True, slots=True)
class StoredColumn:
    """A column whose files are mapped into memory."""

    kind: str
    """`string`, a type of numbers such as `double`, or empty if no row has a value."""
    values: Any
    """Arrow array of all rows, in which rows without a value have 0 or an empty text; None if no
    row has a value.
    """
    is_valid: NDArray[np.uint8]
    """1 for each row with a value, shape (n_rows,)."""

    @staticmethod
    def open(path: Path, kind: str, n_rows: int) -> StoredColumn:
        """Open the files of a column that may be larger than the memory.

        The operating system maps them into memory: a part of a file is read only when it is used.

        Args:
            path: Path of the files, without their endings .valid, .values and .ends.
            kind: What the rows have: "double" and the like for numbers, "string" for texts, or ""
                if no row has a value.
            n_rows: Number of rows.
        """
        is_valid = map_array(path.with_suffix(".valid"), np.uint8)  # 1 for each row with a value
        if kind == "":
            return StoredColumn(kind, None, is_valid)
        if kind in _DTYPES:
            return StoredColumn(kind, _map_numbers(path, kind, n_rows), is_valid)
        return StoredColumn(kind, _map_texts(path, n_rows), is_valid)

    def take(self, rows: NDArray[np.int64]) -> Any:
        """Return the values of some rows, as an Arrow array.

        For example, of a column "art", null, "music", the rows [2, -1, 1, 0] are "music", null,
        null and "art".

        Args:
            rows: Numbers of rows, shape (n,); -1 gives null.
        """
        import pyarrow as pa

        if self.values is None:  # no row has a value
            return pa.nulls(len(rows))

        has_row = rows >= 0  # (n,) [True, False, True, True]
        has_value = np.zeros(len(rows), np.bool_)
        has_value[has_row] = self.is_valid[rows[has_row]] == 1  # [True, False, False, True]
        indices = pa.array(rows, mask=~has_value)  # [2, null, null, 0]
        return self._to_table_type(self.values.take(indices))

    def _to_table_type(self, values: Any) -> Any:
        """Convert values from the type in which they are stored to the type that tables have.

            stored                            in tables
            bytes 0 and 1, for booleans       booleans
            texts with offsets of 64 bits     texts with offsets of 32 bits
            unsigned integers                 int64, or texts if one is too large for that
            others                            the same

        Args:
            values: Some values of the column, as an Arrow array of the stored type.
        """
        import pyarrow as pa

        if self.kind == "bool":
            return values.cast(pa.bool_())
        if self.kind == "string":
            return values.cast(pa.string())
        if self.kind == "uint64":
            return narrowed(values)
        return values


def _map_numbers(path: Path, kind: str, n_rows: int) -> Any:
    """Return all numbers of a column as an Arrow array, without reading them into memory.

    The file has the numbers in the form in which Arrow has them, one after another. The operating
    system maps it into memory: a part of it is read only when it is used.

    Args:
        path: Path of the column's files, without their endings.
        kind: Name of the type of the numbers, such as "double".
        n_rows: Number of rows.

    Returns:
        A pyarrow.Array of shape (n_rows,), with 0 for rows without a number.
    """
    import pyarrow as pa

    numbers = map_array(path.with_suffix(".values"), _DTYPES[kind])
    arrow_type = pa.from_numpy_dtype(numbers.dtype)
    no_nulls = None  # in place of Arrow's bits that mark rows without a value
    return pa.Array.from_buffers(arrow_type, n_rows, [no_nulls, pa.py_buffer(numbers)])


def _map_texts(path: Path, n_rows: int) -> Any:
    """Return all texts of a column as an Arrow array, without reading them into memory.

    The files have the texts in the form in which Arrow has them: all bytes one after another, such
    as `artmusic`, and where each text ends, `0 3 8` for "art" and "music". The operating system
    maps them into memory: a part of them is read only when it is used.

    Args:
        path: Path of the column's files, without their endings.
        n_rows: Number of rows.

    Returns:
        A pyarrow.LargeStringArray of shape (n_rows,), with empty texts for rows without a text.
    """
    import pyarrow as pa

    ends = map_array(path.with_suffix(".ends"), np.int64)
    if not len(ends):  # no row has a text, so this file was not written
        ends = np.zeros(n_rows + 1, np.int64)
    text_bytes = map_array(path.with_suffix(".values"), np.uint8)
    return pa.LargeStringArray.from_buffers(n_rows, pa.py_buffer(ends), pa.py_buffer(text_bytes))
