"""Merge indexed datasets within a store: their tokens do not pass through this process.

The .bin is joined within the store (`Store.compose`). The .idx is made here from the headers, lengths and document
marks of the others, 34 + 4n + 8m bytes of each; where a sequence begins follows from the lengths before it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, islice, pairwise
from operator import itemgetter
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.formats.indexed.layout import DTYPE_CODES, HEADER, MAGIC, VERSION, dtype_code, pointer_chunks
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
    def marks_at(self) -> int:
        """Byte of the .idx at which its document marks begin."""
        return HEADER.size + 12 * self.sequences

    @property
    def documents(self) -> int:
        """Number of documents, by the size of the .idx."""
        return (self.idx.size - self.marks_at) // 8 - 1


def read_pairs(store: Store, files: Sequence[tuple[Stored, Stored]]) -> tuple[list[StoredPair], np.dtype] | None:
    """Read the headers of .bin and .idx pairs; → (datasets, type of the tokens), or None where one has modes.

    Raises:
        FormatError: a file is not an .idx.
        SourceChangedError, MissingError: a file was replaced, or is gone.
    """

    def read(idx: Stored) -> bytes:
        return store.read_range(idx.name, 0, min(HEADER.size, idx.size), idx.mark)

    pairs, codes = [], []
    for (binary, idx), head in zip(files, in_parallel(read, [idx for _, idx in files], CONNECTIONS), strict=True):
        if len(head) < HEADER.size or head[: len(MAGIC)] != MAGIC or head[17] not in DTYPE_CODES:
            raise _fault(store, idx, f"bytes {head!r}", "the header of an .idx")
        _, _, code, sequences, marks = HEADER.unpack(head)
        pairs.append(StoredPair(binary, idx, sequences))
        codes.append(code)
        if sequences and idx.size == pairs[-1].marks_at + 8 * marks + sequences:
            return None
    return (pairs, DTYPE_CODES[codes[0]]) if pairs else None


def write_merged_idx(path: Path, store: Store, pairs: Sequence[StoredPair], dtype: np.dtype) -> None:
    """Write the .idx of datasets behind one another, in order, byte for byte as `merge_indexed_datasets` does.

    Memory: 64 MiB and some, whatever their number and size.

    Raises:
        FormatError: an .idx does not fit its size, its tokens, or the others.
        SourceChangedError, MissingError: an .idx was replaced, or is gone.
    """
    for pair in pairs:
        if pair.documents < 0 or (pair.idx.size - pair.marks_at) % 8:
            raise _fault(
                store, pair.idx, f"{pair.idx.size:,} bytes", f"those of a header with {pair.sequences:,} sequences"
            )
    sequences, documents = sum(pair.sequences for pair in pairs), sum(pair.documents for pair in pairs)
    with path.open("x+b") as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), sequences, documents + 1))
        for lengths in _lengths(store, pairs, dtype):
            file.write(lengths.data)
        file.flush()
        written = np.memmap(file, "<i4", "r", HEADER.size, (sequences,)) if sequences else np.empty(0, np.int32)
        for _, pointers in pointer_chunks(written, dtype.itemsize):
            file.write(pointers.astype("<i8", copy=False).data)
        file.write(bytes(8))  # the first document begins at sequence 0
        for marks in _marks(store, pairs):
            file.write(marks.data)


def _lengths(store: Store, pairs: Sequence[StoredPair], dtype: np.dtype) -> Iterator[NDArray[np.int32]]:
    """Check the headers and yield the lengths of all datasets."""

    def spans(pair: StoredPair) -> list[int]:
        end = HEADER.size + 4 * pair.sequences
        return [0, *range(HEADER.size + SPAN_BYTES, end, SPAN_BYTES), end]

    for pair, blocks in _blocks(store, pairs, spans):
        wanted, tokens = (MAGIC, VERSION, dtype_code(dtype), pair.sequences, pair.documents + 1), 0
        for number, block in enumerate(blocks):
            if number == 0 and (found := HEADER.unpack_from(block)) != wanted:
                raise _fault(store, pair.idx, f"header {found}, {pair.idx.size:,} bytes", f"header {wanted}")
            lengths = np.frombuffer(block, "<i4", offset=0 if number else HEADER.size)
            if len(lengths) and lengths.min() < 0:
                raise _fault(store, pair.idx, f"a length of {lengths.min()}", "0 or more tokens")
            tokens += int(lengths.sum(dtype=np.int64))
            yield lengths
        if tokens * dtype.itemsize != pair.bin.size:
            raise _fault(store, pair.bin, f"a .bin of {pair.bin.size:,} bytes", f"{tokens:,} tokens")


def _marks(store: Store, pairs: Sequence[StoredPair]) -> Iterator[NDArray[np.int64]]:
    """Yield the document marks of all datasets behind one another, but for the first of each, which is 0."""
    first = 0
    for pair, blocks in _blocks(
        store, pairs, lambda pair: [*range(pair.marks_at, pair.idx.size, SPAN_BYTES), pair.idx.size]
    ):
        last = 0
        for number, block in enumerate(blocks):
            marks = np.frombuffer(block, "<i8")
            if number == 0 and marks[0] != 0:
                raise _fault(store, pair.idx, f"document 0 at sequence {marks[0]}", "at sequence 0")
            if marks[0] < last or (np.diff(marks) < 0).any():
                what = "a document that begins before the one in front of it"
                raise _fault(store, pair.idx, what, "documents in order")
            last = int(marks[-1])
            yield marks[number == 0 :] + first
        if last != pair.sequences:
            raise _fault(store, pair.idx, f"documents that end at sequence {last}", f"{pair.sequences}")
        first += pair.sequences


def _blocks(
    store: Store, pairs: Sequence[StoredPair], cuts: Callable[[StoredPair], Sequence[int]]
) -> Iterator[tuple[StoredPair, Iterator[bytes]]]:
    """Yield each dataset with the bytes of its .idx between the cuts; some are fetched at once."""

    def read(span: tuple[int, tuple[int, int]]) -> tuple[int, bytes]:
        idx = pairs[span[0]].idx
        return span[0], store.read_range(idx.name, *span[1], idx.mark)

    def fetched() -> Iterator[tuple[int, bytes]]:
        spans = ((number, span) for number, pair in enumerate(pairs) for span in pairwise(cuts(pair)))
        while window := list(islice(spans, SPANS_AT_ONCE)):
            yield from in_parallel(read, window, CONNECTIONS)

    for number, blocks in groupby(fetched(), itemgetter(0)):
        yield pairs[number], (block for _, block in blocks)


def _fault(store: Store, file: Stored, found: str, expected: str) -> FormatError:
    folder = store.url(file.name.rpartition("/")[0])
    return FormatError(
        "the .idx and the .bin of a dataset do not belong together",
        where=store.url(file.name),
        found=found,
        expected=expected,
        remedy=f"write the dataset again; where a build made it, delete {folder}, and build again",
    )
