"""Lines of a corpus's files are read again: each where it was, many of one file in one pass over
it.
"""

from __future__ import annotations

import gzip
from itertools import accumulate

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from helpers.sample_project import jsonl, sentences
from nanoset_core.errors import FormatError, MissingError
from nanoset_core.lineage import texts
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.lineage.texts import NotReadError, read_texts
from nanoset_core.text import tables
from nanoset_core.text.endings import is_cuttable

ROWS = sentences("web", 50)
LINES = [jsonl([row]) for row in ROWS]
OFFSETS = [0, *accumulate(map(len, LINES))]
PACKERS = {"plain.jsonl": bytes, "a.jsonl.gz": gzip.compress, "b.jsonl.zst": zstandard.compress}


@pytest.fixture
def folder(tmp_path):
    for name, pack in PACKERS.items():
        (tmp_path / name).write_bytes(pack(b"".join(LINES[:20])) + pack(b"".join(LINES[20:])))
    return tmp_path


def line(file: str, number: int, further: int = 0) -> DocumentOrigin:
    """Where a line of a file is, or so many bytes further."""
    return DocumentOrigin("web", number, file, number + 1, OFFSETS[number] + further, None, 1, "")


@pytest.fixture
def opened(monkeypatch):
    """Names of the files that are opened."""
    names, real = [], texts.open_raw

    def open_raw(path, **options):
        names.append(path.name)
        return real(path, **options)

    monkeypatch.setattr(texts, "open_raw", open_raw)
    return names


def test_lines_of_a_file_are_read_in_one_pass(folder, opened):
    wanted = [(file, number) for file in PACKERS for number in (0, 1, 7, 19, 20, 49)]
    found = list(read_texts(folder, [line(*one) for one in wanted], "text"))
    assert found == [ROWS[number]["text"] for _, number in wanted]
    assert [name for name in opened if not is_cuttable(name)] == [
        name for name in PACKERS if not is_cuttable(name)
    ]


@pytest.mark.parametrize("file", PACKERS)
def test_in_any_order(folder, file):
    numbers = [30, 3, 3, 45, 0]
    assert list(read_texts(folder, [line(file, number) for number in numbers], "text")) == [
        ROWS[number]["text"] for number in numbers
    ]


@pytest.mark.parametrize("file", PACKERS)
def test_what_one_line_lacks_the_next_has(folder, file):
    between, end = line(file, 3, 2), line(file, 50)
    first, moved, last, after = read_texts(
        folder, [line(file, 2), between, line(file, 49), end], "text"
    )
    assert (first, last) == (ROWS[2]["text"], ROWS[49]["text"])
    for error in (moved, after):
        assert isinstance(error, FormatError)
        assert error.what == "there is no document at this place any more"


def test_files_that_cannot_be_read_to_their_end_or_are_gone(folder):
    cut = folder / "a.jsonl.gz"
    cut.write_bytes(gzip.compress(b"".join(LINES[:20])) + gzip.compress(b"".join(LINES[20:]))[:-40])
    lines = [
        line("a.jsonl.gz", 5),
        line("a.jsonl.gz", 49),
        line("a.jsonl.gz", 49),
        line("gone.jsonl", 1),
    ]
    read, fault, again, gone = read_texts(folder, lines, "text")
    assert read == ROWS[5]["text"]
    assert "truncated_gzip" in fault.found
    assert again.found == fault.found
    assert isinstance(gone, MissingError)


def test_no_more_is_decompressed_than_allowed(folder):
    near, far, plain = read_texts(
        folder,
        [line("a.jsonl.gz", 1), line("a.jsonl.gz", 9), line("plain.jsonl", 9)],
        "text",
        most_skipped_bytes=999,
    )
    assert near == ROWS[1]["text"]
    assert isinstance(far, NotReadError)
    assert plain == ROWS[9]["text"]


@pytest.mark.parametrize("name", ["a.parquet", "a.arrow"])
def test_rows_of_a_table_are_read_in_one_pass_whatever_their_order(tmp_path, name, monkeypatch):
    table, opened, real = pa.Table.from_pylist(ROWS), [], tables.open_raw
    if name == "a.parquet":
        pq.write_table(table, tmp_path / name, row_group_size=9)
    else:
        with pa.ipc.new_file(tmp_path / name, table.schema) as file:
            file.write_table(table, 9)
    monkeypatch.setattr(tables, "open_raw", lambda path: opened.append(path) or real(path))

    def read(*numbers, most=None):
        origins = [DocumentOrigin("web", row, name, row, -1, None, 1, "") for row in numbers]
        return list(read_texts(tmp_path, origins, "text", most_skipped_bytes=most))

    assert read(1, 2, 9, 10, 10, 31, 50) == [
        ROWS[row - 1]["text"] for row in (1, 2, 9, 10, 10, 31, 50)
    ]
    assert len(opened) == 1
    assert read(31, 3, 3, 46, 1) == [ROWS[row - 1]["text"] for row in (31, 3, 3, 46, 1)]
    near, gone, again = read(2, 51, 52)
    assert near == ROWS[1]["text"]
    assert "no_row" in gone.found
    assert "no_row" in again.found
    if name == "a.parquet":
        first, far, next_group = read(1, 9, 10, most=9)
        assert (first, next_group) == (ROWS[0]["text"], ROWS[9]["text"])
        assert isinstance(far, NotReadError)
        assert "bytes into a row group" in far.found
