"""How much text a corpus holds, judged by its first documents."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

from nanoset_core.errors import NanosetError
from nanoset_core.raw.documents import DocumentBatch, read_documents
from nanoset_core.raw.listing import natural_key
from nanoset_core.raw.pieces import Piece, SourceRange
from nanoset_core.raw.survey import CorpusFiles
from nanoset_core.storage.remote_folder import RawFolder

READ_BYTES = 1 << 20
BATCH_BYTES = 64 << 10


@dataclass(frozen=True, slots=True)
class Measure:
    """What was read of a corpus, and what that says of the rest."""

    documents: int = 0
    """Documents that were read."""
    text_bytes: int = 0
    """UTF-8 bytes of their texts."""
    whole: float = 1.0
    """At least so many times as much there is, judged by the stored bytes."""


def measure(folder: RawFolder, found: CorpusFiles, text_key: str) -> Measure:
    """Read about the first MiB of a corpus's lines; what cannot be read is passed over, since a build will say it."""
    documents = text_bytes = read_bytes = stored = 0
    for file in sorted(found.files, key=lambda file: natural_key(file.path)):
        before = read_bytes
        for batch in _batches(folder, Piece(file.path, 0, file.size, 1, ""), text_key):
            documents += len(batch.texts)
            text_bytes += sum(len(text.encode(errors="replace")) for text in batch.texts)
            read_bytes += batch.read_bytes
            if read_bytes >= READ_BYTES:
                break
        stored += min(file.size, read_bytes - before) if read_bytes >= READ_BYTES else file.size
        if read_bytes >= READ_BYTES:
            break
    return Measure(documents, text_bytes, found.size / stored if stored else 1.0)


def _batches(folder: RawFolder, piece: Piece, text_key: str) -> Iterator[DocumentBatch]:
    with suppress(NanosetError):
        yield from read_documents(
            folder, SourceRange((piece,)), text_key=text_key, batch_bytes=BATCH_BYTES, verify=False
        )
