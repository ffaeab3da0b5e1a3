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
from nanoset_core.formats.tars.tar import (
    BLOCK_BYTES,
    CHECKSUM_DIGITS,
    Archive,
    TarMember,
    headers,
    record_bytes,
    rename,
)
from nanoset_core.storage.regular_files import array_of

MemberKind = Literal["json.gz", "npy"]
"""How a context is stored in a tar."""
_INDEX_DIGITS = 8
NPY_HEADER_BYTES = 128
_KEY_BYTES = 2 * _INDEX_DIGITS + 1
MAX_MEMBER_BYTES = 64 << 20
"""Most bytes of a member, stored and unpacked: some ten million tokens. A small file could else
fill the memory.
"""


def member_names(shard: int, start: int, stop: int, member: MemberKind) -> NDArray[np.uint8]:
    """Return names `{shard:08d}_{index:08d}.{member}` of indices [start, stop), uint8, shape
    (indices, bytes).
    """
    suffix = f".{member}".encode()
    names = np.empty((stop - start, _KEY_BYTES + len(suffix)), dtype=np.uint8)
    names[:, : _INDEX_DIGITS + 1] = np.frombuffer(b"%08d_" % shard, dtype=np.uint8)
    # (indices, 8) decimal digits of each index
    powers = 10 ** np.arange(_INDEX_DIGITS - 1, -1, -1)
    digits = np.arange(start, stop)[:, None] // powers % 10
    names[:, _INDEX_DIGITS + 1 : _KEY_BYTES] = digits + ord("0")
    names[:, _KEY_BYTES:] = np.frombuffer(suffix, dtype=np.uint8)
    return names


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """Return the 128 bytes before the data of a one-dimensional `.npy` of version 1.0, as
    `numpy.save` writes them.
    """
    descr = dtype.newbyteorder("<").str
    fields = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({length},), }}"
    size = NPY_HEADER_BYTES - 10  # after the magic, the version and this size itself
    padded_fields = fields.ljust(size - 1).encode("ascii") + b"\n"
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + padded_fields


class NpyRecords:
    """Tar records of `.npy` members of one length, which are used again and again with other tokens
    and names.
    """

    def __init__(self, rows: int, length: int, dtype: np.dtype[Any], name_bytes: int) -> None:
        """Make records without names and tokens.

        Args:
            rows: Number of records.
            length: Tokens of each member.
            dtype: Of the tokens.
            name_bytes: Bytes of each member's name.
        """
        body_bytes = NPY_HEADER_BYTES + length * dtype.itemsize
        tokens_start = BLOCK_BYTES + NPY_HEADER_BYTES

        # One header without a name serves all records: their names alone differ, and so the sums.
        no_name = np.zeros((1, name_bytes), dtype=np.uint8)
        sizes = np.array([body_bytes], dtype=np.int64)
        unnamed = headers(no_name, sizes)  # (1, 512)
        self._unnamed_sum = int(unnamed[0, CHECKSUM_DIGITS].tobytes(), 8)
        self._records = np.zeros((rows, record_bytes(body_bytes)), dtype=np.uint8)
        self._records[:, :BLOCK_BYTES] = unnamed
        start_of_npy = np.frombuffer(npy_header(dtype, length), dtype=np.uint8)
        self._records[:, BLOCK_BYTES:tokens_start] = start_of_npy
        # (rows, length * itemsize) bytes -> (rows, length) tokens, still a view
        token_bytes = self._records[:, tokens_start : BLOCK_BYTES + body_bytes]
        self.tokens: NDArray[np.integer[Any]] = token_bytes.view(dtype.newbyteorder("<"))
        """The tokens of all records, to be filled, shape (rows, length)."""

    def named(self, names: NDArray[np.uint8]) -> memoryview:
        """Return the bytes of the first records, with these names, uint8, shape (members,
        name_bytes).
        """
        records = self._records[: len(names)]
        rename(records, names, self._unnamed_sum)
        return records.reshape(-1).data


def json_gz_records(
    names: NDArray[np.uint8],
    contexts: NDArray[np.integer[Any]],
    compressor: MemberCompressor,
) -> bytes:
    """Return whole tar records of contexts, shape (members, length), as gzipped compact JSON lists."""
    bodies: list[bytes] = []
    for tokens in contexts:
        text = orjson.dumps(tokens, option=orjson.OPT_SERIALIZE_NUMPY)
        bodies.append(compressor.compress(text))
    sizes = np.array([len(body) for body in bodies], dtype=np.int64)
    # Header, body, and zeros up to the next whole block.
    pieces: list[bytes] = []
    for header, body in zip(headers(names, sizes), bodies, strict=True):
        pieces += (header.tobytes(), body, bytes(-len(body) % BLOCK_BYTES))
    return b"".join(pieces)


@lru_cache(maxsize=1)
def compressor_identity() -> str:
    """Return what decides the bytes of a `json.gz` member: `isal 1.9.1, isa-l 2.32.1, method 2,
    probe 0f1e2d3c`.

    Compressed bytes differ between versions of the library and between processor families; the
    probe is the CRC-32 of a fixed text compressed here, so that equal identities mean equal shards.
    """
    import isal

    text = ",".join(str(i * i % 50_257) for i in range(4096)).encode()
    probe = zlib.crc32(MemberCompressor().compress(text))
    return f"isal {isal.__version__}, isa-l {isal.ISAL_VERSION}, method {METHOD}, probe {probe:08x}"


def read_member(archive: Archive, member: TarMember, path: Path) -> NDArray[np.integer[Any]]:
    """Decode the tokens of one member of an archive by its suffix, shape (length,).

    `.npy` gives its own dtype; `.json.gz`, and plain lists of numbers as `.json` and `.txt`, give
    int64.

    Args:
        archive: Bytes of the tar.
        member: Where the member is in it.
        path: Of the tar, for messages.

    Raises:
        FormatError: The member does not hold a flat list of integers.
    """
    try:
        if member.size_bytes > MAX_MEMBER_BYTES:
            raise ValueError(f"{member.size_bytes:,} bytes, more than {MAX_MEMBER_BYTES:,}")
        body = archive[member.offset : member.offset + member.size_bytes]
        tokens = _decoded(member.name.lower(), body)
        if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
            raise ValueError(f"shape {tokens.shape}, dtype {tokens.dtype}")
    except (ValueError, zlib.error) as error:
        raise FormatError(
            f"member {member.name!r} does not hold the tokens of a context",
            where=f"{path}, offset {member.offset}",
            found=str(error),
            expected="a flat list of integers",
            remedy="make or fetch the tar again",
        ) from error
    return tokens


def _decoded(name: str, body: bytes) -> NDArray[Any]:
    """Decode a member's body by the suffix of its name."""
    if name.endswith(".npy"):
        return array_of(body).copy()
    if not name.endswith((".json.gz", ".json", ".txt")):
        raise ValueError("the suffix is none of .npy, .json.gz, .json, .txt")
    # A list of numbers as JSON, packed or not.
    text = _unzipped(body) if name.endswith(".gz") else body
    if b'"' in text:  # numpy would make rows as long as the longest text
        raise ValueError("text among the numbers")
    return np.array(orjson.loads(text))


def _unzipped(body: bytes) -> bytes:
    """Unpack one gzip stream, up to `MAX_MEMBER_BYTES`."""
    decoder = zlib.decompressobj(wbits=31)
    text = decoder.decompress(body, MAX_MEMBER_BYTES + 1)
    if len(text) > MAX_MEMBER_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_MEMBER_BYTES:,} bytes")
    if not decoder.eof or decoder.unused_data.strip(b"\0"):
        raise ValueError("it is cut off, or not one gzip stream")
    return text


LEVEL = 1
METHOD = 2
"""Raised when the same library would give other bytes."""
_RAW_WBITS = -15
_DEFLATED = 8
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
"""No name, no time, unknown system."""
_LAST_BLOCK = b"\x03\x00"
"""An empty last block."""
_WINDOW_BYTES = 1 << 18
_LEAD = bytes(range(200, 208))
"""Compressed before each text.

None of it is ASCII, so that no text refers to it. It has at most 16 bytes, which the compressor's
first loop leaves to the last one.
"""


class MemberCompressor:
    """Compresses texts, each into a gzip file of its own.

    All texts go through one stream, which is flushed after each: no text refers to an earlier one.
    """

    __slots__ = ("_crc32", "_flush_block", "_flush_window", "_stream")

    def __init__(self) -> None:
        from isal import isal_zlib

        self._crc32 = isal_zlib.crc32
        self._flush_window = isal_zlib.Z_FULL_FLUSH
        self._flush_block = isal_zlib.Z_SYNC_FLUSH
        self._stream = isal_zlib.compressobj(LEVEL, _DEFLATED, _RAW_WBITS)
        self._stream.compress(_first_bytes())
        self._stream.flush(self._flush_window)

    def compress(self, text: bytes) -> bytes:
        """Return an ASCII text as a whole gzip file, the same for the same text whatever was
        compressed before.
        """
        self._stream.compress(_LEAD)
        self._stream.flush(self._flush_block)
        body = self._stream.compress(text) + self._stream.flush(self._flush_window)
        checksum = self._crc32(text).to_bytes(4, "little")
        size = (len(text) & 0xFFFFFFFF).to_bytes(4, "little")
        return b"".join((_GZIP_HEADER, body, _LAST_BLOCK, checksum, size))


@lru_cache(maxsize=1)
def _first_bytes() -> bytes:
    """Return bytes that fill the window of a new stream, and that no text refers to."""
    return np.random.RandomState(1).bytes(_WINDOW_BYTES)
