"""Document entries → the pickle that Modalities reads, without a Python object per entry.

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
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

Entries = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(offsets, lengths) of consecutive documents, both int64[documents]."""

BATCH_ENTRIES = 1000
FRAME_BYTES = 64 * 1024
_FRAME_MIN_BYTES = 4
_CHUNK_ENTRIES = 1 << 13

# Columns of a row that holds one int, everything that may surround it included.
_APPENDS, _OPCODE, _SIZE, _PAYLOAD, _TUPLE2, _COLUMNS = 0, 2, 3, 4, 12, 14
_OPCODES = np.frombuffer(b"\0KM\0J\x8a\x8a\x8a\x8a", np.uint8)
"""By bytes of payload."""
_USED = np.zeros((9, _COLUMNS), bool)
"""Columns that an int with so many bytes of payload fills in any row."""
_USED[:, _OPCODE] = True
_USED[5:, _SIZE] = True
_USED[:, _PAYLOAD:_TUPLE2] = np.arange(8) < np.arange(9)[:, None]


def encode_index(entries: Iterable[Entries]) -> Iterator[bytes]:
    """The pickle of all entries in pieces; memory is bounded by the chunks that come in.

    entries: chunks of (offsets int64[k], lengths int64[k]), any k, no negative value.
    """
    yield b"\x80\x04"
    framer = _Framer(b"]\x94")
    done = 0
    for offsets, lengths in rechunk(entries, _CHUNK_ENTRIES):
        alone = done == 0 and len(offsets) == 1
        yield from framer.feed(*_encode_chunk(offsets, lengths, done, marked=not alone))
        done += len(offsets)
    yield framer.finish({0: b".", 1: b"a."}.get(done, b"e."))


def rechunk(entries: Iterable[Entries], size: int) -> Iterator[Entries]:
    """The same entries in chunks of exactly `size`, but for the last; none of them is empty."""
    held: list[Entries] = []
    count = 0
    for chunk in entries:
        held.append(chunk)
        count += len(chunk[0])
        if count < size:
            continue
        offsets, lengths = _join(held)
        whole = count - count % size
        for begin in range(0, whole, size):
            yield offsets[begin : begin + size], lengths[begin : begin + size]
        held, count = [(offsets[whole:], lengths[whole:])], count - whole
    if count:
        yield _join(held)


def _join(chunks: list[Entries]) -> Entries:
    if len(chunks) == 1:
        return chunks[0]
    return np.concatenate([chunk[0] for chunk in chunks]), np.concatenate([chunk[1] for chunk in chunks])


def _encode_chunk(
    offsets: NDArray[np.int64], lengths: NDArray[np.int64], first: int, *, marked: bool
) -> tuple[bytes, NDArray[np.int64]]:
    """Opcodes of entries number `first` and on, and the positions in them where a frame may end, int64[2k]."""
    values = np.stack([offsets, lengths], axis=1).astype("<i8").reshape(-1)  # [2k]: offset, length, offset, …
    sizes = _payload_bytes(values)
    rows = np.empty((len(values), _COLUMNS), np.uint8)
    rows[:] = np.frombuffer(b"e(\0\0\0\0\0\0\0\0\0\0\x86\x94", np.uint8)
    rows[:, _OPCODE] = _OPCODES[sizes]
    rows[:, _SIZE] = sizes
    rows[:, _PAYLOAD:_TUPLE2] = values.view(np.uint8).reshape(-1, 8)

    used = _USED[sizes]  # [2k, columns]
    used[1::2, _TUPLE2:] = True
    before = np.zeros(len(values), np.int64)  # bytes of a row in front of its opcode
    if marked:
        opens = slice(2 * (-first % BATCH_ENTRIES), None, 2 * BATCH_ENTRIES)
        used[opens, :_OPCODE] = True
        before[opens] = 2
        if first == 0:
            used[0, _APPENDS] = False
            before[0] = 1
    widths = before + 1 + (sizes > 4) + sizes
    widths[1::2] += 2
    return rows[used].tobytes(), np.cumsum(widths) - widths + before


def _payload_bytes(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """How many bytes pickle gives to each value: 1, 2, 4, or a signed number of 5 to 8."""
    sizes = np.ones(len(values), np.int64)
    for least, step in ((1 << 8, 1), (1 << 16, 2), (1 << 31, 1), (1 << 39, 1), (1 << 47, 1), (1 << 55, 1)):
        sizes += step * (values >= least)
    return sizes


class _Framer:
    """Cuts a stream of opcodes into frames."""

    def __init__(self, start: bytes) -> None:
        self._held = start

    def feed(self, opcodes: bytes, cuts: NDArray[np.int64]) -> Iterator[bytes]:
        """Frames that are complete now; `cuts` are the positions in `opcodes` where one may end, ascending."""
        cuts = cuts + len(self._held)
        held, begin = self._held + opcodes, 0
        while (place := int(np.searchsorted(cuts, begin + FRAME_BYTES))) < len(cuts):
            end = int(cuts[place])
            yield _frame(held[begin:end])
            begin = end
        self._held = held[begin:]

    def finish(self, opcodes: bytes) -> bytes:
        """The last frame."""
        return _frame(self._held + opcodes)


def _frame(opcodes: bytes) -> bytes:
    if len(opcodes) < _FRAME_MIN_BYTES:
        return opcodes
    return b"\x95" + len(opcodes).to_bytes(8, "little") + opcodes
