"""Types and functions that the readers of Parquet files and of Arrow files share."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

SLICE_BYTES = 1 << 20
"""About how many bytes of values are read and passed on at once."""

ColumnChooser = Callable[[Any], Sequence[str] | None]
"""Takes the Arrow schema of a file, and returns the names of the columns to read, or None for all.
The name of field b in the struct a is `a.b`.
"""


def all_columns(_schema: Any) -> None:
    """Choose all columns of a table: readers of tables take None for that (a `ColumnChooser`)."""
    return


class TooFarError(Exception):
    """A row can only be read by decompressing more of the file than the caller allows."""


class TableDamageError(Exception):
    """A table is damaged in a way that Arrow does not notice."""


class NumberedBatch(NamedTuple):
    """Consecutive rows of a file."""

    first_row: int
    """1-based number of the first row."""
    rows: Any
    """A pyarrow.RecordBatch, or the TooFarError for a row that is not read."""


def rows_between(rows: Sequence[int] | None, start: int, stop: int) -> Sequence[int]:
    """Return which of the requested rows of a table are in one part of it, which is read next.

    A table is stored in parts. To read only the rows 2, 5 and 9, a caller asks for each part:

        part                    requested rows in it
        rows 0 to 3             2
        rows 4 to 8             5
        rows 9 to 12            9

    Args:
        rows: Numbers of the requested rows, ascending; None requests all rows.
        start: First row of the part.
        stop: Row after the part, such as 9 for the rows 4 to 8.

    Returns:
        Numbers of the rows, ascending.
    """
    if rows is None:
        return range(start, stop)
    # The rows are sorted, so the first one in the part, and the first one after it, are found by
    # bisection.
    return rows[bisect_left(rows, start) : bisect_left(rows, stop)]


def column_indices(paths: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """Return the indices of the columns of a file that must be read to get some chosen columns.

    Columns can contain columns. If `a.b` is chosen in a file with these columns:

        0    a        needed, since it contains the chosen one
        1    a.b      chosen
        2    a.b.c    needed, since it is a part of the chosen one
        3    a.d      not needed

    Args:
        paths: Dotted name of each column of the file, as above.
        columns: Dotted names of the chosen columns; None chooses all.
    """
    if columns is None:
        return list(range(len(paths)))

    # With a dot at the end, `a.b.` starts with `a.`, but `ab.` does not.
    chosen_paths = [f"{name}." for name in columns]
    indices: list[int] = []
    for index, name in enumerate(paths):
        path = f"{name}."
        for chosen_path in chosen_paths:
            is_inside = path.startswith(chosen_path)
            is_around = chosen_path.startswith(path)
            if is_inside or is_around:
                indices.append(index)
                break
    return indices
