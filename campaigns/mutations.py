"""Seeded damage to files: what disks, networks, half-finished copies and hostile hands do to bytes."""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable
from typing import Any

Mutation = Callable[[bytearray, random.Random], None]

_EDGE_BYTES = 64
"""headers and footers are this near to the ends, and are hit more often"""
_HUGE = (
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    1 << 15,
    1 << 16,
    (1 << 31) - 1,
    1 << 31,
    (1 << 32) - 1,
    1 << 40,
    1 << 62,
    1 << 63,
)
_WORDS = (
    *(
        b"null",
        b"true",
        b"-1",
        b"0",
        b"1e999",
        b"NaN",
        b"[]",
        b"{}",
        b'""',
        b"[[[[",
        b"99999999999999999999",
        b"*a",
    ),
    *(
        b'"../../x"',
        b'"/etc/passwd"',
        b'"a\\u0000b"',
        b'"\\ud800"',
        b"&a",
        b"!!python/object:os.system",
        b"!!int",
        b"\t",
    ),
)
VALUES = (
    *(
        None,
        True,
        -1,
        0,
        1 << 31,
        1 << 63,
        10**400,
        1.5,
        1e308,
        "",
        "x",
        "../../x",
        "/etc/passwd",
        "a\0b",
        "é\ud800",
    ),
    *([], {}, [[]], [None], {"a": None}, ["../x"], {"../../x": {"bytes": 0}}, "x" * 300),
)
"""what may stand anywhere in a JSON file of a hostile hand"""


def mutate(data: bytes, rng: random.Random) -> bytes:
    """The bytes with one to three kinds of damage; the same for the same state of `rng`."""
    damaged = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        rng.choice(_MUTATIONS)(damaged, rng)
    return bytes(damaged)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """JSON that stays JSON, with one to three of its values replaced, removed or moved."""
    value = json.loads(data)
    for _ in range(rng.choice((1, 1, 2, 3))):
        places = list(_places(value))
        if not places:
            break
        holder, key = rng.choice(places)
        action = rng.random()
        if action < 0.6:
            holder[key] = copy.deepcopy(rng.choice(VALUES))
        elif action < 0.75:
            del holder[key]
        elif action < 0.9:
            other, name = rng.choice(places)
            is_there = name in other if isinstance(other, dict) else name < len(other)
            holder[key] = copy.deepcopy(other[name]) if is_there else None
        elif isinstance(holder, dict):
            holder[str(rng.choice(VALUES))] = holder.pop(key)
        else:
            holder.append(copy.deepcopy(rng.choice(VALUES)))
    return json.dumps(value).encode()


def _places(value: Any) -> Any:
    """(container, key) of every value below a value."""
    keys = (
        list(value)
        if isinstance(value, dict)
        else range(len(value))
        if isinstance(value, list)
        else ()
    )
    for key in keys:
        yield value, key
        yield from _places(value[key])


def _position(data: bytearray, rng: random.Random) -> int:
    size = len(data)
    if size <= 1:
        return 0
    choice = rng.random()
    if choice < 0.3:
        return rng.randrange(min(size, _EDGE_BYTES))
    if choice < 0.5:
        return size - 1 - rng.randrange(min(size, _EDGE_BYTES))
    return rng.randrange(size)


def _run(data: bytearray, rng: random.Random) -> tuple[int, int]:
    begin = _position(data, rng)
    return begin, min(len(data), begin + rng.choice((1, 2, 4, 8, 16, 64, 512, len(data) // 3 + 1)))


def flip(data: bytearray, rng: random.Random) -> None:
    for _ in range(rng.choice((1, 1, 2, 8)) if data else 0):
        data[_position(data, rng)] ^= 1 << rng.randrange(8)


def _scribble(data: bytearray, rng: random.Random) -> None:
    begin, end = _run(data, rng)
    data[begin:end] = rng.randbytes(end - begin)


def zero(data: bytearray, rng: random.Random) -> None:
    begin, end = _run(data, rng)
    data[begin:end] = bytes(end - begin)


def cut(data: bytearray, rng: random.Random) -> None:
    del data[_position(data, rng) :]


def _grow(data: bytearray, rng: random.Random) -> None:
    count = rng.choice((1, 2, 8, 512, 1024, 5000))
    data += rng.choice((bytes(count), rng.randbytes(count), bytes(data[-count:]), bytes(data)))


def _remove(data: bytearray, rng: random.Random) -> None:
    begin, end = _run(data, rng)
    del data[begin:end]


def _splice(data: bytearray, rng: random.Random) -> None:
    """A run lands elsewhere, over what is there or between it."""
    begin, end = _run(data, rng)
    target, run = _position(data, rng), bytes(data[begin:end])
    data[target : target + rng.choice((0, len(run)))] = run


def _swap(data: bytearray, rng: random.Random) -> None:
    size = rng.choice((1, 4, 8, 64, 512))
    a, b = sorted((_position(data, rng) // size * size, _position(data, rng) // size * size))
    if a + size <= b:
        data[a : a + size], data[b : b + size] = data[b : b + size], data[a : a + size]


def _huge(data: bytearray, rng: random.Random) -> None:
    """A number that is a length, an offset or a count somewhere."""
    value = rng.choice(_HUGE) - rng.choice((0, 0, 1))
    kind = rng.choice(("<B", "<H", ">H", "<I", ">I", "<Q", ">Q"))
    packed = struct.pack(kind, value % (1 << 8 * struct.calcsize(kind)))
    begin = _position(data, rng)
    data[begin : begin + len(packed)] = packed


def _word(data: bytearray, rng: random.Random) -> None:
    """A word, number or name of a text becomes another."""
    words = list(re.finditer(rb'"[^"\n]{0,80}"|[\w.+-]+', bytes(data[: 1 << 16])))
    if words:
        begin, end = rng.choice(words).span()
        data[begin:end] = rng.choice(_WORDS)


def _indent(data: bytearray, rng: random.Random) -> None:
    begin = _position(data, rng)
    data[begin:begin] = rng.choice(b"\n, ,\r\n,\0,\xff,{,[,],:,- ,\xef\xbb\xbf".split(b","))


_MUTATIONS: tuple[Mutation, ...] = (
    *(
        flip,
        flip,
        flip,
        _scribble,
        zero,
        zero,
        cut,
        cut,
        _grow,
        _remove,
        _splice,
        _swap,
        _huge,
        _huge,
        _huge,
    ),
    *(_word, _word, _indent),
)
