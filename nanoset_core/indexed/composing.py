"""Merging indexed datasets where they are stored: their tokens do not pass through this process.

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
from nanoset_core.indexed.layout import HEADER, MAGIC, VERSION, dtype_code, pointer_chunks
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
    sha256: str
    """Hex, of the .bin."""

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
        """How many there are, by the size of the .idx."""
        return (self.idx.size - self.marks_at) // 8 - 1


class _Span(NamedTuple):
    """Bytes [begin, end) of the .idx of a dataset: of its lengths, the first behind the header, or of its marks."""

    pair: StoredPair
    begin: int
    end: int


def write_merged_idx(path: Path, store: Store, pairs: Sequence[StoredPair], dtype: np.dtype) -> None:
    """Write the .idx of datasets behind one another, byte for byte as `merge_indexed_datasets` does.

    Memory: 64 MiB and some, whatever their number and size.

    Args:
        path: of the file.
        store: holds the datasets.
        pairs: the datasets, in order.
        dtype: type of their tokens.

    Raises:
        FormatError: one is not what it is said to be.
        SourceChangedError, MissingError: one was replaced, or is gone.
    """
    sequences, documents = sum(pair.sequences for pair in pairs), sum(pair.documents for pair in pairs)
    pointers_at, marks_at = HEADER.size + 4 * sequences, HEADER.size + 12 * sequences
    with path.open("x+b") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), sequences, documents + 1))
        file.truncate(marks_at + 8 * (documents + 1))
        merging = _Merging(store, dtype)
        lengths_at, marks_at = HEADER.size, marks_at + 8  # the first mark of all is the zero that stands there
        for span in _ahead(store, pairs):
            if span[0].begin < span[0].pair.marks_at:
                lengths_at += _write_at(file, lengths_at, merging.lengths(*span))
            else:
                marks_at += _write_at(file, marks_at, merging.marks(*span))
        file.flush()
        with mmap.mmap(file.fileno(), pointers_at, access=mmap.ACCESS_READ) as written:
            _write_pointers(file, written, sequences, dtype)


def _spans(pairs: Sequence[StoredPair]) -> Iterator[_Span]:
    for pair in pairs:
        begin = 0
        while begin < pair.lengths_end:
            end = min(max(begin, HEADER.size) + SPAN_BYTES, pair.lengths_end)
            yield _Span(pair, begin, end)
            begin = end
        for begin in range(pair.marks_at, pair.idx.size, SPAN_BYTES):
            yield _Span(pair, begin, min(begin + SPAN_BYTES, pair.idx.size))


def _ahead(store: Store, pairs: Sequence[StoredPair]) -> Iterator[tuple[_Span, bytes]]:
    """Spans in order, with their bytes; some are fetched at once."""
    spans = _spans(pairs)
    while window := list(islice(spans, SPANS_AT_ONCE)):
        fetched = in_parallel(
            lambda span: store.read_range(span.pair.idx.name, span.begin, span.end, span.pair.idx.mark),
            window,
            CONNECTIONS,
        )
        yield from zip(window, fetched, strict=True)


class _Merging:
    """Checks the spans of datasets, given in order, and turns them into those of the whole."""

    def __init__(self, store: Store, dtype: np.dtype) -> None:
        self._store, self._dtype = store, dtype
        self._tokens = self._mark = 0
        """Of the dataset at hand: tokens so far, and its last mark."""
        self._first = 0
        """Its first sequence."""

    def lengths(self, span: _Span, data: bytes) -> NDArray[np.int32]:
        pair = span.pair
        if span.begin == 0:
            self._check_header(pair, data[: HEADER.size])
            data, self._tokens, self._mark = data[HEADER.size :], 0, -1
        lengths = np.frombuffer(data, "<i4")
        if len(lengths) and lengths.min() < 0:
            raise self._fault(pair, f"a length of {lengths.min()}", "0 or more tokens")
        self._tokens += int(lengths.sum(dtype=np.int64))
        if span.end == pair.lengths_end and self._tokens * self._dtype.itemsize != pair.bin.size:
            raise self._fault(pair, f"{self._tokens:,} tokens", f"a .bin of {pair.bin.size:,} bytes")
        return lengths

    def marks(self, span: _Span, data: bytes) -> NDArray[np.int64]:
        pair, marks = span.pair, np.frombuffer(data, "<i8")
        if self._mark < 0 and marks[0] != 0:
            raise self._fault(pair, f"document 0 at sequence {marks[0]}", "at sequence 0")
        before, self._mark = self._mark, int(marks[-1])
        if marks[0] < before or (np.diff(marks) < 0).any():
            raise self._fault(pair, "a document that begins before the one in front of it", "documents in order")
        moved = marks[1 if before < 0 else 0 :] + self._first
        if span.end == pair.idx.size:
            if self._mark != pair.sequences:
                raise self._fault(pair, f"documents that end at sequence {self._mark}", f"{pair.sequences}")
            self._first += pair.sequences
        return moved

    def _check_header(self, pair: StoredPair, found: bytes) -> None:
        wanted = (MAGIC, VERSION, dtype_code(self._dtype), pair.sequences, pair.documents + 1)
        if found != HEADER.pack(*wanted) or (pair.idx.size - pair.marks_at) % 8:
            raise self._fault(
                pair,
                f"header {HEADER.unpack(found)}, {pair.idx.size:,} bytes",
                f"header {wanted}, as the manifest says",
            )

    def _fault(self, pair: StoredPair, found: str, expected: str) -> FormatError:
        return FormatError(
            "the index of a shard is not that of its tokens",
            where=self._store.url(pair.idx.name),
            found=found,
            expected=expected,
            remedy=f"delete {self._store.url(pair.idx.name.rpartition('/')[0])}, and build again: it is made anew",
        )


def _write_at(file: BinaryIO, at: int, block: NDArray[np.signedinteger]) -> int:
    """Write an array's bytes, and tell how many they are."""
    file.seek(at)
    return file.write(block.data.cast("B")) if len(block) else 0


def _write_pointers(file: BinaryIO, written: mmap.mmap, sequences: int, dtype: np.dtype) -> None:
    """Where the sequences begin whose header and lengths are written.

    A function of its own: the map cannot be closed while an array looks into it.
    """
    file.seek(len(written))
    for _, pointers in pointer_chunks(np.frombuffer(written, "<i4", sequences, HEADER.size), dtype.itemsize):
        file.write(pointers.astype("<i8", copy=False).data.cast("B"))
