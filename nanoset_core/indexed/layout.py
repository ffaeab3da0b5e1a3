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

import os
import struct
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import DTypeLike, NDArray

from nanoset_core.errors import ConfigError
from nanoset_core.storage.location import Location

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
        """How many bytes the .bin must have at least."""
        if not len(self.sequence_lengths):
            return 0
        return int(self.sequence_pointers[-1]) + int(self.sequence_lengths[-1]) * self.dtype.itemsize


def bin_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the token file of a dataset."""
    return Path(f"{os.fspath(prefix)}.bin")


def idx_path(prefix: str | os.PathLike[str]) -> Path:
    """Return the path of the index file of a dataset."""
    return Path(f"{os.fspath(prefix)}.idx")


def pair_files(prefix: Location) -> tuple[Location, Location]:
    """Return the token file and the index file of a dataset on this machine or in a bucket."""
    if isinstance(prefix, Path):
        return bin_path(prefix), idx_path(prefix)
    return replace(prefix, path=f"{prefix.path}.bin"), replace(prefix, path=f"{prefix.path}.idx")


def prefix_of(tokens: Path) -> Path:
    """Return the prefix of a dataset, by the path of its token file."""
    return Path(str(tokens).removesuffix(".bin"))


def optimal_dtype(vocab_size: int | None) -> np.dtype:
    """Return the token type: uint16 for a vocabulary below 65500, else int32 (Megatron-LM `DType.optimal_dtype`)."""
    return DTYPE_CODES[8 if vocab_size is not None and vocab_size < 65500 else 4]


def dtype_code(dtype: DTypeLike) -> int:
    """Return the code of a token type in an .idx.

    Raises:
        ConfigError: the type has no code.
    """
    wanted = np.dtype(dtype).newbyteorder("<")
    for code, known in DTYPE_CODES.items():
        if known == wanted:
            return code
    names = ", ".join(known.name for known in DTYPE_CODES.values())
    raise ConfigError("an .idx has no code for this token type", found=np.dtype(dtype).name, expected=f"one of {names}")


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
