"""Read the documents of a corpus from files of all formats, with a reject for everything else.

Every line, row and .txt file is accounted for: it is a document, it is rejected, or it was erased
and is left out. A fault that ends a file early is one more reject.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

from nanoset_core.storage.location import Location
from nanoset_core.text.document_batch import DocumentBatch, counter_of
from nanoset_core.text.files.endings import CsvValues, format_of
from nanoset_core.text.files.raw_files import too_large
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import LineBlock, read_lines
from nanoset_core.text.parsing import (
    Fields,
    NotADocumentError,
    has_long_id,
    parse_line,
    parse_lines,
)
from nanoset_core.text.rejects import FaultError, Reject, excerpt
from nanoset_core.text.tables.documents import read_csv_documents, read_table_documents
from nanoset_core.text.tables.values import from_json
from nanoset_core.text.txt_documents import read_txt_document

BATCH_BYTES = 1 << 20
"""A batch ends once it has read about this many bytes."""
BATCH_REJECTS = 10_000
"""A batch also ends once it has this many rejects, which may need more memory than their lines."""

DocumentReader: TypeAlias = Callable[[StoredPiece, Fields, int], Iterator[DocumentBatch]]
"""Reads the documents of a piece of one format.

Its arguments are the piece, the fields of a document, and the largest size of a line or text in
bytes.
"""


def read_documents(
    folder: Location,
    source: SourceRange,
    *,
    text_key: str = "text",
    id_key: str = "id",
    required_keys: tuple[str, ...] = (),
    kept_keys: tuple[str, ...] = (),
    csv_values: CsvValues = "text",
    max_line_bytes: int = 1 << 30,
    batch_bytes: int = BATCH_BYTES,
    verify: bool = True,
) -> Iterator[DocumentBatch]:
    """Read the documents of a source range, file by file, and by line or row within a file.

    Args:
        folder: The corpus's folder.
        source: Which pieces of which files to read.
        text_key: Key of the text in each JSON object, or its column in a table; see `parsing.find`
            for keys with dots.
        id_key: Key of an id that is kept with the document.
        required_keys: Keys of texts that a document must also have. With them, a corpus that is
            read once for each of several keys has the same documents every time.
        kept_keys: Keys of further values that are kept with the document.
        csv_values: What kept values of CSV files are.
        max_line_bytes: Longer lines are rejected, and so are rows with a longer text at one of the
            keys.
        batch_bytes: A batch is yielded when it has read about this many bytes, or contains 10,000
            rejects.
        verify: Compare the bytes with the digests in the inventory; those of a table after its rows
            were yielded.

    Yields:
        Batches of documents, with the rejected lines and rows. The last batch may be empty.

    Raises:
        MissingError: A file was deleted.
        InputError: A file cannot be opened, or there is not enough memory.
        SourceChangedError: A file has changed since the inventory was made.
    """
    fields = Fields(text_key, id_key, required_keys, kept_keys, csv_values)
    file_numbers = {path: number for number, path in enumerate(source.files)}
    erased_by_piece = dict(source.without)  # number of the piece → places of erased documents
    batch = DocumentBatch()
    for piece_number, piece in enumerate(source.pieces):
        # A piece is a file, or a part of a large one.
        mark = source.marks.get(piece.path)
        stored = StoredPiece(folder, piece, mark, is_checked=verify)
        read = reader_of(piece.path, json_lines=source.json_lines)
        erased = frozenset(erased_by_piece.get(piece_number, ()))
        position = piece.begin  # the stored bytes before it are counted in a batch
        n_lines = 0
        n_bytes = 0
        has_fault = False

        # Collect documents until the batch is large enough; it may contain those of many pieces.
        try:
            for documents in read(stored, fields, max_line_bytes):
                n_lines += documents.read_lines
                n_bytes += documents.read_bytes
                if erased:
                    documents.leave_out(erased)
                batch.append(documents, file_numbers[piece.path])
                batch.stored_bytes += stored.position - position
                position = stored.position
                if batch.read_bytes >= batch_bytes or len(batch.rejects) >= BATCH_REJECTS:
                    yield batch
                    batch = DocumentBatch()
        except FaultError as fault:
            batch.rejects.append(fault.reject(piece.path))
            has_fault = True
        except MemoryError as error:
            raise too_large(stored.path) from error

        # The piece was read to its end, or to a fault: check its bytes, and add its totals.
        _count_padding(batch, stored)
        if not has_fault:
            _count_empty_file(batch, piece, n_lines, n_bytes)
        if verify:
            stored.check()
        batch.stored_bytes += piece.end - position
        if piece.first_line == 0:  # the inventory has not counted the lines of this file
            batch.lines_of_pieces.append((piece, _lines_of_piece(folder, piece, n_lines)))
    yield batch


def _count_padding(batch: DocumentBatch, stored: StoredPiece) -> None:
    """Add the zero bytes after the members of a gzip file to the counts of a batch.

    Args:
        batch: The batch.
        stored: The file, which was read to its end.
    """
    if stored.padding:
        batch.padding[stored.piece.path] += stored.padding


def _count_empty_file(batch: DocumentBatch, piece: Piece, n_lines: int, n_bytes: int) -> None:
    """Add a file to the counts of a batch if it has bytes, but no text in them.

        a.jsonl.gz    of an empty file       is added
        a.parquet     without rows           is added
        a.csv         only a header          is added
        a.txt.gz      of an empty file       is added, although it is a document
        a.jsonl       without any byte       is not: this is known from the list of files

    Args:
        batch: The batch.
        piece: The file, or a part of it, which was read to its end.
        n_lines: How many lines or rows were read.
        n_bytes: How many bytes of lines or texts were read.
    """
    n_read = n_bytes if format_of(piece.path) == "txt" else n_lines
    has_bytes = piece.begin == 0 and piece.end > 0
    if has_bytes and n_read == 0:
        batch.empty_files[piece.path] += piece.end


def _lines_of_piece(folder: Location, piece: Piece, n_read: int) -> int:
    """Return how many lines a piece of a file has, so that those of later pieces can be numbered.

    If the first piece has 1,000 lines, the second one begins with line 1,001 of the file.

    Args:
        folder: The folder of the file.
        piece: The piece.
        n_read: How many of its lines were read; 0 if the file was refused, since it is something
            else than lines. Then its line ends are counted.
    """
    if n_read > 0:
        return n_read
    # The file is something else than lines of JSON. Later pieces of it still need to know how many
    # lines are before them, so count the line feeds.
    stored = StoredPiece(folder, piece, is_checked=False)
    return sum(block.count(b"\n") for block in stored.blocks())


def reader_of(path: str, json_lines: Collection[str] = ()) -> DocumentReader:
    """Return the function that reads a file of documents, chosen by the ending of its name.

        a.jsonl.gz    _read_line_documents     each line is a document
        a.parquet     read_table_documents     each row is one
        a.txt         read_txt_document        the whole file is one

    Args:
        path: Path of the file.
        json_lines: Files that are read as JSON lines, whatever their endings are.
    """
    readers: dict[str, DocumentReader] = {
        "lines": _read_line_documents,
        "parquet": read_table_documents,
        "arrow": read_table_documents,
        "txt": read_txt_document,
        "csv": read_csv_documents,
    }
    if path in json_lines:
        return readers["lines"]
    return readers[format_of(path)]


def _read_line_documents(
    stored: StoredPiece, fields: Fields, max_line_bytes: int
) -> Iterator[DocumentBatch]:
    """Read the documents of a piece of a file of JSON lines; see `DocumentReader`."""
    # `map` drops each block once it is converted. A loop would hold its lines in memory while the
    # caller works with the documents.
    convert = partial(_documents_of_lines, path=stored.piece.path, fields=fields)
    return map(convert, read_lines(stored, max_line_bytes))


def _documents_of_lines(block: LineBlock, path: str, fields: Fields) -> DocumentBatch:
    """Convert a block of lines to documents, and lines that are none to rejects, which say why.

        line    its content                    becomes
        1       {"text": "Hello", "id": 7}     a document with the text "Hello" and the id "7"
        2       {"title": "no text"}           a reject: it has no key "text"
        3       {"text": "World"}              a document without an id

    Args:
        block: Consecutive lines, or the beginning of one line that is too long.
        path: Path of the file, relative to the folder of the corpus.
        fields: The keys of the texts, ids and further values in each line.
    """
    if block.long_bytes:
        return _rejected_long_line(block, path)

    batch = _batch_of_all_lines(block, fields)
    if batch is None:
        batch = _batch_line_by_line(block, path, fields)
    batch.read_bytes = block.end - block.begin
    if None in batch.ids:
        batch.dropped_ids = counter_of(path, _count_long_ids(batch, block, fields.id))
    return batch


def _batch_of_all_lines(block: LineBlock, fields: Fields) -> DocumentBatch | None:
    """Convert all lines of a block to documents at once, which is faster than one by one.

    Args:
        block: The lines.
        fields: The keys of the texts, ids and further values in each line.

    Returns:
        The documents; None if a line is no document, or is unusual. Then each line has to be looked
        at alone.
    """
    parsed = parse_lines(block.lines, fields)
    if parsed is None:
        return None
    stop_number = block.first_number + len(block.lines)
    return DocumentBatch(
        texts=parsed.texts,
        lines=list(range(block.first_number, stop_number)),
        offsets=block.offsets,
        ids=parsed.ids,
        kept_columns=_kept_columns(parsed.kept),
    )


def _count_long_ids(batch: DocumentBatch, block: LineBlock, id_key: str) -> int:
    """Count the documents of some lines whose ids were too long to be kept.

        {"text": "Hello"}                          no id: not counted
        {"text": "Hello", "id": "x…" (5,000)}      counted: the id was left out

    Both documents have no id now. To tell them apart, their lines are looked at once more.

    Args:
        batch: The documents.
        block: The lines that they were read from.
        id_key: Key of the ids in the lines.
    """
    n_long = 0
    for identity, line_number in zip(batch.ids, batch.lines, strict=True):
        if identity is None:
            line = block.lines[line_number - block.first_number]
            n_long += has_long_id(line, id_key)
    return n_long


def _rejected_long_line(block: LineBlock, path: str) -> DocumentBatch:
    """Return the reject for a line that is too long to be a document.

    A reject tells the user which line was left out, and why: "line 7, line_too_long, 90,000,000
    bytes".

    Args:
        block: The beginning of the line, its number, and its size.
        path: Path of the file, relative to the corpus's folder.

    Returns:
        A batch without documents that has this reject.
    """
    reject = Reject(
        path,
        line=block.first_number,
        offset=block.begin,
        reason="line_too_long",
        detail=f"{block.long_bytes:,} bytes",
        excerpt=excerpt(block.lines[0]),
    )
    return DocumentBatch(rejects=[reject], read_bytes=block.end - block.begin)


def _batch_line_by_line(block: LineBlock, path: str, fields: Fields) -> DocumentBatch:
    """Convert each line of a block to a document or to a reject, one after the other.

        {"text": "Hello"}         a document
        {"title": "no text"}      a reject, which tells the user why this line is left out

    This is slower than to convert all lines together. It is for blocks in which a line is no
    document.

    Args:
        block: The lines.
        path: Path of the file, relative to the folder of the corpus.
        fields: The keys of the texts, ids and further values in each line.
    """
    batch = DocumentBatch()
    kept_by_document: list[list[Any]] = []
    lines_with_offsets = zip(block.lines, block.offsets, strict=True)
    for number, (line, offset) in enumerate(lines_with_offsets, start=block.first_number):
        try:
            document = parse_line(line, fields)
        except NotADocumentError as error:
            reject = Reject(path, number, offset, error.reason, error.detail, excerpt(line))
            batch.rejects.append(reject)
            continue
        batch.texts.append(document.text)
        batch.ids.append(document.id)
        batch.lines.append(number)
        batch.offsets.append(offset)
        kept_by_document.append(document.kept)

    batch.kept_columns = _kept_columns(_transposed(kept_by_document))
    return batch


def _transposed(values_by_document: list[list[Any]]) -> list[list[Any]]:
    """Return one list of values for each key instead of one for each document.

    [[1, "a"], [2, "b"]] becomes [[1, 2], ["a", "b"]]. Without documents, the result is empty.

    Args:
        values_by_document: For each document, its value at each key.
    """
    return [list(values) for values in zip(*values_by_document, strict=True)]


def _kept_columns(values_by_key: Sequence[Sequence[Any]]) -> list[list[Any]]:
    """Return kept values of documents that were read together, for `DocumentBatch.kept_columns`.

    Args:
        values_by_key: For each key that is kept, the value of each document.

    Returns:
        A single group, which has an Arrow array for each key; no group if no key is kept.
    """
    if not values_by_key:
        return []
    return [[from_json(values) for values in values_by_key]]
