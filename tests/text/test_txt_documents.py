"""A .txt file is one document: its whole content, with its path as the id."""

from __future__ import annotations

import gzip
import io
import zipfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from helpers.read_pieces import read_pieces
from helpers.sample_project import jsonl
from nanoset_core.text.parsing import NotADocumentError
from nanoset_core.text.txt_documents import FileText, parse_file_text


def test_the_text_is_the_whole_file_and_the_id_is_its_path(tmp_path, write_piece):
    piece = write_piece("sub/a.txt", "Grüße\r\n\n\tzwei  \n".encode())

    [document] = read_pieces(tmp_path, piece).documents

    assert document.text == "Grüße\r\n\n\tzwei  \n"
    assert document.id == "sub/a.txt"
    assert document.file == "sub/a.txt"
    assert document.line == 1
    assert document.offset == 0


@given(text=st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_is_preserved(text):
    data = text.encode()

    parsed = parse_file_text(FileText(data, len(data)), max_bytes=len(data))

    assert parsed == text.removeprefix("\ufeff")


def test_several_files_are_read_together_in_order(tmp_path, write_piece):
    pieces = [write_piece(f"{number}.txt", f"text {number}".encode()) for number in range(20)]

    read = read_pieces(tmp_path, *pieces)

    assert read.texts == [f"text {number}" for number in range(20)]
    assert read.ids == [f"{number}.txt" for number in range(20)]
    assert len(read.batches) == 1
    assert read.read_bytes == sum(piece.size for piece in pieces)


@pytest.mark.parametrize("data", [b"", b"\xef\xbb\xbf"], ids=["no bytes", "only a byte order mark"])
def test_an_empty_file_is_a_document_like_an_empty_text_in_json(tmp_path, write_piece, data):
    lines = write_piece("a.jsonl", jsonl([{"text": ""}]))
    txt = write_piece("a.txt", data)

    assert read_pieces(tmp_path, txt).texts == read_pieces(tmp_path, lines).texts == [""]


def test_a_file_that_is_not_utf_8_is_rejected(tmp_path, write_piece):
    invalid = write_piece("a.txt", b"abc \xe9t\xe9")
    valid = write_piece("b.txt", b"valid")

    read = read_pieces(tmp_path, invalid, valid)

    assert read.texts == ["valid"]
    [reject] = read.rejects
    assert (reject.file, reject.line, reject.offset) == ("a.txt", 1, 0)
    assert reject.reason == "invalid_utf8"
    assert reject.detail == "byte 0xe9 at byte 4 of the text: invalid continuation byte"
    assert reject.excerpt == r"abc \xe9t\xe9"
    assert not reject.is_fault


@pytest.mark.parametrize("name", ["a.txt", "a.txt.gz"])
def test_a_file_that_is_too_long_is_rejected(tmp_path, write_piece, name):
    data = b"x" * 1000
    piece = write_piece(name, gzip.compress(data) if name.endswith(".gz") else data)

    at_limit = read_pieces(tmp_path, piece, max_line_bytes=1000)
    above_limit = read_pieces(tmp_path, piece, max_line_bytes=999)

    assert at_limit.texts == ["x" * 1000]
    [reject] = above_limit.rejects
    assert reject.reason == "line_too_long"
    assert reject.detail == "1,000 bytes"
    assert reject.excerpt == "x" * 200


def test_only_the_beginning_of_a_file_that_is_too_long_is_in_memory(tmp_path, measure_memory):
    with (tmp_path / "a.txt").open("wb") as file:
        for _ in range(100):
            file.write(b"x" * (1 << 20))

    measurement = measure_memory(
        "next(read_documents(folder, source, max_line_bytes=9)).rejects[0].detail"
    )

    assert measurement.value == "104,857,600 bytes"
    assert measurement.mib < 20


def test_values_of_columns_are_null(tmp_path, write_piece):
    piece = write_piece("a.txt", b"text")

    [batch] = read_pieces(tmp_path, piece, kept_keys=("date", "url")).batches

    [columns] = batch.kept_columns
    assert [column.to_pylist() for column in columns] == [[None], [None]]


def test_a_file_is_rejected_if_documents_need_texts_at_other_keys(tmp_path, write_piece):
    piece = write_piece("a.txt", b"text")

    [reject] = read_pieces(tmp_path, piece, required_keys=("title",)).rejects

    assert reject.reason == "missing_key"


def test_documents_with_runs_of_zero_bytes_are_counted(tmp_path, write_piece):
    piece = write_piece("a.txt", b"a" + bytes(8) + b"b" * 200)

    [batch] = read_pieces(tmp_path, piece).batches

    assert batch.texts_with_zeros == {"a.txt": 1}


# Files that are not what their names say, or are damaged


def zip_archive():
    """Return a zip archive with a file."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("a.txt", "text")
    return file.getvalue()


@pytest.mark.parametrize(
    ("data", "description"),
    [
        (zip_archive(), "a zip archive"),
        ("text\n".encode("utf-16"), "text in UTF-16"),
        ("some text\n".encode("utf-16-le"), "text in UTF-16 without a byte order mark"),
        ("some text\n".encode("utf-16-be"), "text in UTF-16 without a byte order mark"),
        (b"%PDF-1.4\n%\xff\xff\xff\n", "a PDF document"),
        (b"version https://git-lfs.github.com/spec/v1\n", "a pointer of Git LFS"),
        (jsonl([{"text": "one"}, {"text": "two"}]), "JSON lines, whose name should end in .jsonl"),
    ],
    ids=["zip", "UTF-16", "UTF-16 LE", "UTF-16 BE", "PDF", "Git LFS", "JSON lines"],
)
def test_a_file_of_another_format_is_a_fault(tmp_path, write_piece, data, description):
    read = read_pieces(tmp_path, write_piece("a.txt", data))

    assert read.texts == []
    [fault] = read.rejects
    assert fault.is_fault
    assert fault.reason == "wrong_format"
    assert description in fault.detail


@pytest.mark.parametrize(
    "text",
    ["PAR1 is not Parquet", "%PDF-1.4 is a version", '{"title": "no text key"}\n', "{\\bf TeX}"],
)
def test_text_that_begins_like_another_format_is_text(tmp_path, write_piece, text):
    assert read_pieces(tmp_path, write_piece("a.txt", text.encode())).texts == [text]


def test_a_compressed_file_that_was_cut_off_is_no_document(tmp_path, write_piece):
    piece = write_piece("a.txt.gz", gzip.compress(b"some text " * 1000)[:-20])

    read = read_pieces(tmp_path, piece)

    assert read.texts == []
    [fault] = read.rejects
    assert fault.reason == "truncated_gzip"
    assert fault.line == 1


def test_a_file_without_compression_that_is_named_like_a_compressed_one_is_described(
    tmp_path, write_piece
):
    [fault] = read_pieces(tmp_path, write_piece("a.txt.gz", b"some text")).rejects

    assert "plain text, whose name should not end as that of compressed text" in fault.detail


def test_the_error_for_a_text_that_is_too_long_is_raised_before_it_is_decoded():
    with pytest.raises(NotADocumentError, match="line_too_long"):
        parse_file_text(FileText(b"\xff", 10), max_bytes=9)
