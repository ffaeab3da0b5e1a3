"""Lines that count from 1 in each piece ↔ lines of their file."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.raw.documents import read_documents
from nanoset_core.raw.pieces import Piece, SourceRange
from nanoset_core.raw.rejects import Reject
from nanoset_core.tokenization.document_table import FACT, LineNumbers, count_facts, place_in

UNKNOWN = LineNumbers()


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
    assert UNKNOWN.in_file("a", 60, 2) == 2


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
    assert place_in(SourceRange((piece,)), "a", 3, 50) == named


def test_pieces_without_counts_are_counted_as_they_are_read(tmp_path):
    lines = [b'{"text": "one"}\n', b"\n", b"x" * 300 + b"\n", b'{"text": "two"}\n', b'{"text": "last"}']
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
        read_documents(tmp_path, SourceRange(tuple(pieces)), max_line_bytes=200, batch_bytes=1, verify=False)
    )
    found = [one for batch in batches for one in batch.counted]
    assert found == [(pieces[0], 3), (pieces[1], 2), (pieces[2], 50)]
    assert [line for batch in batches for line in batch.lines] == [1, 1, 2]
    facts = json.loads(json.dumps(count_facts(found)))
    assert facts == {FACT: {"a.jsonl": [[0, 3], [cut, 2]], "b.jsonl": [[0, 50]]}}
    assert count_facts([]) == {}
