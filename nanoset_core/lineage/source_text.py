"""The raw text of one document, read from the corpus's files again, without what lies around it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from nanoset_core.errors import FormatError, InputError, NanosetError
from nanoset_core.raw.columns import leaf_at, locate_text, texts_of
from nanoset_core.raw.decompression import Fault, codec_of, decompress
from nanoset_core.raw.endings import is_parquet, is_table
from nanoset_core.raw.opening import open_raw
from nanoset_core.raw.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.raw.pieces import Piece
from nanoset_core.raw.stored import StoredPiece
from nanoset_core.raw.tables import TableBatch, read_table
from nanoset_core.storage.remote_folder import RawFolder

MOST_LINE_BYTES = 64 << 20
"""Longer lines are not held in memory."""
MOST_SKIPPED_BYTES = 256 << 20
"""How far into compressed text is decompressed by default: a second, about."""


class NotReadError(InputError):
    """Text that would be slow or big to read; nothing is known against it."""


@dataclass(frozen=True, slots=True)
class SourceLine:
    """One line of a corpus's files, or one row."""

    file: str
    """Relative to the corpus's folder."""
    line: int
    """1-based; in a Parquet or Arrow file the row."""
    byte_offset: int
    """Of the line in the decompressed file; -1 for a row."""


def read_text(
    folder: RawFolder, source: SourceLine, text_key: str, *, most_skipped_bytes: int | None = MOST_SKIPPED_BYTES
) -> str:
    """The text of one line or row, as it is in the file now.

    Args:
        folder: the corpus's folder.
        source: which line.
        text_key: key of the text, or its column.
        most_skipped_bytes: how much decompressed text, or how many rows' text, may be read to get there.

    Raises:
        MissingError: the file is gone.
        FormatError: there is no document at that place any more.
        NotReadError: it lies too far into compressed text, or is too long.
        InputError: the file cannot be read.
    """
    if is_table(source.file):
        return _text_of_row(folder / source.file, source.line, text_key, most_skipped_bytes)
    line = _compressed_line if codec_of(source.file) else _plain_line
    try:
        return parse_line(line(folder, source, most_skipped_bytes), Fields(text_key, ""))[0]
    except NotADocumentError as error:
        raise _moved(folder, source, f"{error.reason}: {error.detail}") from error


def _plain_line(folder: RawFolder, source: SourceLine, _most: int | None) -> bytes:
    with open_raw(folder / source.file) as file:
        file.seek(max(source.byte_offset - 1, 0))
        before = file.read(1) if source.byte_offset else b"\n"
        line = file.readline(MOST_LINE_BYTES + 1)
    if before != b"\n" or not line:
        raise _moved(folder, source, "no line begins there")
    return _whole(folder, source, line)


def _compressed_line(folder: RawFolder, source: SourceLine, most: int | None) -> bytes:
    if most is not None and source.byte_offset > most:
        raise _not_read(folder, source, f"{source.byte_offset:,} bytes into compressed text")
    line = b""
    for chunk in _after(folder, source):
        cut = chunk.find(b"\n") + 1
        line += chunk[:cut] if cut else chunk
        if cut or len(line) > MOST_LINE_BYTES:
            break
    if not line:
        raise _moved(folder, source, "the text ends before that byte")
    return _whole(folder, source, line)


def _after(folder: RawFolder, source: SourceLine) -> Iterator[bytes]:
    """Decompressed text from the line's first byte on."""
    with open_raw(folder / source.file) as file:
        size = file.seek(0, 2)
    codec, position = codec_of(source.file), 0
    if codec is None:
        return
    for chunk in decompress(StoredPiece(folder, Piece(source.file, 0, size, 1, "")), codec):
        if isinstance(chunk, Fault):
            raise _moved(folder, source, f"{chunk.reason}: {chunk.detail}")
        if position + len(chunk) > source.byte_offset:
            yield chunk[max(source.byte_offset - position, 0) :]
        position += len(chunk)


def _whole(folder: RawFolder, source: SourceLine, line: bytes) -> bytes:
    if len(line) > MOST_LINE_BYTES:
        raise _not_read(folder, source, f"a line of more than {MOST_LINE_BYTES:,} bytes")
    return line.removesuffix(b"\n")


def _text_of_row(path: RawFolder, row: int, text_key: str, most: int | None) -> str:
    where = SourceLine(path.name, row, -1)
    for batch in _batches_to(path, row, text_key, most):
        index = row - batch.first_row
        if index < batch.rows.num_rows:
            place = locate_text(batch.rows.schema, text_key)
            texts = texts_of(leaf_at(batch.rows, place).slice(index, 1), text_key, MOST_LINE_BYTES)
            if texts.texts[0] is None:
                raise _moved(path.parent, where, f"{texts.bad[0][0].reason}: {texts.bad[0][0].detail}")
            return texts.texts[0]
        batch.release()
    raise _moved(path.parent, where, "the table ends before that row")


def _batches_to(path: RawFolder, row: int, text_key: str, most: int | None) -> Iterator[TableBatch]:
    """Batches of a table that hold a row, or lead up to it; in Parquet from its row group on."""
    if is_parquet(path.name):
        yield from _parquet_batches(path, row, text_key, most)
        return
    for batch in read_table(path, lambda schema: [_selector(path, schema, text_key)]):
        if isinstance(batch, Fault):
            raise _moved(path.parent, SourceLine(path.name, row, -1), f"{batch.reason}: {batch.detail}")
        yield batch


def _parquet_batches(path: RawFolder, row: int, text_key: str, most: int | None) -> Iterator[TableBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with open_raw(path) as file:
            table = pq.ParquetFile(file, pre_buffer=False)
            first, group = 1, 0
            while group < table.num_row_groups and first + table.metadata.row_group(group).num_rows <= row:
                first += table.metadata.row_group(group).num_rows
                group += 1
            if group == table.num_row_groups:
                return
            facts = table.metadata.row_group(group)
            skipped = facts.total_byte_size * (row - first) // max(facts.num_rows, 1)
            if most is not None and skipped > most:
                raise _not_read(path.parent, SourceLine(path.name, row, -1), f"{skipped:,} bytes into a row group")
            columns = [_selector(path, table.schema_arrow, text_key)]
            for batch in table.iter_batches(256, row_groups=[group], columns=columns, use_threads=False):
                yield TableBatch(batch, first, 0, lambda: None)
                first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, NanosetError):
            raise
        raise _moved(path.parent, SourceLine(path.name, row, -1), str(error)) from error


def _selector(path: RawFolder, schema: object, text_key: str) -> str:
    try:
        return locate_text(schema, text_key).selector
    except NotADocumentError as error:
        raise _moved(path.parent, SourceLine(path.name, 1, -1), f"{error.reason}: {error.detail}") from error


def _spell(folder: RawFolder, source: SourceLine) -> str:
    byte = f" (byte {source.byte_offset:,})" if source.byte_offset >= 0 else ""
    return f"{folder / source.file}:{source.line}{byte}"


def _moved(folder: RawFolder, source: SourceLine, found: str) -> FormatError:
    return FormatError(
        "the document is not at its place any more",
        where=_spell(folder, source),
        found=found,
        expected="the line or row that was tokenized",
        remedy="run `nanoset build`: the file was changed since",
    )


def _not_read(folder: RawFolder, source: SourceLine, found: str) -> NotReadError:
    return NotReadError("the text was not read again", where=_spell(folder, source), found=found)
