"""Align the documents of a text that is read again with the rows of a shard's documents.parquet.

Not every document has a row: rejected lines, duplicates and documents without tokens were left out
when the shard was made. The others have their rows in the order of the text. A document is known by
its file and its position in the file:

    text    a:0  a:95  a:200  b:0  b:80        file, and byte offset of the line
    rows    a:0        a:200       b:80        row group 0: a:0, a:200; row group 1: b:80

Text and rows are both read in order, a part of about a MiB and a row group at a time, and neither
ends where the other does.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.stages.shards.document_rows import DocumentRows
from nanoset_core.text.document_batch import DocumentBatch

_POSITION_BITS = 43
"""Positions in files of up to 8 TiB."""
_MAX_FILES = 1 << 20
"""The documents of a part, about a MiB, come from fewer files."""


class _Places(NamedTuple):
    """Where documents come from; each array is int64 of shape (n_documents,)."""

    files: NDArray[np.int64]
    """Number of the file in the shard's range."""
    positions: NDArray[np.int64]
    """Byte offset of the line in the file, or number of the row in a table."""

    @property
    def n_documents(self) -> int:
        """Number of documents."""
        return len(self.files)

    def slice(self, start: int, stop: int | None = None) -> _Places:
        """Return the places of consecutive documents.

        Args:
            start: Index of the first of them.
            stop: Index after the last one; None for all that follow.
        """
        return _Places(self.files[start:stop], self.positions[start:stop])

    def codes(self, first_file: int) -> NDArray[np.int64]:
        """Combine the file and the position of each document into one number.

        The number of the file is in the upper bits, and the position in the file in the 43 bits
        below. So the codes are in the order of the documents. If file 7 is the first one:

            file    position    code
            7       95          95
            8       95          2**43 + 95

        Args:
            first_file: Number of the file that is counted as 0, so that few bits are enough.

        Returns:
            int64, shape (n_documents,).
        """
        # There are not so many files in practice. If there were, the last ones would share a code.
        file_codes = np.minimum(self.files - first_file, _MAX_FILES - 1)  # (n_documents,)
        return (file_codes << _POSITION_BITS) + self.positions


class _DocumentRange(NamedTuple):
    """Consecutive documents of the text."""

    places: _Places
    """Where the documents come from."""
    columns: Sequence[Any]
    """Values of the documents: an Arrow array for every column, of shape (n_documents,)."""

    def take(self, rows: NDArray[np.int64]) -> Sequence[Any]:
        """Return the values of some documents.

        Args:
            rows: Positions of the documents in this range, ascending, shape (n,).
        """
        if len(rows) == self.places.n_documents:
            return self.columns
        return [column.take(rows) for column in self.columns]

    def after(self, row: int) -> _DocumentRange:
        """Return the documents after one of them.

        Args:
            row: Index of this document in the range.
        """
        columns = [column.slice(row + 1) for column in self.columns]
        return _DocumentRange(self.places.slice(row + 1), columns)


def values_by_row_group(
    batches: Iterable[DocumentBatch], documents: DocumentRows, files: Sequence[str]
) -> Iterator[list[Sequence[Any]]]:
    """Yield the values of the documents in a table, such as their languages, by row group.

    The values are in the text, which is read again. The table has the documents in the same order,
    but not all of them. Both name a document by its file and the position in the file:

        documents of the text      a:0    a:95    a:200    b:0    b:40
        rows of the table          a:0            a:200    b:0    b:40
        row groups                 | group 0           |   | group 1 |

    The text comes in parts of about a MiB, which may end anywhere in a row group.

    Args:
        batches: The documents of the text, with the values that are wanted.
        documents: The table.
        files: The files of the text, in order.

    Yields:
        The values of a row group in consecutive parts. Each part has an Arrow array for every
        column.

    Raises:
        FormatError: The text does not contain the document of a row.
    """
    text_parts = _parts_of(batches)
    next_documents = next(text_parts, None)  # of the text, from the first one that is not used yet
    for places_of_rows in _places_of_row_groups(documents, files):
        group = _RowGroupValues(places_of_rows)
        while not group.is_complete:
            if next_documents is None:
                raise _missing_document_error(documents, group.n_filled_rows)
            following_documents = group.take_values_of(next_documents)
            if group.is_complete:
                # The documents after the last one of this group may be those of the next group.
                next_documents = following_documents
            else:
                # The group has rows for later documents only: read the next part of the text.
                next_documents = next(text_parts, None)
        yield group.values

    # The documents that follow have no rows. Read them all the same, to check the whole text.
    for _ in text_parts:
        pass


def _missing_document_error(documents: DocumentRows, row: int) -> FormatError:
    """Return the error for a document that was tokenized, but is not in the raw text any more.

    Tokenized documents are listed in a table, in parts of 65,536 rows (row groups). To look up
    further values of each document, such as its language, the raw text is read a second time, and
    each row must be found in it.

    Args:
        documents: The table of one part of the corpus (a shard).
        row: Number of the row in its row group.
    """
    return FormatError(
        "the text does not contain all documents of a shard",
        where=documents.path,
        found=f"no document for row {row} of a row group",
        remedy="run `nanoset build --force`",
    )


class _RowGroupValues:
    """A row group of a table, and the values of its documents as far as they were read."""

    def __init__(self, places: _Places) -> None:
        """Start a group without values.

        Args:
            places: Where the documents of the group come from.
        """
        self._places_of_rows = places
        self.n_filled_rows = 0
        """How many rows have their values; they are the first rows of the group."""
        self.values: list[Sequence[Any]] = []
        """Values of these rows, in consecutive parts."""

    @property
    def is_complete(self) -> bool:
        """Whether all rows have their values."""
        return self.n_filled_rows == self._places_of_rows.n_documents

    def take_values_of(self, documents: _DocumentRange) -> _DocumentRange:
        """Give the next rows of a table the values of their documents, such as languages.

        The documents of a text are in the same order as the rows. But some documents, such as empty
        ones, have no row, and their values are not needed:

            next documents of the text    a:0    a:95    a:200    b:7     (file and byte offset)
            their languages               en     de      fr       en
            next rows of the table        a:0            a:200

        Here the two rows get the languages en and fr.

        Args:
            documents: The next documents of the text, with their values.

        Returns:
            The documents after the last one that has a row: here b:7. All if none has.
        """
        # The rows without values so far. There are at most as many to fill as there are documents.
        start = self.n_filled_rows
        next_rows = self._places_of_rows.slice(start, start + documents.places.n_documents)

        indices = _indices_of_common_places(documents.places, next_rows)  # [0, 2]
        if len(indices) == 0:
            return documents
        self.values.append(documents.take(indices))  # en and fr
        self.n_filled_rows += len(indices)
        return documents.after(int(indices[-1]))


def _indices_of_common_places(places: _Places, others: _Places) -> NDArray[np.int64]:
    """Return which of some documents are among some others, known by where they come from.

        places     a:0    a:95    b:40      position 95 of file a, and so on
        others     a:0            b:40
        indices    0              2

    Args:
        places: Where the documents come from: a file, and a position in it.
        others: Where the other documents come from.

    Returns:
        Indices of the documents, ascending, shape (n_common,).
    """
    if places.n_documents == 0:
        return np.empty(0, np.int64)
    # Compare one number instead of two: 2**43 times the number of the file, plus the position.
    # Files are numbered from that of the first document on, so that the numbers are not too large.
    first_file = int(places.files[0])
    codes = places.codes(first_file)  # (n_documents,) [0, 95, 2**43 + 40]
    other_codes = others.codes(first_file)
    return np.flatnonzero(np.isin(codes, other_codes))


def _parts_of(batches: Iterable[DocumentBatch]) -> Iterator[_DocumentRange]:
    """Yield the documents of a text in parts, with their places and values.

    A batch of documents has one array with the places of all documents, that is, with their files
    and positions. But the values of a column come in several arrays, just as they were read:

        places of the batch         p0  p1  p2  p3  p4
        values of the language      [en, en, de], [fr, en]
        first part                  p0  p1  p2  with  [en, en, de]
        second part                 p3  p4      with  [fr, en]

    Args:
        batches: Documents of a text that were read together.
    """
    for batch in batches:
        places = _places(batch.files, batch.lines, batch.offsets)
        start = 0
        for columns_of_part in batch.kept_columns:
            stop = start + len(columns_of_part[0])  # each column has a value for each document
            yield _DocumentRange(places.slice(start, stop), columns_of_part)
            start = stop


def _places_of_row_groups(documents: DocumentRows, files: Sequence[str]) -> Iterator[_Places]:
    """Yield where the documents of a table come from: the number of a file, and a position in it.

        columns of the table              result
        file       line    byte_offset    file    position
        a.jsonl    1       0              0       0
        a.jsonl    2       95             0       95
        b.jsonl    1       0              1       0

    Args:
        documents: The table. It is read in parts (row groups), and there is a result for each.
        files: Names of the files in order: ["a.jsonl", "b.jsonl"].
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    file_names = pa.array(files, pa.string())
    for group in range(len(documents.groups)):
        table = documents.columns(group, ["file", "line", "byte_offset"])
        names_in_table = table.column("file").cast(pa.string())
        file_numbers = pc.index_in(names_in_table, value_set=file_names)  # [0, 0, 1]
        yield _places(file_numbers, table.column("line"), table.column("byte_offset"))


def _places(files: Any, lines: Any, offsets: Any) -> _Places:
    """Return where documents come from: the file, and the position in it.

    Two tables of the same documents are aligned by these positions. For a text file, the position
    is the byte at which the line of the document starts; for a table such as a Parquet file, it is
    the number of the row:

        file    line    byte offset    position
        0       1       0              0
        0       2       4,096          4,096
        1       17      -1             17          file 1 is a table

    Args:
        files: Number of the file of each document, shape (n_documents,).
        lines: Number of its line or row, shape (n_documents,).
        offsets: First byte of its line, or -1 for a row of a table, shape (n_documents,).
    """
    line_numbers = np.asarray(lines, np.int64)
    byte_offsets = np.asarray(offsets, np.int64)
    positions = np.where(byte_offsets >= 0, byte_offsets, line_numbers)
    return _Places(np.asarray(files, np.int64), positions)
