"""Merge indexed datasets within a store: their tokens do not pass through this process.

The .bin is joined within the store (`Store.compose`). The .idx is made here from the headers, lengths and document
marks of the others, 34 + 4n + 8m bytes of each; where a sequence begins follows from the lengths before it.
"""

from __future__ import annotations

import mmap
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.indexed.layout import DTYPE_CODES, HEADER, MAGIC, VERSION, dtype_code, pointer_chunks
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, Stored, in_parallel

SPAN_BYTES = 1 << 20
"""Most that is read of an .idx at once."""
SPANS_AT_ONCE = 64
"""In memory."""


class StoredPair(NamedTuple):
    """An indexed dataset in a store, without modes."""

    bin: Stored
    idx: Stored
    sequences: int
    sha256: str = ""
    """Hex, of the .bin, where it is known."""

    @property
    def lengths_end(self) -> int:
        """Byte of the .idx at which its lengths end."""
        return HEADER.size + 4 * self.sequences

    @property
    def marks_at(self) -> int:
        """Byte of the .idx at which its document marks begin."""
        return HEADER.size + 12 * self.sequences

    @property
    def documents(self) -> int:
        """Number of documents, by the size of the .idx."""
        return (self.idx.size - self.marks_at) // 8 - 1


def read_pairs(store: Store, files: Sequence[tuple[Stored, Stored]]) -> tuple[list[StoredPair], np.dtype] | None:
    """Read the headers of datasets.

    Args:
        store: holds the datasets.
        files: .bin and .idx of each, in order.

    Returns:
        (the datasets, type of the tokens of the first); None where one has modes.

    Raises:
        FormatError: a file is not an .idx.
        SourceChangedError, MissingError: a file was replaced, or is gone.
    """

    def read(idx: Stored) -> bytes:
        return store.read_range(idx.name, 0, min(HEADER.size, idx.size), idx.mark)

    pairs, dtype = [], None
    for (binary, idx), head in zip(files, in_parallel(read, [idx for _, idx in files], CONNECTIONS), strict=True):
        if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC or head[17] not in DTYPE_CODES:
            raise _fault(store, idx, f"bytes {head!r}", "the header of an .idx")
        _, _, code, sequences, marks = HEADER.unpack(head)
        dtype = dtype or DTYPE_CODES[code]
        pairs.append(StoredPair(binary, idx, sequences))
        if sequences and idx.size == pairs[-1].marks_at + 8 * marks + sequences:
            return None
    return (pairs, dtype) if dtype is not None else None


def write_merged_idx(path: Path, store: Store, pairs: Sequence[StoredPair], dtype: np.dtype) -> None:
    """Write the .idx of all datasets behind one another, byte for byte as `merge_indexed_datasets` does.

    Memory: 64 MiB and some, whatever their number and size.

    Args:
        path: of the file.
        store: holds the datasets.
        pairs: the datasets, in order.
        dtype: type of their tokens.

    Raises:
        FormatError: an .idx does not fit its size, its tokens, or the others.
        SourceChangedError, MissingError: an .idx was replaced, or is gone.
    """
    sequences, documents = sum(pair.sequences for pair in pairs), sum(pair.documents for pair in pairs)
    lengths_at, pointers_at = HEADER.size, HEADER.size + 4 * sequences
    marks_at = HEADER.size + 12 * sequences
    with path.open("x+b") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), sequences, documents + 1))
        file.truncate(marks_at + 8 * (documents + 1))
        marks_at += 8  # the first mark of all is the zero that stands there
        blocks, first = _read_ahead(store, pairs), 0
        for pair in pairs:
            for lengths in _lengths(store, pair, dtype, blocks):
                lengths_at += _write_at(file, lengths_at, lengths)
            for marks in _marks(store, pair, blocks):
                marks_at += _write_at(file, marks_at, marks + first)
            first += pair.sequences
        file.flush()
        with mmap.mmap(file.fileno(), pointers_at, access=mmap.ACCESS_READ) as written:
            _write_pointers(file, written, sequences, dtype)


def _length_spans(pair: StoredPair) -> Iterator[tuple[int, int]]:
    """Yield the bytes [begin, end) of header and lengths."""
    begin = 0
    while begin < pair.lengths_end:
        end = min(max(begin, HEADER.size) + SPAN_BYTES, pair.lengths_end)
        yield begin, end
        begin = end


def _mark_spans(pair: StoredPair) -> Iterator[tuple[int, int]]:
    """Yield the bytes [begin, end) of the marks."""
    for begin in range(pair.marks_at, pair.idx.size, SPAN_BYTES):
        yield begin, min(begin + SPAN_BYTES, pair.idx.size)


def _read_ahead(store: Store, pairs: Sequence[StoredPair]) -> Iterator[bytes]:
    """Yield the bytes of all spans in order; some are fetched at once."""
    spans = ((pair.idx, *span) for pair in pairs for of in (_length_spans, _mark_spans) for span in of(pair))
    while window := list(islice(spans, SPANS_AT_ONCE)):
        yield from in_parallel(
            lambda span: store.read_range(span[0].name, span[1], span[2], span[0].mark), window, CONNECTIONS
        )


def _lengths(store: Store, pair: StoredPair, dtype: np.dtype, blocks: Iterator[bytes]) -> Iterator[NDArray[np.int32]]:
    """Check the header and yield the lengths of a dataset."""
    tokens = 0
    for begin, _ in _length_spans(pair):
        data = next(blocks)
        if begin == 0:
            wanted = (MAGIC, VERSION, dtype_code(dtype), pair.sequences, pair.documents + 1)
            head, data = data[: HEADER.size], data[HEADER.size :]
            if head != HEADER.pack(*wanted) or (pair.idx.size - pair.marks_at) % 8:
                found = f"header {HEADER.unpack(head)}, {pair.idx.size:,} bytes"
                raise _fault(store, pair.idx, found, f"header {wanted}")
        lengths = np.frombuffer(data, "<i4")
        if len(lengths) and lengths.min() < 0:
            raise _fault(store, pair.idx, f"a length of {lengths.min()}", "0 or more tokens")
        tokens += int(lengths.sum(dtype=np.int64))
        yield lengths
    if tokens * dtype.itemsize != pair.bin.size:
        raise _fault(store, pair.bin, f"a .bin of {pair.bin.size:,} bytes", f"{tokens:,} tokens")


def _marks(store: Store, pair: StoredPair, blocks: Iterator[bytes]) -> Iterator[NDArray[np.int64]]:
    """Yield the document marks of a dataset but for the first, which is 0."""
    last = 0
    for begin, _ in _mark_spans(pair):
        marks = np.frombuffer(next(blocks), "<i8")
        is_first = begin == pair.marks_at
        if is_first and marks[0] != 0:
            raise _fault(store, pair.idx, f"document 0 at sequence {marks[0]}", "at sequence 0")
        if marks[0] < last or (np.diff(marks) < 0).any():
            raise _fault(store, pair.idx, "a document that begins before the one in front of it", "documents in order")
        last = int(marks[-1])
        yield marks[int(is_first) :]
    if last != pair.sequences:
        raise _fault(store, pair.idx, f"documents that end at sequence {last}", f"{pair.sequences}")


def _fault(store: Store, file: Stored, found: str, expected: str) -> FormatError:
    folder = store.url(file.name.rpartition("/")[0])
    return FormatError(
        "the .idx and the .bin of a dataset do not belong together",
        where=store.url(file.name),
        found=found,
        expected=expected,
        remedy=f"write the dataset again; where a build made it, delete {folder}, and build again",
    )


def _write_at(file: BinaryIO, at: int, block: NDArray[np.signedinteger]) -> int:
    """Write an array's bytes at a place; return how many they are."""
    file.seek(at)
    return file.write(block.data.cast("B")) if len(block) else 0


def _write_pointers(file: BinaryIO, written: mmap.mmap, sequences: int, dtype: np.dtype) -> None:
    """Write where the sequences begin, by the header and lengths that are written.

    A function of its own: the map cannot be closed while an array refers to it.
    """
    file.seek(len(written))
    for _, pointers in pointer_chunks(np.frombuffer(written, "<i4", sequences, HEADER.size), dtype.itemsize):
        file.write(pointers.astype("<i8", copy=False).data.cast("B"))
