"""Convert document entries ↔ the pickle that Modalities reads, without an unpickler.

The bytes are those of `pickle.dumps(entries, protocol=4)` for a list of (offset, length) tuples of int:

```
80 04                           PROTO 4
95 <uint64 n>                   FRAME: n bytes of opcodes follow, then the next frame
5d 94                           EMPTY_LIST, MEMOIZE
28  entry × 1000  65            MARK, up to a thousand entries, APPENDS; again and again
2e                              STOP

entry   <int offset> <int length> 86 94          TUPLE2, MEMOIZE
int     4b u1 | 4d u2 | 4a i4 | 8a <u1 n> <n bytes, signed>      the first that holds the value
```

A frame ends at the first tuple or int that begins 64 KiB or more after its start; a last frame below four bytes goes
without a header; a list of one entry is `entry 61` (APPEND), an empty one nothing at all.
Source: CPython `Modules/_pickle.c`, `save_long`, `save_tuple`, `batch_list_exact` and `_Pickler_OpcodeBoundary`.

Decoding: entries differ in width, so where one begins follows from the one before. The way out: every entry ends in
TUPLE2 MEMOIZE, so each place after such a pair of bytes is a candidate for the start of an entry. All candidates are
decoded at once; each tells where its successor begins; as long as that is the next candidate, all were true. Where
the pair of bytes happens to lie inside a number, the chain jumps over it. What other picklers make (protocols 2 to 5,
tuples or lists, with or without memo), and damage, goes to `read_slowly`, which lets Python's unpickler see no opcode
but those of lists, tuples and whole numbers, so that a hostile pickle runs nothing.
"""

from __future__ import annotations

import io
import pickle
import pickletools
from collections.abc import Generator, Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError

Entries = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(offsets, lengths) of consecutive documents, both int64, shape (documents,)."""
_EXPECTED = "a pickled list of (offset, length) pairs of whole numbers, and nothing else"
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
_REFUSED = "this is not an index of documents"
_HARMLESS = {*_NUMBERS, "PROTO", "FRAME", "STOP", "EMPTY_LIST", "APPEND", "MARK", "APPENDS", "TUPLE2", "TUPLE"}
_MEMO = ("MEMOIZE", "BINPUT", "LONG_BINPUT")
_GETS = ("BINGET", "LONG_BINGET")
_UNREADABLE = (pickle.UnpicklingError, ValueError, LookupError, AttributeError, TypeError, EOFError)
_PREFIX_BYTES = 64
BATCH_ENTRIES = 1000
FRAME_BYTES = 64 * 1024
_FRAME_MIN_BYTES = 4
_CHUNK_ENTRIES = 1 << 13

# Columns of a row that holds one int, everything that may surround it included.
_AT_APPENDS, _AT_OPCODE, _AT_SIZE, _AT_PAYLOAD, _AT_TUPLE2, _COLUMNS = 0, 2, 3, 4, 12, 14
_OPCODES = np.frombuffer(b"\0KM\0J\x8a\x8a\x8a\x8a", np.uint8)
"""By bytes of payload."""
_USED = np.zeros((9, _COLUMNS), bool)
"""Columns that an int with so many bytes of payload fills in any row."""
_USED[:, _AT_OPCODE] = True
_USED[5:, _AT_SIZE] = True
_USED[:, _AT_PAYLOAD:_AT_TUPLE2] = np.arange(8) < np.arange(9)[:, None]

_CHUNK_BYTES = 1 << 20
_MARGIN = 32  # zeros after a chunk, so that no look ahead leaves it
_LONGEST = 24  # bytes of an entry and what may stand before it
_FRAME, _APPENDS, _MARK, _TUPLE2, _MEMOIZE = 0x95, 0x65, 0x28, 0x86, 0x94
_LONG1 = 0x8A
# Bytes of an int's payload by its opcode; LONG1 has its own size byte.
_PAYLOADS = np.zeros(256, np.int64)
_PAYLOADS[[0x4B, 0x4D, 0x4A]] = 1, 2, 4


def encode_index(entries: Iterable[Entries]) -> Iterator[bytes]:
    """Yield the pickle of all entries in pieces; memory is bounded by the chunks given.

    Args:
        entries: chunks of any number of entries; no value is negative.
    """
    yield b"\x80\x04"
    held, done = b"]\x94", 0  # opcodes of the frame that is not complete, entries
    for offsets, lengths in _slices(entries):
        opcodes, cuts = _encode_chunk(offsets, lengths, done, marked=done > 0 or len(offsets) > 1)
        cuts, held, begin = cuts + len(held), held + opcodes, 0
        while (place := int(np.searchsorted(cuts, begin + FRAME_BYTES))) < len(cuts):
            end = int(cuts[place])
            yield _frame(held[begin:end])
            begin = end
        held = held[begin:]
        done += len(offsets)
    yield _frame(held + {0: b".", 1: b"a."}.get(done, b"e."))


def _slices(entries: Iterable[Entries]) -> Iterator[Entries]:
    """Yield chunks of at most 8,192, the first of more than one entry where there are more."""
    rest = np.empty(0, np.int64), np.empty(0, np.int64)
    for chunk in entries:
        offsets, lengths = map(np.concatenate, zip(rest, chunk, strict=True))
        rest = offsets, lengths
        if len(offsets) > 1:
            for begin in range(0, len(offsets), _CHUNK_ENTRIES):
                yield offsets[begin : begin + _CHUNK_ENTRIES], lengths[begin : begin + _CHUNK_ENTRIES]
            rest = offsets[:0], lengths[:0]
    if len(rest[0]):
        yield rest


def _encode_chunk(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64], first: int, *, marked: bool
) -> tuple[bytes, NDArray[np.int64]]:
    """Return the opcodes of k entries from number `first` on, and where a frame may end, int64, shape (2 k,)."""
    values = np.stack([offsets, lengths], axis=1).astype("<i8").reshape(-1)  # shape (2 k,): offset, length, offset, …
    sizes = _payload_bytes(values)
    rows = np.empty((len(values), _COLUMNS), np.uint8)
    rows[:] = np.frombuffer(b"e(\0\0\0\0\0\0\0\0\0\0\x86\x94", np.uint8)
    rows[:, _AT_OPCODE] = _OPCODES[sizes]
    rows[:, _AT_SIZE] = sizes
    rows[:, _AT_PAYLOAD:_AT_TUPLE2] = values.view(np.uint8).reshape(-1, 8)

    used = _USED[sizes]  # shape (2 k, columns)
    used[1::2, _AT_TUPLE2:] = True
    before = np.zeros(len(values), np.int64)  # bytes of a row in front of its opcode
    if marked:
        opens = slice(2 * (-first % BATCH_ENTRIES), None, 2 * BATCH_ENTRIES)
        used[opens, :_AT_OPCODE] = True
        before[opens] = 2
        if first == 0:
            used[0, _AT_APPENDS] = False
            before[0] = 1
    widths = before + 1 + (sizes > 4) + sizes
    widths[1::2] += 2
    return rows[used].tobytes(), np.cumsum(widths) - widths + before


def _payload_bytes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the bytes that pickle gives to each value: 1, 2, 4, or 5 to 8 with a sign."""
    sizes = np.ones(len(values), np.int64)
    for least, step in ((1 << 8, 1), (1 << 16, 2), (1 << 31, 1), (1 << 39, 1), (1 << 47, 1), (1 << 55, 1)):
        sizes += step * (values >= least)
    return sizes


def _frame(opcodes: bytes) -> bytes:
    if len(opcodes) < _FRAME_MIN_BYTES:
        return opcodes
    return b"\x95" + len(opcodes).to_bytes(8, "little") + opcodes


def decode_index(view: memoryview, begin: int, where: str) -> Iterator[Entries]:
    """Yield the entries of a pickled index in chunks, none of them empty, without checking their values.

    Memory: some 30 MB, or some 150 bytes an entry where the slow way is needed. The pickle fills the file `view` from
    byte `begin` to its end; `where` is the file's name for messages.

    Raises:
        FormatError: the pickle is anything but a list of pairs of ints; the message names the byte.
    """
    done = yield from _decode_fast(view, begin, where)
    if done is not None:
        offsets, lengths = read_slowly(view, begin, where)
        if done < len(offsets):
            yield offsets[done:], lengths[done:]


def _decode_fast(view: memoryview, begin: int, where: str) -> Generator[Entries, None, int | None]:
    """Yield entries up to the first opcode that is not as above; return how many, or None where there is no other."""
    if bytes(view[begin : begin + 2]) not in (b"\x80\x04", b"\x80\x05"):
        return 0
    held, done = np.empty(0, np.uint8), 0
    for number, part in enumerate(_chunks(view, begin + 2, where)):
        if number == 0 and part[:3].tobytes() != b"]\x94(":
            return 0  # also the empty list, and that of one entry
        stream = np.concatenate([held, part]) if number else part[3:]
        entries, used = _decode_chunk(stream)
        if used:
            yield entries
            done += len(entries[0])
        held = stream[used:]
        if len(held) >= 2 * _LONGEST:
            return done
    return None if held.tobytes() == b"e." else done


def _chunks(view: memoryview, position: int, where: str) -> Iterator[NDArray[np.uint8]]:
    """Yield the opcodes of all frames, and those without a frame, in arrays of about a MiB."""
    data = np.frombuffer(view, np.uint8)
    held: list[NDArray[np.uint8]] = []
    while position < len(view):
        begin, end = position, len(view)
        if view[position] == _FRAME:
            begin += 9
            size = int.from_bytes(view[position + 1 : begin], "little")
            if not 0 < size <= end - begin:
                what = "the index ends too early" if size else "an empty frame in the index"
                found = f"a frame of {size} bytes, {max(end - begin, 0)} bytes left"
                raise damaged(what, f"{where}, byte {position}", found, _EXPECTED)
            end = begin + size
        for first in range(begin, end, _CHUNK_BYTES):
            held.append(data[first : min(first + _CHUNK_BYTES, end)])
            if sum(map(len, held)) >= _CHUNK_BYTES:
                yield np.concatenate(held)
                held = []
        position = end
    if held:
        yield np.concatenate(held)


def _decode_chunk(stream: NDArray[np.uint8]) -> tuple[Entries, int]:
    """Return the entries at the front of `stream`, which begins where an entry does, and how many bytes they are."""
    size = len(stream)
    padded = np.zeros(size + _MARGIN, np.uint8)
    padded[:size] = stream
    starts = _candidates(stream)
    bodies = starts + 2 * ((padded[starts] == _APPENDS) & (padded[starts + 1] == _MARK))
    offsets, seconds = _decode_ints(padded, bodies)
    lengths, ends = _decode_ints(padded, seconds)
    whole = (padded[ends] == _TUPLE2) & (padded[ends + 1] == _MEMOIZE) & (ends + 2 <= size)
    whole &= (seconds > bodies) & (ends > seconds)
    chosen, used = _follow(starts, np.where(whole, ends + 2, -1))
    return (offsets[chosen], lengths[chosen]), used


def _candidates(stream: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return 0, and every position after TUPLE2 MEMOIZE; int64, shape (candidates,), ascending."""
    ends = np.flatnonzero((stream[:-1] == _TUPLE2) & (stream[1:] == _MEMOIZE))
    return np.concatenate([np.zeros(1, np.int64), ends + 2])


def _decode_ints(padded: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return (values, positions after them) of the ints that begin at `at`; where none does, the position is `at`."""
    opcodes = padded[at]
    is_long = opcodes == _LONG1
    sizes = np.where(is_long, padded[at + 1], _PAYLOADS[opcodes])
    valid = (sizes > 0) & (sizes <= 8)
    sizes = np.where(valid, sizes, 8)
    payloads = at + 1 + is_long
    # One unaligned 64-bit word for each byte position.
    words = np.ndarray((len(padded) - 7,), "<u8", buffer=padded, strides=(1,))
    shifts = (64 - 8 * sizes).astype(np.uint64)
    raised = words[np.minimum(payloads, len(words) - 1)] << shifts
    signed = (raised.view(np.int64) >> shifts.view(np.int64)).astype(np.int64)
    values = np.where(is_long | (sizes == 4), signed, (raised >> shifts).view(np.int64))
    return values, np.where(valid, np.minimum(payloads + sizes, len(padded) - 2), at)


def _follow(starts: NDArray[np.int64], successors: NDArray[np.int64]) -> tuple[NDArray[np.int64] | slice, int]:
    """Return which candidates are entries, from the first on, and where the last of them ends.

    `starts` ascend; `successors` tell where the entry after each candidate begins, -1 where it is none.
    """
    jumps = np.flatnonzero(successors[:-1] != starts[1:])
    runs: list[NDArray[np.int64]] = []
    current = 0
    while True:
        place = int(np.searchsorted(jumps, current))
        last = int(jumps[place]) if place < len(jumps) else len(starts) - 1
        if successors[last] < 0:
            runs.append(np.arange(current, last))
            return (np.concatenate(runs) if len(runs) > 1 else slice(0, last)), int(starts[last])
        # Its end is a candidate too: TUPLE2 MEMOIZE lie before it.
        runs.append(np.arange(current, last + 1))
        current = int(np.searchsorted(starts, successors[last]))


def first_number(view: memoryview, begin: int) -> int | None:
    """Return the first number in the pickle that begins at a byte; None where its first bytes hold none."""
    try:
        for opcode, argument, _ in pickletools.genops(bytes(view[begin : begin + _PREFIX_BYTES])):
            if opcode.name in _NUMBERS:
                return int(argument or 0)
    except ValueError:  # the pickle ends, or is cut here
        pass
    return None


def read_slowly(view: memoryview, begin: int, where: str) -> Entries:
    """Return the entries of a pickled index; arguments and errors as `decode_index`."""
    stream, at, known = io.BytesIO(view[begin:]), begin, 0
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if opcode.name in _MEMO and argument in (None, known):  # picklers count from 0
                known += 1
            elif opcode.name not in _HARMLESS and not (opcode.name in _GETS and int(argument or 0) < known):
                raise ValueError(opcode.name)
            at = begin + stream.tell()
        stream.seek(0)
        pairs = pickle.Unpickler(stream).load()  # noqa: S301 (none of these opcodes calls anything)
    except _UNREADABLE as error:
        name = next((one.name for one in pickletools.opcodes if view[at : at + 1] == one.code.encode("latin-1")), None)
        found = f"opcode {name}, bytes {view[at : at + 12].hex(' ')}" if at < len(view) else "the end of the file"
        raise damaged(_REFUSED, f"{where}, byte {min(at, len(view))}", found, _EXPECTED) from error
    if at != len(view) or not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        found = f"{len(view) - at} bytes after the end of the index" if at < len(view) else "other values"
        raise damaged(_REFUSED, f"{where}, byte {at if at < len(view) else begin}", found, _EXPECTED)
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


def _is_pair(pair: object) -> bool:
    return (
        isinstance(pair, tuple | list)
        and len(pair) == 2
        and all(type(number) is int and -(2**63) <= number < 2**63 for number in pair)
    )


def damaged(what: str, where: str, found: str, expected: str) -> FormatError:
    """Return the error for a file that is no sound `.pbin`."""
    return FormatError(what, where=where, found=found, expected=expected, remedy="write or fetch the file again")
