"""Files whose content is not what their names say: each is one fault, which names what it is."""

import bz2
import gzip
import json
import lzma

import pytest
import zstandard

from nanoset_core.raw.documents import read_documents
from nanoset_core.raw.fingerprints import fingerprint
from nanoset_core.raw.listing import list_files
from nanoset_core.raw.pieces import SourceRange

LINES = b'{"text": "one"}\n{"text": "two"}\n'
ROWS = [{"text": "one"}, {"text": "two"}]


# The bytes are in no test's name: gzip's hold the time, and two processes would collect different tests.


def parquet():
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.table({"text": ["one", "two"]}), sink)
    return sink.getvalue().to_pybytes()


def read(folder, name, data):
    (folder / name).write_bytes(data)
    (stat,) = list_files(folder)
    return list(read_documents(folder, SourceRange(tuple(fingerprint(folder, stat)))))


@pytest.mark.parametrize(("name", "data", "said"), [
    ("a.jsonl", gzip.compress(LINES, mtime=0), "gzip data, whose name should end in .gz"),
    ("a.jsonl", zstandard.compress(LINES), "zstd data"),
    ("a.jsonl", bz2.compress(LINES), "bzip2 data, which is not read"),
    ("a.json", lzma.compress(LINES), "xz data"),
    ("a.jsonl", parquet(), "a Parquet file"),
    ("a.jsonl", LINES.decode().encode("utf-16"), "text in UTF-16"),
    ("a.jsonl.gz", LINES, "plain text, whose name should end in .jsonl"),
    ("a.jsonl.gz", zstandard.compress(LINES), "zstd data"),
    ("a.jsonl.gz", gzip.compress(gzip.compress(LINES, mtime=0), mtime=0), "gzip data"),
    ("a.jsonl.zst", LINES, "plain text"),
    ("a.jsonl.zst", gzip.compress(LINES, mtime=0), "gzip data"),
    ("a.parquet", LINES, "plain text"),
    ("a.arrow", gzip.compress(LINES, mtime=0), "gzip data"),
    ("a.arrow", parquet(), "a Parquet file"),
    ("a.json", json.dumps(ROWS).encode(), "one JSON array: JSON lines are expected"),
    ("a.json", json.dumps(ROWS, indent=1).encode(), "one JSON array"),
    ("a.json.gz", gzip.compress(json.dumps(ROWS, indent=1).encode(), mtime=0), "one JSON array"),
    ("a.json", json.dumps(ROWS[0], indent=1).encode(), "JSON that is spread over lines"),
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
def test_lines_are_judged_one_by_one(tmp_path, data):
    (batch,) = read(tmp_path, "a.jsonl", data)
    assert batch.faults == 0


def test_lines_after_the_first_piece_are_not_judged(tmp_path, monkeypatch):
    from nanoset_core.raw import fingerprints

    monkeypatch.setattr(fingerprints, "PIECE_BYTES", 10)
    batches = read(tmp_path, "a.jsonl", b'{"text": "one"}\n[{"text": "two"}]\n')
    assert sum(batch.faults for batch in batches) == 0
