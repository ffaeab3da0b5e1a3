"""The slow and general way to read an index: one opcode at a time, and no object but pairs of ints is ever built.

It takes what other picklers make of a list of pairs (protocols 2 to 5, tuples or lists, with or without memo, the
same tuple again), finds the exact place of damage, and knows no other opcode, so a hostile pickle can run nothing.
A pair is passed on once it is complete; what remains of it is 16 bytes in the memo.
Source of the opcodes: CPython `Lib/pickletools.py`.
"""

from __future__ import annotations

import pickletools
from array import array
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError

Entries = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(offsets, lengths) of consecutive documents, both int64, shape (documents,)."""

_PROTO, _FRAME, _STOP = 0x80, 0x95, 0x2E
_MEMOIZE, _BINPUT, _LONG_BINPUT, _BINGET, _LONG_BINGET = 0x94, 0x71, 0x72, 0x68, 0x6A
_BININT1, _BININT2, _BININT, _LONG1 = 0x4B, 0x4D, 0x4A, 0x8A
_ARGUMENT_BYTES = {_PROTO: 1, _FRAME: 8, _BINPUT: 1, _LONG_BINPUT: 4, _BINGET: 1, _LONG_BINGET: 4}
_ARGUMENT_BYTES |= {_BININT1: 1, _BININT2: 2, _BININT: 4}
_MAX_DEPTH = 4
_CHUNK_ENTRIES = 1 << 16
_NO_PAIR = -(2**63), -(2**63)
EXPECTED = "a pickled list of (offset, length) pairs of whole numbers, and nothing else"
REMEDY = "write or fetch the file again; do not unpickle a file of unknown origin"


def read_slowly(view: memoryview, begin: int, where: str, *, chunk_entries: int = _CHUNK_ENTRIES) -> Iterator[Entries]:
    """The entries of a pickled index in chunks.

    Args:
        view: the file; the pickle fills it from `begin` to its end.
        begin: offset of the pickle, in bytes.
        where: the file's name, for messages.
        chunk_entries: least number of entries of a chunk, but for the last.

    Raises:
        FormatError: an opcode does not belong there; the message names its byte.
    """
    machine = _Machine()
    at = begin
    while at < len(view):
        code = view[at]
        argument, after = _argument(view, at)
        if after > len(view) or not machine.take(code, argument):
            raise _refused(where, at, _describe(view, at))
        at = after
        if code == _STOP:
            break
        if len(machine.entries) >= chunk_entries:
            yield machine.release()
    else:
        raise _refused(where, len(view), "the end of the file")
    if at != len(view):
        raise _refused(where, at, f"{len(view) - at} bytes after the end of the index")
    if machine.entries:
        yield machine.release()


def _argument(view: memoryview, at: int) -> tuple[int, int]:
    """(number that the opcode at `at` carries, position after it), which may lie past the end of the file."""
    code, begin = view[at], at + 1
    size = _ARGUMENT_BYTES.get(code, 0)
    if code == _LONG1:
        size, begin = (view[begin] if begin < len(view) else 0), begin + 1
    return int.from_bytes(view[begin : begin + size], "little", signed=code in (_LONG1, _BININT)), begin + size


def _describe(view: memoryview, at: int) -> str:
    opcode = next((known for known in pickletools.opcodes if known.code == chr(view[at])), None)
    name = "no opcode" if opcode is None else f"opcode {opcode.name}"
    return f"{name}, bytes {bytes(view[at : at + 12]).hex(' ')}"


def _refused(where: str, position: int, found: str) -> FormatError:
    return FormatError(
        "this is not an index of documents",
        where=f"{where}, byte {position}",
        found=found,
        expected=EXPECTED,
        remedy=REMEDY,
    )


class _Machine:
    """What of the pickle is open at the moment. Its methods return False where an opcode cannot stand."""

    def __init__(self) -> None:
        self.entries: list[tuple[int, int]] = []
        self._ints: list[int] = []
        """Numbers of the pair that is not complete."""
        self._open: list[str] = []
        """What encloses the next opcode: `outer` (the list of all pairs), `mark`, `inner` (a pair that is a list)."""
        self._loose = False
        """Whether a pair waits for APPEND."""
        self._fresh: tuple[int, int] | None = None
        """What the last opcode made, for the memo: a pair, or a list, which is `_NO_PAIR`."""
        self._memo = array("q")
        """Two numbers for each thing that was memoized."""
        self._actions: dict[int, Callable[[], bool]] = {
            ord("]"): self._empty_list,
            ord("("): self._mark,
            0x86: self._complete,
            ord("t"): lambda: self._close("mark") and self._complete(),
            ord("e"): self._appends,
            ord("a"): self._append,
            _STOP: self._is_settled,
        }

    def release(self) -> Entries:
        """The pairs that are complete; they are forgotten here."""
        pairs = np.array(self.entries, np.int64).reshape(-1, 2)
        self.entries = []
        return np.ascontiguousarray(pairs[:, 0]), np.ascontiguousarray(pairs[:, 1])

    def take(self, code: int, argument: int) -> bool:
        """Take an opcode."""
        if code in (_PROTO, _FRAME):
            return True
        if code in (_MEMOIZE, _BINPUT, _LONG_BINPUT):
            return self._memoize(None if code == _MEMOIZE else argument)
        self._fresh = None
        if code in (_BININT1, _BININT2, _BININT, _LONG1):
            self._ints.append(argument)
            return bool(self._open) and len(self._ints) <= 2 and -(2**63) <= argument < 2**63
        if code in (_BINGET, _LONG_BINGET):
            return self._get(argument)
        action = self._actions.get(code)
        return action is not None and action() and len(self._open) <= _MAX_DEPTH

    def _memoize(self, number: int | None) -> bool:
        """Remember what was just made; every pickler counts these from 0."""
        made, self._fresh = self._fresh, None
        if made is None or number not in (None, len(self._memo) // 2):
            return False
        self._memo.extend(made)
        return True

    def _get(self, number: int) -> bool:
        if self._ints or 2 * number >= len(self._memo):
            return False
        self._ints = list(self._memo[2 * number : 2 * number + 2])
        return tuple(self._ints) != _NO_PAIR and self._complete()

    def _empty_list(self) -> bool:
        self._fresh = _NO_PAIR
        if not self._open:
            self._open.append("outer")
            return not self.entries
        self._open.append("inner")
        return self._open[-2] != "inner" and not self._ints

    def _mark(self) -> bool:
        self._open.append("mark")
        return len(self._open) > 1 and not self._ints and not self._loose

    def _appends(self) -> bool:
        if not self._close("mark"):
            return False
        return self._complete() if self._close("inner") else self._is_settled()

    def _append(self) -> bool:
        was_loose, self._loose = self._loose, False
        return was_loose and self._is_settled()

    def _is_settled(self) -> bool:
        return self._open == ["outer"] and not self._ints and not self._loose

    def _close(self, kind: str) -> bool:
        if not self._open or self._open[-1] != kind:
            return False
        self._open.pop()
        return True

    def _complete(self) -> bool:
        """The two ints are a pair, which belongs to a mark or, alone, to the outer list."""
        if len(self._ints) != 2 or self._open not in (["outer"], ["outer", "mark"]) or self._loose:
            return False
        self._loose = self._open == ["outer"]
        self._fresh = self._ints[0], self._ints[1]
        self.entries.append(self._fresh)
        self._ints = []
        return True
