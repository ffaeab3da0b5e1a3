"""Lines → documents, with every line that is none of them kept as a reject."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nanoset_core.raw.decompression import Fault
from nanoset_core.raw.lines import HEAD_BYTES, LineBlock, LongLine, read_lines
from nanoset_core.raw.parsing import Fields, NotADocumentError, parse_line, parse_lines
from nanoset_core.raw.pieces import SourceRange

BATCH_BYTES = 1 << 20
BATCH_REJECTS = 10_000


@dataclass(frozen=True, slots=True)
class Reject:
    """A line that is no document, or the fault that ends a compressed file."""

    file: str
    """relative to the corpus folder"""
    line: int
    """1-based; for a fault the line in which it lies"""
    offset: int
    """of the line's first byte (a fault: of the first byte that is lost) in the decompressed file"""
    reason: str
    """a short fixed word, such as invalid_json"""
    detail: str
    """what was found"""
    excerpt: str
    """the line's first bytes; bytes that are not UTF-8 as \\xNN"""


@dataclass(slots=True)
class DocumentBatch:
    """About a MiB of documents, in order."""

    texts: list[str] = field(default_factory=list)
    files: list[int] = field(default_factory=list)
    """index into the range's files"""
    lines: list[int] = field(default_factory=list)
    """1-based line numbers"""
    offsets: list[int] = field(default_factory=list)
    """byte offsets of the lines in the decompressed files"""
    ids: list[str | None] = field(default_factory=list)
    """the documents' own ids, where they have one"""
    rejects: list[Reject] = field(default_factory=list)
    read_bytes: int = 0
    """decompressed bytes, line ends included"""
    read_lines: int = 0
    """lines, whether documents or rejects"""
    faults: int = 0
    """compressed files that could not be read to their end; each is one of the rejects"""


def read_documents(
    folder: Path,
    source: SourceRange,
    *,
    text_key: str = "text",
    id_key: str = "id",
    max_line_bytes: int = 1 << 30,
    batch_bytes: int = BATCH_BYTES,
    verify: bool = True,
) -> Iterator[DocumentBatch]:
    """Documents of a source range in file and line order.

    Lines = documents + rejected lines, always; a fault of the compression is one reject more.

    Args:
        folder: the corpus's folder.
        source: which pieces of which files.
        text_key: key of the text in each JSON object.
        id_key: key of an id (string or number) that is kept beside the document.
        max_line_bytes: longer lines are rejected.
        batch_bytes: a batch is given once it has read about this many bytes, or holds 10,000 rejects.
        verify: compare the bytes read with the inventory's digests.

    Raises:
        MissingError, InputError, SourceChangedError: see read_lines.
    """
    fields = Fields(text_key, id_key)
    numbers = {path: number for number, path in enumerate(source.files)}
    batch = DocumentBatch()
    for piece in source.pieces:
        for item in read_lines(folder, piece, max_line_bytes=max_line_bytes, verify=verify):
            if isinstance(item, Fault):
                batch.rejects.append(Reject(piece.path, item.line, item.offset, item.reason, item.detail, ""))
                batch.faults += 1
            elif isinstance(item, LongLine):
                _reject_long(batch, item, piece.path)
            else:
                _take(batch, item, piece.path, numbers[piece.path], fields)
            if batch.read_bytes >= batch_bytes or len(batch.rejects) >= BATCH_REJECTS:
                yield batch
                batch = DocumentBatch()
    yield batch


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
            excerpt = line[:HEAD_BYTES].decode("utf-8", "backslashreplace")
            batch.rejects.append(Reject(path, number, offset, error.reason, error.detail, excerpt))
            continue
        batch.texts.append(text)
        batch.ids.append(identity)
        batch.files.append(file)
        batch.lines.append(number)
        batch.offsets.append(offset)


def _reject_long(batch: DocumentBatch, line: LongLine, path: str) -> None:
    batch.read_lines += 1
    batch.read_bytes += line.end - line.begin
    excerpt = line.head.decode("utf-8", "backslashreplace")
    batch.rejects.append(Reject(path, line.number, line.begin, "line_too_long", f"{line.size:,} bytes", excerpt))
