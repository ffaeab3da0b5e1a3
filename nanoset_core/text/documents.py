"""Lines and rows → documents, with every one that is none kept as a reject, and every fault of a
file.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import InputError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.columns import RowProblem, column_at, locate, texts_at
from nanoset_core.text.endings import format_of
from nanoset_core.text.json_values import NotJsonError
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.parsing import (
    Fields,
    NotADocumentError,
    has_long_id,
    parse_line,
    parse_lines,
)
from nanoset_core.text.pieces import Piece, SourceRange, StoredPiece, too_large
from nanoset_core.text.rejects import NO_OFFSET, FaultError, Reject, excerpt
from nanoset_core.text.table_ids import TableIds, escaped_count, ids_of
from nanoset_core.text.tables import read_table
from nanoset_core.text.values import from_json, narrowed

BATCH_BYTES = 1 << 20
BATCH_REJECTS = 10_000
ZEROS = "\0" * 8
"""Text with so many zero bytes is a sign of damage that a table without checksums cannot show."""


@dataclass(slots=True)
class DocumentBatch:
    """About a MiB of documents, in order."""

    texts: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """Index into the range's files."""
    lines: list[int] = field(default_factory=list)
    """1-based line or row numbers, in a file or, where its lines have not been counted, in a piece
    of it.
    """
    offsets: list[int] = field(default_factory=list)
    """Byte offsets of the lines in the decompressed files; -1 for rows of a table."""
    ids: list[str | None] = field(default_factory=list)
    """The documents' own ids, where they have one."""
    columns: list[list[Any]] = field(default_factory=list)
    """Part after part of the documents: an Arrow array for each key that is kept; see
    raw/values.py.
    """
    rejects: list[Reject] = field(default_factory=list)
    read_bytes: int = 0
    """Decompressed bytes, line ends included; of a row, those of its text."""
    stored_bytes: int = 0
    """Of the files as stored, read since the batch before; those of a table once all its rows are
    read.
    """
    zeroed: Counter[str] = field(default_factory=Counter)
    """Table → documents of it whose text holds ZEROS."""
    padding: Counter[str] = field(default_factory=Counter)
    """Gzip file → zero bytes behind its members: legal, and what is left of a download that was cut
    short.
    """
    counted: list[tuple[Piece, int]] = field(default_factory=list)
    """Pieces of files whose lines had not been counted, now read to their ends, with their lines."""
    unkept_ids: Counter[str] = field(default_factory=Counter)
    """File → documents of it whose id is not kept: of a type without a usual text form, or longer
    than 4,096 bytes.
    """
    escaped_ids: Counter[str] = field(default_factory=Counter)
    """Table → documents of it whose id is bytes that are not UTF-8; such bytes are kept as \\xNN."""
    escaped_values: int = 0
    """Values at the keys that are kept which are bytes that are not UTF-8."""
    purged: int = 0
    """Documents that were left out; see SourceRange.without."""

    @property
    def faults(self) -> int:
        """Files that could not be read to their end; each is one of the rejects."""
        return sum(reject.is_fault for reject in self.rejects)

    @property
    def read_lines(self) -> int:
        """Lines and rows, whether documents or rejects."""
        return len(self.texts) + len(self.rejects) - self.faults + self.purged

    def take(self, part: DocumentBatch, file: int) -> None:
        """Append what was read of a file of the range."""
        for name in ("texts", "lines", "offsets", "ids", "columns", "rejects"):
            getattr(self, name).extend(getattr(part, name))
        self.files += [file] * len(part.texts)
        self.read_bytes += part.read_bytes
        self.purged += part.purged
        self.zeroed.update(part.zeroed)
        self.unkept_ids.update(part.unkept_ids)
        self.escaped_ids.update(part.escaped_ids)
        self.escaped_values += part.escaped_values

    def leave_out(self, places: Collection[int]) -> None:
        """Leave out documents by their byte offsets or, of a table, rows; the batch is of one part
        of a file.
        """
        found = [
            line if offset < 0 else offset
            for line, offset in zip(self.lines, self.offsets, strict=True)
        ]
        kept = [number for number, place in enumerate(found) if place not in places]
        if len(kept) < len(found):
            for name in ("texts", "lines", "offsets", "ids"):
                values = getattr(self, name)
                setattr(self, name, [values[number] for number in kept])
            self.columns = [
                [array.take(np.array(kept, np.int64)) for array in part] for part in self.columns
            ]
            self.purged += len(found) - len(kept)


def read_documents(
    folder: RawFolder,
    source: SourceRange,
    *,
    text_key: str = "text",
    id_key: str = "id",
    required_keys: tuple[str, ...] = (),
    kept_keys: tuple[str, ...] = (),
    max_line_bytes: int = 1 << 30,
    batch_bytes: int = BATCH_BYTES,
    verify: bool = True,
) -> Iterator[DocumentBatch]:
    """Read the documents of a source range in file order, and by line or row within a file.

    Lines and rows = documents + rejected ones + those left out, always; a fault that ends a file is
    one reject more.

    Args:
        folder: the corpus's folder.
        source: which pieces of which files.
        text_key: key of the text in each JSON object, or its column in a table; see parsing.find
            for dotted ones.
        id_key: key of an id that is kept beside the document.
        required_keys: keys of texts that a document must also have: a corpus that is read once for
            each of several keys gives the same documents every time.
        kept_keys: keys of further values that are kept beside the document.
        max_line_bytes: longer lines are rejected; so are rows with a longer text at one of the
            keys.
        batch_bytes: a batch is given once it has read about this many bytes, or holds 10,000
            rejects.
        verify: compare the bytes read with the inventory's digests; a table's after its rows were
            given.

    Raises:
        MissingError, InputError: a file is gone, or cannot be opened; InputError, too, where memory
            runs out.
        SourceChangedError: the bytes read are not those of the inventory.
    """
    fields = Fields(text_key, id_key, required_keys, kept_keys)
    numbers = {path: number for number, path in enumerate(source.files)}
    batch = DocumentBatch()
    left_out = dict(source.without)
    for place, piece in enumerate(source.pieces):
        stored, lines, position = (
            StoredPiece(folder, piece, source.marks.get(piece.path)),
            0,
            piece.begin,
        )
        try:
            for part in reader_of(piece.path)(stored, fields, max_line_bytes, verify):
                lines += part.read_lines
                if place in left_out:
                    part.leave_out(frozenset(left_out[place]))
                batch.take(part, numbers[piece.path])
                batch.stored_bytes, position = (
                    batch.stored_bytes + stored.position - position,
                    stored.position,
                )
                if batch.read_bytes >= batch_bytes or len(batch.rejects) >= BATCH_REJECTS:
                    yield batch
                    batch = DocumentBatch()
        except FaultError as fault:
            batch.rejects.append(fault.reject(piece.path))
        except MemoryError as error:
            raise too_large(stored.path) from error
        if stored.padding:
            batch.padding[piece.path] += stored.padding
        if verify:
            stored.check()
        batch.stored_bytes += piece.end - position
        if piece.first_line == 0:  # of a piece that was taken for no lines no line was read
            ends = (
                0
                if lines
                else sum(block.count(b"\n") for block in StoredPiece(folder, piece).blocks())
            )
            batch.counted.append((piece, lines or ends))
    yield batch


def reader_of(path: str) -> Callable[[StoredPiece, Fields, int, bool], Iterator[DocumentBatch]]:
    """Return the function that reads files of this name, by their format."""
    return {"lines": _read_lines, "parquet": _read_table, "arrow": _read_table}[format_of(path)]


def _read_lines(
    stored: StoredPiece, fields: Fields, max_line_bytes: int, _verify: bool
) -> Iterator[DocumentBatch]:
    # A loop would keep the lines in memory beside the texts.
    return map(
        lambda block: _documents_of_lines(block, stored.piece.path, fields),
        read_lines(stored, max_line_bytes),
    )


def _documents_of_lines(block: LineBlock, path: str, fields: Fields) -> DocumentBatch:
    documents = DocumentBatch(read_bytes=block.end - block.begin)
    if block.long_bytes:
        size = f"{block.long_bytes:,} bytes"
        reject = Reject(
            path, block.first_number, block.begin, "line_too_long", size, excerpt(block.lines[0])
        )
        documents.rejects.append(reject)
        return documents

    # Nearly all blocks hold nothing but documents, which are parsed at once.
    numbers = range(block.first_number, block.first_number + len(block.lines))
    parsed = parse_lines(block.lines, fields)
    if parsed is not None:
        documents.texts, documents.ids, columns = parsed
        documents.columns = [[from_json(column) for column in columns]] if columns else []
        documents.lines = list(numbers)
        documents.offsets = block.offsets
        lines_of_documents = block.lines
    else:
        rows: list[list[Any]] = []
        lines_of_documents = []
        for number, line, offset in zip(numbers, block.lines, block.offsets, strict=True):
            try:
                text, identity, kept = parse_line(line, fields)
            except NotADocumentError as error:
                reject = Reject(path, number, offset, error.reason, error.detail, excerpt(line))
                documents.rejects.append(reject)
                continue
            documents.texts.append(text)
            documents.ids.append(identity)
            documents.lines.append(number)
            documents.offsets.append(offset)
            lines_of_documents.append(line)
            rows.append(kept)
        if fields.kept and rows:
            documents.columns = [[from_json(column) for column in zip(*rows, strict=True)]]

    # An id that is too long is left out, which is reported.
    if None in documents.ids:
        lines_without_id = [
            line
            for identity, line in zip(documents.ids, lines_of_documents, strict=True)
            if identity is None and has_long_id(line, fields.id)
        ]
        documents.unkept_ids = _counter(path, len(lines_without_id))
    return documents


def _read_table(
    stored: StoredPiece, fields: Fields, max_text_bytes: int, verify: bool
) -> Iterator[DocumentBatch]:
    reader = RowReader(stored.piece.path, fields, max_text_bytes)
    return read_table(
        stored.path, reader.choose, reader.documents, stored.piece.size if verify else None
    )


class RowReader:
    """Make documents of the rows of one Parquet or Arrow file.

    A row is what the line would be that import_parquet writes for it: the same text and id, and a
    reject where that line would be one. Text that is not UTF-8 is a reject too.
    """

    def __init__(self, path: str, fields: Fields, max_text_bytes: int) -> None:
        self._path, self._fields, self._max_text_bytes = path, fields, max_text_bytes
        self._texts: list[tuple[str, ...]] = []
        self._id: tuple[str, ...] = ()
        self._kept: list[tuple[str, ...]] = []
        """Names that lead to what is kept; none to what is not there."""
        self._error: NotADocumentError | None = None
        """Why no row can be a document."""

    def choose(self, schema: Any) -> list[str]:
        """Look the fields up and name the columns to read: none where no row can be a document, to
        count the rows.
        """
        try:
            self._texts = [locate(schema, key, is_text=True) for key in self._fields.texts]
        except NotADocumentError as error:
            self._error = error
            return []
        self._id, *self._kept = (
            self._located(schema, key) for key in (self._fields.id, *self._fields.kept)
        )
        return list(
            dict.fromkeys(
                ".".join(names) for names in (*self._texts, self._id, *self._kept) if names
            )
        )

    @staticmethod
    def _located(schema: Any, key: str) -> tuple[str, ...]:
        with suppress(NotADocumentError):
            return locate(schema, key)
        return ()

    def documents(self, rows: Any, first_row: int) -> DocumentBatch:
        """Return the documents of a record batch, and its other rows as rejects."""
        row_numbers = range(first_row, first_row + rows.num_rows)
        if self._error is not None:
            reason, detail = self._error.reason, self._error.detail
            return DocumentBatch(
                rejects=[
                    Reject(self._path, row, NO_OFFSET, reason, detail, "") for row in row_numbers
                ]
            )

        # A row is a document if it has a text at each key; why it has none is said of the first
        # such key.
        columns = [texts_at(rows, names, self._max_text_bytes) for names in self._texts]
        bad: dict[int, RowProblem] = {}
        for column in reversed(columns):
            bad |= column.problems
        all_texts = cast(list[str], columns[0].texts)
        kept = [row for row in range(len(row_numbers)) if row not in bad]
        texts = [all_texts[row] for row in kept]

        # What is kept beside the texts.
        document_rows = np.array(kept, np.int64)  # (n_documents,)
        ids = _ids_at(rows, self._id, document_rows) if self._id else TableIds([None] * len(texts))
        values = [_values_at(rows, names, self._path).take(document_rows) for names in self._kept]
        n_escaped_values = sum(
            escaped_count(column_at(rows, names).take(document_rows))
            for names in self._kept
            if names
        )

        n_zeroed = sum(ZEROS in text for text in texts) if ZEROS in "\n".join(texts) else 0
        return DocumentBatch(
            texts,
            lines=[first_row + row for row in kept],
            offsets=[NO_OFFSET] * len(texts),
            ids=ids.texts,
            columns=[values] if values else [],
            rejects=[
                Reject(self._path, first_row + row, NO_OFFSET, *why)
                for row, why in sorted(bad.items())
            ],
            read_bytes=columns[0].n_bytes,
            zeroed=_counter(self._path, n_zeroed),
            unkept_ids=_counter(self._path, ids.n_unkept),
            escaped_ids=_counter(self._path, ids.n_escaped),
            escaped_values=n_escaped_values,
        )


def _counter(path: str, count: int) -> Counter[str]:
    return Counter({path: count} if count else {})


def _values_at(rows: Any, names: tuple[str, ...], path: str) -> Any:
    import pyarrow as pa

    try:
        return narrowed(column_at(rows, names)) if names else pa.nulls(rows.num_rows)
    except NotJsonError as error:
        what, remedy = (
            f"the column {'.'.join(names)!r} cannot be kept",
            "take it out of documents.columns",
        )
        raise InputError(what, where=path, found=error, remedy=remedy) from error


def _ids_at(rows: Any, names: tuple[str, ...], document_rows: NDArray[np.int64]) -> TableIds:
    """Return the ids of the rows that are documents as text."""
    return ids_of(column_at(rows, names).take(document_rows))
