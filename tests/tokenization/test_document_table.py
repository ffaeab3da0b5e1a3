import os
import subprocess
import sys

import numpy as np
import pytest

from nanoset_core.raw.documents import DocumentBatch
from nanoset_core.tokenization import document_table


def batch(first, count):
    numbers = range(first, first + count)
    return DocumentBatch(
        texts=[""] * count,
        files=[number % 2 for number in numbers],
        lines=[number + 1 for number in numbers],
        offsets=[number * 10 for number in numbers],
        ids=[None if number % 3 else f"id-{number}" for number in numbers],
    )


def write(path, counts):
    with document_table.document_table(path, ["a.jsonl", "sub/b.jsonl.gz"]) as add:
        first = 0
        for count in counts:
            add(batch(first, count), np.arange(first, first + count, dtype=np.int32), np.ones(count, bool))
            first += count
    return path


def test_rows_and_types(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(write(tmp_path / "t.parquet", [3, 0, 4]))
    assert table.column_names == ["file", "line", "byte_offset", "id", "tokens"]
    assert table.schema.types[1:] == [pa.int64(), pa.int64(), pa.string(), pa.int32()]
    assert table.to_pylist() == [
        {
            "file": ["a.jsonl", "sub/b.jsonl.gz"][number % 2],
            "line": number + 1,
            "byte_offset": number * 10,
            "id": None if number % 3 else f"id-{number}",
            "tokens": number,
        }
        for number in range(7)
    ]


@pytest.mark.parametrize("counts", [[23], [1] * 23, [9, 0, 14], [10, 10, 3], [22, 1]])
def test_same_documents_same_bytes_however_batched(tmp_path, monkeypatch, counts):
    import pyarrow.parquet as pq

    monkeypatch.setattr(document_table, "ROW_GROUP_ROWS", 10)
    path = write(tmp_path / "t.parquet", counts)
    assert path.read_bytes() == write(tmp_path / "whole.parquet", [23]).read_bytes()
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [10, 10, 3]


def test_pandas_is_not_imported(tmp_path):
    """Where it is installed, pyarrow.array looks for it, which takes each worker half a second."""
    (tmp_path / "pandas.py").write_text("print('pandas')")
    code = (
        "from test_document_table import batch, document_table, np\n"
        "with document_table.document_table('t.parquet', ['a', 'b']) as add:\n"
        "    add(batch(0, 3), np.arange(3, dtype=np.int32), np.arange(3) > 0)\n"
    )
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.path.dirname(__file__), *sys.path])}
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=os.environ | paths, capture_output=True)
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


def test_no_documents(tmp_path):
    import pyarrow.parquet as pq

    table = pq.read_table(write(tmp_path / "t.parquet", []))
    assert table.num_rows == 0
    assert table.column_names == ["file", "line", "byte_offset", "id", "tokens"]
