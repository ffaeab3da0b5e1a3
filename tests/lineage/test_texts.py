"""The texts of documents are read again from the raw files, each file in one pass if possible."""

from __future__ import annotations

import gzip
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from helpers.sample_project import encoded, jsonl, sentences
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.lineage import texts
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.texts import NotReadError, read_texts
from nanoset_core.text.files.endings import is_cuttable
from nanoset_core.text.tables import csv_rows
from nanoset_core.text.tables import rows as tables

ROWS = sentences("web", 50)
TEXTS = [row["text"] for row in ROWS]
LINES = [jsonl([row]) for row in ROWS]
LINE_STARTS = [0, *accumulate(map(len, LINES))]
FIRST_PART = b"".join(LINES[:20])
SECOND_PART = b"".join(LINES[20:])
COMPRESS_BY_FILE = {
    "plain.jsonl": bytes,
    "a.jsonl.gz": gzip.compress,
    "b.jsonl.zst": zstandard.compress,
}
"""Files of lines, each with how its two parts are compressed: as two members or frames."""
ROWS_PER_GROUP = 9


@pytest.fixture
def folder(tmp_path):
    """The folder of a corpus with the same lines in three files."""
    for name, compress in COMPRESS_BY_FILE.items():
        (tmp_path / name).write_bytes(compress(FIRST_PART) + compress(SECOND_PART))
    return tmp_path


@pytest.fixture(params=["a.parquet", "a.arrow", "a.csv", "a.csv.gz", "a.tsv"])
def table_file(request, tmp_path):
    """A file with a table of all rows, in groups or batches of ROWS_PER_GROUP."""
    file = tmp_path / request.param
    table = pa.Table.from_pylist(ROWS)
    if file.suffix not in (".parquet", ".arrow"):
        file.write_bytes(encoded(file.name, ROWS, ROWS_PER_GROUP))
    elif file.suffix == ".parquet":
        pq.write_table(table, file, row_group_size=ROWS_PER_GROUP)
    else:
        with pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table, ROWS_PER_GROUP)
    return file


@pytest.fixture
def opened_files(monkeypatch):
    """Names of the files that are opened, in order."""
    names = []
    open_lines = texts.open_raw
    open_table = tables.open_raw

    def open_lines_and_note(path, **options):
        names.append(path.name)
        return open_lines(path, **options)

    def open_table_and_note(path):
        names.append(path.name)
        return open_table(path)

    monkeypatch.setattr(texts, "open_raw", open_lines_and_note)
    monkeypatch.setattr(tables, "open_raw", open_table_and_note)
    return names


def origin_in_lines(file: str, number: int, shift: int = 0) -> DocumentOrigin:
    """Return the origin of a document in a file of lines.

    Args:
        file: Name of the file.
        number: Number of the line, from 0.
        shift: How many bytes too far its stored offset is.
    """
    offset = LINE_STARTS[number] + shift
    return DocumentOrigin(
        corpus="web",
        document=number,
        file=file,
        line=number + 1,
        byte_offset=offset,
        id=None,
        tokens=1,
        shard="",
    )


def read_rows(file, rows, **options):
    """Read the texts of rows of a table, numbered from 1."""
    origins = [
        DocumentOrigin(
            corpus="web",
            document=row,
            file=file.name,
            line=row,
            byte_offset=-1,
            id=None,
            tokens=1,
            shard="",
        )
        for row in rows
    ]
    return list(read_texts(file.parent, origins, "text", **options))


# Files of lines


def test_lines_of_a_compressed_file_are_read_in_one_pass(folder, opened_files):
    numbers = [0, 1, 7, 19, 20, 49]
    origins = []
    for file in COMPRESS_BY_FILE:
        origins += [origin_in_lines(file, number) for number in numbers]

    documents = list(read_texts(folder, origins, "text"))

    texts_of_a_file = [TEXTS[number] for number in numbers]
    assert documents == texts_of_a_file * len(COMPRESS_BY_FILE)
    # A plain file may be opened for each line, since nothing is decompressed to reach it.
    opened_compressed = [file for file in opened_files if not is_cuttable(file)]
    assert opened_compressed == ["a.jsonl.gz", "b.jsonl.zst"]


@pytest.mark.parametrize("file", COMPRESS_BY_FILE)
def test_lines_are_read_in_the_order_of_the_request(folder, file):
    numbers = [30, 3, 3, 45, 0]
    origins = [origin_in_lines(file, number) for number in numbers]

    documents = list(read_texts(folder, origins, "text"))

    assert documents == [TEXTS[number] for number in numbers]


@pytest.mark.parametrize("file", COMPRESS_BY_FILE)
def test_a_line_that_moved_does_not_prevent_reading_others(folder, file):
    origins = [
        origin_in_lines(file, 2),
        origin_in_lines(file, 3, shift=2),  # within the line
        origin_in_lines(file, 49),
        origin_in_lines(file, 50),  # after the last line
    ]

    first, moved, last, after_end = read_texts(folder, origins, "text")

    assert first == TEXTS[2]
    assert last == TEXTS[49]
    for error in (moved, after_end):
        assert isinstance(error, FormatError)
        assert error.what == "there is no document at this place any more"


def test_lines_before_the_damage_of_a_file_are_read(folder):
    damaged = gzip.compress(FIRST_PART) + gzip.compress(SECOND_PART)[:-40]
    (folder / "a.jsonl.gz").write_bytes(damaged)
    origins = [origin_in_lines("a.jsonl.gz", number) for number in (5, 49, 49)]

    document, error, same_error = read_texts(folder, origins, "text")

    assert document == TEXTS[5]
    assert "truncated_gzip" in error.found
    assert same_error.found == error.found


def test_a_missing_file_does_not_prevent_reading_others(folder):
    origins = [origin_in_lines("a.jsonl.gz", 5), origin_in_lines("gone.jsonl", 1)]

    document, error = read_texts(folder, origins, "text")

    assert document == TEXTS[5]
    assert isinstance(error, MissingError)


def test_no_more_is_decompressed_than_allowed(folder):
    origins = [
        origin_in_lines("a.jsonl.gz", 1),
        origin_in_lines("a.jsonl.gz", 9),
        origin_in_lines("plain.jsonl", 9),
    ]

    near, far, uncompressed = read_texts(folder, origins, "text", most_skipped_bytes=999)

    assert near == TEXTS[1]
    assert isinstance(far, NotReadError)
    assert uncompressed == TEXTS[9]


# Tables


def test_rows_of_a_table_are_read_in_one_pass(table_file, opened_files):
    rows = [1, 2, 9, 10, 10, 31, 50]

    documents = read_rows(table_file, rows)

    assert documents == [TEXTS[row - 1] for row in rows]
    assert len(opened_files) == 1


def test_rows_of_a_table_are_read_in_the_order_of_the_request(table_file):
    rows = [31, 3, 3, 46, 1]

    documents = read_rows(table_file, rows)

    assert documents == [TEXTS[row - 1] for row in rows]


def test_rows_after_the_last_one_do_not_prevent_reading_others(table_file):
    document, *errors = read_rows(table_file, [2, 51, 52])

    assert document == TEXTS[1]
    for error in errors:
        assert "no_row" in error.found
    assert len(errors) == 2


@pytest.mark.parametrize("table_file", ["a.parquet"], indirect=True)
def test_no_more_of_a_row_group_is_decompressed_than_allowed(table_file):
    first, far, first_of_next_group = read_rows(table_file, [1, 9, 10], most_skipped_bytes=9)

    assert first == TEXTS[0]
    assert isinstance(far, NotReadError)
    assert "bytes into a row group" in far.found
    assert first_of_next_group == TEXTS[9]


# CSV and .txt files


def test_a_row_of_a_csv_file_that_became_invalid_is_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("id,text\n1,one\n2,two,2\n3,three\n")

    first, error, third = read_rows(tmp_path / "a.csv", [1, 2, 3])

    assert first == "one"
    assert "wrong_field_count" in error.found
    assert third == "three"


def test_no_more_of_a_csv_file_is_read_than_allowed(tmp_path, monkeypatch):
    monkeypatch.setattr(csv_rows, "SLICE_BYTES", 500)
    (tmp_path / "a.csv").write_bytes(encoded("a.csv", ROWS, ROWS_PER_GROUP))

    near, far, farther = read_rows(tmp_path / "a.csv", [1, 40, 50], most_skipped_bytes=2000)

    assert near == TEXTS[0]
    assert isinstance(far, NotReadError)
    assert "2,000 bytes into a CSV file" in far.found
    assert isinstance(farther, NotReadError)


def origin_of_file(file: str) -> DocumentOrigin:
    """Return the origin of the document that is a .txt file."""
    return DocumentOrigin(
        corpus="web",
        document=0,
        file=file,
        line=1,
        byte_offset=0,
        id=file,
        tokens=1,
        shard="",
    )


def test_the_text_of_a_txt_file_is_read_again(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"\xef\xbb\xbfone\r\n\r\ntwo\n")
    (tmp_path / "b.txt.gz").write_bytes(gzip.compress(b"three"))

    documents = read_texts(tmp_path, map(origin_of_file, ["a.txt", "b.txt.gz"]), "text")

    assert list(documents) == ["one\r\n\r\ntwo\n", "three"]


def test_a_txt_file_that_cannot_be_read_does_not_prevent_reading_others(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "MOST_LINE_BYTES", 9)
    (tmp_path / "a.txt").write_bytes(b"\xff")
    (tmp_path / "b.txt").write_bytes(b"0123456789")
    (tmp_path / "c.txt").write_bytes(b"c")

    origins = map(origin_of_file, ["a.txt", "b.txt", "gone.txt", "c.txt"])
    not_utf_8, too_long, missing, document = read_texts(tmp_path, origins, "text")

    assert "invalid_utf8" in not_utf_8.found
    assert isinstance(too_long, NotReadError)
    assert isinstance(missing, MissingError)
    assert document == "c"
