"""Rows of a shard's table of documents are found and read, and faulty tables are refused."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import FormatError
from nanoset_core.stages.shards.document_rows import DocumentRows

N_ROWS = 100
N_ROWS_OF_FILE_A = 60


def write_table(path: Path, token_counts: Sequence[Any] | pa.Array) -> DocumentRows:
    """Write a table of documents with these numbers of tokens, and open it.

    The first 60 documents are from file a, all others from file b. The id of each is its row.
    """
    rows = range(len(token_counts))
    files = ["a" if row < N_ROWS_OF_FILE_A else "b" for row in rows]
    columns = {
        "file": pa.array(files).dictionary_encode(),
        "line": [row % N_ROWS_OF_FILE_A + 1 for row in rows],
        "byte_offset": list(rows),
        "id": [f"{row:03}" for row in rows],
        "tokens": token_counts,
    }
    pq.write_table(pa.table(columns), path, row_group_size=10)
    return DocumentRows(path, len(rows))


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> DocumentRows:
    """A table of a hundred documents."""
    path = tmp_path_factory.mktemp("table") / "documents.parquet"
    return write_table(path, pa.array([1] * N_ROWS, pa.int32()))


def test_the_lengths_of_documents_are_read(tmp_path):
    token_counts = pa.array([4, 0, 7], pa.int32())

    rows = write_table(tmp_path / "documents.parquet", token_counts)

    lengths = [lengths_of_group for _first_row, lengths_of_group in rows.lengths()]
    assert np.concatenate(lengths).tolist() == [4, 0, 7]


@pytest.mark.parametrize(
    "token_counts",
    [
        pytest.param([float("inf"), float("-inf"), 1.0], id="floats"),
        pytest.param([1, None, 2], id="a missing value"),
        pytest.param(["1", "2", "3"], id="texts"),
    ],
)
def test_lengths_that_are_no_integers_are_refused(tmp_path, token_counts):
    rows = write_table(tmp_path / "documents.parquet", token_counts)

    with pytest.raises(FormatError, match=r"tokens as (double|string)|no number of tokens"):
        list(rows.lengths())


@pytest.mark.parametrize(
    ("values", "expected_row"),
    [
        pytest.param({"id": "042"}, 42, id="id"),
        # Line 5 of file b is after the 60 lines of file a.
        pytest.param({"file": "b", "line": 5}, 64, id="file and line"),
    ],
)
def test_a_document_is_found_by_its_values(table, values, expected_row):
    rows = [row for row, _values in table.search(values)]

    assert rows == [expected_row]


def test_rows_are_returned_in_the_order_in_which_they_are_named(table):
    documents = table.read([99, 0, 42])

    assert [document["id"] for document in documents] == ["099", "000", "042"]


def test_documents_with_some_ids_are_found_in_the_order_of_the_table(table):
    ids = pa.array(["042", "none", "007"], pa.large_string())

    rows = [row for row, _values in table.with_ids(ids)]

    assert rows == [7, 42]
