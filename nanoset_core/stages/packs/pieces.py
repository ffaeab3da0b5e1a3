"""`pieces.parquet`, stored next to packs: which tokens of which document are where in each pack.

Its rows are sorted by pack, and within a pack by position. All columns are int64:

| column | meaning |
| --- | --- |
| pack | number of the pack |
| begin | position of the piece's first token in the pack |
| document | number of the document in the dataset that was packed |
| first | position of the piece's first token in the document |
| tokens | tokens of the piece |
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.packing.assignment import Pieces

PIECES_FILE = "pieces.parquet"
COLUMNS = ("pack", "begin", "document", "first", "tokens")
_ROWS_PER_GROUP = 1 << 18


class PieceRows(NamedTuple):
    """Rows of the table, column by column; each array is int64 of shape (n_rows,)."""

    packs: NDArray[np.int64]
    begins: NDArray[np.int64]
    documents: NDArray[np.int64]
    firsts: NDArray[np.int64]
    tokens: NDArray[np.int64]

    def select(self, rows: NDArray[Any]) -> PieceRows:
        """Return some of the rows, by a mask or by their indices."""
        return PieceRows(*[column[rows] for column in self])


class PieceTableWriter:
    """Writes the table while packs are written; a context manager."""

    def __init__(self, path: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")

    def __enter__(self) -> PieceTableWriter:
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.close()

    def append(self, first_pack: int, pieces: Pieces) -> None:
        """Append the pieces of consecutive packs, starting with the pack number `first_pack`."""
        import pyarrow as pa

        columns = [
            first_pack + pieces.packs,
            pieces.begins,
            pieces.documents,
            pieces.firsts,
            pieces.lengths,
        ]
        table = pa.Table.from_arrays([pa.array(column) for column in columns], schema=self._schema)
        self._writer.write_table(table, _ROWS_PER_GROUP)


def open_pieces(packs: Manifest) -> PieceTable:
    """Open the table of the pieces of packs."""
    return PieceTable(packs.path(PIECES_FILE))


class PieceTable:
    """Reads the table. Only row groups that may contain the requested rows are read.

    Raises:
        FormatError: The file cannot be read; raised when it is opened, or when a row group is read.
    """

    def __init__(self, path: Path) -> None:
        import pyarrow.parquet as pq

        self._path = path
        with self._readable():
            self._file = pq.ParquetFile(path)

    def of_packs(self, packs: NDArray[np.int64]) -> PieceRows:
        """Return the rows of some packs, by number of the pack."""
        return self._rows_with("pack", packs)

    def of_documents(self, documents: NDArray[np.int64]) -> PieceRows:
        """Return the rows of some documents, by number of the pack."""
        return self._rows_with("document", documents)

    def between(self, start: int, stop: int) -> Iterator[PieceRows]:
        """Yield the rows of the packs [start, stop), some at a time."""
        for rows in self._row_groups("pack", lambda low, high: low < stop and start <= high):
            yield rows.select((rows.packs >= start) & (rows.packs < stop))

    def tokens_by_pack(self, packs: int) -> NDArray[np.int64]:
        """Return how many tokens of documents each pack holds, int64, shape (packs,); the rest is
        padding.
        """
        counts = np.zeros(packs, np.int64)
        for rows in self._row_groups("pack", lambda low, high: True):
            np.add.at(counts, rows.packs, rows.tokens)
        return counts

    def sha256(self) -> str:
        """Return the sha256 of all values, which does not depend on the version of the library that
        wrote them.
        """
        digest = hashlib.sha256()
        for rows in self._row_groups("pack", lambda low, high: True):
            digest.update(np.stack(rows, axis=1).data)
        return digest.hexdigest()

    def _rows_with(self, column: str, numbers: NDArray[np.int64]) -> PieceRows:
        """Return the rows whose value of a column is one of some numbers."""
        empty = np.empty(0, np.int64)
        parts = [PieceRows(empty, empty, empty, empty, empty)]
        wanted = np.unique(numbers)
        if not len(wanted):
            return parts[0]

        def may_contain(low: int, high: int) -> bool:
            return bool(np.searchsorted(wanted, low) < np.searchsorted(wanted, high, side="right"))

        for rows in self._row_groups(column, may_contain):
            values = rows[COLUMNS.index(column)]
            nearest = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
            parts.append(rows.select(wanted[nearest] == values))
        return PieceRows(*[np.concatenate(columns) for columns in zip(*parts, strict=True)])

    def _row_groups(
        self, column: str, is_wanted: Callable[[int, int], bool]
    ) -> Iterator[PieceRows]:
        """Yield the row groups whose smallest and largest value of a column are wanted, or not
        known.
        """
        metadata = self._file.metadata
        for group in range(metadata.num_row_groups):
            statistics = metadata.row_group(group).column(COLUMNS.index(column)).statistics
            if statistics is not None and not is_wanted(statistics.min, statistics.max):
                continue
            with self._readable():
                table = self._file.read_row_group(group)
            yield PieceRows(*[table.column(name).to_numpy() for name in COLUMNS])

    @contextmanager
    def _readable(self) -> Iterator[None]:
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
