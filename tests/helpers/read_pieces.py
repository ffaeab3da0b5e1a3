"""All documents and rejects of some pieces of a corpus, as a build reads them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.inventory.pieces import Piece, SourceRange
from nanoset_core.text.rejects import Reject


class ReadDocument(NamedTuple):
    """A document, and where it was found."""

    text: str
    id: str | None
    file: str
    """Relative to the folder."""
    line: int
    """1-based number of the line or row."""
    offset: int
    """First byte of the line in the decompressed file; -1 for a row of a table."""


@dataclass(frozen=True)
class ReadPieces:
    """What was read of some pieces, in order."""

    documents: list[ReadDocument]
    rejects: list[Reject]
    batches: list[DocumentBatch]

    @property
    def texts(self) -> list[str]:
        """Text of each document."""
        return [document.text for document in self.documents]

    @property
    def ids(self) -> list[str | None]:
        """Id of each document."""
        return [document.id for document in self.documents]

    @property
    def lines(self) -> list[int]:
        """Number of the line or row of each document."""
        return [document.line for document in self.documents]

    @property
    def reason_by_line(self) -> dict[int, str]:
        """Why each rejected line or row of a single file was rejected."""
        lines = [reject.line for reject in self.rejects]
        assert lines == sorted(set(lines)), "rejects have the order of the file"
        return {reject.line: reject.reason for reject in self.rejects}

    @property
    def read_lines(self) -> int:
        """Number of lines and rows."""
        return sum(batch.read_lines for batch in self.batches)

    @property
    def read_bytes(self) -> int:
        """Decompressed bytes of all lines, or bytes of the texts of all rows."""
        return sum(batch.read_bytes for batch in self.batches)

    @property
    def n_faults(self) -> int:
        """Number of files that could not be read to their ends."""
        return sum(batch.faults for batch in self.batches)


def read_pieces(folder: Path, *pieces: Piece, **options: Any) -> ReadPieces:
    """Read pieces to their ends, and check that every line and row is accounted for.

    Args:
        folder: The corpus's folder.
        pieces: What to read, in order.
        options: Options of `read_documents`.
    """
    source = SourceRange(pieces)
    batches = list(read_documents(folder, source, **options))

    documents: list[ReadDocument] = []
    rejects: list[Reject] = []
    for batch in batches:
        assert batch.read_lines == len(batch.texts) + len(batch.rejects) - batch.faults
        rejects += batch.rejects
        files = [source.files[number] for number in batch.files]
        columns = (batch.texts, batch.ids, files, batch.lines, batch.offsets)
        documents += [ReadDocument(*values) for values in zip(*columns, strict=True)]
    return ReadPieces(documents, rejects, batches)
