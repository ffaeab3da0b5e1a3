"""Some documents of a corpus, on their way from its files to the tokenizer."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nanoset_core.text.inventory.pieces import Piece
from nanoset_core.text.rejects import NO_OFFSET, Reject


@dataclass(slots=True)
class DocumentBatch:
    """Consecutive documents, about a MiB of them, with counts and rejects of what was read."""

    texts: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """Index of each document's file in the files of the range."""
    lines: list[int] = field(default_factory=list)
    """1-based number of each document's line or row in its file, or in its piece if the lines of
    the file have not been counted.
    """
    offsets: list[int] = field(default_factory=list)
    """Byte offset of each document's line in the decompressed file; -1 for a row of a table."""
    ids: list[str | None] = field(default_factory=list)
    """Each document's own id, or None if it has none."""
    kept_columns: list[list[Any]] = field(default_factory=list)
    """Further values that are kept with documents, such as a URL. There is one entry for each group
    of documents that was read together, in order. It has an Arrow array for each key whose values
    are kept; see values.py.
    """
    rejects: list[Reject] = field(default_factory=list)
    read_bytes: int = 0
    """Decompressed bytes that were read, with line ends; of a row, those of its text."""
    stored_bytes: int = 0
    """Bytes of the stored files that were read since the previous batch. Those of a table count
    when all its rows have been read.
    """
    texts_with_zeros: Counter[str] = field(default_factory=Counter)
    """Number of documents of each table whose text contains many zero bytes in sequence."""
    padding: Counter[str] = field(default_factory=Counter)
    """Number of zero bytes after the members of each gzip file. They are legal, but also what an
    interrupted download leaves behind.
    """
    empty_files: Counter[str] = field(default_factory=Counter)
    """Stored bytes of each file that has bytes, but no text in them: an empty file that was
    compressed, or a table without rows.
    """
    lines_of_pieces: list[tuple[Piece, int]] = field(default_factory=list)
    """Pieces of files whose lines had not been counted, now read to their ends, and the number of
    their lines.
    """
    dropped_ids: Counter[str] = field(default_factory=Counter)
    """Number of documents of each file whose id is not kept: its type has no usual text form, or it
    is longer than 4,096 characters.
    """
    escaped_ids: Counter[str] = field(default_factory=Counter)
    """Number of documents of each table whose id is bytes that are not UTF-8; such bytes are kept
    as \\xNN.
    """
    escaped_values: int = 0
    """Number of kept values that are bytes which are not UTF-8."""
    erased: int = 0
    """Number of documents that were left out since they were erased; see SourceRange.without."""

    @property
    def faults(self) -> int:
        """Number of files that could not be read to their end; each is one of the rejects."""
        return sum(reject.is_fault for reject in self.rejects)

    @property
    def read_lines(self) -> int:
        """Number of lines and rows, whether documents or rejects."""
        return len(self.texts) + len(self.rejects) - self.faults + self.erased

    def append(self, other: DocumentBatch, file: int) -> None:
        """Append another batch, whose documents are all from one file.

        A batch has the documents that a worker has read, in lists with one entry for each document.
        A worker reads several files, or parts of large files, so the list `files` says from which
        file each document is. A batch also counts what was noticed while its files were read.

        Four fields are not appended, since the caller sets them after it has read a file, or its
        part of a file, to the end: `stored_bytes` (the bytes read from the disk), `padding` (zero
        bytes at the end of gzip files), `empty_files` (files without text) and `lines_of_pieces`
        (how many lines were in it).

        Args:
            other: The other batch. Its own list `files` is not used.
            file: Index of the file among all those that the worker reads.
        """
        n_documents = len(other.texts)
        self.texts += other.texts
        self.files += [file] * n_documents
        self.lines += other.lines
        self.offsets += other.offsets
        self.ids += other.ids
        self.kept_columns += other.kept_columns

        self.rejects += other.rejects
        self.read_bytes += other.read_bytes
        self.erased += other.erased
        self._add_unusual_values(other)

    def _add_unusual_values(self, other: DocumentBatch) -> None:
        """Add the numbers of documents with unusual values in another batch, such as long ids.

        Nearly always there are none, and adding an empty counter is slow.

        Args:
            other: The other batch.
        """
        if other.texts_with_zeros:
            self.texts_with_zeros.update(other.texts_with_zeros)
        if other.dropped_ids:
            self.dropped_ids.update(other.dropped_ids)
        if other.escaped_ids:
            self.escaped_ids.update(other.escaped_ids)
        self.escaped_values += other.escaped_values

    def leave_out(self, places: Collection[int]) -> None:
        """Remove documents that a user has erased from the corpus, for example on a legal demand.

        The user's files still contain these documents. So they are left out whenever a file is
        read. They are recognized by their place in the file. For lines that start at the bytes 0,
        50 and 90:

            leave_out({50})  →  the documents at 0 and 90 remain, and `erased` is 1 more

        All documents of the batch must be from one file, and must have been read together.

        Args:
            places: Byte offsets of the lines of the erased documents. If the file is a table, the
                numbers of their rows, counted from 1.
        """
        remaining = [index for index, place in enumerate(self._places()) if place not in places]
        n_removed = len(self.texts) - len(remaining)
        if n_removed == 0:
            return

        self.texts = [self.texts[index] for index in remaining]
        self.lines = [self.lines[index] for index in remaining]
        self.offsets = [self.offsets[index] for index in remaining]
        self.ids = [self.ids[index] for index in remaining]
        rows = np.array(remaining, np.int64)
        self.kept_columns = [_select_rows(arrays, rows) for arrays in self.kept_columns]
        self.erased += n_removed

    def _places(self) -> Iterator[int]:
        """Yield where each document is in its file.

        a line of a file      the offset of the line in bytes, such as 812
        a row of a table      the number of the row, such as 3
        """
        for line, offset in zip(self.lines, self.offsets, strict=True):
            is_row_of_table = offset == NO_OFFSET  # a row of a table has no byte offset
            yield line if is_row_of_table else offset


def _select_rows(arrays: list[Any], rows: Any) -> list[Any]:
    """Return some entries of each Arrow array: the rows 0 and 2 of ["a", "b", "c"] are ["a", "c"].

    Args:
        arrays: The arrays, which have an entry for each document.
        rows: The indices of the chosen documents, int64, shape (n_chosen,).
    """
    return [array.take(rows) for array in arrays]


def counter_of(path: str, count: int) -> Counter[str]:
    """Return a counter of one file, which is empty if the count is 0.

    Args:
        path: The file, relative to the folder of the corpus.
        count: Number of its documents, or of what else is counted: `a.jsonl` and 3 give
            `{"a.jsonl": 3}`.
    """
    if count == 0:
        return Counter()
    return Counter({path: count})
