"""Lines that are counted within the pieces of a large file have numbers in the whole file, too."""

from __future__ import annotations

import json
from itertools import chain
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.stages.shards.line_numbers import (
    PIECE_LINES,
    LineNumbers,
    line_name,
    piece_lines_of_shard,
)
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject

PIECE_SIZE = 100
TWO_PIECES = LineNumbers({"a": [[0, 3], [50, 4]]})
"""A file whose first piece has three lines, and the second, from byte 50 on, four."""

# Translation in both directions


def number_lines(line_counts: list[int]) -> LineNumbers:
    """Return the line numbers of a file `a` with pieces of 100 bytes and so many lines each."""
    pieces = [[PIECE_SIZE * number, count] for number, count in enumerate(line_counts)]
    return LineNumbers({"a": pieces})


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_lines_are_numbered_through_all_pieces_of_a_file(line_counts):
    numbers = number_lines(line_counts)

    line = 0
    for piece, count in enumerate(line_counts):
        piece_start = PIECE_SIZE * piece
        for line_in_piece in range(1, count + 1):
            line += 1
            # Byte 7 stands for any byte of the piece.
            assert numbers.in_file("a", piece_start + 7, line_in_piece) == line
            assert numbers.in_piece("a", line) == (piece_start, line_in_piece)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=9))
def test_a_line_after_the_end_of_a_file_keeps_its_number(line_counts):
    numbers = number_lines(line_counts)
    line = sum(line_counts) + 5

    piece_start, line_in_piece = numbers.in_piece("a", line)

    assert numbers.in_file("a", piece_start, line_in_piece) == line


def test_a_reject_is_numbered_in_its_file():
    reject = Reject("a", 2, 60, "blank_line", "", "")

    assert TWO_PIECES.of_reject(reject).line == 5


def test_a_reject_of_a_file_that_was_counted_keeps_its_number():
    reject = Reject("b", 7, 60, "blank_line", "", "")

    assert TWO_PIECES.of_reject(reject) == reject


def test_a_file_that_was_counted_has_no_lines_of_pieces():
    assert TWO_PIECES.in_piece("b", 7) is None


def test_without_pieces_lines_keep_their_numbers():
    assert LineNumbers().in_file("a", 60, 2) == 2


# Names in messages


@pytest.mark.parametrize(
    ("piece", "expected_name"),
    [
        pytest.param(Piece("a", 0, 100, 0, ""), "a:3", id="first piece"),
        pytest.param(Piece("a", 0, 100, 1, ""), "a:3", id="first piece, counted"),
        pytest.param(Piece("a", 10, 100, 90, ""), "a:3", id="later piece, counted"),
        pytest.param(Piece("a", 10, 100, 0, ""), "a", id="later piece, not counted"),
        pytest.param(Piece("a", 60, 100, 0, ""), "a:3", id="line is not in the piece"),
        pytest.param(Piece("b", 10, 100, 0, ""), "a:3", id="another file"),
    ],
)
def test_a_message_gives_the_number_of_a_line_only_if_it_is_known(piece, expected_name):
    source = SourceRange((piece,))

    assert line_name(source, "a", line=3, byte=50) == expected_name


# Counting while documents are read

LINES = [
    b'{"text": "one"}\n',
    b"\n",
    b"x" * 300 + b"\n",  # longer than the allowed 200 bytes
    b'{"text": "two"}\n',
    b'{"text": "last"}',
]
CUT = len(b"".join(LINES[:3]))
"""Where the file of these lines is cut into two pieces."""
N_LINES_OF_DAMAGED_FILE = 50
DAMAGED_FILE = b"\x1f\x8b\x08\x00" + b"\n" * N_LINES_OF_DAMAGED_FILE
"""The magic bytes of gzip, and blank lines."""
PIECES = (
    Piece("a.jsonl", 0, CUT, 0, ""),
    Piece("a.jsonl", CUT, len(b"".join(LINES)), 0, ""),
    Piece("b.jsonl", 0, len(DAMAGED_FILE), 0, ""),
)
N_LINES_OF_PIECES = (3, 2, N_LINES_OF_DAMAGED_FILE)


@pytest.fixture
def batches(tmp_path: Path) -> list[DocumentBatch]:
    """The documents of three pieces whose lines were not counted before, one in each batch."""
    (tmp_path / "a.jsonl").write_bytes(b"".join(LINES))
    (tmp_path / "b.jsonl").write_bytes(DAMAGED_FILE)
    documents = read_documents(
        tmp_path, SourceRange(PIECES), max_line_bytes=200, batch_bytes=1, verify=False
    )
    return list(documents)


def test_the_lines_of_pieces_are_counted_while_they_are_read(batches):
    line_counts = chain.from_iterable(batch.lines_of_pieces for batch in batches)

    assert list(line_counts) == list(zip(PIECES, N_LINES_OF_PIECES, strict=True))


def test_documents_are_numbered_from_the_start_of_their_piece(batches):
    lines = chain.from_iterable(batch.lines for batch in batches)

    # The texts "one" and "two" are in the first line of their pieces, "last" is in the second.
    assert list(lines) == [1, 1, 2]


def test_the_line_counts_of_pieces_are_facts_of_a_shard():
    facts = piece_lines_of_shard(zip(PIECES, N_LINES_OF_PIECES, strict=True))

    facts_in_manifest = json.loads(json.dumps(facts))
    assert facts_in_manifest == {
        PIECE_LINES: {"a.jsonl": [[0, 3], [CUT, 2]], "b.jsonl": [[0, N_LINES_OF_DAMAGED_FILE]]}
    }


def test_a_shard_without_uncounted_pieces_has_no_such_fact():
    assert piece_lines_of_shard([]) == {}
