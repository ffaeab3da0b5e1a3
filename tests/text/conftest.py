import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pytest

from nanoset_core.text.pieces import Piece


@pytest.fixture
def stored(tmp_path):
    """A function that writes a file, and returns the piece that is all of it, as an inventory does."""

    def store(name: str, data: bytes, folder: Path = tmp_path) -> Piece:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
        return Piece(name, 0, len(data), 1, hashlib.sha256(data).hexdigest())

    return store


class Backwards:
    """An executor that finishes tasks in reverse order, and notes them."""

    def __init__(self):
        self.tasks = []

    def run(self, work, tasks):
        self.tasks[:] = tasks
        yield from reversed([(number, work(task)) for number, task in enumerate(self.tasks)])


@pytest.fixture
def executor():
    return Backwards()


@pytest.fixture(scope="session")
def as_file():
    """A function that returns name and bytes of a table as Parquet, or as Arrow's file or stream."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    def write(
        table, kind: str, rows: int = 1000, compression: str | None = None, stem: str = "a"
    ) -> tuple[str, bytes]:
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


MEASURED = """
import resource, sys
from pathlib import Path
import isal.isal_zlib, pyarrow.compute, pyarrow.parquet, zstandard
from nanoset_core.text.documents import read_documents
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.pieces import SourceRange
from nanoset_core.text.inventories import take_inventory
folder = Path(sys.argv[1])
source = SourceRange(take_inventory(folder, "web").pieces)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
print(eval(sys.argv[2]))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) >> 10)
"""


@pytest.fixture
def measured(tmp_path):
    """A function that evaluates an expression in another process; returns its value and MiB.

    The expression may use `folder` and `source`, and the memory is what it takes at most.
    """

    def measure(expression: str) -> tuple[str, int]:
        command = [sys.executable, "-c", MEASURED, str(tmp_path), expression]
        value, mib = subprocess.run(
            command, capture_output=True, text=True, check=True
        ).stdout.splitlines()
        return value, int(mib)

    return measure
