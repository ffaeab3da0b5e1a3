"""The bytes of an indexed dataset: `<prefix>.bin` and `<prefix>.idx`.

`<prefix>.bin`: the tokens of all sequences, back to back, little endian, no header.

`<prefix>.idx`, little endian, n sequences, D documents, m = D + 1:

```
offset          size   content
0               9      magic b"MMIDIDX\\x00\\x00"
9               8      uint64  version, 1
17              1      uint8   dtype code of the tokens in the .bin, see DTYPE_CODES
18              8      uint64  n
26              8      uint64  m
34              4n     int32[n]  sequence_lengths, in tokens
34 + 4n         8n     int64[n]  sequence_pointers, byte offsets into the .bin
34 + 12n        8m     int64[m]  document_indices; document d is sequences (document_indices[d : d + 2], end excl)
34 + 12n + 8m   n      int8[n]   modes, multimodal datasets only; only the file's size tells that they are there
```

The int64 arrays are not aligned. Source of the layout: Megatron-LM, `megatron/core/datasets/indexed_dataset.py`,
`_IndexWriter` and `_IndexReader`.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.storage.location import Location
from nanoset_core.storage.regular_files import map_regular

MAGIC = b"MMIDIDX\x00\x00"
VERSION = 1
DTYPE_CODES: dict[int, np.dtype] = {
    1: np.dtype("<u1"),
    2: np.dtype("<i1"),
    3: np.dtype("<i2"),
    4: np.dtype("<i4"),
    5: np.dtype("<i8"),
    6: np.dtype("<f8"),
    7: np.dtype("<f4"),
    8: np.dtype("<u2"),
}
HEADER = struct.Struct("<9sQBQQ")
CHUNK_SEQUENCES = 1 << 18
_MAX_POINTER = 1 << 62  # keeps pointer + length from wrapping around
Tokens = NDArray[np.integer]
"""Tokens in a type of DTYPE_CODES; floats, which no tokenizer gives but the format knows, are read all the same."""


@dataclass(frozen=True, slots=True)
class Index:
    """The arrays of an `.idx` file, as read-only views of its memory map."""

    dtype: np.dtype
    """Type of one token in the .bin."""
    sequence_lengths: NDArray[np.int32]
    """Tokens per sequence, shape (n,)."""
    sequence_pointers: NDArray[np.int64]
    """Byte offset of each sequence in the .bin, shape (n,)."""
    document_indices: NDArray[np.int64]
    """Sequence number at which each document begins, shape (documents + 1,); the last entry is n."""
    modes: NDArray[np.int8] | None
    """Mode of each sequence, shape (n,); None where the file has none."""

    @property
    def end_bytes(self) -> int:
        """How many bytes the .bin must have at least, by its last sequence."""
        return self.furthest(len(self.sequence_lengths) - 1)

    def furthest(self, first: int = 0) -> int:
        """Return how many bytes the .bin must have, by all sequences from one on: those of a view lie in any order."""
        lengths, pointers, end = self.sequence_lengths, self.sequence_pointers, 0
        for begin in range(max(first, 0), len(lengths), CHUNK_SEQUENCES):
            some = slice(begin, begin + CHUNK_SEQUENCES)
            end = max(end, int((pointers[some] + lengths[some].astype(np.int64) * self.dtype.itemsize).max()))
        return end


def bin_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the token file of a dataset."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the index file of a dataset."""
    return Path(f"{os.fspath(prefix)}.idx")


def pair_files(prefix: Location) -> tuple[Location, Location]:
    """Return the token file and the index file of a dataset on this machine or in a bucket."""
    if isinstance(prefix, Path):  # also ".", which has no name
        return bin_path(prefix), idx_path(prefix)
    return prefix.with_name(f"{prefix.name}.bin"), prefix.with_name(f"{prefix.name}.idx")


def optimal_dtype(vocab_size: int | None) -> np.dtype:
    """Return the token type: uint16 for a vocabulary below 65500, else int32 (Megatron-LM `DType.optimal_dtype`)."""
    return DTYPE_CODES[8 if vocab_size is not None and vocab_size < 65500 else 4]


def dtype_code(dtype: DTypeLike) -> int:
    """Return the code of a token type in an .idx; ConfigError where it has none."""
    wanted = np.dtype(dtype).newbyteorder("<")
    for code, known in DTYPE_CODES.items():
        if known == wanted:
            return code
    names = ", ".join(known.name for known in DTYPE_CODES.values())
    raise ConfigError("an .idx has no code for this token type", found=np.dtype(dtype).name, expected=f"one of {names}")


def positions_in(begins: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all positions in ranges, one range after the other, int64, shape (sum of lengths,)."""
    return np.arange(lengths.sum()) + np.repeat(begins - np.cumsum(lengths) + lengths, lengths)


def pointer_chunks(lengths: NDArray[np.int32], itemsize: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield (first sequence, byte pointers int64, shape (chunk,)) of sequences that lie back to back."""
    base = 0
    for begin in range(0, len(lengths), CHUNK_SEQUENCES):
        ends = np.cumsum(lengths[begin : begin + CHUNK_SEQUENCES], dtype=np.int64)
        ends *= itemsize
        ends += base
        pointers = np.empty_like(ends)
        pointers[0] = base
        pointers[1:] = ends[:-1]
        yield begin, pointers
        base = int(ends[-1])


def write_idx(
    file: IO[bytes],
    dtype: DTypeLike,
    sequence_lengths: NDArray[np.int32],
    document_indices: NDArray[np.int64],
    modes: NDArray[np.int8] | None = None,
) -> None:
    """Write the bytes of an .idx for sequences that lie back to back in the .bin, as Megatron-LM's `_IndexWriter` does.

    Args:
        file: open for writing.
        dtype: type of the tokens in the .bin.
        sequence_lengths: in tokens, shape (n,).
        document_indices: sequence at which each document begins, from 0 to n, shape (documents + 1,).
        modes: of every sequence, shape (n,), in a multimodal dataset.

    Raises:
        ConfigError: the token type has no code.
    """
    code = dtype_code(dtype)
    lengths = np.ascontiguousarray(sequence_lengths, dtype="<i4")
    documents = np.ascontiguousarray(document_indices, dtype="<i8")
    file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(documents)))
    file.write(lengths.data.cast("B") if len(lengths) else b"")
    for _, pointers in pointer_chunks(lengths, DTYPE_CODES[code].itemsize):
        file.write(pointers.astype("<i8", copy=False).data.cast("B"))
    file.write(documents.data.cast("B"))
    if modes is not None:
        file.write(np.ascontiguousarray(modes, dtype=np.int8).tobytes())


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
    documents_at = HEADER.size + 12 * n
    modes_at = documents_at + 8 * m
    if len(buffer) not in (modes_at, modes_at + n):
        cut = len(buffer) < modes_at
        what = "the file ends too early" if cut else "bytes after the end of the index"
        expected = f"{modes_at} bytes for {n} sequences and {m} document indices ({modes_at + n} with modes)"
        raise _damage(path, len(buffer) if cut else modes_at, what, f"{len(buffer)} bytes", expected)
    index = Index(
        dtype=DTYPE_CODES[code],
        sequence_lengths=np.frombuffer(buffer, "<i4", n, HEADER.size),
        sequence_pointers=np.frombuffer(buffer, "<i8", n, HEADER.size + 4 * n),
        document_indices=np.frombuffer(buffer, "<i8", m, documents_at),
        modes=np.frombuffer(buffer, np.int8, n, modes_at) if n and len(buffer) == modes_at + n else None,
    )
    if not m:
        raise _damage(path, 26, "no document indices", 0, "documents + 1")
    first, last = int(index.document_indices[0]), int(index.document_indices[-1])
    if first != 0:
        raise _damage(path, documents_at, "the first document does not begin at sequence 0", first, 0)
    if last != n:
        raise _damage(path, modes_at - 8, "the documents do not end at the last sequence", last, n)
    if validate:
        _check_sequences(path, index)
        documents = index.document_indices
        for begin in range(0, len(documents) - 1, CHUNK_SEQUENCES):
            part = documents[begin : begin + CHUNK_SEQUENCES + 1]
            if (backwards := part[1:] < part[:-1]).any():
                bad = begin + 1 + int(np.argmax(backwards))
                what, least = f"document {bad} begins before the one in front of it", int(documents[bad - 1])
                raise _damage(path, documents_at + 8 * bad, what, int(documents[bad]), f"{least} or more")
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
    where, remedy = f"{path}, byte {at}", "write the dataset again"
    return FormatError(what, where=where, found=found, expected=expected, remedy=remedy)


def is_back_to_back(sequence_lengths: NDArray[np.int32], sequence_pointers: NDArray[np.int64], itemsize: int) -> bool:
    """Return whether each sequence begins where the one in front of it ends, the first at the beginning."""
    chunks = pointer_chunks(sequence_lengths, itemsize)
    return all(np.array_equal(sequence_pointers[begin : begin + len(some)], some) for begin, some in chunks)


def scattered(path: Path) -> FormatError:
    """Return the error for an .idx of a view, or a damaged one, where sequences must lie back to back in the .bin."""
    return FormatError(
        "the sequences do not lie back to back in the .bin",
        where=path,
        found="the .idx of a view, or a damaged one",
        expected="pointers that each begin where the sequence before ends",
        remedy="name the dataset that the view is of; verify a view by `nanoset verify` of its project",
    )


def _check_sequences(path: Path, index: Index) -> None:
    """Refuse negative lengths, and pointers off token boundaries."""
    lengths, pointers, itemsize = index.sequence_lengths, index.sequence_pointers, index.dtype.itemsize
    for begin in range(0, len(lengths), CHUNK_SEQUENCES):
        part = lengths[begin : begin + CHUNK_SEQUENCES]
        if part.min() < 0:
            bad = begin + int(np.argmax(part < 0))
            what = f"sequence {bad} has a negative length"
            raise _damage(path, HEADER.size + 4 * bad, what, int(lengths[bad]), "0 or more tokens")
        starts = pointers[begin : begin + CHUNK_SEQUENCES].astype(np.int64)
        wrong = (starts < 0) | (starts > _MAX_POINTER)
        if itemsize > 1:
            wrong |= (starts & (itemsize - 1)) != 0
        if wrong.any():
            at = int(np.argmax(wrong))
            place = HEADER.size + 4 * len(lengths) + 8 * (begin + at)
            found = f"byte {int(starts[at])} of the .bin"
            expected = f"a multiple of {itemsize}, 0 or more"
            raise _damage(path, place, f"sequence {begin + at} has an impossible pointer", found, expected)
