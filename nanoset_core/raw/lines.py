"""Pieces of files → lines, in blocks of whole lines; what cannot be read is kept apart from what can."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from nanoset_core.raw.content import HEAD_BYTES, looks_like, no_lines
from nanoset_core.raw.decompression import WRONG_FORMAT, Codec, Fault, codec_of, decompress
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.rejects import EXCERPT_BYTES
from nanoset_core.raw.stored import StoredPiece
from nanoset_core.storage.remote_folder import RawFolder

SPLIT_BYTES = 256 << 10
"""Split at once: bounds how many lines there can be in a block, were they all empty."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive whole lines."""

    lines: list[bytes]
    """Without their line ends."""
    first_number: int
    """1-based number, in its file, of the first line; in its piece, where lines have not been counted."""
    begin: int
    """Offset of the first line's first byte in the decompressed file."""
    end: int
    """Offset after the last line, its line end included where it has one."""


@dataclass(frozen=True, slots=True)
class LongLine:
    """A line above the limit, which was not held in memory."""

    head: bytes
    """Its first 200 bytes."""
    size: int
    """Bytes, without the line end."""
    number: int
    """1-based, in its file; in its piece, where lines have not been counted."""
    begin: int
    """Offset of its first byte in the decompressed file."""
    end: int
    """Offset after it, its line end included where it has one."""


def read_lines(
    folder: RawFolder, piece: Piece, *, max_line_bytes: int, verify: bool = True
) -> Iterator[LineBlock | LongLine | Fault]:
    """Lines of one piece in order; a fault of the compression comes last, after everything before it.

    A line ends with a line feed (a carriage return before it stays in the line), the last one also with the file. At
    a fault, what was read of the line in which it lies comes as a line of its own.

    Args:
        folder: the corpus's folder.
        piece: which bytes of which file.
        max_line_bytes: a longer line is counted but not held in memory.
        verify: compare the bytes read with the piece's digest.

    Raises:
        MissingError, InputError: the file is gone, or cannot be opened.
        SourceChangedError: the bytes read are not those of the inventory.
    """
    stored = StoredPiece(folder, piece)
    codec = codec_of(piece.path)
    chunks = stored.blocks() if codec is None else decompress(stored, codec)
    splitter = _Splitter(piece.first_line or 1, piece.begin, max_line_bytes)
    fault: Fault | None = None
    for number, chunk in enumerate(chunks):
        if isinstance(chunk, Fault):
            fault = (
                _named(chunk, stored, codec)
                if number == 0 and codec is not None
                else replace(chunk, line=splitter.number)
            )
        elif number == piece.begin == 0 and (kind := no_lines(chunk[:HEAD_BYTES], piece.path)) is not None:
            fault = Fault(0, WRONG_FORMAT, f"the file is {kind}", 1)
            break
        else:
            for begin in range(0, len(chunk), SPLIT_BYTES):
                yield from splitter.feed(chunk[begin : begin + SPLIT_BYTES])
    yield from splitter.finish()
    if fault is not None:
        yield fault
    if verify:
        stored.check()


def _named(fault: Fault, stored: StoredPiece, codec: Codec) -> Fault:
    """The fault of a file of which nothing could be decompressed, with what the file looks like."""
    begin = stored.piece.begin
    head = b"".join(stored.reread(begin, min(begin + HEAD_BYTES, stored.piece.end)))
    kind = looks_like(head, codec.magic)
    return replace(fault, line=1, detail=fault.detail if kind is None else f"the file is {kind}; {fault.detail}")


class _Splitter:
    """Cuts a stream of chunks into lines."""

    def __init__(self, number: int, offset: int, limit: int) -> None:
        self.number = number
        """Of the line that is being read."""
        self._offset = offset
        self._limit = limit
        self._held: list[bytes] = []
        self._held_bytes = 0

    def feed(self, chunk: bytes) -> Iterator[LineBlock | LongLine]:
        """The lines that end in `chunk`."""
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

    def finish(self) -> Iterator[LineBlock | LongLine]:
        """The last line, where it has no line end."""
        if self._held_bytes:
            yield self._release(0)

    def _hold(self, part: bytes) -> None:
        self._held_bytes += len(part)
        if self._held_bytes <= self._limit:
            self._held.append(part)
        else:
            self._held = [_head([*self._held, part])]

    def _release(self, line_end_bytes: int) -> LineBlock | LongLine:
        """The line that is held."""
        held, size = self._held, self._held_bytes
        self._held, self._held_bytes = [], 0
        if size <= self._limit:
            return self._block([b"".join(held)], size + line_end_bytes)
        begin, number = self._offset, self.number
        self._offset += size + line_end_bytes
        self.number += 1
        return LongLine(held[0], size, number, begin, self._offset)

    def _block(self, lines: list[bytes], size: int) -> LineBlock:
        begin, number = self._offset, self.number
        self._offset += size
        self.number += len(lines)
        return LineBlock(lines, number, begin, self._offset)


def _head(parts: list[bytes]) -> bytes:
    head = b""
    for part in parts:
        head += part[: EXCERPT_BYTES - len(head)]
        if len(head) == EXCERPT_BYTES:
            break
    return head
