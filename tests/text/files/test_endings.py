"""Names and first bytes of files: what is read and how, and what a file with a wrong name is."""

import codecs
import gzip
import json
import lzma
import pickle

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from nanoset_core.text.documents import read_documents, reader_of
from nanoset_core.text.files.content_kinds import describe_content
from nanoset_core.text.files.contents import contents_of
from nanoset_core.text.files.endings import (
    FORMATS,
    ending_of,
    is_companion,
    is_cuttable,
    is_table,
    is_text,
    is_text_of_other_compression,
    is_txt_or_csv,
)
from nanoset_core.text.inventory import fingerprints
from nanoset_core.text.inventory.fingerprints import fingerprint
from nanoset_core.text.inventory.pieces import SourceRange
from nanoset_core.text.inventory.take import take_inventory


def parquet_data(texts):
    """Return a Parquet file with some texts."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": texts}), sink)
    return sink.getvalue().to_pybytes()


# Names


@pytest.mark.parametrize(
    "path",
    [
        "a.jsonl",
        "sub/a.jsonl.zst",
        "c4-train.00000-of-01024.json.gz",
        "a.json",
        "a.json.zst",
        "a.ndjson",
        "a.ndjson.gz",
        "A.JSONL.GZ",
        "a.Parquet",
        "a.parquet",
        "data-00000-of-00002.arrow",
        # Names that resemble those of files of other programs.
        "cache-dump.arrow",
        "cache-0123456789abcdef.parquet",
        "state.jsonl",
        "state.json.gz",
        "estate.json",
        "california.state.json",
        "web.metadata.json",
    ],
)
def test_files_of_text_are_recognized_by_their_names(path):
    assert is_text(path)


@pytest.mark.parametrize(
    "path",
    [
        # Files of the library `datasets`.
        "sub/cache-0123456789abcdef.arrow",
        "cache-0123456789abcdef_00001_of_00008.arrow",
        "state.json",
        "sub/dataset_info.json",
        "dataset_dict.json",
        "tmp1a2b3c4d",
        "a.arrow.lock",
        # Handoffs of this program.
        "out/web_text_document.manifest.json",
        "web_text_document.manifest.json",
        # Formats that are not read.
        "a.pdf",
        "a.jsonl.xz",
        "jsonl",
        # Tables that describe other files.
        "metadata.csv",
        "sub/manifest.tsv",
        # Files that often accompany text.
        "README.txt",
        "sha256sums.txt",
    ],
)
def test_other_files_are_not_read(path):
    assert not is_text(path)
    assert not is_txt_or_csv(path)


@pytest.mark.parametrize(
    "path", ["a.txt", "A.TXT.GZ", "sub/a.csv", "a.csv.zst", "a.tsv", "my_metadata.csv"]
)
def test_txt_and_csv_are_read_only_without_other_formats(path):
    assert is_txt_or_csv(path)
    assert not is_text(path)
    assert not is_table(path)
    assert not is_cuttable(path)


@pytest.mark.parametrize("path", ["A.JSONL", "a.json"])
def test_plain_lines_can_be_cut(path):
    assert not is_table(path)
    assert is_cuttable(path)


@pytest.mark.parametrize("path", ["a.jsonl.GZ", "a.json.zst"])
def test_compressed_lines_cannot_be_cut(path):
    assert not is_table(path)
    assert not is_cuttable(path)


@pytest.mark.parametrize("path", ["a.PARQUET", "a.Arrow"])
def test_tables_cannot_be_cut(path):
    assert is_table(path)
    assert not is_cuttable(path)


@pytest.mark.parametrize(
    "path",
    [
        "README.md",
        "sub/readme",
        "LICENSE",
        "LICENSE.txt",
        "_SUCCESS",
        "_committed_123",
        "a.jsonl.crc",
        "sha256sums.txt",
        "a.jsonl.md5",
        "state.json",
        "cache-0123456789abcdef.arrow",
        "notes.md",
        "dataset_info.json",
        "dataset_infos.json",
        "dataset_dict.json",
        "a.lock",
        "croissant.json",
        "checksums.json",
    ],
)
def test_files_that_usually_accompany_text_are_companions(path):
    assert is_companion(path)


@pytest.mark.parametrize(
    "path", ["a.txt", "a.jsonl.xz", "_data.txt", "reader.txt", "data", "a.csv", "data.tsv"]
)
def test_files_that_may_be_text_are_no_companions(path):
    assert not is_companion(path)


@pytest.mark.parametrize(
    ("path", "ending"),
    [
        ("a.txt", ".txt"),
        ("sub.d/a", "no ending"),
        ("a.JSONL.xz", ".jsonl.xz"),
        ("a.v2.csv", ".csv"),
        ("a.", "no ending"),
    ],
)
def test_files_that_are_not_read_are_counted_by_ending(path, ending):
    assert ending_of(path) == ending


def test_an_ending_that_is_added_needs_a_reader(monkeypatch):
    """Otherwise files of a new format would be read as lines."""
    monkeypatch.setitem(FORMATS, ".avro", "avro")

    assert not is_cuttable("a.avro")
    with pytest.raises(KeyError):
        reader_of("a.avro")


def test_files_of_every_ending_have_documents(tmp_path):
    def line(name):
        return json.dumps({"text": name}).encode() + b"\n"

    # The text of each document is the name of its file.
    for name in ("a.jsonl", "b.json", "c.ndjson", "D.JSONL"):
        (tmp_path / name).write_bytes(line(name))
    for name in ("e.json.gz", "f.ndjson.gz", "G.Jsonl.GZ"):
        (tmp_path / name).write_bytes(gzip.compress(line(name)))
    for name in ("h.json.zst", "i.ndjson.ZST"):
        (tmp_path / name).write_bytes(zstandard.compress(line(name)))
    (tmp_path / "j.Parquet").write_bytes(parquet_data(["j.Parquet"]))
    with pa.ipc.new_file(tmp_path / "k.ARROW", pa.schema({"text": pa.string()})) as writer:
        writer.write_table(pa.table({"text": ["k.ARROW"]}))

    inventory = take_inventory(tmp_path, "web")
    [batch] = read_documents(tmp_path, SourceRange(inventory.pieces))

    assert batch.texts == list(inventory.files)
    assert len(batch.texts) == 11
    assert batch.rejects == []


def test_txt_and_csv_files_of_every_ending_have_documents(tmp_path):
    contents = {"txt": "the text", "csv": "n,text\n1,the text\n", "tsv": "n\ttext\n1\tthe text\n"}
    for ending, content in contents.items():
        data = content.encode()
        (tmp_path / f"a.{ending}").write_bytes(data)
        (tmp_path / f"B.{ending.upper()}.GZ").write_bytes(gzip.compress(data))
        (tmp_path / f"c.{ending}.zst").write_bytes(zstandard.compress(data))

    inventory = take_inventory(tmp_path, "web")
    [batch] = read_documents(tmp_path, SourceRange(inventory.pieces))

    assert len(inventory.files) == 9
    assert batch.texts == ["the text"] * 9
    assert batch.rejects == []


# The first bytes of files with wrong names

ROWS = [{"text": "one"}, {"text": "two"}]
LINES = b'{"text": "one"}\n{"text": "two"}\n'
TEXT = LINES.decode()
PARQUET = parquet_data(["one", "two"])
GIT_LFS_POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12\n"
JSON_ARRAY = json.dumps(ROWS).encode()
INDENTED_ARRAY = json.dumps(ROWS, indent=1).encode()
INDENTED_OBJECT = json.dumps(ROWS[0], indent=1).encode()


def gz(data):
    """Return a gzip file without a time, so that its bytes are always the same."""
    return gzip.compress(data, mtime=0)


def read_file(folder, name, data):
    """Return the batches of documents of a file, which is the only one of its folder."""
    (folder / name).write_bytes(data)
    [stat] = contents_of(folder).ordered
    pieces = fingerprint(folder, stat)
    return list(read_documents(folder, SourceRange(tuple(pieces))))


# The cases have no bytes in their ids, since processes that run tests must agree on the ids.
@pytest.mark.parametrize(
    ("name", "data", "detail"),
    [
        ("a.jsonl", gz(LINES), "gzip data, whose name should end in .gz"),
        ("a.jsonl", zstandard.compress(LINES), "zstd data"),
        ("a.jsonl", lzma.compress(LINES), "xz data, which is not read"),
        ("a.json", lzma.compress(LINES), "xz data"),
        ("a.jsonl", PARQUET, "a Parquet file"),
        ("a.jsonl", TEXT.encode("utf-16"), "text in UTF-16"),
        ("a.jsonl", TEXT.encode("utf-16-le"), "text in UTF-16 without a byte order mark"),
        ("a.jsonl", TEXT.encode("utf-16-be"), "text in UTF-16 without a byte order mark"),
        ("a.jsonl", TEXT.encode("utf-32"), "text in UTF-32, which is not read"),
        (
            "a.jsonl",
            codecs.BOM_UTF32_BE + TEXT.encode("utf-32-be"),
            "text in UTF-32, which is not read",
        ),
        ("a.jsonl", TEXT.encode("utf-32-le"), "text in UTF-32 without a byte order mark"),
        ("a.jsonl.gz", gz(TEXT.encode("utf-32-be")), "UTF-32 without a byte order mark"),
        ("a.jsonl", GIT_LFS_POINTER, "a pointer of Git LFS and not the data"),
        ("a.parquet", GIT_LFS_POINTER, "a pointer of Git LFS and not the data"),
        ("a.parquet", b"<!DOCTYPE html>\n<html>", "an HTML page"),
        ("a.jsonl", b"%PDF-1.4\n", "a PDF document"),
        ("a.jsonl", pickle.dumps(ROWS), "a Python pickle"),
        ("a.jsonl.gz", LINES, "plain text, whose name should end in .jsonl"),
        ("a.jsonl.gz", zstandard.compress(LINES), "zstd data"),
        ("a.jsonl.gz", gz(gz(LINES)), "gzip data"),
        ("a.jsonl.zst", LINES, "plain text"),
        ("a.jsonl.zst", gz(LINES), "gzip data"),
        ("a.parquet", LINES, "plain text"),
        ("a.arrow", gz(LINES), "gzip data"),
        ("a.arrow", PARQUET, "a Parquet file"),
        ("a.json", JSON_ARRAY, "one JSON array, not JSON lines"),
        ("a.json", INDENTED_ARRAY, "one JSON array"),
        ("a.json.gz", gz(INDENTED_ARRAY), "one JSON array"),
        ("a.json", INDENTED_OBJECT, "one JSON document over many lines, not JSON lines"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_the_fault_of_a_file_with_a_wrong_name_says_what_the_file_is(tmp_path, name, data, detail):
    [batch] = read_file(tmp_path, name, data)

    assert batch.texts == []
    assert batch.faults == 1
    [fault] = batch.rejects
    assert fault.is_fault
    assert fault.file == name
    assert detail in fault.detail


@pytest.mark.parametrize(
    ("name", "data"),
    [
        pytest.param("a.jsonl.gz", b"\0" * 300, id="zeros as gzip"),
        pytest.param("a.parquet", b"\0" * 300, id="zeros as Parquet"),
        pytest.param("a.jsonl.gz", b"\x1f\x8b\x08" + b"\xff" * 300, id="damaged gzip"),
        pytest.param("a.parquet", b"PAR1" + b"\0" * 300, id="damaged Parquet"),
    ],
)
def test_a_damaged_file_is_not_described_as_another_kind_of_file(tmp_path, name, data):
    [batch] = read_file(tmp_path, name, data)

    assert not batch.rejects[0].detail.startswith("the file is")


@pytest.mark.parametrize(
    "data",
    [
        b'[{"text": "one"}]\n{"text": "two"}\n',
        b'{\n"text": "one"}\n',
        b'[1, 2]\n{"text": "one"}\n',
        b'\n{"text": "one"}\n',
        b'{\t"text": "one"}\n',
        b"prose\n",
    ],
)
def test_lines_are_rejected_one_by_one_if_the_file_may_have_documents(tmp_path, data):
    [batch] = read_file(tmp_path, "a.jsonl", data)

    assert batch.faults == 0


def test_only_the_first_piece_of_a_file_can_show_what_the_file_is(tmp_path, monkeypatch):
    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)

    batches = read_file(tmp_path, "a.jsonl", b'{"text": "one"}\n[{"text": "two"}]\n')

    assert sum(batch.faults for batch in batches) == 0


# Descriptions of files all of whose lines were rejected


@pytest.mark.parametrize(
    ("head", "description"),
    [
        (JSON_ARRAY, "one JSON array"),
        (b'[\n{"text": "one"},\n{"text": "two"}\n]\n', "one JSON array"),
        (INDENTED_OBJECT, "one JSON document over many lines"),
        (
            b'{"text": "one"}\r{"text": "two"}\r',
            "text whose lines end with carriage returns alone",
        ),
        (b'{"text": "one"}{"text": "two"}', "JSON objects without line ends between them"),
        (b'{"text": "one"},\n{"text": "two"},\n', "JSON objects with commas between them"),
        (b'\x1e{"text": "one"}\n\x1e{"text": "two"}\n\x1e', "a JSON text sequence"),
        (b"<html><body>Not found</body></html>", "an HTML page"),
        (bytes(100), "nothing but zero bytes"),
        (b"\n\n \n", "nothing but white space"),
        (bytes(range(256)), "binary data"),
        (b"id,text\n1,one\n", "plain text or a table such as CSV"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_without_documents_is_described(head, description):
    assert description in describe_content(head)


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(LINES, id="documents"),
        pytest.param(b'[{"text": "one"}]\n' + LINES, id="an array and documents"),
        pytest.param(b'{"text": 1}\n', id="a line without a text"),
        pytest.param(b'{"text": "cut', id="a line that was cut off"),
    ],
)
def test_lines_that_may_be_documents_are_not_described(head):
    assert describe_content(head) is None


@pytest.mark.parametrize(
    ("path", "is_recognized"),
    [
        ("web/A.jsonl.XZ", True),
        ("a.json.xz", True),
        ("a.txt.zip", True),
        ("a.jsonl.gz", False),
        ("a.tar.xz", False),
        ("xz", False),
    ],
)
def test_text_with_another_compression_is_recognized_by_its_name(path, is_recognized):
    assert is_text_of_other_compression(path) == is_recognized
