"""Documents in the rows of Parquet and Arrow files: their texts and ids, and which are rejected."""

import json
import math
from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from helpers.read_pieces import read_pieces
from helpers.table_files import TABLE_KINDS, encode_table
from nanoset_core.errors import InputError, MissingError, SourceChangedError
from nanoset_core.text.documents import read_documents
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.inventory.take import take_inventory
from nanoset_core.text.rejects import NO_OFFSET, Reject

SAVED_BY_HUGGING_FACE = GOLDEN_FILES / "datasets"
"""A dataset that the library `datasets` saved, and its rows as JSON lines and as Parquet."""

every_kind = pytest.mark.parametrize("kind", TABLE_KINDS)


def text_array(texts, storage):
    """Return an Arrow array of texts that stores them in some way, such as in a dictionary."""
    array = pa.array(texts, pa.string())
    if storage == "dictionary":
        return array.dictionary_encode()
    if storage == "run-end":
        run_ends = pa.array(range(1, len(texts) + 1), pa.int32())
        return pa.RunEndEncodedArray.from_arrays(run_ends, array)
    types = {
        "plain": pa.string(),
        "large": pa.large_string(),
        "view": pa.string_view(),
        "binary": pa.binary(),
    }
    return array.cast(types[storage])


# Texts


@every_kind
@pytest.mark.parametrize("storage", ["plain", "large", "view", "binary", "dictionary", "run-end"])
@pytest.mark.parametrize("compression", [None, "zstd"])
@pytest.mark.parametrize("rows_per_batch", [2, 1000])
def test_texts_are_the_same_however_a_table_stores_them(
    tmp_path, write_table, kind, storage, compression, rows_per_batch
):
    if kind == "parquet" and storage == "run-end":
        pytest.skip("Parquet has no run-end encoding")
    texts = ["naïve", "", None, "nul \0 inside", "日本\u2028", "naïve", "\U0001f600" * 50]
    ids = ["i1", "i2", "i3", "i4", "i5", "i6", "i7"]
    table = pa.table({"other": range(7), "text": text_array(texts, storage), "id": ids})
    piece = write_table(table, kind, rows_per_batch=rows_per_batch, compression=compression)

    result = read_pieces(tmp_path, piece)

    assert result.texts == [*texts[:2], *texts[3:]]
    assert result.ids == [*ids[:2], *ids[3:]]
    assert result.lines == [1, 2, 4, 5, 6, 7]
    assert {document.file for document in result.documents} == {piece.path}
    assert {document.offset for document in result.documents} == {NO_OFFSET}
    assert result.read_bytes == len("".join(result.texts).encode())
    assert result.rejects == [
        Reject(piece.path, 3, NO_OFFSET, "text_not_a_string", "'text' is null", excerpt="")
    ]


@every_kind
@pytest.mark.parametrize(
    ("key", "reason", "detail"),
    [
        ("txt", "missing_key", "no 'txt' among ['id', 'list', 'meta', 'n', 'text']"),
        ("meta.txt", "missing_key", "no 'txt' among ['text'] in 'meta'"),
        ("text.inner", "not_an_object", "'text' is a column of string"),
        ("meta.text.inner", "not_an_object", "'meta.text' is a column of string"),
        ("n", "text_not_a_string", "'n' is a column of int64"),
        ("list", "text_not_a_string", "'list' is a column of list<"),
        ("meta", "text_not_a_string", "'meta' is a column of struct<text: string>"),
    ],
)
def test_every_row_is_rejected_if_no_column_of_the_key_has_texts(
    tmp_path, write_table, kind, key, reason, detail
):
    columns = {
        "text": ["a"] * 5,
        "n": range(5),
        "list": [["x"]] * 5,
        "meta": [{"text": "m"}] * 5,
        "id": range(5),
    }
    piece = write_table(pa.table(columns), kind, rows_per_batch=2)

    result = read_pieces(tmp_path, piece, text_key=key)

    assert result.documents == []
    assert result.reason_by_line == dict.fromkeys([1, 2, 3, 4, 5], reason)
    assert result.rejects[0].detail.startswith(detail)
    assert result.read_lines == 5


@every_kind
def test_keys_with_dots_name_fields_of_structs(tmp_path, write_table, kind):
    meta = [
        {"text": "a", "id": {"n": 1}},
        None,
        {"text": None, "id": None},
        {"text": "d", "id": {"n": None}},
    ]
    piece = write_table(pa.table({"meta": meta}), kind)

    result = read_pieces(tmp_path, piece, text_key="meta.text", id_key="meta.id.n")

    assert result.documents == [
        ("a", "1", piece.path, 1, NO_OFFSET),
        ("d", None, piece.path, 4, NO_OFFSET),
    ]
    assert result.reason_by_line == {2: "not_an_object", 3: "text_not_a_string"}
    details = [reject.detail for reject in result.rejects]
    assert details == ["'meta' is null", "'meta.text' is null"]


@every_kind
def test_a_column_whose_name_has_a_dot_takes_precedence_over_a_field(tmp_path, write_table, kind):
    table = pa.table({"a": [{"b": "field", "c": 1}], "a.b": ["column"]})
    piece = write_table(table, kind)

    assert read_pieces(tmp_path, piece, text_key="a.b").texts == ["column"]
    assert read_pieces(tmp_path, piece, text_key="a.b", id_key="a.b").ids == ["column"]


@every_kind
def test_a_field_whose_name_has_a_dot_takes_precedence_over_a_deeper_field(
    tmp_path, write_table, kind
):
    value = {"d.e": "field", "d": {"e": "deeper"}}
    piece = write_table(pa.table({"c": [value]}), kind)

    assert read_pieces(tmp_path, piece, text_key="c.d.e").texts == ["field"]


@every_kind
@pytest.mark.parametrize(
    "values",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.binary_view(),
    ],
    ids=str,
)
def test_long_texts_and_texts_that_are_not_utf_8_are_rejected(tmp_path, write_table, kind, values):
    texts = [b"good", b"\xff" + b"x" * 99, None, b"y" * 101, b"\xff", b"z" * 100]
    # Arrow makes no strings of these bytes: view arrays of bytes as strings instead.
    bytes_types = {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}
    column = pa.array(texts, bytes_types.get(values, values)).view(values)
    piece = write_table(pa.table({"text": column}), kind)

    result = read_pieces(tmp_path, piece, max_line_bytes=100)

    assert result.texts == ["good", "z" * 100]
    assert result.lines == [1, 6]
    assert result.reason_by_line == {
        2: "invalid_utf8",
        3: "text_not_a_string",
        4: "line_too_long",
        5: "invalid_utf8",
    }
    not_utf_8, _, too_long, _ = result.rejects
    assert not_utf_8.detail == "byte 0xff at byte 0 of the text: invalid start byte"
    assert not_utf_8.excerpt == "\\xff" + "x" * 99
    assert too_long.detail == "101 bytes"
    assert too_long.excerpt == "y" * 101
    assert result.read_bytes == 4 + 100 + 101 + 1 + 100


# Ids


@every_kind
@pytest.mark.parametrize(
    ("column", "ids"),
    [
        pytest.param(pa.array([7, None, -1], pa.int64()), ["7", None, "-1"], id="int64"),
        pytest.param(
            pa.array([2**64 - 1, None, 0], pa.uint64()),
            ["18446744073709551615", None, "0"],
            id="uint64",
        ),
        pytest.param(pa.array([1.0, math.nan, 0.1]), ["1.0", None, "0.1"], id="double"),
        pytest.param(pa.array([True, None, False]), ["true", None, "false"], id="boolean"),
        pytest.param(pa.array([b"ok", b"\xff!", None]), ["ok", "\\xff!", None], id="bytes"),
        pytest.param(
            pa.array(["x", "", None]).dictionary_encode(), ["x", "", None], id="dictionary"
        ),
        pytest.param(pa.array([[1, 2], None, []]), ["[1, 2]", None, "[]"], id="list"),
        pytest.param(
            pa.array([b"\xff\0", b"ab", None], pa.binary(2)),
            ["\\xff\0", "ab", None],
            id="bytes of a fixed size",
        ),
        pytest.param(
            pa.array([0, 1, None], pa.timestamp("us", "UTC")),
            ["1970-01-01T00:00:00.000000Z", "1970-01-01T00:00:00.000001Z", None],
            id="timestamp",
        ),
    ],
)
def test_ids_of_every_type_are_texts(tmp_path, write_table, kind, column, ids):
    piece = write_table(pa.table({"text": ["a", "b", "c"], "id": column}), kind)

    assert read_pieces(tmp_path, piece).ids == ids


# Required keys


@pytest.fixture
def pairs():
    """A table of three texts a row; only those of the first row are all texts of at most 99 bytes."""
    return pa.table(
        {
            "question": ["q1", None, "q3", "q4", "q5", "q" * 100],
            "answer": pa.array([b"a1", b"a2", b"\xff", None, b"a5", b"a6"]),
            "meta": [
                {"text": "1"},
                {"text": "2"},
                {"text": "3"},
                {"text": "4"},
                None,
                {"text": "6"},
            ],
        }
    )


@every_kind
@pytest.mark.parametrize(
    ("text_key", "required_keys"),
    [
        ("question", ("answer", "meta.text")),
        ("answer", ("question", "meta.text")),
        ("meta.text", ("question", "answer")),
    ],
)
def test_the_same_rows_are_read_for_each_key_if_the_others_are_required(
    tmp_path, write_table, pairs, kind, text_key, required_keys
):
    piece = write_table(pairs, kind, rows_per_batch=4)

    result = read_pieces(
        tmp_path, piece, text_key=text_key, required_keys=required_keys, max_line_bytes=99
    )

    assert result.lines == [1]
    assert list(result.reason_by_line) == [2, 3, 4, 5, 6]


@every_kind
def test_columns_that_are_not_required_do_not_matter(tmp_path, write_table, pairs, kind):
    piece = write_table(pairs, kind, rows_per_batch=4)

    result = read_pieces(tmp_path, piece, text_key="question", required_keys=("answer",))

    assert result.lines == [1, 5, 6]


# Batches


@every_kind
def test_a_range_of_tables_and_lines_is_read_in_order(tmp_path, write_table, write_piece, kind):
    ten_rows = pa.table({"text": ["a" * 600] * 10})
    no_rows = pa.table({"text": pa.array([], pa.string())})
    table = write_table(ten_rows, kind, rows_per_batch=3, stem="first")
    empty_table = write_table(no_rows, kind, stem="second")
    lines = write_piece("third.jsonl", b'{"text": "line"}\n')

    result = read_pieces(tmp_path, table, empty_table, lines, batch_bytes=1000)

    assert result.texts == ["a" * 600] * 10 + ["line"]
    assert Counter(document.file for document in result.documents) == {
        table.path: 10,
        "third.jsonl": 1,
    }
    assert result.documents[-1].offset == 0
    assert len(result.batches) > 1


def test_views_of_one_long_text_are_read_one_by_one(tmp_path, write_table):
    """A small file could otherwise need any amount of memory."""
    n_rows = 20
    text = "a" * (2 << 20)
    # A view is 16 bytes: size of the text, its first four bytes, index of the buffer, offset in it.
    views = np.zeros((n_rows, 4), "<i4")
    views[:, 0] = len(text)
    views[:, 1] = int.from_bytes(b"aaaa", "little")
    buffers = [None, pa.py_buffer(views.tobytes()), pa.py_buffer(text.encode())]
    column = pa.Array.from_buffers(pa.string_view(), n_rows, buffers)
    piece = write_table(pa.table({"text": column}), "file")

    batches = read_documents(tmp_path, SourceRange((piece,)))

    n_texts_by_batch = []
    for batch in batches:
        assert set(batch.texts) <= {text}
        n_texts_by_batch.append(len(batch.texts))
    assert [n_texts for n_texts in n_texts_by_batch if n_texts] == [1] * n_rows


@every_kind
def test_a_large_row_group_is_not_held_in_memory(tmp_path, measure_memory, kind):
    """120 MiB in one row group or record batch."""
    texts = [f"{row:08d}" * 512 for row in range(30_720)]
    table = pa.table({"text": texts})
    del texts
    if kind == "parquet":
        pq.write_table(
            table,
            tmp_path / "a.parquet",
            row_group_size=1 << 30,
            compression="none",
            use_dictionary=False,
        )
    else:
        open_writer = {"file": pa.ipc.new_file, "stream": pa.ipc.new_stream}[kind]
        with open_writer(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
    del table

    measurement = measure_memory(
        "sum(len(batch.texts) for batch in read_documents(folder, source)),"
        "import_parquet(folder, folder / 'out.jsonl.gz').rows"
    )

    assert measurement.value == "(30720, 30720)"
    assert measurement.mib < 100


# Tables and the lines that are imported from them

TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES_BY_TYPE = {
    pa.string(): TEXTS,
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "Europe/Paris"): st.integers(-(10**15), 10**15),
    pa.list_(pa.int8()): st.lists(st.integers(-128, 127), max_size=3),
    pa.struct([("s", pa.string())]): st.fixed_dictionaries({"s": st.none() | TEXTS}),
}


@st.composite
def columns_of(draw, arrow_type, n_rows):
    """Draw an array of some type, with nulls."""
    values = VALUES_BY_TYPE[arrow_type] | st.none()
    return pa.array(draw(st.lists(values, min_size=n_rows, max_size=n_rows)), arrow_type)


@st.composite
def structs_of_text_and_id(draw, n_rows):
    """Draw an array of structs, with nulls and with null fields."""
    is_null = draw(st.lists(st.booleans(), min_size=n_rows, max_size=n_rows))
    texts = draw(columns_of(pa.string(), n_rows))
    ids = draw(columns_of(pa.int32(), n_rows))
    mask = pa.array(is_null, pa.bool_())
    return pa.StructArray.from_arrays([texts, ids], ["text", "id"], mask=mask)


@st.composite
def tables(draw):
    """Draw a table with the columns text, id and m, whose fields are text and id."""
    n_rows = draw(st.integers(0, 12))
    texts = draw(columns_of(pa.string(), n_rows)).to_pylist()
    storage = draw(st.sampled_from(["plain", "large", "view", "binary", "dictionary"]))
    id_type = draw(st.sampled_from(list(VALUES_BY_TYPE)))
    columns = {
        "text": text_array(texts, storage),
        "id": draw(columns_of(id_type, n_rows)),
        "m": draw(structs_of_text_and_id(n_rows)),
    }
    names = draw(st.permutations(list(columns)))
    return pa.table({name: columns[name] for name in names})


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    table=tables(),
    kind=st.sampled_from(TABLE_KINDS),
    rows_per_batch=st.integers(1, 5),
    compression=st.sampled_from([None, "zstd"]),
    text_keys=st.permutations(["text", "m.text"]),
    id_key=st.sampled_from(["id", "m.id", "m", "none"]),
)
def test_a_table_has_the_same_documents_as_the_lines_that_are_imported_from_it(
    tmp_path,
    write_table,
    write_piece,
    kind,
    table,
    rows_per_batch,
    compression,
    text_keys,
    id_key,
):
    text_key, required_key = text_keys
    piece = write_table(table, kind, rows_per_batch=rows_per_batch, compression=compression)
    import_parquet(tmp_path / piece.path, tmp_path / "imported.jsonl")
    imported = write_piece("b.jsonl", (tmp_path / "imported.jsonl").read_bytes())

    for required_keys in ((), (required_key,)):
        keys = {"text_key": text_key, "id_key": id_key, "required_keys": required_keys}
        of_table = read_pieces(tmp_path, piece, **keys)
        of_lines = read_pieces(tmp_path, imported, **keys)

        assert of_table.texts == of_lines.texts
        assert of_table.ids == of_lines.ids
        assert of_table.lines == of_lines.lines
        assert of_table.reason_by_line == of_lines.reason_by_line


# Datasets of Hugging Face


def test_a_saved_dataset_of_hugging_face_is_read_in_the_order_of_its_state():
    folder = SAVED_BY_HUGGING_FACE / "saved"
    state = json.loads((folder / "state.json").read_text())

    inventory = take_inventory(folder, "saved")

    assert list(inventory.files) == [entry["filename"] for entry in state["_data_files"]]


def test_cache_files_of_a_saved_dataset_of_hugging_face_are_not_read():
    inventory = take_inventory(SAVED_BY_HUGGING_FACE / "saved", "saved")

    beginnings = [name.partition("-")[0] for name in inventory.ignored]
    assert beginnings == ["cache", "cache", "dataset_info.json", "state.json"]


def read_saved_dataset(**keys):
    """Read the dataset as it was saved, in several Arrow files."""
    folder = SAVED_BY_HUGGING_FACE / "saved"
    inventory = take_inventory(folder, "saved")
    return read_pieces(folder, *inventory.pieces, **keys)


def read_parquet_file(**keys):
    """Read the same dataset from a Parquet file."""
    size = (SAVED_BY_HUGGING_FACE / "rows.parquet").stat().st_size
    piece = Piece("rows.parquet", 0, size, 1, digest="")
    return read_pieces(SAVED_BY_HUGGING_FACE, piece, verify=False, **keys)


both_forms = pytest.mark.parametrize(
    "read_hugging_face",
    [read_saved_dataset, read_parquet_file],
    ids=["saved dataset", "Parquet"],
)


@both_forms
def test_the_documents_of_a_dataset_of_hugging_face_are_its_rows(read_hugging_face):
    lines = (SAVED_BY_HUGGING_FACE / "rows.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    rows_with_text = [row for row in rows if row["text"] is not None]

    result = read_hugging_face()

    assert result.texts == [row["text"] for row in rows_with_text]
    assert result.ids == [str(row["id"]) for row in rows_with_text]
    assert [reject.reason for reject in result.rejects] == ["text_not_a_string"]


@both_forms
def test_nested_keys_of_a_dataset_of_hugging_face_are_read(read_hugging_face):
    result = read_hugging_face(text_key="meta.url", id_key="meta.n")

    assert result.texts == ["u1", "u2", "u4", "u5", "u6"]
    assert result.ids == ["1", "2", "4", "5", "6"]


# Files that changed, and disks that fail


@pytest.fixture(params=TABLE_KINDS)
def replaced_piece(request, tmp_path, write_table):
    """The piece of a table in whose place is another one of the same size now."""
    piece = write_table(pa.table({"text": ["a"], "id": [1]}), request.param)
    _, other_data = encode_table(pa.table({"text": ["b"], "id": [1]}), request.param)
    (tmp_path / piece.path).write_bytes(other_data)
    return piece


def test_a_table_that_was_replaced_is_an_error(tmp_path, replaced_piece):
    with pytest.raises(SourceChangedError, match="sha256"):
        read_pieces(tmp_path, replaced_piece)


def test_a_table_that_was_replaced_is_read_without_checks_if_requested(tmp_path, replaced_piece):
    assert read_pieces(tmp_path, replaced_piece, verify=False).texts == ["b"]


@every_kind
def test_a_table_that_grew_is_an_error(tmp_path, write_table, kind):
    piece = write_table(pa.table({"text": ["a"], "id": [1]}), kind)
    with (tmp_path / piece.path).open("ab") as file:
        file.write(b"more")

    with pytest.raises(SourceChangedError, match="bytes"):
        read_pieces(tmp_path, piece)


@every_kind
def test_a_table_that_was_deleted_is_an_error(tmp_path, write_table, kind):
    piece = write_table(pa.table({"text": ["a"], "id": [1]}), kind)
    (tmp_path / piece.path).unlink()

    with pytest.raises(MissingError):
        read_pieces(tmp_path, piece)


def test_a_disk_that_fails_is_an_error_and_not_damage_of_the_table(tmp_path):
    (tmp_path / "a.parquet").mkdir()  # reading a folder fails with an error of the system

    with pytest.raises(InputError, match="cannot be read"):
        read_pieces(tmp_path, Piece("a.parquet", 0, 4, 1, ""))
