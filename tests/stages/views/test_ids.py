"""Lists of ids: files of text, and tables."""

import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.errors import ConfigError, InputError
from nanoset_core.lineage.takedown import add_ids
from nanoset_core.stages.views.ids import listed_ids

TEXT = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
UUID = pa.ExtensionArray.from_storage(pa.uuid(), pa.array([uuid.UUID(TEXT).bytes], pa.binary(16)))


def write(path, table):
    if path.suffix == ".parquet":
        pq.write_table(table, path)
        return
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)


@pytest.mark.parametrize("name", ["ids.parquet", "ids.arrow"])
@pytest.mark.parametrize(("table", "ids"), [
    (pa.table({"id": UUID}), [TEXT]),
    (pa.table({"other": [1, 2], "id": ["a", None]}), ["a"]),
    (pa.table({"only": [7, 8]}), ["7", "8"]),
    (pa.table({"id": [b"ab", b"cd"]}), ["ab", "cd"]),
], ids=["uuid", "among others", "alone", "bytes"])  # fmt: skip
def test_a_table_lists_the_ids_of_its_column(tmp_path, name, table, ids):
    write(tmp_path / name, table)
    (tmp_path / "more.txt").write_text("# a comment\nz\n")
    assert listed_ids(tmp_path, [name, "more.txt"]).to_pylist() == [*ids, "z"]


@pytest.mark.parametrize(("table", "said"), [
    (pa.table({"a": [1], "b": [2]}), "lacks a column of ids"),
    (pa.table({"id": pa.array([(1, 2, 3)], pa.month_day_nano_interval())}), "has ids that are no text"),
    (pa.Table.from_arrays([pa.array([1]), pa.array([2])], ["id", "id"]), "cannot be read"),
], ids=["no column", "no text", "two columns"])  # fmt: skip
def test_a_table_that_lists_no_ids_is_refused(tmp_path, table, said):
    write(tmp_path / "ids.arrow", table)
    with pytest.raises(InputError, match=said):
        listed_ids(tmp_path, ["ids.arrow"])


def test_a_file_that_is_no_table_is_refused(tmp_path):
    (tmp_path / "ids.parquet").write_text("a\nb\n")
    with pytest.raises(InputError, match="plain text"):
        listed_ids(tmp_path, ["ids.parquet"])


def test_a_list_in_another_encoding_is_named(tmp_path):
    (tmp_path / "ids.txt").write_bytes("a\nb\n".encode("utf-16"))
    with pytest.raises(InputError, match="text in UTF-16"):
        listed_ids(tmp_path, ["ids.txt"])


def test_no_ids_are_added_to_a_table(tmp_path):
    write(tmp_path / "ids.parquet", pa.table({"id": ["a"]}))
    with pytest.raises(ConfigError, match="not to tables"):
        add_ids(tmp_path / "ids.parquet", ["b"], "reason", "2026-01-01")
