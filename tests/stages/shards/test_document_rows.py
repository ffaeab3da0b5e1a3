"""Rows of a shard's table of documents are found and read, and faulty tables are refused."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import FormatError
from nanoset_core.stages.shards.document_rows import DocumentRows


def written(path, tokens):
    """A table of documents of file a, the first 60, and b."""
    count = len(tokens)
    columns = {
        "file": pa.array(["a" if n < 60 else "b" for n in range(count)]).dictionary_encode(),
        "line": [n % 60 + 1 for n in range(count)],
        "byte_offset": list(range(count)),
        "id": [f"{n:03}" for n in range(count)],
    }
    pq.write_table(pa.table(columns | {"tokens": tokens}), path, row_group_size=10)
    return DocumentRows(path, count)


def test_lengths_are_whole_numbers(tmp_path):
    rows = written(tmp_path / "documents.parquet", pa.array([4, 0, 7], pa.int32()))
    assert np.concatenate([lengths for _, lengths in rows.lengths()]).tolist() == [4, 0, 7]
    for tokens in ([float("inf"), float("-inf"), 1.0], [1, None, 2], ["1", "2", "3"]):
        rows = written(tmp_path / "documents.parquet", tokens)
        with pytest.raises(FormatError, match=r"tokens as (double|string)|no number of tokens"):
            list(rows.lengths())


def test_rows_are_found_by_their_values(tmp_path):
    table = written(tmp_path / "t.parquet", pa.array([1] * 100, pa.int32()))
    assert [row for row, _ in table.search({"id": "042"})] == [42]
    assert [row for row, _ in table.search({"file": "b", "line": 5})] == [64]
    assert [values["id"] for values in table.read([99, 0, 42])] == ["099", "000", "042"]
    ids = pa.array(["042", "none", "007"], pa.large_string())
    assert [row for row, _ in table.with_ids(ids)] == [7, 42]
