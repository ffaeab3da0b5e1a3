"""The bytes of an indexed dataset: `<prefix>.bin` and `<prefix>.idx`.

`<prefix>.bin` contains the tokens of all sequences, back to back and little endian, without a
header.

`<prefix>.idx` is little endian, too. With n sequences, D documents and m = D + 1:

```
offset          size   content
0               9      magic b"MMIDIDX\\x00\\x00"
9               8      uint64  version, 1
17              1      uint8   dtype code of the tokens in the .bin, see DTYPE_CODES
18              8      uint64  n
26              8      uint64  m
34              4n     int32[n]  sequence_lengths, in tokens
34 + 4n         8n     int64[n]  sequence_pointers, byte offsets into the .bin
34 + 12n        8m     int64[m]  document_indices, first sequence of each document, and last n
34 + 12n + 8m   n      int8[n]   modes, in multimodal datasets only
```

Document d is the sequences from document_indices[d] up to, but not including, document_indices[d +
1]. The header does not say whether there are modes: it follows from the size of the file.

For example, two documents with the tokens 5, 6, 7 and 8, 9 as uint16 are 10 bytes in the .bin, and
the .idx has the sequence_lengths 3, 2, the sequence_pointers 0, 6 and the document_indices 0, 1, 2.

The int64 arrays are not aligned. Source of the layout: Megatron-LM,
`megatron/core/datasets/indexed_dataset.py`, `_IndexWriter` and `_IndexReader`.
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
from nanoset_core.storage.places import with_ending
from nanoset_core.storage.regular_files import map_regular

MAGIC = b"MMIDIDX\x00\x00"
"""The first bytes of every .idx."""
VERSION = 1
"""The only version of the format."""
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
"""Code in the .idx → type of the tokens in the .bin."""
HEADER = struct.Struct("<9sQBQQ")
"""Magic, version, dtype code, n and m."""
CHUNK_SEQUENCES = 1 << 18
"""Sequences that are processed together. The arrays of an .idx are not aligned, so numpy copies
what it works on: a chunk limits the memory for that.
"""
_MAX_POINTER = 1 << 62
"""Larger pointers are refused, since the sum of pointer and length could overflow."""
Tokens = NDArray[np.integer]
"""Tokens in a type of DTYPE_CODES. The format also has floats, which no tokenizer returns; they can
be read, too.
"""


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
    """First sequence of each document, shape (n_documents + 1,); the last entry is n."""
    modes: NDArray[np.int8] | None
    """Mode of each sequence, shape (n,); None if the file has none."""

    @property
    def end_bytes(self) -> int:
        """Byte of the .bin at which the last sequence ends."""
        return self.required_bytes(len(self.sequence_lengths) - 1)

    def required_bytes(self, first_sequence: int = 0) -> int:
        """Return how large the file of tokens must be to contain the sequences of a dataset.

        Sequences need not be stored in order, and so the last one need not end last:

            sequence     starts at byte    bytes    ends at byte
            0            600               100      700
            1            0                 200      200             so 700 bytes are required

        Args:
            first_sequence: Only sequences from this one on are looked at.

        Returns:
            The greatest end of a sequence, in bytes; 0 if there are none.
        """
        required = 0
        for start in range(max(first_sequence, 0), len(self.sequence_lengths), CHUNK_SEQUENCES):
            chunk = slice(start, start + CHUNK_SEQUENCES)
            sizes = self.sequence_lengths[chunk].astype(np.int64) * self.dtype.itemsize
            ends = self.sequence_pointers[chunk] + sizes
            required = max(required, int(ends.max()))
        return required


def bin_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the token file of a dataset.

    Args:
        prefix: Path without an ending: `data/web` gives `data/web.bin`.
    """
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the index file of a dataset.

    Args:
        prefix: Path without an ending: `data/web` gives `data/web.idx`.
    """
    return Path(f"{os.fspath(prefix)}.idx")


def pair_files(prefix: Location) -> tuple[Location, Location]:
    """Return the token file and the index file of a dataset, on this machine or in a bucket.

    Args:
        prefix: Location without an ending.

    Returns:
        (`<prefix>.bin`, `<prefix>.idx`). The files need not exist.
    """
    return with_ending(prefix, ".bin"), with_ending(prefix, ".idx")


def is_pair(prefix: Location) -> bool:
    """Return whether both files of a dataset exist: `<prefix>.bin` and `<prefix>.idx`.

    Args:
        prefix: Location without an ending, on this machine or in a bucket, where it takes a request
            for each file.
    """
    return all(file.is_file() for file in pair_files(prefix))


def optimal_dtype(vocab_size: int | None) -> np.dtype:
    """Return the type in which Megatron-LM stores the tokens of a vocabulary.

        size of the vocabulary    type
        below 65,500              uint16
        65,500 or more            int32
        not known                 int32

    Source: Megatron-LM `DType.optimal_dtype`.

    Args:
        vocab_size: Number of tokens in the vocabulary; None if it is not known.

    Returns:
        A little-endian type, which is also what trainers infer from the size.
    """
    if vocab_size is not None and vocab_size < 65500:
        return DTYPE_CODES[8]
    return DTYPE_CODES[4]


def dtype_code(dtype: DTypeLike) -> int:
    """Return the number that stands for a type of tokens in an index: 8 for uint16, 4 for int32.

    Args:
        dtype: The type, of any byte order.

    Raises:
        ConfigError: The format has no number for the type, such as for float16, or numpy has no
            such type.
    """
    names = ", ".join(known_dtype.name for known_dtype in DTYPE_CODES.values())
    if dtype is None:  # numpy would take it for float64
        raise ConfigError("no type of tokens is given", found="None", expected=f"one of {names}")
    try:
        little_endian = np.dtype(dtype).newbyteorder("<")
    except TypeError as error:
        raise ConfigError(
            "this is no type of numpy", found=repr(dtype), expected=f"one of {names}"
        ) from error
    for code, known_dtype in DTYPE_CODES.items():
        if known_dtype == little_endian:
            return code
    raise ConfigError(
        "an .idx has no code for this token type",
        found=np.dtype(dtype).name,
        expected=f"one of {names}",
    )


def positions_in(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the positions in some ranges, one range after another.

    For example, the starts 10, 50 and the lengths 3, 2 give 10, 11, 12, 50, 51.

    Args:
        starts: First position of each range, shape (n_ranges,).
        lengths: Number of positions in each range, shape (n_ranges,).

    Returns:
        int64, shape (sum of lengths,).
    """
    # Count all positions, and shift those of each range to its start.
    positions_before = lengths.cumsum() - lengths  # (n_ranges,) positions in all earlier ranges
    shifts = (starts - positions_before).repeat(lengths)  # (sum of lengths,)
    positions: NDArray[np.int64] = np.arange(lengths.sum()) + shifts
    return positions


def pointer_chunks(
    lengths: NDArray[np.int32], itemsize: int
) -> Iterator[tuple[int, NDArray[np.int64]]]:
    """Yield the byte pointers of sequences that are stored back to back, some at a time.

    For example, sequences of 3, 2 and 4 tokens of 2 bytes start at the bytes 0, 6 and 10.

    Args:
        lengths: Tokens of each sequence, shape (n,).
        itemsize: Bytes of a token.

    Yields:
        The number of the first sequence, and the pointers, int64, shape (n_chunk,).
    """
    chunk_pointer = 0
    for start in range(0, len(lengths), CHUNK_SEQUENCES):
        # In place, since this runs over all sequences of a dataset whenever it is checked.
        ends = np.cumsum(lengths[start : start + CHUNK_SEQUENCES], dtype=np.int64)
        ends *= itemsize
        ends += chunk_pointer
        pointers = np.empty_like(ends)
        pointers[0] = chunk_pointer
        pointers[1:] = ends[:-1]
        yield start, pointers
        chunk_pointer = int(ends[-1])


def write_idx(
    file: IO[bytes],
    dtype: DTypeLike,
    sequence_lengths: NDArray[np.int32],
    document_indices: NDArray[np.int64],
    modes: NDArray[np.int8] | None = None,
) -> None:
    """Write the index of a dataset, whose sequences are stored one after another in its .bin.

    For example, with tokens of 2 bytes, sequences of 3, 2 and 4 tokens, and two documents:

        header
        lengths                3, 2, 4
        positions in bytes     0, 6, 10
        document indices       0, 2, 3      the documents begin at sequence 0 and 2; there are 3

    The bytes are those of Megatron-LM's `_IndexWriter`.

    Args:
        file: Open for writing.
        dtype: Type of the tokens in the .bin.
        sequence_lengths: Tokens of each sequence, shape (n,).
        document_indices: First sequence of each document, and last n, shape (n_documents + 1,).
        modes: Mode of each sequence, shape (n,), in a multimodal dataset; otherwise None.

    Raises:
        ConfigError: The token type has no code.
    """
    code = dtype_code(dtype)
    lengths = np.ascontiguousarray(sequence_lengths, dtype="<i4")
    documents = np.ascontiguousarray(document_indices, dtype="<i8")
    file.write(HEADER.pack(MAGIC, VERSION, code, len(lengths), len(documents)))
    if len(lengths):  # an empty memoryview cannot be cast
        file.write(lengths.data.cast("B"))
    for _, pointers in pointer_chunks(lengths, DTYPE_CODES[code].itemsize):
        file.write(pointers.astype("<i8", copy=False).data.cast("B"))
    file.write(documents.data.cast("B"))
    if modes is not None:
        file.write(np.ascontiguousarray(modes, dtype=np.int8).tobytes())


def read_idx(path: str | os.PathLike[str], *, validate: bool = True) -> Index:
    """Open the index of a dataset, an .idx file, without reading it into memory.

    Its arrays say where each sequence is in the file of tokens, and which sequences each document
    has. They are views of a memory map, so that only what is used is read from disk.

    Args:
        path: Path of the file.
        validate: Check every number, which reads the whole file. Otherwise only the header, the
            size of the file and both ends of document_indices are checked.

    Raises:
        MissingError: The file is missing.
        FormatError: The file is damaged; the error names the byte offset.
    """
    path = Path(path)
    index = _map_index(path, map_file(path))
    _check_document_ends(path, index)
    if validate:
        _check_sequences(path, index)
        _check_document_order(path, index)
    return index


def _map_index(path: Path, buffer: mmap.mmap | bytes) -> Index:
    """Return the arrays of a dataset's index, after checking that it has the right size.

    For n sequences and m - 1 documents, the file consists of

        header                     34 bytes, with n and m
        lengths of sequences       n numbers of 4 bytes
        positions of sequences     n numbers of 8 bytes
        where documents begin      m numbers of 8 bytes (the last one is the end of all documents)
        modes of sequences         n numbers of 1 byte, only in multimodal datasets

    Args:
        path: Path of the file, for messages.
        buffer: Its bytes.

    Raises:
        FormatError: The header is damaged, or the file has another size than follows from it.
    """
    code, n, m = _read_header(path, buffer)
    lengths_offset = HEADER.size
    pointers_offset = lengths_offset + 4 * n
    documents_offset = pointers_offset + 8 * n
    modes_offset = documents_offset + 8 * m
    _check_idx_size(path, len(buffer), n, m, modes_offset)

    has_modes = len(buffer) > modes_offset
    return Index(
        dtype=DTYPE_CODES[code],
        sequence_lengths=np.frombuffer(buffer, "<i4", n, lengths_offset),
        sequence_pointers=np.frombuffer(buffer, "<i8", n, pointers_offset),
        document_indices=np.frombuffer(buffer, "<i8", m, documents_offset),
        modes=np.frombuffer(buffer, np.int8, n, modes_offset) if has_modes else None,
    )


def _check_idx_size(path: Path, size: int, n: int, m: int, modes_offset: int) -> None:
    """Check that the index of a dataset is as long as its header says.

    After the header are two numbers for each of n sequences, and m numbers for documents. In
    datasets with texts and images, one more byte follows for each sequence, its mode. So the file
    ends at `modes_offset`, or n bytes later.

    Args:
        path: Path of the file, for messages.
        size: Size of the file.
        n: Number of sequences.
        m: Number of document indices.
        modes_offset: Byte after the document indices.

    Raises:
        FormatError: The file is too short or too long.
    """
    if size < modes_offset:
        raise _wrong_size(path, "the file ends too early", size, byte=size, n=n, m=m)
    if size not in (modes_offset, modes_offset + n):
        message = "bytes after the end of the index"
        raise _wrong_size(path, message, size, byte=modes_offset, n=n, m=m)


def map_file(path: Path) -> mmap.mmap | bytes:
    """Map a file into memory, so that only what is looked at is read.

    Args:
        path: Path of the file.

    Returns:
        A read-only map; b"" for an empty file, which cannot be mapped.

    Raises:
        MissingError: The file is missing.
        FormatError: It is a pipe or a device.
    """
    try:
        return map_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise no_such_file(path) from error


def no_such_file(path: Path) -> MissingError:
    """Return the error for a missing file of a dataset.

    Args:
        path: The missing file, or a folder in its place.
    """
    return MissingError(
        "this is a folder" if path.is_dir() else "no such file",
        where=path,
        expected="an indexed dataset: <prefix>.bin and <prefix>.idx",
        remedy="check the data path: it is a prefix, without .bin or .idx",
    )


def _read_header(path: Path, buffer: mmap.mmap | bytes) -> tuple[int, int, int]:
    """Read the header of a dataset's index, and check that it is one.

    It has five fields: a magic text, by which the format is recognised, a version, the type of the
    tokens, and two counts.

    Args:
        path: Path of the index, for messages.
        buffer: The bytes of the index.

    Returns:
        (code of the type, number of sequences n, number of document indices m), such as (8, 1000,
        801).

    Raises:
        FormatError: The header is not that of an index, or is cut off.
    """
    head = bytes(buffer[: HEADER.size])
    if head[: len(MAGIC)] != MAGIC:
        raise FormatError(
            "not an index of an indexed dataset",
            where=f"{path}, byte 0",
            found=repr(head[: len(MAGIC)]),
            expected=repr(MAGIC),
            remedy="give the prefix of a .bin/.idx pair "
            "written by Megatron-LM, NeMo, nanotron or nanoset",
        )
    if len(head) < HEADER.size:
        raise _damage(
            path,
            "the header is cut off",
            byte=len(head),
            found=f"{len(head)} bytes",
            expected=f"at least {HEADER.size} bytes",
        )
    _, version, code, n, m = HEADER.unpack(head)
    if version != VERSION:
        raise _damage(path, "unknown version", byte=9, found=version, expected=VERSION)
    if code not in DTYPE_CODES:
        known = ", ".join(f"{code} {dtype.name}" for code, dtype in DTYPE_CODES.items())
        raise _damage(path, "unknown dtype code", byte=17, found=code, expected=known)
    return code, n, m


def _damage(path: Path, what: str, *, byte: int, found: object, expected: object) -> FormatError:
    """Return the error for an .idx with a wrong value.

    Args:
        path: Path of the .idx.
        what: What is wrong, in a few words.
        byte: Byte offset of the value.
        found: The value.
        expected: What it should be.
    """
    return FormatError(
        what,
        where=f"{path}, byte {byte}",
        found=found,
        expected=expected,
        remedy="write the dataset again",
    )


def _wrong_size(path: Path, what: str, size: int, *, byte: int, n: int, m: int) -> FormatError:
    """Return the error for an .idx that is shorter or longer than its header says.

    Args:
        path: Path of the .idx.
        what: What is wrong, in a few words.
        size: Size of the file, in bytes.
        byte: Where the file ends too early, or should end.
        n: Number of sequences, by the header.
        m: Number of document indices, by the header.
    """
    # A sequence has a length of 4 bytes and a pointer of 8. In a multimodal dataset, it also has a
    # mode of one byte.
    expected_size = HEADER.size + (4 + 8) * n + 8 * m
    return _damage(
        path,
        what,
        byte=byte,
        found=f"{size} bytes",
        expected=f"{expected_size} bytes for {n} sequences and {m} document indices "
        f"({expected_size + n} with modes)",
    )


def is_back_to_back(
    sequence_lengths: NDArray[np.int32], sequence_pointers: NDArray[np.int64], itemsize: int
) -> bool:
    """Return whether the sequences of a dataset fill its file of tokens in order, without gaps.

    For example, with tokens of 2 bytes, sequences of 3, 2 and 4 tokens have to start at the bytes
    0, 6 and 10.

    Args:
        sequence_lengths: Tokens of each sequence, shape (n,).
        sequence_pointers: Byte offset of each sequence in the .bin, shape (n,).
        itemsize: Bytes of a token.
    """
    for start, pointers in pointer_chunks(sequence_lengths, itemsize):
        if not np.array_equal(sequence_pointers[start : start + len(pointers)], pointers):
            return False
    return True


def not_back_to_back(path: Path) -> FormatError:
    """Return the error for an .idx whose sequences are not back to back although they must be.

    It is damaged, or that of a view, which selects sequences from the .bin of a corpus.

    Args:
        path: The .idx.
    """
    return FormatError(
        "the sequences are not stored back to back in the .bin",
        where=path,
        found="the .idx of a view, or a damaged one",
        expected="pointers that each begin where the sequence before ends",
        remedy="name the dataset that the view was made from; "
        "to verify a view, run `nanoset verify` in its project",
    )


def _check_document_ends(path: Path, index: Index) -> None:
    """Check that the documents of a dataset have all of its sequences, from the first to the last.

    An index stores the first sequence of each document, and last the number of sequences. For
    example, 5 sequences may belong to two documents:

        sequences     0 1 2 | 3 4
        stored        0, 3, 5        0 and 5 are checked here

    Raises:
        FormatError: Nothing is stored, the first number is not 0, or the last one is not the number
            of sequences.
    """
    n_sequences = len(index.sequence_lengths)
    n_indices = len(index.document_indices)
    # A sequence has a length of 4 bytes and a pointer of 8 in front of the document indices.
    documents_offset = HEADER.size + 12 * n_sequences
    if not n_indices:
        count_offset = 26  # byte of the header at which their number is stored
        raise _damage(
            path, "no document indices", byte=count_offset, found=0, expected="documents + 1"
        )
    first_sequence = int(index.document_indices[0])
    if first_sequence != 0:
        raise _damage(
            path,
            "the first document does not begin at sequence 0",
            byte=documents_offset,
            found=first_sequence,
            expected=0,
        )
    stop_sequence = int(index.document_indices[-1])
    if stop_sequence != n_sequences:
        raise _damage(
            path,
            "the documents do not end at the last sequence",
            byte=documents_offset + 8 * (n_indices - 1),
            found=stop_sequence,
            expected=n_sequences,
        )


def _check_sequences(path: Path, index: Index) -> None:
    """Check the length and the pointer of every sequence.

    Raises:
        FormatError: A length is negative, or a pointer is negative, too large, or not at the start
            of a token.
    """
    for start in range(0, len(index.sequence_lengths), CHUNK_SEQUENCES):
        stop = start + CHUNK_SEQUENCES
        _check_lengths(path, index.sequence_lengths[start:stop], start)
        _check_pointers(path, index, start, stop)


def _check_lengths(path: Path, lengths: NDArray[np.int32], first_sequence: int) -> None:
    """Check that no sequence has a negative number of tokens, as only damaged files say.

    Args:
        path: Path of the index, for messages.
        lengths: Tokens of consecutive sequences, such as [12, 7, -3], shape (n_chunk,).
        first_sequence: Number of the first of them.

    Raises:
        FormatError: A number is negative; the message names the sequence, and the byte of the file.
    """
    if lengths.min() < 0:
        position = int(np.argmax(lengths < 0))
        sequence = first_sequence + position
        raise _damage(
            path,
            f"sequence {sequence} has a negative length",
            byte=HEADER.size + 4 * sequence,
            found=int(lengths[position]),
            expected="0 or more tokens",
        )


def _check_pointers(path: Path, index: Index, start: int, stop: int) -> None:
    """Check that each sequence of a chunk starts where a token of the file may start.

    For tokens of 2 bytes, that is byte 0, 2, 4 and so on. Whether the file is large enough is
    checked elsewhere.

    Args:
        path: Path of the index, for messages.
        index: The index.
        start: Number of the first sequence of the chunk.
        stop: Number after the last one.

    Raises:
        FormatError: A sequence starts at a negative or impossibly large byte, or within a token.
    """
    # One copy to aligned memory is faster than several passes over unaligned numbers.
    pointers = index.sequence_pointers[start:stop].astype(np.int64)
    itemsize = index.dtype.itemsize
    is_impossible = _is_impossible(pointers, itemsize)
    if is_impossible.any():
        position = int(np.argmax(is_impossible))
        sequence = start + position
        raise _damage(
            path,
            f"sequence {sequence} has an impossible pointer",
            byte=HEADER.size + 4 * len(index.sequence_lengths) + 8 * sequence,
            found=f"byte {int(pointers[position])} of the .bin",
            expected=f"a multiple of {itemsize}, 0 or more",
        )


def _is_impossible(pointers: NDArray[np.int64], itemsize: int) -> NDArray[np.bool_]:
    """Return which byte positions of a file cannot be the start of a token.

    For example, with tokens of 2 bytes, -2 and 7 cannot be, and 0 and 6 can.

    Args:
        pointers: Positions in bytes, shape (n,).
        itemsize: Bytes of a token: 1, 2, 4 or 8.

    Returns:
        Shape (n,).
    """
    is_impossible: NDArray[np.bool_] = (pointers < 0) | (pointers > _MAX_POINTER)
    if itemsize > 1:
        # For a power of two, this is the remainder of the division by it: 7 & 1 is 7 % 2.
        is_impossible |= (pointers & (itemsize - 1)) != 0
    return is_impossible


def _check_document_order(path: Path, index: Index) -> None:
    """Check that no document begins before the previous one.

    For example, documents that begin at the sequences 0, 3 and 5 are fine. At 0, 5 and 3, they are
    not. A document without sequences begins where the next one does: 0, 3, 3.

    Raises:
        FormatError: A document begins before the previous one; the message names the byte.
    """
    document_indices = index.document_indices  # first sequence of each document
    for start in range(0, len(document_indices) - 1, CHUNK_SEQUENCES):
        # One more than the chunk, to compare its last one with the next.
        chunk = document_indices[start : start + CHUNK_SEQUENCES + 1]
        is_backward = chunk[1:] < chunk[:-1]
        if is_backward.any():
            document = start + 1 + int(np.argmax(is_backward))
            raise _backward_document(path, index, document)


def _backward_document(path: Path, index: Index, document: int) -> FormatError:
    """Return the error for a document that begins before the previous one.

    Args:
        path: The .idx.
        index: What it contains.
        document: Number of the document.
    """
    # The first sequences of documents, of 8 bytes each, are stored after the length (4 bytes) and
    # the pointer (8 bytes) of each sequence.
    documents_offset = HEADER.size + 12 * len(index.sequence_lengths)
    return _damage(
        path,
        f"document {document} begins before the previous one",
        byte=documents_offset + 8 * document,
        found=int(index.document_indices[document]),
        expected=f"{int(index.document_indices[document - 1])} or more",
    )
