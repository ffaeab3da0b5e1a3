"""Explain errors of the operating system, such as a full disk, and say what to do about them."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import NanosetError, StorageError
from nanoset_core.storage.atomic import final_path

_RUN_AGAIN = "and run again: what is finished is kept"
_NO_THREAD = "can't start new thread"
"""Text of the RuntimeError that Python raises if there is no memory for a thread."""
_NO_LIBRARY = "failed to map segment from shared object"
"""End of the ImportError that Python raises if there is no memory for a compiled module."""


class _Explanation(NamedTuple):
    """What an error of the operating system means for the user."""

    what: str
    """What is wrong."""
    remedy: str
    """What to do."""


_DISK_FULL = _Explanation("the disk is full", f"make room {_RUN_AGAIN}")
_NO_INODES = _Explanation(
    "the disk can have no more files",
    f"delete files there (`df -i` shows how many it can have), {_RUN_AGAIN}",
)
_QUOTA = _Explanation("the quota is used up", f"make room {_RUN_AGAIN}")
_FILE_LIMIT = _Explanation(
    "a file may not grow further",
    f"raise `ulimit -f`, or the limit of the file system, {_RUN_AGAIN}",
)
_READ_ONLY = _Explanation("the disk is read-only", f"mount it for writing, {_RUN_AGAIN}")
_NOT_WRITABLE = _Explanation(
    "this may not be written",
    f"give this user the right to write there, {_RUN_AGAIN}",
)
_NOT_READABLE = _Explanation(
    "this may not be read",
    f"give this user the right to read it, {_RUN_AGAIN}",
)
_BROKEN_DISK = _Explanation(
    "the disk fails",
    f"read the system log; repair or replace the disk, {_RUN_AGAIN}",
)
_TOO_MANY_FILES = _Explanation(
    "too many files are open",
    f"raise `ulimit -n`, or take fewer workers, {_RUN_AGAIN}",
)
_MISSING = _Explanation(
    "there is no such file or folder",
    f"correct the path, {_RUN_AGAIN}",
)
_OTHER = _Explanation(
    "the system refuses this",
    f"correct the path, or what the system says, {_RUN_AGAIN}",
)
_EXPLANATIONS = {
    errno.ENOSPC: _DISK_FULL,
    errno.EDQUOT: _QUOTA,
    errno.EFBIG: _FILE_LIMIT,
    errno.EROFS: _READ_ONLY,
    errno.EACCES: _NOT_WRITABLE,
    errno.EPERM: _NOT_WRITABLE,
    errno.EIO: _BROKEN_DISK,
    errno.EMFILE: _TOO_MANY_FILES,
    errno.ENFILE: _TOO_MANY_FILES,
}
"""Error numbers that mean something is wrong with the machine, whichever path was used."""
_WRITE_PROBLEMS = {
    explanation.what
    for explanation in (
        _DISK_FULL,
        _NO_INODES,
        _QUOTA,
        _FILE_LIMIT,
        _READ_ONLY,
        _NOT_WRITABLE,
    )
}
"""What errors say of a place to write to, so that they can also say what it was for."""
_PERMISSION_ERRORS = (errno.EACCES, errno.EPERM)
_MEMORY_ERRORS = (errno.ENOMEM, errno.EAGAIN)
"""Error numbers that mean there is not enough memory."""


@contextmanager
def explained(
    path: Path, *, expected: str | None = None, only_reads: bool = False
) -> Iterator[None]:
    """Replace errors of the block such as "disk full" by errors that say what to do about them.

        OSError "No space left on device"       StorageError "the disk is full", and "make room"
        MemoryError                             NanosetError "there is not enough memory"
        RuntimeError "can't start new thread"   the same, since memory is the usual reason
        FileNotFoundError                       unchanged: nothing is wrong with the machine
        other RuntimeErrors                     unchanged

    Args:
        path: The folder that is written to, or the file that is read. The error names it if the
            system does not say which file was the problem.
        expected: What there should have been room for, for the message.
        only_reads: Whether the block writes nothing, so that it may lack permissions to read only.

    Raises:
        StorageError: The disk is full or read-only, permissions are missing, and so on.
        NanosetError: There is not enough memory.
    """
    try:
        yield
    except StorageError as error:
        # The block has explained the error already, but may not know what the room was for. The
        # error may be that of another process, so it may have lost its cause.
        lacks_expected = expected is not None and error.expected is None
        if not lacks_expected or error.what not in _WRITE_PROBLEMS:
            raise
        raise StorageError(
            error.what,
            where=error.where,
            found=error.found,
            expected=expected,
            remedy=error.remedy,
        ) from error
    except NanosetError:
        raise  # it has a remedy already
    except (OSError, MemoryError, RuntimeError, ImportError) as error:
        explanation = None
        number = _errno_of(error)  # such as 28 for a full disk; 0 if the error has none
        is_fault_of_machine = number in _EXPLANATIONS or number in _MEMORY_ERRORS
        if is_fault_of_machine:
            explanation = explained_error(error, path, expected=expected, only_reads=only_reads)
        if explanation is None:
            raise
        raise explanation from error


@contextmanager
def explaining_all(path: Path) -> Iterator[None]:
    """Replace every error of the operating system in the block by one that says what to do.

    In contrast to `explained`, this includes wrong paths: a name that is too long, or a file in
    place of a folder. So it is for a block that writes to a path that the user has named.

    Args:
        path: The folder that is written to. The error names it if the system does not say which
            file was the problem.

    Raises:
        StorageError: The system has refused to write.
    """
    try:
        yield
    except NanosetError:
        raise  # it has a remedy already
    except OSError as error:
        raise explained_os_error(error, path) from error


@contextmanager
def writing_to(folder: Path, *, expected: str | None = None) -> Iterator[None]:
    """Create a folder, check that files can be written to it, and explain errors of the block.

    A long job calls this at its start, so that a wrong path is reported at once, and not when the
    first result is written. Errors such as a full disk, now or in the block, say what to do about
    them.

    Args:
        folder: The folder.
        expected: What there should have been room for, for the message.

    Raises:
        StorageError: The folder cannot be created or written to; or, in the block, the disk is full
            or read-only, permissions are missing, and so on.
        NanosetError: There is not enough memory.
    """
    with explained(folder, expected=expected):
        _create_writable(folder)
        yield


def _create_writable(folder: Path) -> None:
    """Create a folder unless it exists, and check that files can be written to it.

    Args:
        folder: The folder.

    Raises:
        StorageError: The path is wrong: for example, a part of it is a file.
        OSError: Something is wrong with the machine, such as a full disk.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):  # a file that is deleted at once
            pass
    except OSError as error:
        is_fault_of_machine = error.errno in _EXPLANATIONS
        if not is_fault_of_machine:
            raise _wrong_path_error(folder, error) from error
        # The message will name this path. The user does not know the temporary file.
        error.filename = os.fspath(folder)
        raise


def _wrong_path_error(folder: Path, error: OSError) -> StorageError:
    """Return the error for a folder whose path is wrong: for example, a part of it is a file."""
    return StorageError(
        "the folder cannot be made",
        where=folder,
        found=f"{error.strerror} (errno {error.errno}): {error.filename}",
        expected="a folder that can take what is written",
        remedy="name a place for the output in a folder that is there",
    )


def explained_error(
    error: BaseException,
    where: object = None,
    *,
    expected: str | None = None,
    only_reads: bool = False,
) -> NanosetError | None:
    """Return an error that explains one of the operating system, and says what to do about it.

    For example, OSError 28 (ENOSPC, "No space left on device") gives a StorageError with the text
    "the disk is full" and the remedy "make room and run again: what is finished is kept".

    Args:
        error: The error that was raised.
        where: What the new error names if the system does not say which file was the problem; None
            if it is not known what was read or written.
        expected: What there should have been room for, for the message.
        only_reads: Whether the error was raised while something was read.

    Returns:
        The new error; None if `error` is not one of the operating system.
    """
    if isinstance(error, OSError):
        return explained_os_error(error, where, expected=expected, only_reads=only_reads)
    if _errno_of(error) in _MEMORY_ERRORS:
        return _memory_error(error, where)
    return None


def explained_os_error(
    error: OSError,
    where: object = None,
    *,
    expected: str | None = None,
    only_reads: bool = False,
) -> NanosetError:
    """Return an error that explains an OSError, and says what to do about it.

    Args:
        error: The error that was raised.
        where: As for `explained_error`.
        expected: As for `explained_error`.
        only_reads: As for `explained_error`.
    """
    number = _errno_of(error)
    if number in _MEMORY_ERRORS:
        return _memory_error(error, where)

    explanation = _EXPLANATIONS.get(number, _OTHER)
    if number == errno.ENOENT:
        # This is no entry of `_EXPLANATIONS`, since nothing is wrong with the machine.
        explanation = _MISSING
    path = None  # stays so if the system does not name the file, or only its number when open
    if isinstance(error.filename, str | bytes | os.PathLike):
        path = os.fsdecode(error.filename)
    if number == errno.ENOSPC and _lacks_inodes(path or where):
        explanation = _NO_INODES
    # The system does not say whether permission to read or to write was denied: look at the file.
    is_unreadable = only_reads or (path and _exists_unreadable(path))
    if number in _PERMISSION_ERRORS and is_unreadable:
        explanation = _NOT_READABLE
        expected = None  # it describes a place to write to
    # Whichever file was opened last, perhaps one of a library, is not the reason.
    if explanation is _TOO_MANY_FILES:
        path = None
    place = path or where
    return StorageError(
        explanation.what,
        # The user does not know the temporary names of files and folders that are being written.
        where=None if place is None else final_path(str(place)),
        found=f"{error.strerror} (errno {number})" if number else str(error),
        expected=expected,
        remedy=explanation.remedy,
    )


def _memory_error(error: BaseException, where: object) -> NanosetError:
    """Return the error that explains one that was raised for lack of memory."""
    return NanosetError(
        "there is not enough memory",
        where=where,
        found=str(error) or type(error).__name__,
        remedy=(
            "take fewer workers, a smaller range_mib or memory_mib, or a larger limit, "
            f"{_RUN_AGAIN}"
        ),
    )


def _exists_unreadable(path: str) -> bool:
    """Return whether there is a file or folder at a path that this user may not read.

    The number of an error says "permission denied", but not whether it was denied to read or to
    write.
    """
    return os.path.lexists(path) and not os.access(path, os.R_OK)


def _lacks_inodes(path: object) -> bool:
    """Return whether a disk has room, but can have no more files, which is the same system error.

    File systems such as ext4 have a fixed number of inodes, one for each file.

    Args:
        path: A file or folder on the disk, or what else an error names. It need not exist.
    """
    if not isinstance(path, str | Path):
        return False
    folders = [Path(path), *Path(path).absolute().parents]
    for folder in folders:
        try:
            status = os.statvfs(folder)
        except OSError:
            continue  # it does not exist
        # File systems such as Btrfs have no fixed number, and report 0. XFS and ZFS have none
        # either, but report how many files there is room for: 0 also if the disk is full.
        return status.f_files > 0 and status.f_favail == 0 and status.f_bavail > 0
    return False


def _errno_of(error: BaseException) -> int:
    """Return the number of an operating system's error, such as 28 (ENOSPC) for a full disk.

    Python reports a lack of memory in four ways. All of them give the same number, ENOMEM:

        OSError with the number ENOMEM
        MemoryError
        RuntimeError "can't start new thread"
        ImportError "... failed to map segment from shared object"

    Returns:
        The number; 0 if the error has none.
    """
    lacks_thread = isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    lacks_library = isinstance(error, ImportError) and str(error).endswith(_NO_LIBRARY)
    if lacks_thread or lacks_library or isinstance(error, MemoryError):
        return errno.ENOMEM
    return getattr(error, "errno", None) or 0
