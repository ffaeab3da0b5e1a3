"""The table of pieces beside packs: which tokens of which document lie where in each pack."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.sampling.packing.assignment import Pieces

COLUMNS = ("pack", "begin", "document", "first", "tokens")
"""Number of the pack; first token of the piece in it; number of the document in the dataset that was packed; first
token of the piece in the document; tokens of the piece. All int64; by pack, and in a pack by begin."""
_ROWS = 1 << 18


@contextmanager
def piece_table(path: Path) -> Iterator[Any]:
    """Yield what appends packs to a table: (number of the first, their pieces) → nothing."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([(name, pa.int64()) for name in COLUMNS])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:

        def add(first: int, pieces: Pieces) -> None:
            columns = [first + pieces.owners, pieces.begins, *pieces[1:]]
            writer.write_table(pa.Table.from_arrays([pa.array(one) for one in columns], schema=schema), _ROWS)

        yield add


def _is_between(ascending: NDArray[np.int64], low: int, high: int) -> bool:
    return bool(np.searchsorted(ascending, low) < np.searchsorted(ascending, high, "right"))


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except (OSError, pa.ArrowException) as error:
        what, remedy = "the table of pieces cannot be read", f"delete {path.parent}, and run `nanoset build`"
        raise FormatError(what, where=path, found=str(error), expected="Parquet", remedy=remedy) from error


class PieceTable:
    """A table of pieces, of which only the row groups are read that may hold what is asked for."""

    def __init__(self, path: Path) -> None:
        """Open a table; FormatError where it cannot be read, here or later."""
        import pyarrow.parquet as pq

        self._path = path
        with _reading(path):
            self._file = pq.ParquetFile(path)

    def of_packs(self, packs: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pieces of some packs, in their order, int64, shape (pieces, 5), as COLUMNS names them."""
        return self._chosen("pack", packs)

    def of_documents(self, documents: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the pieces of some documents, in the order of packs, int64, shape (pieces, 5)."""
        return self._chosen("document", documents)

    def documents(self, begin: int, end: int) -> Iterator[NDArray[np.int64]]:
        """Yield the numbers of the documents in packs [begin, end), a document perhaps more than once; int64."""
        for rows in self.between(begin, end):
            yield rows[:, 2]

    def between(self, begin: int, end: int) -> Iterator[NDArray[np.int64]]:
        """Yield the pieces in packs [begin, end), int64, shape (pieces, 5), as COLUMNS names them, some at a time."""
        for rows in self._groups("pack", lambda low, high: low < end and begin <= high):
            yield rows[(rows[:, 0] >= begin) & (rows[:, 0] < end)]

    def _chosen(self, column: str, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        wanted, found = np.unique(numbers), [np.empty((0, len(COLUMNS)), np.int64)]
        if len(wanted):
            for rows in self._groups(column, lambda low, high: _is_between(wanted, low, high)):
                values = rows[:, COLUMNS.index(column)]
                at = np.minimum(np.searchsorted(wanted, values), len(wanted) - 1)
                found.append(rows[wanted[at] == values])
        return np.concatenate(found)

    def tokens_by_pack(self, packs: int) -> NDArray[np.int64]:
        """Return how many tokens of documents each pack holds, int64, shape (packs,); the rest of it is padding."""
        pack, tokens = COLUMNS.index("pack"), COLUMNS.index("tokens")
        counts = np.zeros(packs, np.int64)
        for rows in self._groups("pack", lambda low, high: True):
            np.add.at(counts, rows[:, pack], rows[:, tokens])
        return counts

    def sha256(self) -> str:
        """Return the sha256 of all rows, whichever version of the library wrote them."""
        found = hashlib.sha256()
        for rows in self._groups("pack", lambda low, high: True):
            found.update(np.ascontiguousarray(rows).data)
        return found.hexdigest()

    def _groups(self, column: str, is_wanted: Callable[[int, int], bool]) -> Iterator[NDArray[np.int64]]:
        """Yield the rows of each group whose least and largest value of a column are wanted, or not known."""
        metadata, number = self._file.metadata, COLUMNS.index(column)
        for group in range(metadata.num_row_groups):
            known = metadata.row_group(group).column(number).statistics
            if known is None or is_wanted(known.min, known.max):
                with _reading(self._path):
                    rows = self._file.read_row_group(group)
                yield np.stack([rows.column(name).to_numpy() for name in COLUMNS], axis=1)
