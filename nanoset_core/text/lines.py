"""Pieces of files → lines in blocks of whole lines, of gzip and zstd files up to the first fault."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.endings import HEAD_BYTES, describe_content, looks_like, no_lines
from nanoset_core.text.pieces import Piece, StoredPiece, open_raw
from nanoset_core.text.rejects import EXCERPT_BYTES, WRONG_FORMAT, FaultError

_DESCRIBED_BYTES = 64 << 10
"""Looked at to say what a file is."""
SPLIT_BYTES = 256 << 10
"""Split at once: bounds how many lines there can be in a block, were they all empty."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of compression."""

    name: str
    magic: bytes
    """What a file begins with."""
    feed_bytes: int
    """Handed to the decoder at once. It bounds what comes out to some 16 MiB, and what is lost at a
    fault.
    """
    padding: bytes
    """What may follow a member, any number of times."""

    def new_decoder(self) -> Any:
        """Return an object with decompress(bytes) -> bytes, eof and unused_data, for one member or
        frame.
        """
        if self.name == "gzip":
            from isal import isal_zlib

            return isal_zlib.decompressobj(wbits=31)
        from zstandard import ZstdDecompressor

        # Archives made with `zstd --long=31` need a window of 2 GiB; others take what they need.
        return ZstdDecompressor(max_window_size=1 << 31).decompressobj()


_CODECS = {
    "gz": Codec("gzip", b"\x1f\x8b", 16 << 10, b"\0"),  # a byte gives at most 1,032
    "zst": Codec("zstd", b"\x28\xb5\x2f\xfd", 512, b""),  # 4 bytes may give 128 KiB
}


def codec_of(path: str) -> Codec | None:
    """Return the compression that a file's name promises, or None for a plain file."""
    return _CODECS.get(path.lower().rpartition(".")[2])


def decompress(stored: StoredPiece, codec: Codec) -> Iterator[bytes]:
    """Yield the text of a compressed piece in chunks; MemoryError where there is no room for zstd's
    window.

    As with gzip.open and zstd, members may follow one another, and zeros may follow gzip members,
    which are counted in stored.padding. FaultError where the file ends within a member, or is
    damaged: text of the feed_bytes in which that shows may be missing.
    """
    from isal import isal_zlib
    from zstandard import ZstdError

    errors: Any = isal_zlib.error, ZstdError
    given, begun, decoder, end, size = 0, False, None, stored.piece.begin, codec.feed_bytes
    for feed in (
        block[at : at + size] for block in stored.blocks() for at in range(0, len(block), size)
    ):
        left, position, end = feed, end, end + len(feed)
        while left:
            if decoder is None:
                member = left.lstrip(codec.padding) if begun else left
                stored.padding += len(left) - len(member)
                left = member
                decoder, begun = codec.new_decoder() if left else None, True
                continue
            try:
                chunk = decoder.decompress(left)
            except errors as error:
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


def describe_file(folder: RawFolder, path: str) -> str | None:
    """Return what a file of lines is that holds no documents, and what to do about it; None if that
    cannot be told.

    Its first bytes are read again, for a message. A file that cannot be read is not described.
    """
    head = b""
    codec = codec_of(path)
    try:
        stored_bytes = min((folder / path).stat().st_size, _DESCRIBED_BYTES)
        stored = StoredPiece(folder, Piece(path, 0, stored_bytes, 1, ""))
        for chunk in stored.blocks() if codec is None else decompress(stored, codec):
            head += chunk
            if len(head) >= _DESCRIBED_BYTES:
                break
    except (FaultError, NanosetError, OSError, MemoryError):
        # what came before the fault is enough; of the bytes that are looked at the last may be
        # missing
        pass
    return describe_content(head[:_DESCRIBED_BYTES])


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive whole lines, or the beginning of one line that is too long to be held in memory."""

    lines: list[bytes]
    """Without their line ends; of a line that is too long, its first 200 bytes."""
    first_number: int
    """1-based number of the first line, in its file; in its piece, where lines have not been
    counted.
    """
    begin: int
    """Offset of the first line's first byte in the decompressed file."""
    end: int
    """Offset after the last line, its line end included where it has one."""
    long_bytes: int = 0
    """Size of the one line that is too long, without its line end; else 0."""

    @property
    def offsets(self) -> list[int]:
        """Where each line begins in the decompressed file."""
        return list(accumulate((len(line) + 1 for line in self.lines), initial=self.begin))[:-1]


def read_lines(stored: StoredPiece, max_line_bytes: int) -> Iterator[LineBlock]:
    """Read the lines of one piece in order; those above `max_line_bytes` are counted but not held
    in memory.

    A line ends with a line feed (a carriage return before it stays in the line), the last one also
    with the file. At a fault, what was read of the line in which it lies comes as a line of its
    own.

    Raises:
        FaultError: the file cannot be decompressed to its end, or holds no lines.
        MissingError, InputError, SourceChangedError: see StoredPiece.blocks.
    """
    piece, codec, fault = stored.piece, codec_of(stored.piece.path), None
    splitter = _Splitter(piece.first_line or 1, piece.begin, max_line_bytes)
    is_head = True
    try:
        for chunk in stored.blocks() if codec is None else decompress(stored, codec):
            if (
                is_head
                and not piece.begin
                and (kind := no_lines(chunk[:HEAD_BYTES], piece.path)) is not None
            ):
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
    if splitter.held_bytes:
        yield splitter.release(0)
    if fault is not None:
        raise fault


class _Splitter:
    """Cut a stream of chunks into lines."""

    def __init__(self, number: int, offset: int, limit: int) -> None:
        self.number, self.held_bytes = number, 0
        """Of the line that is being read."""
        self._offset, self._limit = offset, limit
        self._held: list[bytes] = []

    def feed(self, chunk: bytes) -> Iterator[LineBlock]:
        """Yield the lines that end in `chunk`."""
        first, *rest = chunk.split(b"\n")
        self._hold(first)
        if not rest:
            return
        tail = rest.pop()
        if max(map(len, rest), default=0) > self._limit or self.held_bytes > self._limit:
            yield self.release(1)
            for line in rest:
                self._hold(line)
                yield self.release(1)
        else:
            yield self.release(len(rest) + 1, rest)
        self._hold(tail)

    def _hold(self, part: bytes) -> None:
        self.held_bytes += len(part)
        self._held.append(part)
        if self.held_bytes > self._limit:
            self._held = [b"".join(held[:EXCERPT_BYTES] for held in self._held)[:EXCERPT_BYTES]]

    def release(self, line_ends: int, rest: Sequence[bytes] = ()) -> LineBlock:
        """Return the line that is held, and those that follow it."""
        lines, size, begin = [b"".join(self._held), *rest], self.held_bytes, self._offset
        self._offset += size + sum(map(len, rest)) + line_ends
        block = LineBlock(
            lines, self.number, begin, self._offset, size if size > self._limit else 0
        )
        self._held, self.held_bytes, self.number = [], 0, self.number + len(lines)
        return block
