"""A tiny picture of an order: where each context lies in the sources, against where it lies in the shards."""

from __future__ import annotations

import base64
import struct
import zlib

import numpy as np

WIDTH, HEIGHT = 128, 64
MAX_BASE64 = 700
"""characters; markdown metadata shows pictures inline below 1,000"""

_POINTS = 512


def scatter_png(across: np.ndarray, down: np.ndarray) -> bytes:
    """A black-on-white PNG, 128 x 64, of points at ``across`` and ``down``, float64[n] each in [0, 1).

    Only as many of the points, evenly chosen, are drawn as keep it below 700 characters in base64: even noise shows an
    even shuffle; a line or blocks show what is left of the sources' order.
    """
    count = min(len(across), _POINTS)
    while True:
        chosen = np.arange(count) * len(across) // max(count, 1)
        ink = np.zeros((HEIGHT, WIDTH), dtype=bool)
        ink[(down[chosen] * HEIGHT).astype(int), (across[chosen] * WIDTH).astype(int)] = True
        png = one_bit_png(ink)
        if len(base64.b64encode(png)) <= MAX_BASE64 or not count:
            return png
        count = count * 15 // 16


def one_bit_png(ink: np.ndarray) -> bytes:
    """PNG bytes (ISO/IEC 15948) of bool[height, width], True = black: one bit a pixel, no filter, one IDAT."""
    height, width = ink.shape
    # (height, width) -> (height, bytes); a zero in front of each row says that it has no filter
    rows = np.packbits(~ink, axis=1)
    lines = np.concatenate([np.zeros((height, 1), dtype=np.uint8), rows], axis=1)
    head = struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0)
    parts = ((b"IHDR", head), (b"IDAT", zlib.compress(lines.tobytes(), 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(_chunk(kind, data) for kind, data in parts)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
