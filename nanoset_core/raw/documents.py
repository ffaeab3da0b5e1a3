"""Lines and rows → documents, with every one that is none kept as a reject."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from nanoset_core.raw.decompression import Fault
from nanoset_core.raw.endings import is_table
from nanoset_core.raw.lines import LineBlock, LongLine, read_lines
from nanoset_core.raw.opening import too_large
from nanoset_core.raw.parsing import Fields, NotADocumentError, parse_line, parse_lines
from nanoset_core.raw.pieces import Piece, SourceRange
from nanoset_core.raw.rejects import NO_OFFSET, Reject, excerpt
from nanoset_core.raw.rows import RowBlock, read_rows
from nanoset_core.raw.stored import StoredPiece
from nanoset_core.storage.remote_folder import RawFolder

Item = TypeVar("Item")
BATCH_BYTES = 1 << 20
BATCH_REJECTS = 10_000
ZEROS = "\0" * 8
"""Text that holds so many zero bytes was hardly written by anyone: a table without checksums lost what stood there."""


@dataclass(slots=True)
class DocumentBatch:
    """About a MiB of documents, in order."""

    texts: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """Index into the range's files."""
    lines: list[int] = field(default_factory=list)
    """1-based line or row numbers, in a file or, where its lines have not been counted, in a piece of it."""
    offsets: list[int] = field(default_factory=list)
    """Byte offsets of the lines in the decompressed files; -1 for rows of a table."""
    ids: list[str | None] = field(default_factory=list)
    """The documents' own ids, where they have one."""
    rejects: list[Reject] = field(default_factory=list)
    read_bytes: int = 0
    """Decompressed bytes, line ends included; of a row, those of its text."""
    read_lines: int = 0
    """Lines and rows, whether documents or rejects."""
    faults: int = 0
    """Files that could not be read to their end; each is one of the rejects."""
    zeroed: Counter[str] = field(default_factory=Counter)
    """Table → documents of it whose text holds ZEROS."""
    counted: list[tuple[Piece, int]] = field(default_factory=list)
    """Pieces of files whose lines had not been counted, now read to their ends, with their lines."""


def read_documents(
    folder: RawFolder,
    source: SourceRange,
    *,
    text_key: str = "text",
    id_key: str = "id",
    required_keys: tuple[str, ...] = (),
    max_line_bytes: int = 1 << 30,
    batch_bytes: int = BATCH_BYTES,
    verify: bool = True,
) -> Iterator[DocumentBatch]:
    """Documents of a source range in file order, and by line or row within a file.

    Lines and rows = documents + rejected ones, always; a fault that ends a file is one reject more.

    Args:
        folder: the corpus's folder.
        source: which pieces of which files.
        text_key: key of the text in each JSON object, or its column in a table; "a.b" is also b in an object or struct
            a (see parsing.find).
        id_key: key of an id (string or number) that is kept beside the document.
        required_keys: keys of texts that a document must also have. Reading a corpus once for each of several keys,
            with the others required, gives the same documents every time.
        max_line_bytes: longer lines are rejected; so are rows with a longer text at one of the keys.
        batch_bytes: a batch is given once it has read about this many bytes, or holds 10,000 rejects.
        verify: compare the bytes read with the inventory's digests.

    Raises:
        MissingError, InputError, SourceChangedError: see read_lines and read_rows; InputError, too, where memory runs
            out, which is no fault of the file.
    """
    fields = Fields(text_key, id_key, required_keys)
    numbers = {path: number for number, path in enumerate(source.files)}
    batch = DocumentBatch()
    items: Iterator[RowBlock | LineBlock | LongLine | Fault]
    for piece in source.pieces:
        if is_table(piece.path):
            items = read_rows(folder, piece, fields, max_text_bytes=max_line_bytes, verify=verify)
        else:
            items = read_lines(folder, piece, max_line_bytes=max_line_bytes, verify=verify)
        lines = _Lines(_within_memory(items, folder / piece.path))
        for item in lines:
            if isinstance(item, Fault):
                batch.rejects.append(Reject(piece.path, item.line, item.offset, item.reason, item.detail, ""))
                batch.faults += 1
            elif isinstance(item, LongLine):
                _reject_long(batch, item, piece.path)
            elif isinstance(item, RowBlock):
                _take_rows(batch, item, piece.path, numbers[piece.path])
            else:
                _take(batch, item, piece.path, numbers[piece.path], fields)
            if batch.read_bytes >= batch_bytes or len(batch.rejects) >= BATCH_REJECTS:
                yield batch
                batch = DocumentBatch()
        if piece.first_line == 0:
            batch.counted.append((piece, lines.count or _line_ends(folder, piece)))
    yield batch


class _Lines:
    """Passes on what is read of a piece, and counts its lines."""

    def __init__(self, items: Iterator[RowBlock | LineBlock | LongLine | Fault]) -> None:
        self._items = items
        self.count = 0

    def __iter__(self) -> Iterator[RowBlock | LineBlock | LongLine | Fault]:
        for item in self._items:
            if isinstance(item, LineBlock):
                self.count += len(item.lines)
            elif isinstance(item, LongLine):
                self.count += 1
            yield item


def _line_ends(folder: RawFolder, piece: Piece) -> int:
    """Of a piece that was taken for no lines, and not read."""
    return sum(block.count(b"\n") for block in StoredPiece(folder, piece).blocks())


def _within_memory(items: Iterator[Item], path: RawFolder) -> Iterator[Item]:
    try:
        yield from items
    except MemoryError as error:
        raise too_large(path) from error


def _take(batch: DocumentBatch, block: LineBlock, path: str, file: int, fields: Fields) -> None:
    count = len(block.lines)
    batch.read_lines += count
    batch.read_bytes += block.end - block.begin
    sizes = np.fromiter(map(len, block.lines), np.int64, count) + 1
    offsets = (np.cumsum(sizes) - sizes + block.begin).tolist()
    numbers = range(block.first_number, block.first_number + count)
    parsed = parse_lines(block.lines, fields)
    if parsed is None:
        _take_one_by_one(batch, block, path, file, fields, offsets)
        return
    texts, ids = parsed
    batch.texts += texts
    batch.ids += ids
    batch.files += [file] * count
    batch.lines += numbers
    batch.offsets += offsets


def _take_one_by_one(
    batch: DocumentBatch, block: LineBlock, path: str, file: int, fields: Fields, offsets: list[int]
) -> None:
    """A block in which at least one line is unlike the others."""
    for number, (line, offset) in enumerate(zip(block.lines, offsets, strict=True), block.first_number):
        try:
            text, identity = parse_line(line, fields)
        except NotADocumentError as error:
            batch.rejects.append(Reject(path, number, offset, error.reason, error.detail, excerpt(line)))
            continue
        batch.texts.append(text)
        batch.ids.append(identity)
        batch.files.append(file)
        batch.lines.append(number)
        batch.offsets.append(offset)


def _take_rows(batch: DocumentBatch, block: RowBlock, path: str, file: int) -> None:
    count = len(block.texts)
    if ZEROS in "\n".join(block.texts):
        batch.zeroed[path] += sum(ZEROS in text for text in block.texts)
    batch.read_lines += block.row_count
    batch.read_bytes += block.text_bytes
    batch.texts += block.texts
    batch.ids += block.ids
    batch.files += [file] * count
    batch.lines += block.rows
    batch.offsets += [NO_OFFSET] * count
    batch.rejects += block.rejects


def _reject_long(batch: DocumentBatch, line: LongLine, path: str) -> None:
    batch.read_lines += 1
    batch.read_bytes += line.end - line.begin
    size = f"{line.size:,} bytes"
    batch.rejects.append(Reject(path, line.number, line.begin, "line_too_long", size, excerpt(line.head)))
