"""Merge indexed datasets within a store: their tokens do not pass through this process.

The .bin is joined within the store (`Store.compose`). The .idx is made here from the headers, lengths and document
marks of the others, 34 + 4n + 8m bytes of each; where a sequence begins follows from the lengths before it.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from nanoset_core.errors import FormatError
from nanoset_core.indexed.layout import DTYPE_CODES, HEADER, MAGIC, VERSION, dtype_code, pointer_chunks, read_idx
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import Store, Stored, in_parallel

SPAN_BYTES = 1 << 20
"""Most that is read of an .idx at once."""


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
    """Write the .idx of all datasets behind one another, byte for byte as `merge_indexed_datasets` does.

    Memory: some MiB, whatever their number and size.

    Args:
        path: of the file.
        store: holds the datasets.
        pairs: the datasets, in order.
        dtype: type of their tokens.

    Raises:
        FormatError: an .idx does not fit its size, its tokens, or the others.
        SourceChangedError, MissingError: an .idx was replaced, or is gone.
    """
    firsts = np.cumsum([0, *(pair.sequences for pair in pairs)]).tolist()
    documents = np.cumsum([0, *(pair.documents for pair in pairs)]).tolist()

    def copy(span: tuple[int, int, int]) -> None:
        number, begin, end = span
        pair, at = pairs[number], 4 * firsts[number] + max(begin, HEADER.size)
        data = store.read_range(pair.idx.name, begin, end, pair.idx.mark)
        if begin >= pair.marks_at:
            marks = np.frombuffer(data, "<i8")
            if (begin == pair.marks_at and marks[0]) or (end == pair.idx.size and marks[-1] != pair.sequences):
                found = f"documents from sequence {marks[0]} to {marks[-1]}"
                raise _fault(store, pair.idx, found, f"from 0 to {pair.sequences}")
            data = (marks + firsts[number]).astype("<i8", copy=False).tobytes()
            at = HEADER.size + 12 * firsts[-1] + 8 * documents[number] + begin - pair.marks_at
        elif begin == 0:
            wanted = MAGIC, VERSION, dtype_code(dtype), pair.sequences, pair.documents + 1
            if (found_header := HEADER.unpack_from(data)) != wanted:
                raise _fault(store, pair.idx, f"header {found_header}, {pair.idx.size:,} bytes", f"header {wanted}")
            data = data[HEADER.size :]
        os.pwrite(file.fileno(), data, at)

    with path.open("x+b", buffering=0) as file:
        file.write(HEADER.pack(MAGIC, VERSION, dtype_code(dtype), firsts[-1], documents[-1] + 1))
        file.truncate(HEADER.size + 12 * firsts[-1] + 8 * (documents[-1] + 1))
        in_parallel(copy, _spans(store, pairs), CONNECTIONS)
        lengths = np.memmap(file, "<i4", "r", HEADER.size, (firsts[-1],)) if firsts[-1] else np.empty(0, np.int32)
        file.seek(HEADER.size + 4 * firsts[-1])
        for _, pointers in pointer_chunks(lengths, dtype.itemsize):
            file.write(pointers.astype("<i8", copy=False).data)
    index = read_idx(path)
    for pair, (begin, end) in zip(pairs, pairwise(firsts), strict=True):
        tokens = int(index.sequence_lengths[begin:end].sum(dtype=np.int64))
        if tokens * dtype.itemsize != pair.bin.size:
            raise _fault(store, pair.bin, f"a .bin of {pair.bin.size:,} bytes", f"{tokens:,} tokens")


def _spans(store: Store, pairs: Sequence[StoredPair]) -> Iterator[tuple[int, int, int]]:
    """Yield (number of a dataset, begin, end) of the parts of its .idx that are read: header and lengths, and marks."""
    for number, pair in enumerate(pairs):
        if pair.documents < 0 or (pair.idx.size - pair.marks_at) % 8:
            raise _fault(store, pair.idx, f"{pair.idx.size:,} bytes", f"those of {pair.sequences:,} sequences")
        for begin, end in ((0, HEADER.size + 4 * pair.sequences), (pair.marks_at, pair.idx.size)):
            cuts = (begin, *range((begin or HEADER.size) + SPAN_BYTES, end, SPAN_BYTES), end)
            yield from ((number, *span) for span in pairwise(cuts))


def _fault(store: Store, file: Stored, found: str, expected: str) -> FormatError:
    folder = store.url(file.name.rpartition("/")[0])
    return FormatError(
        "the .idx and the .bin of a dataset do not belong together",
        where=store.url(file.name),
        found=found,
        expected=expected,
        remedy=f"write the dataset again; where a build made it, delete {folder}, and build again",
    )
