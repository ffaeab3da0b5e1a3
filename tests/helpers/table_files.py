"""Tables as the bytes of Parquet and Arrow files."""

from __future__ import annotations

import io
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

TABLE_KINDS = ["parquet", "file", "stream"]
"""The kinds of files that hold tables: Parquet, and the two formats of Arrow, with one ending."""


class EncodedTable(NamedTuple):
    """A file that holds a table."""

    name: str
    data: bytes


def encode_table(
    table: pa.Table,
    kind: str,
    *,
    rows_per_batch: int = 1000,
    compression: str | None = None,
    stem: str = "a",
) -> EncodedTable:
    """Return the file that holds a table.

    Args:
        table: Its rows.
        kind: One of TABLE_KINDS.
        rows_per_batch: Rows of each row group or record batch.
        compression: Name of the compression; None for none.
        stem: Name of the file, without its ending.
    """
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(
            table, sink, row_group_size=rows_per_batch, compression=compression or "none"
        )
        return EncodedTable(f"{stem}.parquet", sink.getvalue())

    options = pa.ipc.IpcWriteOptions(compression=compression)
    open_writer = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind]
    with open_writer(sink, table.schema, options=options) as writer:
        writer.write_table(table, rows_per_batch)
    return EncodedTable(f"{stem}.arrow", sink.getvalue())
