"""Rows of CSV and TSV files are those of Python's csv module, with a reject for every other row."""

from __future__ import annotations

import csv
import gzip
import io
import tempfile
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from helpers.read_pieces import read_pieces
from nanoset_core.text.files.listing import stat_file
from nanoset_core.text.inventory.pieces import unchecked_piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables import csv_rows
from nanoset_core.text.tables.csv_rows import read_csv
from nanoset_core.text.tables.documents import json_texts_as_values
from nanoset_core.text.tables.values import as_type, joined, kind_of, type_of


def all_columns(_schema):
    """Choose all columns of a table."""
    return


def rows_of(data, name="a.csv"):
    """Return the rows of a file as texts by column, None for each wrong row, and its fault."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / name).write_bytes(data)
        file = stat_file(Path(folder), name)
        stored = StoredPiece(Path(folder), unchecked_piece(file.path, file.size))
        rows = []
        fault = None
        try:
            for part in read_csv(stored, all_columns):
                assert part.first_row == len(rows) + 1
                if part.rows is None:
                    rows.append(None)
                    continue
                for row in part.rows.to_pylist():
                    rows.append([value.decode() for value in row.values()])
        except FaultError as error:
            fault = error
        return rows, fault


def expected_rows(data, delimiter=","):
    """Return the rows after the header as Python's csv module reads them, None for each wrong row."""
    records = [
        row
        for row in csv.reader(io.StringIO(data.decode(), newline=""), delimiter=delimiter)
        if row
    ]
    n_columns = len(records[0]) if records else 0
    return [row if len(row) == n_columns else None for row in records[1:]]


def test_the_parts_of_a_long_line_are_joined_once(monkeypatch):
    split_lengths = []
    split_lines = csv_rows._split_lines

    def note_length(text):
        split_lengths.append(len(text))
        return split_lines(text)

    monkeypatch.setattr(csv_rows, "_split_lines", note_length)
    monkeypatch.setattr(csv_rows, "SPLIT_BYTES", 10)
    long_text = "x" * 10_000

    read_rows, fault = rows_of(f'first,second\n"{long_text}",b\nc,d\n'.encode())

    assert fault is None
    assert read_rows == [[long_text, "b"], ["c", "d"]]
    assert sum(split_lengths) < 2 * len(long_text)


def test_the_parts_of_a_long_line_are_measured_once(monkeypatch):
    """A file of many gzip members, as bgzip writes them, comes in very many parts."""
    n_measured = 0

    class Part(str):
        """A part of a file, which counts how often its length is asked for."""

        def __len__(self) -> int:
            nonlocal n_measured
            n_measured += 1
            return super().__len__()

    parts = [Part("first,second\n"), *[Part("xxxxxxxxxx")] * 1000, Part(",b\n")]
    monkeypatch.setattr(csv_rows._CsvLines, "_parts", lambda _self: iter(parts))

    read_rows, fault = rows_of(b"")

    assert fault is None
    assert read_rows == [["x" * 10_000, "b"]]
    assert n_measured <= 2 * len(parts)


TEXTS = st.text(st.sampled_from("ab \"',;\t\n\r\0é漢\f\x85\u2028"), max_size=12)


@given(
    rows=st.lists(st.tuples(TEXTS, TEXTS), max_size=8),
    line_end=st.sampled_from(["\n", "\r\n", "\r"]),
    name=st.sampled_from(["a.csv", "a.tsv"]),
    split_bytes=st.integers(1, 40),
    slice_bytes=st.integers(1, 40),
)
def test_a_table_that_python_wrote_is_read_unchanged(
    rows, line_end, name, split_bytes, slice_bytes
):
    file = io.StringIO()
    delimiter = "\t" if name.endswith(".tsv") else ","
    writer = csv.writer(file, lineterminator=line_end, delimiter=delimiter, quoting=csv.QUOTE_ALL)
    writer.writerow(["first", "second"])
    writer.writerows(rows)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "SPLIT_BYTES", split_bytes)
        patch.setattr(csv_rows, "SLICE_BYTES", slice_bytes)
        read_rows, fault = rows_of(file.getvalue().encode(), name)

    assert fault is None
    assert read_rows == [list(row) for row in rows]


@given(
    body=st.text(st.sampled_from('ab",\n\r'), max_size=40),
    split_bytes=st.integers(1, 40),
)
def test_any_file_is_divided_as_by_the_csv_module(body, split_bytes):
    data = b"first,second\n" + body.encode()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(csv_rows, "SPLIT_BYTES", split_bytes)
        read_rows, fault = rows_of(data)

    expected = expected_rows(data)
    if fault is not None:
        # The csv module accepts a file that ends within quotes; its last row is not complete.
        assert fault.reason == "truncated_csv"
        expected = expected[:-1]
    assert read_rows == expected


def documents_of(folder, write_piece, data, name="a.csv", **options):
    """Read the documents and rejects of a CSV file."""
    return read_pieces(folder, write_piece(name, data), **options)


# Documents


def test_rows_become_documents_by_the_columns_of_text_and_id(tmp_path, write_piece):
    data = b'n,body,key\r\n1,"a ""b"",\r\nc",x\r\n2,,y\r\n'

    read = documents_of(tmp_path, write_piece, data, text_key="body", id_key="key")

    assert read.texts == ['a "b",\r\nc', ""]
    assert read.ids == ["x", "y"]
    assert read.lines == [1, 2]
    assert [document.offset for document in read.documents] == [-1, -1]


def test_values_of_columns_are_texts_whatever_they_look_like(tmp_path, write_piece):
    """A type that is inferred from the first rows could be wrong for others."""
    data = b"text,price,zip\na,1.50,01234\nb,,x\n"

    [batch] = documents_of(tmp_path, write_piece, data, kept_keys=("price", "zip", "none")).batches

    [[price, zip_code, missing]] = batch.kept_columns
    assert price.to_pylist() == ["1.50", ""]
    assert zip_code.to_pylist() == ["01234", "x"]
    assert missing.to_pylist() == [None, None]


def kept_values(folder, write_piece, values):
    """Return the type and values of a column of a CSV file whose values are what they are in JSON."""
    rows = "".join(f'text,"{value}"\n' for value in values)
    [batch] = documents_of(
        folder, write_piece, f"text,n\n{rows}".encode(), kept_keys=("n",), csv_values="json"
    ).batches
    [[column]] = batch.kept_columns
    return str(column.type), column.to_pylist()


@pytest.mark.parametrize(
    ("values", "column_type", "expected"),
    [
        (["1", "-20", "", "0"], "int64", [1, -20, None, 0]),
        (["1.50", "2", "1e3", "-0.5"], "double", [1.5, 2.0, 1000.0, -0.5]),
        (["true", "False", ""], "bool", [True, False, None]),
        (["", ""], "null", [None, None]),
        (["1", "x", ""], "string", ["1", "x", None]),
        (["01234", "+1", "NaN", "null", " 1"], "string", ["01234", "+1", "NaN", "null", " 1"]),
        (["9" * 500], "string", ["9" * 500]),
    ],
    ids=["integers", "numbers", "booleans", "nothing", "mixed", "texts", "a long number"],
)
def test_values_may_be_what_they_are_in_json(tmp_path, write_piece, values, column_type, expected):
    assert kept_values(tmp_path, write_piece, values) == (column_type, expected)


@given(values=st.lists(st.sampled_from(["1", "2.0", "2.5", "x", "", "true", "01"]), min_size=1))
def test_the_type_of_a_column_does_not_depend_on_how_rows_are_divided(values):
    """Values that are converted one by one and joined are those that are converted together."""
    array = pa.array([value.encode() for value in values], pa.binary())
    parts = [json_texts_as_values(array.slice(row, 1)) for row in range(len(array))]

    kind = joined(map(kind_of, parts))
    together = json_texts_as_values(array)

    assert kind_of(together) == kind
    joined_parts = []
    for part in parts:
        joined_parts += as_type(part, type_of(kind)).to_pylist()
    assert joined_parts == as_type(together, type_of(kind)).to_pylist()


def test_values_of_columns_are_aligned_with_documents_around_rejects(tmp_path, write_piece):
    data = b"text,n\na,1\nb\n\xff,3\nd,4\n"

    [batch] = documents_of(tmp_path, write_piece, data, kept_keys=("n",)).batches

    values = []
    for [column] in batch.kept_columns:
        values += column.to_pylist()
    assert batch.texts == ["a", "d"]
    assert batch.lines == [1, 4]
    assert values == ["1", "4"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("a.csv", b"\xef\xbb\xbftext,id\none,1\n"),
        ("a.csv", b"text;id\none;1\n"),
        ("a.csv", b"\r\n\r\ntext;id\r\none;1\r\n"),
        ("a.tsv", b"text\tid\none\t1\n"),
        ("A.TSV.GZ", gzip.compress(b"text\tid\none\t1\n")),
        ("a.csv.gz", gzip.compress(b"text,id\n") + gzip.compress(b"one,1\n")),
        ("a.csv.zst", zstandard.compress(b"text,id\none,1\n")),
        ("a.csv", b'"te"xt,id\none,1'),
        ("a.csv", b"text,id\rone,1\r"),
    ],
    ids=[
        "byte order mark",
        "semicolons",
        "blank lines before the header",
        "tabs",
        "compressed tabs",
        "members",
        "zstd",
        "no line end",
        "carriage returns",
    ],
)
def test_usual_variants_are_read(tmp_path, write_piece, name, data):
    read = documents_of(tmp_path, write_piece, data, name)

    assert read.texts == ["one"]
    assert read.ids == ["1"]


def test_a_comma_in_the_header_means_that_semicolons_separate_nothing(tmp_path, write_piece):
    read = documents_of(tmp_path, write_piece, b"text,a;b\none;1,2\n")

    assert read.texts == ["one;1"]


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf", b"\n\n", b"text,id", b"text,id\n"])
def test_a_file_without_rows_has_no_documents(tmp_path, write_piece, data):
    read = documents_of(tmp_path, write_piece, data)

    assert read.documents == []
    assert read.rejects == []


# Rejects


def test_a_row_with_a_wrong_number_of_fields_is_rejected(tmp_path, write_piece):
    data = b'text,id\none,1\n\ntwo\n"three, ""3""",3,3\nfour,4\n'

    read = documents_of(tmp_path, write_piece, data)

    assert read.texts == ["one", "four"]
    assert read.lines == [1, 4]
    assert read.reason_by_line == {2: "wrong_field_count", 3: "wrong_field_count"}
    assert read.rejects[0].detail == "1 fields, but the header has 2"
    assert read.rejects[1].excerpt == 'three, "3",3,3'
    assert read.read_lines == 4


def test_a_row_whose_text_is_not_utf_8_is_rejected(tmp_path, write_piece):
    read = documents_of(tmp_path, write_piece, b"text,id\n\xe9t\xe9,1\nfour,\xff\n")

    assert read.texts == ["four"]
    assert read.ids == [r"\xff"]
    assert read.reason_by_line == {1: "invalid_utf8"}


def test_a_row_whose_text_is_too_long_is_rejected(tmp_path, write_piece):
    read = documents_of(tmp_path, write_piece, b"text\n12345\n1234\n", max_line_bytes=4)

    assert read.texts == ["1234"]
    assert read.reason_by_line == {1: "line_too_long"}


def test_all_rows_are_rejected_if_the_header_lacks_the_text(tmp_path, write_piece):
    read = documents_of(tmp_path, write_piece, b"body,id\none,1\ntwo,2\n")

    assert read.reason_by_line == {1: "missing_key", 2: "missing_key"}
    assert read.rejects[0].detail == "no 'text' among ['body', 'id']"


# Faults


@pytest.mark.parametrize(
    ("data", "reason", "detail"),
    [
        (b'text,id\none,1\n"two,2\nthree,3\n', "truncated_csv", "the file ends within quotes"),
        (b"text,id\none,1\n" + b"x" * 200 + b",2\n", "corrupt_csv", "a row of more than 100 bytes"),
        (b'text,id\none,1\n"' + b"x\n" * 100, "corrupt_csv", "perhaps a quote is not closed"),
    ],
    ids=["cut off", "a long line", "many lines"],
)
def test_rows_before_a_fault_are_documents(
    tmp_path, write_piece, monkeypatch, data, reason, detail
):
    monkeypatch.setattr(csv_rows, "MAX_ROW_BYTES", 100)
    monkeypatch.setattr(csv_rows, "SPLIT_BYTES", 10)

    read = documents_of(tmp_path, write_piece, data)

    assert read.texts == ["one"]
    [fault] = read.rejects
    assert fault.is_fault
    assert (fault.line, fault.reason) == (2, reason)
    assert detail in fault.detail
    assert fault.detail.endswith("nothing was read from row 2 on")


def test_a_compressed_file_is_read_up_to_its_damage(tmp_path, write_piece):
    rows = "".join(f"text {number},{number}\n" for number in range(30_000))
    data = gzip.compress(f"text,id\n{rows}".encode())[:-1000]

    read = documents_of(tmp_path, write_piece, data, "a.csv.gz")

    assert read.texts[:2] == ["text 0", "text 1"]
    assert 1000 < len(read.texts) < 30_000
    [fault] = read.rejects
    assert fault.reason == "truncated_gzip"
    assert fault.line == len(read.texts) + 1


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"text,id,text\none,1,two\n", "ambiguous_column"),
        (b"t\xe9xt,id\none,1\n", "wrong_format"),
        ("text,id\none,1\n".encode("utf-16"), "wrong_format"),
        (b"PK\x03\x04" + bytes(30), "wrong_format"),
    ],
    ids=["a column twice", "a header that is not UTF-8", "UTF-16", "a spreadsheet"],
)
def test_a_file_without_a_valid_header_is_a_fault(tmp_path, write_piece, data, reason):
    read = documents_of(tmp_path, write_piece, data)

    assert read.texts == []
    [fault] = read.rejects
    assert fault.reason == reason
    assert fault.is_fault


def test_a_column_that_is_not_needed_may_be_there_twice(tmp_path, write_piece):
    assert documents_of(tmp_path, write_piece, b"text,x,x\none,1,2\n").texts == ["one"]


# Memory


def test_memory_does_not_grow_with_the_file(tmp_path, measure_memory):
    with (tmp_path / "a.csv").open("w") as file:
        file.write("id,text\n")
        for number in range(30_000):
            file.write(f'{number},"{"some words, " * 100}\n{"and more " * 100}"\n')

    measurement = measure_memory("sum(len(b.texts) for b in read_documents(folder, source))")

    assert measurement.value == "30000"
    assert measurement.mib < 40
