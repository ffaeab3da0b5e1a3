"""Read documents again from the raw files that they came from.

A raw file may have been changed or deleted since it was tokenized. Then there is an error in place
of the text, so that a reader of many documents can continue with the next one.

An uncompressed file is read at the document's byte. A compressed file, and a row group of a table,
can only be read from its start: documents that are requested in the file's order are read in one
pass, and those far into it only if the caller allows it.
"""

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
"""Longer lines are not read into memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How many bytes of text are decompressed by default to reach a document: about a second."""
MOST_HASHED_BYTES = 256 << 20
"""Larger pieces are not hashed to find out whether they were changed."""

SourceState = Literal["unchanged", "changed", "gone", "unknown"]
"""Whether a raw file, or a document in it, is the one that was tokenized."""
T = TypeVar("T")


class NotReadError(InputError):
    """The text was not read, because it is too long or too far into its file."""


def read_texts(
    folder: RawFolder,
    origins: Iterable[DocumentOrigin],
    text_key: str,
    *,
    most_skipped_bytes: int | None = MOST_SKIPPED_BYTES,
) -> Iterator[str | NanosetError]:
    """Yield the text of each of some documents, read from its raw file, or an error.

    Request documents in the order of their files and lines: then each file is read once.

    Args:
        folder: The corpus's folder.
        origins: The documents.
        text_key: The field with the text.
        most_skipped_bytes: How many bytes of compressed text, or of a row group, are read to reach
            a document; None for no limit.

    Yields:
        For each document its text, or the error that says why there is none:

        - MissingError: the file was deleted;
        - FormatError: it has no document at that place any more;
        - NotReadError: the document is too long, or too far into the file;
        - InputError: the file cannot be read.
    """
    # Open each file once, for consecutive documents of it.
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
    """Return the text of a document, or the error that says why there is none.

    Args:
        folder: The corpus's folder.
        origin: The document.
        reader: Reads its file.
    """
    # The place of the document, for errors. A row of a table has no byte: its offset is -1.
    where = f"{folder / origin.file}:{origin.line}"
    if origin.byte_offset >= 0:
        where += f" (byte {origin.byte_offset:,})"

    try:
        return reader.text(origin)
    except NanosetError as error:
        # The file is missing or cannot be read, and the error says so to the user.
        return error
    except TooFarError as error:
        # The text would take too much time or memory.
        return NotReadError("the text was not read again", where=where, found=str(error))
    except (NotADocumentError, FaultError) as error:
        # When the corpus was tokenized, a document was here. Now the place has none, or is damaged.
        return FormatError(
            "there is no document at this place any more",
            where=where,
            found=f"{error.reason}: {error.detail}",
            remedy="run `nanoset build`: the file has changed",
        )


class _FaultyStream(Generic[T]):
    """An iterator over the items of a file that raises the error at a fault again on every call.

    A generator would just end after its first error, as if the file ended there.
    """

    def __init__(self, items: Iterator[T]) -> None:
        self._items = items
        self._fault: FaultError | None = None  # the error at which reading ended

    def next(self) -> T | None:
        """Return the next item, or None at the end.

        Raises:
            FaultError: The file is damaged at this place, or before it.
        """
        if self._fault is None:
            try:
                return next(self._items, None)
            except FaultError as error:
                self._fault = error
        raise self._fault


class _LineReader:
    """Reads documents of a file of JSON lines.

    A compressed file is read in one pass as long as lines are requested in its order.
    """

    def __init__(
        self, folder: RawFolder, file: str, fields: Fields, most_skipped_bytes: int | None
    ) -> None:
        """Prepare to read lines of a file.

        Args:
            folder: The corpus's folder.
            file: The file, relative to it.
            fields: Names the field with the text.
            most_skipped_bytes: How many bytes of compressed text are read to reach a document; None
                for no limit.
        """
        self._folder = folder
        self._file = file
        self._fields = fields
        self._most_skipped_bytes = most_skipped_bytes
        self._open: _OpenLines | None = None  # of a compressed file

    def text(self, origin: DocumentOrigin) -> str:
        """Return the text of a document, whose line is found by its first byte.

        Args:
            origin: The document, with the position of this byte in the decompressed file.

        Raises:
            NotADocumentError: No line begins there, or it is not a document.
            TooFarError: The line is too long, or too far into the file.
            FaultError: The file is damaged at the line or before it.
        """
        offset = origin.byte_offset
        open_lines = self._lines_before(offset)
        block = self._block_with(open_lines, offset)

        # Find the line in the block. A line that is too long is a block of its own, which has only
        # the start of it.
        if block.long_bytes:
            raise TooFarError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
        offsets = block.offsets  # position of each line's first byte in the file
        if offset not in offsets:
            raise NotADocumentError("no_line", "no line begins there")
        line = block.lines[offsets.index(offset)]

        # If the block ends without a line end, its last line is the last one of the file, or was
        # cut because the file is damaged. Reading the next block raises the fault in this case.
        bytes_with_line_ends = sum(len(block_line) + 1 for block_line in block.lines)
        lacks_line_end = block.begin + bytes_with_line_ends > block.end
        if lacks_line_end:
            open_lines.stream.next()
        return parse_line(line, self._fields)[0]

    def _block_with(self, open_lines: _OpenLines, offset: int) -> LineBlock:
        """Read on in the file up to the block of lines that contains a byte.

        The reader remembers this block, so that a later request can continue from there.

        Args:
            open_lines: The file, opened at or before the byte.
            offset: Position of the byte in the decompressed file.

        Raises:
            NotADocumentError: The file ends before the byte.
            FaultError: The file is damaged before the byte.
        """
        block = open_lines.block
        while block.end <= offset:
            next_block = open_lines.stream.next()
            if next_block is None:
                raise NotADocumentError("no_line", "the text ends before that byte")
            block = next_block
            self._open = open_lines._replace(block=block)
        return block

    def _lines_before(self, offset: int) -> _OpenLines:
        """Open the file at or before a byte, or return it if it is open there already.

        Args:
            offset: Position of the byte in the decompressed file.

        Raises:
            TooFarError: The file is compressed, and the byte too far into it.
        """
        # An uncompressed file can be read from any byte on.
        if is_cuttable(self._file):
            return _OpenLines.of(self._line_at(offset))
        if self._most_skipped_bytes is not None and offset > self._most_skipped_bytes:
            raise TooFarError(f"{offset:,} bytes into compressed text")

        # A compressed file can only be read forward. Continue an earlier pass over it if its last
        # block does not begin after the byte.
        if self._open is not None and self._open.block.begin <= offset:
            return self._open

        # Begin at the start of the file (again), with the whole file as one piece.
        with open_raw(self._folder / self._file) as opened:
            size = status_of(opened).st_size
        piece = Piece(path=self._file, begin=0, end=size, first_line=1, digest="")
        return _OpenLines.of(StoredPiece(self._folder, piece))

    def _line_at(self, offset: int) -> StoredPiece:
        """Return the line at a byte of an uncompressed file, together with the byte before it.

        The byte before the line shows whether a line begins there: it has to be a line end.

        Args:
            offset: First byte of the line.
        """
        path = self._folder / self._file
        start = max(offset - 1, 0)  # the byte before the line, if there is one
        window_bytes = WINDOW_BYTES
        while True:
            # Read the bytes [start, stop). No byte after `max_stop` is needed: the longest allowed
            # line, its line end, and one more byte, which shows that a line is too long.
            with open_raw(path, begin=start, end=start + window_bytes) as file:
                file_bytes = status_of(file).st_size
                max_stop = min(file_bytes, offset + MOST_LINE_BYTES + 2)
                stop = min(start + window_bytes, max_stop)
                # With blocks as large as the range, the first block is all of it.
                data = next(blocks_of(file, start, stop, window_bytes), b"")

            # Cut them after the line end, if it is among them.
            line_end = data.find(b"\n", offset - start)
            has_line_end = line_end >= 0
            if has_line_end:
                data = data[: line_end + 1]
            is_all = has_line_end or start + len(data) >= max_stop
            if is_all:
                # The number of the line is not known, and not used: call it 1.
                piece = Piece(self._file, start, start + len(data), first_line=1, digest="")
                return _HeldPiece(self._folder, piece, data)

            # Most lines fit into the first window, which is one request to a bucket. Read eight
            # times as much for the others.
            window_bytes *= 8


class _OpenLines(NamedTuple):
    """A file of lines, and how far it has been read."""

    stream: _FaultyStream[LineBlock]
    """The following blocks of lines."""
    block: LineBlock
    """The block that was read last; without lines if none was read yet."""

    @staticmethod
    def of(stored: StoredPiece) -> _OpenLines:
        """Open a piece of a file. No block of it has been read yet.

        Args:
            stored: The piece.
        """
        begin = stored.piece.begin
        stream = _FaultyStream(read_lines(stored, MOST_LINE_BYTES))
        return _OpenLines(stream, LineBlock([], 1, begin, begin))


class _HeldPiece(StoredPiece):
    """A piece of a file whose bytes are in memory."""

    def __init__(self, folder: RawFolder, piece: Piece, data: bytes) -> None:
        super().__init__(folder, piece)
        self._data = data

    def blocks(self) -> Iterator[bytes]:
        """Yield the bytes of the piece, without reading the file."""
        yield self._data


class _TableRow(NamedTuple):
    """A row of a table."""

    number: int
    """Number of the row, from 1."""
    content: DocumentBatch | TooFarError
    """Its document or reject; or an error if the row is too far into its row group."""


class _TableReader:
    """Reads documents of a Parquet or Arrow file.

    The file is read in one pass as long as rows are requested in its order.
    """

    def __init__(
        self,
        folder: RawFolder,
        file: str,
        fields: Fields,
        rows: Sequence[int],
        most_skipped_bytes: int | None,
    ) -> None:
        """Prepare to read rows of a table.

        Args:
            folder: The corpus's folder.
            file: The table, relative to it.
            fields: Names the column with the text.
            rows: Numbers of all rows that will be requested, from 1. Others are not read.
            most_skipped_bytes: How many bytes of a row group are read to reach a document; None for
                no limit.
        """
        self._path = folder / file
        self._reader = RowReader(file, fields, MOST_LINE_BYTES)
        self._rows = rows
        self._most_skipped_bytes = most_skipped_bytes
        self._next_rows: _FaultyStream[_TableRow] | None = None  # an open pass over the table
        self._last_row: _TableRow | None = None  # the row that was read last in this pass

    def text(self, origin: DocumentOrigin) -> str:
        """Return the text of a document, whose row is found by its number.

        Args:
            origin: The document.

        Raises:
            NotADocumentError: There is no such row, or it is not a document.
            TooFarError: The row is too far into its row group.
            FaultError: The table is damaged at the row or before it.
        """
        row_number = origin.line  # for a table, this field is the number of the row

        # Begin a pass over the table, unless one is open that has not passed the row yet.
        next_rows = self._next_rows
        row = self._last_row
        if next_rows is None or row is None or row.number > row_number:
            remaining = sorted({number for number in self._rows if number >= row_number})
            # If the table is damaged, each later request raises the fault again.
            next_rows = _FaultyStream(self._read(remaining))
            self._next_rows = next_rows
            row = None

        # Read up to the row.
        while row is None or row.number < row_number:
            row = next_rows.next()
            if row is None:
                raise NotADocumentError("no_row", "the table ends before that row")
            self._last_row = row

        # The content has one document or one reject, or is the error if the row was not read.
        if isinstance(row.content, TooFarError):
            raise row.content
        if not row.content.texts:
            reject = row.content.rejects[0]
            raise NotADocumentError(reject.reason, reject.detail)
        return row.content.texts[0]

    def _read(self, row_numbers: Sequence[int]) -> Iterator[_TableRow]:
        """Return an iterator that reads some rows of the table.

        Args:
            row_numbers: Numbers of the rows, from 1, ascending.
        """

        def convert(row: Any, number: int) -> _TableRow:
            """Parse the document of one row.

            Args:
                row: A record batch with this row alone; or an error in its place, if too many bytes
                    would have to be read to reach it.
                number: Number of the row.
            """
            if isinstance(row, TooFarError):
                return _TableRow(number, row)
            return _TableRow(number, self._reader.documents(row, number))

        return read_table(
            self._path,
            self._reader.choose,  # selects the columns
            convert,
            rows=row_numbers,
            # How far into a row group a row may be.
            most_skipped_bytes=self._most_skipped_bytes,
        )


def file_state(
    inventory: Inventory | None, memory: FingerprintMemory, folder: RawFolder, file: str, byte: int
) -> SourceState:
    """Return whether a piece of a raw file was changed since its inventory was made.

    An inventory lists the files of a corpus when it was tokenized, with a hash of each piece: large
    files were cut into several. If the file has the size and times that it had when it was hashed,
    nothing is read. Otherwise the piece is hashed again. If it is larger than 256 MiB, the state is
    `unknown` instead.

    Args:
        inventory: The inventory of the corpus; None if it was deleted, which makes the state
            `unknown`.
        memory: The fingerprints of files in the folder, with the sizes and times that they had.
        folder: The corpus's folder.
        file: Path of the file, relative to the folder.
        byte: A byte of the file, which selects a piece. Compressed files and tables have one piece.
    """
    if not (folder / file).is_file():
        return "gone"
    if inventory is None:
        return "unknown"

    # A file that became shorter, or is new, needs no hash.
    pieces = [piece for piece in inventory.pieces if piece.path == file]
    stat = stat_file(folder, file)
    if not pieces or stat.size < pieces[-1].end:
        return "changed"

    # Use what is remembered of the file if it still has the size and times that it had.
    remembered = memory.recall(stat)
    if remembered is not None:
        is_same = remembered == pieces or is_same_object(remembered[0], pieces[0])
        return "unchanged" if is_same else "changed"

    # The file's times have changed since it was hashed: hash the piece again.
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
