"""Append the bytes of one local file to another, without copying them if the file system can."""

from __future__ import annotations

import os
from typing import IO

from nanoset_core.errors import SourceChangedError

_SYSTEM_BYTES = 1 << 30
"""Bytes that the operating system is asked to copy at once."""
_LOOP_BYTES = 1 << 20
"""Bytes that are read and written at once."""


def append_file(source: IO[bytes], target: IO[bytes], size_bytes: int, begin: int = 0) -> None:
    """Append bytes of one open file to another.

    Datasets are joined by this, so there may be many GB. The operating system can copy them much
    faster than a loop that reads and writes. Some file systems, such as XFS and Btrfs, do not even
    copy: both files then share the same bytes on the disk. What the system does not copy, a loop
    does.

    Args:
        source: The file to read from.
        target: The file to append to.
        size_bytes: Number of bytes.
        begin: Position of the first byte in `source`.

    Raises:
        SourceChangedError: `source` ends before.
    """
    target.flush()
    copied_bytes = _append_by_system(source, target, size_bytes, begin)

    copied_bytes += _append_by_loop(source, target, size_bytes - copied_bytes, begin + copied_bytes)
    if copied_bytes != size_bytes:
        raise SourceChangedError(
            "the file ended early while it was copied",
            where=f"{source.name}, byte {begin + copied_bytes}",
            found=f"{copied_bytes} bytes",
            expected=f"{size_bytes} bytes",
            remedy="run again once nothing writes to it any more",
        )


def _append_by_system(source: IO[bytes], target: IO[bytes], size_bytes: int, begin: int) -> int:
    """Let the operating system append bytes of one file to another, as far as it can.

    The system may copy all bytes, some of them, or none, for example if the files are on different
    disks. The caller copies the rest.

    Args:
        source: The file to read from.
        target: The file to append to, with no bytes in its buffer.
        size_bytes: Number of bytes.
        begin: Position of the first byte in `source`.

    Returns:
        The number of bytes that were appended.
    """
    copied_bytes = 0
    try:
        while copied_bytes < size_bytes:
            n_bytes = os.copy_file_range(
                source.fileno(),
                target.fileno(),
                min(_SYSTEM_BYTES, size_bytes - copied_bytes),
                offset_src=begin + copied_bytes,
            )
            if n_bytes == 0:
                break  # `source` ends here.
            copied_bytes += n_bytes
    except (OSError, AttributeError):
        # This system has no such function, or it cannot copy between these two file systems. If the
        # reason is another one, such as a full disk, reading and writing will fail as well.
        pass
    return copied_bytes


def _append_by_loop(source: IO[bytes], target: IO[bytes], size_bytes: int, begin: int) -> int:
    """Append bytes of one file to another by reading and writing blocks of 1 MiB.

    Args:
        source: The file to read from.
        target: The file to append to.
        size_bytes: Number of bytes.
        begin: Position of the first byte in `source`.

    Returns:
        The number of bytes that were appended; fewer if `source` ends before.
    """
    target.seek(0, os.SEEK_END)
    source.seek(begin)
    copied_bytes = 0
    while copied_bytes < size_bytes:
        block = source.read(min(_LOOP_BYTES, size_bytes - copied_bytes))
        if not block:
            break
        target.write(block)
        copied_bytes += len(block)
    return copied_bytes
