"""Read the lines of a file, compressed or not, in blocks, up to the first fault."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from io import BytesIO
from itertools import accumulate
from typing import Any

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import Location
from nanoset_core.text.files.compressions import Codec, codec_of
from nanoset_core.text.files.content_kinds import (
    HEAD_BYTES,
    describe_content,
    describe_mismatch,
    describe_unreadable_content,
)
from nanoset_core.text.files.endings import format_of
from nanoset_core.text.files.raw_files import open_raw
from nanoset_core.text.inventory.pieces import unchecked_piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.rejects import EXCERPT_BYTES, WRONG_FORMAT, FaultError

_DESCRIBED_BYTES = 64 << 10
"""How much of a file is examined to describe what it is."""
_OBJECT_START = re.compile(rb'(\xef\xbb\xbf)?\s*\{\s*"')
SPLIT_BYTES = 256 << 10
"""How many bytes are divided into lines at once. This limits the number of lines in a block, which
would be largest if they were all empty.
"""


def decompress(stored: StoredPiece, codec: Codec) -> Iterator[bytes]:
    """Yield the text of a compressed file, or of a part of it, in chunks.

    If somebody has concatenated compressed files, they are read as one text, as gzip and bzip2 do:

        file    [compressed "Hello "] [compressed "world"] 00 00 00
        text    "Hello world"

    The zeros, with which tapes and some programs fill a block, are skipped. They are counted in
    `stored.padding`.

    Args:
        stored: The file, or the part of it, which is read block by block.
        codec: How it is compressed.

    Raises:
        FaultError: The file ends in the middle of a compressed text, or is damaged. Everything
            before the damage was yielded, except perhaps the last block of it.
        MemoryError: There is not enough memory to decompress it.
    """
    decoder_error = codec.error_type
    decoder = _MembersDecoder(stored, codec)
    # Faults are reported by two positions: in the text, which is what a reader loses, and in the
    # stored file, where the user can look at the damage.
    text_position = 0
    stored_position = stored.piece.begin
    for compressed in _small_blocks(stored, codec.feed_bytes):
        stop = stored_position + len(compressed)
        try:
            for chunk in decoder.decode(compressed):
                text_position += len(chunk)
                yield chunk
        except decoder_error as error:
            if "not enough memory" in str(error):
                raise MemoryError(str(error)) from error
            detail = f"{error}, in bytes {stored_position:,} to {stop:,} of the stored file"
            raise FaultError(f"corrupt_{codec.name}", detail, offset=text_position) from error
        stored_position = stop

    if decoder.is_within_member:
        detail = f"the file ends, at byte {stored_position:,}, in the middle of a compressed member"
        raise FaultError(f"truncated_{codec.name}", detail, offset=text_position)


class _MembersDecoder:
    """Decompresses concatenated members, and skips the padding that may follow each of them."""

    def __init__(self, stored: StoredPiece, codec: Codec) -> None:
        self._stored = stored
        self._codec = codec
        self._decoder: Any = None  # of the current member, or None between members
        self._is_first_member = True

    @property
    def is_within_member(self) -> bool:
        """Whether the bytes that were decoded so far end within a member."""
        return self._decoder is not None

    def decode(self, data: bytes) -> Iterator[bytes]:
        """Yield the text of the next bytes of the file, in chunks that are not empty.

        A file may consist of several compressed texts. So the bytes may begin in the middle of one,
        end in the middle of another, and have some zeros in between, which are skipped:

            …end of compressed text 1] 00 00 [start of compressed text 2…

        Args:
            data: The bytes that follow those of the previous call.
        """
        while data:
            # Start the next member. Nothing may precede the first one: zeros there are a fault,
            # which its decoder reports.
            if self._decoder is None:
                if not self._is_first_member:
                    data = self._skip_padding(data)
                if not data:
                    return
                self._is_first_member = False
                self._decoder = self._codec.new_decoder()

            for chunk in self._codec.decompress(self._decoder, data):
                if chunk:
                    yield chunk
            if not self._decoder.eof:
                return  # the rest of the member is in the next bytes
            data = self._decoder.unused_data
            self._decoder = None

    def _skip_padding(self, data: bytes) -> bytes:
        """Return bytes that follow a member without the padding at their start, and count it.

        Padding are zero bytes after a member. Tapes and some programs add them to fill a block, and
        gzip permits them. Their number is kept in `StoredPiece.padding`.

        Args:
            data: Bytes after a member: perhaps padding, and then perhaps another member.
        """
        next_member = data.lstrip(self._codec.padding)
        self._stored.padding += len(data) - len(next_member)
        return next_member


def _small_blocks(stored: StoredPiece, most_bytes: int) -> Iterator[bytes]:
    """Yield the stored bytes of a file, or of a part of it, in small blocks.

    A decoder expands each block many times, so large ones would need too much memory.

    Args:
        stored: The file, or the part of it.
        most_bytes: Largest size of a block.
    """
    for block in stored.blocks():
        for start in range(0, len(block), most_bytes):
            yield block[start : start + most_bytes]


def text_chunks(stored: StoredPiece, describe: Callable[[bytes], str | None]) -> Iterator[bytes]:
    """Yield the text of a file, or of a part of it, in chunks; decompressed if it is compressed.

    The name of a file may be wrong about its content. Two mistakes are reported by an error that
    says what the file really is:

        a.jsonl.gz    is not compressed: so its first bytes show what it is instead
        a.jsonl       is a picture, for example: `describe` recognises its first bytes

    Args:
        stored: The file, or the part of it.
        describe: Called with the first bytes of the file's text. It returns what the file is, such
            as "a PNG image", if it is certainly of another format than its name says; otherwise
            None.

    Raises:
        FaultError: The file is of another format, or cannot be decompressed to its end. In the
            latter case, everything before the fault was yielded.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read.
        SourceChangedError: The file has changed since it was listed.
    """
    codec = codec_of(stored.piece.path)
    chunks = _undescribed_chunks(stored, codec)
    try:
        first_chunk = next(chunks, None)
    except FaultError as fault:
        # If nothing can be decompressed, perhaps the file is not compressed as its name says.
        if codec is not None:
            _add_description(fault, stored, codec)
        raise
    if first_chunk is None:  # the piece is empty
        return

    # Only at the start of a file do bytes show what it is.
    if stored.piece.begin == 0:
        content = describe(first_chunk[:HEAD_BYTES])
        if content is not None:
            raise FaultError(WRONG_FORMAT, f"the file is {content}", offset=0)
    yield first_chunk
    del first_chunk  # which may be large
    yield from chunks


def _undescribed_chunks(stored: StoredPiece, codec: Codec | None) -> Iterator[bytes]:
    """Return the text of a file, or of a part of it, in chunks; decompressed if it is compressed.

    Args:
        stored: The file, or the part of it.
        codec: How it is compressed; None if it is not.
    """
    if codec is None:
        return stored.blocks()
    return decompress(stored, codec)


def describe_file(folder: Location, path: str) -> str | None:
    """Describe a file whose lines were all rejected, by reading its first bytes again.

    Args:
        folder: The corpus's folder.
        path: The file, relative to the folder.

    Returns:
        What the file seems to contain, and what to do about it; None if that is not clear, or if
        the file cannot be read.
    """
    return describe_content(_head_of(folder, path))


def begins_with_object(folder: Location, path: str) -> bool:
    """Return whether a file looks like JSON lines, by its first characters.

        {"text": "Hello"}     yes
        text,lang             no

    Args:
        folder: The folder of the file.
        path: The file, relative to the folder.

    Returns:
        Whether it begins with `{"`, apart from white space. False also if it cannot be read.
    """
    return _OBJECT_START.match(_head_of(folder, path)) is not None


def _head_of(folder: Location, path: str) -> bytes:
    """Return the first bytes of a file, decompressed if it is compressed.

    They are used to find out what a file contains. Only the beginning of the file is read. If that
    is damaged, what could be read before the damage is returned.

    Args:
        folder: The folder of the file.
        path: The file, relative to the folder.
    """
    codec = codec_of(path)
    head = b""
    # Nearly always, the first bytes of a compressed file end within a compressed text, which counts
    # as a fault, too.
    with suppress(FaultError, NanosetError, OSError, MemoryError):
        beginning = _stored_beginning(folder, path, codec)
        for chunk in _undescribed_chunks(beginning, codec):
            head += chunk
            if len(head) >= _DESCRIBED_BYTES:
                break
    return head[:_DESCRIBED_BYTES]


def _stored_beginning(folder: Location, path: str, codec: Codec | None) -> StoredPiece:
    """Return the first bytes of a file as they are stored, enough to describe its content.

    Some codecs, such as bzip2, can only decompress large blocks, so at least one block is taken.

    Args:
        folder: The folder of the file.
        path: The file, relative to the folder.
        codec: How it is compressed; None if it is not.

    Raises:
        OSError: The file does not exist, or cannot be looked at.
    """
    needed_bytes = _DESCRIBED_BYTES
    if codec is not None:
        needed_bytes = max(needed_bytes, codec.block_bytes)
    stored_bytes = min((folder / path).stat().st_size, needed_bytes)
    return StoredPiece(folder, unchecked_piece(path, stored_bytes))


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Consecutive complete lines, or the beginning of one line that is too long for memory."""

    lines: list[bytes]
    """Without their line ends; of a line that is too long, its first 200 bytes."""
    first_number: int
    """1-based number of the first line in its file, or in its piece if the lines of the file have
    not been counted.
    """
    begin: int
    """Offset of the first line's first byte in the decompressed file."""
    end: int
    """Offset after the last line and its line end; the last line of a file may have none."""
    long_bytes: int = 0
    """Size of the one line that is too long, without its line end; otherwise 0."""

    @property
    def offsets(self) -> list[int]:
        """Where each line begins in the decompressed file."""
        sizes = [len(line) + 1 for line in self.lines]
        bounds = list(accumulate(sizes, initial=self.begin))
        return bounds[:-1]


def read_lines(stored: StoredPiece, max_line_bytes: int) -> Iterator[LineBlock]:
    """Read the lines of one piece in order.

    A line ends with a line feed, or with the file; a carriage return before the line feed is part
    of the line. If a fault is inside a line, what was read of this line is yielded as a line before
    the exception is raised.

    Args:
        stored: The piece.
        max_line_bytes: Longer lines are not held in memory, only counted and measured.

    Yields:
        Blocks of consecutive lines.

    Raises:
        FaultError: The file cannot be decompressed to its end, or it is not a file of lines.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read.
        SourceChangedError: The file has changed since it was listed.
    """
    piece = stored.piece

    def describe(head: bytes) -> str | None:
        """Return what the file is if it certainly contains no JSON lines."""
        return describe_unreadable_content(head, piece.path)

    first_line = piece.first_line or 1  # 0 if the lines of the file have not been counted
    splitter = _LineSplitter(first_line, piece.begin, max_line_bytes)
    fault: FaultError | None = None
    try:
        for chunk in text_chunks(stored, describe):
            for start in range(0, len(chunk), SPLIT_BYTES):
                yield from splitter.feed(chunk[start : start + SPLIT_BYTES])
    except FaultError as error:
        fault = error
        fault.line = splitter.line_number

    # The last line, if it has no line end. A fault is raised only after everything that was read.
    if splitter.held_bytes > 0:
        yield splitter.release(has_line_end=False)
    if fault is not None:
        raise fault


def _add_description(fault: FaultError, stored: StoredPiece, codec: Codec) -> None:
    """Say in an error what a file really is, if it is not compressed as its name says.

    For example, a user has named a file `a.jsonl.gz`, but never compressed it. "It cannot be
    decompressed" would not help much. So the message begins with what its first bytes show.

    Args:
        fault: The error, which is changed.
        stored: The file that could not be decompressed.
        codec: The compression that its name promises.
    """
    with open_raw(stored.path) as file:
        head = file.read(HEAD_BYTES)
    may_be_lines = format_of(stored.piece.path) == "lines"
    content = describe_mismatch(head, codec.magic, may_be_lines=may_be_lines)
    if content is not None:
        fault.detail = f"the file is {content}; {fault.detail}"


def _split_lines(chunk: bytes) -> list[bytes]:
    """Return what `chunk.split(b"\\n")` returns, in half the time if lines are long.

    Args:
        chunk: At least one byte.
    """
    # BytesIO finds line ends by the C library, where `split` compares each byte.
    parts = [line.removesuffix(b"\n") for line in BytesIO(chunk)]
    if chunk.endswith(b"\n"):
        parts.append(b"")
    return parts


class _LineSplitter:
    """Divides a stream of chunks into lines.

    The beginning of a line at the end of a chunk is held until the chunk with its line end.
    """

    def __init__(self, line_number: int, offset: int, max_line_bytes: int) -> None:
        self.line_number = line_number
        """1-based number of the line that is held."""
        self.held_bytes = 0
        """Bytes of the line that is held, including those that were dropped."""
        self._held_parts: list[bytes] = []
        self._offset = offset  # of the line that is held
        self._max_line_bytes = max_line_bytes

    def feed(self, chunk: bytes) -> Iterator[LineBlock]:
        r"""Yield the lines that end in a chunk of text, and hold the start of the next line.

            chunk            held before    yielded           held after
            "He"             ""             nothing           "He"
            "llo\nmy\nwor"   "He"           "Hello", "my"     "wor"
            "ld\n"           "wor"          "world"           ""

        Args:
            chunk: The text that follows that of the previous call.

        Yields:
            Nearly always, a block with all lines. If one of them is too long, a block for each
            line.
        """
        # In the second row: the line that is held goes on with "llo", "my" is complete, and then
        # "wor" is held.
        parts = _split_lines(chunk)
        self._hold(parts[0])
        if len(parts) == 1:  # the chunk has no line end
            return
        complete_lines = parts[1:-1]

        longest = max([self.held_bytes, *map(len, complete_lines)])
        if longest <= self._max_line_bytes:
            yield self.release(complete_lines)  # "Hello" and "my"
        else:
            yield self.release()
            for line in complete_lines:
                self._hold(line)
                yield self.release()
        self._hold(parts[-1])

    def _hold(self, part: bytes) -> None:
        """Append bytes to the line whose end was not read yet.

        A line that is too long for a document is rejected with a message that shows its beginning.
        Only this beginning stays in memory, while `held_bytes` counts all bytes of the line.

        Args:
            part: The bytes, without a line end.
        """
        self.held_bytes += len(part)
        self._held_parts.append(part)
        if self.held_bytes > self._max_line_bytes:
            # Each part is cut off before they are joined, since the last one may be large.
            beginnings = [held_part[:EXCERPT_BYTES] for held_part in self._held_parts]
            self._held_parts = [b"".join(beginnings)[:EXCERPT_BYTES]]

    def release(self, following: Sequence[bytes] = (), *, has_line_end: bool = True) -> LineBlock:
        """Return the line that is held, and perhaps further lines, as a block; then hold nothing.

        For example, "Hello" is held, which begins at byte 100 of the file, and `following` is
        ["my"]:

            lines    ["Hello", "my"]
            begin    100
            end      109    (100, and 5 bytes of "Hello", 2 bytes of "my", 2 line feeds)

        Args:
            following: Further lines for the block. There must be none if the line that is held is
                longer than `max_line_bytes`.
            has_line_end: Whether the last line of the block ends with a line feed, which only the
                last line of a file may lack.
        """
        lines = [b"".join(self._held_parts), *following]
        n_line_feeds = len(lines) if has_line_end else len(lines) - 1
        n_bytes = self.held_bytes + sum(map(len, following)) + n_line_feeds
        end = self._offset + n_bytes

        # If a line is too long, the block has only its first bytes, and says how many it had.
        is_too_long = self.held_bytes > self._max_line_bytes
        long_bytes = self.held_bytes if is_too_long else 0
        block = LineBlock(lines, self.line_number, self._offset, end, long_bytes)

        # The next line begins where the block ends. Nothing of it is held yet.
        self.line_number += len(lines)
        self._offset = end
        self.held_bytes = 0
        self._held_parts = []
        return block
