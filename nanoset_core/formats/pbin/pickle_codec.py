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
from collections.abc import Iterable, Iterator
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
        """Return the entries from `start` up to, but not including, `stop`."""
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
_LONGEST_ENTRY = 24
"""Bytes of an entry, with the opcodes that may be in front of it."""
_PADDING = 32
"""Zeros after a chunk, so that looking ahead from any of its bytes stays inside the array."""

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


def encode_index(entries: Iterable[Entries]) -> Iterator[bytes]:
    """Yield the bytes of the pickle of all entries, in pieces.

    It takes memory for a chunk of entries, however many there are.

    Args:
        entries: Chunks of any number of entries; no value is negative.
    """
    yield b"\x80\x04"  # PROTO
    pending = b"]\x94"  # EMPTY_LIST, MEMOIZE: opcodes that are in no complete frame yet
    n_entries = 0
    for chunk in _regrouped(entries):
        # If the first chunk has a single entry, there are no others.
        is_single = n_entries == 0 and len(chunk.offsets) == 1
        opcodes, int_starts = _encode_chunk(chunk, n_entries, has_marks=not is_single)
        n_entries += len(chunk.offsets)
        int_starts += len(pending)
        pending += opcodes

        # Yield all complete frames. Each ends at the first int that starts after its first 64 KiB.
        frame_start = 0
        while True:
            next_int = int(np.searchsorted(int_starts, frame_start + FRAME_BYTES))
            if next_int == len(int_starts):
                break  # no such int so far
            frame_stop = int(int_starts[next_int])
            yield _with_frame_header(pending[frame_start:frame_stop])
            frame_start = frame_stop
        pending = pending[frame_start:]

    # Close the list, and end the pickle with STOP.
    if n_entries == 0:
        pending += b"."
    elif n_entries == 1:
        pending += b"a."  # APPEND
    else:
        pending += b"e."  # APPENDS
    yield _with_frame_header(pending)


def _regrouped(chunks: Iterable[Entries]) -> Iterator[Entries]:
    """Yield entries in chunks of at most 8,192.

    The first chunk has a single entry only if there are no others: an index of one entry is pickled
    differently, so its encoder must know that.

    Args:
        chunks: The entries, in chunks of any size.
    """
    pending = Entries(np.empty(0, np.int64), np.empty(0, np.int64))  # a single one, or none
    for offsets, lengths in chunks:
        pending = Entries(
            np.concatenate([pending.offsets, offsets]),
            np.concatenate([pending.lengths, lengths]),
        )
        if len(pending.offsets) > 1:
            for start in range(0, len(pending.offsets), _CHUNK_ENTRIES):
                yield pending.slice(start, start + _CHUNK_ENTRIES)
            pending = pending.slice(0, 0)
    if len(pending.offsets):
        yield pending


def _encode_chunk(
    entries: Entries, first: int, *, has_marks: bool
) -> tuple[bytes, NDArray[np.int64]]:
    """Encode some entries.

    Each of their ints becomes a row of a table, which has a column for every byte that may belong
    to an int. For example, the first entry of an index, (6, 300); the bytes in brackets are not
    needed, and are left out of the result:

        APPENDS  MARK  opcode  size  payload           TUPLE2  MEMOIZE
        [65]     28    4b      [01]  06 [00 00 00 …]   [86]    [94]
        [65]     [28]  4d      [02]  2c 01 [00 00 …]   86      94

    Args:
        entries: The entries.
        first: Number of their first one in the index.
        has_marks: Whether batches of entries start with MARK. An index of a single entry has none.

    Returns:
        The opcodes, and the position of each int's opcode in them, shape (2 * n_entries,).
    """
    offsets, lengths = entries
    # (2 n,) offset, length, offset, …
    values = np.stack([offsets, lengths], axis=1).astype("<i8").reshape(-1)
    payload_bytes = _payload_bytes(values)

    # Make a row for each value, with all bytes that may be needed.
    rows = np.empty((len(values), _COLUMNS), np.uint8)
    rows[:] = _ROW
    rows[:, _AT_OPCODE] = _OPCODES[payload_bytes]
    rows[:, _AT_SIZE] = payload_bytes
    rows[:, _AT_PAYLOAD] = values.view(np.uint8).reshape(-1, 8)

    # Decide which of these bytes are needed, and how many they are.
    is_written = _IS_WRITTEN[payload_bytes]  # (2 n, _COLUMNS)
    bytes_before = np.zeros(len(values), np.int64)  # of each row, in front of its opcode
    bytes_after = 1 + (payload_bytes > 4) + payload_bytes  # opcode, size of LONG1, payload
    is_written[1::2, _AT_TUPLE2:] = True  # after each length, the second int of its entry
    bytes_after[1::2] += 2
    if has_marks:
        # APPENDS and MARK are between batches, in front of the offset of every 1000th entry.
        entries_to_next_batch = -first % BATCH_ENTRIES
        batch_starts = slice(2 * entries_to_next_batch, None, 2 * BATCH_ENTRIES)
        is_written[batch_starts, :_AT_OPCODE] = True
        bytes_before[batch_starts] = 2
        if first == 0:  # no batch ends in front of the first one
            is_written[0, _AT_APPENDS] = False
            bytes_before[0] = 1

    int_starts = np.cumsum(bytes_before + bytes_after) - bytes_after
    return rows[is_written].tobytes(), int_starts


def _payload_bytes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes pickle uses for each value: 1, 2, or 4 to 8.

    Integers of 1 and 2 bytes are unsigned; those of 4 to 8 bytes are signed.

    Args:
        values: Integers, none of them negative, shape (n,).
    """
    sizes = np.ones(len(values), np.int64)
    sizes += values >= 1 << 8  # 2 bytes
    sizes += 2 * (values >= 1 << 16)  # 4 bytes, since there is no int of 3
    for bits in (31, 39, 47, 55):  # 5 to 8 bytes, one of whose bits is the sign
        sizes += values >= 1 << bits
    return sizes


def _with_frame_header(opcodes: bytes) -> bytes:
    """Return a frame of a pickle: a header with the number of its bytes, and its opcodes."""
    if len(opcodes) < _FRAME_MIN_BYTES:
        return opcodes
    return bytes([_FRAME]) + len(opcodes).to_bytes(8, "little") + opcodes


def decode_index(view: memoryview, begin: int, where: str) -> Iterator[Entries]:
    """Yield the entries of a pickled index in chunks that are not empty.

    The values of the entries are not checked. Decoding takes some 30 MB of memory; or some 150
    bytes for each entry, if the pickle must be read with `unpickle_index`.

    Args:
        view: The file that ends with the pickle.
        begin: First byte of the pickle.
        where: Name of the file, for messages.

    Raises:
        FormatError: The pickle is anything but a list of pairs of ints; the message names the byte.
    """
    decoder = _FastDecoder(view, begin, where)
    yield from decoder.entries()
    if decoder.is_complete:
        return
    remaining = unpickle_index(view, begin, where).slice(decoder.n_entries)
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
        """Yield the entries up to the first unexpected opcode, in chunks.

        Chunks of opcodes may end within an entry: the rest waits for the next chunk.

        Raises:
            FormatError: A frame is empty, or longer than the file.
        """
        protocol = bytes(self._view[self._begin : self._begin + 2])
        if protocol not in (b"\x80\x04", b"\x80\x05"):
            return

        pending = np.empty(0, np.uint8)  # opcodes that are not decoded yet
        is_first = True
        for opcodes in self._opcodes():
            if is_first:
                if opcodes[:3].tobytes() != b"]\x94(":
                    return  # among others an empty list, and a list of one entry
                opcodes = opcodes[3:]
                is_first = False
            pending = np.concatenate([pending, opcodes])
            entries, n_bytes = _decode_chunk(pending)
            if n_bytes:
                yield entries
                self.n_entries += len(entries.offsets)
            pending = pending[n_bytes:]
            if len(pending) >= 2 * _LONGEST_ENTRY:
                return  # the next entry is complete, and was not recognised
        self.is_complete = pending.tobytes() == b"e."

    def _opcodes(self) -> Iterator[NDArray[np.uint8]]:
        """Yield the opcodes, without headers of frames, in arrays of about a MiB."""
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
        """Yield the start and the stop of the opcodes of each frame.

        Opcodes without a header extend to the end of the file.
        """
        position = self._begin + 2  # after the opcode PROTO and the version of the protocol
        while position < len(self._view):
            if self._view[position] != _FRAME:
                yield position, len(self._view)
                return
            # The header of a frame is the opcode FRAME and the size, a number of 8 bytes.
            start = position + 9
            size = int.from_bytes(self._view[position + 1 : start], "little")
            bytes_left = max(len(self._view) - start, 0)
            if not 0 < size <= bytes_left:
                what = "the index ends too early" if size else "an empty frame in the index"
                raise damaged(
                    what,
                    where=f"{self._where}, byte {position}",
                    found=f"a frame of {size} bytes, {bytes_left} bytes left",
                    expected=_EXPECTED,
                )
            position = start + size
            yield start, position


def _decode_chunk(opcodes: NDArray[np.uint8]) -> tuple[Entries, int]:
    """Decode the entries at the start of some opcodes, up to the first that is not complete.

    For example, the opcodes `4b 00 4b 06 86 94  4b 06 4d 2c` have the candidates 0 and 6, the
    positions after each TUPLE2 MEMOIZE. At 0 is the entry (0, 6), which ends at 6. At 6 is no
    complete entry. So the result is (0, 6), which has 6 bytes.

    Args:
        opcodes: uint8, shape (n_bytes,); the first byte starts an entry.

    Returns:
        (the entries, how many bytes they have)
    """
    size = len(opcodes)
    padded = np.zeros(size + _PADDING, np.uint8)
    padded[:size] = opcodes

    # Decode an entry at each candidate; the arrays below have shape (n_candidates,).
    starts = _candidates(opcodes)
    has_mark = (padded[starts] == _APPENDS) & (padded[starts + 1] == _MARK)
    first_ints = starts + 2 * has_mark
    offsets, second_ints = _decode_ints(padded, first_ints)
    lengths, stops = _decode_ints(padded, second_ints)

    # An entry has two ints, and ends in TUPLE2 MEMOIZE before the end of the opcodes.
    is_entry = (padded[stops] == _TUPLE2) & (padded[stops + 1] == _MEMOIZE) & (stops + 2 <= size)
    is_entry &= (second_ints > first_ints) & (stops > second_ints)
    next_starts = np.where(is_entry, stops + 2, -1)

    chosen, n_bytes = _follow(starts, next_starts)
    return Entries(offsets[chosen], lengths[chosen]), n_bytes


def _candidates(opcodes: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return 0 and every position after TUPLE2 MEMOIZE, ascending, shape (n_candidates,)."""
    pairs = np.flatnonzero((opcodes[:-1] == _TUPLE2) & (opcodes[1:] == _MEMOIZE))
    return np.concatenate([np.zeros(1, np.int64), pairs + 2])


def _decode_ints(
    padded: NDArray[np.uint8], positions: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Decode the int that starts at each of some positions.

    For example, `4d 2c 01` is BININT2 with a payload of two bytes, 300, and ends after 3 bytes.

    Args:
        padded: Opcodes, with at least 32 zeros after them.
        positions: Where ints may start, shape (n_positions,).

    Returns:
        (values, positions after them), both of shape (n_positions,). If there is no int at a
        position, the position after it is the same.
    """
    opcodes = padded[positions]
    is_long = opcodes == _LONG1  # an int whose size is in the byte after the opcode
    sizes = np.where(is_long, padded[positions + 1], _PAYLOAD_BYTES[opcodes])  # of the payloads
    is_int = (sizes > 0) & (sizes <= 8)
    sizes = np.where(is_int, sizes, 8)  # any size that the code below can handle
    payloads = positions + 1 + is_long  # where they start

    # Read eight bytes at each payload: an array of one unaligned word for each byte position.
    words = np.ndarray((len(padded) - 7,), "<u8", buffer=padded, strides=(1,))
    payload_words = words[np.minimum(payloads, len(words) - 1)]

    # Shift out the bytes after the payload to the left, and shift back, with or without the sign.
    shifts = (64 - 8 * sizes).astype(np.uint64)
    shifted = payload_words << shifts
    signed = (shifted.view(np.int64) >> shifts.view(np.int64)).astype(np.int64)
    unsigned = (shifted >> shifts).view(np.int64)
    values = np.where(is_long | (sizes == 4), signed, unsigned)  # 1 and 2 bytes have no sign

    stops = np.minimum(payloads + sizes, len(padded) - 2)
    return values, np.where(is_int, stops, positions)


def _follow(
    starts: NDArray[np.int64], next_starts: NDArray[np.int64]
) -> tuple[NDArray[np.int64] | slice, int]:
    """Follow the chain of entries from the first candidate on.

    For example, candidates 0 to 3 start at 0, 6, 9 and 15, and candidate 1 is an entry that extends
    to 15: the bytes before 9 only look like the end of an entry. Candidate 3 is not complete.

        starts         0  6   9   15
        next_starts    6  15  15  -1
        chosen         0, 1                  the last one ends at 15

    Args:
        starts: Positions of the candidates, ascending, shape (n_candidates,).
        next_starts: Where the entry after each candidate starts; -1 for a candidate that is no
            entry.

    Returns:
        (which candidates are entries, where the last entry ends)
    """
    # Numbers of the candidates whose entry does not end where the next candidate starts.
    jumps = np.flatnonzero(next_starts[:-1] != starts[1:])
    runs: list[NDArray[np.int64]] = []  # numbers of candidates
    current = 0
    while True:
        # All candidates from the current one to the next jump follow each other.
        number = int(np.searchsorted(jumps, current))
        last = int(jumps[number]) if number < len(jumps) else len(starts) - 1
        if next_starts[last] < 0:
            runs.append(np.arange(current, last))
            break
        # The end of an entry is a candidate, too, since TUPLE2 MEMOIZE are in front of it.
        runs.append(np.arange(current, last + 1))
        current = int(np.searchsorted(starts, next_starts[last]))

    stop = int(starts[last])
    if len(runs) == 1:
        return slice(0, last), stop  # the usual case, without a copy
    return np.concatenate(runs), stop


def first_number(view: memoryview, begin: int) -> int | None:
    """Return the first number in a pickle, or None if its first 64 bytes contain no number.

    Args:
        view: The file.
        begin: First byte of the pickle.
    """
    try:
        for opcode, argument, _ in pickletools.genops(bytes(view[begin : begin + _PREFIX_BYTES])):
            if opcode.name in _NUMBERS:
                return int(argument or 0)
    except ValueError:
        pass  # the pickle is damaged, or goes on after these bytes
    return None


def unpickle_index(view: memoryview, begin: int, where: str) -> Entries:
    """Load a pickled index with Python's unpickler, after all its opcodes were checked.

    This reads the output of any pickler, but takes longer than `_FastDecoder`. The check comes
    first because a hostile pickle can run any code while it is loaded.

    Args:
        view: The file that ends with the pickle.
        begin: First byte of the pickle.
        where: Name of the file, for messages.

    Returns:
        All entries of the index.

    Raises:
        FormatError: The pickle is anything but a list of pairs of ints; the message names the byte.
    """
    stream = io.BytesIO(view[begin:])
    position = begin  # of the file, after the last opcode that passed the check
    memo_size = 0  # number of objects in the memo
    try:
        # A pickle stores objects in a numbered memo and refers to them by number. All picklers
        # count these numbers from 0. So an object must get the next number, as a huge one would
        # make the unpickler allocate a huge memo; and a reference must name a stored object.
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in _MEMO_WRITES:
                # MEMOIZE has no argument: it always takes the next number.
                is_allowed = argument is None or argument == memo_size
                memo_size += 1
            elif opcode.name in _MEMO_READS:
                is_allowed = int(argument or 0) < memo_size
            else:
                is_allowed = opcode.name in _DATA_OPCODES
            if not is_allowed:
                raise ValueError(opcode.name)
            position = begin + stream.tell()

        stream.seek(0)
        pairs = pickle.Unpickler(stream).load()  # noqa: S301 (none of these opcodes calls anything)
    except _PICKLE_ERRORS as error:
        raise _refused_at(view, position, where) from error

    if position != len(view):
        raise _no_index(
            where, position, found=f"{len(view) - position} bytes after the end of the index"
        )
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        raise _no_index(where, begin, found="other values")

    table = np.array(pairs, np.int64).reshape(-1, 2)  # (n_entries, 2)
    return Entries(
        offsets=np.ascontiguousarray(table[:, 0]),
        lengths=np.ascontiguousarray(table[:, 1]),
    )


def _refused_at(view: memoryview, position: int, where: str) -> FormatError:
    """Return the error for a pickle that cannot be read beyond a byte.

    There may be an opcode that no index has, damage, or the end of the file.

    Args:
        view: The file that ends with the pickle.
        position: The byte after the last opcode that could be read.
        where: Name of the file, for the message.
    """
    if position >= len(view):
        return _no_index(where, len(view), found="the end of the file")
    # Name the opcode, if the byte is one.
    name = None
    for opcode in pickletools.opcodes:
        if opcode.code.encode("latin-1") == view[position : position + 1]:
            name = opcode.name
    next_bytes = view[position : position + 12].hex(" ")
    return _no_index(where, position, found=f"opcode {name}, bytes {next_bytes}")


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
