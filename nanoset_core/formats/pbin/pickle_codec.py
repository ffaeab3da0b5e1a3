"""Convert document entries to and from the pickle that Modalities reads, without running a pickle.

The bytes are those of `pickle.dumps(entries, protocol=4)` for a list of (offset, length) tuples of
int:

```
80 04                           PROTO 4
95 <uint64 n>                   FRAME: n bytes of opcodes follow, then the next frame
5d 94                           EMPTY_LIST, MEMOIZE
28  entry × 1000  65            MARK, up to a thousand entries, APPENDS; repeated
2e                              STOP

entry   <int offset> <int length> 86 94          TUPLE2, MEMOIZE
int     4b u1 | 4d u2 | 4a i4 | 8a <u1 n> <n bytes, signed>      the first that holds the value
```

A frame ends at the first tuple or int that starts 64 KiB or more after the frame did. A last frame
of less than four bytes has no header. A list of one entry is `entry 61` (APPEND), and an empty list
has no opcode for entries. Source: CPython `Modules/_pickle.c`, `save_long`, `save_tuple`,
`batch_list_exact` and `_Pickler_OpcodeBoundary`.

For example, the entries (0, 6) and (6, 300) are, after PROTO and the header of the frame:

```
5d 94 28   4b 00 4b 06 86 94   4b 06 4d 2c 01 86 94   65 2e
```

Decoding is vectorised, although entries differ in width, so that each one starts where the one
before it ends. Every entry ends in TUPLE2 MEMOIZE, so each position after such a pair of bytes is a
candidate for the start of an entry. All candidates are decoded at once, and each says where the
next entry would start. As long as that is the next candidate, all candidates are entries. If the
pair of bytes happens to be inside a number, the chain jumps over it.

Anything else goes to `unpickle_index`: pickles of other picklers (protocols 2 to 5, tuples or
lists, with or without memo), and damaged ones. It checks that all opcodes are those of lists,
tuples and integers before it calls Python's unpickler, so that a hostile pickle runs nothing.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError


class Entries(NamedTuple):
    """Index entries of consecutive documents, in bytes."""

    offsets: NDArray[np.int64]
    """Where each document starts, shape (n_entries,)."""
    lengths: NDArray[np.int64]
    """Length of each document, shape (n_entries,)."""

    def slice(self, start: int, stop: int | None = None) -> Entries:
        """Return some consecutive entries.

        Args:
            start: Number of the first entry.
            stop: Number after the last entry; None for all that follow.

        Returns:
            Views of the same arrays, shape (stop - start,).
        """
        return Entries(self.offsets[start:stop], self.lengths[start:stop])


BATCH_ENTRIES = 1000
"""Entries between MARK and APPENDS."""
FRAME_BYTES = 64 * 1024
"""Bytes after which a frame ends at the next tuple or int."""
_FRAME_MIN_BYTES = 4
"""Shorter frames have no header."""
_CHUNK_ENTRIES = 1 << 13
"""Entries that are encoded at once."""
_CHUNK_BYTES = 1 << 20
"""Bytes that are decoded at once."""

# Opcodes of the pickles that Python's own pickler writes.
_FRAME = 0x95
_MARK = 0x28
_APPENDS = 0x65
_TUPLE2 = 0x86
_MEMOIZE = 0x94
_LONG1 = 0x8A
_LIST_START = b"]\x94("
"""EMPTY_LIST, MEMOIZE, MARK: the opcodes in front of the entries of a list of two or more."""
_LIST_END = b"e."
"""APPENDS, STOP: the opcodes after the last entry of such a list."""
_PROTOCOL_BYTES = 2
"""PROTO and the version."""
_FRAME_HEADER_BYTES = 1 + 8
"""FRAME and the number of bytes in the frame."""
_FAST_PROTOCOLS = (b"\x80\x04", b"\x80\x05")
"""PROTO and its version, of pickles that `_FastDecoder` can decode."""

# Encoding: a chunk of ints becomes a table with a row for each int. The columns of a row have all
# bytes that may surround the int; those that a particular int needs are then selected by a mask.
# `_encode_chunk` shows an example.
_AT_APPENDS = 0
_AT_MARK = 1
_AT_OPCODE = 2
_AT_SIZE = 3
_AT_PAYLOAD = slice(4, 12)
_AT_TUPLE2 = 12
_AT_MEMOIZE = 13
_COLUMNS = 14

_ROW = np.zeros(_COLUMNS, np.uint8)
"""The bytes that are the same in all rows."""
_ROW[_AT_APPENDS] = _APPENDS
_ROW[_AT_MARK] = _MARK
_ROW[_AT_TUPLE2] = _TUPLE2
_ROW[_AT_MEMOIZE] = _MEMOIZE

_OPCODES = np.frombuffer(b"\0KM\0J\x8a\x8a\x8a\x8a", np.uint8)
"""Bytes of payload → opcode of an int."""
_IS_WRITTEN = np.zeros((9, _COLUMNS), bool)
"""Bytes of payload → the columns that an int with such a payload fills in any row."""
_IS_WRITTEN[:, _AT_OPCODE] = True
_IS_WRITTEN[5:, _AT_SIZE] = True  # only LONG1, for 5 bytes and more, has a byte for the size
_IS_WRITTEN[:, _AT_PAYLOAD] = np.arange(8) < np.arange(9)[:, None]  # as many bytes as there are

# Decoding.
_PAYLOAD_BYTES = np.zeros(256, np.int64)
"""Opcode of an int → bytes of its payload. LONG1 has a byte for the size instead."""
_PAYLOAD_BYTES[[0x4B, 0x4D, 0x4A]] = [1, 2, 4]
_ENOUGH_FOR_ENTRY = 48
"""Bytes that contain a complete entry: twice those of the longest one, with APPENDS and MARK."""
_PADDING = 32
"""Zeros after a chunk, so that looking ahead from any of its bytes stays inside the array."""
_WORD_BYTES = 8
"""Bytes of the longest payload of an int; every payload is read as a part of so many bytes."""

# Opcodes that Python's unpickler may run, by their names in `pickletools`.
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
"""Opcodes of ints."""
_DATA_OPCODES = {
    *_NUMBERS,
    "PROTO",
    "FRAME",
    "STOP",
    "EMPTY_LIST",
    "APPEND",
    "MARK",
    "APPENDS",
    "TUPLE2",
    "TUPLE",
}
"""Opcodes that only build lists and tuples of ints: they import nothing and call nothing."""
_MEMO_WRITES = ("MEMOIZE", "BINPUT", "LONG_BINPUT")
"""Opcodes that store the last object in the memo."""
_MEMO_READS = ("BINGET", "LONG_BINGET")
"""Opcodes that refer to an object in the memo."""
_PICKLE_ERRORS = (
    pickle.UnpicklingError,
    ValueError,
    LookupError,
    AttributeError,
    TypeError,
    EOFError,
)
"""What `pickletools` and `pickle` raise for damaged pickles."""
_EXPECTED = "a pickled list of (offset, length) pairs of whole numbers, and nothing else"
"""What an index is, for messages."""
_PREFIX_BYTES = 64
"""More than the bytes of a pickle up to the end of its first entry."""


class _Opcodes(NamedTuple):
    """Consecutive opcodes of a pickle."""

    data: bytes
    int_starts: NDArray[np.int64]
    """Position in `data` of each int, ascending, shape (n_ints,)."""


def encode_index(entries: Iterable[Entries]) -> Iterator[bytes]:
    """Yield the bytes of the pickle of all entries, in memory for a chunk of them.

    Args:
        entries: Chunks of any number of entries; no value is negative.

    Yields:
        Parts of the pickle, in order: together what `pickle.dumps(list, protocol=4)` returns.
    """
    yield b"\x80\x04"  # PROTO
    yield from _framed(_list_opcodes(entries))


def _list_opcodes(entries: Iterable[Entries]) -> Iterator[_Opcodes]:
    """Yield the opcodes that build the list of all entries, chunk by chunk."""
    no_ints = np.empty(0, np.int64)
    yield _Opcodes(b"]\x94", no_ints)  # EMPTY_LIST, MEMOIZE
    n_entries = 0
    for chunk in _regrouped(entries):
        # If the first chunk has a single entry, there are no others.
        is_single_entry = n_entries == 0 and len(chunk.offsets) == 1
        yield _encode_chunk(chunk, n_entries, has_marks=not is_single_entry)
        n_entries += len(chunk.offsets)
    yield _Opcodes(_list_end(n_entries), no_ints)


def _list_end(n_entries: int) -> bytes:
    """Return the opcodes after the last entry of a list, the last of which is STOP."""
    if n_entries == 0:
        return b"."
    if n_entries == 1:
        return b"a."  # APPEND
    return _LIST_END


def _framed(chunks: Iterable[_Opcodes]) -> Iterator[bytes]:
    """Divide the bytes of a pickle into frames of about 64 KiB, and yield each with its header.

    Pickle writes a header in front of each frame, with the number of its bytes, so that a reader
    can load a frame at once. A frame cannot end anywhere: Python's pickler ends one only in front
    of a number, namely the first that starts 64 KiB (65,536 bytes) or more after the frame did.

    Args:
        chunks: The bytes in parts of any size, each with the positions of the numbers in it.
    """
    unframed = b""  # opcodes that are in no complete frame yet
    for chunk in chunks:
        int_starts = len(unframed) + chunk.int_starts  # positions in `unframed`
        unframed += chunk.data
        start = 0
        for stop in _frame_stops(int_starts):
            yield _with_frame_header(unframed[start:stop])
            start = stop
        unframed = unframed[start:]
    yield _with_frame_header(unframed)


def _frame_stops(int_starts: NDArray[np.int64]) -> list[int]:
    """Return where the complete frames of a pickle end, if the first one starts at 0.

    Pickle divides its output into frames of some 64 KiB (65,536 bytes). Python's pickler looks at
    the length of the frame whenever it is about to write a number. If the frame has 64 KiB or more,
    it ends in front of this number. For example:

        numbers are written at    0    40,000    70,000    100,000    140,000
        frames end at                            70,000               140,000

    Args:
        int_starts: Position of each number in the output, ascending, shape (n_ints,).
    """
    stops: list[int] = []
    frame_start = 0
    while True:
        # The first int that starts 64 KiB or more after the frame
        number = int(np.searchsorted(int_starts, frame_start + FRAME_BYTES))
        if number == len(int_starts):
            return stops  # the last frame is not complete yet
        frame_start = int(int_starts[number])
        stops.append(frame_start)


def _regrouped(chunks: Iterable[Entries]) -> Iterator[Entries]:
    """Yield entries in chunks of at most 8,192, the first with two entries or more if possible.

    A list of one entry is pickled differently, so the encoder of the first chunk must know whether
    more entries follow.
    """
    for chunk in _without_single_entries(chunks):
        for start in range(0, len(chunk.offsets), _CHUNK_ENTRIES):
            yield chunk.slice(start, start + _CHUNK_ENTRIES)


def _without_single_entries(chunks: Iterable[Entries]) -> Iterator[Entries]:
    """Join each chunk that has only one entry with the next chunk.

    Pickle writes a list of a single item in another way than longer lists. So a chunk may have one
    entry only if there is no other one at all:

        chunks of    3    1    0    2    entries
        become       3    3              entries

    Args:
        chunks: Chunks of any number of entries; the empty ones are left out.
    """
    no_entries = Entries(np.empty(0, np.int64), np.empty(0, np.int64))
    held_back = no_entries  # or a single entry
    for offsets, lengths in chunks:
        joined = _joined(held_back, Entries(offsets, lengths))
        if len(joined.offsets) > 1:
            yield joined
            held_back = no_entries
        else:
            held_back = joined
    if len(held_back.offsets):
        yield held_back


def _joined(first: Entries, second: Entries) -> Entries:
    """Return the entries of two chunks in one."""
    return Entries(
        np.concatenate([first.offsets, second.offsets]),
        np.concatenate([first.lengths, second.lengths]),
    )


def _encode_chunk(entries: Entries, first_entry: int, *, has_marks: bool) -> _Opcodes:
    """Write some entries of an index exactly as Python's pickle would write them.

    An entry is a pair of numbers: at which byte a document starts, and how many bytes it has.
    Pickle writes the entry (6, 300) as follows:

        4b 06       opcode BININT1, and the number 6 in one byte
        4d 2c 01    opcode BININT2, and the number 300 in two bytes
        86 94       opcodes TUPLE2 and MEMOIZE: they make a pair of the two numbers

    A list is written in batches of 1000 entries, with MARK (28) before and APPENDS (65) after each
    batch.

    To write thousands of entries without a loop, make a table that has a row for each number, with
    all bytes that may be needed for it. Then select the needed ones. In the rows of (6, 300), the
    others are in brackets:

        APPENDS  MARK  opcode  size  payload           TUPLE2  MEMOIZE
        [65]     28    4b      [01]  06 [00 00 00 …]   [86]    [94]        6, the first of its batch
        [65]     [28]  4d      [02]  2c 01 [00 00 …]   86      94          300

    Row by row, the selected bytes are 28 4b 06 4d 2c 01 86 94. That is what pickle writes.

    Args:
        entries: The entries.
        first_entry: Number of their first one in the index.
        has_marks: Whether batches of entries start with MARK. An index of a single entry has none.
    """
    # The numbers of all entries, one after another, such as 6, 300, 306, …; shape (2 n_entries,)
    values = np.stack(entries, axis=1).astype("<i8").reshape(-1)
    payload_bytes = _payload_bytes(values)  # 1, 2, 2, …
    table = _byte_table(values, payload_bytes)
    is_selected = _needed_bytes(payload_bytes)
    if has_marks:
        # Where a batch starts, select its MARK, and APPENDS, which ends the batch before, if there
        # is one. Both are in front of the entry's first number. Each entry has two rows, so the
        # first number of entry i is in row 2 i.
        batch_starts = _batch_starts(first_entry, len(entries.offsets))
        is_first_batch = first_entry + batch_starts == 0
        is_selected[2 * batch_starts, _AT_MARK] = True
        is_selected[2 * batch_starts[~is_first_batch], _AT_APPENDS] = True
    return _Opcodes(table[is_selected].tobytes(), _opcode_positions(is_selected, payload_bytes))


def _batch_starts(first_entry: int, n_entries: int) -> NDArray[np.int64]:
    """Return which entries of a chunk start a batch of 1000, counted from the chunk's first entry.

    Pickle writes a list in batches of 1000 items, and marks where each batch starts. For example, a
    chunk with the entries 2500 to 4499 of the list starts batches at its entries 500 and 1500.

    Args:
        first_entry: Number of the chunk's first entry in the list, such as 2500.
        n_entries: Number of entries in the chunk, such as 2000.

    Returns:
        Shape (n_batches,).
    """
    entries_before_batch = -first_entry % BATCH_ENTRIES  # up to the next multiple of 1000
    return np.arange(entries_before_batch, n_entries, BATCH_ENTRIES)


def _byte_table(values: NDArray[np.int64], payload_bytes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a row of 14 bytes for each number: all bytes that Python's pickle may write for it.

    Pickle writes a number as an opcode (an instruction, here "this is a number of 2 bytes") and the
    bytes of the number, its payload. For large numbers, the size of the payload is between them.
    Other opcodes may be around the number. A row has room for all of them, and the caller selects
    those that are needed:

        columns    content            for 300                when it is needed
        0          APPENDS            65                     a batch of 1000 pairs ends before it
        1          MARK               28                     a batch of pairs begins with it
        2          opcode             4d                     always
        3          size of payload    02                     the number has 5 bytes or more
        4 to 11    payload            2c 01 00 00 00 00 …    as many bytes as the number has: 2c 01
        12, 13     TUPLE2, MEMOIZE    86 94                  the number is the second of its pair

    Args:
        values: The numbers, little-endian int64, shape (n_ints,).
        payload_bytes: In how many bytes pickle stores each number, shape (n_ints,): 2 for 300.

    Returns:
        uint8, shape (n_ints, 14).
    """
    table = np.empty((len(values), _COLUMNS), np.uint8)
    table[:] = _ROW  # columns 0, 1, 12 and 13: the opcodes that are the same in all rows
    table[:, _AT_OPCODE] = _OPCODES[payload_bytes]  # column 2, such as 4d for 2 bytes
    table[:, _AT_SIZE] = payload_bytes  # column 3
    table[:, _AT_PAYLOAD] = values.view(np.uint8).reshape(-1, 8)  # columns 4 to 11
    return table


def _needed_bytes(payload_bytes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which bytes of a table pickle writes, if the table has all bytes that it may write.

    The table has a row for each number and 14 columns. (`_byte_table` says what they are.) Numbers
    come in pairs, such as 6 and 300. Each needs its opcode, which is an instruction of pickle, and
    as many bytes of its payload as it has. The second number of a pair also needs the two opcodes
    TUPLE2 and MEMOIZE after it, which make the pair:

        columns             0, 1      2        3       4 to 11         12, 13
        content             batches   opcode   size    payload         TUPLE2, MEMOIZE
        needed for 6        no        yes      no      first byte      no
        needed for 300      no        yes      no      first 2 bytes   yes

    Columns 0 and 1 are for the start of a batch of 1000 pairs; the caller selects them where
    needed.

    Args:
        payload_bytes: In how many bytes pickle stores each number: [1, 2] for 6 and 300; shape
            (n_ints,).

    Returns:
        Shape (n_ints, 14).
    """
    # A table says for each number of bytes which of the columns 2 to 11 are needed.
    is_needed = _IS_WRITTEN[payload_bytes]

    # The second numbers of the pairs are in the rows 1, 3, 5, …: they need columns 12 and 13, too.
    is_needed[1::2, _AT_TUPLE2:] = True
    return is_needed


def _opcode_positions(
    is_selected: NDArray[np.bool_], payload_bytes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return where each number begins among the bytes that are written for many numbers.

    Pickle writes a number as an opcode, which says how large it is, and its bytes. Other opcodes
    may be before and after it. A number begins with its own opcode. For example, for the pairs (6,
    300) and (306, 9), the first of which starts a batch of pairs with MARK (28):

        written for         6           300               306         9
        its bytes           28 4b 06    4d 2c 01 86 94    4d 32 01    4b 09 86 94
        bytes before it     1           0                 0           0
        bytes from it on    2           5                 3           4
        ends at             3           8                 11          15
        begins at           1           3                 8           11

    Args:
        is_selected: Which bytes are written for each number, shape (n_ints, 14); `_byte_table` says
            what the columns are.
        payload_bytes: In how many bytes pickle stores each number, shape (n_ints,): 1 2 2 1.

    Returns:
        Positions, shape (n_ints,).
    """
    # Before a number may be the opcodes that end one batch and begin the next.
    bytes_before = 1 * is_selected[:, _AT_APPENDS] + is_selected[:, _AT_MARK]  # 1 0 0 0

    # Then come its own opcode, perhaps the size of its payload, and the payload. After the second
    # number of a pair are the two bytes of TUPLE2 and MEMOIZE.
    bytes_from_opcode = 1 + payload_bytes + is_selected[:, _AT_SIZE]  # 2 3 3 2
    bytes_from_opcode[1::2] += 2  # 2 5 3 4

    ends = np.cumsum(bytes_before + bytes_from_opcode)  # 3 8 11 15
    return ends - bytes_from_opcode  # 1 3 8 11


def _payload_bytes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return in how many bytes pickle stores each number: 1, 2, or 4 to 8.

        number                      bytes
        0 to 255                    1
        256 to 65,535               2
        65,536 to 2^31 - 1          4    pickle has no opcode for 3 bytes
        2^31 to 2^39 - 1            5
        …                           6 to 8

    From 4 bytes on, one bit is for the sign. That is why 4 bytes are enough up to 2^31 - 1 and not
    up to 2^32 - 1.

    Args:
        values: Whole numbers, none of them negative, shape (n,).
    """
    sizes = np.ones(len(values), np.int64)
    # Add what a value needs in addition if it reaches a limit.
    sizes += values >= 1 << 8  # 2 bytes
    sizes += 2 * (values >= 1 << 16)  # 4 bytes: pickle has no opcode for 3
    sizes += values >= 1 << 31  # 5 bytes
    sizes += values >= 1 << 39  # 6 bytes
    sizes += values >= 1 << 47  # 7 bytes
    sizes += values >= 1 << 55  # 8 bytes
    return sizes


def _with_frame_header(opcodes: bytes) -> bytes:
    """Return a frame of a pickle: a header with the number of its bytes, and its opcodes."""
    if len(opcodes) < _FRAME_MIN_BYTES:
        return opcodes
    return bytes([_FRAME]) + len(opcodes).to_bytes(8, "little") + opcodes


def decode_index(view: memoryview, begin: int, where: str) -> Iterator[Entries]:
    """Yield the entries of a pickled index: where each document starts, and how long it is.

    A fast decoder reads what Python's own pickle has written. Anything else, such as a pickle of
    another program or a damaged one, is read again by a slow one.

    Args:
        view: The file that ends with the pickle.
        begin: First byte of the pickle.
        where: Name of the file, for messages.

    Yields:
        Chunks of entries, which are not empty. Their values are not checked. The fast decoder takes
        some 30 MB of memory, and the slow one some 150 bytes for each entry.

    Raises:
        FormatError: The pickle is anything but a list of pairs of ints; the message names the byte.
    """
    # The fast decoder stops at the first opcode that Python's own pickler would not write there.
    decoder = _FastDecoder(view, begin, where)
    yield from decoder.entries()
    if decoder.is_complete:
        return

    # Another pickler has written the index, or it is damaged. Read it again as a whole, and yield
    # the entries after those that the fast decoder has yielded.
    all_entries = unpickle_index(view, begin, where)
    remaining = all_entries.slice(decoder.n_entries)
    if len(remaining.offsets):
        yield remaining


class _FastDecoder:
    """Decodes a pickle up to the first opcode that Python's pickler would not write there.

    Args:
        view: The file that ends with the pickle.
        begin: First byte of the pickle.
        where: Name of the file, for messages.
    """

    def __init__(self, view: memoryview, begin: int, where: str) -> None:
        self._view = view
        self._begin = begin
        self._where = where
        self.n_entries = 0
        """Number of entries that were decoded so far."""
        self.is_complete = False
        """Whether all entries were decoded; it is set when `entries` is exhausted."""

    def entries(self) -> Iterator[Entries]:
        """Yield the entries of the pickled list, some at a time, as long as they look as expected.

        An entry is a pair of numbers, which takes at most 24 bytes. The pickle is read in chunks of
        about a MiB. A chunk may end within an entry. Then the first bytes of the entry wait for the
        next chunk.

        At the end, `is_complete` says whether this was the whole list. It stays False if there are
        bytes that Python's own pickler would not have written. Then the caller reads the list in
        another way.

        Raises:
            FormatError: A frame, a part of the pickle, is empty, or longer than the file.
        """
        undecoded = np.empty(0, np.uint8)  # bytes of an entry whose end was not read yet
        for opcodes in self._entry_opcodes():
            undecoded = np.concatenate([undecoded, opcodes])
            entries, n_decoded_bytes = _decode_chunk(undecoded)
            if n_decoded_bytes:
                yield entries
                self.n_entries += len(entries.offsets)

            # A few bytes may remain of an entry that continues in the next chunk. But 48 bytes
            # (_ENOUGH_FOR_ENTRY) would contain a whole entry, and it would have been decoded. So
            # if there are as many, they are something else: give up.
            undecoded = undecoded[n_decoded_bytes:]
            if len(undecoded) >= _ENOUGH_FOR_ENTRY:
                return
        # After the last entry, only the two opcodes that end the list and the pickle may remain.
        self.is_complete = undecoded.tobytes() == _LIST_END

    def _entry_opcodes(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the bytes of the list's entries, in chunks of about a MiB.

        In front of them are three opcodes that start a list. If the pickle begins in another way,
        because it has no list, or was written by another program, nothing is yielded.
        """
        protocol = bytes(self._view[self._begin : self._begin + _PROTOCOL_BYTES])
        if protocol not in _FAST_PROTOCOLS:
            return
        chunks = self._opcodes()  # all that follows after the protocol
        first_chunk = next(chunks, np.empty(0, np.uint8))
        if first_chunk[: len(_LIST_START)].tobytes() == _LIST_START:
            yield first_chunk[len(_LIST_START) :]
            yield from chunks

    def _opcodes(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the content of the pickle, in arrays of about a MiB.

        Pickle divides what it writes into frames of about 64 KiB. Each frame has a header with its
        size. The headers are left out here, and the contents of the frames are joined.
        """
        data = np.frombuffer(self._view, np.uint8)
        parts: list[NDArray[np.uint8]] = []
        n_bytes = 0
        for frame_start, frame_stop in self._frames():
            for start in range(frame_start, frame_stop, _CHUNK_BYTES):
                part = data[start : min(start + _CHUNK_BYTES, frame_stop)]
                parts.append(part)
                n_bytes += len(part)
                if n_bytes >= _CHUNK_BYTES:
                    yield np.concatenate(parts)
                    parts = []
                    n_bytes = 0
        if parts:
            yield np.concatenate(parts)

    def _frames(self) -> Iterator[tuple[int, int]]:
        """Yield where the content of each frame of the pickle starts and stops.

        Pickle divides what it writes into frames. Each has a header of 9 bytes with its size,
        except perhaps a short one at the end of the file:

            header    content of 65,540 bytes    header    content of 800 bytes
            2         11 to 65,551               65,551    65,560 to 66,360
        """
        position = self._begin + _PROTOCOL_BYTES
        file_bytes = len(self._view)
        while position < file_bytes:
            # Only the last frame may have no header: it extends to the end of the file.
            if self._view[position] != _FRAME:
                yield position, file_bytes
                return
            start = position + _FRAME_HEADER_BYTES
            position = start + self._frame_bytes(position)
            yield start, position

    def _frame_bytes(self, header_start: int) -> int:
        """Return how many bytes follow after the header of a frame, as the header says.

        Pickle divides what it writes into frames. A header is the byte 95, and the size as a number
        of eight bytes: 95 00 00 01 00 00 00 00 00 stands for 65,536 bytes.

        Args:
            header_start: Position of the header in the file.

        Raises:
            FormatError: The number is zero, or the file has fewer bytes after the header.
        """
        header_stop = header_start + _FRAME_HEADER_BYTES
        frame_bytes = int.from_bytes(self._view[header_start + 1 : header_stop], "little")
        bytes_left = max(len(self._view) - header_stop, 0)
        if frame_bytes == 0:
            raise self._wrong_frame("an empty frame in the index", header_start, 0, bytes_left)
        if frame_bytes > bytes_left:
            message = "the index ends too early"
            raise self._wrong_frame(message, header_start, frame_bytes, bytes_left)
        return frame_bytes

    def _wrong_frame(
        self, what: str, position: int, frame_bytes: int, bytes_left: int
    ) -> FormatError:
        """Return the error for a frame of a pickle whose header has an impossible size.

        For example, "the index ends too early": a frame of 65,540 bytes, 800 bytes left.

        Args:
            what: What is wrong, in a few words.
            position: Where the header of the frame starts.
            frame_bytes: The number of bytes in the header.
            bytes_left: How many bytes the file has after the header.
        """
        return damaged(
            what,
            where=f"{self._where}, byte {position}",
            found=f"a frame of {frame_bytes} bytes, {bytes_left} bytes left",
            expected=_EXPECTED,
        )


def _decode_chunk(opcodes: NDArray[np.uint8]) -> tuple[Entries, int]:
    """Decode the entries of a pickled list from its bytes, up to the first incomplete entry.

    Each entry is a pair of numbers. For example, the first 6 of these bytes are the entry (0, 6).
    The others are the start of another one, so the result is the entry (0, 6), and 6 bytes:

        4b 00  4b 06  86 94    4b 06  4d 2c
        0      6      a pair   6      300 (its last byte is missing)

    Entries differ in size. So where one starts is only known when all before it were decoded, one
    by one, which takes long. Instead, look for the two bytes 86 94, with which every entry ends,
    and decode an entry after each of these places, all at the same time. A few of them may be
    wrong, since the bytes 86 94 may also be a part of a number. These are left out afterwards.

    Args:
        opcodes: uint8, shape (n_bytes,); the first byte starts an entry.

    Returns:
        (the entries, how many bytes they take)
    """
    # Decode an entry at each candidate, a position at which one may start. Zeros at the end allow
    # to look ahead from the last candidate.
    starts = _candidates(opcodes)  # 0, and the positions after each 86 94: [0, 6]
    decoded = _decode_candidates(np.pad(opcodes, (0, _PADDING)), starts)

    # Leave out candidates that are inside of an entry. The slices select the others: slice(0, 1)
    # in the example. The last slice stops at the first incomplete entry, here number 1.
    slices = list(_slices_of_entries(starts, decoded.stops))
    entries = Entries(_in_slices(decoded.offsets, slices), _in_slices(decoded.lengths, slices))
    incomplete = slices[-1].stop
    return entries, int(starts[incomplete])  # byte 6


def _candidates(opcodes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return 0 and every position after TUPLE2 MEMOIZE, ascending, shape (n_candidates,).

    Each entry ends with these two opcodes, so entries can only start at these positions.
    """
    pairs = np.flatnonzero((opcodes[:-1] == _TUPLE2) & (opcodes[1:] == _MEMOIZE))
    return np.concatenate([np.zeros(1, np.int64), pairs + 2])


class _DecodedCandidates(NamedTuple):
    """The entry that was decoded at each candidate; all arrays have shape (n_candidates,)."""

    offsets: NDArray[np.int64]
    lengths: NDArray[np.int64]
    stops: NDArray[np.int64]
    """Position after each entry; -1 if there is no complete entry."""


def _decode_candidates(padded: NDArray[np.uint8], starts: NDArray[np.int64]) -> _DecodedCandidates:
    """Decode an entry at each position of a pickle at which one may start, all at the same time.

    An entry says where a document starts and how long it is. Pickle writes it as two numbers, and
    the opcodes TUPLE2 and MEMOIZE, which make them a pair:

        4b 00    4b 06    86 94
        0        6        TUPLE2, MEMOIZE

    In front of every 1000th entry are two more opcodes, APPENDS and MARK. What is decoded at a
    position with other bytes is meaningless. It stays in the arrays, so that they have the same
    length, and is marked by a stop of -1:

        start    bytes from there on            offset    length    stop
        20       4b 00 4b 06 86 94              0         6         26
        26       65 28 4b 06 4b 09 86 94        6         9         34
        34       4b 0f, and the bytes end       15        0         -1    (no complete entry)

    Args:
        padded: Bytes of the pickle, with zeros after them, so that all bytes looked at exist.
        starts: Positions at which an entry may start, shape (n_candidates,).
    """
    # The first number starts at the position, or after APPENDS and MARK: 20, 28, 34.
    has_mark = _has_pair(padded, starts, _APPENDS, _MARK)
    int_starts = np.where(has_mark, starts + 2, starts)  # (n_candidates,)
    offsets = _decode_ints(padded, int_starts)
    lengths = _decode_ints(padded, offsets.stops)  # a length starts where its offset stops

    # It is an entry if there are two numbers, and then TUPLE2 and MEMOIZE.
    has_tuple = _has_pair(padded, lengths.stops, _TUPLE2, _MEMOIZE)
    is_entry = offsets.is_int & lengths.is_int & has_tuple
    stops = np.where(is_entry, lengths.stops + 2, -1)  # -1: no complete entry
    return _DecodedCandidates(offsets.values, lengths.values, stops)


def _has_pair(
    padded: NDArray[np.uint8], positions: NDArray[np.int64], first: int, second: int
) -> NDArray[np.bool_]:
    """Return whether two given bytes are at each position, shape (n_positions,)."""
    has_pair: NDArray[np.bool_] = (padded[positions] == first) & (padded[positions + 1] == second)
    return has_pair


class _Ints(NamedTuple):
    """What was decoded at some positions of a pickle; all arrays have shape (n_positions,)."""

    values: NDArray[np.int64]
    """The int at each position; any number if there is no int."""
    stops: NDArray[np.int64]
    """Position after each int; any position inside the array if there is no int."""
    is_int: NDArray[np.bool_]
    """Whether there is an int at the position."""


class _Payloads(NamedTuple):
    """The bytes of the values of some ints; all arrays have shape (n_ints,)."""

    starts: NDArray[np.int64]
    """Position of the first byte of each value."""
    sizes: NDArray[np.int64]
    """Number of bytes of each value, 1 to 8."""
    is_signed: NDArray[np.bool_]
    """Whether the highest bit of the value is its sign."""
    is_int: NDArray[np.bool_]
    """Whether there is an int; otherwise, the other fields have any possible values."""


def _decode_ints(padded: NDArray[np.uint8], positions: NDArray[np.int64]) -> _Ints:
    """Decode a number at each of some positions in a pickle, all at the same time.

    Pickle writes a number as an opcode, which says how many bytes the number has, and these bytes.
    For example, in the bytes 4b 06 4d 2c 01:

        position    opcode    bytes of the number    number    stop    is_int
        0           4b        06                     6         2       True
        2           4d        2c 01                  300       5       True
        1           06        (no opcode of ints)    (any)     (any)   False

    Args:
        padded: Bytes of the pickle, with 32 zeros after them, so that all bytes looked at exist.
        positions: Where numbers may start, shape (n_positions,).
    """
    payloads = _payloads_at(padded, positions)
    # Read eight bytes from the start of each number on: 06 4d 2c 01 00 00 00 00 for the first one
    # of the example. Then take as many of these as the number has: 06.
    words = _words_at(padded, payloads.starts)
    values = _first_bytes(words, payloads.sizes, payloads.is_signed)

    # Where no int starts, the computed stop may be beyond the array. Move it inside, since the
    # caller also looks at the two bytes from each stop on.
    stops = np.minimum(payloads.starts + payloads.sizes, len(padded) - 2)
    return _Ints(values, stops, payloads.is_int)


def _payloads_at(padded: NDArray[np.uint8], positions: NDArray[np.int64]) -> _Payloads:
    """Find where the bytes of each number of a pickle are, and how many it has.

    Pickle writes a number as an opcode and its bytes. The opcode usually says how many there are.
    After the opcode LONG1, a byte says so:

        opcode        bytes of the number    example
        4b BININT1    1                      4b 06                  6
        4d BININT2    2                      4d 2c 01               300
        4a BININT     4, signed              4a 40 42 0f 00         1,000,000
        8a LONG1      1 to 8, signed         8a 05 00 f2 05 2a 01   5,000,000,000 (5 bytes)

    So 300, if its opcode is at position 2, starts at position 3, has the size 2, and is not signed.

    Args:
        padded: Bytes of the pickle, with zeros after them.
        positions: Where numbers may start, shape (n_positions,). Where there is none, `is_int` is
            False, and the other results have no meaning.
    """
    opcodes = padded[positions]
    is_long = opcodes == _LONG1
    value_starts = np.where(is_long, positions + 2, positions + 1)

    # _PAYLOAD_BYTES is a table of 256 opcodes: 1, 2 and 4 for the first three opcodes above, and 0
    # for all others. A size of 0, or more than 8 bytes after LONG1, is no number.
    sizes = np.where(is_long, padded[positions + 1], _PAYLOAD_BYTES[opcodes])
    is_int = (sizes > 0) & (sizes <= _WORD_BYTES)
    return _Payloads(
        starts=value_starts,
        # The caller computes with all sizes. So what is no number gets a possible size, 8, too.
        sizes=np.where(is_int, sizes, _WORD_BYTES),
        is_signed=is_long | (sizes >= 4),  # values of 1 and 2 bytes have no sign
        is_int=is_int,
    )


def _words_at(padded: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the eight bytes from each position on, as one number with the lowest byte first.

    For example, in the bytes 4b 06 4d 2c 01 00 00 00 00 00, position 2 gives the bytes 4d 2c 01 00
    00 00 00 00, which is the number 0x012c4d.

    Args:
        padded: Any bytes, at least eight.
        positions: Positions of `padded`; one that has fewer than eight bytes after it is moved
            back.
    """
    # All words of `padded`, which overlap: the first starts at byte 0, the second at byte 1, …
    n_words = len(padded) - (_WORD_BYTES - 1)
    overlapping_words = np.ndarray((n_words,), "<u8", buffer=padded, strides=(1,))
    return overlapping_words[np.minimum(positions, n_words - 1)]


def _first_bytes(
    words: NDArray[np.uint64], n_bytes: NDArray[np.int64], is_signed: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the number in the first bytes of each word of eight bytes, lowest byte first.

        word                        n_bytes    number
        2c 01 86 94 4b 06 86 94     2          300 (2c 01)
        fe ff ff ff 4b 06 86 94     4          -2, if it is signed

    A word is a number of 64 bits itself: its first byte has the lowest bits, and its last byte the
    highest ones. So the other bytes are removed by shifts, here for 2 bytes:

        word                         2c 01 86 94 4b 06 86 94
        shifted left by 48 bits      00 00 00 00 00 00 2c 01
        shifted right by 48 bits     2c 01 00 00 00 00 00 00    = 300

    Args:
        words: Words of eight bytes, shape (n,).
        n_bytes: How many bytes of each word belong to the number, 1 to 8.
        is_signed: Whether the highest bit of the number is its sign.
    """
    # A shift to the left drops the high bytes, which belong to no number. A shift to the right puts
    # the others back: for uint64 it fills in zeros, and for int64 copies of the sign.
    shifts = (8 * (_WORD_BYTES - n_bytes)).astype(np.uint64)  # 48 bits for a number of 2 bytes
    shifted = words << shifts
    signed = (shifted.view(np.int64) >> shifts.view(np.int64)).astype(np.int64)
    unsigned = (shifted >> shifts).view(np.int64)
    return np.where(is_signed, signed, unsigned)


def _slices_of_entries(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Iterator[slice]:
    """Find out which decoded entries are real, and yield them as slices.

    Some bytes were decoded from every position at which an entry may start, a candidate. Real
    entries follow one after another without gaps. So begin with candidate 0, which is always real.
    If it stops at byte 6, the next real one is the candidate that starts at byte 6, and so on.
    Candidates that are skipped in this way are no entries:

        candidate   0    1    2    3
        starts      0    6    9    15
        stops       6    15   15   -1    (-1: not all bytes of this entry have been read yet)
        is real     yes  yes  no   incomplete

    Candidate 1 goes from 6 to 15, so candidate 2 is only a part of it. The real ones before it are
    slice(0, 2), and those after it slice(3, 3), which is empty here. The last slice always stops at
    the incomplete candidate.

    Args:
        starts: Positions of the candidates, ascending, shape (n_candidates,).
        stops: Where each candidate ends, always at the start of another; -1 if it is incomplete.
    """
    # As long as each candidate stops where the next one starts, none is skipped, and the slice goes
    # on. So it can only end with a candidate that stops elsewhere: 1, which stops at 15 and not at
    # 9, and the last one, 3, which has no next one.
    stops_elsewhere = np.append(stops[:-1] != starts[1:], True)  # [False, True, False, True]
    possible_ends = np.flatnonzero(stops_elsewhere)  # [1, 3]
    first = 0  # candidate with which the slice begins: 0, and the second time 3
    while True:
        # Look for the first possible end from there on: 1, and the second time 3.
        last = int(possible_ends[np.searchsorted(possible_ends, first)])
        if stops[last] < 0:  # incomplete
            yield slice(first, last)
            return
        yield slice(first, last + 1)

        # The next slice starts where the last entry of this one stops: at byte 15, candidate 3.
        # This skips candidate 2, which is inside of the last entry.
        first = int(np.searchsorted(starts, stops[last]))


def _in_slices(values: NDArray[np.int64], slices: Sequence[slice]) -> NDArray[np.int64]:
    """Return the values in some slices, joined; as a view if there is only one slice."""
    if len(slices) == 1:
        return values[slices[0]]
    return np.concatenate([values[values_slice] for values_slice in slices])


def first_number(view: memoryview, begin: int) -> int | None:
    """Return the first number in a pickle without loading it; 12 for the list [(12, 300), …].

    Args:
        view: The file.
        begin: First byte of the pickle.

    Returns:
        None if the first 64 bytes contain no number, or are damaged.
    """
    try:
        for opcode, argument, _ in pickletools.genops(bytes(view[begin : begin + _PREFIX_BYTES])):
            if opcode.name in _NUMBERS:
                return int(argument or 0)
    except ValueError:
        pass  # the pickle is damaged, or goes on after these bytes
    return None


def unpickle_index(view: memoryview, begin: int, where: str) -> Entries:
    """Load a pickled list of pairs with Python's own unpickler, but only if that is safe.

    A pickle is a small program. One from an attacker may run any code while it is loaded. So all
    its instructions (opcodes) are looked at first: only those that build lists, tuples and integers
    are allowed.

    Args:
        view: The file that ends with the pickle.
        begin: First byte of the pickle.
        where: Name of the file, for messages.

    Raises:
        FormatError: The pickle is anything but a list of pairs of ints; the message names the byte.
    """
    stream = io.BytesIO(view[begin:])
    opcode_check = _OpcodeCheck()
    position = begin  # of the file, after the last opcode that passed the check
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if not opcode_check.allows(opcode.name, argument):
                raise ValueError(opcode.name)
            position = begin + stream.tell()
        stream.seek(0)
        pairs = pickle.Unpickler(stream).load()  # noqa: S301 (none of these opcodes calls anything)
    except _PICKLE_ERRORS as error:
        raise _refused_at(view, position, where) from error

    if position != len(view):
        n_more_bytes = len(view) - position
        found = f"{n_more_bytes} bytes after the end of the index"
        raise _no_index(where, position, found=found)
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        raise _no_index(where, begin, found="other values")
    return _entries_of_pairs(pairs)


class _OpcodeCheck:
    """Says whether Python's unpickler may run the opcodes of a pickle, one after the other.

    A pickle stores objects in a numbered memo and refers to them by number. All picklers count
    these numbers from 0.
    """

    def __init__(self) -> None:
        self._memo_size = 0
        """Number of objects in the memo."""

    def allows(self, name: str, argument: object) -> bool:
        """Return whether the next opcode only builds lists and tuples of ints."""
        if name in _MEMO_WRITES:
            return self._allows_memo_write(argument)
        if name in _MEMO_READS:
            return isinstance(argument, int) and argument < self._memo_size
        return name in _DATA_OPCODES

    def _allows_memo_write(self, number: object) -> bool:
        """Count an object in the memo, and return whether it gets the next number.

        A huge number would make the unpickler allocate a huge memo. MEMOIZE has no number: it
        always takes the next one.
        """
        is_next = number is None or number == self._memo_size
        self._memo_size += 1
        return is_next


def _entries_of_pairs(pairs: Sequence[Sequence[int]]) -> Entries:
    """Return the entries of a list of (offset, length)."""
    table = np.array(pairs, np.int64).reshape(-1, 2)  # (n_entries, 2)
    return Entries(
        offsets=np.ascontiguousarray(table[:, 0]),
        lengths=np.ascontiguousarray(table[:, 1]),
    )


def _refused_at(view: memoryview, position: int, where: str) -> FormatError:
    """Return the error for a file whose index cannot be read beyond a byte.

    The message shows what is at this byte: "opcode GLOBAL, bytes 63 6f 73 0a …", or "the end of the
    file" if the index is cut off.

    Args:
        view: The file that ends with the index.
        position: The byte after the last opcode that could be read.
        where: Name of the file, for the message.
    """
    if position >= len(view):
        return _no_index(where, len(view), found="the end of the file")
    name = _opcode_name(bytes(view[position : position + 1]))
    next_bytes = view[position : position + 12].hex(" ")
    return _no_index(where, position, found=f"opcode {name}, bytes {next_bytes}")


def _opcode_name(code: bytes) -> str | None:
    """Return the name of an opcode of any pickle, or None if the byte is none."""
    for opcode in pickletools.opcodes:
        if opcode.code.encode("latin-1") == code:
            return opcode.name
    return None


def _no_index(where: str, byte: int, *, found: str) -> FormatError:
    """Return the error for a pickle that is anything but a list of pairs of ints.

    Args:
        where: Name of the file.
        byte: Byte of the file at which the pickle differs.
        found: What is there.
    """
    return damaged(
        "this is not an index of documents",
        where=f"{where}, byte {byte}",
        found=found,
        expected=_EXPECTED,
    )


def _is_pair(pair: object) -> bool:
    """Return whether a value is a tuple or list of two integers of 64 bits."""
    if not isinstance(pair, tuple | list) or len(pair) != 2:
        return False
    return all(type(number) is int and -(2**63) <= number < 2**63 for number in pair)


def damaged(what: str, *, where: str, found: str, expected: str) -> FormatError:
    """Return the error for a damaged `.pbin`, or for a file that is none.

    Args:
        what: What is wrong, in a few words.
        where: File, and byte or document in it.
        found: What is there instead of what is expected.
        expected: What should be there.
    """
    return FormatError(
        what,
        where=where,
        found=found,
        expected=expected,
        remedy="write or fetch the file again",
    )
