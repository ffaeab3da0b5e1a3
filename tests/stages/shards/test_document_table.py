"""The table of a shard's documents; and lines that count from 1 in each piece ↔ lines of their
file.
"""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.stages.shards import document_table
from nanoset_core.stages.shards.line_numbers import (
    PIECE_LINES,
    LineNumbers,
    line_name,
    piece_lines_of_shard,
)
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject


def batch(first, count):
    numbers = range(first, first + count)
    return DocumentBatch(
        texts=[""] * count,
        files=[number % 2 for number in numbers],
        lines=[number + 1 for number in numbers],
        offsets=[number * 10 for number in numbers],
        ids=[None if number % 3 else f"id-{number}" for number in numbers],
    )


def write(path, counts):
    with document_table.document_table(path, ["a.jsonl", "sub/b.jsonl.gz"]) as add:
        first = 0
        for count in counts:
            add(
                batch(first, count),
                np.arange(first, first + count, dtype=np.int32),
                np.ones(count, bool),
            )
            first += count
    return path


def test_rows_and_types(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    assert pq.read_table(write(tmp_path / "none.parquet", [])).num_rows == 0
    table = pq.read_table(write(tmp_path / "t.parquet", [3, 0, 4]))
    assert table.column_names == ["file", "line", "byte_offset", "id", "tokens"]
    assert table.schema.types[1:] == [pa.int64(), pa.int64(), pa.string(), pa.int32()]
    assert table.to_pylist() == [
        {
            "file": ["a.jsonl", "sub/b.jsonl.gz"][number % 2],
            "line": number + 1,
            "byte_offset": number * 10,
            "id": None if number % 3 else f"id-{number}",
            "tokens": number,
        }
        for number in range(7)
    ]


@pytest.mark.parametrize("counts", [[23], [1] * 23, [9, 0, 14], [10, 10, 3], [22, 1]])
def test_same_documents_same_bytes_however_batched(tmp_path, monkeypatch, counts):
    import pyarrow.parquet as pq

    monkeypatch.setattr(document_table, "ROW_GROUP_ROWS", 10)
    path = write(tmp_path / "t.parquet", counts)
    assert path.read_bytes() == write(tmp_path / "whole.parquet", [23]).read_bytes()
    metadata = pq.ParquetFile(path).metadata
    assert [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)] == [
        10,
        10,
        3,
    ]


def test_pandas_is_not_imported(tmp_path):
    """Where it is installed, pyarrow.array looks for it, which takes each worker half a second."""
    (tmp_path / "pandas.py").write_text("print('pandas')")
    code = (
        "from test_document_table import batch, document_table, np\n"
        "with document_table.document_table('t.parquet', ['a', 'b']) as add:\n"
        "    add(batch(0, 3), np.arange(3, dtype=np.int32), np.arange(3) > 0)\n"
    )
    paths = {"PYTHONPATH": os.pathsep.join([str(tmp_path), os.path.dirname(__file__), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=os.environ | paths, capture_output=True
    )
    assert (done.returncode, done.stdout) == (0, b""), done.stderr


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_numbers_of_pieces_and_of_files_are_each_others_inverse(counts):
    numbers = LineNumbers({"a": [[100 * at, count] for at, count in enumerate(counts)]})
    line = 0
    for at, count in enumerate(counts):
        for within in range(1, count + 1):
            line += 1
            assert numbers.in_file("a", 100 * at + 7, within) == line
            assert numbers.in_piece("a", line) == (100 * at, within)
    piece, within = numbers.in_piece("a", line + 5)
    assert numbers.in_file("a", piece, within) == line + 5, "beyond the end"


def test_other_files_are_left_alone():
    numbers = LineNumbers({"a": [[0, 3], [50, 4]]})
    reject = Reject("b", 7, 60, "blank_line", "", "")
    assert numbers.of_reject(reject) is reject or numbers.of_reject(reject) == reject
    assert numbers.in_piece("b", 7) is None
    assert numbers.of_reject(Reject("a", 2, 60, "blank_line", "", "")).line == 5
    assert LineNumbers().in_file("a", 60, 2) == 2


@pytest.mark.parametrize(
    ("piece", "named"),
    [
        (Piece("a", 0, 100, 0, ""), "a:3"),
        (Piece("a", 0, 100, 1, ""), "a:3"),
        (Piece("a", 10, 100, 90, ""), "a:3"),
        (Piece("a", 10, 100, 0, ""), "a"),
        (Piece("a", 60, 100, 0, ""), "a:3"),
        (Piece("b", 10, 100, 0, ""), "a:3"),
    ],
)
def test_a_line_is_named_by_its_number_only_where_that_is_known(piece, named):
    assert line_name(SourceRange((piece,)), "a", 3, 50) == named


def test_pieces_without_counts_are_counted_as_they_are_read(tmp_path):
    lines = [
        b'{"text": "one"}\n',
        b"\n",
        b"x" * 300 + b"\n",
        b'{"text": "two"}\n',
        b'{"text": "last"}',
    ]
    text = b"".join(lines)
    (tmp_path / "a.jsonl").write_bytes(text)
    (tmp_path / "b.jsonl").write_bytes(b"\x1f\x8b\x08\x00" + b"\n" * 50)
    cut = len(b"".join(lines[:3]))
    pieces = [
        Piece("a.jsonl", 0, cut, 0, ""),
        Piece("a.jsonl", cut, len(text), 0, ""),
        Piece("b.jsonl", 0, 54, 0, ""),
    ]
    batches = list(
        read_documents(
            tmp_path, SourceRange(tuple(pieces)), max_line_bytes=200, batch_bytes=1, verify=False
        )
    )
    found = [one for batch in batches for one in batch.lines_of_pieces]
    assert found == [(pieces[0], 3), (pieces[1], 2), (pieces[2], 50)]
    assert [line for batch in batches for line in batch.lines] == [1, 1, 2]
    facts = json.loads(json.dumps(piece_lines_of_shard(found)))
    assert facts == {PIECE_LINES: {"a.jsonl": [[0, 3], [cut, 2]], "b.jsonl": [[0, 50]]}}
    assert piece_lines_of_shard([]) == {}
