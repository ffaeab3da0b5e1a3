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
from nanoset_core.storage.reading.npy_arrays import npy_array

MemberKind = Literal["json.gz", "npy"]
"""How a context is stored in a tar."""
_INDEX_DIGITS = 8
"""Digits of the tar's number, and of the context's number, in a member's name."""
NPY_HEADER_BYTES = 128
"""Bytes of a `.npy` before its data."""
_KEY_BYTES = 2 * _INDEX_DIGITS + 1
"""Bytes of a member's name before its extension."""
MAX_MEMBER_BYTES = 64 << 20
"""Largest size of a member, stored and unpacked: some ten million tokens. Without a limit, a small
compressed file could fill the memory.
"""


def member_names(shard: int, start: int, stop: int, member: MemberKind) -> NDArray[np.uint8]:
    """Return the names of consecutive members, such as `00000003_00000041.npy`.

    Args:
        shard: Number of the tar.
        start: Number of the first member in the tar.
        stop: Number after the last member.
        member: The extension.

    Returns:
        ASCII, uint8, shape (stop - start, name_bytes).
    """
    prefix = b"%08d_" % shard
    suffix = f".{member}".encode()
    names = np.empty((stop - start, _KEY_BYTES + len(suffix)), dtype=np.uint8)
    names[:, : len(prefix)] = np.frombuffer(prefix, dtype=np.uint8)
    names[:, len(prefix) : _KEY_BYTES] = _decimal_digits(np.arange(start, stop))
    names[:, _KEY_BYTES:] = np.frombuffer(suffix, dtype=np.uint8)
    return names


def _decimal_digits(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return each number as the ASCII codes of eight digits: 41 as those of "00000041".

    Args:
        numbers: Shape (n_numbers,).

    Returns:
        Shape (n_numbers, 8).
    """
    powers = 10 ** np.arange(_INDEX_DIGITS - 1, -1, -1)  # 10,000,000 to 1
    digits = numbers[:, None] // powers % 10
    return digits + ord("0")


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """Return the bytes before the data of a .npy file with a flat array.

    They are the same as those that `numpy.save` writes, and say of which type the entries are, and
    how many there are. For 2,049 entries of type uint16, there are a few special bytes, and then
    this text, which is filled up with spaces to 128 bytes:

        {'descr': '<u2', 'fortran_order': False, 'shape': (2049,), }

    Args:
        dtype: Type of the data, which is stored little endian.
        length: Number of entries.
    """
    descr = dtype.newbyteorder("<").str
    fields = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': ({length},), }}"
    # The size does not include the magic, the version and the size itself, 10 bytes together.
    size = NPY_HEADER_BYTES - 10
    padded_fields = fields.ljust(size - 1).encode("ascii") + b"\n"
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + padded_fields


class NpyRecords:
    """A buffer of tar records with `.npy` members of one length.

    It is filled again and again with other tokens and names, which is faster than making records.

    Args:
        rows: Number of records.
        length: Tokens of each member.
        dtype: Type of the tokens.
        name_bytes: Bytes of each member's name.
    """

    def __init__(self, rows: int, length: int, dtype: np.dtype[Any], name_bytes: int) -> None:
        """Write what all records have in common: headers without names, and starts of `.npy`."""
        body_bytes = NPY_HEADER_BYTES + length * dtype.itemsize
        tokens_start = BLOCK_BYTES + NPY_HEADER_BYTES

        # All records have the same header except for the name and the checksum, which are filled in
        # later.
        no_name = np.zeros((1, name_bytes), dtype=np.uint8)
        sizes = np.array([body_bytes], dtype=np.int64)
        unnamed = headers(no_name, sizes)  # (1, 512)
        checksum_digits = unnamed[0, CHECKSUM_DIGITS].tobytes()
        self._unnamed_sum = int(checksum_digits, 8)
        self._records = np.zeros((rows, record_bytes(body_bytes)), dtype=np.uint8)
        self._records[:, :BLOCK_BYTES] = unnamed

        # All bodies have the same header of a .npy file.
        start_of_npy = np.frombuffer(npy_header(dtype, length), dtype=np.uint8)
        self._records[:, BLOCK_BYTES:tokens_start] = start_of_npy

        # View the (rows, length * itemsize) bytes of the bodies as (rows, length) tokens.
        token_bytes = self._records[:, tokens_start : BLOCK_BYTES + body_bytes]
        self.tokens: NDArray[np.integer[Any]] = token_bytes.view(dtype.newbyteorder("<"))
        """The tokens of all records, to be filled, shape (rows, length)."""

    def named(self, names: NDArray[np.uint8]) -> memoryview:
        """Give names to the first files in this buffer, and return their bytes, ready for a tar.

        A file has a header and its content. The caller has filled in the contents. The headers
        differ only in the name, such as 00000003_00000041.npy, and in the checksum, which depends
        on it.

        Args:
            names: Names in ASCII, uint8, shape (n_members, name_bytes), at most as many as there
                are files in the buffer.

        Returns:
            The bytes of these files, without a copy. They are valid until the buffer is filled
            again.
        """
        records = self._records[: len(names)]  # (n_members, bytes of a header and its content)
        rename(records, names, self._unnamed_sum)
        return records.reshape(-1).data


def json_gz_records(
    names: NDArray[np.uint8],
    contexts: NDArray[np.integer[Any]],
    compressor: MemberCompressor,
) -> bytes:
    """Return the bytes of several training samples in a tar, each as a compressed JSON list.

    A tar has, for each file, a header of 512 bytes with its name, then its content, here `[5,17,2]`
    after compression, and zeros up to the next multiple of 512.

    Args:
        names: Names of the files, uint8, shape (n_members, name_bytes).
        contexts: The tokens of each sample, shape (n_members, length).
        compressor: Compresses the lists.
    """
    bodies: list[bytes] = []
    for tokens in contexts:
        text = orjson.dumps(tokens, option=orjson.OPT_SERIALIZE_NUMPY)
        bodies.append(compressor.compress(text))

    # Each record is a header, a body, and zeros up to the next whole block.
    sizes = np.array([len(body) for body in bodies], dtype=np.int64)
    pieces: list[bytes] = []
    for header, body in zip(headers(names, sizes), bodies, strict=True):
        n_zeros = -len(body) % BLOCK_BYTES
        pieces += (header.tobytes(), body, bytes(n_zeros))
    return b"".join(pieces)


@lru_cache(maxsize=1)
def compressor_identity() -> str:
    """Return a text that names all that decides the bytes of compressed files in tars.

    For example: "isal 1.9.1, isa-l 2.32.1, method 2, probe 0f1e2d3c". The same text is compressed
    to other bytes by another version of the library, or on another family of processors. If this
    text is equal on two machines, their tars are equal, too.
    """
    import isal

    # Compressed bytes also differ between families of processors. So the text includes a checksum
    # of a sample that is compressed here.
    sample = ",".join(str(i * i % 50_257) for i in range(4096)).encode()
    probe = zlib.crc32(MemberCompressor().compress(sample))
    return f"isal {isal.__version__}, isa-l {isal.ISAL_VERSION}, method {METHOD}, probe {probe:08x}"


def read_member(archive: Archive, member: TarMember, path: Path) -> NDArray[np.integer[Any]]:
    """Read the tokens of one training sample from a tar.

    The ending of its name says how they are stored: `.npy`, or a list such as [5, 17, 2] in
    `.json`, `.json.gz` or `.txt`.

    Args:
        archive: Bytes of the tar.
        member: Where the sample is in it.
        path: Path of the tar, for messages.

    Returns:
        Shape (length,), in the type of a `.npy`, otherwise int64.

    Raises:
        FormatError: The member does not contain a flat list of integers.
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
            f"member {member.name!r} does not contain the tokens of a context",
            where=f"{path}, offset {member.offset}",
            found=str(error),
            expected="a flat list of integers",
            remedy="make or fetch the tar again",
        ) from error
    return tokens


def _decoded(name: str, body: bytes) -> NDArray[Any]:
    """Decode the content of a file with tokens, by the ending of its name.

        0001.npy        an array of numpy
        0001.json       a list such as [5, 17, 2]; also 0001.txt
        0001.json.gz    such a list, compressed

    Args:
        name: Name of the file, in lower case.
        body: Its bytes.

    Raises:
        ValueError, zlib.error: The content is not in this format, or the ending is unknown.
    """
    if name.endswith(".npy"):
        return npy_array(body).copy()
    if not name.endswith((".json.gz", ".json", ".txt")):
        raise ValueError("the suffix is none of .npy, .json.gz, .json, .txt")
    # A list of numbers as JSON, compressed or not.
    text = _unzipped(body) if name.endswith(".gz") else body
    return _tokens_of_list(orjson.loads(text))


def _tokens_of_list(values: object) -> NDArray[np.int64]:
    """Return the tokens of a list that was read from JSON.

    Args:
        values: What was read. It may be anything, since a file such as `info.json` may be no list
            of tokens.

    Raises:
        ValueError: It is not a list of integers, or an empty one.
    """
    if not isinstance(values, list):
        raise ValueError(f"{type(values).__name__} instead of a list")
    # Check the types first: numpy takes `true` for 1, and makes all entries of a list of texts as
    # long as the longest one.
    types = set(map(type, values))
    if types != {int}:
        names = sorted(kind.__name__ for kind in types)
        raise ValueError(f"a list of {', '.join(names) or 'nothing'}")
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError as error:
        raise ValueError("a number that does not fit into 64 bits with a sign") from error


def _unzipped(body: bytes) -> bytes:
    """Unpack a gzip file in memory, but not more than `MAX_MEMBER_BYTES` (64 MiB).

    A small compressed file may unpack to terabytes, by mistake or on purpose. It is refused as soon
    as it exceeds the limit.

    Args:
        body: The file, after which only zeros may follow.

    Raises:
        ValueError: It unpacks to more, is cut off, or other bytes follow it.
        zlib.error: It is no gzip file, or damaged.
    """
    decoder = zlib.decompressobj(wbits=31)  # 31 stands for gzip
    text = decoder.decompress(body, MAX_MEMBER_BYTES + 1)
    if len(text) > MAX_MEMBER_BYTES:
        raise ValueError(f"it unpacks to more than {MAX_MEMBER_BYTES:,} bytes")
    is_complete = decoder.eof
    other_bytes = decoder.unused_data.strip(b"\0")  # after the end of the stream
    if not is_complete or other_bytes:
        raise ValueError("it is cut off, or not one gzip stream")
    return text


LEVEL = 1
"""Level of compression."""
METHOD = 2
"""Version of `MemberCompressor`; it is increased when its code changes the bytes."""
_RAW_WBITS = -15
"""Value of zlib's `wbits` for a stream without header and checksum."""
_DEFLATED = 8
"""The only method of compression in zlib."""
_GZIP_HEADER = bytes.fromhex("1f8b08000000000000ff")
"""Header of a gzip file without name and time, made on an unknown system."""
_LAST_BLOCK = b"\x03\x00"
"""An empty block that ends a compressed stream."""
_WINDOW_BYTES = 1 << 18
"""Bytes with which a new stream is filled: more than a text can refer back to."""
_LEAD = bytes(range(200, 208))
"""Compressed before each text.

None of it is ASCII, so that no text refers to it. It has at most 16 bytes, which the compressor's
first loop leaves to the last one.
"""


class MemberCompressor:
    """Compresses texts into separate gzip files.

    All texts go through one stream, since a new stream for each would be slow. The stream is
    flushed after each text, so that no text refers to an earlier one.
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
        """Return a text as a gzip file, whose bytes do not depend on earlier texts.

        Args:
            text: The text in ASCII.

        Returns:
            All bytes of the file, as they are stored in a tar.
        """
        checksum = self._crc32(text).to_bytes(4, "little")
        size = (len(text) % (1 << 32)).to_bytes(4, "little")
        return b"".join((_GZIP_HEADER, self._deflate(text), _LAST_BLOCK, checksum, size))

    def _deflate(self, text: bytes) -> bytes:
        """Return the compressed blocks of a text, which end at a whole byte.

        A full flush lets the compressor forget the text before, but not all of its inner state. So
        a few fixed bytes, the lead, are compressed before each text, and what they give is thrown
        away: afterwards, the state is always the same.
        """
        self._stream.compress(_LEAD)
        self._stream.flush(self._flush_block)
        return self._stream.compress(text) + self._stream.flush(self._flush_window)


@lru_cache(maxsize=1)
def _first_bytes() -> bytes:
    """Return bytes that fill the window of a new stream, and that no text refers to."""
    return np.random.RandomState(1).bytes(_WINDOW_BYTES)
