"""Tables in Parquet and Arrow files: rows in order, and one fault for what a damaged file has lost."""

import io
import random
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from helpers.locations import GOLDEN_FILES
from helpers.read_pieces import read_pieces
from helpers.table_files import TABLE_KINDS, encode_table
from nanoset_core.errors import InputError
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.rejects import NO_OFFSET
from nanoset_core.text.tables import documents as table_documents
from nanoset_core.text.tables.rows import read_table

GOLDEN = GOLDEN_FILES / "tables"
N_ROWS = 200
TEXTS = [f"row {number} " + "x" * (number % 50) for number in range(N_ROWS)]
TABLE = pa.table({"text": TEXTS, "id": range(N_ROWS)})
END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of an Arrow stream that was written to its end."""

every_kind = pytest.mark.parametrize("kind", TABLE_KINDS)


def check_first_rows(result, n_rows):
    """Check that the first rows of TABLE were read, and no others."""
    assert result.lines == list(range(1, n_rows + 1))
    assert result.texts == TEXTS[:n_rows]


# Rows and columns


@every_kind
@pytest.mark.parametrize(
    ("columns", "read_columns"),
    [
        pytest.param(None, ["text", "id"], id="all"),
        pytest.param(["id"], ["id"], id="one"),
    ],
)
def test_rows_are_numbered_and_only_the_chosen_columns_are_read(
    tmp_path, write_table, kind, columns, read_columns
):
    piece = write_table(TABLE, kind, rows_per_batch=30)

    def choose(schema):
        return columns

    def convert(rows, first_row):
        assert rows.schema.names == read_columns
        return first_row

    first_rows = list(read_table(tmp_path / piece.path, choose, convert))

    assert first_rows == [1, 31, 61, 91, 121, 151, 181]


def test_rows_without_any_of_the_columns_are_counted(tmp_path, write_table):
    piece = write_table(pa.table({"other": range(20)}), "parquet", rows_per_batch=6)

    result = read_pieces(tmp_path, piece)

    assert list(result.reason_by_line) == list(range(1, 21))
    assert result.n_faults == 0


def test_texts_with_many_zero_bytes_in_sequence_are_counted(tmp_path, write_table):
    texts = ["whole", "a\0b", "x" + "\0" * 8, "\0" * 500, ""]
    piece = write_table(pa.table({"text": texts}), "parquet")

    [batch] = read_documents(tmp_path, SourceRange((piece,)))

    assert batch.texts == texts
    assert batch.texts_with_zeros == {"a.parquet": 2}


# Ends of streams


def test_a_stream_that_was_written_before_arrow_0_15_is_read(tmp_path, write_piece):
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(use_legacy_format=True)
    with pa.ipc.new_stream(sink, TABLE.schema, options=options) as writer:
        writer.write_table(TABLE)
    piece = write_piece("a.arrow", sink.getvalue().to_pybytes())

    result = read_pieces(tmp_path, piece)

    check_first_rows(result, N_ROWS)
    assert result.rejects == []


def test_a_stream_without_its_end_has_a_fault_after_all_rows(tmp_path, write_piece):
    """Whether more record batches should follow is unknown."""
    name, data = encode_table(TABLE, "stream")
    assert data.endswith(END_OF_STREAM)
    piece = write_piece(name, data.removesuffix(END_OF_STREAM))

    result = read_pieces(tmp_path, piece)

    check_first_rows(result, N_ROWS)
    [fault] = result.rejects
    assert "no end-of-stream mark" in fault.detail


def test_bytes_after_a_stream_are_a_fault(tmp_path, write_piece):
    """They may be another stream, whose rows would be lost."""
    name, data = encode_table(TABLE, "stream")
    size = f"{len(data):,}"

    result = read_pieces(tmp_path, write_piece(name, data + data))

    check_first_rows(result, N_ROWS)
    [fault] = result.rejects
    assert f"{size} bytes follow the end of the stream at byte {size}" in fault.detail


# Damage


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
def test_a_file_that_is_no_table_is_one_fault(tmp_path, write_piece, name, reason, data):
    result = read_pieces(tmp_path, write_piece(name, data))

    assert result.documents == []
    assert result.n_faults == 1
    [fault] = result.rejects
    assert fault.line == 1
    assert fault.offset == NO_OFFSET
    assert fault.reason == reason
    assert fault.excerpt == ""
    assert fault.detail.endswith("; nothing was read from row 1 on")


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_row_groups_before_a_damaged_one_are_kept(tmp_path, write_piece, compression):
    name, data = encode_table(TABLE, "parquet", rows_per_batch=50, compression=compression)
    chunk = pq.ParquetFile(io.BytesIO(data)).metadata.row_group(2).column(0)
    start = chunk.dictionary_page_offset or chunk.data_page_offset
    damaged = data[:start] + b"\xff" * 30 + data[start + 30 :]

    result = read_pieces(tmp_path, write_piece(name, damaged))

    check_first_rows(result, 100)
    assert result.n_faults == 1
    assert result.reason_by_line == {101: "corrupt_parquet"}


def test_the_checksums_of_parquet_pages_are_compared(tmp_path, write_piece):
    sink = io.BytesIO()
    pq.write_table(
        TABLE,
        sink,
        row_group_size=100,
        compression="none",
        use_dictionary=False,
        write_page_checksum=True,
    )
    data = sink.getvalue()
    assert data.count(b"row 151 x") == 1
    piece = write_piece("a.parquet", data.replace(b"row 151 x", b"Row 151 x"))

    result = read_pieces(tmp_path, piece)

    check_first_rows(result, 100)
    assert result.rejects[0].reason == "corrupt_parquet"


@pytest.mark.parametrize("compression", [None, "lz4"])
@pytest.mark.parametrize(
    ("kind", "possible_counts"),
    [
        pytest.param("file", {0}, id="file"),  # the index of its batches is at its end
        pytest.param("stream", {0, 10, 20, 30, 40}, id="stream"),
    ],
)
def test_the_whole_batches_of_an_arrow_file_that_was_cut_off_are_kept(
    tmp_path, write_piece, kind, possible_counts, compression
):
    table = TABLE.slice(0, 40)
    name, data = encode_table(table, kind, rows_per_batch=10, compression=compression)

    counts = set()
    for size in [*range(0, len(data), 23), len(data) - 1]:
        result = read_pieces(tmp_path, write_piece(name, data[:size]))
        n_documents = len(result.documents)
        counts.add(n_documents)
        check_first_rows(result, n_documents)
        assert result.n_faults == 1
        assert result.reason_by_line == {n_documents + 1: "corrupt_arrow"}
    assert counts == possible_counts

    check_first_rows(read_pieces(tmp_path, write_piece(name, data)), 40)


REASON_OF_DAMAGE = {
    "parquet": "corrupt_parquet",
    "file": "corrupt_arrow",
    "stream": "corrupt_arrow",
}


def flip_bits(data, rng):
    """Return bytes with one wrong bit, or with up to four."""
    damaged = bytearray(data)
    for _ in range(rng.choice([1, 1, 4])):
        damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


@pytest.mark.parametrize("seed", range(60))
def test_damage_anywhere_loses_nothing_without_a_fault(tmp_path, write_piece, seed):
    """Whatever byte is wrong: no crash, counts that add up, and every row or a fault."""
    rng = random.Random(seed)
    kind = TABLE_KINDS[seed % 3]
    rows_per_batch = rng.choice([9, 70, 1000])
    compression = rng.choice([None, "zstd"])
    name, data = encode_table(TABLE, kind, rows_per_batch=rows_per_batch, compression=compression)
    piece = write_piece(name, flip_bits(data, rng))

    result = read_pieces(tmp_path, piece)

    assert result.n_faults in (0, 1)
    assert result.lines == sorted(result.lines)
    if kind == "parquet" and not result.rejects:
        assert len(result.documents) == N_ROWS
    if result.n_faults:
        fault = result.rejects[-1]
        assert fault.reason == REASON_OF_DAMAGE[kind]
        assert fault.line > len(result.documents)


READING_CODE = """
import sys
from pathlib import Path
from nanoset_core.text.tables.rows import read_table
rows = read_table(Path(sys.argv[1]), lambda schema: ["text", "id"], lambda rows, first_row: rows)
try:
    list(rows)
except Exception as error:
    print(error.reason)
"""


def test_metadata_at_which_pyarrow_aborts_the_process_is_a_fault():
    command = [sys.executable, "-c", READING_CODE, str(GOLDEN / "bad-histogram.parquet")]

    process = subprocess.run(command, capture_output=True, text=True, check=False)

    assert process.returncode == 0, process.stderr
    assert process.stdout == "corrupt_parquet\n"


def test_the_indices_of_a_dictionary_are_checked(tmp_path, write_piece):
    """Arrow does not check them when it reads a file."""
    indices = pa.array([0, 1, 0, 9], pa.int32())  # 9 is beyond the dictionary
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["a", "b"]), safe=False)
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, pa.schema({"text": column.type})) as writer:
        writer.write_batch(pa.record_batch({"text": column}))
    with pytest.raises(pa.ArrowInvalid) as caught:
        column.validate(full=True)
    message_of_arrow = str(caught.value)

    result = read_pieces(tmp_path, write_piece("x.arrow", sink.getvalue()))

    assert result.documents == []
    assert result.n_faults == 1
    [fault] = result.rejects
    assert fault.reason == "corrupt_arrow"
    assert message_of_arrow[:60] in fault.detail


# Memory

MAX_ALLOCATED_BYTES = 600 << 20


def check_batches_are_small(folder, piece, text):
    """Check that a table of one long text that is repeated is read a few rows at a time."""
    bytes_before = pa.total_allocated_bytes()
    batches = read_documents(folder, SourceRange((piece,)))
    for _ in range(3):
        batch = next(batches)
        assert {len(read_text) for read_text in batch.texts} == {len(text)}
        assert len(batch.texts) <= 4
        assert pa.total_allocated_bytes() - bytes_before < MAX_ALLOCATED_BYTES
    batches.close()


def test_a_small_parquet_file_that_repeats_a_long_text_is_read_in_small_batches(
    tmp_path, write_piece
):
    data = (GOLDEN / "repeats.parquet").read_bytes()
    assert len(data) == 396

    check_batches_are_small(tmp_path, write_piece("bomb.parquet", data), "x" * (4 << 20))


def test_a_small_arrow_file_that_repeats_a_long_text_is_read_in_small_batches(
    tmp_path, write_piece
):
    text = "x" * (4 << 20)
    indices = pa.array([0] * 2000, pa.int32())
    column = pa.DictionaryArray.from_arrays(indices, pa.array([text] + ["y"] * 9000))
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, pa.schema([("text", column.type)])) as writer:
        writer.write_table(pa.table({"text": column}))
    piece = write_piece("bomb.arrow", sink.getvalue())
    del column, sink

    check_batches_are_small(tmp_path, piece, text)


@every_kind
@pytest.mark.parametrize(
    "error",
    [MemoryError("no room"), pa.ArrowMemoryError("malloc of size 5 failed")],
    ids=["Python", "Arrow"],
)
@pytest.mark.parametrize("function", ["texts_at", "ids_of"])
def test_a_lack_of_memory_is_an_error_and_not_damage_of_the_file(
    tmp_path, write_table, monkeypatch, kind, error, function
):
    """If it were recorded as damage, a larger machine would produce other bytes."""

    def fail(*_):
        raise error

    piece = write_table(TABLE, kind)
    monkeypatch.setattr(table_documents, function, fail)

    with pytest.raises(InputError, match="more memory than is available") as caught:
        read_pieces(tmp_path, piece)

    assert caught.value.where == str(tmp_path / piece.path)
