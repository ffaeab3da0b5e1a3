"""The raw text of one document, read from the corpus's files again, without what lies around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
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
from nanoset_core.storage.remote_folder import RawFolder

MOST_LINE_BYTES = 64 << 20
"""Longer lines are not held in memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How far into compressed text is decompressed by default: a second, about."""


class NotReadError(InputError):
    """Text that would be slow or big to read; nothing is known against it."""


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
    """The text of one line or row, as it is in the file now.

    Args:
        folder: the corpus's folder.
        source: which line.
        text_key: key of the text, or its column.
        most_skipped_bytes: how much decompressed text, or how many rows' text, may be read to get there.

    Raises:
        MissingError: the file is gone.
        FormatError: there is no document at that place any more.
        NotReadError: it lies too far into compressed text, or is too long.
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
    """As `read_text`, of many: each text, or what kept it from being read.

    Lines of a file that come one after the other, in its order, are read in one pass over it.
    """
    for file, lines in groupby(sources, attrgetter("file")):
        left = list(lines)
        if is_table(file):
            for source in left:
                yield _tried(partial(_text_of_row, folder / file, source.line, text_key, most_skipped_bytes))
            continue
        try:
            with _lines_of(folder, file, most_skipped_bytes) as line_of:
                while left:
                    yield _tried(partial(_text_of_line, folder, left[0], text_key, line_of))
                    del left[0]
        except NanosetError as error:
            yield from [error] * len(left)


def _tried(read: Callable[[], str]) -> str | NanosetError:
    try:
        return read()
    except NanosetError as error:
        return error


def _text_of_line(folder: RawFolder, source: SourceLine, text_key: str, line_of: Callable[[SourceLine], bytes]) -> str:
    try:
        return parse_line(line_of(source), Fields(text_key, ""))[0]
    except NotADocumentError as error:
        raise _moved(folder, source, f"{error.reason}: {error.detail}") from error


@contextmanager
def _lines_of(folder: RawFolder, file: str, most: int | None) -> Iterator[Callable[[SourceLine], bytes]]:
    """A function that gives lines of a file."""
    codec = codec_of(file)
    if codec is not None:
        yield _CompressedLines(folder, file, codec, most).line
        return
    with open_raw(folder / file) as opened:
        yield partial(_plain_line, folder, opened)


def _plain_line(folder: RawFolder, file: BinaryIO, source: SourceLine) -> bytes:
    file.seek(max(source.byte_offset - 1, 0))
    before = file.read(1) if source.byte_offset else b"\n"
    line = file.readline(MOST_LINE_BYTES + 1)
    if before != b"\n" or not line:
        raise _moved(folder, source, "no line begins there")
    return _whole(folder, source, line)


class _CompressedLines:
    """Lines of a compressed file, which is decompressed once where they are asked for in its order."""

    def __init__(self, folder: RawFolder, file: str, codec: Codec, most: int | None) -> None:
        self._folder, self._file, self._codec, self._most = folder, file, codec, most
        self._chunks: Iterator[bytes] | None = None
        self._begin, self._text = 0, b""
        self._fault: FaultError | None = None

    def line(self, source: SourceLine) -> bytes:
        """The line that begins at a byte of the text."""
        if self._most is not None and source.byte_offset > self._most:
            raise _not_read(self._folder, source, f"{source.byte_offset:,} bytes into compressed text")
        if self._chunks is None or source.byte_offset < self._begin:
            self._chunks, self._begin, self._text = self._decompressed(), 0, b""
        while self._begin + len(self._text) <= source.byte_offset:
            self._begin, self._text = self._begin + len(self._text), self._next(source)
            if not self._text:
                raise _moved(self._folder, source, "the text ends before that byte")
        self._text = self._text[source.byte_offset - self._begin :]
        self._begin = source.byte_offset
        while not (end := self._text.find(b"\n") + 1) and len(self._text) <= MOST_LINE_BYTES:
            if not (more := self._next(source)):
                break
            self._text += more
        return _whole(self._folder, source, self._text[:end] if end else self._text)

    def _next(self, source: SourceLine) -> bytes:
        """The text that follows; nothing at its end."""
        try:
            if self._fault is None and self._chunks is not None:
                return next((chunk for chunk in self._chunks if chunk), b"")
        except FaultError as error:
            self._fault = error
        if self._fault is not None:
            raise _moved(self._folder, source, f"{self._fault.reason}: {self._fault.detail}")
        return b""

    def _decompressed(self) -> Iterator[bytes]:
        self._fault = None
        with open_raw(self._folder / self._file) as file:
            size = file.seek(0, 2)
        return decompress(StoredPiece(self._folder, Piece(self._file, 0, size, 1, "")), self._codec)


def _whole(folder: RawFolder, source: SourceLine, line: bytes) -> bytes:
    if len(line) > MOST_LINE_BYTES:
        raise _not_read(folder, source, f"a line of more than {MOST_LINE_BYTES:,} bytes")
    return line.removesuffix(b"\n")


def _text_of_row(path: RawFolder, row: int, text_key: str, most: int | None) -> str:
    where = SourceLine(path.name, row, -1)
    for first_row, rows in _rows_to(path, row, text_key, most):
        if row - first_row < rows.num_rows:
            place = locate_text(rows.schema, text_key)
            found = texts_at(rows.slice(row - first_row, 1), place, text_key, MOST_LINE_BYTES)
            if found.bad or (text := found.texts[0]) is None:
                raise _moved(path.parent, where, ": ".join(found.bad[0][:2]))
            return text
    raise _moved(path.parent, where, "the table ends before that row")


def _rows_to(path: RawFolder, row: int, text_key: str, most: int | None) -> Iterator[tuple[int, Any]]:
    """(first row, record batch) of a table up to a row; in Parquet from its row group on."""
    if is_parquet(path.name):
        yield from _parquet_batches(path, row, text_key, most)
        return
    try:
        yield from read_table(path, lambda schema: [_selector(path, schema, text_key)])
    except FaultError as fault:
        raise _moved(path.parent, SourceLine(path.name, row, -1), f"{fault.reason}: {fault.detail}") from fault


def _parquet_batches(path: RawFolder, row: int, text_key: str, most: int | None) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_raw(path) as file:
            table = pq.ParquetFile(file, pre_buffer=False)
            first, group = 1, 0
            while group < table.num_row_groups and first + table.metadata.row_group(group).num_rows <= row:
                first += table.metadata.row_group(group).num_rows
                group += 1
            if group == table.num_row_groups:
                return
            facts = table.metadata.row_group(group)
            skipped = facts.total_byte_size * (row - first) // max(facts.num_rows, 1)
            if most is not None and skipped > most:
                raise _not_read(path.parent, SourceLine(path.name, row, -1), f"{skipped:,} bytes into a row group")
            columns = [_selector(path, table.schema_arrow, text_key)]
            for batch in table.iter_batches(256, row_groups=[group], columns=columns, use_threads=False):
                yield first, batch
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, NanosetError):
            raise
        raise _moved(path.parent, SourceLine(path.name, row, -1), str(error)) from error


def _selector(path: RawFolder, schema: object, text_key: str) -> str:
    try:
        return locate_text(schema, text_key).selector
    except NotADocumentError as error:
        raise _moved(path.parent, SourceLine(path.name, 1, -1), f"{error.reason}: {error.detail}") from error


def _spell(folder: RawFolder, source: SourceLine) -> str:
    byte = f" (byte {source.byte_offset:,})" if source.byte_offset >= 0 else ""
    return f"{folder / source.file}:{source.line}{byte}"


def _moved(folder: RawFolder, source: SourceLine, found: str) -> FormatError:
    return FormatError(
        "the document is not at its place any more",
        where=_spell(folder, source),
        found=found,
        expected="the line or row that was tokenized",
        remedy="run `nanoset build`: the file was changed since",
    )


def _not_read(folder: RawFolder, source: SourceLine, found: str) -> NotReadError:
    return NotReadError("the text was not read again", where=_spell(folder, source), found=found)
