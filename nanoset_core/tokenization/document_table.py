"""documents.parquet: where every document of a shard came from, and how many tokens it has."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.raw.documents import DocumentBatch

ROW_GROUP_ROWS = 1 << 16


class DocumentTable:
    """Writes one row a document, in document order; a context manager.

    Columns: file (string), line (int64, 1-based; in a Parquet or Arrow file the row), byte_offset (int64, of the
    line in the decompressed file; -1 for a row), id (string or null), tokens (int32, the end-of-document token
    included). Row groups hold 65,536 rows, however the documents came in batches, so that the same documents give the
    same bytes.
    """

    def __init__(self, path: Path, files: Sequence[str]) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._schema = pa.schema(
            [
                ("file", pa.dictionary(pa.int32(), pa.string())),
                ("line", pa.int64()),
                ("byte_offset", pa.int64()),
                ("id", pa.string()),
                ("tokens", pa.int32()),
            ]
        )
        self._files = pa.array(files, pa.string())
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd")
        self._waiting: list[Any] = []
        self._waiting_rows = 0

    def add(self, batch: DocumentBatch, lengths: np.ndarray, kept: np.ndarray | None = None) -> None:
        """Add the documents of a batch, with lengths int32[documents] in tokens; only the `kept` ones, where given."""
        import pyarrow as pa

        columns = [
            pa.DictionaryArray.from_arrays(pa.array(batch.files, pa.int32()), self._files),
            pa.array(batch.lines, pa.int64()),
            pa.array(batch.offsets, pa.int64()),
            pa.array(batch.ids, pa.string()),
            pa.array(lengths, pa.int32()),
        ]
        rows = pa.record_batch(columns, schema=self._schema)
        if kept is not None and not kept.all():
            rows = rows.filter(pa.array(kept))
        self._waiting.append(rows)
        self._waiting_rows += rows.num_rows
        if self._waiting_rows >= ROW_GROUP_ROWS:
            self._flush(self._waiting_rows // ROW_GROUP_ROWS * ROW_GROUP_ROWS)

    def _flush(self, rows: int) -> None:
        import pyarrow as pa

        table = pa.Table.from_batches(self._waiting, self._schema)
        self._writer.write_table(table.slice(0, rows), row_group_size=ROW_GROUP_ROWS)
        self._waiting = table.slice(rows).to_batches()
        self._waiting_rows -= rows

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if kind is None and self._waiting_rows:
            self._flush(self._waiting_rows)
        self._writer.close()


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except FileNotFoundError as error:
        raise MissingError("a shard's table of documents is gone", where=path, remedy="run `nanoset build`") from error
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(
            "this is not the table of a shard's documents",
            where=path,
            found=str(error)[:500],
            remedy="delete the shard's folder and run `nanoset build`: it makes the shard again",
        ) from error


def tokens_by_file(path: Path) -> dict[str, int]:
    """Tokens of each file that a documents.parquet names, in order; reads it by row groups.

    Raises MissingError, and FormatError for another table.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    counts: dict[str, int] = {}
    with _explained(path), pq.ParquetFile(path) as table:
        rows = 0
        for batch in table.iter_batches(columns=["file", "tokens"]):
            batch.validate(full=True)
            rows += batch.num_rows
            names = batch.column("file")
            names = names if isinstance(names, pa.DictionaryArray) else names.dictionary_encode()
            # float64 sums are exact below 2^53 tokens
            sums = np.bincount(names.indices.to_numpy(), batch.column("tokens").to_numpy(), len(names.dictionary))
            for name, tokens in zip(names.dictionary.to_pylist(), sums, strict=True):
                counts[name] = counts.get(name, 0) + int(tokens)
        if rows != table.metadata.num_rows:
            raise ValueError(f"{rows:,} of {table.metadata.num_rows:,} rows")
    return counts
