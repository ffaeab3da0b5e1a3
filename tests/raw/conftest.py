import hashlib
import io
from pathlib import Path

import pytest

from nanoset_core.raw.pieces import Piece


@pytest.fixture
def stored(tmp_path):
    """Writes a file and gives the piece that is all of it, as an inventory would."""

    def store(name: str, data: bytes, folder: Path = tmp_path) -> Piece:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return Piece(name, 0, len(data), 1, hashlib.sha256(data).hexdigest())

    return store


@pytest.fixture(scope="session")
def as_file():
    """Gives name and bytes of a table written as `parquet`, or as Arrow's `file` or `stream` format."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(table, kind: str, rows: int = 1000, compression: str | None = None, stem: str = "a") -> tuple[str, bytes]:
        sink = io.BytesIO()
        if kind == "parquet":
            pq.write_table(table, sink, row_group_size=rows, compression=compression or "none")
            return f"{stem}.parquet", sink.getvalue()
        options = pa.ipc.IpcWriteOptions(compression=compression)
        opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with opened(sink, table.schema, options=options) as writer:
            writer.write_table(table, rows)
        return f"{stem}.arrow", sink.getvalue()

    return write
