"""Stored bytes → text bytes: gzip with several members, zstd with several frames, and where they are broken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from nanoset_core.raw.stored import StoredPiece

WRONG_FORMAT = "wrong_format"


@dataclass(frozen=True, slots=True)
class Fault:
    """A compressed file or table that cannot be read to its end; everything before it was given."""

    offset: int
    """In the decompressed stream: of the first byte that could not be read; -1 in a table."""
    reason: str
    """One of corrupt_gzip, truncated_gzip, corrupt_zstd, truncated_zstd, corrupt_parquet, corrupt_arrow and
    wrong_format."""
    detail: str
    """What the decoder said, and where in the stored file."""
    line: int = 0
    """1-based number of the line or row in which it lies."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of compression."""

    name: str
    magic: bytes
    """What a file begins with."""
    new_decoder: Callable[[], Any]
    """Gives an object with decompress(bytes) -> bytes, eof and unused_data, for one member or frame."""
    errors: Callable[[], tuple[type[Exception], ...]]
    """Gives what the decoder raises on bad data."""
    feed_bytes: int
    """Handed to the decoder at once: bounds what comes out to some 16 MiB, whatever the data."""
    may_pad: bool
    """Whether zero bytes may follow a member."""


def _gzip_decoder() -> Any:
    from isal import isal_zlib

    return isal_zlib.decompressobj(wbits=31)


def _gzip_errors() -> tuple[type[Exception], ...]:
    from isal import isal_zlib

    return (cast(type[Exception], isal_zlib.error),)  # its stub says that it is an instance


def _zstd_decoder() -> Any:
    import zstandard

    # Archives made with `zstd --long=31` need a window of 2 GiB; others take what they need.
    return zstandard.ZstdDecompressor(max_window_size=1 << 31).decompressobj()


def _zstd_errors() -> tuple[type[Exception], ...]:
    import zstandard

    return (zstandard.ZstdError,)


GZIP = Codec("gzip", b"\x1f\x8b", _gzip_decoder, _gzip_errors, 16 << 10, may_pad=True)  # a byte gives at most 1,032
ZSTD = Codec(
    "zstd", b"\x28\xb5\x2f\xfd", _zstd_decoder, _zstd_errors, 512, may_pad=False
)  # four bytes may give a block of 128 KiB


def codec_of(path: str) -> Codec | None:
    """The compression that a file's name promises, or None for a plain file."""
    return {"gz": GZIP, "zst": ZSTD}.get(path.lower().rpartition(".")[2])


def decompress(stored: StoredPiece, codec: Codec) -> Iterator[bytes | Fault]:
    """The text of a compressed piece in chunks; a fault comes last, after every byte that could be decoded.

    As gzip.open and zstd do, members follow one another without a mark, and gzip members may be followed by zeros.
    """
    members = _Members(codec)
    given, position = 0, stored.piece.begin
    for feed in _feeds(stored.blocks(), codec.feed_bytes):
        try:
            for chunk in members.decode(feed):
                given += len(chunk)
                yield chunk
        except codec.errors() as error:
            if "not enough memory" in str(error):  # for zstd's window, of which the file says how large it is
                raise MemoryError(str(error)) from error
            yield from _up_to_fault(stored, codec, position, given, error)
            return
        position += len(feed)
    if members.is_open:
        detail = f"the file ends, at byte {position:,}, in the middle of a compressed member"
        yield Fault(given, f"truncated_{codec.name}", detail)


def _feeds(blocks: Iterator[bytes], size: int) -> Iterator[bytes]:
    for block in blocks:
        for begin in range(0, len(block), size):
            yield block[begin : begin + size]


def _up_to_fault(
    stored: StoredPiece, codec: Codec, position: int, given: int, error: Exception
) -> Iterator[bytes | Fault]:
    """Decode again, the feed at `position` byte by byte: a decoder that fails keeps what the feed gave before."""
    members = _Members(codec)
    seen = 0
    for feed in _feeds(stored.reread(stored.piece.begin, position), codec.feed_bytes):
        seen += sum(map(len, members.decode(feed)))
    for byte in _feeds(stored.reread(position, min(position + codec.feed_bytes, stored.piece.end)), 1):
        try:
            for chunk in members.decode(byte):
                seen += len(chunk)
                if seen > given:
                    yield chunk[given - seen :]
                    given = seen
        except codec.errors():
            break
        position += 1
    yield Fault(given, f"corrupt_{codec.name}", f"{error}, noticed at byte {position:,} of the stored file")


class _Members:
    """Decodes one member after the other, fed piecemeal."""

    def __init__(self, codec: Codec) -> None:
        self._codec = codec
        self._decoder: Any = None
        self._begun = False

    @property
    def is_open(self) -> bool:
        """Whether a member has begun and not ended."""
        return self._decoder is not None

    def decode(self, data: bytes) -> Iterator[bytes]:
        """What `data` adds to the text."""
        while data:
            if self._decoder is None:
                if self._begun and self._codec.may_pad and not (data := data.lstrip(b"\0")):
                    return
                self._decoder, self._begun = self._codec.new_decoder(), True
            if chunk := self._decoder.decompress(data):
                yield chunk
            if not self._decoder.eof:
                return
            data, self._decoder = self._decoder.unused_data, None
