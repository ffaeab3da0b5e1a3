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

Only D is written. No field names the layout, so it is derived from where the index begins and from the index's first
entry. Source: Modalities, `src/modalities/dataloader/create_packed_data.py`,
`EmbeddedStreamData`, and its history.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.packed.pickle_reader import first_number
from nanoset_core.storage.block_file import MappedFile
from nanoset_core.storage.regular_files import map_regular

TOKEN_BYTES = (1, 2, 4)
REMEDY = "write or fetch the file again"
_HEADER = struct.Struct("<QI")
HEADER_BYTES = _HEADER.size
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


@dataclass(frozen=True, slots=True)
class Layout:
    """One of the layouts in the table above."""

    name: Literal["A", "B", "C", "D"]
    header_bytes: int
    """Bytes before the first token."""
    byte_order: Literal["<", ">"]
    """Of header and tokens, as numpy writes it."""
    first_offset: int
    """Offset of the first token as the index counts, in bytes."""


A = Layout("A", 8, ">", 8)
B = Layout("B", 12, ">", 12)
C = Layout("C", 12, "<", 12)
D = Layout("D", 12, "<", 0)


@dataclass(frozen=True, slots=True, eq=False)
class PackedFile:
    """An open `.pbin` whose header was read, and whose index was not."""

    path: Path
    layout: Layout
    token_bytes: int
    """Bytes of one token: 1, 2 or 4."""
    data_bytes: int
    """Bytes of all tokens."""
    view: memoryview
    """The whole file, mapped; of a file in a store, only header and index can be read."""

    @property
    def index_begin(self) -> int:
        """Offset of the pickled index, in bytes."""
        return self.layout.header_bytes + self.data_bytes

    @property
    def tokens(self) -> NDArray[np.unsignedinteger]:
        """All tokens, uint8, uint16 or uint32 in the file's byte order, shape (tokens,); read-only.

        Of a file in a store, none of them can be read.
        """
        return np.frombuffer(self.view, self.dtype, self.data_bytes // self.token_bytes, self.layout.header_bytes)

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Type of a token in the file."""
        return np.dtype(f"{self.layout.byte_order}u{self.token_bytes}")


def token_size_bytes(vocab_size: int) -> int:
    """Return the bytes that Modalities gives to a token: 1 up to 256 tokens, 2 up to 65,536, else 4 (4 for one token).

    Same as Modalities' `PackedDataGenerator._get_required_num_of_bytes_to_repr`.

    Args:
        vocab_size: what Modalities asks the tokenizer for; Hugging Face's does not count added tokens.

    Raises:
        ConfigError: the size is below 1 or above 2^32.
    """
    if not 1 <= vocab_size <= 1 << 32:
        what, expected = "no token size fits this vocabulary", f"1 to {1 << 32}"
        raise ConfigError(what, where="vocab_size", found=vocab_size, expected=expected)
    if 2 <= vocab_size <= 1 << 8:
        return 1
    return 2 if 2 <= vocab_size <= 1 << 16 else 4


def encode_header(data_bytes: int, token_bytes: int) -> bytes:
    """Return the 12 bytes in front of the tokens, layout D."""
    return _HEADER.pack(data_bytes, token_bytes)


def open_packed(path: str | os.PathLike[str], file: MappedFile | None = None) -> PackedFile:
    """Map a `.pbin` and determine its layout from its header and the first entry of its index.

    Args:
        path: of the file.
        file: its bytes, where it lies in a store: header and index are fetched.

    Raises:
        MissingError: there is no such file.
        FormatError: it is in none of the layouts; the message names the byte.
    """
    path = Path(path)
    file = file or _map_file(path)
    view = memoryview(file.buffer)
    _fetch(file, 0, HEADER_BYTES)
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
        data_bytes, token_bytes = struct.unpack_from(f"{layout.byte_order}QI", view)
        if layout is A:
            token_bytes = 4
        index_begin = layout.header_bytes + data_bytes
        _fetch(file, index_begin, index_begin + 2)
        if token_bytes not in TOKEN_BYTES or bytes(view[index_begin : index_begin + 2]) not in _PICKLES:
            continue
        _fetch(file, index_begin, file.size)
        if layout is D and first_number(view, index_begin) == C.first_offset:
            layout = C
        if data_bytes % token_bytes:
            raise FormatError(
                "the tokens end within a token",
                where=f"{path}, byte 0",
                found=f"{data_bytes} bytes of tokens",
                expected=f"a multiple of {token_bytes}, the bytes of one token",
                remedy=REMEDY,
            )
        return PackedFile(path, layout, token_bytes, data_bytes, view)
    raise _unknown_layout(path, view)


def _map_file(path: Path) -> MappedFile:
    try:
        return MappedFile(map_regular(path))
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        remedy = "pack the dataset first, or correct the path"
        raise MissingError("no such file", where=path, expected="a .pbin file", remedy=remedy) from error


def _fetch(file: MappedFile, begin: int, end: int) -> None:
    """Fetch those of the bytes [begin, end) that the file has."""
    if begin < (end := min(end, file.size)):
        file.fetch_span(begin, end)


def _unknown_layout(path: Path, view: memoryview) -> FormatError:
    data_bytes, token_bytes = _HEADER.unpack_from(view)
    if token_bytes not in TOKEN_BYTES:
        where, what = 8, "this is no .pbin"
    elif data_bytes == 0:
        where, what = 0, "the header is not complete: the program that wrote this file was interrupted"
    elif HEADER_BYTES + data_bytes >= len(view):
        where, what = len(view), "the file ends too early"
    else:
        where, what = HEADER_BYTES + data_bytes, "no index after the tokens"
    return FormatError(
        what,
        where=f"{path}, byte {where}",
        found=f"{data_bytes} bytes of {token_bytes}-byte tokens in a file of {len(view)} bytes",
        expected="header, tokens and pickled index of one of Modalities' layouts A to D",
        remedy=REMEDY,
    )
