"""Encode contexts as members of a tar, and decode them: `npy` or `json.gz`."""

from __future__ import annotations

import zlib
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.formats.tars.tar import BLOCK_BYTES, Archive, TarMember, headers, record_bytes
from nanoset_core.storage.regular_files import array_of

MemberKind = Literal["json.gz", "npy"]
"""How a context is stored in a tar."""
_INDEX_DIGITS = 8
NPY_HEADER_BYTES = 128
_KEY_BYTES = 2 * _INDEX_DIGITS + 1
MOST_MEMBER_BYTES = 64 << 20
"""What a member may hold, and unpack to: some ten million tokens; a small file could else fill the memory."""


def member_names(shard: int, begin: int, end: int, member: MemberKind) -> NDArray[np.uint8]:
    """Return names `{shard:08d}_{index:08d}.{member}` of indices [begin, end excl), uint8, shape (indices, bytes)."""
    suffix = f".{member}".encode()
    names = np.empty((end - begin, _KEY_BYTES + len(suffix)), dtype=np.uint8)
    names[:, : _INDEX_DIGITS + 1] = np.frombuffer(b"%08d_" % shard, dtype=np.uint8)
    powers = 10 ** np.arange(_INDEX_DIGITS - 1, -1, -1)
    names[:, _INDEX_DIGITS + 1 : _KEY_BYTES] = np.arange(begin, end)[:, None] // powers % 10 + ord("0")
    names[:, _KEY_BYTES:] = np.frombuffer(suffix, dtype=np.uint8)
    return names


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """Return the 128 bytes before the data of a one-dimensional `.npy` of version 1.0, as `numpy.save` writes them."""
    fields = f"{{'descr': {dtype.newbyteorder('<').str!r}, 'fortran_order': False, 'shape': ({length},), }}"
    size = NPY_HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + fields.ljust(size - 1).encode("ascii") + b"\n"


def npy_records(
    rows: int, length: int, dtype: np.dtype[Any], name_bytes: int
) -> tuple[NDArray[np.uint8], NDArray[np.integer[Any]], int]:
    """Return tar records of `.npy` members to be used again and again, after `rename` and with other tokens.

    Returns:
        (the records, uint8, shape (rows, record); the view of their tokens, shape (rows, length); the checksum of a
        header without a name).
    """
    size = NPY_HEADER_BYTES + length * dtype.itemsize
    begin = BLOCK_BYTES + NPY_HEADER_BYTES
    unnamed = headers(np.zeros((1, name_bytes), dtype=np.uint8), np.array([size], dtype=np.int64))
    records = np.zeros((rows, record_bytes(size)), dtype=np.uint8)
    records[:, :BLOCK_BYTES] = unnamed
    records[:, BLOCK_BYTES:begin] = np.frombuffer(npy_header(dtype, length), dtype=np.uint8)
    # (rows, length * itemsize) bytes -> (rows, length) tokens, still a view
    tokens = records[:, begin : BLOCK_BYTES + size].view(dtype.newbyteorder("<"))
    return records, tokens, int(unnamed[0, 148:154].tobytes(), 8)


def json_gz_records(
    names: NDArray[np.uint8], contexts: NDArray[np.integer[Any]], compressor: MemberCompressor
) -> bytes:
    """Return whole tar records of contexts, shape (members, length), as gzipped compact JSON lists."""
    bodies = [compressor.compress(orjson.dumps(tokens, option=orjson.OPT_SERIALIZE_NUMPY)) for tokens in contexts]
    block = headers(names, np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies)))
    pieces: list[bytes] = []
    for header, body in zip(block, bodies, strict=True):
        pieces += (header.tobytes(), body, bytes(-len(body) % BLOCK_BYTES))
    return b"".join(pieces)


@lru_cache(maxsize=1)
def compressor_identity() -> str:
    """Return what decides the bytes of a `json.gz` member: `isal 1.9.1, isa-l 2.32.1, method 2, probe 0f1e2d3c`.

    Compressed bytes differ between versions of the library and between processor families; the probe is the CRC-32
    of a fixed text compressed here, so that equal identities mean equal shards.
    """
    import isal

    text = ",".join(str(i * i % 50_257) for i in range(4096)).encode()
    probe = zlib.crc32(MemberCompressor().compress(text))
    return f"isal {isal.__version__}, isa-l {isal.ISAL_VERSION}, method {METHOD}, probe {probe:08x}"


def read_member(archive: Archive, member: TarMember, path: Path) -> NDArray[np.integer[Any]]:
    """Decode the tokens of one member of an archive by its suffix, shape (length,); raises FormatError.

    `.npy` in its own dtype; `.json.gz`, and plain lists of numbers as `.json` and `.txt`, as int64.
    """
    name = member.name.lower()
    try:
        if member.size_bytes > MOST_MEMBER_BYTES:
            raise ValueError(f"{member.size_bytes:,} bytes, more than {MOST_MEMBER_BYTES:,}")
        body = archive[member.offset : member.offset + member.size_bytes]
        if name.endswith(".npy"):
            tokens = array_of(body).copy()
        elif name.endswith((".json.gz", ".json", ".txt")):
            text = _unzipped(body) if name.endswith(".gz") else body
            if b'"' in text:  # numpy would make rows as long as the longest text
                raise ValueError("text among the numbers")
            tokens = np.array(orjson.loads(text))
        else:
            raise ValueError("the suffix is none of .npy, .json.gz, .json, .txt")
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"shape {tokens.shape}, dtype {tokens.dtype}")
    except (ValueError, zlib.error) as error:
        where, expected = f"{path}, offset {member.offset}", "a flat list of integers"
        what, remedy = f"member {member.name!r} does not hold the tokens of a context", "make or fetch the tar again"
        raise FormatError(what, where=where, found=str(error), expected=expected, remedy=remedy) from error
    return tokens


def _unzipped(body: bytes) -> bytes:
    decoder = zlib.decompressobj(wbits=31)
    text = decoder.decompress(body, MOST_MEMBER_BYTES + 1)
    if len(text) > MOST_MEMBER_BYTES:
        raise ValueError(f"it unpacks to more than {MOST_MEMBER_BYTES:,} bytes")
    if not decoder.eof or decoder.unused_data.strip(b"\0"):
        raise ValueError("it is cut off, or not one gzip stream")
    return text


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
    """Compress one text after the other, each into a gzip file of its own."""

    __slots__ = ("_block_end", "_crc32", "_flush", "_stream")

    def __init__(self) -> None:
        from isal import isal_zlib

        self._crc32, self._flush = isal_zlib.crc32, isal_zlib.Z_FULL_FLUSH
        self._block_end = isal_zlib.Z_SYNC_FLUSH
        self._stream = isal_zlib.compressobj(LEVEL, _DEFLATED, _RAW_WBITS)
        self._stream.compress(_first())
        self._stream.flush(self._flush)

    def compress(self, text: bytes) -> bytes:
        """Return an ASCII text as a whole gzip file, the same for the same text whatever was compressed before."""
        self._stream.compress(_LEAD)
        self._stream.flush(self._block_end)
        body = self._stream.compress(text) + self._stream.flush(self._flush)
        size = len(text) & 0xFFFFFFFF
        return b"".join((_HEADER, body, _END, self._crc32(text).to_bytes(4, "little"), size.to_bytes(4, "little")))


@lru_cache(maxsize=1)
def _first() -> bytes:
    return np.random.RandomState(1).bytes(_FIRST_BYTES)
