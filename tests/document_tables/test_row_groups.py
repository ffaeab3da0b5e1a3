"""Row groups of Parquet files, read one by one."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.document_tables.row_groups import RowGroups


def test_row_groups_are_read_with_their_ranges_of_rows_and_values(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"id": list("abcde"), "n": [5, 1, 3, 9, 7]}), path, row_group_size=2)

    with RowGroups(path) as groups:
        assert groups.ranges == [(0, 2), (2, 4), (4, 5)]
        assert groups.schema.names == ["id", "n"]
        assert groups.read(1).to_pydict() == {"id": ["c", "d"], "n": [3, 9]}
        assert groups.read(2, ["n"]).to_pydict() == {"n": [7]}
        assert [groups.value_range(group, "n") for group in range(3)] == [(1, 5), (3, 9), (7, 7)]


def test_the_range_of_values_is_unknown_if_the_file_does_not_store_it(tmp_path):
    path = tmp_path / "table.parquet"
    pq.write_table(pa.table({"n": [1]}), path, write_statistics=False)

    with RowGroups(path) as groups:
        assert groups.value_range(0, "n") is None


def test_texts_that_are_not_utf8_are_refused(tmp_path):
    path = tmp_path / "table.parquet"
    not_utf8 = pa.Array.from_buffers(
        pa.string(), 1, [None, pa.py_buffer(b"\0\0\0\0\1\0\0\0"), pa.py_buffer(b"\xff")]
    )
    pq.write_table(pa.table({"id": not_utf8}), path)

    with RowGroups(path) as groups, pytest.raises(pa.ArrowInvalid, match="UTF8"):
        groups.read(0)
