"""Read documents again from the raw files that they came from."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from nanoset_core.errors import FormatError, InputError, NanosetError, SourceChangedError
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.endings import is_cuttable, is_table
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.listing import stat_file
from nanoset_core.text.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.text.piece_cuts import WINDOW_BYTES
from nanoset_core.text.pieces import Inventory, Piece, is_same_object
from nanoset_core.text.raw_files import blocks_of, open_raw, status_of
from nanoset_core.text.record_batches import TooFarError
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.stored_piece import StoredPiece
from nanoset_core.text.table_documents import RowReader
from nanoset_core.text.tables import read_table

MOST_LINE_BYTES = 64 << 20
"""Longer lines are not held in memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How far into compressed text is decompressed by default: about a second."""
MOST_HASHED_BYTES = 256 << 20
"""Larger pieces are not hashed to find out whether they were changed."""

SourceState = Literal["unchanged", "changed", "gone", "unknown"]
T = TypeVar("T")


class NotReadError(InputError):
    """Text that would be slow or large to read; it may well be unchanged."""


def read_texts(
    folder: RawFolder,
    origins: Iterable[DocumentOrigin],
    text_key: str,
    *,
    most_skipped_bytes: int | None = MOST_SKIPPED_BYTES,
) -> Iterator[str | NanosetError]:
    """Yield the text of each of many documents, as it is in its file now, or the error that says
    why there is none.

    Documents that follow one another in a file, and in the request, are read in one pass over the
    file.

    Args:
        folder: The corpus's folder.
        origins: The documents.
        text_key: The field with the text.
        most_skipped_bytes: How far into compressed text, or the text of a row group, to read; None
            is everywhere.

    Yields:
        The text; or a MissingError (the file is gone), FormatError (there is no document at that
        place any more), NotReadError (it is too long, or too far into the file) or InputError (the
        file cannot be read).
    """
    fields = Fields(text_key, "")
    for file, group in groupby(origins, attrgetter("file")):
        file_origins = list(group)
        reader: _LineReader | _TableReader
        if is_table(file):
            lines = [origin.line for origin in file_origins]
            reader = _TableReader(folder, file, fields, lines, most_skipped_bytes)
        else:
            reader = _LineReader(folder, file, fields, most_skipped_bytes)
        for origin in file_origins:
            yield _text_or_error(folder, origin, reader)


def _text_or_error(
    folder: RawFolder, origin: DocumentOrigin, reader: _LineReader | _TableReader
) -> str | NanosetError:
    """Return the text of a document, or the error that says why there is none."""
    where = f"{folder / origin.file}:{origin.line}"
    if origin.byte_offset >= 0:
        where += f" (byte {origin.byte_offset:,})"
    try:
        return reader.text(origin)
    except NanosetError as error:
        return error
    except TooFarError as error:
        return NotReadError("the text was not read again", where=where, found=str(error))
    except (NotADocumentError, FaultError) as error:
        return FormatError(
            "the document is not at its place any more",
            where=where,
            found=f"{error.reason}: {error.detail}",
            remedy="run `nanoset build`: the file has changed",
        )


class _FaultyStream(Generic[T]):
    """Items that are read from a file in sequence, up to a fault, which every later call raises
    again.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._fault: FaultError | None = None

    def next(self) -> T | None:
        """Return the next item, or None at the end.

        Raises:
            FaultError: The file is damaged there.
        """
        if self._fault is None:
            try:
                return next(self._items, None)
            except FaultError as error:
                self._fault = error
        raise self._fault


class _LineReader:
    """Reads lines of a file of text; those of a compressed one in one pass if they are requested in
    its order.
    """

    def __init__(
        self, folder: RawFolder, file: str, fields: Fields, most_skipped_bytes: int | None
    ) -> None:
        self._folder = folder
        self._file = file
        self._fields = fields
        self._most_skipped_bytes = most_skipped_bytes
        self._open: _OpenLines | None = None

    def text(self, origin: DocumentOrigin) -> str:
        """Return the text of the line that begins at a document's byte of the decompressed file."""
        offset = origin.byte_offset
        lines = self._lines_upto(offset)
        while lines.block.end <= offset:
            block = lines.stream.next()
            if block is None:
                raise NotADocumentError("no_line", "the text ends before that byte")
            lines = lines._replace(block=block)
            self._open = lines
        block = lines.block
        if block.long_bytes:
            raise TooFarError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
        offsets = block.offsets
        if offset not in offsets:
            raise NotADocumentError("no_line", "no line begins there")

        # The last line of a file may have no line end. Read on: a fault may have cut it.
        lines_end = block.begin + sum(len(line) + 1 for line in block.lines)
        if lines_end > block.end:
            lines.stream.next()
        line = block.lines[offsets.index(offset)]
        return parse_line(line, self._fields)[0]

    def _lines_upto(self, offset: int) -> _OpenLines:
        """Return open lines of the file that have not passed a byte of the decompressed file yet."""
        if is_cuttable(self._file):
            return _OpenLines.of(self._line_at(offset))
        if self._most_skipped_bytes is not None and offset > self._most_skipped_bytes:
            raise TooFarError(f"{offset:,} bytes into compressed text")
        if self._open is not None and self._open.block.begin <= offset:
            return self._open
        with open_raw(self._folder / self._file) as opened:
            size = status_of(opened).st_size
        return _OpenLines.of(StoredPiece(self._folder, Piece(self._file, 0, size, 1, "")))

    def _line_at(self, offset: int) -> StoredPiece:
        """Return the line at a byte of an uncompressed file, with the end of the line before.

        A short line of an object in a bucket takes one request.
        """
        begin = max(offset - 1, 0)
        length = WINDOW_BYTES
        while True:
            with open_raw(self._folder / self._file, begin=begin, end=begin + length) as file:
                last = min(status_of(file).st_size, offset + MOST_LINE_BYTES + 2)
                data = next(blocks_of(file, begin, min(begin + length, last), length), b"")
            line_end = data.find(b"\n", offset - begin) + 1
            if line_end or begin + len(data) >= last:
                if line_end:
                    data = data[:line_end]
                return _HeldPiece(
                    self._folder, Piece(self._file, begin, begin + len(data), 1, ""), data
                )
            length *= 8


class _OpenLines(NamedTuple):
    """Lines that are being read in sequence."""

    stream: _FaultyStream[LineBlock]
    block: LineBlock
    """The one that was read last."""

    @staticmethod
    def of(stored: StoredPiece) -> _OpenLines:
        """Begin to read the lines of a piece of a file."""
        begin = stored.piece.begin
        return _OpenLines(
            _FaultyStream(read_lines(stored, MOST_LINE_BYTES)), LineBlock([], 1, begin, begin)
        )


class _HeldPiece(StoredPiece):
    """A piece of a file whose bytes are in memory."""

    def __init__(self, folder: RawFolder, piece: Piece, data: bytes) -> None:
        super().__init__(folder, piece)
        self._data = data

    def blocks(self) -> Iterator[bytes]:
        yield self._data


class _TableRow(NamedTuple):
    """A row of a table."""

    number: int
    """From 1."""
    content: DocumentBatch | TooFarError
    """Its document or reject, or that it is too far into its row group."""


class _TableReader:
    """Reads rows of a table, in one pass if they are requested in its order."""

    def __init__(
        self,
        folder: RawFolder,
        file: str,
        fields: Fields,
        rows: Sequence[int],
        most_skipped_bytes: int | None,
    ) -> None:
        """Args: rows: numbers of all rows that will be requested, from 1."""
        self._path = folder / file
        self._reader = RowReader(file, fields, MOST_LINE_BYTES)
        self._rows = rows
        self._most_skipped_bytes = most_skipped_bytes
        self._stream: _FaultyStream[_TableRow] | None = None
        self._last_row: _TableRow | None = None

    def text(self, origin: DocumentOrigin) -> str:
        """Return the text of the row of a document."""
        number = origin.line
        stream = self._stream
        row = self._last_row
        if stream is None or row is None or row.number > number:
            remaining = sorted({row_number for row_number in self._rows if row_number >= number})
            stream = _FaultyStream(self._read(remaining))
            self._stream = stream
            row = None
        while row is None or row.number < number:
            row = stream.next()
            if row is None:
                raise NotADocumentError("no_row", "the table ends before that row")
            self._last_row = row

        if isinstance(row.content, TooFarError):
            raise row.content
        if not row.content.texts:
            reject = row.content.rejects[0]
            raise NotADocumentError(reject.reason, reject.detail)
        return row.content.texts[0]

    def _read(self, rows: Sequence[int]) -> Iterator[_TableRow]:
        """Read rows, by their numbers, ascending."""

        def convert(batch: Any, number: int) -> _TableRow:
            if isinstance(batch, TooFarError):
                return _TableRow(number, batch)
            return _TableRow(number, self._reader.documents(batch, number))

        return read_table(
            self._path,
            self._reader.choose,
            convert,
            rows=rows,
            most_skipped_bytes=self._most_skipped_bytes,
        )


def file_state(
    inventory: Inventory | None, memory: FingerprintMemory, folder: RawFolder, file: str, byte: int
) -> SourceState:
    """Return whether a file, or the piece of it that holds a byte, is as the inventory says.

    Nothing is read if size and times are those of when the file was hashed, as the memory of the
    folder holds them. Otherwise the piece is hashed again, unless it is above 256 MiB: its state is
    `unknown`, as is that of a file without an inventory.

    Args:
        inventory: The inventory of the corpus, if it was not removed.
        memory: Fingerprints of the files in the folder.
        folder: The corpus's folder.
        file: Relative to the folder.
        byte: Offset in the file; in a compressed file or table, any.
    """
    if not (folder / file).is_file():
        return "gone"
    if inventory is None:
        return "unknown"
    pieces = [piece for piece in inventory.pieces if piece.path == file]
    stat = stat_file(folder, file)
    if not pieces or stat.size < pieces[-1].end:
        return "changed"

    remembered = memory.recall(stat)
    if remembered is not None:
        is_same = remembered == pieces or is_same_object(remembered[0], pieces[0])
        return "unchanged" if is_same else "changed"

    # The file was touched since it was hashed: hash the piece again.
    piece = pieces[0]
    for candidate in pieces:
        if candidate.begin <= byte < candidate.end:
            piece = candidate
            break
    if piece.size > MOST_HASHED_BYTES:
        return "unknown"
    try:
        StoredPiece(folder, piece).check()
    except SourceChangedError:
        return "changed"
    return "unchanged"
