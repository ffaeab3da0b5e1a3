"""Open and check an `.idx` file."""

from __future__ import annotations

import mmap
import os
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, MissingError
from nanoset_core.indexed.layout import CHUNK_SEQUENCES, DTYPE_CODES, HEADER, MAGIC, VERSION, Index
from nanoset_core.storage.regular_files import map_regular

_MAX_POINTER = 1 << 62  # keeps pointer + length from wrapping around


def read_idx(path: str | os.PathLike[str], *, validate: bool = True) -> Index:
    """Open an .idx file as memory-mapped arrays.

    Args:
        path: of the file.
        validate: check every length, pointer and document boundary, in one pass over the file; without it the header,
            the file's size and the two ends of document_indices.

    Raises:
        MissingError: there is no such file.
        FormatError: it is damaged; names the byte offset.
    """
    path = Path(path)
    buffer = map_file(path)
    code, n, m = _read_header(path, buffer)
    lengths_at, pointers_at, documents_at = HEADER.size, HEADER.size + 4 * n, HEADER.size + 12 * n
    modes_at = documents_at + 8 * m
    if len(buffer) not in (modes_at, modes_at + n):
        cut = len(buffer) < modes_at
        what = "the file ends too early" if cut else "bytes after the end of the index"
        expected = f"{modes_at} bytes for {n} sequences and {m} document indices ({modes_at + n} with modes)"
        raise _damage(path, len(buffer) if cut else modes_at, what, f"{len(buffer)} bytes", expected)
    index = Index(
        dtype=DTYPE_CODES[code],
        sequence_lengths=np.frombuffer(buffer, "<i4", n, lengths_at),
        sequence_pointers=np.frombuffer(buffer, "<i8", n, pointers_at),
        document_indices=np.frombuffer(buffer, "<i8", m, documents_at),
        modes=np.frombuffer(buffer, np.int8, n, modes_at) if n and len(buffer) == modes_at + n else None,
    )
    if not m:
        raise _damage(path, 26, "no document indices", 0, "documents + 1")
    first, last = int(index.document_indices[0]), int(index.document_indices[-1])
    if first != 0:
        raise _damage(path, documents_at, "the first document does not begin at sequence 0", first, 0)
    if last != n:
        what = "the documents do not end at the last sequence"
        raise _damage(path, modes_at - 8, what, last, f"{n}, the number of sequences")
    if validate:
        _check_sequences(path, index)
        _check_documents(path, index.document_indices, documents_at)
    return index


def map_file(path: Path) -> mmap.mmap | bytes:
    """Map a file as `map_regular`, with a MissingError if there is none."""
    try:
        return map_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise no_such_file(path) from error


def no_such_file(path: Path) -> MissingError:
    """Return the error for a missing file of a dataset."""
    return MissingError(
        "no such file",
        where=path,
        expected="an indexed dataset: <prefix>.bin and <prefix>.idx",
        remedy="check the data path: it is a prefix, without .bin or .idx",
    )


def _read_header(path: Path, buffer: mmap.mmap | bytes) -> tuple[int, int, int]:
    """Return (dtype code, n, m) of an .idx."""
    head = bytes(buffer[: HEADER.size])
    if head[: len(MAGIC)] != MAGIC:
        raise FormatError(
            "not an index of an indexed dataset",
            where=f"{path}, byte 0",
            found=repr(head[: len(MAGIC)]),
            expected=repr(MAGIC),
            remedy="give the prefix of a .bin/.idx pair written by Megatron-LM, NeMo, nanotron or nanoset",
        )
    if len(head) < HEADER.size:
        raise _damage(path, len(head), "the header is cut off", f"{len(head)} bytes", f"at least {HEADER.size} bytes")
    _, version, code, n, m = HEADER.unpack(head)
    if version != VERSION:
        raise _damage(path, 9, "unknown version", version, VERSION)
    if code not in DTYPE_CODES:
        known = ", ".join(f"{code} {dtype.name}" for code, dtype in DTYPE_CODES.items())
        raise _damage(path, 17, "unknown dtype code", code, known)
    return code, n, m


def _damage(path: Path, at: int, what: str, found: object, expected: object) -> FormatError:
    return FormatError(
        what, where=f"{path}, byte {at}", found=found, expected=expected, remedy="write the dataset again"
    )


def _check_sequences(path: Path, index: Index) -> None:
    """Refuse negative lengths, and pointers off token boundaries or before the end of the sequence in front."""
    lengths, pointers, itemsize = index.sequence_lengths, index.sequence_pointers, index.dtype.itemsize
    floor = 0
    for begin in range(0, len(lengths), CHUNK_SEQUENCES):
        part = lengths[begin : begin + CHUNK_SEQUENCES]
        if part.min() < 0:
            bad = begin + int(np.argmax(part < 0))
            what = f"sequence {bad} has a negative length"
            raise _damage(path, HEADER.size + 4 * bad, what, int(lengths[bad]), "0 or more tokens")
        starts = pointers[begin : begin + CHUNK_SEQUENCES].astype(np.int64)
        ends = starts + part.astype(np.int64) * itemsize
        least = np.concatenate(([floor], ends[:-1]))
        wrong = (starts < least) | (starts > _MAX_POINTER)
        if itemsize > 1:
            wrong |= (starts & (itemsize - 1)) != 0
        if wrong.any():
            at = int(np.argmax(wrong))
            place = HEADER.size + 4 * len(lengths) + 8 * (begin + at)
            found = f"byte {int(starts[at])} of the .bin"
            expected = f"a multiple of {itemsize}, at or after {int(least[at])}, the end of the sequence before it"
            raise _damage(path, place, f"sequence {begin + at} has an impossible pointer", found, expected)
        floor = int(ends[-1])


def _check_documents(path: Path, documents: NDArray[np.int64], documents_at: int) -> None:
    for begin in range(0, len(documents) - 1, CHUNK_SEQUENCES):
        part = documents[begin : begin + CHUNK_SEQUENCES + 1]
        backwards = part[1:] < part[:-1]
        if backwards.any():
            bad = begin + 1 + int(np.argmax(backwards))
            what = f"document {bad} begins before the one in front of it"
            raise _damage(path, documents_at + 8 * bad, what, int(documents[bad]), f"{int(documents[bad - 1])} or more")
