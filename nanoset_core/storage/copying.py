"""Appending one file's bytes to another at the speed of the file system."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import IO

from nanoset_core.errors import SourceChangedError

_PIECE_BYTES = 1 << 30
_LOOP_BYTES = 1 << 20
_UNSUPPORTED = {
    errno.EXDEV,
    errno.EINVAL,
    errno.ENOSYS,
    errno.EOPNOTSUPP,
    errno.EBADF,
    errno.EPERM,
    errno.ETXTBSY,
}


def append_file(source: Path, target: IO[bytes], size_bytes: int, *, begin_bytes: int = 0) -> None:
    """Append bytes of one file to another by `os.copy_file_range`, which shares extents, or else by reads and writes.

    Args:
        source: to copy from.
        target: to append to.
        size_bytes: to copy.
        begin_bytes: where they begin in the source.

    Raises:
        SourceChangedError: the source ends early.
    """
    with open(source, "rb") as file:
        append_opened(file, target, size_bytes, begin_bytes=begin_bytes)


def append_opened(file: IO[bytes], target: IO[bytes], size_bytes: int, *, begin_bytes: int = 0) -> None:
    """Append as `append_file` does, from a file that is open."""
    target.flush()
    end = begin_bytes + size_bytes
    done = _copy_file_range(file.fileno(), target.fileno(), begin_bytes, end)
    target.seek(0, os.SEEK_END)
    file.seek(done)
    while done < end and (piece := file.read(min(_LOOP_BYTES, end - done))):
        target.write(piece)
        done += len(piece)
    if done != end:
        raise SourceChangedError(
            "the file ended early while it was copied",
            where=f"{file.name}, byte {done}",
            found=f"{done} bytes",
            expected=f"{end} bytes",
            remedy="run again once nothing writes to it any more",
        )


def _copy_file_range(source: int, target: int, done: int, end: int) -> int:
    """Copy until `end` of the source, or until the system refuses; return where it stopped in the source."""
    if not hasattr(os, "copy_file_range"):
        return done
    try:
        while done < end:
            copied = os.copy_file_range(source, target, min(_PIECE_BYTES, end - done), offset_src=done)
            if copied == 0:
                break
            done += copied
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
    return done
