"""columns.parquet: values of the documents of a shard, row for row those of its documents.parquet."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.stages.shards.document_table import ROW_GROUP_ROWS, DocumentRows
from nanoset_core.text.documents import DocumentBatch
from nanoset_core.text.values import as_type, joined, kind_of, limited, type_of

TABLE = "columns.parquet"
_KEY_BITS = 43
_MOST_FILES = 1 << 20
"""In which the documents of a part can lie: a part is about a MiB."""


class ColumnTable:
    """Writes a table row group by row group; its types are those of the values so far, and are
    widened as these ask.
    """

    def __init__(self, path: Path, names: Sequence[str]) -> None:
        """Begin a table with columns of these names."""
        self.rows = 0
        self._path, self._kinds = path, dict.fromkeys(names, "null")
        self._nulls, self._left_out = dict.fromkeys(names, 0), dict.fromkeys(names, 0)
        self._writer = self._begun()

    @property
    def facts(self) -> list[dict[str, Any]]:
        """Name, kind, nulls, and texts left out for their length, of each column."""
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
        """Add a row group, part after part: an array of each column, as raw/values.py gives them."""
        import pyarrow as pa

        columns, kinds = [], dict[str, str]()
        for number, (name, kind) in enumerate(self._kinds.items()):
            arrays, left_out = zip(*(limited(part[number]) for part in parts), strict=True)
            kinds[name] = joined([kind, *map(kind_of, arrays)])
            columns.append(
                pa.chunked_array([as_type(array, type_of(kinds[name])) for array in arrays])
            )
            self._nulls[name] += columns[-1].null_count
            self._left_out[name] += sum(left_out)
        if [*map(type_of, kinds.values())] != self._writer.schema.types:
            self._widen(kinds)
        self._kinds = kinds
        table = pa.Table.from_arrays(columns, schema=self._writer.schema)
        self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        self.rows += table.num_rows

    def _begun(self) -> Any:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = pa.schema([(name, type_of(kind)) for name, kind in self._kinds.items()])
        return pq.ParquetWriter(self._path, schema, compression="zstd")

    def _widen(self, kinds: Mapping[str, str]) -> None:
        """Write the row groups so far again, as other types."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._writer.close()
        before = self._path.rename(self._path.with_suffix(".before"))
        self._kinds = dict(kinds)
        self._writer = self._begun()
        with pq.ParquetFile(before) as file:
            for group in range(file.num_row_groups):
                columns = zip(
                    file.read_row_group(group).columns, self._writer.schema.types, strict=True
                )
                table = pa.Table.from_arrays(
                    [as_type(*one) for one in columns], schema=self._writer.schema
                )
                self._writer.write_table(table, row_group_size=ROW_GROUP_ROWS)
        before.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._writer.close()


class _Places(NamedTuple):
    """Where documents came from."""

    files: NDArray[np.int64]
    """Number of the file in the range."""
    keys: NDArray[np.int64]
    """What is one document's in its file: the line's offset; of a table's row its number."""

    def slice(self, begin: int, end: int | None = None) -> _Places:
        return _Places(self.files[begin:end], self.keys[begin:end])

    def codes(self, first_file: int) -> NDArray[np.int64]:
        files = np.minimum(self.files - first_file, _MOST_FILES - 1)
        return (files << _KEY_BITS) + self.keys


def _places(files: Any, lines: Any, offsets: Any) -> _Places:
    lines, offsets = (np.asarray(values, np.int64) for values in (lines, offsets))
    return _Places(np.asarray(files, np.int64), np.where(offsets >= 0, offsets, lines))


def row_groups(
    batches: Iterable[DocumentBatch], rows: DocumentRows, files: Sequence[str]
) -> Iterator[list[Sequence[Any]]]:
    """Yield the columns of each row group of a table, part after part, out of the documents of its
    range.

    Documents that were left out have no row; the others come in the order of their rows.
    FormatError where rows have no document.
    """
    groups = _groups(rows, files)
    group, row, found = next(groups, None), 0, list[Sequence[Any]]()
    for places, part in (one for batch in batches for one in _parts(batch)):
        while len(places.files) and group is not None:
            first = int(places.files[0])
            wanted = group.slice(row, row + len(places.files))
            kept = np.flatnonzero(np.isin(places.codes(first), wanted.codes(first)))
            if len(kept):
                found.append(
                    part if len(kept) == len(places.files) else [array.take(kept) for array in part]
                )
                row += len(kept)
            if row < len(group.files):
                break
            yield found
            group, row, found = next(groups, None), 0, []
            places, part = places.slice(kept[-1] + 1), [array.slice(kept[-1] + 1) for array in part]
    if group is not None:
        what, remedy = (
            "the text does not give the documents of a shard again",
            "run `nanoset build --force`",
        )
        raise FormatError(
            what, where=rows.path, found=f"no document for row {row} of a row group", remedy=remedy
        )


def _parts(batch: DocumentBatch) -> Iterator[tuple[_Places, Sequence[Any]]]:
    places, begin = _places(batch.files, batch.lines, batch.offsets), 0
    for part in batch.columns:
        end = begin + len(part[0])
        yield places.slice(begin, end), part
        begin = end


def _groups(rows: DocumentRows, files: Sequence[str]) -> Iterator[_Places]:
    import pyarrow as pa
    import pyarrow.compute as pc

    names = pa.array(files, pa.string())
    for group in range(len(rows.groups)):
        table = rows.columns(group, ["file", "line", "byte_offset"])
        numbers = pc.index_in(table.column("file").cast(pa.string()), value_set=names)
        yield _places(numbers, table.column("line"), table.column("byte_offset"))
