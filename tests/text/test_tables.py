import io
import random
import subprocess
import sys

import pytest

from helpers.locations import GOLDEN_FILES
from nanoset_core.errors import InputError
from nanoset_core.text import table_documents
from nanoset_core.text.documents import read_documents
from nanoset_core.text.pieces import SourceRange
from nanoset_core.text.tables import read_table

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

KINDS = ["parquet", "file", "stream"]
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
ROWS = [f"row {number} " + "x" * (number % 50) for number in range(200)]
TABLE = pa.table({"text": ROWS, "id": range(200)})


def read(folder, piece):
    batches = list(read_documents(folder, SourceRange((piece,))))
    documents = [
        document for batch in batches for document in zip(batch.lines, batch.texts, strict=True)
    ]
    rejects = [reject for batch in batches for reject in batch.rejects]
    faults = sum(batch.faults for batch in batches)
    assert sum(batch.read_lines for batch in batches) == len(documents) + len(rejects) - faults
    return documents, rejects, faults


def first_rows(count):
    return list(enumerate(ROWS[:count], 1))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_numbered_and_only_chosen_columns_read(tmp_path, as_file, kind):
    name, data = as_file(TABLE, kind, 30)
    (tmp_path / name).write_bytes(data)
    for columns, names in ((None, ["text", "id"]), (["id"], ["id"])):
        read = read_table(
            tmp_path / name,
            lambda _, columns=columns: columns,
            lambda rows, n: (n, rows.schema.names),
        )
        assert list(read) == [(first, names) for first in range(1, 201, 30)]


@pytest.mark.parametrize(("make", "said"), [
    (lambda data: data.removesuffix(END_OF_STREAM), "no end-of-stream mark"),
    (lambda data: data + data, "{size} bytes follow the end of the stream at byte {size}"),
    (lambda _: old_stream(), None),
])  # fmt: skip
def test_how_a_stream_ends(tmp_path, stored, as_file, make, said):
    name, data = as_file(TABLE, "stream")
    documents, rejects, _ = read(tmp_path, stored(name, make(data)))
    assert documents == first_rows(200)
    assert len(rejects) == (said is not None)
    assert said is None or said.format(size=f"{len(data):,}") in rejects[0].detail


def old_stream():
    """As Arrow wrote it before 0.15."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(
        sink, TABLE.schema, options=pa.ipc.IpcWriteOptions(use_legacy_format=True)
    ) as writer:
        writer.write_table(TABLE)
    return sink.getvalue().to_pybytes()


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a.parquet", "corrupt_parquet"),
        ("a.arrow", "corrupt_arrow"),
        ("b/c.arrow", "corrupt_arrow"),
    ],
)
@pytest.mark.parametrize(
    "data",
    [b"", b"P", b"PAR1PAR1", b"ARROW1", b"ARROW1\0\0", b"\xff" * 100, b"\0" * 9, b"{}\n" * 9],
)
def test_no_table_at_all(tmp_path, stored, name, reason, data):
    documents, rejects, faults = read(tmp_path, stored(name, data))
    assert (documents, faults) == ([], 1)
    assert [(reject.line, reject.offset, reject.reason, reject.excerpt) for reject in rejects] == [
        (1, -1, reason, "")
    ]
    assert rejects[0].detail.endswith("; nothing was read from row 1 on")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_row_groups_before_a_damaged_one_are_kept(tmp_path, stored, as_file, compression):
    name, data = as_file(TABLE, "parquet", 50, compression)
    chunk = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(2).column(0)
    damaged = bytearray(data)
    begin = chunk.dictionary_page_offset or chunk.data_page_offset
    damaged[begin : begin + 30] = b"\xff" * 30
    documents, rejects, faults = read(tmp_path, stored(name, bytes(damaged)))
    assert documents == first_rows(100)
    assert faults == 1
    assert [(reject.line, reject.reason) for reject in rejects] == [(101, "corrupt_parquet")]


def test_page_with_a_wrong_checksum(tmp_path, stored):
    sink = io.BytesIO()
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(TABLE, sink, row_group_size=100, **options)
    data = sink.getvalue()
    at = data.index(b"row 151 x")
    documents, rejects, _ = read(tmp_path, stored("a.parquet", data[:at] + b"R" + data[at + 1 :]))
    assert documents == first_rows(100)
    assert rejects[0].reason == "corrupt_parquet"


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize("kind", ["file", "stream"])
def test_every_truncation_of_an_arrow_file_keeps_whole_batches(
    tmp_path, stored, as_file, kind, compression
):
    table = TABLE.slice(0, 40)
    name, data = as_file(table, kind, 10, compression)
    seen = set()
    for size in range(0, len(data), 7):
        documents, rejects, faults = read(tmp_path, stored(name, data[:size]))
        assert faults == 1
        assert len(documents) % 10 == 0
        assert documents == first_rows(len(documents))
        assert (rejects[0].line, rejects[0].reason) == (len(documents) + 1, "corrupt_arrow")
        seen.add(len(documents))
    assert seen == ({0} if kind == "file" else {0, 10, 20, 30, 40}), (
        "a file's footer tells of its batches"
    )
    assert read(tmp_path, stored(name, data))[0] == first_rows(40)


@pytest.mark.parametrize("seed", range(60))
def test_damage_anywhere_loses_nothing_silently(tmp_path, stored, as_file, seed):
    """Whatever byte is wrong: no crash, counts that add up, and every row or a fault."""
    rng = random.Random(seed)
    kind = KINDS[seed % 3]
    name, data = as_file(TABLE, kind, rng.choice([9, 70, 1000]), rng.choice([None, "zstd"]))
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    documents, rejects, faults = read(tmp_path, stored(name, bytes(damaged)))
    assert faults in (0, 1)
    assert [line for line, _ in documents] == sorted(line for line, _ in documents)
    if not faults and not rejects and kind == "parquet":
        assert len(documents) == 200
    if faults:
        assert rejects[-1].reason == ("corrupt_parquet" if kind == "parquet" else "corrupt_arrow")
        assert rejects[-1].line > len(documents)


def test_metadata_at_which_pyarrow_aborts(tmp_path):
    """In a process of its own, which must live to tell of the fault."""
    golden = GOLDEN_FILES / "tables" / "bad-histogram.parquet"
    code = (
        "import sys; from pathlib import Path; from nanoset_core.text.tables import read_table\n"
        "try: list(read_table(Path(sys.argv[1]), lambda schema: ['text', 'id'], lambda rows, "
        "first: rows))\n"
        "except Exception as error: print(error.reason)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, golden], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "corrupt_parquet"), done.stderr


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_a_small_file_that_repeats_a_long_text(tmp_path, stored, kind):
    text = "x" * (4 << 20)
    if kind == "parquet":
        data = (GOLDEN_FILES / "tables" / "repeats.parquet").read_bytes()
        assert len(data) == 396
    else:
        column = pa.DictionaryArray.from_arrays(
            pa.array([0] * 2000, pa.int32()), pa.array([text] + ["y"] * 9000)
        )
        sink = io.BytesIO()
        with pa.ipc.new_file(sink, pa.schema([("text", column.type)])) as writer:
            writer.write_table(pa.table({"text": column}))
        data = sink.getvalue()
        del column, sink
    piece = stored(f"bomb.{kind}", data)
    before = pa.total_allocated_bytes()
    batches = read_documents(tmp_path, SourceRange((piece,)))
    for _ in range(3):
        batch = next(batches)
        assert set(map(len, batch.texts)) == {len(text)}
        assert len(batch.texts) <= 4
        assert pa.total_allocated_bytes() - before < 600 << 20
    batches.close()


def test_rows_without_columns_are_counted(tmp_path, stored, as_file):
    piece = stored(*as_file(pa.table({"other": range(20)}), "parquet", 6))
    _, rejects, faults = read(tmp_path, piece)
    assert ([reject.line for reject in rejects], faults) == (list(range(1, 21)), 0)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "error", [MemoryError("no room"), pa.ArrowMemoryError("malloc of size 5 failed")]
)
@pytest.mark.parametrize("place", ["texts_at", "ids_of"])
def test_no_room_is_no_fault_of_the_file(
    tmp_path, stored, as_file, monkeypatch, kind, error, place
):
    """Were it kept aside as one, a larger machine would give other bytes."""

    def fail(*_):
        raise error

    piece = stored(*as_file(TABLE, kind))
    monkeypatch.setattr(table_documents, place, fail)
    with pytest.raises(InputError, match="more memory than is available") as caught:
        read(tmp_path, piece)
    assert caught.value.where == str(tmp_path / piece.path)


def test_a_dictionary_s_indices_are_checked(tmp_path, stored):
    text = pa.DictionaryArray.from_arrays(
        pa.array([0, 1, 0, 9], pa.int32()), pa.array(["a", "b"]), safe=False
    )
    with pa.ipc.new_file(tmp_path / "x.arrow", pa.schema({"text": text.type})) as writer:
        writer.write_batch(pa.record_batch({"text": text}))
    documents, [reject], faults = read(
        tmp_path, stored("x.arrow", (tmp_path / "x.arrow").read_bytes())
    )
    assert (documents, reject.reason, faults) == ([], "corrupt_arrow", 1)
    with pytest.raises(pa.ArrowInvalid) as caught:
        text.validate(full=True)
    assert str(caught.value)[:60] in reject.detail


def test_texts_with_runs_of_zero_bytes_are_counted(tmp_path, stored, as_file):
    texts = ["whole", "a\0b", "x" + "\0" * 8, "\0" * 500, ""]
    piece = stored(*as_file(pa.table({"text": texts}), "parquet"))
    (batch,) = read_documents(tmp_path, SourceRange((piece,)))
    assert (batch.texts, batch.texts_with_zeros) == (texts, {"a.parquet": 2})
