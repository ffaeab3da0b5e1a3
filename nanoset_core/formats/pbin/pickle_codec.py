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
_CHUNK_ENTRIES = 8 * BATCH_ENTRIES
"""Entries that are encoded at once, whole batches."""
FRAME_BYTES = 64 * 1024
"""Bytes after which a frame ends at the next tuple or int."""
_FRAME_MIN_BYTES = 4
"""Shorter frames have no header."""
_CHUNK_BYTES = 1 << 20
"""Bytes that are decoded at once."""

# Opcodes of the pickles that Python's own pickler writes.
_FRAME = 0x95
_MARK = 0x28
_APPENDS = 0x65
_TUPLE2 = 0x86
_MEMOIZE = 0x94
_BININT = 0x4A
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
"""PROTO and its version, of pickles that can be decoded in the fast way."""

# Encoding: a number becomes a row of a table that has all bytes it may need; see `_encode`.
_NUMBER_COLUMNS = 10
"""Opcode, size of the payload, and eight bytes of payload."""
_OPCODES = np.frombuffer(b"\0KM\0J\x8a\x8a\x8a\x8a", np.uint8)
"""Bytes of payload → opcode of a number."""
_IS_NEEDED = np.zeros((9, _NUMBER_COLUMNS), bool)
"""Bytes of payload → the columns that are written of such a number."""
_IS_NEEDED[:, 0] = True  # the opcode
_IS_NEEDED[5:, 1] = True  # only LONG1, for 5 bytes and more, has a byte for the size
_IS_NEEDED[:, 2:] = np.arange(8) < np.arange(9)[:, None]  # as many bytes as there are
_NUMBER_BYTES = _IS_NEEDED.sum(axis=1)
"""Bytes of payload → bytes that are written of such a number: 2, with its opcode, for 1."""
_PAIR_OPCODES = (_TUPLE2, _MEMOIZE)
"""After the two numbers of an entry, these make a pair of them, one byte each."""

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
    """The bytes of the opcodes."""
    int_starts: NDArray[np.int64]
    """Position in `data` of each int, ascending, shape (n_ints,). Frames may end there."""


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
    """Yield the opcodes (instructions) of a pickled list of entries, in parts of one batch or less.

    A pickle is a program that builds a value. For a list, Python's pickle writes these opcodes:

        empty list            EMPTY_LIST STOP
        1 entry               EMPTY_LIST entry APPEND STOP
        2 to 1000 entries     EMPTY_LIST MARK entry entry … APPENDS STOP
        more entries          EMPTY_LIST MARK 1000 entries APPENDS MARK the next ones APPENDS … STOP

    After EMPTY_LIST there is a MEMOIZE, which numbers the list.
    """
    yield _without_ints(b"]\x94")  # EMPTY_LIST, MEMOIZE
    is_first_chunk = True
    for chunk in _whole_batches(entries):  # chunks of 1000 entries, 2000 …; the last may be smaller
        opcodes = _encode(chunk)
        is_only_entry = is_first_chunk and len(chunk.offsets) == 1
        if is_only_entry:
            yield opcodes
            yield _without_ints(b"a")  # APPEND
        else:
            yield from _between_marks(opcodes)
        is_first_chunk = False
    yield _without_ints(b".")  # STOP


def _between_marks(opcodes: _Opcodes) -> Iterator[_Opcodes]:
    """Divide encoded entries into batches of 1000, and put each between MARK and APPENDS.

    Python's pickle writes the entries of a list in this way: MARK, which is the byte "(", then up
    to 1000 entries, then APPENDS, the byte "e".

    For example, of 2500 entries of 7 bytes each, the batches are the bytes 0 to 7,000, 7,000 to
    14,000, and 14,000 to 17,500.

    Args:
        opcodes: The entries, encoded. An entry has two ints, its offset and its length, so a batch
            has 2000.

    Yields:
        The batches.
    """
    ints_per_batch = 2 * BATCH_ENTRIES
    starts: list[int] = opcodes.int_starts[::ints_per_batch].tolist()  # 0, 7000, 14000
    stops = [*starts[1:], len(opcodes.data)]  # 7000, 14000, 17500
    for batch, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        data = b"(" + opcodes.data[start:stop] + b"e"

        # Where each int of the batch starts in `data`: the first one at byte 1, after the "(".
        first_int = batch * ints_per_batch
        int_starts = opcodes.int_starts[first_int : first_int + ints_per_batch]
        yield _Opcodes(data, 1 + int_starts - start)


def _without_ints(data: bytes) -> _Opcodes:
    """Return opcodes of a pickle among which there is no int."""
    return _Opcodes(data, int_starts=np.empty(0, np.int64))


def _framed(chunks: Iterable[_Opcodes]) -> Iterator[bytes]:
    """Divide the bytes of a pickle into frames of about 64 KiB, and yield each with its header.

    A header has the number of bytes in its frame, so that a reader can load the frame at once.

    Args:
        chunks: The bytes in parts of any size, each with the positions of the numbers in it: frames
            end in front of a number.
    """
    buffer = b""  # bytes that are in no frame yet
    for chunk in chunks:
        int_starts = len(buffer) + chunk.int_starts  # positions in the buffer
        buffer += chunk.data
        frame_start = 0
        for frame_stop in _frame_stops(int_starts):
            yield _with_frame_header(buffer[frame_start:frame_stop])
            frame_start = frame_stop
        buffer = buffer[frame_start:]
    yield _with_frame_header(buffer)


def _frame_stops(int_starts: NDArray[np.int64]) -> list[int]:
    """Return where the complete frames of a pickle end, if the first one starts at 0.

    Python's pickler looks at the length of the frame whenever it is about to write a number. If the
    frame has 64 KiB (65,536 bytes) or more, it ends there. For example:

        numbers are written at    0    40,000    70,000    100,000    140,000
        frames end at                            70,000               140,000

    Args:
        int_starts: Position of each number in the output, ascending, shape (n_ints,).
    """
    stops: list[int] = []
    frame_start = 0
    while True:
        # The first number that starts 64 KiB or more after the frame
        index = int(np.searchsorted(int_starts, frame_start + FRAME_BYTES))
        if index == len(int_starts):
            return stops  # the last frame is not complete yet
        frame_start = int(int_starts[index])
        stops.append(frame_start)


def _whole_batches(chunks: Iterable[Entries]) -> Iterator[Entries]:
    """Yield entries in chunks of up to 8 whole batches of 1000; only the last may be smaller.

        chunks of     300    1900    800    entries
        become        2000           1000   entries

    Args:
        chunks: Chunks of any number of entries.
    """
    no_entries = np.empty(0, np.int64)
    remaining = Entries(no_entries, no_entries)  # those that do not fill a batch yet
    for offsets, lengths in chunks:
        entries = Entries(
            np.concatenate([remaining.offsets, offsets]),
            np.concatenate([remaining.lengths, lengths]),
        )
        n_in_batches = len(entries.offsets) // BATCH_ENTRIES * BATCH_ENTRIES
        for start in range(0, n_in_batches, _CHUNK_ENTRIES):
            yield entries.slice(start, min(start + _CHUNK_ENTRIES, n_in_batches))
        remaining = entries.slice(n_in_batches)
    if len(remaining.offsets):
        yield remaining


def _encode(entries: Entries) -> _Opcodes:
    """Write entries exactly as Python's pickle would write them, all at the same time.

    An entry is a pair: at which byte a document starts, and how many bytes it has. Pickle writes
    the entry (6, 300) as follows:

        4b 06       opcode BININT1, and the number 6 in one byte
        4d 2c 01    opcode BININT2, and the number 300 in two bytes
        86 94       opcodes TUPLE2 and MEMOIZE: they make a pair of the two numbers

    First make a table with a row for each entry, in which each number has 10 bytes. Then select
    those that are needed. The others are in brackets here:

        4b [01] 06 [00 00 00 …]    4d [02] 2c 01 [00 00 …]    86 94

    Returns:
        The bytes of all entries, and where each number starts in them.
    """
    n_entries = len(entries.offsets)
    offset_sizes = _payload_bytes(entries.offsets)  # (n_entries,) 1, as 6 needs one byte
    length_sizes = _payload_bytes(entries.lengths)  # (n_entries,) 2, as 300 needs two bytes

    # (n_entries, 22) all bytes, and which of them are needed for numbers of these sizes.
    tuple_opcodes = np.full((n_entries, len(_PAIR_OPCODES)), _PAIR_OPCODES, np.uint8)
    table = np.hstack(
        [
            _number_table(entries.offsets, offset_sizes),
            _number_table(entries.lengths, length_sizes),
            tuple_opcodes,
        ]
    )
    always_needed = np.ones(tuple_opcodes.shape, bool)
    is_needed = np.hstack([_IS_NEEDED[offset_sizes], _IS_NEEDED[length_sizes], always_needed])
    data = table[is_needed].tobytes()  # row by row, so the entries stay in order

    return _Opcodes(data, _int_starts(offset_sizes, length_sizes))


def _int_starts(
    offset_sizes: NDArray[np.int64], length_sizes: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return at which byte of some pickled entries each number starts.

    An entry is two numbers, its offset and its length, each with an opcode of one byte, and the two
    opcodes that make a pair of them. For example, the entries (6, 300) and (306, 5):

        bytes of the entries    2 + 3 + 2    3 + 2 + 2
        numbers start at        0   2        7   10

    Args:
        offset_sizes: How many bytes each offset needs: 1 2; shape (n_entries,).
        length_sizes: How many bytes each length needs: 2 1; shape (n_entries,).

    Returns:
        Shape (2 * n_entries,): 0 2 7 10.
    """
    offset_bytes = _NUMBER_BYTES[offset_sizes]  # (n_entries,) with the opcode: 2 3
    length_bytes = _NUMBER_BYTES[length_sizes]  # (n_entries,) with the opcode: 3 2
    entry_bytes = offset_bytes + length_bytes + len(_PAIR_OPCODES)  # 7 7
    offset_starts = np.cumsum(entry_bytes) - entry_bytes  # 0 7
    length_starts = offset_starts + offset_bytes  # 2 10
    return np.column_stack([offset_starts, length_starts]).reshape(-1)


def _number_table(numbers: NDArray[np.int64], sizes: NDArray[np.int64]) -> NDArray[np.uint8]:
    """Return a row of 10 bytes for each number: all bytes that Python's pickle may write for it.

        number          opcode    size    the number in 8 bytes, lowest first
        6               4b        01      06 00 00 00 00 00 00 00
        300             4d        02      2c 01 00 00 00 00 00 00

    Args:
        numbers: Shape (n,).
        sizes: How many bytes pickle needs for each number itself: 1 for 6, and 2 for 300.

    Returns:
        uint8, shape (n, 10).
    """
    table = np.empty((len(numbers), _NUMBER_COLUMNS), np.uint8)
    table[:, 0] = _OPCODES[sizes]
    table[:, 1] = sizes
    table[:, 2:] = numbers.astype("<i8").view(np.uint8).reshape(-1, 8)
    return table


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
    n_entries = 0
    undecoded = np.empty(0, np.uint8)  # first bytes of an entry that ends in the next chunk
    for chunk in _entry_bytes(view, begin, where):
        undecoded = np.concatenate([undecoded, chunk])
        entries, n_decoded_bytes = _decode_chunk(undecoded)
        if n_decoded_bytes:
            yield entries
            n_entries += len(entries.offsets)
        undecoded = undecoded[n_decoded_bytes:]
        has_unusual_entry = len(undecoded) >= _ENOUGH_FOR_ENTRY
        if has_unusual_entry:
            break
    is_complete = undecoded.tobytes() == _LIST_END
    if is_complete:
        return

    # Unpickle the whole index, and yield the entries that could not be decoded.
    all_entries = unpickle_index(view, begin, where)
    remaining = all_entries.slice(n_entries)
    if len(remaining.offsets):
        yield remaining


def _entry_bytes(view: memoryview, begin: int, where: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the bytes of a pickled list from its first entry on, in chunks of about a MiB.

    A pickle that Python has written in protocol 4 or 5 begins like this:

        80 04                         the protocol
        95 00 00 01 00 00 00 00 00    header of a frame; others follow after 64 KiB each
        5d 94 28                      start of a list
        4b 00 4b 06 86 94 …           the first entry

    The first three lines, and the headers of all other frames, are left out. If the pickle begins
    in any other way, perhaps because another program has written it, nothing is yielded.

    Args:
        view: The file that ends with the pickle.
        begin: First byte of the pickle.
        where: Name of the file, for messages.
    """
    protocol = bytes(view[begin : begin + _PROTOCOL_BYTES])
    if protocol not in _FAST_PROTOCOLS:
        return
    chunks = _frame_contents(view, begin + _PROTOCOL_BYTES, where)  # without headers of frames
    first_chunk = next(chunks, np.empty(0, np.uint8))
    starts_list = first_chunk[: len(_LIST_START)].tobytes() == _LIST_START
    if starts_list:
        yield first_chunk[len(_LIST_START) :]
        yield from chunks


def _frame_contents(view: memoryview, begin: int, where: str) -> Iterator[NDArray[np.uint8]]:
    """Yield what a pickle contains except for the headers of its frames, in chunks of about a MiB.

    Pickle divides what it writes into frames of about 64 KiB, each with a header in front of it.

    Args:
        view: The file that ends with the pickle.
        begin: Position of the first header.
        where: Name of the file, for messages.
    """
    data = np.frombuffer(view, np.uint8)
    parts: list[NDArray[np.uint8]] = []  # parts of the next chunk
    n_bytes = 0
    for frame_start, frame_stop in _frames(view, begin, where):
        # A frame of another program may have any size: take it in parts of a MiB, too.
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


def _frames(view: memoryview, begin: int, where: str) -> Iterator[tuple[int, int]]:
    """Yield where the content of each frame of a pickle starts and stops.

    Pickle divides what it writes into frames. Each has a header of 9 bytes with its size, except
    perhaps a short one at the end of the file:

        header    content of 65,540 bytes    header    content of 800 bytes
        2         11 to 65,551               65,551    65,560 to 66,360

    Args:
        view: The file that ends with the pickle.
        begin: Position of the first header.
        where: Name of the file, for messages.
    """
    header = begin
    while header < len(view):
        # Only the last frame may have no header: it extends to the end of the file.
        if view[header] != _FRAME:
            yield header, len(view)
            return
        start = header + _FRAME_HEADER_BYTES
        stop = start + _frame_bytes(view, header, where)
        yield start, stop
        header = stop


def _frame_bytes(view: memoryview, header: int, where: str) -> int:
    """Return how many bytes follow after the header of a frame, as the header says.

    A header is the byte 95, and the size as a number of eight bytes: 95 00 00 01 00 00 00 00 00
    stands for 65,536 bytes.

    Args:
        view: The file.
        header: Position of the header.
        where: Name of the file, for messages.

    Raises:
        FormatError: The number is zero, or the file has fewer bytes after the header.
    """
    header_stop = header + _FRAME_HEADER_BYTES
    frame_bytes = int.from_bytes(view[header + 1 : header_stop], "little")
    bytes_left = max(len(view) - header_stop, 0)
    if 0 < frame_bytes <= bytes_left:
        return frame_bytes

    if frame_bytes == 0:
        what = "an empty frame in the index"
    else:
        what = "the index ends too early"
    raise damaged(
        what,
        where=f"{where}, byte {header}",
        found=f"a frame of {frame_bytes} bytes, {bytes_left} bytes left",
        expected=_EXPECTED,
    )


def _decode_chunk(opcodes: NDArray[np.uint8]) -> tuple[Entries, int]:
    """Decode the complete pairs of numbers at the start of some bytes of a pickle.

    For example, the first 6 of these bytes are the pair (0, 6). The others are the start of another
    pair, which the next chunk will complete. So the result is (0, 6), and that it takes 6 bytes:

        4b 00  4b 06  86 94    4b 06  4d 2c
        0      6      a pair   6      300 (its last byte is missing)

    Pairs differ in size, so decoding them in sequence would take a loop, which is slow. But each
    pair ends with the bytes 86 94. So this function decodes a pair after each 86 94, all at the
    same time. Then it leaves out the wrong ones, whose 86 94 was in the middle of a number.

    Args:
        opcodes: uint8, shape (n_bytes,); the first byte starts a pair.

    Returns:
        (the pairs, how many bytes they take)
    """
    starts = _candidates(opcodes)  # (n_candidates,) 0, and the positions after each 86 94: 0 6
    padded = np.pad(opcodes, (0, _PADDING))  # zeros, to look ahead from the last position
    candidates = _decode_candidates(padded, starts)  # they stop at 6 -1; -1 is an incomplete pair

    # Begin with the pair at byte 0. Where it stops, the next one starts, and so on.
    slices = list(_slices_of_entries(starts, candidates.stops))  # of the candidates: [0:1]
    pairs = Entries(
        offsets=_in_slices(candidates.offsets, slices),
        lengths=_in_slices(candidates.lengths, slices),
    )
    # The last slice always stops at the first incomplete pair, here 1. It starts at byte 6.
    first_incomplete = slices[-1].stop
    n_decoded_bytes = int(starts[first_incomplete])
    return pairs, n_decoded_bytes


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
    """Decode a pickled index entry at each of some positions, all at the same time.

    An entry is two numbers: the offset of a document in a file, and its length. Pickle writes both,
    and then the opcodes TUPLE2 and MEMOIZE (86 94). Pickle also writes entries in batches of 1000.
    After a batch, the opcodes APPENDS and MARK (65 28) are in front of the next entry:

        start    bytes from there on            offset, length    stop
        20       4b 00 4b 06 86 94              0, 6              26
        26       65 28 4b 06 4b 09 86 94        6, 9              34
        34       4b 0f, and the bytes end       any numbers       -1    (-1: no complete entry)

    Args:
        padded: Bytes of the pickle, with zeros after them, so that all bytes looked at exist.
        starts: Positions at which an entry may start, shape (n_candidates,).
    """
    # The offset is at the position, or after APPENDS and MARK: 20, 28, 34. The length follows.
    is_after_batch = _has_two_bytes(padded, starts, _APPENDS, _MARK)
    offset_starts = np.where(is_after_batch, starts + 2, starts)  # (n_candidates,)
    offsets = _decode_ints(padded, offset_starts)
    lengths = _decode_ints(padded, offsets.stops)

    # It is an entry if both are numbers, and TUPLE2 and MEMOIZE are after them.
    has_tuple = _has_two_bytes(padded, lengths.stops, _TUPLE2, _MEMOIZE)
    is_entry = offsets.is_int & lengths.is_int & has_tuple
    stops = np.where(is_entry, lengths.stops + 2, -1)
    return _DecodedCandidates(offsets.values, lengths.values, stops)


def _has_two_bytes(
    padded: NDArray[np.uint8], positions: NDArray[np.int64], first: int, second: int
) -> NDArray[np.bool_]:
    """Return whether two given bytes are at each position, shape (n_positions,)."""
    has_first = padded[positions] == first
    has_second = padded[positions + 1] == second
    has_both: NDArray[np.bool_] = has_first & has_second
    return has_both


class _Ints(NamedTuple):
    """What was decoded at some positions of a pickle; all arrays have shape (n_positions,)."""

    values: NDArray[np.int64]
    """The int at each position; any number if there is no int."""
    stops: NDArray[np.int64]
    """Position after each int; any position inside the array if there is no int."""
    is_int: NDArray[np.bool_]
    """Whether there is an int at the position."""


def _decode_ints(padded: NDArray[np.uint8], positions: NDArray[np.int64]) -> _Ints:
    """Decode a pickled number at each of some positions, all at the same time.

    Pickle writes a number as an opcode, which says how many bytes the number has, and these bytes,
    the lowest first:

        4b 06                  BININT1: 1 byte              6
        4d 2c 01               BININT2: 2 bytes             300
        4a 40 42 0f 00         BININT: 4 bytes, signed      1,000,000
        8a 05 00 f2 05 2a 01   LONG1: a byte says how       5,000,000,000
                               many, here 5; signed

    A position without one of these opcodes stays in the arrays, so that all of them have the same
    shape. There, `is_int` is False, and the caller ignores the value.

    Args:
        padded: Bytes of the pickle, with 32 zeros after them, so that all bytes looked at exist.
        positions: Where numbers may start, shape (n_positions,).
    """
    fields = _int_fields(padded, positions)
    is_int = (fields.sizes > 0) & (fields.sizes <= _WORD_BYTES)
    sizes = np.where(is_int, fields.sizes, _WORD_BYTES)  # a valid size also without a number
    eight_bytes = _words_at(padded, fields.starts)  # the bytes of the number, and those after it
    values = _first_bytes(eight_bytes, sizes, fields.is_signed)

    # The caller looks at two bytes from each stop on, so these must be within the array.
    stops = np.minimum(fields.starts + sizes, len(padded) - 2)
    return _Ints(values, stops, is_int)


class _IntFields(NamedTuple):
    """Where the bytes of pickled numbers are; all arrays have shape (n_positions,)."""

    starts: NDArray[np.int64]
    """Position of the first byte of each number, after its opcode."""
    sizes: NDArray[np.int64]
    """How many bytes it has. 0, or more than 8, if there is no number."""
    is_signed: NDArray[np.bool_]


def _int_fields(padded: NDArray[np.uint8], positions: NDArray[np.int64]) -> _IntFields:
    """Find the bytes of the pickled numbers at some positions, by the opcodes there.

        position    bytes             start    size    signed
        20          4b 06             21       1       no
        22          8a 02 2c 01       24       2       yes: LONG1, with a byte that says the size
        26          86, no number     27       0       no

    Args:
        padded: Bytes of the pickle, with zeros after them, so that all bytes looked at exist.
        positions: Where numbers may start, shape (n_positions,).
    """
    opcodes = padded[positions]
    is_long = opcodes == _LONG1
    return _IntFields(
        starts=np.where(is_long, positions + 2, positions + 1),
        sizes=np.where(is_long, padded[positions + 1], _PAYLOAD_BYTES[opcodes]),
        is_signed=is_long | (opcodes == _BININT),
    )


def _words_at(padded: NDArray[np.uint8], positions: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the eight bytes from each position on, as one number with the lowest byte first.

    For example, the bytes 2c 01 00 00 00 00 00 00 are the number 0x012c, which is 300.

    Args:
        padded: Any bytes, at least eight.
        positions: Positions of `padded`. One that has fewer than eight bytes after it counts as
            the last one that has eight.
    """
    n_words = len(padded) - (_WORD_BYTES - 1)  # positions that have eight bytes
    # A view with a word for each position. The words overlap: from one to the next is one byte.
    overlapping_words = np.ndarray((n_words,), "<u8", buffer=padded, strides=(1,))
    return overlapping_words[np.minimum(positions, n_words - 1)]


def _first_bytes(
    words: NDArray[np.uint64], n_bytes: NDArray[np.int64], is_signed: NDArray[np.bool_]
) -> NDArray[np.int64]:
    """Return the number in the lowest bytes of each word of 64 bits.

        word                  n_bytes    number
        0x869401064b01012c    2          0x012c = 300
        0x869401064bfffffe    3          0xfffffe = -2, if it is signed

    Args:
        words: Shape (n,).
        n_bytes: How many bytes of each word belong to the number, 1 to 8.
        is_signed: Whether the highest bit of the number is its sign.
    """
    # Shift the highest bytes out, to the left, and the number back, to the right. That fills in
    # zeros if the type is unsigned, and copies of the sign if it is signed.
    n_unused_bits = (64 - 8 * n_bytes).astype(np.uint64)
    shifted = words << n_unused_bits  # 0x012c000000000000
    unsigned = (shifted >> n_unused_bits).view(np.int64)
    signed = shifted.view(np.int64) >> n_unused_bits.view(np.int64)
    return np.where(is_signed, signed, unsigned)


def _slices_of_entries(starts: NDArray[np.int64], stops: NDArray[np.int64]) -> Iterator[slice]:
    """Yield slices of those candidates that follow each other without gaps and overlaps.

    A candidate is a range of bytes that may be an entry. The first one is an entry. Where it stops,
    the next entry starts, and so on. Candidates within an entry are skipped:

        candidate   0    1    2    3    4
        starts      0    6    9    15   21
        stops       6    15   15   21   -1    (-1: the end of this one has not been read yet)
        is entry    yes  yes  no   yes  no

    So the slices are [0:2] and [3:4]. The last slice always stops at the incomplete candidate, and
    is empty if that is where it starts.

    Args:
        starts: Positions of the candidates, ascending, shape (n_candidates,).
        stops: Where each candidate ends, always at the start of another; -1 if it is incomplete.
    """
    # A slice can only end with a candidate that does not stop where the next one starts: 1 or 4.
    stops_elsewhere = np.append(stops[:-1] != starts[1:], True)
    possible_ends = np.flatnonzero(stops_elsewhere)
    first_entry = 0
    while True:
        last_entry = int(possible_ends[np.searchsorted(possible_ends, first_entry)])
        stop = stops[last_entry]
        is_incomplete = stop < 0
        if is_incomplete:
            yield slice(first_entry, last_entry)
            return
        yield slice(first_entry, last_entry + 1)
        first_entry = int(np.searchsorted(starts, stop))  # the candidate that starts at this stop


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
    """Return the error for a damaged index, which shows the byte that is wrong.

    An index is a pickle, which consists of opcodes (instructions). So the error says, for example,
    "opcode GLOBAL, bytes 63 6f 73 0a …", or "the end of the file" if the index is cut off.

    Args:
        view: The file that ends with the index.
        position: The byte that is wrong.
        where: Name of the file.
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
