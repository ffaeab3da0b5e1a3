import json
import math

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import InputError, MissingError, SourceChangedError
from nanoset_core.text.documents import read_documents
from nanoset_core.text.importing import import_parquet
from nanoset_core.text.inventories import take_inventory
from nanoset_core.text.pieces import Piece, SourceRange

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

GOLDEN = GOLDEN_FILES / "datasets"
KINDS = ["parquet", "file", "stream"]


def read(folder, *pieces, **options):
    """(text, id, file, row) of each document, rejects, batches; counts add up and rows have no
    offsets.
    """
    source = SourceRange(pieces)
    batches = list(read_documents(folder, source, **options))
    documents = []
    for batch in batches:
        files = [source.files[number] for number in batch.files]
        documents += zip(batch.texts, batch.ids, files, batch.lines, strict=True)
        assert batch.read_lines == len(batch.texts) + len(batch.rejects) - batch.faults
        assert set(batch.offsets) <= {-1}
    return documents, [reject for batch in batches for reject in batch.rejects], batches


def encode(texts, how):
    array = pa.array(texts, pa.string())
    if how == "dictionary":
        return array.dictionary_encode()
    if how == "runs":
        starts = list(range(1, len(texts) + 1))
        return pa.RunEndEncodedArray.from_arrays(pa.array(starts, pa.int32()), array)
    if how == "binary":
        return array.cast(pa.binary())
    return pa.array(
        texts, {"large": pa.large_string(), "view": pa.string_view()}.get(how, pa.string())
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("how", ["plain", "large", "view", "binary", "dictionary", "runs"])
@pytest.mark.parametrize("compression", [None, "zstd"])
def test_texts_however_they_are_stored(tmp_path, stored, as_file, kind, how, compression):
    texts = ["naïve", "", None, "nul \0 inside", "日本\u2028", "naïve", "\U0001f600" * 50]
    if (kind, how) == ("parquet", "runs"):
        pytest.skip("Parquet has no run-end encoding")
    table = pa.table(
        {"other": range(7), "text": encode(texts, how), "id": [f"i{n}" for n in range(7)]}
    )
    for rows in (2, 1000):
        documents, rejects, batches = read(
            tmp_path, stored(*as_file(table, kind, rows, compression))
        )
        name = "a.parquet" if kind == "parquet" else "a.arrow"
        expected = [
            (text, f"i{row}", name, row + 1) for row, text in enumerate(texts) if text is not None
        ]
        assert documents == expected
        assert [(r.file, r.line, r.offset, r.reason, r.detail, r.excerpt) for r in rejects] == [
            (name, 3, -1, "text_not_a_string", "'text' is null", "")
        ]
        assert sum(batch.read_bytes for batch in batches) == sum(
            len((text or "").encode()) for text in texts
        )


@pytest.mark.parametrize("kind", KINDS)
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
def test_no_such_text_rejects_every_row(tmp_path, stored, as_file, kind, key, reason, detail):
    table = pa.table(
        {
            "text": ["a"] * 5,
            "n": range(5),
            "list": [["x"]] * 5,
            "meta": [{"text": "m"}] * 5,
            "id": range(5),
        }
    )
    documents, rejects, batches = read(tmp_path, stored(*as_file(table, kind, 2)), text_key=key)
    assert documents == []
    assert [(r.line, r.reason) for r in rejects] == [(row, reason) for row in range(1, 6)]
    assert rejects[0].detail.startswith(detail)
    assert sum(batch.read_lines for batch in batches) == 5


@pytest.mark.parametrize("kind", KINDS)
def test_nested_columns(tmp_path, stored, as_file, kind):
    meta = [
        {"text": "a", "id": {"n": 1}},
        None,
        {"text": None, "id": None},
        {"text": "d", "id": {"n": None}},
    ]
    documents, rejects, _ = read(
        tmp_path,
        stored(*as_file(pa.table({"meta": meta}), kind)),
        text_key="meta.text",
        id_key="meta.id.n",
    )
    assert documents == [("a", "1", documents[0][2], 1), ("d", None, documents[0][2], 4)]
    assert [(r.line, r.reason, r.detail) for r in rejects] == [
        (2, "not_an_object", "'meta' is null"),
        (3, "text_not_a_string", "'meta.text' is null"),
    ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_column_that_is_named_with_the_dot_wins(tmp_path, stored, as_file, kind):
    table = pa.table(
        {"a": [{"b": "deep", "c": 1}], "a.b": ["flat"], "c": [{"d.e": "x", "d": {"e": "y"}}]}
    )
    piece = stored(*as_file(table, kind))
    assert read(tmp_path, piece, text_key="a.b")[0][0][0] == "flat"
    assert read(tmp_path, piece, text_key="c.d.e", id_key="a.b")[0][0][:2] == ("x", "flat")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("column", "ids"),
    [
        (pa.array([7, None, -1], pa.int64()), ["7", None, "-1"]),
        (pa.array([2**64 - 1, None, 0], pa.uint64()), [str(2**64 - 1), None, "0"]),
        (pa.array([1.0, math.nan, 0.1]), ["1.0", None, "0.1"]),
        (pa.array([True, None, False]), ["true", None, "false"]),
        (pa.array([b"ok", b"\xff!", None]), ["ok", "\\xff!", None]),
        (pa.array(["x", "", None]).dictionary_encode(), ["x", "", None]),
        (pa.array([[1, 2], None, []]), ["[1, 2]", None, "[]"]),
        (pa.array([b"\xff\0", b"ab", None], pa.binary(2)), ["\\xff\0", "ab", None]),
        (
            pa.array([0, 1, None], pa.timestamp("us", "UTC")),
            [f"1970-01-01T00:00:00.00000{n}Z" for n in (0, 1)] + [None],
        ),
    ],
)
def test_ids(tmp_path, stored, as_file, kind, column, ids):
    piece = stored(*as_file(pa.table({"text": ["a", "b", "c"], "id": column}), kind))
    assert [document[1] for document in read(tmp_path, piece)[0]] == ids


@pytest.mark.parametrize("kind", KINDS)
def test_required_columns_keep_pairs_aligned(tmp_path, stored, as_file, kind):
    table = pa.table(
        {
            "q": ["q1", None, "q3", "q4", "q5", "q" * 100],
            "a": pa.array([b"a1", b"a2", b"\xff", None, b"a5", b"a6"]),
            "m": [{"t": "1"}, {"t": "2"}, {"t": "3"}, {"t": "4"}, None, {"t": "6"}],
        }
    )
    piece = stored(*as_file(table, kind, 4))
    keys = ("q", "a", "m.t")
    for key in keys:
        others = tuple(other for other in keys if other != key)
        documents, rejects, _ = read(
            tmp_path, piece, text_key=key, required_keys=others, max_line_bytes=99
        )
        assert [document[3] for document in documents] == [1]
        assert [reject.line for reject in rejects] == [2, 3, 4, 5, 6]
    assert [
        document[3] for document in read(tmp_path, piece, text_key="q", required_keys=("a",))[0]
    ] == [1, 5, 6]


@pytest.mark.parametrize("kind", KINDS)
def test_batches_and_files_of_a_range(tmp_path, stored, as_file, kind):
    first = stored(*as_file(pa.table({"text": ["a" * 600] * 10}), kind, 3, stem="first"))
    empty = stored(*as_file(pa.table({"text": pa.array([], pa.string())}), kind, stem="second"))
    lines = stored("third.jsonl", b'{"text": "line"}\n')
    source = SourceRange((first, empty, lines))
    batches = list(read_documents(tmp_path, source, batch_bytes=1000))
    assert [text for batch in batches for text in batch.texts] == ["a" * 600] * 10 + ["line"]
    assert len(batches) > 1
    assert batches[-1].files[-1] == 2
    assert batches[-1].offsets[-1] == 0


TEXTS = st.text(st.characters(codec="utf-8"), max_size=8)
SCALARS = {
    pa.string(): TEXTS,
    pa.int32(): st.integers(-(2**31), 2**31 - 1),
    pa.float64(): st.floats(),
    pa.bool_(): st.booleans(),
    pa.timestamp("us", "Europe/Paris"): st.integers(-(10**15), 10**15),
    pa.list_(pa.int8()): st.lists(st.integers(-128, 127), max_size=3),
    pa.struct([("s", pa.string())]): st.fixed_dictionaries({"s": st.none() | TEXTS}),
}


@st.composite
def tables(draw):
    rows = draw(st.integers(0, 12))

    def column(type_, nulls=True):
        values = SCALARS[type_] | st.none() if nulls else SCALARS[type_]
        return pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), type_)

    how = draw(st.sampled_from(["plain", "large", "view", "binary", "dictionary"]))
    columns = {
        "text": encode(column(pa.string()).to_pylist(), how),
        "id": column(draw(st.sampled_from(list(SCALARS)))),
        "m": pa.StructArray.from_arrays(
            [column(pa.string()), column(pa.int32())],
            ["text", "id"],
            mask=pa.array(draw(st.lists(st.booleans(), min_size=rows, max_size=rows)), pa.bool_()),
        ),
    }
    names = draw(st.permutations(list(columns)))
    return pa.table({name: columns[name] for name in names})


@settings(
    max_examples=120, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    table=tables(),
    kind=st.sampled_from(KINDS),
    rows=st.integers(1, 5),
    compression=st.sampled_from([None, "zstd"]),
    keys=st.permutations(["text", "m.text"]),
    id_key=st.sampled_from(["id", "m.id", "m", "none"]),
)
def test_reading_a_table_is_reading_what_import_makes_of_it(
    tmp_path, stored, as_file, table, kind, rows, compression, keys, id_key
):
    name, data = as_file(table, kind, rows, compression)
    piece = stored(name, data)
    import_parquet(tmp_path / name, tmp_path / "b.jsonl")
    lines = stored("b.jsonl", (tmp_path / "b.jsonl").read_bytes())
    for required in ((), (keys[1],)):
        options = {"text_key": keys[0], "id_key": id_key, "required_keys": required}
        documents, rejects, _ = read(tmp_path, piece, **options)
        batches = list(read_documents(tmp_path, SourceRange((lines,)), **options))
        assert [(text, identity, row) for text, identity, _, row in documents] == [
            document
            for batch in batches
            for document in zip(batch.texts, batch.ids, batch.lines, strict=True)
        ]
        assert [(r.line, r.reason) for r in rejects] == [
            (r.line, r.reason) for batch in batches for r in batch.rejects
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_changed_file_is_an_error(tmp_path, stored, as_file, kind):
    name, data = as_file(pa.table({"text": ["a"], "id": [1]}), kind)
    piece = stored(name, data)
    (tmp_path / name).write_bytes(as_file(pa.table({"text": ["b"], "id": [1]}), kind)[1])
    with pytest.raises(SourceChangedError, match="sha256"):
        read(tmp_path, piece)
    assert read(tmp_path, piece, verify=False)[0][0][0] == "b"
    (tmp_path / name).write_bytes(data + b"more")
    with pytest.raises(SourceChangedError, match="bytes"):
        read(tmp_path, piece)
    (tmp_path / name).unlink()
    with pytest.raises(MissingError):
        read(tmp_path, piece)


def test_disk_errors_are_not_taken_for_damage(tmp_path):
    (tmp_path / "a.parquet").mkdir()
    with pytest.raises(InputError, match="cannot be read"):
        read(tmp_path, Piece("a.parquet", 0, 4, 1, ""))


def test_saved_dataset_of_hugging_face():
    """The rows of data-*.arrow, in the order of state.json, and nothing of the cache files."""
    inventory = take_inventory(GOLDEN / "saved", "saved")
    listed = json.loads((GOLDEN / "saved" / "state.json").read_text())["_data_files"]
    assert list(inventory.files) == [entry["filename"] for entry in listed]
    assert [name.partition("-")[0] for name in inventory.ignored] == [
        "cache",
        "cache",
        "dataset_info.json",
        "state.json",
    ]
    rows = [json.loads(line) for line in (GOLDEN / "rows.jsonl").read_text().splitlines()]
    parquet = Piece("rows.parquet", 0, (GOLDEN / "rows.parquet").stat().st_size, 1, "")
    for folder, pieces, verify in (
        (GOLDEN / "saved", inventory.pieces, True),
        (GOLDEN, [parquet], False),
    ):
        documents, rejects, _ = read(folder, *pieces, verify=verify)
        assert [document[:2] for document in documents] == [
            (row["text"], str(row["id"])) for row in rows if row["text"] is not None
        ]
        assert [reject.reason for reject in rejects] == ["text_not_a_string"]
        urls, _, _ = read(folder, *pieces, verify=verify, text_key="meta.url", id_key="meta.n")
        assert [url[:2] for url in urls] == [
            ("u1", "1"),
            ("u2", "2"),
            ("u4", "4"),
            ("u5", "5"),
            ("u6", "6"),
        ]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_group_is_not_held(tmp_path, measured, kind):
    """120 MiB in one row group or record batch."""
    table = pa.table({"text": pa.array([f"{row:08d}" * 512 for row in range(30_720)])})
    if kind == "parquet":
        pq.write_table(
            table,
            tmp_path / "a.parquet",
            row_group_size=1 << 30,
            compression="none",
            use_dictionary=False,
        )
    else:
        opened = pa.ipc.new_file if kind == "file" else pa.ipc.new_stream
        with opened(tmp_path / "a.arrow", table.schema) as writer:
            writer.write_table(table)
    del table
    value, mib = measured(
        "sum(len(batch.texts) for batch in read_documents(folder, source)),"
        "import_parquet(folder, folder / 'out.jsonl.gz').rows"
    )
    assert value == "(30720, 30720)"
    assert mib < 100


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "type_", [pa.string(), pa.large_string(), pa.binary(), pa.large_binary(), pa.binary_view()]
)
def test_long_texts_among_others(tmp_path, stored, as_file, kind, type_):
    """Also where one is not UTF-8, or null."""
    data = [b"good", b"\xff" + b"x" * 99, None, b"y" * 101, b"\xff", b"z" * 100]
    column = pa.array(
        data, {pa.string(): pa.binary(), pa.large_string(): pa.large_binary()}.get(type_, type_)
    )
    column = column if column.type == type_ else column.view(type_)
    piece = stored(*as_file(pa.table({"text": column}), kind))
    documents, rejects, batches = read(tmp_path, piece, max_line_bytes=100)
    assert [(text, row) for text, _, _, row in documents] == [("good", 1), ("z" * 100, 6)]
    assert [(r.line, r.reason) for r in rejects] == [
        (2, "invalid_utf8"),
        (3, "text_not_a_string"),
        (4, "line_too_long"),
        (5, "invalid_utf8"),
    ]
    assert (rejects[2].excerpt, rejects[2].detail) == ("y" * 101, "101 bytes")
    assert rejects[0].detail == "byte 0xff at byte 0 of the text: invalid start byte"
    assert rejects[0].excerpt == "\\xff" + "x" * 99
    assert sum(batch.read_bytes for batch in batches) == sum(map(len, filter(None, data)))


def test_views_of_one_long_text_come_one_by_one(tmp_path, stored, as_file):
    text = "a" * (2 << 20)
    views = np.zeros((20, 4), "<i4")
    views[:, 0], views[:, 1] = len(text), int.from_bytes(b"aaaa", "little")
    buffers = [None, pa.py_buffer(views.tobytes()), pa.py_buffer(text.encode())]
    column = pa.Array.from_buffers(pa.string_view(), 20, buffers)
    _, _, batches = read(tmp_path, stored(*as_file(pa.table({"text": column}), "file")))
    assert [len(batch.texts) for batch in batches if batch.texts] == [1] * 20
    assert all(one == text for batch in batches for one in batch.texts)
