"""Read tables of attributes of documents, Parquet or Arrow files, into a lookup by document id."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.errors import FormatError, InputError
from nanoset_core.stages.attributes.lookup import Lookup, LookupWriter
from nanoset_core.stages.attributes.mapped_files import CHUNK_ROWS
from nanoset_core.stages.attributes.schema import AttributeSchema
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.columns import plain_array
from nanoset_core.text.json_values import NotJsonError
from nanoset_core.text.listing import FileStat
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.table_ids import count_not_utf8
from nanoset_core.text.tables import read_table
from nanoset_core.text.values import MOST_BYTES, narrowed

_CHUNK_BYTES = 32 << 20


class _Rows(NamedTuple):
    """Some rows of a table, as Arrow arrays of equal length."""

    ids: Any
    columns: list[Any]
    """One array for each of the schema's names."""

    @property
    def size_bytes(self) -> int:
        return int(self.ids.nbytes + sum(column.nbytes for column in self.columns))


@dataclass(slots=True)
class AttributeTables:
    """Files of the same columns, which are read in their order."""

    folder: RawFolder
    files: Sequence[FileStat]
    schema: AttributeSchema
    n_escaped: int = 0
    """Values read so far whose bytes are not UTF-8; such bytes are kept as \\xNN."""

    def read(self, folder: Path, on_read: Callable[[int], None]) -> Lookup:
        """Read the rows of all files into a lookup, in which they can be found by document id.

        Args:
            folder: Receives the files of the lookup.
            on_read: Called with the bytes of each file that was read.

        Raises:
            ConfigError: A file lacks a column; or a column has the name of a value that documents
                have already.
            FormatError: A file is not a table, is damaged, or has other columns than the first one.
            InputError: A column cannot be kept, or there are no files.
        """
        with LookupWriter(folder) as writer:
            for rows in self._chunks(on_read):
                # The first file decides the names, which are known from the first chunk on.
                array_by_name = dict(zip(self.schema.names, rows.columns, strict=True))
                writer.append(rows.ids, array_by_name)
            return writer.finish()

    def _chunks(self, on_read: Callable[[int], None]) -> Iterator[_Rows]:
        """Yield the rows of all files, some ten thousand at a time.

        Args:
            on_read: Called with the bytes of each file that was read.

        Raises:
            FormatError: A file is not a table, is damaged, or has other columns than the first one.
            InputError: A column cannot be kept, or there are no files.
        """
        pending: list[_Rows] = []  # read, but not yielded yet
        n_rows = 0
        n_bytes = 0
        for file in self.files:
            for rows in self._read_file(file):
                pending.append(rows)
                n_rows += len(rows.ids)
                n_bytes += rows.size_bytes
                if n_rows >= CHUNK_ROWS or n_bytes >= _CHUNK_BYTES:
                    yield _concatenate(pending)
                    pending = []
                    n_rows = 0
                    n_bytes = 0
            on_read(file.size)

        if pending:
            yield _concatenate(pending)
        elif not self.schema.is_known:
            raise InputError(
                "there is no table",
                where=self.schema.setting,
                remedy="name Parquet or Arrow files",
            )

    def _read_file(self, file: FileStat) -> Iterator[_Rows]:
        """Yield the rows of a file, about a MiB at a time.

        Raises:
            FormatError: The file is not a table, or is damaged.
            InputError: A column cannot be kept.
        """
        path = self.folder / file.path

        def choose(schema: Any) -> list[str]:
            """Check the columns of the file, and return those that are read."""
            self.schema.check(path, schema)
            return [self.schema.id, *self.schema.names]

        def convert(batch: Any, first_row: int) -> _Rows:
            """Convert some rows, an Arrow record batch, to the types that are kept."""
            ids = batch.column(self.schema.id)
            columns = [batch.column(name) for name in self.schema.names]
            self.n_escaped += sum(count_not_utf8(column) for column in [ids, *columns])
            return _Rows(_to_id_texts(ids), [_to_kept_type(column) for column in columns])

        try:
            yield from read_table(path, choose, convert, file.size)
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


def _to_kept_type(array: Any) -> Any:
    """Convert an Arrow array to one of the types that are kept, and shorten very long texts.

    Texts of more than MOST_BYTES are left out, and counted, when the rows are joined to documents.
    So a shortened text must still be too long.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    array = plain_array(array)
    if pa.types.is_uint64(array.type):
        return array  # such as hashes, which an int64 does not hold

    array = narrowed(array)
    if array.type == pa.string():
        longest_bytes = pc.max(pc.binary_length(array)).as_py() or 0  # None without texts
        if longest_bytes > MOST_BYTES:
            # A character has at least one byte, so MOST_BYTES + 1 characters are too many.
            return pc.utf8_slice_codeunits(array, 0, MOST_BYTES + 1)
    return array


def _to_id_texts(array: Any) -> Any:
    """Convert ids, texts or integers, to an Arrow array of strings."""
    import pyarrow as pa

    return narrowed(array).cast(pa.string())


def _concatenate(parts: Sequence[_Rows]) -> _Rows:
    """Concatenate consecutive rows."""
    ids = _concatenate_arrays([part.ids for part in parts])
    columns = []
    for arrays in zip(*[part.columns for part in parts], strict=True):
        columns.append(_concatenate_arrays(arrays))
    return _Rows(ids, columns)


def _concatenate_arrays(arrays: Sequence[Any]) -> Any:
    """Concatenate arrays of one type, some of which may have the null type instead."""
    import pyarrow as pa

    arrow_type = pa.null()
    for array in arrays:
        if not pa.types.is_null(array.type):
            arrow_type = array.type
            break
    return pa.concat_arrays([array.cast(arrow_type) for array in arrays])
