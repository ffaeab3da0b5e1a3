"""Rows of tables by an id, in memory that does not grow with them: columns and a sorted index in
files that are mapped.

Each column is one file, or two for texts, in the order of the rows, so that any rows can be taken.
The index has the hash of each id, ascending, and the first row that has the id: hashes are divided
by their first bits, and each part is sorted alone. Ids of one hash are told apart by their texts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling import hashing
from nanoset_core.sampling.hashing import U64
from nanoset_core.text.values import narrowed

CHUNK = 1 << 16
"""Rows that are handled together."""
_PART_BITS = 20
"""About so many rows, as a power of two, are sorted at once."""
_TYPES = {"int64": np.int64, "uint64": np.uint64, "double": np.float64, "bool": np.uint8}
"""Arrow type → of its values in a file; all others are texts."""


class _Writer:
    """Writes a column; its type is that of its first array that is not null throughout."""

    def __init__(self, path: Path) -> None:
        self.rows, self.kind = 0, ""
        self._path, self._valid = path, path.with_suffix(".valid").open("wb")
        self._values, self._end = path.with_suffix(".values").open("wb"), 0
        self._ends: BinaryIO | None = None

    def add(self, array: Any) -> None:
        """Add the values of some more rows."""
        if not self.kind and array.null_count < len(array):
            self._begin(str(array.type))
        self._valid.write(array.is_valid().to_numpy(zero_copy_only=False).astype(np.uint8))
        if self.kind:
            self._write(array)
        self.rows += len(array)

    def _begin(self, kind: str) -> None:
        """Give all rows so far, which are null, their places."""
        self.kind = kind if kind in _TYPES else "string"
        if self.kind == "string":
            self._ends = self._path.with_suffix(".ends").open("wb")
            self._ends.truncate(8 * (self.rows + 1))
            self._ends.seek(0, 2)
        else:
            self._values.truncate(self.rows * np.dtype(_TYPES[self.kind]).itemsize)
            self._values.seek(0, 2)

    def _write(self, array: Any) -> None:
        import pyarrow as pa
        import pyarrow.compute as pc

        if self._ends is None:
            values = array.cast(self.kind) if pa.types.is_null(array.type) else array
            zero: Any = False if self.kind == "bool" else 0
            self._values.write(
                pc.fill_null(values, zero).to_numpy(zero_copy_only=False).astype(_TYPES[self.kind])
            )
            return
        texts = array.cast(pa.large_string())
        _, offsets, data = texts.buffers()
        ends = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1]
        self._ends.write(ends[1:] - ends[0] + self._end)
        if data is not None:
            self._values.write(memoryview(data)[ends[0] : ends[-1]])
        self._end += int(ends[-1] - ends[0])

    def close(self) -> None:
        """Finish the files."""
        files: list[BinaryIO | None] = [self._valid, self._values, self._ends]
        for file in files:
            if file is not None:
                file.close()


class LookupWriter:
    """Writes the rows of tables into a folder; a context that closes its files."""

    def __init__(self, folder: Path) -> None:
        """Begin in an empty folder."""
        self._folder = folder
        self._ids, self._hashes = _Writer(folder / "id"), (folder / "all.hashes").open("wb")
        self._columns: dict[str, _Writer] = {}

    def add(self, ids: Any, columns: Mapping[str, Any]) -> None:
        """Add rows: an Arrow array of their ids as strings, and one of each column, of the types
        that are kept.
        """
        for name, column in columns.items():
            if name not in self._columns:
                self._columns[name] = _Writer(self._folder / str(len(self._columns)))
            self._columns[name].add(column)
        self._ids.add(ids)
        self._hashes.write(hashing.hash_texts(ids).tobytes())

    def finish(self) -> Lookup:
        """Sort the ids, and return what looks them up."""
        self.__exit__()
        kinds = {name: one.kind for name, one in self._columns.items()}
        unsorted = Lookup(self._folder, self._ids.rows, 0, self._ids.kind, kinds)
        found = Lookup(
            self._folder, self._ids.rows, _sort(self._folder, unsorted), self._ids.kind, kinds
        )
        with (self._folder / "found").open("wb") as file:
            file.truncate(found.ids)
        return found

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._hashes.close()
        for one in (self._ids, *self._columns.values()):
            one.close()


def _sort(folder: Path, lookup: Lookup) -> int:
    """Write the index of all rows with an id; return how many ids there are."""
    valid, hashes = (
        _mapped(folder / "id.valid", np.uint8),
        _mapped(folder / "all.hashes", np.uint64),
    )
    bits = U64(max(1, len(hashes).bit_length() - _PART_BITS))
    counts = np.zeros(1 << int(bits), np.int64)
    for begin in range(0, len(hashes), CHUNK):
        some = slice(begin, begin + CHUNK)
        counts += np.bincount(_part(hashes[some][valid[some] > 0], bits), minlength=len(counts))
    ends = np.cumsum(counts)
    by_hash, rows = (
        _new(folder / "hashes", np.uint64, int(ends[-1])),
        _new(folder / "rows", np.int64, int(ends[-1])),
    )
    following = ends - counts
    for begin in range(0, len(hashes), CHUNK):
        own = begin + np.flatnonzero(valid[begin : begin + CHUNK])
        parts = _part(hashes[own], bits)
        order, sizes = np.argsort(parts, kind="stable"), np.bincount(parts, minlength=len(counts))
        firsts = following - (np.cumsum(sizes) - sizes)
        places = firsts[parts[order]] + np.arange(len(own))
        by_hash[places], rows[places] = hashes[own[order]], own[order]
        following += sizes
    several, ids, kept = _new(folder / "several", np.uint8, int(ends[-1])), lookup.opened().ids, 0
    for begin, end in zip((ends - counts).tolist(), ends.tolist(), strict=True):
        own = np.argsort(by_hash[begin:end], kind="stable")
        part, part_rows = by_hash[begin:end][own], rows[begin:end][own]
        first, repeated = _first_rows(part, part_rows, ids)
        upto = kept + len(first)
        by_hash[kept:upto], rows[kept:upto], several[kept:upto] = (
            part[first],
            part_rows[first],
            repeated,
        )
        kept = upto
    (folder / "all.hashes").unlink()
    return kept


def _part(hashes: NDArray[np.uint64], bits: np.uint64) -> NDArray[np.int64]:
    return (hashes >> (U64(64) - bits)).astype(np.int64)


def _first_rows(
    hashes: NDArray[np.uint64], rows: NDArray[np.int64], ids: Any
) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return which of some rows, by hash and number, are the first with their id, and whether
    others have it, too.
    """
    import pyarrow as pa

    same = np.zeros(len(hashes) + 1, np.bool_)
    same[1:-1] = hashes[1:] == hashes[:-1]
    alike = same[1:] | same[:-1]
    is_first, several = ~alike, np.zeros(len(hashes), np.bool_)
    places = np.flatnonzero(alike)
    if len(places):
        codes = ids.take(pa.array(rows[places])).dictionary_encode().indices.to_numpy()
        _, first, counts = np.unique(codes, return_index=True, return_counts=True)
        is_first[places[first]], several[places[first]] = True, counts > 1
    return np.flatnonzero(is_first), several[is_first]


@dataclass(frozen=True, slots=True)
class Lookup:
    """Rows of tables, and an index of their ids, in a folder of this machine."""

    folder: Path
    rows: int
    ids: int
    """Distinct ones."""
    id_kind: str
    kinds: Mapping[str, str]
    """Name of each column → its Arrow type; empty where it has but nulls."""

    def opened(self) -> Opened:
        """Map the files."""
        return Opened(self)

    @property
    def unfound(self) -> int:
        """How many ids were asked for by nobody so far, in whatever process."""
        found = _mapped(self.folder / "found", np.uint8)
        return self.ids - sum(int(found[k : k + CHUNK].sum()) for k in range(0, len(found), CHUNK))


class Opened:
    """A lookup whose files are mapped."""

    def __init__(self, lookup: Lookup) -> None:
        folder, self._lookup = lookup.folder, lookup
        self._hashes, self._rows = (
            _mapped(folder / n, t)[: lookup.ids] for n, t in (("hashes", U64), ("rows", "i8"))
        )
        self._several, self._found = (
            _mapped(folder / name, np.uint8) for name in ("several", "found")
        )

    @cached_property
    def ids(self) -> Any:
        """Of all rows, as an Arrow array of strings; of rows without one it is empty."""
        return self._column("id", self._lookup.id_kind or "string")[0]

    @cached_property
    def _columns(self) -> list[tuple[Any, NDArray[np.uint8]]]:
        return [
            self._column(str(number), kind)
            for number, kind in enumerate(self._lookup.kinds.values())
        ]

    def _column(self, name: str, kind: str) -> tuple[Any, NDArray[np.uint8]]:
        import pyarrow as pa

        path, rows = self._lookup.folder / name, self._lookup.rows
        valid, values = _mapped(path.with_suffix(".valid"), np.uint8), path.with_suffix(".values")
        if not kind:
            return None, valid
        if kind in _TYPES:
            numbers = _mapped(values, _TYPES[kind])
            return pa.Array.from_buffers(
                pa.from_numpy_dtype(numbers.dtype), rows, [None, pa.py_buffer(numbers)]
            ), valid
        ends = _mapped(path.with_suffix(".ends"), np.int64)
        ends = ends if len(ends) else np.zeros(rows + 1, np.int64)
        buffers = pa.py_buffer(ends), pa.py_buffer(_mapped(values, np.uint8))
        return pa.LargeStringArray.from_buffers(rows, *buffers), valid

    def find(self, ids: Any) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
        """Return the first row of each id, -1 where there is none, int64; and whether others have
        it, too, bool.

        ids: an Arrow array of strings; a null is in no row.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        ids = ids.cast(pa.large_string())
        hashes = hashing.hash_texts(ids)
        order = np.argsort(hashes)  # so that the index is read from begin to end
        places, found = np.full(len(ids), -1, np.int64), np.full(len(ids), -1, np.int64)
        places[order] = np.searchsorted(self._hashes, hashes[order])
        left = np.flatnonzero(ids.is_valid().to_numpy(zero_copy_only=False))
        while len(left):  # once more for each other id of the same hash
            left = left[places[left] < len(self._hashes)]
            left = left[self._hashes[places[left]] == hashes[left]]
            theirs = self.ids.take(pa.array(self._rows[places[left]]))
            same = pc.equal(ids.take(pa.array(left)), theirs).to_numpy(zero_copy_only=False)
            found[left[same]] = places[left[same]]
            left = left[~same]
            places[left] += 1
        there = found >= 0
        self._found[found[there]] = 1
        rows, several = np.where(there, 0, -1), np.zeros(len(ids), np.bool_)
        rows[there], several[there] = self._rows[found[there]], self._several[found[there]] > 0
        return rows, several

    def take(self, rows: NDArray[np.int64]) -> list[Any]:
        """Return an Arrow array of each column: its values in some rows, null for -1."""
        import pyarrow as pa
        import pyarrow.compute as pc

        found, there = list[Any](), rows >= 0
        for (column, valid), kind in zip(self._columns, self._lookup.kinds.values(), strict=True):
            if column is None:
                found.append(pa.nulls(len(rows)))
                continue
            mask = there.copy()
            mask[there] = valid[rows[there]] > 0
            values = column.take(pa.array(rows, mask=~mask))
            plain = (
                pa.bool_() if kind == "bool" else pa.string() if kind == "string" else values.type
            )
            found.append(narrowed(values) if kind == "uint64" else pc.cast(values, plain))
        return found


def _mapped(path: Path, dtype: Any) -> NDArray[Any]:
    """Return a file's values; they can be changed, for whoever maps it. One that is empty, or not
    there, has none.
    """
    if not path.exists() or not path.stat().st_size:
        return np.empty(0, dtype)
    return np.asarray(np.memmap(path, dtype, "r+"))


def _new(path: Path, dtype: Any, length: int) -> NDArray[Any]:
    return (
        np.asarray(np.memmap(path, dtype, "w+", shape=(length,))) if length else np.empty(0, dtype)
    )
