"""Read .txt files, each of which is one document.

The text is the whole content of the file, and the document's id is the path of the file below the
folder of its corpus. Such a document counts as line 1 of its file.
"""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterator
from typing import NamedTuple

from nanoset_core.text.document_batch import DocumentBatch, counter_of
from nanoset_core.text.files.content_kinds import describe_other_than_text
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import text_chunks
from nanoset_core.text.parsing import Fields, NotADocumentError, parse_line
from nanoset_core.text.rejects import EXCERPT_BYTES, WRONG_FORMAT, FaultError, Reject, excerpt
from nanoset_core.text.tables.documents import ZEROS
from nanoset_core.text.tables.values import from_json

_LINE = 1
_OFFSET = 0


class FileText(NamedTuple):
    """The content of a .txt file."""

    data: bytes
    """All of it; or the first bytes, if it is too long."""
    n_bytes: int
    """Size of all of it, decompressed."""


def read_txt_document(
    stored: StoredPiece, fields: Fields, max_text_bytes: int
) -> Iterator[DocumentBatch]:
    """Read a .txt file, and yield its document, or the reject in its place.

    Args:
        stored: The file.
        fields: The keys of a document. A .txt file has none of them: with required keys it is
            rejected, and each kept value is null.
        max_text_bytes: A longer file is rejected.

    Raises:
        FaultError: The file is of another format, or cannot be decompressed to its end.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read.
        SourceChangedError: The file has changed since it was listed.
    """
    path = stored.piece.path
    try:
        file_text = read_file_text(stored, max_text_bytes)
        _check_not_json_lines(file_text.data, fields.text)
    except FaultError as fault:
        fault.line = _LINE
        raise

    batch = DocumentBatch(read_bytes=file_text.n_bytes)
    try:
        text = parse_file_text(file_text, max_text_bytes)
        _check_no_required_keys(fields)
    except NotADocumentError as error:
        shown_text = excerpt(file_text.data)
        batch.rejects.append(Reject(path, _LINE, _OFFSET, error.reason, error.detail, shown_text))
        yield batch
        return

    batch.texts.append(text)
    batch.ids.append(path)
    batch.lines.append(_LINE)
    batch.offsets.append(_OFFSET)
    batch.texts_with_zeros = counter_of(path, int(ZEROS in text))
    if fields.kept:
        batch.kept_columns = [[from_json([None]) for _ in fields.kept]]
    yield batch


def read_file_text(stored: StoredPiece, max_bytes: int) -> FileText:
    """Read the text of a .txt file, which is one document, but stop keeping it if it is too long.

    A file of many GB would not fit into memory. It will be rejected, and for this its size and its
    beginning are enough. So it is read to its end, which also checks that it is complete:

        200 KB, max_bytes 1,000,000    (all 200,000 bytes, 200,000)
        3 GB, max_bytes 1,000,000      (the first 200 bytes, 3,000,000,000)

    Args:
        stored: The file, which may be compressed.
        max_bytes: The most bytes of a text, after decompression.

    Raises:
        FaultError: The file is of another format, or cannot be decompressed to its end.
        MissingError: The file was deleted.
        InputError: The file cannot be opened or read.
        SourceChangedError: The file has changed since it was listed.
    """
    chunks: list[bytes] = []
    n_bytes = 0
    for chunk in text_chunks(stored, describe_other_than_text):
        chunks.append(chunk)
        n_bytes += len(chunk)
        if n_bytes > max_bytes:
            # The file will be rejected: its first bytes are enough for the message. Drop the rest,
            # and read on to count the bytes.
            beginnings = [beginning[:EXCERPT_BYTES] for beginning in chunks]
            chunks = [b"".join(beginnings)[:EXCERPT_BYTES]]
    return FileText(b"".join(chunks), n_bytes)


def parse_file_text(file_text: FileText, max_bytes: int) -> str:
    r"""Decode the content of a .txt file, or raise the reason why it is no document.

        b"Hello"                   "Hello"
        b"\xef\xbb\xbfHello"       "Hello": some editors put this byte order mark before the text
        b"caf\xe9"                 NotADocumentError: invalid_utf8
        more than max_bytes        NotADocumentError: line_too_long

    Args:
        file_text: The content of the file. If it is too long, only its beginning and its size.
        max_bytes: The most bytes of a text.

    Raises:
        NotADocumentError: The content is too long, or is not UTF-8.
    """
    if file_text.n_bytes > max_bytes:
        raise NotADocumentError("line_too_long", f"{file_text.n_bytes:,} bytes")
    data = file_text.data.removeprefix(BOM_UTF8)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = data[error.start]
        raise NotADocumentError(
            "invalid_utf8",
            f"byte 0x{byte:02x} at byte {error.start} of the text: {error.reason}",
        ) from error


def _check_not_json_lines(data: bytes, text_key: str) -> None:
    """Check that a .txt file does not contain JSON lines, as it does if it has a wrong name.

    Otherwise a model would be trained on JSON, and nobody would notice. With the key "text":

        first line                refused
        Hello                     no
        {"text": "Hello"}         yes
        {"a": 1}                  no: it may be a text about JSON

    Args:
        data: The first bytes of the file, or all of them.
        text_key: The key that texts have in the JSON lines of this project, from the settings.

    Raises:
        FaultError: The first line is a JSON object with a text at this key.
    """
    first_line = data.partition(b"\n")[0]
    if not first_line.removeprefix(BOM_UTF8).startswith(b"{"):
        return
    try:
        parse_line(first_line, Fields(text_key, ""))
    except NotADocumentError:
        return
    raise FaultError(
        WRONG_FORMAT,
        f"the file is JSON lines, whose name should end in .jsonl: its first line has {text_key!r}",
        offset=0,
    )


def _check_no_required_keys(fields: Fields) -> None:
    """Check that documents need no further texts, such as a title, which a .txt file cannot have.

    Args:
        fields: The keys of a document. `required` are those at which it must have texts.

    Raises:
        NotADocumentError: There are such keys.
    """
    if fields.required:
        key = fields.required[0]
        raise NotADocumentError("missing_key", f"no {key!r} in a .txt file, which is one text")
