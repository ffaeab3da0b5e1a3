"""Read the raw text of single documents from the corpus's files again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, BinaryIO

from nanoset_core.errors import FormatError, InputError, NanosetError
from nanoset_core.raw.columns import locate_text, texts_at
from nanoset_core.raw.decompression import Codec, codec_of, decompress
from nanoset_core.raw.endings import is_parquet, is_table
from nanoset_core.raw.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.rejects import FaultError
from nanoset_core.raw.stored import StoredPiece, open_raw
from nanoset_core.raw.tables import read_table
from nanoset_core.storage.location import RawFolder

MOST_LINE_BYTES = 64 << 20
"""Longer lines are not held in memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How far into compressed text is decompressed by default: a second, about."""


class NotReadError(InputError):
    """Text that would be slow or large to read; it may well be unchanged."""


class _MovedError(Exception):
    """There is no document at that place any more."""


class _TooFarError(Exception):
    """The document would be slow or large to read."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a corpus's files, or one row."""

    file: str
    """Relative to the corpus's folder."""
    line: int
    """1-based; in a Parquet or Arrow file the row."""
    byte_offset: int
    """Of the line in the decompressed file; -1 for a row."""


def read_text(
    folder: RawFolder, source: SourceLine, text_key: str, *, most_skipped_bytes: int | None = MOST_SKIPPED_BYTES
) -> str:
    """Read the text of one line or row, as it is in the file now.

    Args:
        folder: the corpus's folder.
        source: which line.
        text_key: key of the text, or its column.
        most_skipped_bytes: how much decompressed text, or how many rows' text, may be read to get there.

    Raises:
        MissingError: the file is gone.
        FormatError: there is no document at that place any more.
        NotReadError: it is too far into compressed text, or too long.
        InputError: the file cannot be read.
    """
    (found,) = read_texts(folder, [source], text_key, most_skipped_bytes=most_skipped_bytes)
    if isinstance(found, NanosetError):
        raise found
    return found


def read_texts(
    folder: RawFolder,
    sources: Iterable[SourceLine],
    text_key: str,
    *,
    most_skipped_bytes: int | None = MOST_SKIPPED_BYTES,
) -> Iterator[str | NanosetError]:
    """Yield the text of each of many lines, or the error that `read_text` would raise.

    Lines of a file that follow one another, in its order, are read in one pass over it.
    """
    for file, lines in groupby(sources, attrgetter("file")):
        left = list(lines)
        try:
            with _reader(folder, file, text_key, most_skipped_bytes) as read:
                while left:
                    yield _tried(folder, left[0], read)
                    del left[0]
        except NanosetError as error:
            yield from [error] * len(left)


def _tried(folder: RawFolder, source: SourceLine, read: Callable[[SourceLine], str]) -> str | NanosetError:
    byte = f" (byte {source.byte_offset:,})" if source.byte_offset >= 0 else ""
    where = f"{folder / source.file}:{source.line}{byte}"
    try:
        return read(source)
    except NanosetError as error:
        return error
    except _TooFarError as error:
        return NotReadError("the text was not read again", where=where, found=str(error))
    except (_MovedError, NotADocumentError, FaultError) as error:
        found = str(error) if isinstance(error, _MovedError) else f"{error.reason}: {error.detail}"
        remedy = "run `nanoset build`: the file was changed since"
        return FormatError("the document is not at its place any more", where=where, found=found, remedy=remedy)


@contextmanager
def _reader(folder: RawFolder, file: str, text_key: str, most: int | None) -> Iterator[Callable[[SourceLine], str]]:
    """Give a function that reads the text of a line or row of a file."""
    if is_table(file):
        yield lambda source: _text_of_row(folder / file, source.line, text_key, most)
        return
    fields, codec = Fields(text_key, ""), codec_of(file)
    if codec is not None:
        compressed = _CompressedLines(folder, file, codec, most)
        yield lambda source: parse_line(compressed.line(source.byte_offset), fields)[0]
        return
    with open_raw(folder / file) as opened:
        yield lambda source: parse_line(_plain_line(opened, source.byte_offset), fields)[0]


def _plain_line(file: BinaryIO, offset: int) -> bytes:
    file.seek(max(offset - 1, 0))
    before = file.read(1) if offset else b"\n"
    line = file.readline(MOST_LINE_BYTES + 1)
    if before != b"\n" or not line:
        raise _MovedError("no line begins there")
    return _whole(line)


class _CompressedLines:
    """Read lines of a compressed file, which is decompressed once if they are asked for in its order."""

    def __init__(self, folder: RawFolder, file: str, codec: Codec, most: int | None) -> None:
        self._folder, self._file, self._codec, self._most = folder, file, codec, most
        self._chunks: Iterator[bytes] | None = None
        self._begin, self._text = 0, b""
        self._fault: FaultError | None = None

    def line(self, offset: int) -> bytes:
        """Return the line that begins at a byte of the text."""
        if self._most is not None and offset > self._most:
            raise _TooFarError(f"{offset:,} bytes into compressed text")
        if self._chunks is None or offset < self._begin:
            with open_raw(self._folder / self._file) as file:
                size = file.seek(0, 2)
            self._chunks = decompress(StoredPiece(self._folder, Piece(self._file, 0, size, 1, "")), self._codec)
            self._begin, self._text, self._fault = 0, b"", None
        while self._begin + len(self._text) <= offset:
            self._begin, self._text = self._begin + len(self._text), self._next(self._chunks)
            if not self._text:
                raise _MovedError("the text ends before that byte")
        self._text = self._text[offset - self._begin :]
        self._begin = offset
        while not (end := self._text.find(b"\n") + 1) and len(self._text) <= MOST_LINE_BYTES:
            if not (more := self._next(self._chunks)):
                break
            self._text += more
        return _whole(self._text[:end] if end else self._text)

    def _next(self, chunks: Iterator[bytes]) -> bytes:
        """Return the text that follows; nothing at its end. A fault is raised each time."""
        if self._fault is not None:
            raise self._fault
        try:
            return next((chunk for chunk in chunks if chunk), b"")
        except FaultError as error:
            self._fault = error
            raise


def _whole(line: bytes) -> bytes:
    if len(line) > MOST_LINE_BYTES:
        raise _TooFarError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
    return line.removesuffix(b"\n")


def _text_of_row(path: RawFolder, row: int, text_key: str, most: int | None) -> str:
    import pyarrow as pa

    def select(schema: Any) -> list[str]:
        return [locate_text(schema, text_key).selector]

    batches = _parquet_rows(path, row, select, most) if is_parquet(path.name) else read_table(path, select)
    try:
        for first, rows in batches:
            if row - first < rows.num_rows:
                place = locate_text(rows.schema, text_key)
                found = texts_at(rows.slice(row - first, 1), place, text_key, MOST_LINE_BYTES)
                if found.bad or (text := found.texts[0]) is None:
                    raise _MovedError(": ".join(found.bad[0][:2]))
                return text
    except NanosetError:
        raise
    except (pa.ArrowException, OSError) as error:
        raise _MovedError(str(error)) from error
    raise _MovedError("the table ends before that row")


def _parquet_rows(
    path: RawFolder, row: int, select: Callable[[Any], list[str]], most: int | None
) -> Iterator[tuple[int, Any]]:
    """Yield (first row, record batch) of the row group that holds a row, as `read_table` does of all of them."""
    import pyarrow.parquet as pq

    with open_raw(path) as file:
        table = pq.ParquetFile(file, pre_buffer=False)
        first, number = 1, 0
        while number < table.num_row_groups and first + table.metadata.row_group(number).num_rows <= row:
            first += table.metadata.row_group(number).num_rows
            number += 1
        if number == table.num_row_groups:
            return
        group = table.metadata.row_group(number)
        skipped = group.total_byte_size * (row - first) // max(group.num_rows, 1)
        if most is not None and skipped > most:
            raise _TooFarError(f"{skipped:,} bytes into a row group")
        columns = select(table.schema_arrow)
        for batch in table.iter_batches(256, row_groups=[number], columns=columns, use_threads=False):
            yield first, batch
            first += batch.num_rows
