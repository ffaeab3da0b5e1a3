"""Read the raw text of single documents from the corpus's files again."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, groupby
from operator import attrgetter
from typing import Any, NoReturn

from nanoset_core.errors import FormatError, InputError, NanosetError
from nanoset_core.raw.documents import DocumentBatch, RowReader
from nanoset_core.raw.endings import is_cuttable, is_table
from nanoset_core.raw.fingerprints import line_end
from nanoset_core.raw.lines import LineBlock, read_lines
from nanoset_core.raw.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.raw.pieces import Piece, StoredPiece, open_raw, probe_raw, status_of
from nanoset_core.raw.rejects import FaultError
from nanoset_core.raw.tables import TooFarError, read_table
from nanoset_core.storage.location import RawFolder

MOST_LINE_BYTES = 64 << 20
"""Longer lines are not held in memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How far into compressed text is decompressed by default: a second, about."""


class NotReadError(InputError):
    """Text that would be slow or large to read; it may well be unchanged."""


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
            read = _reader(folder, file, Fields(text_key, ""), most_skipped_bytes)
            while left:
                yield _tried(folder, left[0], read)
                del left[0]
        except NanosetError as error:
            yield from [error] * len(left)


def _reader(folder: RawFolder, file: str, fields: Fields, most: int | None) -> Callable[[SourceLine], str]:
    """Return a function that reads the text of a line or row of a file."""
    if is_table(file):
        return lambda source: _text_of_row(folder / file, source.line, fields, most)
    return _Lines(folder, file, fields, most).text


def _tried(folder: RawFolder, source: SourceLine, read: Callable[[SourceLine], str]) -> str | NanosetError:
    byte = f" (byte {source.byte_offset:,})" if source.byte_offset >= 0 else ""
    where = f"{folder / source.file}:{source.line}{byte}"
    try:
        return read(source)
    except NanosetError as error:
        return error
    except TooFarError as error:
        return NotReadError("the text was not read again", where=where, found=str(error))
    except (NotADocumentError, FaultError) as error:
        what, remedy = "the document is not at its place any more", "run `nanoset build`: the file was changed since"
        return FormatError(what, where=where, found=f"{error.reason}: {error.detail}", remedy=remedy)


class _Lines:
    """Read lines of a file; a compressed one is decompressed once if they are asked for in its order."""

    def __init__(self, folder: RawFolder, file: str, fields: Fields, most: int | None) -> None:
        with open_raw(folder / file) as opened:
            self._size = status_of(opened).st_size
        self._folder, self._file, self._fields = folder, file, fields
        self._is_plain, self._most = is_cuttable(file), most
        self._restart(0, self._size)

    def _restart(self, begin: int, end: int) -> None:
        stored = StoredPiece(self._folder, Piece(self._file, begin, end, 1, ""))
        self._blocks, self._block = read_lines(stored, MOST_LINE_BYTES), LineBlock([], 1, begin, begin)
        self._fault: FaultError | None = None

    def _next(self) -> LineBlock | None:
        """Return the next lines; None at the end. Raises the fault that ends them each time."""
        if self._fault is None:
            try:
                return next(self._blocks, None)
            except FaultError as error:
                self._fault = error
        raise self._fault

    def text(self, source: SourceLine) -> str:
        """Return the text of a line."""
        offset = source.byte_offset
        if self._is_plain:
            most = min(self._size, offset + MOST_LINE_BYTES + 2)
            with probe_raw(self._folder / self._file) as probe:
                end = line_end(probe, offset, most) or most  # nothing beyond is read ahead in a bucket
            self._restart(max(offset - 1, 0), end)  # with the end of the line before
        elif self._most is not None and offset > self._most:
            raise TooFarError(f"{offset:,} bytes into compressed text")
        elif offset < self._block.begin:
            self._restart(0, self._size)
        while self._block.end <= offset:
            self._block = self._next() or self._gone("the text ends before that byte")
        block = self._block
        if block.long_bytes:
            raise TooFarError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
        *begins, end = accumulate((len(line) + 1 for line in block.lines), initial=block.begin)
        if offset not in begins:
            self._gone("no line begins there")
        if end > block.end:
            self._next()  # the last line has no end: a fault may have cut it
        return parse_line(block.lines[begins.index(offset)], self._fields)[0]

    def _gone(self, detail: str) -> NoReturn:
        raise NotADocumentError("no_line", detail)


def _text_of_row(path: RawFolder, row: int, fields: Fields, most: int | None) -> str:
    reader = RowReader(path.name, fields, MOST_LINE_BYTES)

    def first(rows: Any, row: int) -> DocumentBatch:
        return reader.documents(rows.slice(0, 1), row)

    for found in read_table(path, reader.choose, first, first_row=row, most_skipped_bytes=most):
        for reject in found.rejects:
            raise NotADocumentError(reject.reason, reject.detail)
        return found.texts[0]
    raise NotADocumentError("no_row", "the table ends before that row")
