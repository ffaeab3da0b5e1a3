"""Estimate how much text a corpus has from the first MiB of it."""

from __future__ import annotations

import zlib
from contextlib import suppress
from dataclasses import dataclass

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.contents import Contents
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.endings import PARQUET, is_cuttable, is_table
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import SourceRange, whole_file

_SAMPLE_BYTES = 1 << 20
_BATCH_BYTES = 64 << 10
_MAX_TEXT_CHARACTERS = 64 << 10


@dataclass(frozen=True, slots=True)
class Measure:
    """A sample of a corpus's text, and how large the corpus is in comparison."""

    documents: int = 0
    """Documents of the sample."""
    text_bytes: int = 0
    """UTF-8 bytes of the texts of these documents."""
    scale: float = 1.0
    """Size of the corpus, as a multiple of the sample; estimated by the stored bytes."""
    text: str = ""
    """Some text of the sample."""


@dataclass(slots=True)
class _Measured:
    """Sums over the documents that were read so far."""

    documents: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    """Bytes of lines after decompression, or of rows."""
    text: str = ""

    def add(self, batch: DocumentBatch) -> None:
        """Add the documents of a batch."""
        self.documents += len(batch.texts)
        self.read_bytes += batch.read_bytes
        for text in batch.texts:
            self.text_bytes += len(text.encode(errors="replace"))
        if len(self.text) < _MAX_TEXT_CHARACTERS:
            self.text = "\n".join([self.text, *batch.texts])

    @property
    def is_complete(self) -> bool:
        """Whether enough was read."""
        return self.read_bytes >= _SAMPLE_BYTES


def measure(folder: RawFolder, contents: Contents, text_key: str) -> Measure:
    """Read about the first MiB of a corpus's text, and estimate the size of the whole.

    Files that cannot be read are skipped: building the corpus reports them.

    Args:
        folder: The folder of the corpus.
        contents: The files in it.
        text_key: Key of the text in a line or row.
    """
    sample = _Measured()
    stored_bytes = 0.0  # of what was read
    for file in contents.ordered:
        stored_bytes += _read_file(folder, file, text_key, sample)
        if sample.is_complete:
            break
    return Measure(
        documents=sample.documents,
        text_bytes=sample.text_bytes,
        scale=contents.size / stored_bytes if stored_bytes else 1.0,
        text=sample.text[:_MAX_TEXT_CHARACTERS],
    )


def _read_file(folder: RawFolder, file: FileStat, text_key: str, sample: _Measured) -> float:
    """Read a file until the sample is complete; return how many of its stored bytes were read."""
    n_rows = 0
    read_bytes = 0
    with suppress(NanosetError):
        batches = read_documents(
            folder,
            SourceRange((whole_file(file),)),
            text_key=text_key,
            batch_bytes=_BATCH_BYTES,
            verify=False,
        )
        for batch in batches:
            sample.add(batch)
            n_rows += batch.read_lines
            read_bytes += batch.read_bytes
            if sample.is_complete:
                stored_bytes = _estimated_stored_bytes(
                    folder, file, n_rows, read_bytes, sample.text
                )
                return min(file.size, stored_bytes)
    return file.size


def _estimated_stored_bytes(
    folder: RawFolder, file: FileStat, n_rows: int, read_bytes: int, text: str
) -> float:
    """Estimate how many of a file's stored bytes were read.

    Args:
        folder: The folder of the corpus.
        file: The file, of which only the beginning was read.
        n_rows: Lines or rows that were read.
        read_bytes: Bytes of these lines or rows, after decompression.
        text: Some text of the corpus.
    """
    if file.path.lower().endswith(PARQUET):
        import pyarrow.parquet as pq

        # Columns that are not read may be most of the file, so bytes would mislead.
        all_rows = int(pq.read_metadata(str(folder / file.path)).num_rows)
        return file.size * n_rows / max(all_rows, 1)
    if is_table(file.path) or is_cuttable(file.path):  # not compressed
        return read_bytes
    # Estimate how many compressed bytes were read by how well some of the text compresses.
    text_bytes = text.encode(errors="replace")
    compressed_bytes = len(zlib.compress(text_bytes))
    return read_bytes * compressed_bytes / max(len(text_bytes), 1)
