"""Line numbers in files that were cut without being read.

In such a file lines count from 1 in each piece, in documents.parquet and rejects.jsonl too, since the reader of a piece
does not know how many lines lie before it. The facts of a shard say how many lines each of its pieces has. Once all
shards of a corpus are there, the number of a line in its file is a sum; before that, its byte offset says where it is.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

from nanoset_core.outputs.manifest import Manifest
from nanoset_core.raw.pieces import Piece, SourceRange
from nanoset_core.raw.rejects import Reject

FACT = "piece_lines"
"""Among the facts of shards, and of a corpus's set of shards: path → (first byte, lines) of each piece, in order. It is
absent where the lines of all files were counted before."""


class LineNumbers:
    """Numbers of lines in their pieces ↔ numbers in their files; the same in files that were counted before."""

    def __init__(self, pieces: Mapping[str, Sequence[Sequence[int]]] | None = None) -> None:
        """Take pieces as FACT holds them, of all pieces of each file."""
        self._files: dict[str, tuple[list[int], list[int]]] = {}
        """Path → (first byte of each piece, lines before each and in all)."""
        for path, found in (pieces or {}).items():
            begins, lines = zip(*sorted(map(tuple, found)), strict=True)
            self._files[path] = list(begins), [0, *accumulate(lines)]

    @staticmethod
    def of(facts: Mapping[str, Any]) -> LineNumbers:
        """Return the line numbers by the facts of a corpus's set of shards."""
        return LineNumbers(facts.get(FACT))

    def in_file(self, path: str, byte: int, line: int) -> int:
        """Return the number in its file of the line that begins at a byte, given its number in its piece."""
        begins, before = self._files.get(path, ([0], [0]))
        return before[bisect_right(begins, byte) - 1] + line

    def in_piece(self, path: str, line: int) -> tuple[int, int] | None:
        """Return (first byte of the piece that holds a line, its number there); None where numbers are the same."""
        if path not in self._files:
            return None
        begins, before = self._files[path]
        number = min(bisect_right(before, line - 1), len(before) - 1) - 1
        return begins[number], line - before[number]

    def of_reject(self, reject: Reject) -> Reject:
        """Return a reject of rejects.jsonl with its number in its file."""
        if reject.file not in self._files:
            return reject
        return replace(reject, line=self.in_file(reject.file, reject.offset, reject.line))


def count_facts(counted: Iterable[tuple[Piece, int]]) -> dict[str, Any]:
    """Return the facts of a shard about its pieces, given those that had not been counted, with their lines."""
    return _facts((piece.path, [(piece.begin, lines)]) for piece, lines in counted)


def joined_facts(shards: Iterable[Manifest], pieces: Iterable[Piece]) -> dict[str, Any]:
    """Return the facts of a corpus's set of shards about all pieces; nothing where all lines were counted before."""
    if all(piece.first_line > 0 for piece in pieces):
        return {}
    return _facts(found for shard in shards for found in shard.facts.get(FACT, {}).items())


def _facts(found: Iterable[tuple[str, Sequence[Sequence[int]]]]) -> dict[str, Any]:
    joined: dict[str, list[Sequence[int]]] = {}
    for path, counts in found:
        joined.setdefault(path, []).extend(counts)
    return {FACT: joined} if joined else {}


def place_in(source: SourceRange, path: str, line: int, byte: int) -> str:
    """Return how a line of a range, which begins at a byte, is named while the range is read.

    That is `path:line`; the path alone where it is not known how many lines lie before those of the piece.
    """
    pieces = (piece for piece in source.pieces if piece.path == path and piece.begin <= byte < piece.end)
    return f"{path}:{line}" if all(piece.is_counted for piece in pieces) else path
