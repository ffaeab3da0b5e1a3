import gzip
import json

import pytest
import zstandard

from nanoset_core.raw.documents import read_documents
from nanoset_core.raw.endings import ending_of, is_companion, is_cuttable, is_table, is_text, is_unfinished
from nanoset_core.raw.pieces import SourceRange
from nanoset_core.raw.survey import take_inventory


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a.jsonl", True),
        ("sub/a.jsonl.zst", True),
        ("c4-train.00000-of-01024.json.gz", True),
        ("a.json", True),
        ("a.json.zst", True),
        ("a.ndjson", True),
        ("a.ndjson.gz", True),
        ("A.JSONL.GZ", True),
        ("a.Parquet", True),
        ("a.parquet", True),
        ("data-00000-of-00002.arrow", True),
        ("cache-dump.arrow", True),
        ("sub/cache-0123456789abcdef.arrow", False),
        ("cache-0123456789abcdef_00001_of_00008.arrow", False),
        ("cache-0123456789abcdef.parquet", True),
        ("state.json", False),
        ("sub/dataset_info.json", False),
        ("out/web_text_document.manifest.json", False),
        ("dataset_dict.json", False),
        ("web_text_document.manifest.json", False),
        ("state.jsonl", True),
        ("state.json.gz", True),
        ("estate.json", True),
        ("california.state.json", True),
        ("web.metadata.json", True),
        ("tmp1a2b3c4d", False),
        ("a.arrow.lock", False),
        ("a.txt", False),
        ("a.jsonl.bz2", False),
        ("jsonl", False),
    ],
)
def test_what_is_read(path, expected):
    assert is_text(path) is expected


@pytest.mark.parametrize(("path", "table", "cuttable"), [
    ("A.JSONL", False, True), ("a.json", False, True), ("a.jsonl.GZ", False, False), ("a.json.zst", False, False),
    ("a.PARQUET", True, False), ("a.Arrow", True, False),
])  # fmt: skip
def test_how_it_is_read(path, table, cuttable):
    assert (is_table(path), is_cuttable(path)) == (table, cuttable)


@pytest.mark.parametrize("path", [
    "README.md", "sub/readme", "LICENSE", "LICENSE.txt", "_SUCCESS", "_committed_123", "a.jsonl.crc", "sha256sums.txt",
    "a.jsonl.md5", "state.json", "cache-0123456789abcdef.arrow", "notes.md",
])  # fmt: skip
def test_companions(path):
    assert is_companion(path)


@pytest.mark.parametrize("path", ["a.txt", "a.jsonl.bz2", "_data.txt", "reader.txt", "data", "a.csv"])
def test_no_companions(path):
    assert not is_companion(path)


@pytest.mark.parametrize(("path", "ending"), [
    ("a.txt", ".txt"), ("sub.d/a", "no ending"), ("a.JSONL.bz2", ".jsonl.bz2"), ("a.v2.csv", ".csv"),
    ("a.", "no ending"),
])  # fmt: skip
def test_endings_that_are_told_apart(path, ending):
    assert ending_of(path) == ending


def test_unfinished():
    assert is_unfinished("a.jsonl.part")
    assert not is_unfinished("a.jsonl")


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
