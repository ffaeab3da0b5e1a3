import gzip
import hashlib
import json

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nanoset_core.text import stored_piece as stored_module
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject

Document = tuple[str, str | None, str, int, int]
"""text, id, file, line, offset"""


def read(folder, *pieces, **options) -> tuple[list[Document], list[Reject], list[DocumentBatch]]:
    source = SourceRange(pieces)
    batches = list(read_documents(folder, source, **options))
    documents: list[Document] = []
    for batch in batches:
        files = [source.files[number] for number in batch.files]
        documents += zip(batch.texts, batch.ids, files, batch.lines, batch.offsets, strict=True)
        assert batch.read_lines == len(batch.texts) + len(batch.rejects) - batch.faults
    return documents, [reject for batch in batches for reject in batch.rejects], batches


def slowly(name: str, data: bytes) -> tuple[list[Document], list[Reject]]:
    documents, rejects, offset = [], [], 0
    lines = data.split(b"\n")
    for number, line in enumerate(lines[:-1] if not lines[-1] else lines, 1):
        try:
            text, identity, _ = parse_line(line, Fields("text", "id"))
            documents.append((text, identity, name, number, offset))
        except NotADocumentError as error:
            excerpt = line[:200].decode("utf-8", "backslashreplace")
            rejects.append(Reject(name, number, offset, error.reason, error.detail, excerpt))
        offset += len(line) + 1
    return documents, rejects


LINE = st.one_of(
    st.fixed_dictionaries({"text": st.text()}, optional={"id": st.text() | st.integers()}).map(
        lambda value: json.dumps(value, ensure_ascii=False).encode("utf-8", "replace")
    ),
    st.sampled_from(
        [
            b"",
            b"{",
            b'{"text": 1}',
            b"\xff",
            b'{"text": "a"}\r',
            b'{"text": NaN}',
            b'{"text": "b", "x": NaN}',
        ]
    ),
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    lines=st.lists(LINE, max_size=15),
    final=st.booleans(),
    compressed=st.booleans(),
    read_bytes=st.integers(1, 200),
    batch_bytes=st.integers(1, 300),
)
def test_documents_and_rejects_are_those_of_the_slow_way(
    tmp_path, stored, monkeypatch, lines, final, compressed, read_bytes, batch_bytes
):
    monkeypatch.setattr(stored_module, "READ_BYTES", read_bytes)
    data = b"\n".join(lines) + (b"\n" if final and lines else b"")
    name = "a.jsonl.gz" if compressed else "a.jsonl"
    piece = stored(name, gzip.compress(data, 1) if compressed else data)
    documents, rejects, batches = read(tmp_path, piece, batch_bytes=batch_bytes)
    assert (documents, rejects) == slowly(name, data)
    assert sum(batch.read_bytes for batch in batches) == len(data)
    assert all(batch.read_bytes >= batch_bytes for batch in batches[:-1])


def test_files_of_a_range_in_order(tmp_path, stored):
    a = stored("sub/a.jsonl", b'{"text": "1"}\n{"text": "2"}')
    b = stored("b.jsonl.gz", gzip.compress(b'{"text": "3", "id": 9}\n'))
    empty = stored("c.jsonl", b"")
    documents, rejects, batches = read(tmp_path, b, empty, a)
    assert documents == [
        ("3", "9", "b.jsonl.gz", 1, 0),
        ("1", None, "sub/a.jsonl", 1, 0),
        ("2", None, "sub/a.jsonl", 2, 14),
    ]
    assert rejects == []
    assert [batch.read_bytes for batch in batches] == [23 + 27]


def test_pieces_of_one_file_are_one_file(tmp_path, stored):
    data = b'{"text": "1"}\n{"text": "2"}\n'
    stored("a.jsonl", data)
    pieces = [
        Piece(
            "a.jsonl",
            begin,
            begin + 14,
            number,
            hashlib.sha256(data[begin : begin + 14]).hexdigest(),
        )
        for number, begin in ((1, 0), (2, 14))
    ]
    documents, _, batches = read(tmp_path, *pieces)
    assert documents == slowly("a.jsonl", data)[0]
    assert batches[0].files == [0, 0]


def test_rejects_say_where_and_why(tmp_path, stored):
    data = b'{"text": "a"}\n\n{"text": "caf\xe9 au lait"}\n' + b"x" * 500 + b'\n{"text": "b"}\n'
    documents, rejects, _ = read(tmp_path, stored("sub/a.jsonl", data))
    assert [document[3:] for document in documents] == [(1, 0), (5, 541)]
    assert rejects == [
        Reject("sub/a.jsonl", 2, 14, "blank_line", "nothing but white space", ""),
        Reject(
            "sub/a.jsonl",
            3,
            15,
            "invalid_utf8",
            "byte 0xe9 at byte 13 of the line: invalid continuation byte",
            '{"text": "caf\\xe9 au lait"}',
        ),
        Reject(
            "sub/a.jsonl",
            4,
            40,
            "invalid_json",
            "Expecting value: line 1 column 1 (char 0)",
            "x" * 200,
        ),
    ]


def test_line_above_the_limit(tmp_path, stored):
    long = b'{"text": "' + b"y" * 90 + b'"}'
    data = b'{"text": "a"}\n' + long + b'\n{"text": "b"}\n' + long
    documents, rejects, batches = read(tmp_path, stored("a.jsonl", data), max_line_bytes=101)
    assert [document[0] for document in documents] == ["a", "b"]
    assert rejects == [
        Reject("a.jsonl", 2, 14, "line_too_long", "102 bytes", long.decode()),
        Reject("a.jsonl", 4, 131, "line_too_long", "102 bytes", long.decode()),
    ]
    assert sum(batch.read_bytes for batch in batches) == len(data)
    assert len(read(tmp_path, stored("a.jsonl", data), max_line_bytes=102)[0]) == 4


def test_fault_is_a_reject_and_the_next_file_is_read(tmp_path, stored):
    broken = stored(
        "a.jsonl.gz", gzip.compress(b'{"text": "1"}\n{"text": "2", "and": "more"}\n')[:-12]
    )
    sound = stored("b.jsonl", b'{"text": "3"}\n')
    documents, rejects, batches = read(tmp_path, broken, sound)
    assert documents[0][0] == "1"
    assert documents[-1] == ("3", None, "b.jsonl", 1, 0)
    fault = rejects[-1]
    assert (fault.file, fault.reason, fault.excerpt) == ("a.jsonl.gz", "truncated_gzip", "")
    assert fault.offset >= 14
    assert sum(batch.faults for batch in batches) == 1


def test_millions_of_rejects_are_not_held(tmp_path, measured):
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(b"\n" * 1_000_000))
    value, mib = measured("sum(len(batch.rejects) for batch in read_documents(folder, source))")
    assert value == "1000000"
    assert mib < 130


@pytest.mark.parametrize("kind", ["gz", "zst"])
def test_line_of_half_a_gigabyte_is_not_held(tmp_path, measured, kind):
    """A few hundred kilobytes that inflate to one line of 512 MiB."""
    compress = (lambda data: gzip.compress(data, 6)) if kind == "gz" else zstandard.compress
    line, block = b'{"text": "ok"}\n', compress(b"a" * (8 << 20))
    (tmp_path / f"a.jsonl.{kind}").write_bytes(compress(line) + block * 64 + compress(b"\n" + line))
    value, mib = measured(
        "[(batch.texts, [reject.detail for reject in batch.rejects])"
        " for batch in read_documents(folder, source, max_line_bytes=1 << 20)]"
    )
    assert value == "[(['ok'], ['536,870,912 bytes']), (['ok'], [])]"
    assert mib < 100
