"""The kinds of compression that files of text may have, in one table."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from nanoset_core.wording import alternatives_text

_MAX_CHUNK_BYTES = 16 << 20
"""How much text a decoder returns at once, if it can be told."""


@dataclass(frozen=True, slots=True)
class Codec:
    """One kind of compression."""

    name: str
    """Its name in messages, and in the reasons of rejects, such as corrupt_gzip."""
    ending: str
    """The ending of a compressed file's name."""
    magic: re.Pattern[bytes]
    """Matches the first bytes of every compressed file."""
    feed_bytes: int
    """How many bytes are passed to the decoder at once. This limits what it returns to some 16 MiB,
    and what is lost at a fault.
    """
    block_bytes: int
    """How many bytes at the start of a file are enough to get some text."""
    padding: bytes
    """The byte that may follow a member, any number of times; empty if none may."""
    make_decoder: Callable[[], Any]
    """Imports the library, and returns a decoder; see `new_decoder`."""
    load_error_type: Callable[[], type[Exception]]
    """Imports the library, and returns the class of the errors of its decoders."""
    has_large_blocks: bool = False
    """Whether a few bytes may stand for much more than 16 MiB of text.

    Then the decoder has to return the text in parts, as those of Python's `bz2` do.
    """

    def new_decoder(self) -> Any:
        """Return a decoder for the next compressed text of a file.

        A file may consist of several compressed texts, because somebody has concatenated compressed
        files. Each of them, which gzip calls a member and zstd a frame, needs a decoder of its own.

        Returns:
            An object for the method `decompress`. It has two attributes: `eof` says whether the
            compressed text has ended, and `unused_data` is what follows it.
        """
        return self.make_decoder()

    def decompress(self, decoder: Any, data: bytes) -> Iterator[bytes]:
        """Yield the text of some compressed bytes, in chunks of up to some 16 MiB.

        Args:
            decoder: The decoder, which has read the bytes before these.
            data: The bytes, at most `feed_bytes`.

        Raises:
            self.error_type: The bytes are damaged.
        """
        if self.has_large_blocks:
            yield decoder.decompress(data, _MAX_CHUNK_BYTES)
            while not decoder.eof and not decoder.needs_input:
                yield decoder.decompress(b"", _MAX_CHUNK_BYTES)
        else:
            yield decoder.decompress(data)

    @property
    def error_type(self) -> type[Exception]:
        """The class of the errors that a decoder raises if a file is damaged."""
        return self.load_error_type()


# The libraries are imported when a file is decompressed: most commands read none.


def _gzip_decoder() -> Any:
    from isal import isal_zlib

    return isal_zlib.decompressobj(wbits=31)  # 31 stands for the gzip format


def _gzip_error_type() -> type[Exception]:
    from isal import isal_zlib

    library: Any = isal_zlib  # whose type hints call the class an exception
    error_type: type[Exception] = library.error
    return error_type


def _zstd_decoder() -> Any:
    from zstandard import ZstdDecompressor

    # Archives made with `zstd --long=31` need a window of 2 GiB; others take what they need.
    return ZstdDecompressor(max_window_size=1 << 31).decompressobj()


def _zstd_error_type() -> type[Exception]:
    from zstandard import ZstdError

    return ZstdError


def _bzip2_decoder() -> Any:
    from bz2 import BZ2Decompressor

    return BZ2Decompressor()


def _bzip2_error_type() -> type[Exception]:
    return OSError  # "Invalid data stream"


CODECS = (
    Codec(
        name="gzip",
        ending=".gz",
        magic=re.compile(rb"\x1f\x8b\x08"),  # 08 stands for deflate, the only method there is
        feed_bytes=16 << 10,  # a compressed byte expands to at most 1,032 bytes
        block_bytes=64 << 10,
        padding=b"\0",
        make_decoder=_gzip_decoder,
        load_error_type=_gzip_error_type,
    ),
    Codec(
        name="zstd",
        ending=".zst",
        magic=re.compile(rb"\x28\xb5\x2f\xfd"),
        feed_bytes=512,  # four compressed bytes may expand to 128 KiB
        block_bytes=128 << 10,
        padding=b"",
        make_decoder=_zstd_decoder,
        load_error_type=_zstd_error_type,
    ),
    Codec(
        name="bzip2",
        ending=".bz2",
        # The header, and that of the first block, or the end if there is no text. "BZh" alone may
        # be the start of a text.
        magic=re.compile(rb"BZh[1-9](1AY&SY|\x17rE8P\x90)"),
        feed_bytes=16 << 10,
        block_bytes=1 << 20,  # a block of 900 kB of random bytes takes slightly more than these
        padding=b"",
        make_decoder=_bzip2_decoder,
        load_error_type=_bzip2_error_type,
        has_large_blocks=True,  # 50 compressed bytes may expand to 45 MB
    ),
)
"""All compressions that are read. Endings, descriptions of files and messages derive from them."""

COMPRESSED = tuple(codec.ending for codec in CODECS)
"""The endings of compressed files."""


COMPRESSED_LISTED = alternatives_text(COMPRESSED)
"""These endings, for messages: ".gz, .zst or .bz2"."""
COMPRESSION_NAMES = alternatives_text([codec.name for codec in CODECS])
"""The names of all compressions, for messages: "gzip, zstd or bzip2"."""


def codec_of(path: str) -> Codec | None:
    """Return the compression that a file's name promises.

    Args:
        path: Path or name of the file, such as `a.jsonl.gz`.

    Returns:
        That of gzip, for example; None for an uncompressed file.
    """
    name = path.lower()
    for codec in CODECS:
        if name.endswith(codec.ending):
            return codec
    return None


def without_compression(path: str) -> str:
    """Return the name that a file has when it is decompressed, in small letters.

        web/A.TSV.GZ    web/a.tsv
        web/a.tsv       web/a.tsv

    Args:
        path: Path or name of the file.
    """
    name = path.lower()
    codec = codec_of(name)
    if codec is None:
        return name
    return name.removesuffix(codec.ending)
