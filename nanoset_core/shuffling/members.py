"""How one context becomes the body of a member, and back: ``npy`` or ``json.gz``."""

from __future__ import annotations

import gzip
import io
import zlib
from functools import lru_cache
from typing import Any, Literal, get_args

import numpy as np
import orjson

from nanoset_core.errors import ConfigError, FormatError
from nanoset_core.shuffling.tar import BLOCK_BYTES, headers, record_bytes

MemberKind = Literal["json.gz", "npy"]

_INDEX_DIGITS = 8
_GZIP_WBITS = 31  # deflate within a gzip header and trailer
_ISAL_LEVEL = 1
_NPY_HEADER_BYTES = 128
_KEY_BYTES = 2 * _INDEX_DIGITS + 1
MAX_INDEX = 10**_INDEX_DIGITS - 1


def check_kind(member: str) -> None:
    """Raises ConfigError unless ``member`` names a kind of body."""
    if member not in get_args(MemberKind):
        raise ConfigError(
            "no such kind of member",
            where="member",
            found=repr(member),
            expected=" or ".join(repr(kind) for kind in get_args(MemberKind)),
            remedy="choose 'json.gz' for OpenLM, 'npy' for speed",
        )


def member_names(shard: int, begin: int, end: int, member: MemberKind) -> np.ndarray:
    """Names ``{shard:08d}_{index:08d}.{member}`` of the indices [begin, end excl), uint8[end - begin, w]."""
    suffix = f".{member}".encode()
    names = np.empty((end - begin, _KEY_BYTES + len(suffix)), dtype=np.uint8)
    names[:, : _INDEX_DIGITS + 1] = np.frombuffer(b"%08d_" % shard, dtype=np.uint8)
    powers = 10 ** np.arange(_INDEX_DIGITS - 1, -1, -1)
    names[:, _INDEX_DIGITS + 1 : _KEY_BYTES] = np.arange(begin, end)[:, None] // powers % 10 + ord("0")
    names[:, _KEY_BYTES:] = np.frombuffer(suffix, dtype=np.uint8)
    return names


def npy_header(dtype: np.dtype[Any], length: int) -> bytes:
    """The 128 bytes before the data of a one-dimensional ``.npy`` of version 1.0, as ``numpy.save`` writes them."""
    fields = f"{{'descr': {dtype.newbyteorder('<').str!r}, 'fortran_order': False, 'shape': ({length},), }}"
    size = _NPY_HEADER_BYTES - 10
    return b"\x93NUMPY\x01\x00" + size.to_bytes(2, "little") + fields.ljust(size - 1).encode("ascii") + b"\n"


def npy_records(names: np.ndarray, length: int, dtype: np.dtype[Any]) -> tuple[np.ndarray, np.ndarray]:
    """Whole tar records of N ``.npy`` members whose data is still zero.

    Returns the records, uint8[N, record], and the view of their data, dtype[N, length], to be filled.
    """
    size = _NPY_HEADER_BYTES + length * dtype.itemsize
    begin = BLOCK_BYTES + _NPY_HEADER_BYTES
    records = np.zeros((len(names), record_bytes(size)), dtype=np.uint8)
    records[:, :BLOCK_BYTES] = headers(names, np.full(len(names), size, dtype=np.int64))
    records[:, BLOCK_BYTES:begin] = np.frombuffer(npy_header(dtype, length), dtype=np.uint8)
    # (N, length * itemsize) bytes -> (N, length) tokens, still a view
    return records, records[:, begin : BLOCK_BYTES + size].view(dtype.newbyteorder("<"))


def json_gz_records(names: np.ndarray, contexts: np.ndarray) -> bytes:
    """Whole tar records of contexts int[N, length] as gzipped compact JSON lists."""
    from isal import isal_zlib

    bodies = [
        isal_zlib.compress(orjson.dumps(tokens, option=orjson.OPT_SERIALIZE_NUMPY), _ISAL_LEVEL, _GZIP_WBITS)
        for tokens in contexts
    ]
    sizes = np.fromiter(map(len, bodies), dtype=np.int64, count=len(bodies))
    block = headers(names, sizes).tobytes()
    zeros = bytes(BLOCK_BYTES)
    pieces = []
    for i, body in enumerate(bodies):
        pieces += (block[i * BLOCK_BYTES : (i + 1) * BLOCK_BYTES], body, zeros[: -len(body) % BLOCK_BYTES])
    return b"".join(pieces)


@lru_cache(maxsize=1)
def compressor_identity() -> str:
    """What decides the bytes of a ``json.gz`` member on this machine: ``isal 1.9.1, isa-l 2.31.1, probe 0f1e2d3c``.

    Compressed bytes differ between versions of the library and between processor families; the probe is the CRC-32
    of a fixed text compressed here, so that equal identities mean equal shards.
    """
    import isal
    from isal import isal_zlib

    text = ",".join(str(i * i % 50_257) for i in range(4096)).encode()
    probe = zlib.crc32(isal_zlib.compress(text, _ISAL_LEVEL, _GZIP_WBITS))
    return f"isal {isal.__version__}, isa-l {isal.ISAL_VERSION}, probe {probe:08x}"


def decode_member(name: str, body: bytes, where: object) -> np.ndarray:
    """Tokens of one member by its suffix: ``.npy`` in its own dtype, ``.json.gz`` as int64; int[length].

    Raises FormatError for another suffix, a damaged body, or one that is not a flat list of integers.
    """
    try:
        if name.endswith(".npy"):
            tokens = np.lib.format.read_array(io.BytesIO(body), allow_pickle=False)
        elif name.endswith(".json.gz"):
            tokens = np.array(orjson.loads(gzip.decompress(body)))
        else:
            raise ValueError("the suffix is neither .npy nor .json.gz")
    except (ValueError, OSError, EOFError, zlib.error) as error:
        raise _not_tokens(name, where, str(error)) from error
    if tokens.ndim != 1 or tokens.dtype.kind not in "iu":
        raise _not_tokens(name, where, f"shape {tokens.shape}, dtype {tokens.dtype}")
    return tokens


def _not_tokens(name: str, where: object, found: str) -> FormatError:
    return FormatError(
        f"member {name!r} does not hold the tokens of a context",
        where=where,
        found=found,
        expected="a flat list of integers as .npy or .json.gz",
        remedy="make the shard again, or fetch it again",
    )
