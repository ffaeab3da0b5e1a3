"""Merge indexed datasets within a store, so that their tokens are not downloaded.

The store itself concatenates the .bin files (`Store.compose`). The merged .idx is written here,
from the headers, lengths and document indices of the datasets. That reads 34 + 4n + 8m bytes of
each .idx (`layout.py`): pointers are not read, since they follow from the lengths.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.layout import (
    DTYPE_CODES,
    HEADER,
    MAGIC,
    VERSION,
    dtype_code,
    pointer_chunks,
)
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, Stored, in_parallel

SPAN_BYTES = 1 << 20
"""Largest number of bytes of an .idx that one request reads."""
SPANS_AT_ONCE = 64
"""Number of such ranges that are in memory at the same time."""


@dataclass(frozen=True, slots=True)
class StoredPair:
    """An indexed dataset in a store, without modes."""

    bin: Stored
    """Its token file."""
    idx: Stored
    """Its index file."""
    sequences: int
    """Number of sequences, by the header of the .idx."""
    sha256: str = ""
    """Hex digest of the .bin, or "" if it is not known."""

    @property
    def documents_offset(self) -> int:
        """Byte of the .idx at which its document indices start."""
        return HEADER.size + 12 * self.sequences

    @property
    def documents(self) -> int:
        """Number of documents, which follows from the size of the .idx."""
        return (self.idx.size - self.documents_offset) // 8 - 1


class _IndexRange(NamedTuple):
    """A range of the bytes of one .idx."""

    pair: int
    """Position of the dataset in the list of all datasets."""
    start: int
    stop: int


def read_pairs(
    store: Store, files: Sequence[tuple[Stored, Stored]]
) -> tuple[list[StoredPair], np.dtype] | None:
    """Read the headers of datasets in a store, at the same time.

    Args:
        store: The store that contains the datasets.
        files: The .bin and the .idx of each dataset.

    Returns:
        The datasets, and the token type of the first one; None if there are no datasets, or one has
        modes, which cannot be merged within a store.

    Raises:
        FormatError: A file is not an .idx.
        SourceChangedError, MissingError: A file was replaced or deleted.
    """

    def read_header(idx: Stored) -> bytes:
        return store.read_range(idx.name, 0, min(HEADER.size, idx.size), idx.mark)

    idx_files = [idx for _, idx in files]
    headers = in_parallel(read_header, idx_files, CONNECTIONS)
    pairs = []
    dtypes = []
    for (bin_file, idx_file), header in zip(files, headers, strict=True):
        if (
            len(header) < HEADER.size
            or header[: len(MAGIC)] != MAGIC
            or header[17] not in DTYPE_CODES
        ):
            raise _mismatch(store, idx_file, f"bytes {header!r}", "the header of an .idx")
        _, _, code, n_sequences, n_document_indices = HEADER.unpack(header)
        pair = StoredPair(bin_file, idx_file, n_sequences)
        size_with_modes = pair.documents_offset + 8 * n_document_indices + n_sequences
        if n_sequences and idx_file.size == size_with_modes:
            return None
        pairs.append(pair)
        dtypes.append(DTYPE_CODES[code])
    if not pairs:
        return None
    return pairs, dtypes[0]


def write_merged_idx(
    path: Path, store: Store, pairs: Sequence[StoredPair], dtype: np.dtype
) -> None:
    """Write the .idx of datasets that are concatenated.

    The bytes are those that `merge_indexed_datasets` writes. It takes slightly more than 64 MiB of
    memory, whatever the number and size of the datasets.

    Args:
        path: Path of the .idx to write, which must not exist.
        store: The store that contains the datasets.
        pairs: The datasets, in order.
        dtype: Type of their tokens.

    Raises:
        FormatError: An .idx does not fit its size, its tokens, or the other datasets.
        SourceChangedError, MissingError: An .idx was replaced or deleted.
    """
    for pair in pairs:
        if pair.documents < 0 or (pair.idx.size - pair.documents_offset) % 8:
            found = f"{pair.idx.size:,} bytes"
            expected = f"those of a header with {pair.sequences:,} sequences"
            raise _mismatch(store, pair.idx, found, expected)

    n_sequences = sum(pair.sequences for pair in pairs)
    n_documents = sum(pair.documents for pair in pairs)
    with path.open("x+b") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), n_sequences, n_documents + 1))
        for lengths in _sequence_lengths(store, pairs, dtype):
            file.write(lengths.data)

        # The pointers follow from the lengths, which are read again from the file that they were
        # just written to.
        file.flush()
        written_lengths = np.empty(0, np.int32)
        if n_sequences:
            written_lengths = np.memmap(file, "<i4", "r", HEADER.size, (n_sequences,))
        for _, pointers in pointer_chunks(written_lengths, dtype.itemsize):
            file.write(pointers.astype("<i8", copy=False).data)

        file.write(bytes(8))  # the first document begins at sequence 0
        for document_indices in _document_indices(store, pairs):
            file.write(document_indices.data)


def _sequence_lengths(
    store: Store, pairs: Sequence[StoredPair], dtype: np.dtype
) -> Iterator[NDArray[np.int32]]:
    """Check the headers, and yield the lengths of all sequences, some at a time.

    Yields:
        Tokens of each sequence, int32, shape (n_chunk,).

    Raises:
        FormatError: An .idx does not fit its size, its .bin, or the other datasets.
    """

    def cuts(pair: StoredPair) -> list[int]:
        stop = HEADER.size + 4 * pair.sequences
        return [0, *range(HEADER.size + SPAN_BYTES, stop, SPAN_BYTES), stop]

    for pair, blocks in _blocks(store, pairs, cuts):
        expected_header = (MAGIC, VERSION, dtype_code(dtype), pair.sequences, pair.documents + 1)
        n_tokens = 0
        for number, block in enumerate(blocks):
            offset = 0
            if number == 0:
                offset = HEADER.size
                header = HEADER.unpack_from(block)
                if header != expected_header:
                    found = f"header {header}, {pair.idx.size:,} bytes"
                    raise _mismatch(store, pair.idx, found, f"header {expected_header}")
            lengths = np.frombuffer(block, "<i4", offset=offset)
            if len(lengths) and lengths.min() < 0:
                raise _mismatch(store, pair.idx, f"a length of {lengths.min()}", "0 or more tokens")
            n_tokens += int(lengths.sum(dtype=np.int64))
            yield lengths
        if n_tokens * dtype.itemsize != pair.bin.size:
            raise _mismatch(
                store, pair.bin, f"a .bin of {pair.bin.size:,} bytes", f"{n_tokens:,} tokens"
            )


def _document_indices(store: Store, pairs: Sequence[StoredPair]) -> Iterator[NDArray[np.int64]]:
    """Yield the document indices of the merged dataset, some at a time.

    The first entry, which is always 0, is left out.

    Yields:
        int64, shape (n_chunk,).

    Raises:
        FormatError: The documents of a dataset are not in order, or do not end at its last
            sequence.
    """

    def cuts(pair: StoredPair) -> list[int]:
        return [*range(pair.documents_offset, pair.idx.size, SPAN_BYTES), pair.idx.size]

    first_sequence = 0
    for pair, blocks in _blocks(store, pairs, cuts):
        last_index = 0
        for number, block in enumerate(blocks):
            indices = np.frombuffer(block, "<i8")
            if number == 0 and indices[0] != 0:
                raise _mismatch(
                    store, pair.idx, f"document 0 at sequence {indices[0]}", "at sequence 0"
                )
            if indices[0] < last_index or (np.diff(indices) < 0).any():
                found = "a document that begins before the previous one"
                raise _mismatch(store, pair.idx, found, "documents in order")
            last_index = int(indices[-1])
            if number == 0:
                # The first entry was yielded already, as the end of the previous dataset.
                indices = indices[1:]
            yield indices + first_sequence
        if last_index != pair.sequences:
            found = f"documents that end at sequence {last_index}"
            raise _mismatch(store, pair.idx, found, f"{pair.sequences}")
        first_sequence += pair.sequences


def _blocks(
    store: Store, pairs: Sequence[StoredPair], cuts: Callable[[StoredPair], Sequence[int]]
) -> Iterator[tuple[StoredPair, Iterator[bytes]]]:
    """Yield each dataset together with blocks of its .idx.

    Blocks are fetched at the same time, also those of different datasets.

    Args:
        store: The store that contains the datasets.
        pairs: The datasets.
        cuts: Returns where the .idx of a dataset is divided: ascending byte offsets, between which
            its blocks are.

    Yields:
        The dataset, and its blocks in order. The blocks must be consumed before the next dataset.
    """

    def read(span: _IndexRange) -> tuple[int, bytes]:
        idx = pairs[span.pair].idx
        return span.pair, store.read_range(idx.name, span.start, span.stop, idx.mark)

    def all_spans() -> Iterator[_IndexRange]:
        for number, pair in enumerate(pairs):
            for start, stop in pairwise(cuts(pair)):
                yield _IndexRange(number, start, stop)

    def fetched() -> Iterator[tuple[int, bytes]]:
        spans = all_spans()
        window = list(islice(spans, SPANS_AT_ONCE))
        while window:
            yield from in_parallel(read, window, CONNECTIONS)
            window = list(islice(spans, SPANS_AT_ONCE))

    for number, blocks in groupby(fetched(), itemgetter(0)):
        yield pairs[number], (block for _, block in blocks)


def _mismatch(store: Store, file: Stored, found: str, expected: str) -> FormatError:
    """Return the error for a file that contradicts the other file of its dataset.

    Its datasets may also contradict each other, if their token types differ.
    """
    folder = store.url(file.name.rpartition("/")[0])
    return FormatError(
        "the .idx and the .bin of a dataset do not belong together",
        where=store.url(file.name),
        found=found,
        expected=expected,
        remedy=f"write the dataset again; if a build made it, delete {folder}, and build again",
    )
