"""Writing the same rows as Parquet and as both kinds of Arrow files."""

import io

import pyarrow as pa
import pyarrow.parquet as pq

KINDS = ["parquet", "file", "stream"]
NAMES = {"parquet": "a.parquet", "file": "a.arrow", "stream": "a.arrow"}


def table_bytes(table, kind, rows=1000, compression=None):
    """A file of `rows` rows a row group or record batch."""
    sink = io.BytesIO()
    if kind == "parquet":
        pq.write_table(table, sink, row_group_size=rows, compression=compression or "none")
    else:
        options = pa.ipc.IpcWriteOptions(compression=compression)
        opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with opened(sink, table.schema, options=options) as writer:
            writer.write_table(table, rows)
    return sink.getvalue()
