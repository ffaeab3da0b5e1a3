"""The table of a shard's documents: its columns, and its bytes for the same documents."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from nanoset_core.stages.shards import document_table
from nanoset_core.text.document_batch import DocumentBatch

FILES = ["a.jsonl", "sub/b.jsonl.gz"]


def make_batch(first: int, count: int) -> DocumentBatch:
    """Return documents with these numbers: alternately of both files, and each third with an id."""
    numbers = range(first, first + count)
    return DocumentBatch(
        texts=[""] * count,
        files=[number % 2 for number in numbers],
        lines=[number + 1 for number in numbers],
        offsets=[number * 10 for number in numbers],
        ids=[None if number % 3 else f"id-{number}" for number in numbers],
    )


def write_table(path: Path, batch_sizes: Sequence[int]) -> Path:
    """Write a table of documents in batches of these sizes; return its path.

    The number of tokens of a document is its own number.
    """
    first = 0
    with document_table.document_table(path, FILES) as add:
        for batch_size in batch_sizes:
            token_counts = np.arange(first, first + batch_size, dtype=np.int32)
            add(make_batch(first, batch_size), token_counts, np.ones(batch_size, bool))
            first += batch_size
    return path


def test_a_table_without_documents_has_no_rows(tmp_path):
    import pyarrow.parquet as pq

    path = write_table(tmp_path / "documents.parquet", [])

    assert pq.read_table(path).num_rows == 0


def test_a_table_has_a_row_for_each_document(tmp_path):
    import pyarrow.parquet as pq

    path = write_table(tmp_path / "documents.parquet", [3, 0, 4])

    expected_rows = [
        {
            "file": FILES[number % 2],
            "line": number + 1,
            "byte_offset": number * 10,
            "id": None if number % 3 else f"id-{number}",
            "tokens": number,
        }
        for number in range(7)
    ]
    assert pq.read_table(path).to_pylist() == expected_rows


def test_the_columns_have_the_documented_types(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(write_table(tmp_path / "documents.parquet", [3, 0, 4]))

    assert table.column_names == ["file", "line", "byte_offset", "id", "tokens"]
    assert table.schema.types[1:] == [pa.int64(), pa.int64(), pa.string(), pa.int32()]


@pytest.mark.parametrize("batch_sizes", [[23], [1] * 23, [9, 0, 14], [10, 10, 3], [22, 1]], ids=str)
def test_the_bytes_do_not_depend_on_the_batches(tmp_path, monkeypatch, batch_sizes):
    import pyarrow.parquet as pq

    monkeypatch.setattr(document_table, "ROW_GROUP_ROWS", 10)
    path_of_one_batch = write_table(tmp_path / "one-batch.parquet", [23])

    path = write_table(tmp_path / "documents.parquet", batch_sizes)

    assert path.read_bytes() == path_of_one_batch.read_bytes()
    metadata = pq.ParquetFile(path).metadata
    groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
    assert [group.num_rows for group in groups] == [10, 10, 3]


def test_writing_a_table_does_not_import_pandas(tmp_path):
    """If it is installed, pyarrow.array imports it, which takes each worker half a second."""
    (tmp_path / "pandas.py").write_text("print('pandas was imported')")
    code = """\
import numpy as np
from nanoset_core.stages.shards.document_table import document_table
from nanoset_core.text.document_batch import DocumentBatch

batch = DocumentBatch(
    texts=["", "", ""],
    files=[0, 1, 0],
    lines=[1, 2, 3],
    offsets=[0, 10, 20],
    ids=["id-0", None, None],
)
with document_table("t.parquet", ["a", "b"]) as add:
    add(batch, np.arange(3, dtype=np.int32), np.array([False, True, True]))
"""
    module_paths = os.pathsep.join([str(tmp_path), *sys.path])

    process = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": module_paths},
        capture_output=True,
    )

    assert process.returncode == 0, process.stderr
    assert process.stdout == b""
