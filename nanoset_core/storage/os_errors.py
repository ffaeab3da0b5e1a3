"""What the system refuses for want of room, rights or memory, said as errors of ours."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanoset_core.errors import NanosetError, StorageError

_ROOM = "make room and run again: what is finished is kept"
_RIGHTS = "give this user the right to write there, and run again: what is finished is kept"
_FILES = "raise `ulimit -n`, or take fewer workers, and run again: what is finished is kept"
_REMEDIES = {
    errno.ENOSPC: ("the disk is full", _ROOM),
    errno.EDQUOT: ("the quota is used up", _ROOM),
    errno.EFBIG: ("a file may not grow further", "raise `ulimit -f`, or the limit of the file system, and run again"),
    errno.EROFS: ("the disk is read-only", "mount it for writing, and run again: what is finished is kept"),
    errno.EACCES: ("this may not be written", _RIGHTS),
    errno.EPERM: ("this may not be written", _RIGHTS),
    errno.EIO: ("the disk fails", "see what the system log says of it; mend or replace it, and run again"),
    errno.EMFILE: ("too many files are open", _FILES),
    errno.ENFILE: ("too many files are open", _FILES),
}
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
_NO_THREAD = "can't start new thread"


@contextmanager
def explained(folder: Path, *, expected: str | None = None) -> Iterator[None]:
    """Say what is to be done about a refusal of the system that leaves the block.

    Args:
        folder: named where the system does not say which file it was.
        expected: what there should be room for.

    Raises:
        StorageError: the file system takes nothing more, here or at all.
        NanosetError: there is not enough memory, or no further thread or process.
    """
    try:
        yield
    except NanosetError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        if _is_want_of_memory(error):
            raise _no_memory(folder, error) from error
        if not isinstance(error, OSError) or error.errno not in _REMEDIES:
            raise
        what, remedy = _REMEDIES[error.errno]
        found = f"{error.strerror} (errno {error.errno})"
        where = error.filename or folder
        raise StorageError(what, where=where, found=found, expected=expected, remedy=remedy) from error


@contextmanager
def writing_to(folder: Path, *, expected: str | None = None) -> Iterator[None]:
    """Make a folder, see that it takes files before any work is done, and explain what is refused in the block.

    Args:
        folder: where the block writes to.
        expected: what there should be room for.

    Raises:
        StorageError: the folder cannot be made or written to, or the file system took no more in the block.
        NanosetError: memory ran out in the block.
    """
    with explained(folder, expected=expected):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            if error.errno not in _NO_FOLDER:
                raise
            raise StorageError(
                "the folder cannot be made",
                where=folder,
                found=f"{error.strerror} (errno {error.errno}): {error.filename}",
                expected="a folder that can take what is written",
                remedy="name a place for the output in a folder that is there",
            ) from error
        try:
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            error.filename = os.fspath(folder)  # not the name that was tried
            raise
        yield


def _is_want_of_memory(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    return isinstance(error, MemoryError) or str(error) == _NO_THREAD


def _no_memory(folder: Path, error: Exception) -> NanosetError:
    return NanosetError(
        "there is not enough memory",
        where=folder,
        found=str(error) or type(error).__name__,
        remedy="take fewer workers, a smaller range_mib or memory_mib, or a larger limit; what is finished is kept",
    )
