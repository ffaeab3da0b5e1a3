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
_PATH = "correct the path, and run again"
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
"""Of the machine, whatever is asked of it."""
_NO_FOLDER = (errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.EINVAL, errno.ELOOP)
_PATHS = {
    errno.ENAMETOOLONG: ("this name is longer than the file system allows", "choose a shorter one, and run again"),
    errno.ENOENT: ("this is not there", _PATH),
    errno.ENOTDIR: ("a part of this path is a file and not a folder", _PATH),
    errno.EISDIR: ("this is a folder and not a file", _PATH),
    errno.EEXIST: ("something of this name is there already", "move it away, or name another path, and run again"),
    errno.ENOTEMPTY: ("this folder is not empty", "move what it holds away, or name another path, and run again"),
    errno.ELOOP: ("the symbolic links of this path lead in a circle", _PATH),
    errno.ESTALE: ("the file system has lost this file", "mount it again, and run again: what is finished is kept"),
}
"""Of the path that was asked for; callers may know better what to make of these."""
_UNREADABLE = ("this may not be read", "give this user the right to read it, and run again: what is finished is kept")
_UNKNOWN = ("the system refuses this", "see to what the system says, and run again: what is finished is kept")
_NO_THREAD = "can't start new thread"


@contextmanager
def explained(folder: Path, *, expected: str | None = None) -> Iterator[None]:
    """Say what is to be done about a refusal of the system that leaves the block.

    Args:
        folder: named where the system does not say which file it was.
        expected: what there should be room for.

    Raises:
        StorageError: the file system takes nothing more, here or at all, or does not give what was asked for.
        NanosetError: there is not enough memory, or no further thread or process.
    """
    try:
        yield
    except NanosetError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        known = _is_want_of_memory(error) or (isinstance(error, OSError) and error.errno in _REMEDIES)
        refused = refusal(error, folder, expected=expected) if known else None
        if refused is None:
            raise
        raise refused from error


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


def refusal(error: BaseException, where: object, *, expected: str | None = None) -> NanosetError | None:
    """What the system refused, as an error of ours; None where the error is of another kind.

    Args:
        error: as it was raised.
        where: named where the system does not say which file it was.
        expected: what there should be room for.
    """
    if _is_want_of_memory(error):
        return _no_memory(where, error)
    if not isinstance(error, OSError):
        return None
    what, remedy = (_REMEDIES | _PATHS).get(error.errno or 0, _UNKNOWN)
    if error.errno in (errno.EACCES, errno.EPERM) and _is_unreadable(error.filename):
        what, remedy = _UNREADABLE
    found = str(error) if error.errno is None else f"{error.strerror} (errno {error.errno})"
    return StorageError(what, where=error.filename or where, found=found, expected=expected, remedy=remedy)


def _is_unreadable(path: object) -> bool:
    """Whether something is there that this user may not read; it may be a folder that may not be looked into."""
    return isinstance(path, str | bytes | os.PathLike) and os.path.lexists(path) and not os.access(path, os.R_OK)


def _is_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, OSError):
        return error.errno in (errno.ENOMEM, errno.EAGAIN)
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and str(error) == _NO_THREAD)


def _no_memory(where: object, error: BaseException) -> NanosetError:
    return NanosetError(
        "there is not enough memory",
        where=where,
        found=str(error) or type(error).__name__,
        remedy="take fewer workers, a smaller range_mib or memory_mib, or a larger limit; what is finished is kept",
    )
