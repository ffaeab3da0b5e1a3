"""Tables of what others know of documents, in Parquet or Arrow files: read into a lookup by the
documents' ids.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nanoset_core.errors import ConfigError, FormatError, InputError
from nanoset_core.stages.attributes.lookup import CHUNK, Lookup, LookupWriter
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.columns import plain_array
from nanoset_core.text.contents import FileStat
from nanoset_core.text.importing import NotJsonError
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.table_ids import escaped_count
from nanoset_core.text.tables import read_table
from nanoset_core.text.values import MOST_BYTES, narrowed

_CHUNK_BYTES = 32 << 20


@dataclass(slots=True)
class AttributeTables:
    """Files of one schema, in their order."""

    folder: RawFolder
    files: Sequence[FileStat]
    id: str
    """Column of the documents' ids."""
    columns: Sequence[str] | None
    """Those that are taken; None = all others."""
    taken: Collection[str]
    """Names that no column may have."""
    where: str
    """The key of nanoset.yaml that names the files."""
    escaped: int = 0
    """Values that were read which are bytes that are not UTF-8, and are kept with such bytes as
    \\xNN.
    """
    _types: dict[str, tuple[str, Any]] = field(default_factory=dict)
    """Column → the first file that has a type for it, and this type."""

    def read(self, folder: Path, progress: Callable[[int], None]) -> Lookup:
        """Read all files into an empty folder.

        progress: called with the bytes of each file.

        Raises:
            ConfigError: a column is not there, or has a name that documents have already.
            FormatError, InputError: a file is no table, damaged, or has other columns than the
                first one.
        """
        with LookupWriter(folder) as writer:
            for ids, *columns in self._chunks(progress):
                writer.add(ids, dict(zip(self.names, columns, strict=True)))
            return writer.finish()

    @property
    def names(self) -> list[str]:
        """Of the columns that were read, without the id."""
        return [name for name in self._types if name != self.id]

    def _chunks(self, progress: Callable[[int], None]) -> Iterator[list[Any]]:
        """Yield the ids and columns of some rows after the other, each as one array."""

        waiting, rows, size = list[list[Any]](), 0, 0
        for file in self.files:
            for arrays in self._parts(file):
                waiting.append(arrays)
                rows, size = rows + len(arrays[0]), size + sum(one.nbytes for one in arrays)
                if rows >= CHUNK or size >= _CHUNK_BYTES:
                    yield [_joined(parts) for parts in zip(*waiting, strict=True)]
                    waiting, rows, size = [], 0, 0
            progress(file.size)
        if waiting:
            yield [_joined(parts) for parts in zip(*waiting, strict=True)]
        elif not self._types:
            raise InputError(
                "there is no table", where=self.where, remedy="name files of Parquet or Arrow"
            )

    def _parts(self, file: FileStat) -> Iterator[list[Any]]:
        path = self.folder / file.path

        def choose(schema: Any) -> list[str]:
            self._check(path, schema)
            return [self.id, *self.names]

        def convert(rows: Any, first: int) -> list[Any]:
            columns = [rows.column(name) for name in (self.id, *self.names)]
            self.escaped += sum(escaped_count(column) for column in columns)
            ids, *values = columns
            return [_id_texts(ids), *(_values(column) for column in values)]

        try:
            yield from read_table(path, choose, convert, file.size)
        except FaultError as error:
            what, remedy = "a table of attributes cannot be read", "mend the file, or name others"
            expected = "a Parquet file, or an Arrow file that ends in .arrow"
            raise FormatError(
                what, where=path, found=error.detail, expected=expected, remedy=remedy
            ) from error
        except NotJsonError as error:
            what, remedy = (
                "a column of attributes cannot be kept",
                f"leave it out by {self.where}.columns",
            )
            raise InputError(what, where=path, found=str(error), remedy=remedy) from error

    def _check(self, path: RawFolder, schema: Any) -> None:
        """Compare the columns of a file with those of the first one."""
        found = {one.name: _kind(one.type) for one in schema}
        known = dict(self._types)
        names = [
            self.id,
            *(self.columns if self.columns is not None else (n for n in found if n != self.id)),
        ]
        for name in dict.fromkeys([*names, *known]):
            self._check_column(path, name, found, Counter(schema.names)[name])
            if known and name not in known:
                first = next(iter(known.values()))[0]
                raise self._other(
                    path, f"a column {name!r}", f"the columns of {first}: {', '.join(known)}"
                )
            if (kind := found[name]) is not None or name not in known:
                first, expected = known.get(name, (str(path), None))
                if kind != expected and expected is not None:
                    raise self._other(path, f"{name!r} of {kind}", f"{expected}, as in {first}")
                self._types[name] = (str(path), kind) if expected is None else (first, expected)

    def _check_column(
        self, path: RawFolder, name: str, found: Mapping[str, Any], count: int
    ) -> None:
        key = "id" if name == self.id else "columns"
        where = f"{self.where}.{key}"
        if not count:
            what, remedy = "a table of attributes lacks a column", f"correct {where}, or the file"
            columns = ", ".join(found) or "no columns"
            raise ConfigError(
                what, where=path, found=columns, expected=f"a column {name!r}", remedy=remedy
            )
        if count > 1:
            raise self._other(path, f"two columns {name!r}", "each once")
        if name == self.id and found[name] not in (None, "int64", "uint64", "string"):
            what, remedy = "ids are texts or whole numbers", f"correct {where}, or write them so"
            raise InputError(what, where=path, found=f"{name!r} of {found[name]}", remedy=remedy)
        if name != self.id and (not name or name in self.taken):
            what = "documents have a column of this name already"
            remedy = f"rename it in the files, or name in {self.where}.columns those to take"
            raise ConfigError(what, where=path, found=repr(name), remedy=remedy)

    def _other(self, path: RawFolder, found: str, expected: str) -> FormatError:
        remedy = f"write all files alike, or name in {self.where}.columns those to take"
        return FormatError(
            "tables of attributes differ", where=path, found=found, expected=expected, remedy=remedy
        )


def _kind(kind: Any) -> str | None:
    """Return as which type the values of a column are kept, None where it has but nulls; all but
    numbers as text.
    """
    import pyarrow as pa
    from pyarrow import types

    one = plain_array(pa.nulls(0, kind))
    if types.is_null(one.type):
        return None
    if types.is_integer(one.type) or types.is_duration(one.type):
        return "uint64" if types.is_uint64(one.type) else "int64"
    if types.is_floating(one.type):
        return "double"
    return "bool" if types.is_boolean(one.type) else "string"


def _values(array: Any) -> Any:
    """Return values as those that are kept; of texts that are too long so much that they are still
    so.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = plain_array(array)
    if pa.types.is_uint64(array.type):
        return array
    array = narrowed(array)
    if array.type == pa.string() and (pc.max(pc.binary_length(array)).as_py() or 0) > MOST_BYTES:
        return pc.utf8_slice_codeunits(array, 0, MOST_BYTES + 1)
    return array


def _id_texts(array: Any) -> Any:
    import pyarrow as pa

    return narrowed(array).cast(pa.string())


def _joined(arrays: Sequence[Any]) -> Any:
    """Return arrays as one, of which some may have but nulls."""
    import pyarrow as pa

    kind = next((one.type for one in arrays if not pa.types.is_null(one.type)), pa.null())
    return pa.concat_arrays([one.cast(kind) if one.type != kind else one for one in arrays])
