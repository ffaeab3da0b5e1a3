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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, FormatError, MissingError
from nanoset_core.formats.pbin.pickle_codec import Entries, damaged, decode_index, first_number
from nanoset_core.storage.reading import MappedFile
from nanoset_core.storage.regular_files import map_regular

TOKEN_BYTES = (1, 2, 4)
_HEADER = struct.Struct("<QI")
HEADER_BYTES = _HEADER.size
_PICKLES = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))
_MAX_OFFSET = 1 << 62  # keeps sums from wrapping around


class Layout(NamedTuple):
    """One of the layouts in the table above; the byte order is that of header and tokens."""

    name: Literal["A", "B", "C", "D"]
    header_bytes: int
    byte_order: Literal["<", ">"]
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

    Same as its `PackedDataGenerator._get_required_num_of_bytes_to_repr`, of the `vocab_size` that it asks the tokenizer
    for; Hugging Face's does not count added tokens.
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


@contextmanager
def required(path: object, expected: str, remedy: str) -> Iterator[None]:
    """Raise MissingError where the block opens a file that is not there."""
    try:
        yield
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
        raise MissingError("no such file", where=path, expected=expected, remedy=remedy) from error


def open_packed(path: str | os.PathLike[str], file: MappedFile | None = None) -> PackedFile:
    """Map a `.pbin` and determine its layout from its header and the first entry of its index.

    Of a `file` in a store header and index are fetched. Raises FormatError for none of the layouts; it names the byte.
    """
    path = Path(path)
    if file is None:
        with required(path, "a .pbin file", "pack the dataset first, or correct the path"):
            file = MappedFile(map_regular(path))
    view = memoryview(file.buffer)
    _fetch(file, 0, HEADER_BYTES)
    if len(view) < HEADER_BYTES:
        expected = f"a .pbin, with a header of {HEADER_BYTES} bytes"
        raise damaged("the header is cut off", f"{path}, byte {len(view)}", f"{len(view)} bytes", expected)
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
            found, expected = f"{data_bytes} bytes of tokens", f"a multiple of {token_bytes}, the bytes of one token"
            raise damaged("the tokens end within a token", f"{path}, byte 0", found, expected)
        return PackedFile(path, layout, token_bytes, data_bytes, view)
    raise _unknown_layout(path, view)


def _fetch(file: MappedFile, begin: int, end: int) -> None:
    if begin < (end := min(end, file.size)):
        file.fetch_span(begin, end)


def _unknown_layout(path: Path, view: memoryview) -> FormatError:
    data_bytes, token_bytes = _HEADER.unpack_from(view)
    byte, what = HEADER_BYTES + data_bytes, "no index after the tokens"
    if token_bytes not in TOKEN_BYTES:
        byte, what = 8, "this is no .pbin"
    elif data_bytes == 0:
        byte, what = 0, "the header is not complete: the program that wrote this file was interrupted"
    elif byte >= len(view):
        byte, what = len(view), "the file ends too early"
    found = f"{data_bytes} bytes of {token_bytes}-byte tokens in a file of {len(view)} bytes"
    expected = "header, tokens and pickled index of one of Modalities' layouts A to D"
    return damaged(what, f"{path}, byte {byte}", found, expected)


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """The facts of an index."""

    documents: int
    """Entries of the index."""
    tokens: int
    """Tokens of all documents; those of the file, unless documents overlap or leave some out."""
    empty_documents: int
    """Entries without tokens."""
    is_contiguous: bool
    """Whether each document begins where the one before it ends, the first and the last at the ends of the tokens."""
    merge_faults: int
    """Places after which Modalities' merge put the offsets too low; 0 in a sound index."""


def scan_index(packed: PackedFile, take: Callable[[Entries], object] = len) -> IndexFacts:
    """Check every entry of the index; no more than one chunk of entries is in memory, unless another pickler wrote it.

    An index whose opcodes are not those of Python's own pickler is read whole: some 150 bytes an entry. `take` gets the
    entries, in bytes from the first token, as they are read. Raises FormatError, which names byte or document.
    """
    size, data_bytes, base = packed.token_bytes, packed.data_bytes, packed.layout.first_offset
    documents = total = empty = shifts = shift = 0  # shift: how many bytes the last offset is too low, back to back
    mergeable, outside = base == 0, None
    for offsets, lengths in _entries(packed):
        wrong = (lengths < 0) | (lengths > data_bytes) | (lengths % size != 0) | (offsets % size != 0)
        wrong |= (offsets > _MAX_OFFSET) | (offsets < -_MAX_OFFSET)
        if wrong.any():
            raise _misplaced(packed, documents, offsets, lengths, wrong)
        wrong = (offsets < 0) | (offsets > data_bytes - lengths)
        if outside is None and wrong.any():
            outside = _misplaced(packed, documents, offsets, lengths, wrong)
        ends = total + np.cumsum(lengths)
        distances = ends - lengths - offsets
        if changes := int(np.count_nonzero(np.diff(distances, prepend=shift))):
            shifts, shift = shifts + changes, int(distances[-1])
            mergeable &= not ((distances < 0) | (distances % HEADER_BYTES != 0)).any()
        documents, total = documents + len(lengths), int(ends[-1])
        empty += int(np.count_nonzero(lengths == 0))
        take((offsets, lengths))
    contiguous = total == data_bytes and shifts == 0
    if base and not contiguous:
        what, where = f"the index is not that of a file of layout {packed.layout.name}", f"byte {packed.index_begin}"
        found = f"{documents} documents of {total} bytes, {shifts} of them out of place"
        raise damaged(what, f"{packed.path}, {where}", found, f"documents back to back, {data_bytes} bytes from {base}")
    faults = shifts if mergeable and total == data_bytes else 0
    if outside is not None and not faults:
        raise outside
    return IndexFacts(documents, total // size, empty, contiguous or faults > 0, faults)


def _misplaced(
    packed: PackedFile, before: int, offsets: NDArray[np.int64], lengths: NDArray[np.int64], wrong: NDArray[np.bool_]
) -> FormatError:
    at = int(np.argmax(wrong))
    where = f"{packed.path}, entry {before + at} of the index at byte {packed.index_begin}"
    found = f"{lengths[at]} bytes from byte {offsets[at]} of the tokens"
    expected = f"within [0, {packed.data_bytes}), in multiples of {packed.token_bytes}, the bytes of one token"
    return damaged("a document lies where no tokens are", where, found, expected)


def document_entries(packed: PackedFile, facts: IndexFacts) -> Iterator[Entries]:
    """Yield (starts, lengths) in bytes from the first token, corrected, in chunks; `facts` are those of the scan."""
    begin = 0
    for offsets, lengths in _entries(packed):
        if facts.merge_faults:
            offsets = begin + np.cumsum(lengths) - lengths
            begin = int(offsets[-1] + lengths[-1])
        yield offsets, lengths


def load_index(packed: PackedFile) -> tuple[IndexFacts, NDArray[np.int64], NDArray[np.int64]]:
    """Return the whole index, checked and corrected. Memory: 32 bytes a document while it is read, then 16.

    Returns:
        (its facts; the number of each document's first token, and how many it has, both int64, shape (documents,))
    """
    parts: list[Entries] = [(np.empty(0, np.int64), np.empty(0, np.int64))]
    facts = scan_index(packed, parts.append)
    starts, lengths = map(np.concatenate, zip(*parts, strict=True))
    lengths //= packed.token_bytes
    if facts.merge_faults:
        return facts, np.cumsum(lengths) - lengths, lengths
    starts //= packed.token_bytes
    return facts, starts, lengths


def _entries(packed: PackedFile) -> Iterator[Entries]:
    for offsets, lengths in decode_index(packed.view, packed.index_begin, str(packed.path)):
        yield offsets - packed.layout.first_offset, lengths
