"""Estimate how much text a corpus has from the first MiB of it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from nanoset_core.errors import NanosetError
from nanoset_core.storage.location import RawFolder
from nanoset_core.text.arrow_batches import stored_bytes_of_rows
from nanoset_core.text.contents import Contents
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.endings import format_of, is_compressed
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import SourceRange, whole_file
from nanoset_core.text.raw_files import open_raw

_SAMPLE_BYTES = 1 << 20
"""Bytes of lines or rows after which a sample is large enough."""
_BATCH_BYTES = 64 << 10
"""Bytes of lines or rows that are read at once."""
_MAX_TEXT_CHARACTERS = 64 << 10
"""Length to which the text of a sample is cut."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A sample of a corpus's text, and how large the corpus is in comparison."""

    documents: int = 0
    """Number of documents in the sample."""
    text_bytes: int = 0
    """UTF-8 bytes of the texts of these documents."""
    scale: float = 1.0
    """Size of the corpus, as a multiple of the sample; estimated by the stored bytes."""
    text: str = ""
    """Some text of the sample."""


def measure(folder: RawFolder, contents: Contents, text_key: str) -> Measure:
    """Read about the first MiB of a corpus's text, and estimate the size of the whole.

    Files that cannot be read are skipped: building the corpus reports them.

    Args:
        folder: The folder of the corpus.
        contents: The files in it.
        text_key: Key of the text in a line or row.

    Returns:
        The sample, and the estimated size of the corpus as a multiple of it. Without any stored
        bytes, the sample is empty and the multiple is 1.
    """
    sampler = _Sampler(folder, text_key)
    for file in contents.ordered:
        sampler.read(file)
        if sampler.is_complete:
            break

    scale = 1.0
    if sampler.covered_bytes:
        scale = contents.size / sampler.covered_bytes
    return Measure(
        documents=sampler.documents,
        text_bytes=sampler.text_bytes,
        scale=scale,
        text=sampler.text[:_MAX_TEXT_CHARACTERS],
    )


class _Beginning(NamedTuple):
    """What was read of a file that was not read to its end."""

    n_rows: int
    """Lines or rows."""
    n_bytes: int
    """Bytes of these lines after decompression, or of these rows."""


@dataclass(slots=True)
class _Sampler:
    """Reads files until about a MiB was read, and counts what was read."""

    folder: RawFolder
    text_key: str
    documents: int = 0
    text_bytes: int = 0
    read_bytes: int = 0
    """Bytes of lines after decompression, or of rows."""
    covered_bytes: float = 0.0
    """How many bytes of the stored files the sample covers, as they are stored: compressed, and
    with all columns. The sample is extrapolated from these to all files.

    It is not an integer, since it is estimated for a file that was not read to its end.
    """
    text: str = ""
    """Texts of the first documents."""

    @property
    def is_complete(self) -> bool:
        """Whether enough was read."""
        return self.read_bytes >= _SAMPLE_BYTES

    def read(self, file: FileStat) -> None:
        """Read a file to its end, or until the sample is complete.

        Args:
            file: The file.
        """
        beginning = self._read_beginning(file)
        if beginning is None:
            self.covered_bytes += file.size
        else:
            # How many stored bytes were read is not known exactly: the file may be compressed.
            estimate = _estimated_stored_bytes(self.folder, file, beginning, self.text)
            self.covered_bytes += min(file.size, estimate)

    def _read_beginning(self, file: FileStat) -> _Beginning | None:
        """Read a file, and return what was read if the sample was complete before its end.

        A file that cannot be read is no error here, since building the corpus reports it. It counts
        as read to its end, as building the corpus would get no more documents from it.
        """
        n_rows = 0
        n_bytes = 0
        with suppress(NanosetError):
            for batch in self._batches(file):
                self._add(batch)
                n_rows += batch.read_lines
                n_bytes += batch.read_bytes
                if self.is_complete:
                    return _Beginning(n_rows, n_bytes)
        return None

    def _batches(self, file: FileStat) -> Iterator[DocumentBatch]:
        """Yield the documents of a file in small batches."""
        return read_documents(
            self.folder,
            SourceRange((whole_file(file),)),
            text_key=self.text_key,
            batch_bytes=_BATCH_BYTES,
            verify=False,
        )

    def _add(self, batch: DocumentBatch) -> None:
        """Count the documents of a batch, and keep the text of the first ones."""
        self.documents += len(batch.texts)
        self.read_bytes += batch.read_bytes
        for text in batch.texts:
            self.text_bytes += len(text.encode(errors="replace"))
        if len(self.text) < _MAX_TEXT_CHARACTERS:
            self.text = "\n".join([self.text, *batch.texts])


def _estimated_stored_bytes(
    folder: RawFolder, file: FileStat, beginning: _Beginning, text: str
) -> float:
    """Estimate how many of a file's stored bytes were read, if only its beginning was.

    Args:
        folder: The folder of the corpus.
        file: The file.
        beginning: What was read of it.
        text: Some text of the corpus.

    Returns:
        The estimate, which may exceed the size of the file.
    """
    # The columns that are read may be a small part of a table, and they may be compressed. So count
    # the rows.
    file_format = format_of(file.path)
    if file_format == "parquet":
        return file.size * beginning.n_rows / max(_parquet_rows(folder, file), 1)
    if file_format == "arrow":
        with open_raw(folder / file.path) as opened:
            return stored_bytes_of_rows(opened, beginning.n_rows)
    if not is_compressed(file.path):
        return beginning.n_bytes  # the file is stored as it is read
    # The others are compressed: assume as well as some of the text is here.
    text_bytes = text.encode(errors="replace")
    compressed_bytes = len(zlib.compress(text_bytes))
    return beginning.n_bytes * compressed_bytes / max(len(text_bytes), 1)


def _parquet_rows(folder: RawFolder, file: FileStat) -> int:
    """Return the number of rows of a Parquet file."""
    import pyarrow.parquet as pq

    return int(pq.read_metadata(str(folder / file.path)).num_rows)
