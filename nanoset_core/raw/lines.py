"""Pieces of files → lines, in blocks of whole lines."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nanoset_core.raw.decompression import Codec, codec_of, decompress
from nanoset_core.raw.endings import HEAD_BYTES, looks_like, no_lines
from nanoset_core.raw.rejects import EXCERPT_BYTES, WRONG_FORMAT, FaultError
from nanoset_core.raw.stored import StoredPiece

SPLIT_BYTES = 256 << 10
"""Split at once: bounds how many lines there can be in a block, were they all empty."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive whole lines, or the beginning of one line that is too long to be held in memory."""

    lines: list[bytes]
    """Without their line ends; of a line that is too long, its first 200 bytes."""
    first_number: int
    """1-based number of the first line, in its file; in its piece, where lines have not been counted."""
    begin: int
    """Offset of the first line's first byte in the decompressed file."""
    end: int
    """Offset after the last line, its line end included where it has one."""
    long_bytes: int = 0
    """Size of the one line that is too long, without its line end; else 0."""


def read_lines(stored: StoredPiece, max_line_bytes: int) -> Iterator[LineBlock]:
    """Read the lines of one piece in order.

    A line ends with a line feed (a carriage return before it stays in the line), the last one also with the file. At
    a fault, what was read of the line in which it lies comes as a line of its own.

    Args:
        stored: the piece.
        max_line_bytes: a longer line is counted but not held in memory.

    Raises:
        FaultError: the file cannot be decompressed to its end, or holds no lines.
        MissingError, InputError, SourceChangedError: see StoredPiece.blocks.
    """
    piece, codec, fault = stored.piece, codec_of(stored.piece.path), None
    splitter = _Splitter(piece.first_line or 1, piece.begin, max_line_bytes)
    is_head = True
    try:
        for chunk in stored.blocks() if codec is None else decompress(stored, codec):
            if is_head and not piece.begin and (kind := no_lines(chunk[:HEAD_BYTES], piece.path)) is not None:
                raise FaultError(WRONG_FORMAT, f"the file is {kind}", offset=0)
            is_head = False
            for begin in range(0, len(chunk), SPLIT_BYTES):
                yield from splitter.feed(chunk[begin : begin + SPLIT_BYTES])
    except FaultError as error:
        fault, fault.line = error, splitter.number
        if is_head and codec is not None:
            fault.detail = _kind_of(stored, codec) + fault.detail
    yield from splitter.finish()
    if fault is not None:
        raise fault


def _kind_of(stored: StoredPiece, codec: Codec) -> str:
    """Return what a file looks like of which nothing could be decompressed; empty where that is not known."""
    kind = looks_like(stored.head(HEAD_BYTES), codec.magic)
    return "" if kind is None else f"the file is {kind}; "


class _Splitter:
    """Cuts a stream of chunks into lines."""

    def __init__(self, number: int, offset: int, limit: int) -> None:
        self.number = number
        """Of the line that is being read."""
        self._offset = offset
        self._limit = limit
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[LineBlock]:
        """Yield the lines that end in `chunk`."""
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        if not rest:
            return
        tail = rest.pop()
        if max(map(len, rest), default=0) > self._limit or self._held_bytes > self._limit:
            yield self._release(1)
            for line in rest:
                self._hold(line)
                yield self._release(1)
        else:
            size = self._held_bytes + len(chunk) - len(first) - len(tail)
            lines = [b"".join(self._held), *rest]
            self._held, self._held_bytes = [], 0
            yield self._block(lines, size)
        self._hold(tail)

    def finish(self) -> Iterator[LineBlock]:
        """Yield the last line, where it has no line end."""
        if self._held_bytes:
            yield self._release(0)

    def _hold(self, part: bytes) -> None:
        self._held_bytes += len(part)
        self._held.append(part)
        if self._held_bytes > self._limit:
            self._held = [_head(self._held)]

    def _release(self, line_end_bytes: int) -> LineBlock:
        """Return the line that is held."""
        lines, size = [b"".join(self._held)], self._held_bytes
        self._held, self._held_bytes = [], 0
        return self._block(lines, size + line_end_bytes, size if size > self._limit else 0)

    def _block(self, lines: list[bytes], size: int, long_bytes: int = 0) -> LineBlock:
        begin, number = self._offset, self.number
        self._offset += size
        self.number += len(lines)
        return LineBlock(lines, number, begin, self._offset, long_bytes)


def _head(parts: list[bytes]) -> bytes:
    head = b""
    for part in parts:
        head += part[: EXCERPT_BYTES - len(head)]
    return head
