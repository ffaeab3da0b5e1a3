"""An estimate of how much text a corpus holds, from its first documents."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass

from nanoset_core.errors import NanosetError
from nanoset_core.raw.documents import read_documents
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
    """How many times as much there is at least, judged by the stored bytes."""


def measure(folder: RawFolder, found: CorpusFiles, text_key: str) -> Measure:
    """Read about the first MiB of a corpus's lines; files that cannot be read are passed over: a build will say so."""
    documents = text_bytes = read_bytes = stored = 0
    for file in sorted(found.files, key=lambda file: natural_key(file.path)):
        before, source = read_bytes, SourceRange((Piece(file.path, 0, file.size, 1, ""),))
        with suppress(NanosetError):
            for batch in read_documents(folder, source, text_key=text_key, batch_bytes=BATCH_BYTES, verify=False):
                documents += len(batch.texts)
                text_bytes += sum(len(text.encode(errors="replace")) for text in batch.texts)
                read_bytes += batch.read_bytes
                if read_bytes >= READ_BYTES:
                    break
        if read_bytes >= READ_BYTES:
            stored += min(file.size, read_bytes - before)
            break
        stored += file.size
    return Measure(documents, text_bytes, found.size / stored if stored else 1.0)
