"""Estimate how much text a corpus has, from the beginning of its first or largest files."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from nanoset_core.errors import NanosetError
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.compressions import codec_of
from nanoset_core.text.files.contents import Contents
from nanoset_core.text.files.endings import format_of, is_compressed
from nanoset_core.text.files.raw_files import open_raw
from nanoset_core.text.inventory.pieces import SourceRange, unchecked_piece
from nanoset_core.text.inventory.stored_piece import StoredPiece
from nanoset_core.text.lines import decompress
from nanoset_core.text.rejects import FaultError
from nanoset_core.text.tables.arrow_batches import stored_bytes_of_rows

_SAMPLE_BYTES = 1 << 20
"""Bytes of lines or rows after which a sample is large enough."""
_BATCH_BYTES = 64 << 10
"""Bytes of lines or rows that are read at once."""
_MAX_TEXT_CHARACTERS = 64 << 10
"""Length to which the text of a sample is cut."""
_EXPANDED_FILES = 4
"""How many compressed files are sampled to find out how well the files of a corpus compress."""
_EXPANDED_BYTES = 512 << 10
"""How many stored bytes of each of them are decompressed, at most.

A decoder of zstd returns text in blocks of 128 KiB. What it still holds at the end is little
compared with this. The blocks of bzip2 are larger, so a MiB is decompressed, which takes a second.
"""


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


def measure(folder: Location, contents: Contents, text_key: str) -> Measure:
    """Read about the first MiB of a corpus's text, and estimate the size of the whole.

    For example, the sample has 1,000 documents, and covers 1 % of the stored bytes. Then the whole
    corpus has about 100 times as much, 100,000 documents.

    Args:
        folder: The folder of the corpus.
        contents: The files in it. Those that cannot be read are skipped: building the corpus
            reports them.
        text_key: Key of the text in a line or row.

    Returns:
        The sample, and the estimated size of the corpus as a multiple of it (100 above). Without
        any stored bytes, the sample is empty and the multiple is 1.
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


def expansion(folder: Location, files: Sequence[FileStat]) -> float:
    """Estimate how many bytes of text a stored byte of a corpus has on average.

        files                                               result
        a.jsonl of 10 MB                                    1
        b.jsonl.gz of 10 MB, which decompresses to 35 MB    3.5
        both of them                                        2.25

    The beginnings of the largest compressed files are decompressed. The formats record sizes, too,
    but gzip records that of the last of several concatenated members, modulo 4 GiB, and zstd none
    if the text was compressed from a pipe.

    Args:
        folder: The folder of the corpus.
        files: Its files. Those that cannot be read are skipped: building the corpus reports them.

    Returns:
        The average; 1 if no file is compressed, or none can be read. Tables, which have compression
        and columns of their own, count as uncompressed.
    """
    stored_bytes = sum(file.size for file in files)
    compressed_files = [file for file in files if is_compressed(file.path)]
    compressed_bytes = sum(file.size for file in compressed_files)
    if not compressed_bytes:
        return 1.0

    text_bytes = _text_bytes_of_compressed(folder, compressed_files)
    if text_bytes is None:
        return 1.0
    plain_bytes = stored_bytes - compressed_bytes
    return (plain_bytes + text_bytes) / stored_bytes


def _text_bytes_of_compressed(
    folder: Location, compressed_files: Sequence[FileStat]
) -> float | None:
    """Estimate how many bytes of text some compressed files have together.

    The beginnings of the largest files, which have most of the text, are decompressed. If 1 MB of
    them becomes 4 MB of text, all files of 100 MB have about 400 MB of text.

    Args:
        folder: The folder of the corpus.
        compressed_files: The files.

    Returns:
        The number; None if none of the largest files can be decompressed.
    """
    by_size = sorted(compressed_files, key=lambda file: (-file.size, file.path))
    n_sampled_bytes = 0
    n_text_bytes = 0
    for file in by_size[:_EXPANDED_FILES]:
        n_text_bytes_of_file = _decompressed_bytes(folder, file)
        if n_text_bytes_of_file:
            n_sampled_bytes += _sampled_bytes(file)
            n_text_bytes += n_text_bytes_of_file
    if not n_sampled_bytes:
        return None
    compressed_bytes = sum(file.size for file in compressed_files)
    return compressed_bytes * n_text_bytes / n_sampled_bytes


def _decompressed_bytes(folder: Location, file: FileStat) -> int:
    """Return how many bytes of text the beginning of a compressed file has.

    Args:
        folder: The folder of the corpus.
        file: The file, of which only the beginning is read.

    Returns:
        The number; 0 if the file cannot be read or decompressed.
    """
    codec = codec_of(file.path)
    if codec is None:
        return 0
    size = _sampled_bytes(file)
    beginning = unchecked_piece(file.path, size)
    n_bytes = 0
    # The beginning usually ends within a compressed text, which counts as a fault.
    with suppress(FaultError, NanosetError, MemoryError):
        for chunk in decompress(StoredPiece(folder, beginning), codec):
            n_bytes += len(chunk)
    return n_bytes


def _sampled_bytes(file: FileStat) -> int:
    """Return how many stored bytes of a compressed file are decompressed to estimate its text."""
    codec = codec_of(file.path)
    block_bytes = 0 if codec is None else codec.block_bytes
    return min(file.size, max(_EXPANDED_BYTES, block_bytes))


@dataclass(slots=True)
class _Sampler:
    """Reads files until about a MiB was read, and counts what was read."""

    folder: Location
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
        """Add a file to the sample, or only its beginning if that makes the sample large enough.

        Building the corpus reports a damaged file. Here, only the documents before the damage are
        read.

        Args:
            file: The file.
        """
        n_rows = 0
        n_row_bytes = 0
        with suppress(NanosetError):
            for batch in self._batches(file):
                self._add(batch)
                n_rows += batch.read_lines
                n_row_bytes += batch.read_bytes
                if self.is_complete:
                    break
        self.covered_bytes += self._covered_bytes_of(file, n_rows, n_row_bytes)

    def _covered_bytes_of(self, file: FileStat, n_rows: int, n_row_bytes: int) -> float:
        """Return how many bytes of a stored file the sample covers, after the file was read.

        The size of the corpus is extrapolated from these bytes.

            file read to its end                       covers all its bytes
            file damaged in the middle                 covers all its bytes: a build gets no more
                                                       documents of it either
            file of which only the beginning is read   covers an estimated number of bytes, since
                                                       the file may be compressed

        Args:
            file: The file.
            n_rows: How many lines or rows of it were read.
            n_row_bytes: Bytes of these lines after decompression, or of these rows.
        """
        may_have_unread_rows = self.is_complete
        if not may_have_unread_rows:
            return file.size
        # If the sample became complete just at the end, the estimate is about the size of the file.
        estimate = _estimated_stored_bytes(self.folder, file, n_rows, n_row_bytes, self.text)
        return min(file.size, estimate)

    def _batches(self, file: FileStat) -> Iterator[DocumentBatch]:
        """Yield the documents of a file in small batches."""
        whole_file = unchecked_piece(file.path, file.size)
        return read_documents(
            self.folder,
            SourceRange((whole_file,)),
            text_key=self.text_key,
            batch_bytes=_BATCH_BYTES,
            verify=False,
        )

    def _add(self, batch: DocumentBatch) -> None:
        """Count the documents of a batch, and keep the text of the first ones.

        Args:
            batch: The next documents of a file.
        """
        self.documents += len(batch.texts)
        self.read_bytes += batch.read_bytes
        for text in batch.texts:
            self.text_bytes += len(text.encode(errors="replace"))
        if len(self.text) < _MAX_TEXT_CHARACTERS:
            self.text = "\n".join([self.text, *batch.texts])


def _estimated_stored_bytes(
    folder: Location, file: FileStat, n_rows: int, n_bytes: int, text: str
) -> float:
    """Estimate how many bytes of a file on the disk store its first lines or rows.

    Only some columns of a table are read, so their bytes say little about the file. Instead, half
    of its rows are taken for half of the file.

    Args:
        folder: The folder of the corpus.
        file: The file.
        n_rows: How many lines or rows.
        n_bytes: Bytes of these lines after decompression, or of the columns of these rows that were
            read.
        text: Some text of the corpus, to see how well it can be compressed.

    Returns:
        The estimate, which may exceed the size of the file.
    """
    file_format = format_of(file.path)
    if file_format == "parquet":
        return file.size * n_rows / max(_parquet_rows(folder, file), 1)
    if file_format == "arrow":
        with open_raw(folder / file.path) as opened:
            return stored_bytes_of_rows(opened, n_rows)
    if is_compressed(file.path):
        return _compressed_size(n_bytes, text)
    return n_bytes


def _compressed_size(n_bytes: int, example: str) -> float:
    """Estimate the size of some text once it is compressed, by compressing an example of it.

    If an example of 60,000 bytes becomes 20,000 bytes, then 3 MB become 1 MB.

    Args:
        n_bytes: Bytes of the text.
        example: Some text of the same kind.
    """
    example_bytes = example.encode(errors="replace")
    n_compressed = len(zlib.compress(example_bytes))
    return n_bytes * n_compressed / max(len(example_bytes), 1)


def _parquet_rows(folder: Location, file: FileStat) -> int:
    """Return the number of rows of a Parquet file, which its footer says: no row is read.

    Args:
        folder: The folder of the files.
        file: The Parquet file.
    """
    import pyarrow.parquet as pq

    return int(pq.read_metadata(str(folder / file.path)).num_rows)
