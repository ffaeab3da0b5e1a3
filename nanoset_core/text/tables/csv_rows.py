"""Read the rows of a CSV or TSV file in order, as record batches of about 1 MiB.

Fields are divided as by Python's `csv` module with its default settings: a field may be in quotes,
and then contain separators, line ends and doubled quotes. The first row is the header, which names
the columns. All values are text, as they are in the file: a type that was inferred from the first
rows could be wrong for the later ones, or for the next file.

The `csv` module is used, and not pyarrow's reader, for two reasons. pyarrow cannot read a row that
is larger than its block. And it takes a file that ends within quotes for a complete one, so that
nobody would notice a file that was cut off. Both are much faster than any tokenizer.
"""

from __future__ import annotations

import csv
import io
from codecs import BOM_UTF8
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, NamedTuple

from nanoset_core.text.files.compressions import without_compression
from nanoset_core.text.files.content_kinds import describe_other_than_text
from nanoset_core.text.files.endings import TSV
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import SPLIT_BYTES, text_chunks
from nanoset_core.text.rejects import WRONG_FORMAT, FaultError, excerpt
from nanoset_core.text.tables.columns import RowProblem
from nanoset_core.text.tables.record_batches import SLICE_BYTES, ColumnChooser

MAX_ROW_BYTES = 64 << 20
"""A longer row is a fault of the file. Usually a quote is not closed, so that all text after it
seems to be one field. The csv module needs four bytes of memory for each byte of a field.
"""
_BYTES_AS_TEXT = "latin-1"
"""The encoding in which bytes are passed through the csv module, which only takes text. Each of the
256 bytes is one character, so that bytes that are not UTF-8 are preserved.
"""


class CsvRows(NamedTuple):
    """Consecutive rows of a CSV file, or one row with a wrong number of fields."""

    first_row: int
    """Number of the first row. The row after the header is row 1; blank lines are not counted."""
    rows: Any
    """A pyarrow.RecordBatch whose columns are bytes; None for a row with a problem."""
    n_bytes: int
    """Bytes of the decompressed file up to the end of these rows, since the previous ones."""
    problem: RowProblem | None = None
    """Why the row has no values."""

    @property
    def stop_row(self) -> int:
        """Number of the row after the last one."""
        n_rows = 1 if self.rows is None else self.rows.num_rows
        return self.first_row + n_rows


def read_csv(stored: StoredPiece, choose: ColumnChooser) -> Iterator[CsvRows]:
    """Read the rows of a CSV or TSV file in order.

        file (a.csv)              yielded
        text;lang                 the header, which names the columns
        Hello;en                  row 1 and row 2 together
        Bonjour;fr
        broken                    row 3 alone, with a problem: 1 field, but the header has 2
        Ciao;it                   row 4

    Fields of a .tsv file are separated by tabs, and those of a .csv file by commas. If the header
    has semicolons and no comma, it is semicolons, as spreadsheets write it in countries with a
    decimal comma.

    Args:
        stored: The file.
        choose: Chooses the columns to read, given a schema in which all columns are bytes.

    Raises:
        FaultError: The file is of another format, cannot be decompressed to its end, ends within
            quotes, or has a row of more than 64 MiB. All rows before the fault were yielded.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read.
        SourceChangedError: The file has changed since it was listed.
    """
    lines = _CsvLines(stored)
    pending: _PendingRows | None = None  # None until the header was read
    fault: FaultError | None = None
    try:
        for fields in _records(lines, stored.piece.path):
            if pending is None:
                pending = _PendingRows(_column_names(fields), choose, lines.position)
            elif pending.has_as_many_fields(fields):
                pending.add(fields, lines.position)
                if pending.n_bytes >= SLICE_BYTES:
                    yield pending.release()
            else:
                # Rows are yielded in order, so release those before this one first.
                if pending.rows:
                    yield pending.release()
                yield pending.skip(fields, lines.position)
    except FaultError as error:
        fault = error

    # Yield what was read before the fault, or before the end of the file.
    if pending is not None and pending.rows:
        yield pending.release()
    if fault is not None:
        next_row = 1 if pending is None else pending.first_row
        fault.line = next_row
        fault.detail += f"; nothing was read from row {next_row:,} on"
        raise fault


def _records(lines: _CsvLines, path: str) -> Iterator[list[str]]:
    r"""Yield the header and then each row of a CSV file, each as a list of its fields.

    A row may have several lines, since a field in quotes may contain line ends. Blank lines are
    left out:

        text,lang          ["text", "lang"]

        "Hello             ["Hello\nworld", "en"]
        world",en

    Args:
        lines: The lines of the file.
        path: Its path, whose ending decides which character separates the fields.

    Raises:
        FaultError: The file cannot be read to its end.
    """
    # The module refuses fields above 128 KiB by default. The limit holds for the whole process.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_ROW_BYTES))
    remaining_lines = iter(lines)
    first_line = next((line for line in remaining_lines if line.strip("\r\n")), None)
    if first_line is None:
        return
    delimiter = _delimiter(path, first_line)
    reader = csv.reader(chain([first_line], remaining_lines), delimiter=delimiter)
    try:
        for fields in reader:
            # The reader returns a record as soon as it has read the last line of the record. Only
            # if quotes are still open there does it ask for another line, to find where they close.
            # If there is none, it returns what it has, as if that were a record. `is_exhausted`
            # says that it has asked for a line after the last one of the file.
            if lines.is_exhausted:
                raise FaultError(
                    "truncated_csv",
                    "the file ends within quotes: it was cut off, or a quote is not closed",
                )
            lines.end_record()
            if fields:
                yield fields
    except csv.Error as error:
        raise FaultError("corrupt_csv", str(error)) from error


def _delimiter(path: str, first_line: str) -> str:
    """Return the character that separates the fields of a file; see `read_csv`.

    Args:
        path: Path of the file.
        first_line: The first line of the file that is not blank: the header, or its beginning.
    """
    if without_compression(path).endswith(TSV):
        return "\t"
    if ";" in first_line and "," not in first_line:
        return ";"
    return ","


def _column_names(header: Sequence[str]) -> list[str]:
    r"""Return the names of the columns as text.

    Python's csv module takes only text, and this file may not be valid text. So its bytes were
    passed through the module as one character for each byte. Here, they become bytes again, and are
    decoded:

        field in the header    "cafÃ©"  (the two bytes of é became two characters)
        name                   "café"

    Args:
        header: The fields of the header.

    Raises:
        FaultError: A name is not UTF-8.
    """
    names: list[str] = []
    for field in header:
        data = field.encode(_BYTES_AS_TEXT)
        try:
            names.append(data.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise FaultError(
                WRONG_FORMAT, f"the header is not UTF-8, but has the name {data[:100]!r}"
            ) from error
    return names


class _PendingRows:
    """The rows of a CSV file that were read, but not yielded yet."""

    def __init__(
        self, column_names: Sequence[str], choose: ColumnChooser, header_stop: int
    ) -> None:
        """Start after the header.

        Args:
            column_names: Names of all columns.
            choose: Chooses the columns to read.
            header_stop: Position in the file after the header.

        Raises:
            FaultError: `choose` finds that the file has a column of texts or ids several times.
        """
        import pyarrow as pa

        schema = pa.schema([(name, pa.binary()) for name in column_names])
        chosen_names = choose(schema)
        if chosen_names is None:
            chosen_names = column_names
        elif not chosen_names:
            # Read one column, because batches without columns have no number of rows.
            chosen_names = column_names[:1]
        self._column_names = column_names
        self._chosen_names = chosen_names
        self._start = header_stop
        self._stop = header_stop
        self.rows: list[list[str]] = []
        """The fields of each row, in which each character stands for a byte of the file."""
        self.first_row = 1
        """Number of the first of these rows."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the file from the rows that were yielded to the end of these rows."""
        return self._stop - self._start

    def has_as_many_fields(self, fields: Sequence[str]) -> bool:
        """Return whether a row has a field for each column."""
        return len(fields) == len(self._column_names)

    def add(self, fields: list[str], stop: int) -> None:
        """Add a row.

        Args:
            fields: Its fields.
            stop: Position in the file after the row.
        """
        self.rows.append(fields)
        self._stop = stop

    def release(self) -> CsvRows:
        """Return the rows that were added since the last call as one table, and forget them.

        For example, the rows ["Hello", "en"] and ["Bonjour", "fr"] become a column with the values
        b"Hello" and b"Bonjour", and another one with b"en" and b"fr".
        """
        released = CsvRows(first_row=self.first_row, rows=self._as_table(), n_bytes=self.n_bytes)
        self.first_row += len(self.rows)
        self._start = self._stop
        self.rows = []
        return released

    def _as_table(self) -> Any:
        """Return the chosen columns of these rows as a pyarrow.RecordBatch of bytes."""
        import pyarrow as pa

        arrays = []
        for name in self._chosen_names:
            index = self._column_names.index(name)
            # In a field, each character stands for a byte of the file (latin-1).
            values = [row[index].encode(_BYTES_AS_TEXT) for row in self.rows]
            arrays.append(pa.array(values, pa.binary()))
        return pa.RecordBatch.from_arrays(arrays, names=list(self._chosen_names))

    def skip(self, fields: Sequence[str], stop: int) -> CsvRows:
        """Leave out the next row, which has too many or too few fields, and return what is wrong.

        With the header "id,text", this row has 3 fields, perhaps because the text was not put into
        quotes. It cannot be said which fields belong to which columns:

            7,Hello, world

        All rows before it must have been released.

        Args:
            fields: The fields of the row: ["7", "Hello", " world"].
            stop: Position in the file after the row.
        """
        problem = RowProblem(
            reason="wrong_field_count",
            detail=f"{len(fields)} fields, but the header has {len(self._column_names)}",
            excerpt=excerpt(",".join(fields).encode(_BYTES_AS_TEXT)),
        )
        n_bytes = stop - self._start  # of the row in the file
        skipped = CsvRows(self.first_row, rows=None, n_bytes=n_bytes, problem=problem)

        # The next row starts where this one stops.
        self.first_row += 1
        self._start = stop
        self._stop = stop
        return skipped


class _CsvLines:
    """The lines of a CSV file, as the csv module takes them, with a count of what was read.

    The count is updated for each line, and not only for each record, so that a record that is too
    long is noticed before all of it is in memory.
    """

    def __init__(self, stored: StoredPiece) -> None:
        """Start before the first line of a file."""
        self._stored = stored
        self._record_start = 0
        self.position = 0
        """Bytes of all lines so far, without a byte order mark."""
        self.is_exhausted = False
        """Whether a line was requested after the last one."""

    def __iter__(self) -> Iterator[str]:
        r"""Yield the lines with their line ends, which may be those of any system: \n, \r\n or \r.

        Raises:
            FaultError: The file is of another format, cannot be decompressed to its end, or has a
                record that is too long.
        """
        # The last line of a part may be continued by the next part, and so may its line end, which
        # can consist of two characters. So it is held until the next part:
        #
        #     part                     held after it, and what is yielded
        #     "a,b\nHel"               "Hel"              yields "a,b\n"
        #     "lo, wo"                 "Hel", "lo, wo"
        #     "rld\r"                  "Hello, world\r"   ("\n" may follow, as part of the line end)
        #     "\nBon"                  "Bon"              yields "Hello, world\r\n"
        #
        # The parts of a long line are joined only once, at its end: joining each part to all
        # previous ones would take minutes for a line of 60 MB.
        held_parts: list[str] = []
        n_held = 0  # characters of all held parts
        is_line_end_held = False
        for part in self._parts():
            held_parts.append(part)
            n_held += len(part)
            is_line_end_held = is_line_end_held or _has_line_end(part)
            if is_line_end_held:
                lines = _split_lines("".join(held_parts))
                last_line = lines.pop()
                held_parts = [last_line]
                n_held = len(last_line)
                is_line_end_held = _has_line_end(last_line)
                for line in lines:
                    self.position += len(line)
                    yield line
            self._check_record_length(self.position + n_held)
        if held_parts:
            held_line = "".join(held_parts)
            self.position += len(held_line)
            yield held_line
        self.is_exhausted = True

    def _parts(self) -> Iterator[str]:
        """Yield the content of the file in parts of limited size, with a character for each byte.

        The csv module of Python takes only text, and the file may not be valid text. The mark at
        the start of some files, which says that they are UTF-8 (BOM), is left out.
        """
        is_start = True
        for chunk in text_chunks(self._stored, describe_other_than_text):  # for errors: what it is
            for start in range(0, len(chunk), SPLIT_BYTES):
                part = chunk[start : start + SPLIT_BYTES]
                if is_start:
                    part = part.removeprefix(BOM_UTF8)
                    is_start = False
                if part:
                    yield part.decode(_BYTES_AS_TEXT)  # latin-1

    def end_record(self) -> None:
        """Note that the line that was read last ends a record."""
        self._record_start = self.position

    def _check_record_length(self, position: int) -> None:
        """Check that a record of the file is not too long: its end is not found within 64 MiB.

        Usually a quote was not closed, so that all text after it seems to be one field.

        Args:
            position: How far the file was read: the record reaches at least to this byte.

        Raises:
            FaultError: The record is too long.
        """
        if position - self._record_start > MAX_ROW_BYTES:
            raise FaultError(
                "corrupt_csv",
                f"a row of more than {MAX_ROW_BYTES:,} bytes: perhaps a quote is not closed",
            )


def _has_line_end(text: str) -> bool:
    """Return whether a text contains the end of a line, or the first character of such an end."""
    return "\n" in text or "\r" in text


def _split_lines(text: str) -> list[str]:
    r"""Divide a text into lines, which keep their line ends.

    For example, "a\r\nb\n" gives ["a\r\n", "b\n"].

    Only carriage returns and line feeds end a line. `str.splitlines` would also divide the text at
    other characters, such as form feeds.

    Args:
        text: The text.
    """
    return io.StringIO(text, newline="").readlines()
