import bz2
import codecs
import gzip
import json
import lzma
import pickle

import pytest
import zstandard

from nanoset_core.text import fingerprints
from nanoset_core.text.content_kinds import describe_content
from nanoset_core.text.contents import contents_of
from nanoset_core.text.documents import read_documents, reader_of
from nanoset_core.text.endings import (
    FORMATS,
    ending_of,
    is_companion,
    is_cuttable,
    is_table,
    is_text,
)
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.inventories import take_inventory
from nanoset_core.text.pieces import SourceRange

READ = """
    a.jsonl sub/a.jsonl.zst c4-train.00000-of-01024.json.gz a.json a.json.zst a.ndjson a.ndjson.gz A.JSONL.GZ a.Parquet
    a.parquet data-00000-of-00002.arrow cache-dump.arrow cache-0123456789abcdef.parquet state.jsonl state.json.gz
    estate.json california.state.json web.metadata.json
"""
NOT_READ = """
    sub/cache-0123456789abcdef.arrow cache-0123456789abcdef_00001_of_00008.arrow state.json sub/dataset_info.json
    out/web_text_document.manifest.json dataset_dict.json web_text_document.manifest.json tmp1a2b3c4d a.arrow.lock a.txt
    a.jsonl.bz2 jsonl a.csv
"""


def test_what_is_read():
    assert [path for path in READ.split() if not is_text(path)] == []
    assert [path for path in NOT_READ.split() if is_text(path)] == []


@pytest.mark.parametrize(("path", "table", "cuttable"), [
    ("A.JSONL", False, True), ("a.json", False, True), ("a.jsonl.GZ", False, False), ("a.json.zst", False, False),
    ("a.PARQUET", True, False), ("a.Arrow", True, False),
])  # fmt: skip
def test_how_it_is_read(path, table, cuttable):
    assert (is_table(path), is_cuttable(path)) == (table, cuttable)


def test_companions():
    paths = (
        "README.md sub/readme LICENSE LICENSE.txt _SUCCESS _committed_123 a.jsonl.crc "
        "sha256sums.txt a.jsonl.md5 "
        "state.json cache-0123456789abcdef.arrow notes.md dataset_info.json dataset_infos.json "
        "dataset_dict.json "
        "a.lock croissant.json checksums.json"
    )
    assert [path for path in paths.split() if not is_companion(path)] == []
    assert [
        path
        for path in ["a.txt", "a.jsonl.bz2", "_data.txt", "reader.txt", "data", "a.csv"]
        if is_companion(path)
    ] == []


@pytest.mark.parametrize(("path", "ending"), [
    ("a.txt", ".txt"), ("sub.d/a", "no ending"), ("a.JSONL.bz2", ".jsonl.bz2"), ("a.v2.csv", ".csv"),
    ("a.", "no ending"),
])  # fmt: skip
def test_endings_that_are_told_apart(path, ending):
    assert ending_of(path) == ending


def test_a_format_of_its_own_is_not_read_as_lines(monkeypatch):
    """An ending that is added must name a format that has a reader."""
    monkeypatch.setitem(FORMATS, ".csv", "csv")
    assert not is_cuttable("a.csv")
    with pytest.raises(KeyError):
        reader_of("a.csv")


def test_every_ending_gives_its_documents(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    def line(name):
        return json.dumps({"text": name}).encode() + b"\n"

    for name in ("a.jsonl", "b.json", "c.ndjson", "D.JSONL"):
        (tmp_path / name).write_bytes(line(name))
    for name in ("e.json.gz", "f.ndjson.gz", "G.Jsonl.GZ"):
        (tmp_path / name).write_bytes(gzip.compress(line(name)))
    for name in ("h.json.zst", "i.ndjson.ZST"):
        (tmp_path / name).write_bytes(zstandard.compress(line(name)))
    pq.write_table(pa.table({"text": ["j.Parquet"]}), tmp_path / "j.Parquet")
    with pa.ipc.new_file(tmp_path / "k.ARROW", pa.schema({"text": pa.string()})) as file:
        file.write_table(pa.table({"text": ["k.ARROW"]}))
    inventory = take_inventory(tmp_path, "web")
    (batch,) = read_documents(tmp_path, SourceRange(inventory.pieces))
    assert batch.texts == list(inventory.files)
    assert len(batch.texts) == 11
    assert batch.rejects == []


LINES = b'{"text": "one"}\n{"text": "two"}\n'
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"
ROWS = [{"text": "one"}, {"text": "two"}]


# The bytes are in no test's name: gzip's hold the time, and two processes would collect different
# tests.


def parquet():
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["one", "two"]}), sink)
    return sink.getvalue().to_pybytes()


def read(folder, name, data):
    (folder / name).write_bytes(data)
    (stat,) = contents_of(folder).ordered
    return list(read_documents(folder, SourceRange(tuple(fingerprint(folder, stat)))))


@pytest.mark.parametrize(("name", "data", "said"), [
    ("a.jsonl", gzip.compress(LINES, mtime=0), "gzip data, whose name should end in .gz"),
    ("a.jsonl", zstandard.compress(LINES), "zstd data"),
    ("a.jsonl", bz2.compress(LINES), "bzip2 data, which is not read"),
    ("a.json", lzma.compress(LINES), "xz data"),
    ("a.jsonl", parquet(), "a Parquet file"),
    ("a.jsonl", LINES.decode().encode("utf-16"), "text in UTF-16"),
    ("a.jsonl", LINES.decode().encode("utf-16-le"), "text in UTF-16 without a byte order mark"),
    ("a.jsonl", LINES.decode().encode("utf-16-be"), "text in UTF-16 without a byte order mark"),
    ("a.jsonl", LINES.decode().encode("utf-32"), "text in UTF-32, which is not read"),
    ("a.jsonl", codecs.BOM_UTF32_BE + LINES.decode().encode("utf-32-be"), "text in UTF-32, which is not read"),
    ("a.jsonl", LINES.decode().encode("utf-32-le"), "text in UTF-32 without a byte order mark"),
    ("a.jsonl.gz", gzip.compress(LINES.decode().encode("utf-32-be"), mtime=0), "UTF-32 without a byte order mark"),
    ("a.jsonl", POINTER, "a pointer of Git LFS and not the data"),
    ("a.parquet", POINTER, "a pointer of Git LFS and not the data"),
    ("a.parquet", b"<!DOCTYPE html>\n<html>", "an HTML page"),
    ("a.jsonl", b"%PDF-1.4\n", "a PDF document"),
    ("a.jsonl", pickle.dumps(ROWS), "a Python pickle"),
    ("a.jsonl.gz", LINES, "plain text, whose name should end in .jsonl"),
    ("a.jsonl.gz", zstandard.compress(LINES), "zstd data"),
    ("a.jsonl.gz", gzip.compress(gzip.compress(LINES, mtime=0), mtime=0), "gzip data"),
    ("a.jsonl.zst", LINES, "plain text"),
    ("a.jsonl.zst", gzip.compress(LINES, mtime=0), "gzip data"),
    ("a.parquet", LINES, "plain text"),
    ("a.arrow", gzip.compress(LINES, mtime=0), "gzip data"),
    ("a.arrow", parquet(), "a Parquet file"),
    ("a.json", json.dumps(ROWS).encode(), "one JSON array, not JSON lines"),
    ("a.json", json.dumps(ROWS, indent=1).encode(), "one JSON array"),
    ("a.json.gz", gzip.compress(json.dumps(ROWS, indent=1).encode(), mtime=0), "one JSON array"),
    ("a.json", json.dumps(ROWS[0], indent=1).encode(), "one JSON document over many lines, not JSON lines"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_names_what_it_looks_like(tmp_path, name, data, said):
    (batch,) = read(tmp_path, name, data)
    (reject,) = batch.rejects
    assert reject.is_fault
    assert (reject.file, batch.faults, batch.texts) == (name, 1, [])
    assert said in reject.detail


@pytest.mark.parametrize(("name", "data"), [
    ("a.jsonl.gz", b"\0" * 300),
    ("a.parquet", b"\0" * 300),
    ("a.jsonl.gz", b"\x1f\x8b\x08" + b"\xff" * 300),
    ("a.parquet", b"PAR1" + b"\0" * 300),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_damage_is_not_taken_for_another_kind(tmp_path, name, data):
    (batch,) = read(tmp_path, name, data)
    assert not batch.rejects[0].detail.startswith("the file is")


@pytest.mark.parametrize("data", [
    b'[{"text": "one"}]\n{"text": "two"}\n', b'{\n"text": "one"}\n', b'[1, 2]\n{"text": "one"}\n',
    b'\n{"text": "one"}\n', b'{\t"text": "one"}\n', b"prose\n",
])  # fmt: skip
def test_lines_are_judged_one_by_one(tmp_path, data):
    (batch,) = read(tmp_path, "a.jsonl", data)
    assert batch.faults == 0


def test_lines_after_the_first_piece_are_not_judged(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)
    batches = read(tmp_path, "a.jsonl", b'{"text": "one"}\n[{"text": "two"}]\n')
    assert sum(batch.faults for batch in batches) == 0


@pytest.mark.parametrize(("head", "said"), [
    (json.dumps(ROWS).encode(), "one JSON array"),
    (b"[\n" + b",\n".join(LINES.splitlines()) + b"\n]\n", "one JSON array"),
    (json.dumps(ROWS[0], indent=1).encode(), "one JSON document over many lines"),
    (LINES.replace(b"\n", b"\r"), "text whose lines end with carriage returns alone"),
    (LINES.replace(b"\n", b""), "JSON objects without line ends between them"),
    (LINES.replace(b"\n", b",\n"), "JSON objects with commas between them"),
    (b"\x1e" + LINES.replace(b"\n", b"\n\x1e"), "a JSON text sequence"),
    (b"<html><body>Not found</body></html>", "an HTML page"),
    (bytes(100), "nothing but zero bytes"),
    (bytes(range(256)), "binary data"),
    (b"id,text\n1,one\n", "plain text or a table such as CSV"),
], ids=lambda value: value if isinstance(value, str) else "")  # fmt: skip
def test_a_file_without_documents_is_described(head, said):
    assert said in describe_content(head)


@pytest.mark.parametrize(
    "head", [b"", LINES, b'[{"text": "one"}]\n' + LINES, b'{"text": 1}\n', b'{"text": "cut']
)
def test_lines_that_may_be_documents_are_not_described_as_something_else(head):
    assert describe_content(head) is None
