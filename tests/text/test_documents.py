"""Documents in lines: their texts, ids and places, and a reject for every other line."""

import gzip
import hashlib
import json

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from helpers.read_pieces import ReadDocument, read_pieces
from nanoset_core.text.inventory import stored_piece as stored_module
from nanoset_core.text.inventory.pieces import Piece
from nanoset_core.text.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.text.rejects import EXCERPT_BYTES, Reject


def slow_documents(name, data):
    """Return the documents and the rejects of a file, from one line at a time."""
    documents = []
    rejects = []
    offset = 0
    lines = data.split(b"\n")
    if lines[-1] == b"":  # the last line has a line end
        lines.pop()
    for number, line in enumerate(lines, 1):
        try:
            text, identity, _ = parse_line(line, Fields("text", "id"))
            documents.append(ReadDocument(text, identity, name, number, offset))
        except NotADocumentError as error:
            excerpt = line[:EXCERPT_BYTES].decode("utf-8", "backslashreplace")
            rejects.append(Reject(name, number, offset, error.reason, error.detail, excerpt))
        offset += len(line) + 1
    return documents, rejects


DOCUMENT_LINES = st.fixed_dictionaries(
    {"text": st.text()}, optional={"id": st.text() | st.integers()}
).map(lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace"))
UNUSUAL_LINES = st.sampled_from(
    [
        b"",
        b"{",
        b'{"text": 1}',
        b"\xff",
        b'{"text": "a"}\r',
        b'{"text": NaN}',
        b'{"text": "b", "x": NaN}',
    ]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    lines=st.lists(DOCUMENT_LINES | UNUSUAL_LINES, max_size=15),
    last_line_end=st.sampled_from([b"", b"\n"]),
    is_compressed=st.booleans(),
    read_bytes=st.integers(1, 200),
    batch_bytes=st.integers(1, 300),
)
def test_documents_and_rejects_are_those_of_parsing_line_by_line(
    tmp_path,
    write_piece,
    monkeypatch,
    lines,
    last_line_end,
    is_compressed,
    read_bytes,
    batch_bytes,
):
    monkeypatch.setattr(stored_module, "READ_BYTES", read_bytes)
    data = b"\n".join(lines)
    if lines:
        data += last_line_end
    if is_compressed:
        piece = write_piece("a.jsonl.gz", gzip.compress(data, 1))
    else:
        piece = write_piece("a.jsonl", data)

    result = read_pieces(tmp_path, piece, batch_bytes=batch_bytes)

    documents, rejects = slow_documents(piece.path, data)
    assert result.documents == documents
    assert result.rejects == rejects
    assert result.read_bytes == len(data)
    assert all(batch.read_bytes >= batch_bytes for batch in result.batches[:-1])


# Files and pieces


def test_the_files_of_a_range_are_read_in_order(tmp_path, write_piece):
    third = write_piece("sub/a.jsonl", b'{"text": "1"}\n{"text": "2"}')
    first = write_piece("b.jsonl.gz", gzip.compress(b'{"text": "3", "id": 9}\n'))
    second = write_piece("c.jsonl", b"")

    result = read_pieces(tmp_path, first, second, third)

    assert result.documents == [
        ReadDocument("3", "9", "b.jsonl.gz", line=1, offset=0),
        ReadDocument("1", None, "sub/a.jsonl", line=1, offset=0),
        ReadDocument("2", None, "sub/a.jsonl", line=2, offset=14),
    ]
    assert result.rejects == []


def test_one_batch_may_contain_the_documents_of_several_files(tmp_path, write_piece):
    first = write_piece("a.jsonl.gz", gzip.compress(b'{"text": "1", "id": 9}\n'))
    second = write_piece("b.jsonl", b'{"text": "2"}\n')

    result = read_pieces(tmp_path, first, second)

    [batch] = result.batches
    assert batch.files == [0, 1]
    assert batch.read_bytes == 23 + 14  # decompressed


def test_the_pieces_of_a_file_have_the_documents_of_the_file(tmp_path, write_piece):
    line_1 = b'{"text": "1"}\n'
    line_2 = b'{"text": "2"}\n'
    write_piece("a.jsonl", line_1 + line_2)
    piece_1 = Piece("a.jsonl", 0, 14, 1, hashlib.sha256(line_1).hexdigest())
    piece_2 = Piece("a.jsonl", 14, 28, 2, hashlib.sha256(line_2).hexdigest())

    result = read_pieces(tmp_path, piece_1, piece_2)

    documents, _ = slow_documents("a.jsonl", line_1 + line_2)
    assert result.documents == documents
    assert result.batches[0].files == [0, 0]


# Rejects


def test_a_reject_says_where_the_line_is_and_why_it_is_no_document(tmp_path, write_piece):
    lines = [
        b'{"text": "a"}',
        b"",
        b'{"text": "caf\xe9 au lait"}',
        b"x" * 500,
        b'{"text": "b"}',
    ]
    piece = write_piece("sub/a.jsonl", b"\n".join(lines) + b"\n")

    result = read_pieces(tmp_path, piece)

    assert result.rejects == [
        Reject(
            "sub/a.jsonl",
            line=2,
            offset=14,
            reason="blank_line",
            detail="nothing but white space",
            excerpt="",
        ),
        Reject(
            "sub/a.jsonl",
            line=3,
            offset=15,
            reason="invalid_utf8",
            detail="byte 0xe9 at byte 13 of the line: invalid continuation byte",
            excerpt='{"text": "caf\\xe9 au lait"}',
        ),
        Reject(
            "sub/a.jsonl",
            line=4,
            offset=40,
            reason="invalid_json",
            detail="Expecting value: line 1 column 1 (char 0)",
            excerpt="x" * 200,
        ),
    ]
    assert result.documents == [
        ReadDocument("a", None, "sub/a.jsonl", line=1, offset=0),
        ReadDocument("b", None, "sub/a.jsonl", line=5, offset=541),
    ]


LONG_LINE = b'{"text": "' + b"y" * 90 + b'"}'
SHORT_AND_LONG_LINES = b'{"text": "a"}\n' + LONG_LINE + b'\n{"text": "b"}\n' + LONG_LINE


def test_lines_above_the_limit_are_rejected(tmp_path, write_piece):
    piece = write_piece("a.jsonl", SHORT_AND_LONG_LINES)

    result = read_pieces(tmp_path, piece, max_line_bytes=len(LONG_LINE) - 1)

    assert result.texts == ["a", "b"]
    excerpt = LONG_LINE.decode()
    assert result.rejects == [
        Reject("a.jsonl", 2, 14, "line_too_long", "102 bytes", excerpt),
        Reject("a.jsonl", 4, 131, "line_too_long", "102 bytes", excerpt),
    ]
    assert result.read_bytes == len(SHORT_AND_LONG_LINES)


def test_lines_at_the_limit_are_read(tmp_path, write_piece):
    piece = write_piece("a.jsonl", SHORT_AND_LONG_LINES)

    result = read_pieces(tmp_path, piece, max_line_bytes=len(LONG_LINE))

    assert len(result.documents) == 4


def test_the_fault_of_a_file_is_a_reject_and_the_next_file_is_read(tmp_path, write_piece):
    compressed = gzip.compress(b'{"text": "1"}\n{"text": "2", "and": "more"}\n')
    truncated = write_piece("a.jsonl.gz", compressed[:-12])
    intact = write_piece("b.jsonl", b'{"text": "3"}\n')

    result = read_pieces(tmp_path, truncated, intact)

    assert result.n_faults == 1
    fault = result.rejects[-1]
    assert fault.file == "a.jsonl.gz"
    assert fault.reason == "truncated_gzip"
    assert fault.excerpt == ""
    assert fault.offset >= 14  # the first line was read
    assert result.texts[0] == "1"
    assert result.documents[-1] == ReadDocument("3", None, "b.jsonl", line=1, offset=0)


# Memory


def test_many_rejects_are_not_held_in_memory(tmp_path, measure_memory):
    # Without compression, so that the blank lines are read in many blocks.
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n" * 300_000, compresslevel=0))

    measurement = measure_memory(
        "sum(len(batch.rejects) for batch in read_documents(folder, source))"
    )

    assert measurement.value == "300000"
    assert measurement.mib < 25


@pytest.mark.parametrize("ending", ["gz", "zst"])
def test_a_line_of_a_quarter_of_a_gigabyte_is_not_held_in_memory(tmp_path, measure_memory, ending):
    """A few hundred kilobytes can decompress to a line of 256 MiB."""
    compress = {"gz": lambda data: gzip.compress(data, 6), "zst": zstandard.compress}[ending]
    line = b'{"text": "ok"}\n'
    part_of_long_line = compress(b"a" * (8 << 20))
    data = compress(line) + part_of_long_line * 32 + compress(b"\n" + line)
    (tmp_path / f"a.jsonl.{ending}").write_bytes(data)

    measurement = measure_memory(
        "[(batch.texts, [reject.detail for reject in batch.rejects])"
        " for batch in read_documents(folder, source, max_line_bytes=1 << 20)]"
    )

    assert measurement.value == "[(['ok'], ['268,435,456 bytes']), (['ok'], [])]"
    assert measurement.mib < 100
