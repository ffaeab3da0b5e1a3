"""Read the columns of a corpus's documents: one row for each document of its shards."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.document_tables.relation import value_type
from nanoset_core.errors import FormatError
from nanoset_core.outputs.root import OutputRoot
from nanoset_core.stages.columns.column_table import TABLE
from nanoset_core.text.values import as_type

_SMALL_DICTIONARY_BYTES = 1 << 14
_REMEDY = "run `nanoset build`"


class TablesOfOutput(NamedTuple):
    """The tables of one output, one for each shard of a corpus."""

    folder: str
    """Folder of the tables, below the root."""
    corpus: str
    digests: Sequence[str]
    """Digest of each table, in the order of the shards."""


class OpenTable(NamedTuple):
    """The table of one shard."""

    path: Path
    parquet: Any
    """The same file, a pyarrow.parquet.ParquetFile."""


@dataclass(frozen=True, slots=True)
class AlignedColumns:
    """Columns of the documents of a corpus, and the tables in which they are stored.

    The tables of a shard have the rows, and the row groups, of the table of its documents. A column
    can have a narrower type in one shard than in the whole corpus: it is converted when it is read.
    """

    schema: Any
    """pyarrow.Schema of all columns, with the types that they have in the whole corpus."""
    outputs: OutputRoot
    tables: tuple[TablesOfOutput, ...]

    def open_tables(self, shard: int) -> list[OpenTable]:
        """Open the tables of a shard, by its number.

        Raises:
            MissingError: A table was deleted.
            FormatError: A file is not a table.
        """
        import pyarrow as pa

        files = []
        for folder, corpus, digests in self.tables:
            manifest = self.outputs.version(
                folder, corpus, digests[shard], "a table of columns was deleted", _REMEDY
            )
            try:
                path = manifest.path(TABLE)
                files.append(OpenTable(path, _open_table(path)))
            except (pa.ArrowException, OSError) as error:
                raise FormatError(
                    "a table of columns cannot be read",
                    where=manifest.folder / TABLE,
                    found=str(error)[:500],
                    remedy=_REMEDY,
                ) from error
        return files

    def read(
        self, files: Sequence[OpenTable], group: int, columns: Collection[str]
    ) -> dict[str, Any]:
        """Read columns of one row group.

        Args:
            files: The open tables of a shard.
            group: Number of the row group.
            columns: Names of the columns; those that no table has are left out.

        Returns:
            Name of each column → its values, a chunked Arrow array of the type in `schema`. Texts
            with few different values are a dictionary array.
        """
        values_by_column: dict[str, Any] = {}
        for file in files:
            names = [
                name
                for name in file.parquet.schema_arrow.names
                if name in columns and name not in values_by_column
            ]
            if not names:
                continue
            table = file.parquet.read_row_group(group, columns=names)
            for name in names:
                values = table.column(name)
                target = self.schema.field(name).type
                if value_type(values.type) != target:
                    values = as_type(values, target)
                values_by_column[name] = values
        return values_by_column


def _open_table(path: Path) -> Any:
    """Open a table so that columns of texts with few different values are read as dictionaries.

    Reading and comparing a dictionary of some topics or languages is much faster than reading the
    texts. Parquet falls back to plain texts when a dictionary becomes large, so its size in the
    first row group tells whether it is worthwhile.
    """
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path)
    if file.num_row_groups == 0:
        return file

    names = []
    first_group = file.metadata.row_group(0)
    for number in range(first_group.num_columns):
        column = first_group.column(number)
        if column.physical_type != "BYTE_ARRAY" or not column.has_dictionary_page:
            continue
        dictionary_bytes = column.data_page_offset - column.dictionary_page_offset
        if dictionary_bytes < _SMALL_DICTIONARY_BYTES:
            names.append(column.path_in_schema)
    if not names:
        return file
    return pq.ParquetFile(path, metadata=file.metadata, read_dictionary=names)
