"""Ids in tables: the text by which a list of ids names a document, whatever type the column has."""

import datetime
import decimal
import json
import uuid

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.read_pieces import read_pieces
from nanoset_core.text.documents import read_documents
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.tables.ids import TableIds, ids_of

FIRST = "6ba7b810-9dad-11d1-80b4-00c04fd430c8"
SECOND = "00112233-4455-6677-8899-aabbccddeeff"
UUIDS = [FIRST, None, SECOND]

MAX_ID_CHARACTERS = 4096


def read_batch(folder, piece, **options):
    """Return the single batch of the documents of a piece."""
    [batch] = read_documents(folder, SourceRange((piece,)), **options)
    return batch


def uuid_array(texts):
    """Return an Arrow array of UUIDs, which may contain None."""
    values = [None if text is None else uuid.UUID(text).bytes for text in texts]
    return pa.ExtensionArray.from_storage(pa.uuid(), pa.array(values, pa.binary(16)))


# UUIDs


@pytest.mark.parametrize(
    "array",
    [
        pytest.param(uuid_array(UUIDS), id="plain"),
        pytest.param(uuid_array([SECOND, *UUIDS, None])[1:4], id="slice"),
        pytest.param(
            pa.DictionaryArray.from_arrays(
                pa.array([1, None, 0], pa.int8()), uuid_array([SECOND, FIRST])
            ),
            id="dictionary",
        ),
    ],
)
def test_a_uuid_is_written_with_hyphens(array):
    assert ids_of(array) == TableIds(UUIDS)


@pytest.mark.parametrize(
    "store_schema", [True, False], ids=["with Arrow's schema", "without Arrow's schema"]
)
def test_uuids_in_parquet_are_recognized_by_the_type_of_their_column(
    tmp_path, write_piece, store_schema
):
    """Writers other than Arrow mark UUIDs by Parquet's own type alone."""
    table = pa.table({"text": ["a", "b", "c"], "id": uuid_array(UUIDS)})
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, store_schema=store_schema)
    piece = write_piece("a.parquet", sink.getvalue().to_pybytes())

    batch = read_batch(tmp_path, piece)

    assert batch.ids == UUIDS
    assert batch.dropped_ids == {}


@pytest.mark.parametrize(
    "uuids",
    [pytest.param([], id="no rows"), pytest.param([None, None], id="only nulls")],
)
def test_a_column_of_uuids_may_have_no_values(uuids):
    assert ids_of(uuid_array(uuids)) == TableIds(uuids)


@pytest.fixture
def uuids_as_texts(write_table):
    """A Parquet file whose texts are UUIDs."""
    return write_table(pa.table({"text": uuid_array(UUIDS)}), "parquet")


def test_a_uuid_is_imported_as_a_string(tmp_path, uuids_as_texts):
    import_parquet(tmp_path / uuids_as_texts.path, tmp_path / "b.jsonl")

    lines = (tmp_path / "b.jsonl").read_text().splitlines()
    assert [json.loads(line)["text"] for line in lines] == UUIDS


def test_a_uuid_is_rejected_as_the_text_of_a_document(tmp_path, uuids_as_texts):
    result = read_pieces(tmp_path, uuids_as_texts)

    assert result.reason_by_line == dict.fromkeys([1, 2, 3], "text_not_a_string")


# Other types


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        pytest.param(
            pa.array([b"ab", b"cd"], pa.binary(2)), ["ab", "cd"], id="bytes of a fixed size"
        ),
        pytest.param(pa.array([b"ab", b""], pa.large_binary()), ["ab", ""], id="large bytes"),
        pytest.param(
            pa.array([2**63, 0], pa.uint64()), ["9223372036854775808", "0"], id="large integer"
        ),
        pytest.param(pa.array([decimal.Decimal("1.50"), None]), ["1.50", None], id="decimal"),
        pytest.param(pa.array([datetime.date(2024, 1, 31), None]), ["2024-01-31", None], id="date"),
        pytest.param(
            pa.array([{"shard": 1, "row": 2}, None]), ['{"shard": 1, "row": 2}', None], id="struct"
        ),
    ],
)
def test_every_type_with_a_usual_text_is_kept(array, texts):
    assert ids_of(array) == TableIds(texts)


@pytest.mark.parametrize("bytes_type", [pa.binary(), pa.large_binary(), pa.binary(2)], ids=str)
def test_bytes_that_are_not_utf_8_are_escaped_and_counted(bytes_type):
    array = pa.array([b"ok", b"\xff!", None], bytes_type)

    assert ids_of(array) == TableIds(["ok", "\\xff!", None], n_escaped=1)


INTERVALS = pa.array([(1, 2, 3), None], pa.month_day_nano_interval())


@pytest.mark.parametrize(
    ("array", "texts"),
    [
        pytest.param(INTERVALS, [None, None], id="no usual text"),
        pytest.param(pa.array(["x" * (MAX_ID_CHARACTERS + 1), "y"]), [None, "y"], id="too long"),
        pytest.param(
            pa.array([2**60, 0], pa.timestamp("s")),
            [None, "1970-01-01T00:00:00"],
            id="beyond the calendar",
        ),
    ],
)
def test_only_ids_that_cannot_be_kept_are_counted_as_dropped(array, texts):
    assert ids_of(array) == TableIds(texts, n_dropped=1)


# Counts of a batch


def test_dropped_ids_of_rejected_rows_are_not_counted(tmp_path, write_table):
    ids = pa.array([(1, 2, 3), (1, 2, 3)], INTERVALS.type)
    piece = write_table(pa.table({"text": ["a", None], "id": ids}), "file")

    assert read_batch(tmp_path, piece).dropped_ids == {"a.arrow": 1}


@pytest.mark.parametrize(
    "last_line",
    [
        pytest.param(b"", id="all lines parsed together"),
        pytest.param(b"no JSON\n", id="each line parsed alone"),
    ],
)
def test_an_id_of_a_json_line_that_is_too_long_is_counted_as_dropped(
    tmp_path, write_piece, last_line
):
    documents = [
        {"text": "a", "id": "x" * (MAX_ID_CHARACTERS + 1)},
        {"text": "b", "id": "y"},
        {"text": "c" * 5000},  # a long line without an id
    ]
    lines = [json.dumps(document).encode() + b"\n" for document in documents]
    piece = write_piece("a.jsonl", b"".join(lines) + last_line)

    batch = read_batch(tmp_path, piece)

    assert batch.ids == [None, "y", None]
    assert batch.dropped_ids == {"a.jsonl": 1}


# Kept values


def test_kept_values_are_texts_as_ids_are(tmp_path, write_table):
    columns = {
        "text": ["a", "b", "c"],
        "key": uuid_array(UUIDS),
        "data": [b"\xff", b"a", b"\xfe"],
    }
    piece = write_table(pa.table(columns), "parquet")

    batch = read_batch(tmp_path, piece, kept_keys=("key", "data"))

    [[keys, data]] = batch.kept_columns
    assert keys.to_pylist() == UUIDS
    assert data.to_pylist() == ["\\xff", "a", "\\xfe"]
    assert batch.escaped_values == 2


# Columns with the same name


def table_of_columns(*names):
    """Return a table of one row that has columns with these names, of which some may be equal."""
    columns = [pa.array([name]) for name in names]
    return pa.Table.from_arrays(columns, names)


TWO_TEXT_FIELDS = pa.StructArray.from_arrays(
    [pa.array(["a"]), pa.array(["b"])],
    ["text", "text"],
)
AMBIGUOUS_TABLES = {
    "text": {
        "table": table_of_columns("text", "text", "id"),
        "keys": {},
        "detail": "2 columns are named 'text'",
    },
    "id": {
        "table": table_of_columns("text", "id", "id"),
        "keys": {},
        "detail": "2 columns are named 'id'",
    },
    "kept": {
        "table": table_of_columns("text", "text", "id"),
        "keys": {"text_key": "id", "kept_keys": ("text",)},
        "detail": "2 columns are named 'text'",
    },
    "field": {
        "table": pa.table({"a": TWO_TEXT_FIELDS}),
        "keys": {"text_key": "a.text"},
        "detail": "2 columns are named 'a.text'",
    },
}


@pytest.mark.parametrize("kind", ["file", "stream", "parquet"])
@pytest.mark.parametrize("role", AMBIGUOUS_TABLES)
def test_a_table_with_two_columns_of_a_name_that_is_read_is_refused(
    tmp_path, write_table, kind, role
):
    case = AMBIGUOUS_TABLES[role]
    if kind == "parquet" and role == "field":
        pytest.skip("pyarrow cannot read Parquet files whose structs have two fields of one name")
    piece = write_table(case["table"], kind)

    batch = read_batch(tmp_path, piece, **case["keys"])

    [fault] = batch.rejects
    assert fault.is_fault
    assert fault.reason == "ambiguous_column"
    assert case["detail"] in fault.detail
    assert batch.texts == []


def test_two_columns_of_a_name_that_is_not_read_do_no_harm(tmp_path, write_table):
    piece = write_table(table_of_columns("text", "n", "n"), "file")

    assert read_pieces(tmp_path, piece).texts == ["text"]
