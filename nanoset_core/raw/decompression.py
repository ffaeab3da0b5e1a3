"""Decompression of gzip with several members and zstd with several frames, up to the first fault."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, cast

from nanoset_core.raw.rejects import FaultError
from nanoset_core.raw.stored import StoredPiece


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of compression."""

    name: str
    magic: bytes
    """What a file begins with."""
    new_decoder: Callable[[], Any]
    """Makes an object with decompress(bytes) -> bytes, eof and unused_data, for one member or frame."""
    errors: Callable[[], tuple[type[Exception], ...]]
    """Gives what the decoder raises on bad data."""
    feed_bytes: int
    """Handed to the decoder at once. It bounds what comes out to some 16 MiB, and what is lost at a fault."""
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
ZSTD = Codec("zstd", b"\x28\xb5\x2f\xfd", _zstd_decoder, _zstd_errors, 512, may_pad=False)  # 4 bytes may give 128 KiB


def codec_of(path: str) -> Codec | None:
    """Return the compression that a file's name promises, or None for a plain file."""
    return {"gz": GZIP, "zst": ZSTD}.get(path.lower().rpartition(".")[2])


def decompress(stored: StoredPiece, codec: Codec) -> Iterator[bytes]:
    """Yield the text of a compressed piece in chunks.

    As with gzip.open and zstd, members may follow one another, and zeros may follow gzip members.

    Raises:
        FaultError: the data is damaged, and text of the feed_bytes in which that shows may be missing; or the file ends
            within a member.
        MemoryError: there is no room for zstd's window.
    """
    members = _Members(codec)
    given, position = 0, stored.piece.begin
    for block in stored.blocks():
        for begin in range(0, len(block), codec.feed_bytes):
            feed = block[begin : begin + codec.feed_bytes]
            try:
                for chunk in members.decode(feed):
                    given += len(chunk)
                    yield chunk
            except codec.errors() as error:
                if "not enough memory" in str(error):
                    raise MemoryError(str(error)) from error
                detail = f"{error}, in bytes {position:,} to {position + len(feed):,} of the stored file"
                raise FaultError(f"corrupt_{codec.name}", detail, offset=given) from error
            position += len(feed)
    if members.is_open:
        detail = f"the file ends, at byte {position:,}, in the middle of a compressed member"
        raise FaultError(f"truncated_{codec.name}", detail, offset=given)


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
        """Yield what `data` adds to the text."""
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
