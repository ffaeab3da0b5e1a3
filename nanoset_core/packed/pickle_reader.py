"""Read a pickled index one opcode at a time, without running it.

This is the general, slow way: it takes what other picklers make of a list of pairs (protocols 2 to 5, tuples or lists,
with or without memo), and finds the exact place of damage. Only lists, tuples and whole numbers can be built, so a
hostile pickle runs nothing. Source of the opcodes: CPython `Lib/pickletools.py`.
"""

from __future__ import annotations

import io
import pickletools
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError

Entries = tuple[NDArray[np.int64], NDArray[np.int64]]
"""(offsets, lengths) of consecutive documents, both int64, shape (documents,)."""
EXPECTED = "a pickled list of (offset, length) pairs of whole numbers, and nothing else"
REMEDY = "write or fetch the file again; do not unpickle a file of unknown origin"
_NUMBERS = ("BININT", "BININT1", "BININT2", "LONG1")
_PREFIX_BYTES = 64
_MARK = object()
"""On the stack: what follows are the items of a tuple or list."""


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
    """Return the entries of a pickled index.

    Args:
        view: the file; the pickle fills it from `begin` to its end.
        begin: offset of the pickle, in bytes.
        where: the file's name, for messages.

    Raises:
        FormatError: the pickle is not a list of pairs; the message names the byte.
    """
    stream, at = io.BytesIO(view[begin:]), 0
    stack: list[Any] = []
    memo: list[Any] = []
    try:
        for opcode, argument, _ in pickletools.genops(stream):
            if not _run(opcode.name, argument, stack, memo):
                raise _refused(where, begin + at, _describe(view, begin + at))
            at = stream.tell()
    except (ValueError, IndexError, AttributeError) as error:
        at = min(begin + at, len(view))
        raise _refused(where, at, _describe(view, at)) from error
    if begin + at != len(view):
        raise _refused(where, begin + at, f"{len(view) - begin - at} bytes after the end of the index")
    pairs = stack[0] if len(stack) == 1 else None
    if not isinstance(pairs, list) or not all(map(_is_pair, pairs)):
        raise _refused(where, begin, "other values")
    table = np.array(pairs, np.int64).reshape(-1, 2)
    return np.ascontiguousarray(table[:, 0]), np.ascontiguousarray(table[:, 1])


def _run(name: str, argument: Any, stack: list[Any], memo: list[Any]) -> bool:
    """Run one opcode as an unpickler does; return False for one that a list of pairs does not need."""
    match name:
        case "PROTO" | "FRAME" | "STOP":
            pass
        case "BININT" | "BININT1" | "BININT2" | "LONG1":
            stack.append(argument)
        case "EMPTY_LIST" if stack[-2:] != [[], []]:  # nesting is bounded
            stack.append([])
        case "MARK":
            stack.append(_MARK)
        case "TUPLE2":
            stack[-2:] = [(stack[-2], stack[-1])]
        case "TUPLE":
            stack.append(tuple(_pop_items(stack)))
        case "APPEND" | "APPENDS":
            items = [stack.pop()] if name == "APPEND" else _pop_items(stack)
            stack[-1].extend(items)
        case "MEMOIZE" | "BINPUT" | "LONG_BINPUT" if argument in (None, len(memo)):  # picklers count from 0
            memo.append(stack[-1])
        case "BINGET" | "LONG_BINGET":
            stack.append(memo[argument])
        case _:
            return False
    return True


def _pop_items(stack: list[Any]) -> list[Any]:
    """Take everything after the last mark, and the mark, off the stack."""
    items = []
    while (item := stack.pop()) is not _MARK:
        items.append(item)
    return items[::-1]


def _is_pair(pair: Any) -> bool:
    return (
        type(pair) in (tuple, list) and len(pair) == 2 and all(type(n) is int and -(2**63) <= n < 2**63 for n in pair)
    )


def _describe(view: memoryview, at: int) -> str:
    if at >= len(view):
        return "the end of the file"
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
