"""Damage bytes the way that disks, networks, interrupted copies and attackers do.

A *mutation* changes a bytearray in place. `mutate` applies a few of them to the content of a file;
`mutate_json` changes values of a JSON file, so that it can still be parsed. All damage is decided
by the random numbers that the caller passes: the same numbers give the same damage.
"""

from __future__ import annotations

import copy
import json
import random
import re
import struct
from collections.abc import Callable, Iterator
from typing import Any

Mutation = Callable[[bytearray, random.Random], None]
"""Changes the bytes in place, given random numbers."""

_EDGE_BYTES = 64
"""Headers and footers are this close to the ends of a file."""
_BOUNDARY_NUMBERS = (
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
"""Numbers at the limits of integer types, which a reader may not expect as a length or offset."""
_NUMBER_FORMATS = ("<B", "<H", ">H", "<I", ">I", "<Q", ">Q")
"""Ways in which file formats store a number, as `struct` writes them."""
_HOSTILE_WORDS = (
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
    b'"../../x"',
    b'"/etc/passwd"',
    b'"a\\u0000b"',
    b'"\\ud800"',
    b"&a",
    b"!!python/object:os.system",
    b"!!int",
    b"\t",
)
"""Words of JSON and YAML that a reader of another value may not expect."""
_PUNCTUATION = (
    b"\n",
    b" ",
    b"\r\n",
    b"\0",
    b"\xff",
    b"{",
    b"[",
    b"]",
    b":",
    b"- ",
    b"\xef\xbb\xbf",
)
"""Characters with a meaning in text formats, NUL, a byte that is not UTF-8, and a byte order mark."""
VALUES = (
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
    [],
    {},
    [[]],
    [None],
    {"a": None},
    ["../x"],
    {"../../x": {"bytes": 0}},
    "x" * 300,
)
"""Values that an attacker could write anywhere in a JSON file."""


def mutate(data: bytes, rng: random.Random) -> bytes:
    """Return the bytes after one to three mutations.

    Args:
        data: Content of a file.
        rng: Random numbers, which alone decide the damage.
    """
    damaged = bytearray(data)
    # Most often a single mutation: several at once hide what each of them would show.
    n_mutations = rng.choice((1, 1, 1, 2, 3))
    for _ in range(n_mutations):
        apply_mutation = rng.choice(_MUTATIONS)
        apply_mutation(damaged, rng)
    return bytes(damaged)


def mutate_json(data: bytes, rng: random.Random) -> bytes:
    """Return a JSON file in which one to three values are replaced, removed or moved.

    Args:
        data: Content of the file.
        rng: Random numbers, which alone decide the damage.
    """
    document = json.loads(data)
    n_changes = rng.choice((1, 1, 2, 3))
    for _ in range(n_changes):
        slots = list(_slots(document))
        if not slots:
            break
        container, key = rng.choice(slots)
        other_container, other_key = rng.choice(slots)

        action = rng.random()
        if action < 0.6:
            container[key] = copy.deepcopy(rng.choice(VALUES))
        elif action < 0.75:
            del container[key]
        elif action < 0.9:
            container[key] = copy.deepcopy(other_container[other_key])
        elif isinstance(container, dict):
            new_key = str(rng.choice(VALUES))
            container[new_key] = container.pop(key)
        else:
            container.append(copy.deepcopy(rng.choice(VALUES)))
    return json.dumps(document).encode()


def _slots(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield each dictionary or list inside a JSON value with each key or index that it has."""
    keys: list[Any] = []
    if isinstance(value, dict):
        keys = list(value)
    elif isinstance(value, list):
        keys = list(range(len(value)))
    for key in keys:
        yield value, key
        yield from _slots(value[key])


def _position(data: bytearray, rng: random.Random) -> int:
    """Return the offset of a random byte; headers and footers are more likely than other bytes."""
    size = len(data)
    if size <= 1:
        return 0
    edge_size = min(size, _EDGE_BYTES)
    choice = rng.random()
    if choice < 0.3:
        return rng.randrange(edge_size)
    if choice < 0.5:
        return size - 1 - rng.randrange(edge_size)
    return rng.randrange(size)


def _random_slice(data: bytearray, rng: random.Random) -> slice:
    """Return a slice of one byte up to about a third of the data."""
    start = _position(data, rng)
    length = rng.choice((1, 2, 4, 8, 16, 64, 512, len(data) // 3 + 1))
    return slice(start, min(len(data), start + length))


def flip(data: bytearray, rng: random.Random) -> None:
    """Flip one to eight bits, as a bad memory module or a worn disk does."""
    if not data:
        return
    n_bits = rng.choice((1, 1, 2, 8))
    for _ in range(n_bits):
        data[_position(data, rng)] ^= 1 << rng.randrange(8)


def _overwrite(data: bytearray, rng: random.Random) -> None:
    """Replace a slice by random bytes."""
    damaged = _random_slice(data, rng)
    data[damaged] = rng.randbytes(damaged.stop - damaged.start)


def zero(data: bytearray, rng: random.Random) -> None:
    """Replace a slice by zeros, as a file system does with blocks that a crash kept from the disk."""
    damaged = _random_slice(data, rng)
    data[damaged] = bytes(damaged.stop - damaged.start)


def cut(data: bytearray, rng: random.Random) -> None:
    """Remove the end, as an interrupted copy does."""
    start = _position(data, rng)
    del data[start:]


def _grow(data: bytearray, rng: random.Random) -> None:
    """Append zeros, random bytes, a copy of the end, or a copy of the whole data."""
    count = rng.choice((1, 2, 8, 512, 1024, 5000))
    appended = rng.choice((bytes(count), rng.randbytes(count), bytes(data[-count:]), bytes(data)))
    data += appended


def _remove(data: bytearray, rng: random.Random) -> None:
    """Remove a slice, so that everything after it has another offset."""
    del data[_random_slice(data, rng)]


def _duplicate(data: bytearray, rng: random.Random) -> None:
    """Copy a slice to another offset, where it overwrites other bytes or is inserted."""
    copied = bytes(data[_random_slice(data, rng)])
    start = _position(data, rng)
    n_overwritten = rng.choice((0, len(copied)))
    data[start : start + n_overwritten] = copied


def _swap(data: bytearray, rng: random.Random) -> None:
    """Exchange two blocks of one size, which start at multiples of this size."""
    size = rng.choice((1, 4, 8, 64, 512))
    blocks = sorted((_position(data, rng) // size, _position(data, rng) // size))
    if blocks[0] == blocks[1]:
        return
    first = slice(blocks[0] * size, (blocks[0] + 1) * size)
    second = slice(blocks[1] * size, (blocks[1] + 1) * size)
    first_bytes = data[first]
    second_bytes = data[second]
    # The second block may be shorter, at the end of the data. It is assigned first, since a
    # shorter first block would move it.
    data[second] = first_bytes
    data[first] = second_bytes


def _overwrite_number(data: bytearray, rng: random.Random) -> None:
    """Write an extreme number to a random offset, where it may be a length, an offset or a count."""
    value = rng.choice(_BOUNDARY_NUMBERS) - rng.choice((0, 0, 1))
    number_format = rng.choice(_NUMBER_FORMATS)
    n_bits = 8 * struct.calcsize(number_format)
    packed = struct.pack(number_format, value % (1 << n_bits))
    start = _position(data, rng)
    data[start : start + len(packed)] = packed


def _replace_word(data: bytearray, rng: random.Random) -> None:
    """Replace a word, a number or a quoted string of a text by one that is not expected there."""
    # The first 64 KiB suffice: there are words to replace, and large files take no longer.
    beginning = bytes(data[: 1 << 16])
    words = list(re.finditer(rb'"[^"\n]{0,80}"|[\w.+-]+', beginning))
    if words:
        start, stop = rng.choice(words).span()
        data[start:stop] = rng.choice(_HOSTILE_WORDS)


def _insert_punctuation(data: bytearray, rng: random.Random) -> None:
    """Insert a character that has a meaning in JSON or YAML, such as a bracket or a line end."""
    start = _position(data, rng)
    data[start:start] = rng.choice(_PUNCTUATION)


# What occurs several times is chosen more often: it is what happens to files most often, or what
# has found most faults.
_MUTATIONS: tuple[Mutation, ...] = (
    flip,
    flip,
    flip,
    _overwrite,
    zero,
    zero,
    cut,
    cut,
    _grow,
    _remove,
    _duplicate,
    _swap,
    _overwrite_number,
    _overwrite_number,
    _overwrite_number,
    _replace_word,
    _replace_word,
    _insert_punctuation,
)
