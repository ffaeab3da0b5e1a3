"""`pieces.parquet`, stored next to packs: which tokens of which document are where in each pack.

Its rows are sorted by pack, and within a pack by position. All columns are int64:

| column | meaning |
| --- | --- |
| pack | number of the pack |
| begin | position of the piece's first token in the pack |
| document | number of the document in the dataset that was packed |
| first | position of the piece's first token in the document |
| tokens | tokens of the piece |

Packs of 8 tokens with a document of 10 tokens, which is cut, and two of 3 tokens:

| pack | begin | document | first | tokens |
| --- | --- | --- | --- | --- |
| 0 | 0 | 0 | 0 | 8 |
| 1 | 0 | 1 | 0 | 3 |
| 1 | 3 | 2 | 0 | 3 |
| 1 | 6 | 0 | 8 | 2 |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.packing.pieces import FilledPacks

PIECES_FILE = "pieces.parquet"
COLUMNS = ("pack", "begin", "document", "first", "tokens")
_ROWS_PER_GROUP = 1 << 18
"""Rows that a reader has in memory at a time."""


class PieceRows(NamedTuple):
    """Rows of the table, column by column, in the order of COLUMNS; each of shape (n_rows,)."""

    packs: NDArray[np.int64]
    """Number of the pack that contains each piece."""
    begins: NDArray[np.int64]
    """Position of each piece's first token in the pack."""
    documents: NDArray[np.int64]
    """Number of each piece's document in the dataset that was packed."""
    firsts: NDArray[np.int64]
    """Position of each piece's first token in the document."""
    tokens: NDArray[np.int64]
    """Number of tokens of each piece."""

    @property
    def stops(self) -> NDArray[np.int64]:
        """Position in the pack after the last token of each piece."""
        return self.begins + self.tokens

    def select(self, rows: NDArray[Any]) -> PieceRows:
        """Return some of the rows.

        Args:
            rows: Which ones: a mask of shape (n_rows,), or indices in any order, such as [2, 0].
        """
        return PieceRows(*[column[rows] for column in self])

    def column(self, name: str) -> NDArray[np.int64]:
        """Return a column by its name in the file.

        Args:
            name: One of `COLUMNS`, such as `pack`.
        """
        return self[COLUMNS.index(name)]

    @staticmethod
    def concatenated(parts: Sequence[PieceRows]) -> PieceRows:
        """Join several lists of rows into one.

        Args:
            parts: Rows of the table. If there are no parts, the result has no rows.
        """
        no_rows = np.empty(0, np.int64)  # so that `concatenate` works without any part
        columns = []
        for number in range(len(COLUMNS)):
            column_parts = [part[number] for part in parts]
            columns.append(np.concatenate([no_rows, *column_parts]))
        return PieceRows(*columns)


class PieceTableWriter:
    """Writes the table while packs are written; a context manager."""

    def __init__(self, path: Path) -> None:
        """Create the file.

        Args:
            path: Path of the file. It is complete after the context was left.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._n_packs = 0  # that were written so far
        self._schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> PieceTableWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def append(self, packs: FilledPacks) -> None:
        """Write which pieces of documents are in the next packs, with a row for each piece.

        Packs are samples of one length that are filled with documents. For example, if the tokens 6
        and 7 of pack 1 are the tokens 8 and 9 of document 0, the row is

            pack    begin    document    first    tokens
            1       6        0           8        2

        Args:
            packs: The packs that follow those written before.
        """
        import pyarrow as pa

        rows = PieceRows(
            packs=self._n_packs + packs.pack_numbers,
            begins=packs.begins,  # position of the first token in the pack
            documents=packs.pieces.documents,
            firsts=packs.pieces.firsts,  # position of the first token in the document
            tokens=packs.pieces.lengths,
        )
        table = pa.Table.from_arrays([pa.array(column) for column in rows], schema=self._schema)
        self._writer.write_table(table, _ROWS_PER_GROUP)
        self._n_packs += packs.n_packs


def _are_among(values: NDArray[np.int64], sorted_numbers: NDArray[np.int64]) -> NDArray[np.bool_]:
    """For each value, return whether it is one of some numbers.

    For example, the values 4, 5, 9 and the numbers 2, 5 give False, True, False.

    Args:
        values: int64, shape (n_values,).
        sorted_numbers: Ascending, without duplicates, and not empty.
    """
    # Find the first number that is not below each value. If the value is one of the numbers, it is
    # this one. For a value above all numbers, there is none: compare it with the last one.
    positions = np.searchsorted(sorted_numbers, values)  # [1, 1, 2]
    positions = np.minimum(positions, len(sorted_numbers) - 1)  # [1, 1, 1]
    are_among: NDArray[np.bool_] = sorted_numbers[positions] == values  # 5 == 4, 5 == 5, 5 == 9
    return are_among


def open_pieces(packs: Manifest) -> PieceTable:
    """Open the table of the pieces of packs.

    Args:
        packs: Manifest of the packs, which must have been built.

    Raises:
        FormatError: The file cannot be read.
    """
    return PieceTable(packs.path(PIECES_FILE))


class PieceTable:
    """Reads the table. Only row groups that may contain the requested rows are read.

    Raises:
        FormatError: The file cannot be read; raised when it is opened, or when a row group is read.
    """

    def __init__(self, path: Path) -> None:
        """Open the table.

        Args:
            path: Path of the file, which must be on this machine.

        Raises:
            FormatError: The file is no Parquet file.
        """
        self._path = path
        with self._explaining_errors():
            self._file = RowGroups(path)

    def of_packs(self, packs: NDArray[np.int64]) -> PieceRows:
        """Return which pieces of documents are in some packs, which are filled with these.

        Args:
            packs: Numbers of the packs, in any order; shape (n_packs,).

        Returns:
            The rows of these packs, sorted by pack, and within a pack by position.
        """
        return self._rows_with("pack", packs)

    def of_documents(self, documents: NDArray[np.int64]) -> PieceRows:
        """Return in which packs some documents are. A document that was cut is in several packs.

        Args:
            documents: Numbers of documents in the dataset that was packed, in any order; shape
                (n_documents,).

        Returns:
            The rows of these documents, sorted by pack, and within a pack by position.
        """
        return self._rows_with("document", documents)

    def between(self, start: int, stop: int) -> Iterator[PieceRows]:
        """Yield which pieces of documents are in consecutive packs, some rows at a time.

        Packs are samples of one length that are filled with documents. The file stores its rows in
        groups, with the smallest and the largest pack of each. Groups of other packs are not read.

        Args:
            start: Number of the first pack.
            stop: Number after the last pack.
        """

        def may_contain(smallest_pack: int, largest_pack: int) -> bool:
            """Return whether a group can have rows of the packs from `start` on, before `stop`."""
            return smallest_pack < stop and largest_pack >= start

        for rows in self._row_groups("pack", may_contain):
            is_between = (rows.packs >= start) & (rows.packs < stop)
            yield rows.select(is_between)

    def tokens_by_pack(self, packs: int) -> NDArray[np.int64]:
        """Return how many tokens of each pack are not padding, shape (packs,).

        Args:
            packs: Number of packs.
        """
        counts = np.zeros(packs, np.int64)
        for rows in self._row_groups():
            np.add.at(counts, rows.packs, rows.tokens)
        return counts

    def sha256(self) -> str:
        """Return the sha256 of all values.

        Unlike the sha256 of the file, it does not depend on the version of the Parquet library.
        """
        digest = hashlib.sha256()
        for rows in self._row_groups():
            digest.update(np.stack(rows, axis=1).data)  # row by row
        return digest.hexdigest()

    def _rows_with(self, column: str, numbers: NDArray[np.int64]) -> PieceRows:
        """Find the rows of the table that are about some packs, or about some documents.

        Args:
            column: `pack` or `document`.
            numbers: Numbers of these, shape (n_numbers,), in any order.
        """
        sorted_numbers = np.unique(numbers)
        if len(sorted_numbers) == 0:
            return PieceRows.concatenated([])

        def may_contain(low: int, high: int) -> bool:
            """Return whether one of the numbers is between `low` and `high`, both included."""
            n_below = np.searchsorted(sorted_numbers, low)
            n_until_high = np.searchsorted(sorted_numbers, high, side="right")
            return bool(n_below < n_until_high)

        requested_rows = []
        for rows in self._row_groups(column, may_contain):
            is_requested = _are_among(rows.column(column), sorted_numbers)
            requested_rows.append(rows.select(is_requested))
        return PieceRows.concatenated(requested_rows)

    def _row_groups(
        self, column: str = "pack", may_contain: Callable[[int, int], bool] | None = None
    ) -> Iterator[PieceRows]:
        """Yield the rows of the table, one group of some 260,000 rows at a time.

        For each group, the file records the smallest and the largest value of a column, which show
        whether the group can have the rows that the caller needs.

        Args:
            column: The column that decides which groups are read.
            may_contain: Returns whether a group is needed, given the smallest and the largest value
                of the column in it. Groups for which these are not recorded are always read. None
                reads all groups.
        """
        for group in range(len(self._file.ranges)):
            value_range = self._file.value_range(group, column)  # None if it is not recorded
            if may_contain is None or value_range is None:
                is_needed = True
            else:
                is_needed = may_contain(value_range.smallest, value_range.largest)
            if is_needed:
                yield self._read_row_group(group)

    def _read_row_group(self, group: int) -> PieceRows:
        """Return the rows of one row group of the Parquet file, by its number.

        Raises:
            FormatError: It cannot be read.
        """
        with self._explaining_errors():
            table = self._file.read(group)
        return PieceRows(*[table.column(name).to_numpy() for name in COLUMNS])

    @contextmanager
    def _explaining_errors(self) -> Iterator[None]:
        """Turn errors of the Parquet library into a FormatError that says which file is damaged.

        It is used as `with self._explaining_errors():` around what reads the file.
        """
        import pyarrow as pa

        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise FormatError(
                "the table of pieces cannot be read",
                where=self._path,
                found=str(error),
                expected="Parquet",
                remedy=f"delete {self._path.parent}, and run `nanoset build`",
            ) from error
