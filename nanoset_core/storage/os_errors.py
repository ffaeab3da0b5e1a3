"""Refusals of the operating system (room, rights, memory), as errors with a remedy."""

from __future__ import annotations

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from nanoset_core.errors import NanosetError, StorageError

_AGAIN = "and run again: what is finished is kept"
_REMEDIES = {
    errno.ENOSPC: ("the disk is full", f"make room {_AGAIN}"),
    errno.EDQUOT: ("the quota is used up", f"make room {_AGAIN}"),
    errno.EFBIG: (
        "a file may not grow further",
        f"raise `ulimit -f`, or the limit of the file system, {_AGAIN}",
    ),
    errno.EROFS: ("the disk is read-only", f"mount it for writing, {_AGAIN}"),
    errno.EACCES: ("this may not be written", f"give this user the right to write there, {_AGAIN}"),
    errno.EPERM: ("this may not be written", f"give this user the right to write there, {_AGAIN}"),
    errno.EIO: ("the disk fails", f"read the system log; repair or replace the disk, {_AGAIN}"),
    errno.EMFILE: (
        "too many files are open",
        f"raise `ulimit -n`, or take fewer workers, {_AGAIN}",
    ),
    errno.ENFILE: (
        "too many files are open",
        f"raise `ulimit -n`, or take fewer workers, {_AGAIN}",
    ),
}
"""What is wrong with the machine, whatever path was asked for, and the remedy."""
_MEMORY = (errno.ENOMEM, errno.EAGAIN)
_NO_THREAD = "can't start new thread"


@contextmanager
def explained(folder: Path, *, expected: str | None = None) -> Iterator[None]:
    """Raise refusals of the system that leave the block as errors with a remedy; see `refusal`."""
    try:
        yield
    except NanosetError:
        raise
    except (MemoryError, RuntimeError, OSError) as error:
        refused = refusal(error, folder, expected=expected)
        if refused is None or _number_of(error) not in (*_REMEDIES, *_MEMORY):
            raise
        raise refused from error


@contextmanager
def writing_to(folder: Path, *, expected: str | None = None) -> Iterator[None]:
    """Make a folder, check that files can be written there, and explain refusals in the block."""
    with explained(folder, expected=expected):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        except OSError as error:
            if error.errno in _REMEDIES:
                error.filename = os.fspath(folder)  # not the name that was tried
                raise
            raise StorageError(
                "the folder cannot be made",
                where=folder,
                found=f"{error.strerror} (errno {error.errno}): {error.filename}",
                expected="a folder that can take what is written",
                remedy="name a place for the output in a folder that is there",
            ) from error
        yield


def refusal(
    error: BaseException, where: object, *, expected: str | None = None
) -> NanosetError | None:
    """Return what the system refused as an error with a remedy; None where the error is of another
    kind.

    Args:
        error: as it was raised.
        where: named where the system does not say which file it was.
        expected: what there should be room for.
    """
    number = _number_of(error)
    if number in _MEMORY:
        return NanosetError(
            "there is not enough memory",
            where=where,
            found=str(error) or type(error).__name__,
            remedy=(
                "take fewer workers, a smaller range_mib or memory_mib, or a larger limit, "
                f"{_AGAIN}"
            ),
        )
    if not isinstance(error, OSError):
        return None
    path = error.filename
    what, remedy = _REMEDIES.get(
        number, ("the system refuses this", f"correct the path, or what the system says, {_AGAIN}")
    )
    if (
        number in (errno.EACCES, errno.EPERM)
        and path
        and os.path.lexists(path)
        and not os.access(path, os.R_OK)
    ):
        what, remedy = "this may not be read", f"give this user the right to read it, {_AGAIN}"
    found = f"{error.strerror} (errno {number})" if number else str(error)
    return StorageError(what, where=path or where, found=found, expected=expected, remedy=remedy)


def _number_of(error: BaseException) -> int:
    is_memory = isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and str(error) == _NO_THREAD
    )
    return errno.ENOMEM if is_memory else getattr(error, "errno", None) or 0
