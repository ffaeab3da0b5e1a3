"""The pickled index of a `.pbin` → arrays, vectorised; no Python object per entry, and no unpickler.

The opcodes are those of `index_encoding`. Entries differ in width, so where one begins follows from the one before.
The way out: every entry ends in TUPLE2 MEMOIZE, so each place after such a pair of bytes is a candidate for the start
of an entry. All candidates are decoded at once; each tells where its successor begins; as long as that is the next
candidate, all were true. Where the pair of bytes happens to lie inside a number, the chain jumps over it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.packed.index_encoding import Entries
from nanoset_core.packed.pickle_reader import EXPECTED, REMEDY, read_slowly

_CHUNK_BYTES = 1 << 20
_MARGIN = 32  # zeros after a chunk, so that no look ahead leaves it
_LONGEST = 24  # bytes of an entry and what may stand before it
_FRAME, _APPENDS, _MARK, _TUPLE2, _MEMOIZE = 0x95, 0x65, 0x28, 0x86, 0x94
_LONG1 = 0x8A
# Bytes of an int's payload by its opcode; LONG1 has its own size byte.
_PAYLOADS = np.zeros(256, np.int64)
_PAYLOADS[[0x4B, 0x4D, 0x4A]] = 1, 2, 4


class _IrregularError(Exception):
    """These are not the opcodes that the fast way knows."""


def decode_index(view: memoryview, begin: int, where: str) -> Iterator[Entries]:
    """Chunks of (offsets int64[k], lengths int64[k]) of the pickle that fills `view` from `begin` to its end.

    where: the file, for messages. FormatError, with the byte offset, for anything but a list of pairs of ints; numbers
    are not judged. Memory: some 30 MB, whatever the file (16 bytes an entry more where the slow way is needed).
    """
    done = 0
    try:
        for entries in _decode_fast(view, begin, where):
            yield entries
            done += len(entries[0])
    except _IrregularError:
        # The slow way knows more forms, and the exact place of damage.
        for offsets, lengths in read_slowly(view, begin, where):
            if done < len(offsets):
                yield offsets[done:], lengths[done:]
            done = max(done - len(offsets), 0)


def _decode_fast(view: memoryview, begin: int, where: str) -> Iterator[Entries]:
    if bytes(view[begin : begin + 2]) not in (b"\x80\x04", b"\x80\x05"):
        raise _IrregularError
    held = np.empty(0, np.uint8)
    started = False
    for part in _chunks(view, begin + 2, where):
        stream = np.concatenate([held, part])
        if not started:
            if len(stream) < _LONGEST or stream[:3].tobytes() != b"]\x94(":
                raise _IrregularError  # also the empty list, and that of one entry
            stream, started = stream[3:], True
        entries, used = _decode_chunk(stream)
        if len(entries[0]):
            yield entries
        held = stream[used:]
        if len(held) >= 2 * _LONGEST:
            raise _IrregularError
    if held.tobytes() != b"e.":
        raise _IrregularError


def _chunks(view: memoryview, position: int, where: str) -> Iterator[NDArray[np.uint8]]:
    """The opcodes of all frames, without the frames' headers, in arrays of about a MiB."""
    data = np.frombuffer(view, np.uint8)
    held: list[NDArray[np.uint8]] = []
    size = 0
    for begin, end in _frames(view, position, where):
        for first in range(begin, end, _CHUNK_BYTES):
            held.append(data[first : min(first + _CHUNK_BYTES, end)])
            size += len(held[-1])
            if size >= _CHUNK_BYTES:
                yield np.concatenate(held)
                held, size = [], 0
    if held:
        yield np.concatenate(held)


def _frames(view: memoryview, position: int, where: str) -> Iterator[tuple[int, int]]:
    """(begin, end excl) of the opcodes of each frame; what has no frame runs to the end."""
    while position < len(view):
        if view[position] != _FRAME:
            yield position, len(view)
            return
        begin = position + 9
        size = int.from_bytes(view[position + 1 : begin], "little")
        if size == 0 or size > len(view) - begin:
            raise FormatError(
                "the index ends too early" if size else "an empty frame in the index",
                where=f"{where}, byte {position}",
                found=f"a frame of {size} bytes, {max(len(view) - begin, 0)} bytes left",
                expected=EXPECTED,
                remedy=REMEDY,
            )
        position = begin + size
        yield begin, position


def _decode_chunk(stream: NDArray[np.uint8]) -> tuple[Entries, int]:
    """The entries at the front of `stream`, which begins where an entry does, and how many bytes they are."""
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
    """0, and every position after TUPLE2 MEMOIZE; int64[c], ascending."""
    ends = np.flatnonzero((stream[:-1] == _TUPLE2) & (stream[1:] == _MEMOIZE))
    return np.concatenate([np.zeros(1, np.int64), ends + 2])


def _decode_ints(padded: NDArray[np.uint8], at: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(values, positions after them) of the ints that begin at `at`; where none does, the position is `at` itself."""
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
    """Which candidates are entries, from the first on, and where the last of them ends.

    successors int64[c]: where the entry after each candidate begins, -1 where the candidate is none.
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
