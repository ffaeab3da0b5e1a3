"""GPT-2's alphabet: the printable character that stands for each byte in a byte-level vocabulary."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def byte_characters() -> list[str]:
    """256 characters: byte b is written as the b-th of them (`bytes_to_unicode` in GPT-2's `encoder.py`)."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    spare = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(spare)) for byte in range(256)]


_NO_BYTE = 256
_BYTE_OF = np.full(0x200, _NO_BYTE, np.uint16)
_BYTE_OF[[ord(character) for character in byte_characters()]] = np.arange(256)


def decode_tokens(tokens: Sequence[str]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(data uint8[m], lengths int64[n], readable bool[n]): bytes that n tokens stand for, back to back.

    `readable` is False, and the bytes mean nothing, for tokens that hold a character outside the alphabet.
    """
    characters = np.frombuffer("".join(tokens).encode("utf-32-le", "surrogatepass"), "<u4")
    found = _BYTE_OF[np.minimum(characters, len(_BYTE_OF) - 1)]
    lengths = np.fromiter(map(len, tokens), np.int64, len(tokens))
    unreadable_before = np.append(0, np.cumsum(found == _NO_BYTE))
    ends = np.cumsum(lengths)
    readable = unreadable_before[ends] == unreadable_before[ends - lengths]
    return found.astype(np.uint8), lengths, readable
