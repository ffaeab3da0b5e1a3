"""Lists of ids are files of text, or tables with a column of ids."""

from __future__ import annotations

import uuid
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.lineage.takedown import add_ids
from nanoset_core.stages.views.ids import listed_ids

UUID = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
UUID_COLUMN = pa.ExtensionArray.from_storage(
    pa.uuid(), pa.array([uuid.UUID(UUID).bytes], pa.binary(16))
)


def write_table(path: Path, table: pa.Table) -> None:
    """Write a table as Parquet or Arrow, as the ending of the path says."""
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("name", ["ids.parquet", "ids.arrow"])
@pytest.mark.parametrize(
    ("table", "ids"),
    [
        pytest.param(pa.table({"id": UUID_COLUMN}), [UUID], id="uuid"),
        pytest.param(pa.table({"other": [1, 2], "id": ["a", None]}), ["a"], id="two columns"),
        pytest.param(pa.table({"only": [7, 8]}), ["7", "8"], id="one column of any name"),
        pytest.param(pa.table({"id": [b"ab", b"cd"]}), ["ab", "cd"], id="bytes"),
    ],
)
def test_a_table_lists_the_ids_of_its_column(tmp_path, name, table, ids):
    write_table(tmp_path / name, table)

    assert listed_ids(tmp_path, [name]).to_pylist() == ids


@pytest.mark.parametrize("name", ["ids.parquet", "ids.arrow"])
def test_a_list_can_consist_of_tables_and_text(tmp_path, name):
    write_table(tmp_path / name, pa.table({"id": ["a", "b"]}))
    (tmp_path / "more.txt").write_text("# a comment\nz\n")

    assert listed_ids(tmp_path, [name, "more.txt"]).to_pylist() == ["a", "b", "z"]


@pytest.mark.parametrize(
    ("table", "message"),
    [
        pytest.param(
            pa.table({"a": [1], "b": [2]}), "lacks a column of ids", id="no column of ids"
        ),
        pytest.param(
            pa.table({"id": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}),
            "has ids that are no text",
            id="ids are intervals",
        ),
        pytest.param(
            pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]),
            "cannot be read",
            id="two columns of ids",
        ),
    ],
)
def test_a_table_that_lists_no_ids_is_refused(tmp_path, table, message):
    write_table(tmp_path / "ids.arrow", table)

    with pytest.raises(InputError, match=message):
        listed_ids(tmp_path, ["ids.arrow"])


def test_text_with_the_name_of_a_table_is_refused(tmp_path):
    (tmp_path / "ids.parquet").write_text("a\nb\n")

    with pytest.raises(InputError, match="plain text"):
        listed_ids(tmp_path, ["ids.parquet"])


def test_text_in_another_encoding_is_refused(tmp_path):
    (tmp_path / "ids.txt").write_bytes("a\nb\n".encode("utf-16"))

    with pytest.raises(InputError, match="text in UTF-16"):
        listed_ids(tmp_path, ["ids.txt"])


def test_no_ids_can_be_added_to_a_table(tmp_path):
    write_table(tmp_path / "ids.parquet", pa.table({"id": ["a"]}))

    with pytest.raises(ConfigError, match="not to tables"):
        add_ids(tmp_path / "ids.parquet", ["b"], "reason", "2026-01-01")


def test_ids_of_a_list_stay_as_they_are_if_others_are_added(tmp_path):
    file = tmp_path / "list.txt"
    file.write_bytes(b"\xef\xbb\xbffirst\r\na\rb\n")

    added_ids = add_ids(file, ["first", "c"], "reason", "2026-01-01")

    assert added_ids == ["c"]
    assert file.read_bytes() == b"\xef\xbb\xbffirst\r\na\rb\n# 2026-01-01: reason\nc\n"
    assert listed_ids(tmp_path, [file.name]).to_pylist() == ["first", "a\rb", "c"]
