"""Tables of documents that are not what a build writes."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import FormatError
from nanoset_core.tokenization.document_table import DocumentRows


def written(path, tokens):
    columns = {"file": ["a"] * 3, "line": [1, 2, 3], "byte_offset": [0, 5, 9], "id": ["x", None, "z"]}
    pq.write_table(pa.table(columns | {"tokens": tokens}), path)
    return DocumentRows(path, 3)


def test_lengths_are_whole_numbers(tmp_path):
    rows = written(tmp_path / "documents.parquet", pa.array([4, 0, 7], pa.int32()))
    assert rows.tokens() == 11
    for tokens in ([float("inf"), float("-inf"), 1.0], [1, None, 2], ["1", "2", "3"]):
        rows = written(tmp_path / "documents.parquet", tokens)
        with pytest.raises(FormatError, match=r"tokens as (double|int64|string)"):
            rows.tokens()
