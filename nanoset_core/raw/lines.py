"""Pieces of files → lines in blocks of whole lines, of gzip and zstd files up to the first fault."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from nanoset_core.raw.endings import HEAD_BYTES, looks_like, no_lines
from nanoset_core.raw.rejects import EXCERPT_BYTES, WRONG_FORMAT, FaultError
from nanoset_core.raw.stored import StoredPiece, open_raw

SPLIT_BYTES = 256 << 10
"""Split at once: bounds how many lines there can be in a block, were they all empty."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of compression."""

    name: str
    magic: bytes
    """What a file begins with."""
    feed_bytes: int
    """Handed to the decoder at once. It bounds what comes out to some 16 MiB, and what is lost at a fault."""
    padding: bytes
    """What may follow a member, any number of times."""

    def new_decoder(self) -> Any:
        """Return an object with decompress(bytes) -> bytes, eof and unused_data, for one member or frame."""
        if self.name == "gzip":
            from isal import isal_zlib

            return isal_zlib.decompressobj(wbits=31)
        import zstandard

        # Archives made with `zstd --long=31` need a window of 2 GiB; others take what they need.
        return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()

    def errors(self) -> Any:
        """Return what the decoder raises on bad data."""
        from isal import isal_zlib
        from zstandard import ZstdError

        return isal_zlib.error, ZstdError


GZIP = Codec("gzip", b"\x1f\x8b", 16 << 10, b"\0")  # a byte gives at most 1,032
ZSTD = Codec("zstd", b"\x28\xb5\x2f\xfd", 512, b"")  # 4 bytes may give 128 KiB


def codec_of(path: str) -> Codec | None:
    """Return the compression that a file's name promises, or None for a plain file."""
    return {"gz": GZIP, "zst": ZSTD}.get(path.lower().rpartition(".")[2])


def decompress(stored: StoredPiece, codec: Codec) -> Iterator[bytes]:
    """Yield the text of a compressed piece in chunks.

    As with gzip.open and zstd, members may follow one another, and zeros may follow gzip members.

    Raises:
        FaultError: the data is damaged, and text of the feed_bytes in which that shows may be missing; or the file ends
            within a member.
        MemoryError: there is no room for zstd's window.
    """
    given, begun, decoder, end = 0, False, None, stored.piece.begin
    for feed in _feeds(stored, codec.feed_bytes):
        left, position, end = feed, end, end + len(feed)
        while left:
            if decoder is None:
                left = left.lstrip(codec.padding) if begun else left
                decoder, begun = codec.new_decoder() if left else None, True
                continue
            try:
                chunk = decoder.decompress(left)
            except codec.errors() as error:
                if "not enough memory" in str(error):
                    raise MemoryError(str(error)) from error
                detail = f"{error}, in bytes {position:,} to {end:,} of the stored file"
                raise FaultError(f"corrupt_{codec.name}", detail, offset=given) from error
            if chunk:
                given += len(chunk)
                yield chunk
            left, decoder = (decoder.unused_data, None) if decoder.eof else (b"", decoder)
    if decoder is not None:
        detail = f"the file ends, at byte {end:,}, in the middle of a compressed member"
        raise FaultError(f"truncated_{codec.name}", detail, offset=given)


def _feeds(stored: StoredPiece, size: int) -> Iterator[bytes]:
    for block in stored.blocks():
        yield from (block[begin : begin + size] for begin in range(0, len(block), size))


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
            with open_raw(stored.path) as file:
                kind = looks_like(file.read(HEAD_BYTES), codec.magic)
            fault.detail = fault.detail if kind is None else f"the file is {kind}; {fault.detail}"
    yield from splitter.finish()
    if fault is not None:
        raise fault


class _Splitter:
    """Cut a stream of chunks into lines."""

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
            self._held = [b"".join(held[:EXCERPT_BYTES] for held in self._held)[:EXCERPT_BYTES]]

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
