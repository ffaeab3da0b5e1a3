"""Gzip by ISA-L whose bytes depend on the content alone.

ISA-L's compression at levels 0 to 2 has two ways to give other bytes for the same text. One-shot calls look for matches
through a table of which they clear a part; after a full flush all of it is cleared. And where a text begins, with
nothing before it to look back to, the assembly of the first loop (isa-l 2.32.1 `igzip_icf_body_h1_gr_bt.asm`,
`.write_first_byte`) hashes a register that it never set, which holds the address of the stream: one entry of the table
lands somewhere else in each process, and now and then a match is found or lost by it (one in 40,000 members of 500
tokens). So every member here comes after a full flush and a few bytes in a block of their own, which are so short that
another loop takes them, and which are left out of the member: no text of ASCII can match them.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

LEVEL = 1
METHOD = 2
"""Raised when the same library would give other bytes."""
_RAW_WBITS = -15
_DEFLATED = 8
_HEADER = bytes.fromhex("1f8b08000000000000ff")  # no name, no time, unknown system
_END = b"\x03\x00"  # an empty last block
_FIRST_BYTES = 1 << 18
_LEAD = bytes(range(200, 208))  # none of it ASCII; at most 16 bytes, which the first loop leaves to the last one


class MemberCompressor:
    """Compresses one text after the other, each into a gzip file of its own."""

    __slots__ = ("_block_end", "_crc32", "_flush", "_stream")

    def __init__(self) -> None:
        from isal import isal_zlib

        self._crc32, self._flush = isal_zlib.crc32, isal_zlib.Z_FULL_FLUSH
        self._block_end = isal_zlib.Z_SYNC_FLUSH
        self._stream = isal_zlib.compressobj(LEVEL, _DEFLATED, _RAW_WBITS)
        self._stream.compress(_first())
        self._stream.flush(self._flush)

    def compress(self, text: bytes) -> bytes:
        """The text as a whole gzip file; the same for the same text, whatever came before.

        ValueError for a text that is not ASCII.
        """
        if not text.isascii():
            raise ValueError("a text that is not ASCII could be matched with what is left out")
        self._stream.compress(_LEAD)
        self._stream.flush(self._block_end)
        body = self._stream.compress(text) + self._stream.flush(self._flush)
        size = len(text) & 0xFFFFFFFF
        return b"".join((_HEADER, body, _END, self._crc32(text).to_bytes(4, "little"), size.to_bytes(4, "little")))


@lru_cache(maxsize=1)
def _first() -> bytes:
    """What goes through a stream before its first flush: enough to have used all of its tables."""
    return np.random.RandomState(1).bytes(_FIRST_BYTES)
