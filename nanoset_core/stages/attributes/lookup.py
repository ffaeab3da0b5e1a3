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

from nanoset_core.stages.attributes.column_files import ColumnWriter, StoredColumn
from nanoset_core.stages.attributes.id_index import CHUNK_ROWS, IdIndex, build_index
from nanoset_core.stages.scratch_arrays import map_array
from nanoset_core.statistics import hashing

_ID_COLUMN = "id"
_ROW_HASHES = "row_hashes"
"""File of the hash of each row's id, from which the index is built."""


class LookupWriter:
    """Writes the rows of tables into a folder; a context manager that closes its files."""

    def __init__(self, folder: Path) -> None:
        """Create the files.

        Args:
            folder: An empty folder.
        """
        self._folder = folder
        self._ids = ColumnWriter(folder / _ID_COLUMN)
        self._hashes_file = (folder / _ROW_HASHES).open("wb")
        self._columns: dict[str, ColumnWriter] = {}

    def append(self, ids: Any, columns: Mapping[str, Any]) -> None:
        """Append rows of a table, in which rows can later be looked up by their ids.

        The table may be larger than the memory, so each column is written to files of its own, and
        the hashes of the ids to another one:

            id        score    language
            doc-17    0.7      en
            doc-18    0.2      null

        Args:
            ids: The ids, an Arrow array of strings, shape (n_rows,).
            columns: Name of each column → its values, an Arrow array of shape (n_rows,). Its type
                is one of those of `column_files`.
        """
        for name, values in columns.items():
            if name not in self._columns:
                # Files are numbered, since a column may have any name.
                self._columns[name] = ColumnWriter(self._folder / str(len(self._columns)))
            self._columns[name].append(values)
        self._ids.append(ids)
        self._hashes_file.write(hashing.hash_texts(ids).tobytes())

    def finish(self) -> Lookup:
        """Close the files, and build an index by which the row with an id is found.

        Returns:
            The rows and the index, in the folder of this writer. The result only names the files,
            so it can be sent to other processes.
        """
        self.close()

        # The index is sorted by hashes of the ids, which were written to a file with the rows.
        n_rows = self._ids.n_rows
        hashes_path = self._folder / _ROW_HASHES
        hashes = map_array(hashes_path, np.uint64)
        ids = _open_ids(self._folder, self._ids.kind, n_rows)
        n_ids = build_index(self._folder, ids.values, ids.is_valid, hashes)
        hashes_path.unlink()  # the index has the hashes in its own order

        return Lookup(
            folder=self._folder,
            n_rows=n_rows,
            n_ids=n_ids,  # fewer than rows if an id is in several of them
            id_kind=self._ids.kind,
            kinds={name: column.kind for name, column in self._columns.items()},  # such as "double"
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
    """Folder of the files."""
    n_rows: int
    """Number of rows."""
    n_ids: int
    """Number of distinct ids."""
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
        """Map the index into memory; columns are mapped when they are needed.

        Args:
            lookup: The lookup, in a folder of this machine.
        """
        self._lookup = lookup
        self._index = IdIndex.open(lookup.folder, lookup.n_ids)

    @cached_property
    def _ids(self) -> Any:
        """Id of each row, an Arrow array of strings; empty for rows without an id."""
        return _open_ids(self._lookup.folder, self._lookup.id_kind, self._lookup.n_rows).values

    @cached_property
    def _columns(self) -> list[StoredColumn]:
        """All columns, whose files are named by their numbers."""
        lookup = self._lookup
        return [
            StoredColumn.open(lookup.folder / str(number), kind, lookup.n_rows)
            for number, kind in enumerate(lookup.kinds.values())
        ]

    def find(self, ids: Any) -> MatchingRows:
        """Return the row of each id, and note in a file that these ids were looked up.

            id             doc-17    doc-18    doc-19
            its row            -1         5         7      (-1: there is none)
            is repeated        no        no       yes      other rows have this id, too

        Args:
            ids: An Arrow array of strings, shape (n_ids,); a null matches no row.

        Returns:
            The first row with each id, and whether other rows have the id, too.
        """
        import pyarrow as pa

        entries = self._find_entries(ids.cast(pa.large_string()))  # (n_ids,) -1 for doc-17
        exists = entries >= 0
        existing_entries = entries[exists]

        rows = np.full(len(ids), -1, np.int64)
        rows[exists] = self._index.rows[existing_entries]
        is_repeated = np.zeros(len(ids), np.bool_)
        is_repeated[exists] = self._index.is_repeated[existing_entries] == 1
        self._index.is_matched[existing_entries] = 1  # this array is a file of all processes
        return MatchingRows(rows, is_repeated)

    def _find_entries(self, ids: Any) -> NDArray[np.int64]:
        """Return the entry of each id in an index that is sorted by the hashes of ids.

        Different ids can have the same hash. Here, a and c do:

            entry of the index     0    1    2
            id                     a    c    b
            hash                   3    3    9

        All ids are looked up together: each round compares an entry with every id that is still
        pending. For the ids c, b and x, where x has the hash 5:

            round    id    entry    result
            1        c     0        the same hash, but another id: pending
                     b     2        found
                     x     2        another hash: x is not in the index
            2        c     1        found

        Args:
            ids: An Arrow array of strings, shape (n_ids,); may contain nulls.

        Returns:
            Number of the entry, or -1 if the index does not have the id; int64, shape (n_ids,). In
            the example: [1, 2, -1].
        """
        hashes = hashing.hash_texts(ids)  # (n_ids,)
        candidates = self._first_candidates(hashes)  # (n_ids,) the entry to compare next
        entries = np.full(len(ids), -1, np.int64)
        pending = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
        while len(pending):
            has_hash = self._have_hashes(candidates[pending], hashes[pending])
            pending = pending[has_hash]
            has_id = self._have_ids(candidates[pending], ids.take(pending))
            found = pending[has_id]
            entries[found] = candidates[found]
            pending = pending[~has_id]
            candidates[pending] += 1
        return entries

    def _first_candidates(self, hashes: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return where to look for each hash in an index whose entries are sorted by their hashes.

            entry      0    1    2
            hash       3    3    9

            hash 3     from entry 0 on
            hash 9     from entry 2 on
            hash 5     no entry has it: 2, the first with a greater hash
            hash 12    3, which is the end

        Args:
            hashes: Shape (n,), in any order.

        Returns:
            Numbers of entries; int64, shape (n,).
        """
        # Searching in the order of the hashes reads the files of the index from start to end.
        by_hash = np.argsort(hashes)
        candidates = np.empty(len(hashes), np.int64)
        candidates[by_hash] = np.searchsorted(self._index.hashes, hashes[by_hash])
        return candidates

    def _have_hashes(
        self, entries: NDArray[np.int64], hashes: NDArray[np.uint64]
    ) -> NDArray[np.bool_]:
        """Return whether each of some entries of the index exists, and has a certain hash.

        For an index with the hashes 3, 3 and 9:

            entry       0     2     3
            hash        3     5     12
            result      yes   no    no      there is no entry 3

        Args:
            entries: Numbers of entries, shape (n,); perhaps the number after the last one.
            hashes: The hash for each entry, shape (n,).
        """
        exists = entries < len(self._index.hashes)
        hashes_of_entries = self._index.hashes[entries[exists]]
        have_hashes = np.zeros(len(entries), np.bool_)
        have_hashes[exists] = hashes_of_entries == hashes[exists]
        return have_hashes

    def _have_ids(self, entries: NDArray[np.int64], ids: Any) -> NDArray[np.bool_]:
        """Return whether each of some entries of the index is that of a certain id.

        Args:
            entries: Numbers of entries, shape (n,).
            ids: The id for each entry, an Arrow array without nulls, shape (n,).
        """
        import pyarrow.compute as pc

        ids_of_entries = self._ids.take(self._index.rows[entries])
        have_ids: NDArray[np.bool_] = pc.equal(ids, ids_of_entries).to_numpy(zero_copy_only=False)
        return have_ids

    def take(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return the values of all columns in some rows.

        Args:
            rows: Numbers of rows, shape (n,); -1 gives null in each column.

        Returns:
            An Arrow array of shape (n,) for each column, in the order of `Lookup.kinds`.
        """
        return [column.take(rows) for column in self._columns]


def _open_ids(folder: Path, kind: str, n_rows: int) -> StoredColumn:
    """Return the ids of all rows; they are texts even if no row has one.

    Args:
        folder: Folder of the lookup.
        kind: Kind of the ids: `string`, or empty if no row has one.
        n_rows: Number of rows.
    """
    return StoredColumn.open(folder / _ID_COLUMN, kind or "string", n_rows)
