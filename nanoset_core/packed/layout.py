"""The bytes of a packed dataset, Modalities' `.pbin`: a header, the tokens of all documents, a pickled index.

```
layout   offset      size   content
B C D    0           8      uint64  n, bytes of tokens
         8           4      uint32  bytes of one token: 1, 2 or 4
         12          n      tokens, unsigned, documents back to back
         12 + n      rest   pickle of [(offset, length), ...], in bytes, one pair a document
A        0           8      uint64  n
         8           n      tokens of 4 bytes
         8 + n       rest   pickle, as above

layout   written by Modalities           byte order   offsets count from
A        before 2024-01-30               big          the file's first byte: the first document is at 8
B        2024-01-30 to 2024-04-02        big          the file's first byte: 12
C        2024-04-03 to 2024-06-24        little       the file's first byte: 12
D        since then (v0.2.2 and later)   little       the first token: 0
```

Only D is written. Nothing in a file names its layout, so it is told by what fits: where the index would begin, and
what its first entry says. Source: Modalities, `src/modalities/dataloader/create_packed_data.py`,
`EmbeddedStreamData`, and its history.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.packed.pickle_reader import read_slowly
from nanoset_core.storage.block_file import MappedFile
from nanoset_core.storage.regular_files import map_regular

TOKEN_BYTES = (1, 2, 4)
REMEDY = "write or fetch the file again"
_HEADER = struct.Struct("<QI")
HEADER_BYTES = _HEADER.size
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


@dataclass(frozen=True, slots=True)
class Layout:
    """One of the forms that a `.pbin` has had."""

    name: Literal["A", "B", "C", "D"]
    """As in the table above."""
    header_bytes: int
    """Bytes before the first token."""
    byte_order: Literal["<", ">"]
    """Of header and tokens, as numpy writes it."""
    first_offset: int
    """What the index calls the place of the first token, in bytes."""


A = Layout("A", 8, ">", 8)
B = Layout("B", 12, ">", 12)
C = Layout("C", 12, "<", 12)
D = Layout("D", 12, "<", 0)


@dataclass(frozen=True, slots=True, eq=False)
class PackedFile:
    """An open `.pbin`, its header understood and its index not yet read."""

    path: Path
    """Of the file."""
    layout: Layout
    """A to D."""
    token_bytes: int
    """Bytes of one token: 1, 2 or 4."""
    data_bytes: int
    """Bytes of all tokens."""
    view: memoryview
    """The whole file, mapped; of one that lives in a store, header and index can be read."""

    @property
    def index_begin(self) -> int:
        """Offset of the pickled index, in bytes."""
        return self.layout.header_bytes + self.data_bytes

    @property
    def tokens(self) -> NDArray[np.unsignedinteger]:
        """All tokens, uint8, uint16 or uint32 in the file's byte order, shape (tokens,); read-only.

        Of a file that lives in a store, none of them can be read.
        """
        return np.frombuffer(self.view, self.dtype, self.data_bytes // self.token_bytes, self.layout.header_bytes)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Of a token in the file."""
        return np.dtype(f"{self.layout.byte_order}u{self.token_bytes}")


def token_size_bytes(vocab_size: int) -> int:
    """Bytes that Modalities gives to a token: 1 up to 256 tokens, 2 up to 65,536, else 4 (and 4 for a single one).

    Same as Modalities' `PackedDataGenerator._get_required_num_of_bytes_to_repr`.

    Args:
        vocab_size: what Modalities asks the tokenizer for; Hugging Face's does not count added tokens.

    Raises:
        ConfigError: the size is below 1 or above 2^32.
    """
    if not 1 <= vocab_size <= 1 << 32:
        raise ConfigError(
            "no size of token fits this vocabulary",
            where="vocab_size",
            found=vocab_size,
            expected=f"1 to {1 << 32}",
            remedy="give the number of tokens that the tokenizer knows",
        )
    if 2 <= vocab_size <= 1 << 8:
        return 1
    return 2 if 2 <= vocab_size <= 1 << 16 else 4


class _HasTokenSize(Protocol):
    @property
    def path(self) -> Path: ...

    @property
    def token_bytes(self) -> int: ...


def common_token_bytes(files: Sequence[_HasTokenSize]) -> int:
    """Bytes of a token, the same in all files.

    Raises:
        FormatError: they differ.
    """
    first = files[0]
    for file in files:
        if file.token_bytes != first.token_bytes:
            raise FormatError(
                "files with tokens of different sizes cannot be joined",
                where=f"{file.path}, byte 8",
                found=f"{file.token_bytes} bytes a token",
                expected=f"{first.token_bytes}, as in {first.path}",
                remedy="make them with the same tokenizer",
            )
    return first.token_bytes


def encode_header(data_bytes: int, token_bytes: int) -> bytes:
    """The 12 bytes in front of the tokens, layout D."""
    return _HEADER.pack(data_bytes, token_bytes)


def open_packed(path: str | os.PathLike[str], file: MappedFile | None = None) -> PackedFile:
    """Map a `.pbin` and tell its layout, from its header and the first entry of its index.

    Args:
        path: of the file.
        file: its bytes, where it lives in a store: header and index are brought.

    Raises:
        MissingError: there is no such file.
        FormatError: it is in none of the layouts; the message names the byte.
    """
    path = Path(path)
    file = file or MappedFile(_map_file(path))
    view = memoryview(file.buffer)
    _bring(file, 0, HEADER_BYTES)
    if len(view) < HEADER_BYTES:
        raise FormatError(
            "the header is cut off",
            where=f"{path}, byte {len(view)}",
            found=f"{len(view)} bytes",
            expected=f"a .pbin, with a header of {HEADER_BYTES} bytes",
            remedy=REMEDY,
        )
    # B before A: where both would fit, A's first token would have to look like a token size.
    for layout in (D, B, A):
        sizes = _fitting_sizes(file, layout)
        if sizes is not None:
            token_bytes, data_bytes = sizes
            index_begin = layout.header_bytes + data_bytes
            _bring(file, index_begin, file.size)
            if layout is D and _first_offset(view, index_begin, path) == C.first_offset:
                layout = C
            _check_data_bytes(path, data_bytes, token_bytes)
            return PackedFile(path, layout, token_bytes, data_bytes, view)
    raise _unknown(path, view)


def _map_file(path: Path) -> mmap.mmap | bytes:
    try:
        return map_regular(path)
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingError(
            "no such file", where=path, expected="a .pbin file", remedy="pack the dataset first, or correct the path"
        ) from error


def _bring(file: MappedFile, begin: int, end: int) -> None:
    """See to it that so much of bytes [begin, end) as there is can be read."""
    if begin < (end := min(end, file.size)):
        file.fetch_span(begin, end)


def _fitting_sizes(file: MappedFile, layout: Layout) -> tuple[int, int] | None:
    """(bytes of a token, bytes of all tokens) if the header says so in this layout, and an index begins after them."""
    view = memoryview(file.buffer)
    data_bytes, token_bytes = struct.unpack_from(f"{layout.byte_order}QI", view)
    if layout is A:
        token_bytes = 4
    index_begin = layout.header_bytes + data_bytes
    _bring(file, index_begin, index_begin + 2)
    fits = token_bytes in TOKEN_BYTES and bytes(view[index_begin : index_begin + 2]) in _PICKLES
    return (token_bytes, data_bytes) if fits else None


def _first_offset(view: memoryview, index_begin: int, path: Path) -> int | None:
    """Offset of the first entry of the index; None if it has none."""
    for offsets, _ in read_slowly(view, index_begin, str(path), chunk_entries=1):
        return int(offsets[0])
    return None


def _check_data_bytes(path: Path, data_bytes: int, token_bytes: int) -> None:
    if data_bytes % token_bytes:
        raise FormatError(
            "the tokens end within a token",
            where=f"{path}, byte 0",
            found=f"{data_bytes} bytes of tokens",
            expected=f"a multiple of {token_bytes}, the bytes of one token",
            remedy=REMEDY,
        )


def _unknown(path: Path, view: memoryview) -> FormatError:
    data_bytes, token_bytes = _HEADER.unpack_from(view)
    found = f"{data_bytes} bytes of {token_bytes}-byte tokens in a file of {len(view)} bytes"
    if token_bytes not in TOKEN_BYTES:
        where, what = 8, "this is no .pbin"
    elif data_bytes == 0:
        where, what = 0, "the header was never completed: whatever wrote this file was interrupted"
    elif HEADER_BYTES + data_bytes >= len(view):
        where, what = len(view), "the file ends too early"
    else:
        where, what = HEADER_BYTES + data_bytes, "no index after the tokens"
    return FormatError(
        what,
        where=f"{path}, byte {where}",
        found=found,
        expected="header, tokens and pickled index of one of Modalities' layouts A to D",
        remedy=REMEDY,
    )
