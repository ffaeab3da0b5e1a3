"""Ids in tables: the text by which a list of ids names a document, whatever type the column has."""

import datetime
import decimal
import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from nanoset_core.text.documents import read_documents
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.pieces import SourceRange
from nanoset_core.text.table_ids import TableIds, ids_of

FIRST = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
SECOND = "00112233-4455-6677-8899-aabbccddeeff"
UUIDS = [FIRST, None, SECOND]
INTERVALS = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())


def uuid_array(texts):
    values = [None if text is None else uuid.UUID(text).bytes for text in texts]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


@pytest.mark.parametrize("array", [
    uuid_array(UUIDS),
    uuid_array([SECOND, *UUIDS, None])[1:4],
    pa.DictionaryArray.from_arrays(pa.array([1, None, 0], pa.int8()), uuid_array([SECOND, FIRST])),
], ids=["plain", "slice", "dictionary"])  # fmt: skip
def test_a_uuid_is_its_usual_text(array):
    assert ids_of(array) == TableIds(UUIDS)


@pytest.mark.parametrize("store_schema", [True, False])
def test_a_uuid_is_told_by_the_type_that_parquet_has_for_it(
    tmp_path, stored, as_file, store_schema
):
    table = pa.table({"text": ["a", "b", "c"], "id": uuid_array(UUIDS)})
    pq.write_table(table, tmp_path / "written.parquet", store_schema=store_schema)
    piece = stored("a.parquet", (tmp_path / "written.parquet").read_bytes())
    (batch,) = read_documents(tmp_path, SourceRange((piece,)))
    assert batch.ids == UUIDS
    assert batch.dropped_ids == {}


def test_no_uuids_and_only_nulls_are_read():
    assert ids_of(uuid_array([])) == TableIds([])
    assert ids_of(uuid_array([None, None])) == TableIds([None, None])


@pytest.mark.parametrize(("array", "texts"), [
    (pa.array([b"ab", b"cd"], pa.binary(2)), ["ab", "cd"]),
    (pa.array([b"ab", b""], pa.large_binary()), ["ab", ""]),
    (pa.array([2**63, 0], pa.uint64()), ["9223372036854775808", "0"]),
    (pa.array([decimal.Decimal("1.50"), None]), ["1.50", None]),
    (pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None]),
    (pa.array([{"shard": 1, "row": 2}, None]), ['{"shard": 1, "row": 2}', None]),
], ids=lambda value: str(value.type) if isinstance(value, pa.Array) else "")  # fmt: skip
def test_every_type_with_a_usual_text_is_kept(array, texts):
    assert ids_of(array) == TableIds(texts)


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary(2)])
def test_bytes_that_are_not_utf_8_are_kept_escaped_and_counted(kind):
    array = pa.array([b"ok", b"\xff!", None], kind)
    assert ids_of(array) == TableIds(["ok", "\\xff!", None], n_escaped=1)


@pytest.mark.parametrize(("array", "texts"), [
    (INTERVALS, [None, None]),
    (pa.array(["x" * 4097, "y"]), [None, "y"]),
    (pa.array([2**60, 0], pa.timestamp("s")), [None, "1970-01-01T00:00:00"]),
], ids=["interval", "long", "beyond the calendar"])  # fmt: skip
def test_ids_that_cannot_be_kept_are_counted_alone(array, texts):
    assert ids_of(array) == TableIds(texts, n_dropped=1)


def test_what_is_counted_is_of_documents_alone(tmp_path, stored, as_file):
    table = pa.table({"text": ["a", None], "id": pa.array([(1, 2, 3)] * 2, INTERVALS.type)})
    piece = stored(*as_file(table, "file"))
    (batch,) = read_documents(tmp_path, SourceRange((piece,)))
    assert batch.dropped_ids == {"a.arrow": 1}


@pytest.mark.parametrize(
    "bad_line", [b"", b"no JSON\n"], ids=["parsed at once", "parsed one by one"]
)
def test_a_long_id_of_a_json_line_is_counted(tmp_path, stored, bad_line):
    lines = [{"text": "a", "id": "x" * 4097}, {"text": "b", "id": "y"}, {"text": "c" * 5000}]
    data = b"".join(json.dumps(line).encode() + b"\n" for line in lines)
    (batch,) = read_documents(tmp_path, SourceRange((stored("a.jsonl", data + bad_line),)))
    assert batch.ids == [None, "y", None]
    assert batch.dropped_ids == {"a.jsonl": 1}


def test_a_uuid_is_written_as_its_text_and_is_no_text_itself(tmp_path, stored, as_file):
    piece = stored(*as_file(pa.table({"text": uuid_array(UUIDS)}), "parquet"))
    import_parquet(tmp_path / piece.path, tmp_path / "b.jsonl")
    written = [json.loads(line)["text"] for line in (tmp_path / "b.jsonl").read_text().splitlines()]
    assert written == UUIDS
    (batch,) = read_documents(tmp_path, SourceRange((piece,)))
    assert [reject.reason for reject in batch.rejects] == ["text_not_a_string"] * 3


def test_kept_values_are_uuids_as_text_too(tmp_path, stored, as_file):
    table = pa.table(
        {"text": ["a", "b", "c"], "key": uuid_array(UUIDS), "data": [b"\xff", b"a", b"\xfe"]}
    )
    piece = stored(*as_file(table, "parquet"))
    (batch,) = read_documents(tmp_path, SourceRange((piece,)), kept_keys=("key", "data"))
    [[keys, data]] = batch.kept_columns
    assert keys.to_pylist() == UUIDS
    assert data.to_pylist() == ["\\xff", "a", "\\xfe"]
    assert batch.escaped_values == 2


DOUBLE = pa.Table.from_arrays(
    [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "text", "id"]
)
DOUBLE_ID = pa.Table.from_arrays(
    [pa.array(["a"]), pa.array(["b"]), pa.array(["c"])], ["text", "id", "id"]
)
FIELDS = pa.StructArray.from_arrays([pa.array(["a"]), pa.array(["b"])], ["text", "text"])


@pytest.mark.parametrize("kind", ["file", "stream", "parquet"])
@pytest.mark.parametrize(("table", "keys", "named"), [
    (DOUBLE, {}, "2 columns are named 'text'"),
    (DOUBLE_ID, {}, "2 columns are named 'id'"),
    (DOUBLE, {"text_key": "id", "kept_keys": ("text",)}, "2 columns are named 'text'"),
    (pa.table({"a": FIELDS}), {"text_key": "a.text"}, "2 columns are named 'a.text'"),
], ids=["text", "id", "kept", "field"])  # fmt: skip
def test_a_table_with_two_columns_of_the_name_that_is_read_is_refused(
    tmp_path, stored, as_file, kind, table, keys, named
):
    if (kind, "a" in table.column_names) == ("parquet", True):
        pytest.skip(
            "pyarrow writes no struct with two fields of one name to Parquet that it could read"
        )
    piece = stored(*as_file(table, kind))
    (batch,) = read_documents(tmp_path, SourceRange((piece,)), **keys)
    (fault,) = batch.rejects
    assert (batch.texts, fault.reason, fault.is_fault) == ([], "ambiguous_column", True)
    assert named in fault.detail


def test_another_pair_of_columns_of_one_name_is_no_matter(tmp_path, stored, as_file):
    table = pa.Table.from_arrays(
        [pa.array(["a"]), pa.array([1]), pa.array([2])], ["text", "n", "n"]
    )
    (batch,) = read_documents(tmp_path, SourceRange((stored(*as_file(table, "file")),)))
    assert batch.texts == ["a"]
