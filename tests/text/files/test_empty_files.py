"""Files that have bytes, but no text in them, are counted when they are read."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest
import zstandard

from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory.pieces import Piece, SourceRange

NO_ROWS = pa.table({"text": pa.array([], pa.string())})
A_LINE = b'{"text": "a"}\n'


def empty_files(folder: Path, *pieces: Piece) -> Counter[str]:
    """Return the files without text among some files, each with its size."""
    sizes: Counter[str] = Counter()
    for batch in read_documents(folder, SourceRange(pieces)):
        sizes.update(batch.empty_files)
    return sizes


@pytest.mark.parametrize("ending", [".jsonl.gz", ".csv.gz", ".txt.gz"])
def test_an_empty_file_that_was_compressed_has_no_text(tmp_path, write_piece, ending):
    empty = gzip.compress(b"")
    piece = write_piece(f"a{ending}", empty)

    assert empty_files(tmp_path, piece) == {piece.path: len(empty)}


def test_an_empty_file_in_zstd_format_has_no_text(tmp_path, write_piece):
    empty = zstandard.ZstdCompressor().compress(b"")
    piece = write_piece("a.jsonl.zst", empty)

    assert empty_files(tmp_path, piece) == {"a.jsonl.zst": len(empty)}


@pytest.mark.parametrize("kind", ["parquet", "stream", "file"])
def test_a_table_without_rows_has_no_text(tmp_path, write_table, kind):
    piece = write_table(NO_ROWS, kind)

    assert empty_files(tmp_path, piece) == {piece.path: piece.end}


def test_a_csv_file_with_only_a_header_has_no_text(tmp_path, write_piece):
    piece = write_piece("a.csv", b"text,id\n")

    assert list(empty_files(tmp_path, piece)) == ["a.csv"]


@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param("a.jsonl", A_LINE, id="a document"),
        pytest.param("a.jsonl.gz", gzip.compress(A_LINE), id="a compressed document"),
        pytest.param("a.jsonl", b'{"text": ""}\n', id="a document with an empty text"),
        pytest.param("a.jsonl", b"\n", id="a rejected line"),
        pytest.param("a.jsonl.gz", gzip.compress(A_LINE)[:-9], id="a file that is cut off"),
        pytest.param("a.jsonl.gz", b"no gzip", id="a file that cannot be read"),
        pytest.param("a.txt", b"a", id="a text"),
        pytest.param("a.jsonl", b"", id="a file without bytes, which the list of files shows"),
    ],
)
def test_other_files_are_not_counted(tmp_path, write_piece, name, data):
    piece = write_piece(name, data)

    assert empty_files(tmp_path, piece) == {}


def test_each_empty_file_of_a_range_is_counted(tmp_path, write_piece):
    empty = gzip.compress(b"")
    first = write_piece("a.jsonl.gz", empty)
    second = write_piece("b.jsonl", A_LINE)
    third = write_piece("c.jsonl.gz", empty)

    assert list(empty_files(tmp_path, first, second, third)) == ["a.jsonl.gz", "c.jsonl.gz"]
