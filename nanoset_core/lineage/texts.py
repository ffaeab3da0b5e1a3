"""Read documents again from the raw files that they came from.

A raw file may have been changed or deleted since it was tokenized. Then there is an error in place
of the text, so that a reader of many documents can continue with the next one.

An uncompressed file is read at the document's byte: for line 5 of `web/a.jsonl`, which begins at
byte 4,096, some kilobytes from there. A compressed file, and a row group of a table, can only be
read from its start: documents that are requested in the file's order are read in one pass, and
those far into it only if the caller allows it. This also holds for rows of CSV files, whose
positions are not recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from nanoset_core.errors import FormatError, InputError, NanosetError, SourceChangedError
from nanoset_core.lineage.documents import DocumentOrigin
from nanoset_core.storage.location import Location
from nanoset_core.storage.reading.input_files import status_of
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.files.endings import format_of, is_cuttable
from nanoset_core.text.files.listing import stat_file
from nanoset_core.text.files.raw_files import blocks_of, open_raw
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.piece_cuts import WINDOW_BYTES
from nanoset_core.text.inventory.pieces import Inventory, Piece, is_same_object, unchecked_piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.csv_rows import CsvRows, read_csv
from nanoset_core.text.tables.documents import RowReader
from nanoset_core.text.tables.record_batches import TooFarError, rows_between
from nanoset_core.text.tables.rows import read_table
from nanoset_core.text.txt_documents import parse_file_text, read_file_text

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
    folder: Location,
    origins: Iterable[DocumentOrigin],
    text_key: str,
    *,
    most_skipped_bytes: int | None = MOST_SKIPPED_BYTES,
) -> Iterator[str | NanosetError]:
    """Read the text of some documents again, each from the raw file that it came from.

    Request documents in the order of their files and lines: then each file is read once.

    Args:
        folder: The corpus's folder.
        origins: The documents: the file and line of each.
        text_key: The field with the text.
        most_skipped_bytes: A document that is further into a compressed file, or into a group of
            rows of a table, is not read, since that would take long; None for no limit.

    Yields:
        For each document its text, or the error that says why there is none:

        - MissingError: the file was deleted;
        - FormatError: it has no document at that place any more;
        - NotReadError: the document is too long, or too far into the file;
        - InputError: the file cannot be read.
    """
    fields = Fields(text_key, "")
    for file, group in groupby(origins, attrgetter("file")):
        origins_in_file = list(group)
        lines = [origin.line for origin in origins_in_file]
        reader = _reader_of(folder, file, fields, lines, most_skipped_bytes)
        for origin in origins_in_file:
            yield _text_or_error(folder, origin, reader)


def _reader_of(
    folder: Location,
    file: str,
    fields: Fields,
    lines: Sequence[int],
    most_skipped_bytes: int | None,
) -> _LineReader | _TableReader | _TxtReader:
    """Return the reader for a raw file, by the ending of its name.

        a.jsonl, a.jsonl.gz    a document on each line, as JSON
        a.txt                  one document
        a.parquet, a.csv       a document in each row

    Args:
        folder: The corpus's folder.
        file: The file, relative to it.
        fields: Names the field or column with the text.
        lines: Numbers of all lines or rows that will be requested, from 1.
        most_skipped_bytes: How many bytes are read to reach a document; None for no limit.
    """
    file_format = format_of(file)
    if file_format == "lines":
        return _LineReader(folder, file, fields, most_skipped_bytes)
    if file_format == "txt":
        return _TxtReader(folder, file)
    return _TableReader(folder, file, fields, lines, most_skipped_bytes)


def _text_or_error(
    folder: Location, origin: DocumentOrigin, reader: _LineReader | _TableReader | _TxtReader
) -> str | NanosetError:
    """Return the text of a document, or an error for the user that says why there is none.

    Args:
        folder: The corpus's folder.
        origin: The document: the file and line that it came from.
        reader: Reads its file.
    """
    try:
        return reader.text(origin)
    except NanosetError as error:  # such as that the file is missing
        return error
    except TooFarError as error:  # to read the text would take too much time or memory
        where = _place_of(folder, origin)
        return NotReadError("the text was not read again", where=where, found=str(error))
    except (NotADocumentError, FaultError) as error:  # the file has changed, or is damaged
        return FormatError(
            "there is no document at this place any more",
            where=_place_of(folder, origin),
            found=f"{error.reason}: {error.detail}",
            remedy="run `nanoset build`: the file has changed",
        )


def _place_of(folder: Location, origin: DocumentOrigin) -> str:
    """Return the file, line and byte of a document, such as `raw/web/a.jsonl:5 (byte 4,096)`.

    Args:
        folder: The corpus's folder.
        origin: The document. A row of a table has no byte.
    """
    place = f"{folder / origin.file}:{origin.line}"
    is_table_row = origin.byte_offset < 0
    if is_table_row:
        return place
    return f"{place} (byte {origin.byte_offset:,})"


class _FaultyStream(Generic[T]):
    """An iterator over the items of a file that raises the error at a fault again on every call.

    A generator would just end after its first error, as if the file ended there.
    """

    def __init__(self, items: Iterator[T]) -> None:
        """Continue an iterator.

        Args:
            items: The items. An error that it raises is remembered.
        """
        self._items = items
        self._error: FaultError | NanosetError | None = None  # the error at which reading ended

    def next(self) -> T | None:
        """Return the next item, or None at the end.

        After an error, every later call raises the same error again.

        Raises:
            FaultError: The file is damaged at this place, or before it.
            NanosetError: The file cannot be read, or has changed.
        """
        if self._error is None:
            try:
                return next(self._items, None)
            except (FaultError, NanosetError) as error:
                self._error = error
        raise self._error


def _complete_file(folder: Location, file: str) -> StoredPiece:
    """Return a file as one piece, to be read from its start.

    Args:
        folder: The corpus's folder.
        file: The file, relative to it.
    """
    with open_raw(folder / file) as opened:
        size = status_of(opened).st_size
    return StoredPiece(folder, unchecked_piece(file, size))


class _TxtReader:
    """Reads a .txt file, which is one document."""

    def __init__(self, folder: Location, file: str) -> None:
        """Prepare to read a file.

        Args:
            folder: The corpus's folder.
            file: The file, relative to it.
        """
        self._folder = folder
        self._file = file

    def text(self, _origin: DocumentOrigin) -> str:
        """Return the text of a .txt file, which is a single document.

        Args:
            _origin: The document, which has to be the only one of the file. (Readers of other
                formats have the same method, and need it.)

        Raises:
            NotADocumentError: It is not UTF-8.
            TooFarError: It is too long.
            FaultError: The file is damaged.
        """
        file_text = read_file_text(_complete_file(self._folder, self._file), MOST_LINE_BYTES)
        if file_text.n_bytes > MOST_LINE_BYTES:
            raise TooFarError(f"a file of more than {MOST_LINE_BYTES:,} bytes")
        return parse_file_text(file_text, MOST_LINE_BYTES)


class _LineReader:
    """Reads documents of a file of JSON lines.

    A compressed file is read in one pass as long as lines are requested in its order.
    """

    def __init__(
        self, folder: Location, file: str, fields: Fields, most_skipped_bytes: int | None
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
        self._pass: _LinePass | None = None  # the pass over a compressed file that is open

    def text(self, origin: DocumentOrigin) -> str:
        """Read the text of a document again, from its line in a raw file.

        Args:
            origin: The document, with the byte of the decompressed file at which the line begins.

        Raises:
            NotADocumentError: No line begins there, or it is not a document.
            TooFarError: The line is too long, or too far into the file.
            FaultError: The file is damaged at the line or before it.
        """
        first_byte = origin.byte_offset
        if is_cuttable(self._file):
            # Such as a.jsonl: read this line alone.
            line_pass = _LinePass(self._line_at(first_byte))
        else:
            # Such as a.jsonl.gz: it can only be decompressed from its start. If an earlier call has
            # read up to some line before this one, continue there.
            line_pass = self._pass_to(first_byte)
        return parse_line(line_pass.line_at(first_byte), self._fields).text

    def _pass_to(self, offset: int) -> _LinePass:
        """Return a reader of a compressed file that can reach a given byte.

        A compressed file can only be read forward, from its start. If the present reader has not
        passed the byte, it is returned. Otherwise, a new one begins at the start.

        Args:
            offset: Position of the byte in the decompressed file.

        Raises:
            TooFarError: The byte is too far into the file: reaching it would take too long.
        """
        if self._most_skipped_bytes is not None and offset > self._most_skipped_bytes:
            raise TooFarError(f"{offset:,} bytes into compressed text")
        if self._pass is None or self._pass.has_passed(offset):
            self._pass = _LinePass(_complete_file(self._folder, self._file))
        return self._pass

    def _line_at(self, offset: int) -> StoredPiece:
        """Read the line that begins at a byte of an uncompressed file, and the byte before it.

        The byte before it shows whether a line really begins there: it has to be a line end.

        Args:
            offset: First byte of the line.

        Returns:
            The bytes, as a piece of the file in memory, since parsers of lines take pieces.
        """
        # It is not known how long the line is. Most fit into 65,536 bytes (WINDOW_BYTES). If the
        # line is longer, the result is None: read more.
        window_bytes = WINDOW_BYTES
        data = self._line_within(offset, window_bytes)
        while data is None:
            window_bytes *= 8
            data = self._line_within(offset, window_bytes)

        start = max(offset - 1, 0)
        stop = start + len(data)
        # The number of its first line is not known, and not used here.
        piece = unchecked_piece(self._file, stop, begin=start)
        return _PieceInMemory(self._folder, piece, data)

    def _line_within(self, offset: int, window_bytes: int) -> bytes | None:
        """Read a line, and the byte before it, if they fit into some number of bytes.

        Args:
            offset: First byte of the line.
            window_bytes: How many bytes to read, such as 65,536.

        Returns:
            The byte before the line, if there is one, and the line. Of a line that is longer than
            allowed, only the beginning, but enough to see that. None if the line may have more
            bytes: then the caller tries again with a larger window.
        """
        start = max(offset - 1, 0)  # the byte before the line, if there is one
        # If there is no line end before this byte, the line is too long. (The two bytes are one too
        # many, and a line end.)
        too_long_stop = offset + MOST_LINE_BYTES + 2

        window = self._read_window(start, window_bytes, too_long_stop)
        line_end = window.data.find(b"\n", offset - start)
        if line_end >= 0:
            return window.data[: line_end + 1]
        if window.is_last:
            return window.data
        return None  # the line continues after the window

    def _read_window(self, start: int, window_bytes: int, most_stop: int) -> _Window:
        """Read some bytes of the file.

        Args:
            start: The first byte.
            window_bytes: How many bytes to read; fewer if the file ends before.
            most_stop: No byte from this one on is needed, even if the window is larger.
        """
        with open_raw(self._folder / self._file, begin=start, end=start + window_bytes) as file:
            last_stop = min(status_of(file).st_size, most_stop)
            stop = min(start + window_bytes, last_stop)
            # With blocks as large as the range, the first block is all of it.
            data = next(blocks_of(file, start, stop, window_bytes), b"")
        return _Window(data, is_last=start + len(data) >= last_stop)


class _Window(NamedTuple):
    """Some consecutive bytes of a file."""

    data: bytes
    is_last: bool
    """Whether there is nothing more to read: the file ends here, or no later byte is needed."""


class _LinePass:
    """A pass over the lines of a file, in blocks, which remembers the block that was read last."""

    def __init__(self, stored: StoredPiece) -> None:
        """Begin a pass over a piece of a file, which is read as lines of it are requested.

        Args:
            stored: The piece.
        """
        begin = stored.piece.begin
        self._blocks = _FaultyStream(read_lines(stored, MOST_LINE_BYTES))
        self._last_block = LineBlock([], 1, begin, begin)  # without lines: none was read yet

    def has_passed(self, offset: int) -> bool:
        """Return whether this pass cannot reach a byte any more, since it only goes forward.

        Args:
            offset: Position of the byte in the decompressed file.
        """
        return self._last_block.begin > offset

    def line_at(self, offset: int) -> bytes:
        """Read on up to a line of the file, and return the line.

        Args:
            offset: First byte of the line, which must not be before the block that was read last.

        Raises:
            NotADocumentError: No line begins at this byte.
            TooFarError: The line is too long.
            FaultError: The file is damaged at the line or before it.
        """
        # The file is read in blocks of lines. Read on until the last block contains the byte.
        while self._last_block.end <= offset:
            block = self._blocks.next()
            if block is None:
                raise NotADocumentError("no_line", "the text ends before that byte")
            self._last_block = block

        line = _line_in_block(self._last_block, offset)
        if _lacks_line_end(self._last_block):
            # Either the file ends here, which is fine, or it is damaged here. Try to read on: if it
            # is damaged, that raises the FaultError.
            self._blocks.next()
        return line


def _line_in_block(block: LineBlock, offset: int) -> bytes:
    """Return the line of a block that begins at a given byte of the file.

    A block has consecutive lines of a file. For example, the lines "ab" and "cde" begin at the
    bytes 100 and 103. Byte 103 gives "cde", and byte 101 is an error.

    Args:
        block: The lines.
        offset: First byte of the line.

    Raises:
        TooFarError: The line is too long, so that the block has only the start of it.
        NotADocumentError: No line begins at this byte.
    """
    if block.long_bytes:
        raise TooFarError(f"a line of more than {MOST_LINE_BYTES:,} bytes")
    offsets = block.offsets  # position of each line's first byte in the file
    if offset not in offsets:
        raise NotADocumentError("no_line", "no line begins there")
    return block.lines[offsets.index(offset)]


def _lacks_line_end(block: LineBlock) -> bool:
    """Return whether the last line of a block ends without a line end.

    Args:
        block: Consecutive lines of the file, and the range of its bytes that they were read from.
    """
    bytes_with_line_ends = sum(len(line) + 1 for line in block.lines)
    return block.begin + bytes_with_line_ends > block.end


class _PieceInMemory(StoredPiece):
    """A piece of a file whose bytes are in memory."""

    def __init__(self, folder: Location, piece: Piece, data: bytes) -> None:
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


class _TablePass:
    """A pass over some rows of a table, which remembers the row that was read last."""

    def __init__(self, rows: Iterator[_TableRow]) -> None:
        """Begin a pass over rows, which are read as they are requested."""
        self._rows = _FaultyStream(rows)
        self._last_row: _TableRow | None = None

    def has_passed(self, number: int) -> bool:
        """Return whether a row cannot be read by this pass any more, which only goes forward.

        It cannot if a later row was read last; nor if no row could be read, because of a fault.

        Args:
            number: Number of the row, from 1.
        """
        return self._last_row is None or self._last_row.number > number

    def row(self, number: int) -> _TableRow:
        """Read on up to the requested row of a table, and return it.

        The table is only read forward. So rows have to be requested in ascending order; the last
        one may be requested again.

        Args:
            number: Number of the row, from 1.

        Raises:
            NotADocumentError: The table ends before that row.
            FaultError: The table is damaged at the row or before it.
        """
        row = self._last_row
        while row is None or row.number < number:  # none was read yet, or an earlier one
            row = self._rows.next()
            if row is None:
                raise NotADocumentError("no_row", "the table ends before that row")
            self._last_row = row
        return row


class _TableReader:
    """Reads documents of a Parquet, Arrow or CSV file.

    The file is read in one pass as long as rows are requested in its order.
    """

    def __init__(
        self,
        folder: Location,
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
            most_skipped_bytes: How many bytes of a row group, or of a CSV file, are read to reach a
                document; None for no limit.
        """
        self._folder = folder
        self._file = file
        self._reader = RowReader(file, fields, MOST_LINE_BYTES)
        self._rows = rows
        self._most_skipped_bytes = most_skipped_bytes
        self._pass: _TablePass | None = None  # the pass over the table that is open

    def text(self, origin: DocumentOrigin) -> str:
        """Read the text of a document again, from its row in a table (Parquet, Arrow or CSV).

        Args:
            origin: The document. Its `line` is the number of the row.

        Raises:
            NotADocumentError: There is no such row, or it is not a document: for example, it has no
                text.
            TooFarError: The row is so far into the table that reaching it would take too long.
            FaultError: The table is damaged at the row or before it.
        """
        row_number = origin.line  # for a table, this field is the number of the row
        content = self._row(row_number).content
        if isinstance(content, TooFarError):
            raise content
        if not content.texts:
            reject = content.rejects[0]
            raise NotADocumentError(reject.reason, reject.detail)
        return content.texts[0]

    def _row(self, row_number: int) -> _TableRow:
        """Return a row of the table, by reading on from the last one, or from the start again.

        A table is read in one direction. If the rows 3, 8 and 20 are requested in this order, one
        pass over the table is enough. If row 3 is requested again after row 8, a second pass
        begins.

        Args:
            row_number: Number of the row, from 1.

        Raises:
            NotADocumentError: There is no such row.
            FaultError: The table is damaged at the row or before it.
        """
        # A pass over the table can only go forward. If it has passed the row, begin another one,
        # which reads this row and all later ones that will be requested.
        if self._pass is None or self._pass.has_passed(row_number):
            later_rows = sorted({number for number in self._rows if number >= row_number})
            self._pass = _TablePass(self._read(later_rows))
        return self._pass.row(row_number)

    def _read(self, row_numbers: Sequence[int]) -> Iterator[_TableRow]:
        """Yield some rows of the table, which may be a CSV, Parquet or Arrow file.

        Args:
            row_numbers: Numbers of the rows, from 1, ascending.
        """
        if format_of(self._file) == "csv":
            return self._read_csv(row_numbers)
        # The rows of other formats are in compressed groups. Only groups with these rows are read.
        # To reach row 900 of a group, the rows before it are decompressed, too. If these have more
        # bytes than the limit, a TooFarError is yielded in place of row 900.
        return read_table(
            self._folder / self._file,
            choose=self._reader.choose,  # called with all columns, returns those to read
            convert=self._convert_row,  # called with each row that was read
            rows=row_numbers,
            most_skipped_bytes=self._most_skipped_bytes,
        )

    def _convert_row(self, row: Any, number: int) -> _TableRow:
        """Parse the document of one row of a Parquet or Arrow file.

        Args:
            row: A record batch with this row alone; or an error in its place, if too many bytes
                would have to be read to reach it.
            number: Number of the row, from 1.
        """
        if isinstance(row, TooFarError):
            return _TableRow(number, row)
        return _TableRow(number, self._reader.documents(row, number))

    def _read_csv(self, row_numbers: Sequence[int]) -> Iterator[_TableRow]:
        """Yield some rows of a CSV file, or errors for rows that are too far into it.

        A CSV file does not say where its rows begin, so it has to be read from its start.

        Args:
            row_numbers: Numbers of the rows, from 1, ascending.

        Yields:
            The rows, ascending; fewer than requested if the file has fewer.
        """
        limit = self._most_skipped_bytes  # how far to read; None for no limit
        last_number = row_numbers[-1]
        n_bytes_read = 0
        for part in read_csv(_complete_file(self._folder, self._file), self._reader.choose):
            if limit is not None and n_bytes_read > limit:
                error = TooFarError(f"more than {limit:,} bytes into a CSV file")
                for number in rows_between(row_numbers, part.first_row, last_number + 1):
                    yield _TableRow(number, error)
                return

            for number in rows_between(row_numbers, part.first_row, part.stop_row):
                yield _TableRow(number, self._document_of_row(part, number))
            if part.stop_row > last_number:
                return
            n_bytes_read += part.n_bytes

    def _document_of_row(self, part: CsvRows, number: int) -> DocumentBatch:
        """Return the document of a row of a CSV file, or its reject.

        Args:
            part: Consecutive rows of the file that contain the row.
            number: Number of the row.
        """
        if part.problem is not None:
            return self._reader.rejected(number, part.problem)
        return self._reader.documents(part.rows.slice(number - part.first_row, 1), number)


def file_state(
    inventory: Inventory | None, memory: FingerprintMemory, folder: Location, file: str, byte: int
) -> SourceState:
    """Return whether a part of a raw file was changed since it was tokenized.

    Large files are tokenized in pieces. Whether the content of a piece is still the same could be
    found out by hashing it, which takes time. So cheaper signs are looked at first:

        the file does not exist                      gone
        it is shorter, or was not known then         changed
        its hashes at this size and time are known   these are compared, without reading the file
        otherwise                                    the piece is hashed, up to 256 MiB

    Args:
        inventory: The hash of each piece of each file; None, if it was deleted, gives `unknown`.
        memory: What was known about files of the folder when they had a certain size and time.
        folder: The corpus's folder.
        file: Path of the file, relative to the folder.
        byte: A byte of the piece.

    Returns:
        `unchanged`, `changed`, `gone`, or `unknown`.
    """
    if not (folder / file).is_file():
        return "gone"
    if inventory is None:
        return "unknown"

    # A file that became shorter, or that the inventory does not list, needs no hash.
    pieces = [piece for piece in inventory.pieces if piece.path == file]
    stat = stat_file(folder, file)
    if not pieces:
        return "changed"
    size_when_tokenized = pieces[-1].end
    if stat.size < size_when_tokenized:
        return "changed"

    # The memory has the pieces of a file with the present size and times, if it was hashed then.
    remembered_pieces = memory.recall(stat)
    if remembered_pieces is None:
        return _hashed_state(folder, _piece_with(pieces, byte))
    # An object in a bucket may be known by its ETag instead of hashes, which all its pieces have.
    is_same = remembered_pieces == pieces or is_same_object(remembered_pieces[0], pieces[0])
    return "unchanged" if is_same else "changed"


def _piece_with(pieces: Sequence[Piece], byte: int) -> Piece:
    """Return the piece of a file that contains a byte; the first piece if none does.

    Args:
        pieces: At least one piece of the file, since large files are cut into several.
        byte: Position of the byte; -1 for a row of a table, whose position is not known.
    """
    for piece in pieces:
        if piece.begin <= byte < piece.end:
            return piece
    return pieces[0]


def _hashed_state(folder: Location, piece: Piece) -> SourceState:
    """Find out by its hash whether a piece of a raw file was changed since it was tokenized.

    The hash from then was recorded. A piece of more than 256 MiB is not hashed, which would take
    too long for a command that only shows something.

    Args:
        folder: The corpus's folder.
        piece: The piece, a range of bytes of the file, with the hash that it had.

    Returns:
        `unchanged`, `changed`, or `unknown` if it is too large.
    """
    if piece.size > MOST_HASHED_BYTES:
        return "unknown"
    try:
        StoredPiece(folder, piece).check()
    except SourceChangedError:
        return "changed"
    return "unchanged"
