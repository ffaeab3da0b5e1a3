"""Line numbers in files that were cut into pieces without being read.

Reading a large file only to count its lines would take long. So a piece of such a file counts its
own lines from 1, and once all pieces have been tokenized, the shards know how many lines each has:

    file            lines 1 … 5                lines 6 … 9
    piece           [0, 4000): lines 1 … 5     [4000, 7000): lines 1 … 4
    fact            [[0, 5], [4000, 4]]

Tables of documents and lists of rejects have the numbers within the pieces. `LineNumbers`
translates them for people.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, NamedTuple

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject

PIECE_LINES = "piece_lines"
"""Fact of shards, and of a corpus's set of shards: path → (first byte, lines) of each piece, in
order. It is absent if the lines of all files had been counted before."""


@dataclass(frozen=True, slots=True)
class _FileLines:
    """The pieces of one file, and their lines."""

    starts: list[int]
    """First byte of each piece."""
    lines_before: list[int]
    """Lines before each piece, and of the whole file."""


class LineInPiece(NamedTuple):
    """A line of a file, as its piece counts it."""

    piece_start: int
    """First byte of the piece."""
    line: int


class LineNumbers:
    """Translates between numbers of lines in their pieces and in their files.

    Both are the same in a file whose lines were counted before it was cut.

    Args:
        pieces: The fact PIECE_LINES, with all pieces of each file.
    """

    def __init__(self, pieces: Mapping[str, Sequence[Sequence[int]]] | None = None) -> None:
        self._files: dict[str, _FileLines] = {}
        for path, pieces_of_file in (pieces or {}).items():
            starts = []
            line_counts = []
            for start, line_count in sorted(map(tuple, pieces_of_file)):
                starts.append(start)
                line_counts.append(line_count)
            self._files[path] = _FileLines(starts, list(accumulate(line_counts, initial=0)))

    @staticmethod
    def of(facts: Mapping[str, Any]) -> LineNumbers:
        """Return the converter of line numbers for a corpus, from what was recorded about it.

        A large file is cut into pieces without being read, and lines are first counted in each
        piece. The record says how many lines each piece has:

            {"piece_lines": {"web.jsonl": [(0, 5), (4000, 4)]}}

        Here web.jsonl has 5 lines in the piece from byte 0 on, and 4 in the piece from byte 4,000
        on.

        Args:
            facts: What was recorded when the corpus was tokenized. If it has no such entry, all
                lines are numbered in their files already.
        """
        return LineNumbers(facts.get(PIECE_LINES))

    def in_file(self, path: str, byte: int, line: int) -> int:
        """Return the number that a line has in its file, for messages.

        If a file was cut into pieces of 5 and 4 lines, then line 2 of the second piece is line 7.

        Args:
            path: The file.
            byte: Position of the line's first byte in the file. It shows which piece contains the
                line.
            line: Number of the line in its piece.
        """
        file = self._files.get(path)
        if file is None:
            return line  # the lines of this file are numbered in the file itself

        # Find the last piece that starts at this byte or before it.
        piece = bisect_right(file.starts, byte) - 1
        return file.lines_before[piece] + line

    def in_piece(self, path: str, line: int) -> LineInPiece | None:
        """Find the piece of a file that contains a line, and the number of the line in this piece.

        If a file was cut into pieces of 5 and 4 lines, then line 7 is line 2 of the second piece.

        Args:
            path: The file.
            line: Number of the line in the file, from 1.

        Returns:
            The piece and the number; None if lines of this file are numbered in the file itself.
        """
        file = self._files.get(path)
        if file is None:
            return None

        # Line 7 is in the last piece that has fewer than 7 lines before it.
        lines_before = file.lines_before[:-1]  # [0, 5], without the number of all lines
        piece = bisect_left(lines_before, line) - 1
        return LineInPiece(
            piece_start=file.starts[piece],
            line=line - lines_before[piece],  # 7 - 5
        )

    def of_reject(self, reject: Reject) -> Reject:
        """Return a rejected line with its number in its file, instead of that in a piece of it.

        Args:
            reject: The rejected line, as it was recorded when its piece of the file was read.

        Returns:
            The reject itself if the lines of its file are numbered in the file.
        """
        if reject.file not in self._files:
            return reject
        return replace(reject, line=self.in_file(reject.file, reject.offset, reject.line))


def piece_lines_of_shard(counted: Iterable[tuple[Piece, int]]) -> dict[str, Any]:
    """Record how many lines are in the parts of large files that were tokenized together.

    A large file is cut into pieces without being read, so nobody knows at which line a piece
    begins. Each process counts the lines of the pieces that it tokenizes. Later, the sums of these
    counts give the number of a line in the whole file.

        piece of web.jsonl    first byte    lines
        0                     0             5
        1                     4,000         4        begins with line 6 of the file

    Args:
        counted: The pieces that a process has read, with the lines of each.

    Returns:
        A fact to record: `{PIECE_LINES: {"web.jsonl": [(0, 5), (4000, 4)]}}`; empty without such
        pieces.
    """
    counts_by_path: dict[str, list[tuple[int, int]]] = {}
    for piece, n_lines in counted:
        first_byte = piece.begin
        counts_by_path.setdefault(piece.path, []).append((first_byte, n_lines))
    return {PIECE_LINES: counts_by_path} if counts_by_path else {}


def piece_lines_of_corpus(shards: Iterable[Manifest], pieces: Iterable[Piece]) -> dict[str, Any]:
    """Collect how many lines each piece of a large file has, to number lines in the whole file.

    A large file is cut into pieces without being read. Each process that tokenizes some pieces
    records how many lines they have, and these records are put together here:

        shard 0      {"web.jsonl": [[0, 5]]}            5 lines from byte 0 on
        shard 1      {"web.jsonl": [[4000, 4]]}         4 lines from byte 4,000 on
        together     {"web.jsonl": [[0, 5], [4000, 4]]}

    Args:
        shards: Results of the processes, which have the records.
        pieces: All pieces of the text.

    Returns:
        `{PIECE_LINES: {"web.jsonl": [[0, 5], [4000, 4]]}}`; empty if the lines of all files were
        counted before they were cut.
    """
    lines_were_counted_before = all(piece.first_line > 0 for piece in pieces)
    if lines_were_counted_before:
        return {}  # there are no records, and to open all shards takes long
    piece_lines: dict[str, list[Sequence[int]]] = {}
    for shard in shards:
        for path, lines_of_pieces in shard.facts.get(PIECE_LINES, {}).items():
            piece_lines.setdefault(path, []).extend(lines_of_pieces)
    return {PIECE_LINES: piece_lines} if piece_lines else {}


def line_name(source: SourceRange, path: str, line: int, byte: int) -> str:
    """Return how messages name a line of text: `web.jsonl:7`, or `web.jsonl` if 7 may be wrong.

    A large file is cut into pieces without being read, and lines are counted from the start of the
    piece. Line 7 of a piece may be line 9,007 of the file, which is not known while it is read.

    Args:
        source: The range of text that is read, which consists of pieces of files.
        path: The file.
        line: Number of the line, as it is counted while the range is read.
        byte: First byte of the line, which shows its piece.
    """
    for piece in source.pieces:
        is_in_piece = piece.path == path and piece.begin <= byte < piece.end
        are_lines_before_counted = piece.is_counted
        if is_in_piece and not are_lines_before_counted:
            return path
    return f"{path}:{line}"
