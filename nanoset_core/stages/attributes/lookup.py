"""Rows of tables that can be looked up by an id, in memory that does not grow with the tables.

The columns are stored in files (see `column_files`), and so is an index from the hashes of the ids
to rows (see `id_index`). All files are mapped into memory, and shared by the processes of a
machine.

DuckDB answers other questions about documents, but not this one. For 4 * 10^7 rows in any order it
needs 950 MB of memory, in a single process, and as much CPU time for the join alone as this does
for reading, joining and writing, with 200 MB of memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling import hashing
from nanoset_core.stages.attributes.column_files import ColumnWriter, StoredColumn
from nanoset_core.stages.attributes.id_index import IdIndex, build_index
from nanoset_core.stages.attributes.mapped_files import CHUNK_ROWS, map_array

_ID_COLUMN = "id"
_ROW_HASHES = "row_hashes"
"""File of the hash of each row's id, from which the index is built."""


class LookupWriter:
    """Writes the rows of tables into a folder; a context manager that closes its files."""

    def __init__(self, folder: Path) -> None:
        """Start in an empty folder."""
        self._folder = folder
        self._ids = ColumnWriter(folder / _ID_COLUMN)
        self._hashes_file = (folder / _ROW_HASHES).open("wb")
        self._columns: dict[str, ColumnWriter] = {}

    def append(self, ids: Any, columns: Mapping[str, Any]) -> None:
        """Append rows.

        Args:
            ids: Their ids, an Arrow array of strings.
            columns: Name of each column → its values, an Arrow array of a type that is kept.
        """
        for name, values in columns.items():
            if name not in self._columns:
                # Files are numbered, since a column may have any name.
                self._columns[name] = ColumnWriter(self._folder / str(len(self._columns)))
            self._columns[name].append(values)
        self._ids.append(ids)
        self._hashes_file.write(hashing.hash_texts(ids).tobytes())

    def finish(self) -> Lookup:
        """Close the files, and index the ids, so that rows can be looked up by them."""
        self.close()

        # Build the index from the hash of each row's id. Afterwards, these hashes are not needed.
        ids = _open_ids(self._folder, self._ids.kind, self._ids.n_rows)
        row_hashes = map_array(self._folder / _ROW_HASHES, np.uint64)
        n_ids = build_index(self._folder, ids.values, ids.is_valid, row_hashes)
        (self._folder / _ROW_HASHES).unlink()
        return Lookup(
            folder=self._folder,
            n_rows=self._ids.n_rows,
            n_ids=n_ids,
            id_kind=self._ids.kind,
            kinds={name: column.kind for name, column in self._columns.items()},
        )

    def close(self) -> None:
        """Close the files."""
        self._hashes_file.close()
        self._ids.close()
        for column in self._columns.values():
            column.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of tables and an index of their ids, in a folder of this machine.

    It can be sent to other processes, which `open` it.
    """

    folder: Path
    n_rows: int
    n_ids: int
    """Distinct ids."""
    id_kind: str
    """`string`, or empty if no row has an id."""
    kinds: Mapping[str, str]
    """Name of each column → its kind, see `column_files`."""

    def open_files(self) -> OpenLookup:
        """Map the files into memory."""
        return OpenLookup(self)

    def count_unmatched(self) -> int:
        """Return how many of the ids no process has looked up so far."""
        is_matched = IdIndex.open(self.folder, self.n_ids).is_matched
        n_matched = 0
        for start in range(0, len(is_matched), CHUNK_ROWS):
            n_matched += int(np.count_nonzero(is_matched[start : start + CHUNK_ROWS]))
        return self.n_ids - n_matched


class MatchingRows(NamedTuple):
    """The rows of some ids; each array has the shape (n_ids,)."""

    rows: NDArray[np.int64]
    """First row that has the id, or -1."""
    is_repeated: NDArray[np.bool_]
    """Whether other rows have the id, too."""


class OpenLookup:
    """A lookup whose files are mapped into memory."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        self._index = IdIndex.open(lookup.folder, lookup.n_ids)

    @cached_property
    def _ids(self) -> Any:
        """Id of each row, an Arrow array of strings; empty for rows without an id."""
        return _open_ids(self._lookup.folder, self._lookup.id_kind, self._lookup.n_rows).values

    @cached_property
    def _columns(self) -> list[StoredColumn]:
        lookup = self._lookup
        return [
            StoredColumn.open(lookup.folder / str(number), kind, lookup.n_rows)
            for number, kind in enumerate(lookup.kinds.values())
        ]

    def find(self, ids: Any) -> MatchingRows:
        """Return the row of each id, and mark these ids as matched in a file of the index.

        Args:
            ids: An Arrow array of strings, shape (n_ids,); a null matches no row.

        Returns:
            The first row of the tables with each id, and whether other rows have the id, too.
        """
        import pyarrow as pa

        # The index has an entry for each distinct id of the tables.
        ids = ids.cast(pa.large_string())
        entries = self._find_entries(ids)  # (n_ids,) the entry of each id, or -1
        is_found = entries >= 0
        found_entries = entries[is_found]

        # These arrays of the index are files of bytes, in which 1 stands for True.
        self._index.is_matched[found_entries] = 1
        is_repeated = np.zeros(len(ids), np.bool_)
        is_repeated[is_found] = self._index.is_repeated[found_entries] == 1

        rows = np.full(len(ids), -1, np.int64)
        rows[is_found] = self._index.rows[found_entries]
        return MatchingRows(rows, is_repeated)

    def _find_entries(self, ids: Any) -> NDArray[np.int64]:
        """Return the entry of each id in the index.

        The index has an entry for each distinct id of the tables, sorted by the hashes of the ids.
        Different ids can have the same hash: then their entries follow each other.

        Args:
            ids: An Arrow array of strings, shape (n_ids,); may contain nulls.

        Returns:
            Number of the entry, or -1 if the index does not have the id; int64, shape (n_ids,).
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        index = self._index
        hashes = hashing.hash_texts(ids)  # (n_ids,)

        # The first entry that may be that of an id: the first one with its hash. It is searched in
        # the order of the hashes, which reads the files of the index from start to end.
        by_hash = np.argsort(hashes)
        candidates = np.empty(len(ids), np.int64)
        candidates[by_hash] = np.searchsorted(index.hashes, hashes[by_hash])

        entries = np.full(len(ids), -1, np.int64)
        pending = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))  # indices of ids
        while len(pending):
            # Give up ids whose candidate is beyond the end of the index, or has another hash.
            pending = pending[candidates[pending] < len(index.hashes)]
            pending = pending[index.hashes[candidates[pending]] == hashes[pending]]

            # Compare the other ids with those of their candidates.
            candidate_rows = index.rows[candidates[pending]]
            candidate_ids = self._ids.take(pa.array(candidate_rows))
            equality = pc.equal(ids.take(pa.array(pending)), candidate_ids)
            is_equal = equality.to_numpy(zero_copy_only=False)
            matched = pending[is_equal]
            entries[matched] = candidates[matched]

            # If another id has the same hash, try the next entry.
            pending = pending[~is_equal]
            candidates[pending] += 1
        return entries

    def take(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return an Arrow array of each column: its values in some rows, and null for -1."""
        return [column.take(rows) for column in self._columns]


def _open_ids(folder: Path, kind: str, n_rows: int) -> StoredColumn:
    """Return the ids of all rows; they are texts even if no row has one."""
    return StoredColumn.open(folder / _ID_COLUMN, kind or "string", n_rows)
