"""The class of every byte of UTF-8 text: one table translation, and a little arithmetic for characters beyond ASCII."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from nanoset_core.tokenization.bpe.classes import LEAD, SEPARATOR, SPACE

_MIXED = 255


@dataclass(frozen=True, slots=True)
class ByteClasses:
    """Classes of the bytes of a buffer."""

    codes: np.ndarray
    """uint8[n], writable: class of the character that each byte belongs to."""
    wide_spaces: np.ndarray
    """int64[k]: positions of the first byte of white space that is longer than a byte."""


class ByteClassifier:
    """Turns bytes into classes, given the class of every code point."""

    def __init__(self, classes: np.ndarray) -> None:
        """`classes`: uint8[0x110000], from `probe_classes`."""
        self._classes = classes
        self._translation = (
            bytes(classes[:0x80].tolist()) + bytes(0x40) + bytes([LEAD]) * 0x38 + bytes(7) + bytes([SEPARATOR])
        )
        self._of_pair = _classes_of_pairs(classes)

    def classify(self, buffer: bytes) -> ByteClasses:
        """Classes of n bytes of valid UTF-8, with 0xFF between texts."""
        codes = np.frombuffer(bytearray(buffer.translate(self._translation)), np.uint8)
        leads = np.flatnonzero(codes == LEAD)
        if not len(leads):
            return ByteClasses(codes, leads)
        data = np.frombuffer(buffer, np.uint8)
        lead_bytes = data[leads]
        pairs = lead_bytes.astype(np.uint16) << 8 | data[leads + 1]
        found = self._of_pair[pairs]
        mixed = np.flatnonzero(found == _MIXED)
        if len(mixed):
            found[mixed] = self._classes[_code_points(data, leads[mixed])]
        codes[leads] = found
        codes[leads + 1] = found
        for width, first_lead in ((3, 0xE0), (4, 0xF0)):
            wide = np.flatnonzero(lead_bytes >= first_lead)
            codes[leads[wide] + (width - 1)] = found[wide]
        return ByteClasses(codes, leads[found == SPACE])


def _classes_of_pairs(classes: np.ndarray) -> np.ndarray:
    """uint8[65536]: class by the first two bytes of a character, _MIXED where later bytes decide."""
    table = np.full((256, 256), _MIXED, np.uint8)
    table[0xC0:0xE0, 0x80:0xC0] = classes[:0x800].reshape(32, 64)
    for lead, blocks in ((0xE0, classes[:0x10000].reshape(-1, 64)), (0xF0, classes.reshape(-1, 4096))):
        uniform = np.where((blocks == blocks[:, :1]).all(axis=1), blocks[:, 0], _MIXED)
        rows = -(-len(uniform) // 64)
        padded = np.full(rows * 64, _MIXED, np.uint8)
        padded[: len(uniform)] = uniform
        table[lead : lead + rows, 0x80:0xC0] = padded.reshape(rows, 64)
    return table.ravel()


def _code_points(data: np.ndarray, leads: np.ndarray) -> np.ndarray:
    """int64[k]: code points of the characters of three or four bytes that begin at `leads`."""
    first, second, third = (data[leads + offset].astype(np.int64) for offset in range(3))
    points = (first & 0x0F) << 12 | (second & 0x3F) << 6 | third & 0x3F
    four = np.flatnonzero(first >= 0xF0)
    if len(four):
        points[four] = points[four] << 6 | data[leads[four] + 3] & 0x3F
    return points
