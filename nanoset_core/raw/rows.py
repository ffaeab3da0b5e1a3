"""Rows of tables → documents, in blocks; the counterpart of lines and parsing for Parquet and Arrow files."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, cast

from nanoset_core.raw.columns import (
    ColumnPath,
    Leaf,
    Texts,
    is_text_type,
    leaf_at,
    locate,
    locate_text,
    readable_texts,
    slices,
    texts_of,
)
from nanoset_core.raw.decompression import Fault
from nanoset_core.raw.json_values import NotJsonError, json_values
from nanoset_core.raw.parsing import Fields, NotADocumentError, id_text
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.rejects import NO_OFFSET, Reject
from nanoset_core.raw.stored import StoredPiece
from nanoset_core.raw.tables import TableBatch, read_table, table_fault
from nanoset_core.storage.remote_folder import RawFolder

BLOCK_BYTES = 1 << 20
BLOCK_REJECTS = 10_000


@dataclass(slots=True)
class RowBlock:
    """Consecutive rows: the documents among them, and the others as rejects."""

    row_count: int
    """Documents and rejects."""
    text_bytes: int
    """UTF-8 bytes of their texts."""
    texts: list[str]
    rows: list[int]
    """1-based row numbers of the documents."""
    ids: list[str | None]
    rejects: list[Reject] = field(default_factory=list)


def read_rows(
    folder: RawFolder, piece: Piece, fields: Fields, *, max_text_bytes: int, verify: bool = True
) -> Iterator[RowBlock | Fault]:
    """Documents of a Parquet or Arrow file in row order; a fault comes last, after everything before it.

    A row is what the line would be that import_parquet writes for it: the same texts and ids, and a reject where that
    line would be one. Text that is not UTF-8 is a reject too.

    The file is hashed in a pass of its own once its rows were given, so what changed while they were read is seen.

    Args:
        folder: the corpus's folder.
        piece: all of a file.
        fields: which columns, or fields of struct columns.
        max_text_bytes: a row with a longer text in one of them is rejected.
        verify: compare the file with the piece's digest.

    Raises:
        MissingError, InputError: the file is gone, or cannot be opened.
        SourceChangedError: the file is not that of the inventory.
    """
    import pyarrow as pa

    path, places = folder / piece.path, _Places(fields)
    for item in read_table(path, places.choose, piece.size if verify else None):
        if isinstance(item, Fault):
            yield item
            break
        row = item.first_row
        try:
            for block in _blocks(item, piece.path, places, max_text_bytes):
                yield block
                row += block.row_count
        except MemoryError:
            raise  # pyarrow's is an ArrowException as well
        except pa.ArrowException as error:
            yield table_fault(path, row, error)
            break
    if verify:
        StoredPiece(folder, piece).check()


class _Places:
    """Where a file's schema has the fields that are read."""

    def __init__(self, fields: Fields) -> None:
        self.fields = fields
        self.texts: list[ColumnPath] = []
        self.id: ColumnPath | None = None
        self.error: NotADocumentError | None = None
        """Why no row can be a document."""

    def choose(self, schema: Any) -> list[str]:
        """Look the fields up; what to read: nothing where no row can be a document, for rows are counted anyway."""
        self.id = _locate_id(schema, self.fields.id)
        try:
            self.texts = [locate_text(schema, key) for key in self.fields.texts]
        except NotADocumentError as error:
            self.error = error
            return []
        places = self.texts if self.id is None else [*self.texts, self.id]
        return list(dict.fromkeys(place.selector for place in places))


def _locate_id(schema: Any, key: str) -> ColumnPath | None:
    try:
        return locate(schema, key)
    except NotADocumentError:
        return None


def _blocks(item: TableBatch, path: str, places: _Places, max_text_bytes: int) -> Iterator[RowBlock]:
    batch, first = item.rows, item.first_row
    if places.error is not None:
        yield from _all_rejected(item, path, places.error)
        return
    leaves = [leaf_at(batch, place) for place in places.texts]
    ids = None if places.id is None else leaf_at(batch, places.id)
    weighed = leaves if ids is None else [*leaves, ids]
    for begin, count in slices(weighed, batch.num_rows, BLOCK_BYTES):
        columns = [
            texts_of(leaf.slice(begin, count), key, max_text_bytes)
            for leaf, key in zip(leaves, places.fields.texts, strict=True)
        ]
        identities: list[str | None] = [None] * count if ids is None else _id_texts(ids.slice(begin, count))
        yield _block(columns, identities, first + begin, path)
        item.release()


def _block(columns: list[Texts], ids: list[str | None], first_row: int, path: str) -> RowBlock:
    texts, count = columns[0].texts, len(ids)
    bad = {row: why for column in reversed(columns) for row, why in column.bad.items()}
    rejects = [
        Reject(path, first_row + row, NO_OFFSET, error.reason, error.detail, start)
        for row, (error, start) in sorted(bad.items())
    ]
    kept = range(count) if not bad else [row for row in range(count) if row not in bad]
    if bad:
        texts, ids = [texts[row] for row in kept], [ids[row] for row in kept]
    rows = [first_row + row for row in kept]
    documents = cast(list[str], texts)  # rows without a text are bad
    return RowBlock(count, columns[0].text_bytes, documents, rows, ids, rejects)


def _all_rejected(item: TableBatch, path: str, error: NotADocumentError) -> Iterator[RowBlock]:
    end = item.first_row + item.rows.num_rows
    for begin in range(item.first_row, end, BLOCK_REJECTS):
        rows = range(begin, min(begin + BLOCK_REJECTS, end))
        rejects = [Reject(path, row, NO_OFFSET, error.reason, error.detail, "") for row in rows]
        yield RowBlock(len(rows), 0, [], [], [], rejects)


def _id_texts(leaf: Leaf) -> list[str | None]:
    """Ids as text; of a type that cannot be written down, none."""
    if is_text_type(leaf.array.type):
        ids = [id_text(value) for value in readable_texts(leaf.array)]
    else:
        try:
            ids = [id_text(value) for value in json_values(leaf.array)]
        except NotJsonError:
            return [None] * len(leaf.array)
    for _, valid in leaf.outer:
        ids = [value if here else None for value, here in zip(ids, valid.to_pylist(), strict=True)]
    return ids
