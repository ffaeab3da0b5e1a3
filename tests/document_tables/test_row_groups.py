"""Row groups of Parquet files, read one by one."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.document_tables.row_groups import RowGroups


@pytest.fixture
def groups(tmp_path: Path) -> Iterator[RowGroups]:
    """The row groups of a table of five documents, of which two are in each group."""
    table = pa.table(
        {
            "id": ["a", "b", "c", "d", "e"],
            "n": [5, 1, 3, 9, 7],
        }
    )
    pq.write_table(table, tmp_path / "table.parquet", row_group_size=2)
    with RowGroups(tmp_path / "table.parquet") as groups:
        yield groups


def test_row_groups_have_the_ranges_of_their_rows(groups):
    assert groups.ranges == [(0, 2), (2, 4), (4, 5)]


def test_row_groups_have_the_columns_of_the_file(groups):
    assert groups.schema.names == ["id", "n"]


def test_a_row_group_is_read_alone(groups):
    assert groups.read(1).to_pydict() == {"id": ["c", "d"], "n": [3, 9]}


def test_some_columns_of_a_row_group_are_read(groups):
    assert groups.read(2, ["n"]).to_pydict() == {"n": [7]}


def test_a_row_group_has_the_range_of_its_values(groups):
    assert groups.value_range(0, "n") == (1, 5)
    assert groups.value_range(1, "n") == (3, 9)
    assert groups.value_range(2, "n") == (7, 7)


def test_the_range_of_values_is_unknown_if_the_file_does_not_store_it(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"n": [1]}), path, write_statistics=False)

    with RowGroups(path) as groups:
        assert groups.value_range(0, "n") is None


def test_texts_that_are_not_utf_8_are_refused(tmp_path):
    path = tmp_path / "table.parquet"
    offsets = pa.py_buffer(b"\0\0\0\0\1\0\0\0")  # of one text of one byte
    not_utf_8 = pa.Array.from_buffers(pa.string(), 1, [None, offsets, pa.py_buffer(b"\xff")])
    pq.write_table(pa.table({"id": not_utf_8}), path)

    with RowGroups(path) as groups, pytest.raises(pa.ArrowInvalid, match="UTF8"):
        groups.read(0)
