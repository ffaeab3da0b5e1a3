"""Read tables of attributes of documents, Parquet or Arrow files, into a lookup by document id.

The rows of all files are read once, in order, and written to files in which the row with a certain
id can be found quickly (see `lookup`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import FormatError, InputError
from nanoset_core.stages.attributes.id_index import CHUNK_ROWS
from nanoset_core.stages.attributes.lookup import Lookup, LookupWriter
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.columns import plain_array
from nanoset_core.text.tables.ids import count_not_utf8
from nanoset_core.text.tables.json_values import NotJsonError
from nanoset_core.text.tables.rows import read_table
from nanoset_core.text.tables.values import MOST_BYTES, narrowed

_CHUNK_BYTES = 32 << 20


class _Rows(NamedTuple):
    """Some rows of a table, as Arrow arrays of equal length."""

    ids: Any
    """Ids as strings."""
    columns: list[Any]
    """One array for each of the schema's names."""

    @property
    def size_bytes(self) -> int:
        """Bytes of the arrays in memory."""
        return int(self.ids.nbytes + sum(column.nbytes for column in self.columns))


@dataclass(slots=True)
class _RowBuffer:
    """Collects rows until they are enough to be written together."""

    parts: list[_Rows] = field(default_factory=list)
    """The rows, in order."""
    n_rows: int = 0
    """How many they are."""
    n_bytes: int = 0
    """How large they are in memory."""

    @property
    def is_full(self) -> bool:
        """Whether the rows are so many, or so large, that they should be written."""
        return self.n_rows >= CHUNK_ROWS or self.n_bytes >= _CHUNK_BYTES

    def append(self, rows: _Rows) -> None:
        """Add some rows.

        Args:
            rows: The rows, at least one.
        """
        self.parts.append(rows)
        self.n_rows += len(rows.ids)
        self.n_bytes += rows.size_bytes

    def take_all(self) -> _Rows:
        """Remove all rows, and return them together; there must be some."""
        rows = _concatenate(self.parts)
        self.parts = []
        self.n_rows = 0
        self.n_bytes = 0
        return rows


class ReadAttributes(NamedTuple):
    """The rows of attribute tables, and what was read."""

    lookup: Lookup
    """The rows, which can be looked up by id."""
    names: list[str]
    """Names of the columns."""
    n_escaped: int
    """Values whose bytes are not UTF-8."""


@dataclass(slots=True)
class AttributeTables:
    """Files of the same columns, which are read in their order."""

    folder: Location
    """The folder that all files are in."""
    files: Sequence[FileStat]
    """The files, with paths below the folder."""
    schema: AttributeSchema
    """Checks the columns of each file, and says which ones are read."""
    n_escaped: int = 0
    """Values read so far whose bytes are not UTF-8; such bytes are kept as \\xNN."""

    def read(self, folder: Path, on_read: Callable[[int], None]) -> ReadAttributes:
        """Copy the rows of all files to other files, in which a row can be found by its id.

            a.parquet    doc-17, 0.91
            b.parquet    doc-18, 0.12      →    "doc-18" leads to 0.12

        Args:
            folder: Receives these files.
            on_read: Called with the bytes of each file that was read.

        Returns:
            The rows in these files, the names of the columns, and how many values are not UTF-8.

        Raises:
            ConfigError: A file lacks a column; or a column has the name of a value that documents
                have already.
            FormatError: A file is not a table, is damaged, or has other columns than the first one.
            InputError: A column cannot be kept, or there are no files.
        """
        with LookupWriter(folder) as writer:
            for rows in self._chunks(on_read):
                names = self.schema.names  # known from the first file on, so not before the loop
                values_by_name = dict(zip(names, rows.columns, strict=True))  # {"score": [0.91, …]}
                writer.append(rows.ids, values_by_name)
            return ReadAttributes(writer.finish(), self.schema.names, self.n_escaped)

    def _chunks(self, on_read: Callable[[int], None]) -> Iterator[_Rows]:
        """Yield the rows of all files in chunks that are large enough to be written together.

        A row has a document's id and values for it, such as ("doc-17", 0.91). Files may be small,
        so a chunk may have the rows of several files.

        Args:
            on_read: Called with the bytes of each file that was read.

        Raises:
            FormatError: A file is not a table, is damaged, or has other columns than the first one.
            InputError: A column cannot be kept, or there are no files.
        """
        buffer = _RowBuffer()
        for file in self.files:
            for rows in self._read_file(file):
                buffer.append(rows)
                if buffer.is_full:
                    yield buffer.take_all()
            on_read(file.size)
        if buffer.parts:
            yield buffer.take_all()

        # Reading a file makes its columns known, even if it has no rows.
        if not self.schema.is_known:
            raise InputError(
                "there is no table",
                where=self.schema.setting,
                remedy="name Parquet or Arrow files",
            )

    def _read_file(self, file: FileStat) -> Iterator[_Rows]:
        """Yield the rows of a file, about a MiB at a time.

        Args:
            file: The file, below the folder.

        Raises:
            ConfigError: A column is missing, or has a name that documents have already.
            FormatError: The file is not a table, is damaged, or has other columns than the first.
            InputError: A column cannot be kept.
        """
        path = self.folder / file.path

        def check_columns(schema: Any) -> list[str]:
            """Check the columns of the file, and return those that are read.

            Args:
                schema: The columns, as a pyarrow.Schema.

            Raises:
                ConfigError: A column is missing, or has a name that documents have already.
            """
            self.schema.check(path, schema)
            return [self.schema.id, *self.schema.names]

        # Read the columns that `check_columns` returns, and convert some rows at a time.
        try:
            yield from read_table(path, check_columns, self._convert, file.size)
        except FaultError as error:
            raise FormatError(
                "a table of attributes cannot be read",
                where=path,
                found=error.detail,
                expected="a Parquet file, or an Arrow file that ends in .arrow",
                remedy="repair the file, or name others",
            ) from error
        except NotJsonError as error:
            raise InputError(
                "a column of attributes cannot be kept",
                where=path,
                found=str(error),
                remedy=f"leave it out by {self.schema.setting}.columns",
            ) from error

    def _convert(self, batch: Any, first_row: int) -> _Rows:
        """Convert some rows of a file to the types that are kept.

        Args:
            batch: The rows, an Arrow record batch.
            first_row: Number of the first row in the file; not used.
        """
        ids = batch.column(self.schema.id)
        columns = [batch.column(name) for name in self.schema.names]
        self.n_escaped += sum(count_not_utf8(column) for column in [ids, *columns])
        return _Rows(_to_id_texts(ids), [_to_kept_type(column) for column in columns])


def _to_kept_type(array: Any) -> Any:
    """Convert the values of a column to one of the few types that are stored.

        integers of 16 bits       integers of 64 bits
        a list such as [1, 2]     the text "[1,2]", as JSON
        a very long text          its start

    Args:
        array: Values of the column, an Arrow array.

    Returns:
        An Arrow array of integers, floating-point numbers, booleans or texts.
    """
    import pyarrow as pa

    array = plain_array(array)
    if pa.types.is_uint64(array.type):
        return array  # such as hashes, which an int64 does not hold

    array = narrowed(array)  # to integers of 64 bits, floats, booleans or texts
    if array.type == pa.string():
        return _shorten_very_long(array)
    return array


def _shorten_very_long(texts: Any) -> Any:
    """Cut texts that are longer than MOST_BYTES (4,096 bytes), which saves memory.

    Such texts are left out later, because they are too long. So they must not become shorter than
    that here: 4,097 characters remain, and each of them takes a byte or more.

    Args:
        texts: An Arrow array of strings.
    """
    import pyarrow.compute as pc

    longest_bytes = pc.max(pc.binary_length(texts)).as_py() or 0  # None without texts
    if longest_bytes <= MOST_BYTES:
        return texts
    return pc.utf8_slice_codeunits(texts, 0, MOST_BYTES + 1)


def _to_id_texts(array: Any) -> Any:
    """Convert ids, texts or integers, to an Arrow array of strings."""
    import pyarrow as pa

    return narrowed(array).cast(pa.string())


def _concatenate(parts: Sequence[_Rows]) -> _Rows:
    """Put some rows that were read from files together, in their order.

    Args:
        parts: The rows; at least one part. Each has the same columns.
    """
    ids = _concatenate_arrays([part.ids for part in parts])
    columns = []
    for arrays in zip(*[part.columns for part in parts], strict=True):
        columns.append(_concatenate_arrays(arrays))
    return _Rows(ids, columns)


def _concatenate_arrays(arrays: Sequence[Any]) -> Any:
    """Concatenate Arrow arrays of one type, some of which may have the null type instead.

    An array has the null type if the file that it was read from has no value in the column. [null,
    null] of this type and the texts ["a"] become the texts [null, null, "a"].

    Args:
        arrays: The arrays, at least one.
    """
    import pyarrow as pa

    arrow_type = pa.null()  # if no array has a value
    for array in arrays:
        if not pa.types.is_null(array.type):
            arrow_type = array.type
            break
    return pa.concat_arrays([array.cast(arrow_type) for array in arrays])
