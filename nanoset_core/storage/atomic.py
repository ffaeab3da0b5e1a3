"""Write local files and folders so that each appears whole or not at all.

A file or folder is first written under a temporary name next to its final place, and then renamed.
The temporary name contains a mark of the process that writes it:

    .tmp-tokens.bin-<machine>-<pid>.<start of the process>-<random>

So another process can tell whether the writer is still running. What processes that have ended left
behind is removed by `sweep_abandoned`.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import os
import platform
import secrets
import shutil
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from nanoset_core.storage.owners import wait_for_lock
from nanoset_core.storage.regular_files import open_regular

UNFINISHED = ".tmp-"
"""Prefix of the names of unfinished files and folders; the dot hides them."""
FILE_SECONDS = 3600
"""Age at which an unfinished file is removed if nobody knows whether its process is running."""
FOLDER_SECONDS = 7 * 24 * 3600
"""The same for an unfinished folder, which may take days to fill."""
_DIGEST_DIGITS = 4
"""Hex digits of each of the three digests in the name of a machine."""
_NOT_SWEPT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
"""Errors for which an unfinished file is left to another process."""
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
"""Errors of file systems without symbolic links."""
_NO_FSYNC = (
    errno.EINVAL,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EBADF,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
)
"""Errors of file systems in user space, and of SMB, that cannot make a folder durable.

An fsync of a file must not fail.
"""
_swept: set[Path] = set()
"""Folders in which this process has already removed what others left unfinished."""


def sha256_file(path: Path) -> str:
    """Return the sha256 of a file as hex digits."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_folder(folder: Path) -> None:
    """Make renames within a folder durable, if its file system can do that."""
    try:
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
    except OSError as error:
        if error.errno not in _NO_FSYNC:
            raise


@contextlib.contextmanager
def atomic_file(target: Path, *, sync: bool = True) -> Iterator[BinaryIO]:
    """Yield a new file that replaces a file when the block ends; an error leaves the old file.

    Args:
        target: The file that is replaced.
        sync: Whether to make the rename durable. Otherwise the caller calls `fsync_folder`, once
            for several files.
    """
    file = open_unfinished(target)
    try:
        yield file
        put_in_place(file, target)
    except BaseException:
        discard(file)
        raise
    if sync:
        fsync_folder(target.parent)


def put_in_place(file: BinaryIO, target: Path) -> None:
    """Flush an unfinished file to the disk, rename it to `target` and close it."""
    file.flush()
    os.fsync(file.fileno())
    os.replace(file.name, target)
    file.close()


def discard(file: BinaryIO) -> None:
    """Close and remove an unfinished file, if it still exists."""
    Path(file.name).unlink(missing_ok=True)
    # On a full disk, buffered bytes cannot be written.
    with contextlib.suppress(OSError):
        file.close()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old bytes or the new ones, never a part."""
    with atomic_file(path) as file:
        file.write(data)


def point_to(link: Path, target: str) -> None:
    """Create a symbolic link, or replace it by one rename.

    If the file system has no links, nothing happens.

    Args:
        link: Path of the link.
        target: Where it leads.

    Raises:
        OSError: The link cannot be created; IsADirectoryError if a folder is in its place.
    """
    temporary = unfinished_name(link)
    try:
        temporary.symlink_to(target)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        return
    try:
        temporary.rename(link)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def published_folder(final: Path, *, keep: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield a scratch folder that is renamed to `final` when the block ends.

    If the block fails, the scratch folder is removed. What killed processes left in the parent is
    removed before.

    Args:
        final: Path of the finished folder.
        keep: Called if there is a folder at `final` when the block ends: a damaged one, or one that
            another process has published in the meantime. Returns whether that one stays; otherwise
            it is replaced.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    # Only once for each parent. To list a folder of many outputs before each of them would take a
    # time that grows with the square of their number.
    if final.parent not in _swept:
        _swept.add(final.parent)
        sweep_abandoned(final.parent)

    with claim_scratch(final) as scratch:
        yield scratch
        for path in [*scratch.rglob("*"), scratch]:
            if path.is_dir():
                fsync_folder(path)
            else:
                with open_regular(path) as file:
                    os.fsync(file.fileno())
        move_into_place(scratch, final, keep)


def move_into_place(scratch: Path, final: Path, keep: Callable[[], bool] = lambda: False) -> None:
    """Rename a folder to `final`, in place of a folder that may be there.

    Args:
        scratch: The folder.
        final: Its new path.
        keep: Called if there is a folder at `final`. Returns whether that one stays, and `scratch`
            is not renamed.
    """
    replaced: list[Path] = []
    try:
        while True:
            try:
                scratch.rename(final)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
                    raise
            if keep():
                return
            # Move the other folder away, unless another process was faster, and try again.
            replaced.append(unfinished_name(final))
            with contextlib.suppress(FileNotFoundError):
                final.rename(replaced[-1])
        fsync_folder(final.parent)
    finally:
        for folder in replaced:
            shutil.rmtree(folder, ignore_errors=True)


def new_mark() -> str:
    """Return a name that no other process uses: `machine-pid.start-random`."""
    pid = os.getpid()
    return f"{_machine()}-{pid}.{_start_of(pid) or ''}-{secrets.token_hex(3)}"


def is_owner_alive(mark: str) -> bool | None:
    """Return whether the process that made a mark is running.

    Returns:
        None if that is not known: the process is one of another machine, or its start is not known,
        or the text is not a mark.
    """
    machine, process, _ = [*mark.split("-"), "", "", ""][:3]
    pid, _, start = process.partition(".")
    if machine != _machine() or not pid.isdigit():
        return None
    try:
        os.kill(int(pid), 0)  # Signal 0 only checks whether the process exists.
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # It is a process of another user, perhaps a later one with the same number.

    # The number of a process that has ended may be given to another one, which started later.
    start_now = _start_of(int(pid))
    if start_now is None:
        return None
    if start_now == "":
        return False
    if start == "":
        return None
    return start_now == start


def is_mark_of_this_machine(mark: str) -> bool:
    """Return whether a process of this machine made a mark, so that its number means something."""
    return mark.partition("-")[0] == _machine()


def _start_of(pid: int) -> str | None:
    """Return when a process was started, in clock ticks since the machine was.

    Returns:
        "" if the process has ended, and None if its start is not known.
    """
    try:
        stat_line = Path("/proc", str(pid), "stat").read_text(encoding="latin1")
    except OSError:
        return None
    # The line is "pid (name) state …", and the name may contain spaces and parentheses.
    fields = stat_line.rpartition(")")[2].split()
    state = fields[0]
    return "" if state in "ZX" else fields[19]


@functools.cache
def _machine() -> str:
    """Return a name of this machine until its next restart, made of three digests.

    They are those of the host, of its boot, and of the namespace of process ids: in another
    container, a number stands for another process. If the latter two are not known, the name is
    random.
    """
    host = platform.node()
    with contextlib.suppress(OSError):
        host += Path("/etc/machine-id").read_text(encoding="utf-8")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        n_random_bytes = _DIGEST_DIGITS // 2
        return f"{secrets.token_hex(n_random_bytes)}none{secrets.token_hex(n_random_bytes)}"

    parts = [host, boot, "\n".join([host, boot, namespace])]
    digests = [hashlib.sha256(part.encode()).hexdigest() for part in parts]
    return "".join(digest[:_DIGEST_DIGITS] for digest in digests)


def unfinished_name(target: Path) -> Path:
    """Return a new path next to `target`, for what will be renamed to it or removed."""
    return target.with_name(f"{UNFINISHED}{target.name}-{new_mark()}")


def open_unfinished(target: Path) -> BinaryIO:
    """Open a new file next to `target`, which the caller renames to it when it is complete.

    Returns:
        The file, open for writing and reading. Its path is `.name`.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:
        # At this moment another process has removed the folder above, which was empty.
        target.parent.mkdir(parents=True, exist_ok=True)
    return unfinished_name(target).open("x+b")


@contextlib.contextmanager
def claim_scratch(final: Path) -> Iterator[Path]:
    """Yield a new folder next to `final`; it is removed at the end, unless it was renamed."""
    scratch = unfinished_name(final)
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove unfinished files and folders of processes that have ended.

    On a disk, this includes all of this machine from before its restart. Those of other machines
    and containers, and of older versions, are removed at a certain age: files after an hour, and
    folders after a week.

    Args:
        folder: Where to look.
        name: Final name of the files or folders to remove; None for all.
    """
    prefix = UNFINISHED if name is None else f"{UNFINISHED}{name}-"
    for entry in sorted(folder.glob(f"{glob.escape(prefix)}*")):
        try:
            if not _is_abandoned(entry):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink()
        except OSError as error:
            if error.errno not in _NOT_SWEPT:
                raise


def _is_abandoned(entry: Path) -> bool:
    """Return whether an unfinished file or folder can be removed."""
    mark = "-".join(entry.name.rsplit("-", 3)[1:])
    is_alive = is_owner_alive(mark)
    if is_alive is not None:
        return not is_alive

    # A process of this machine from before its restart has ended. A disk, unlike a network file
    # system (whose major device number is 0), cannot belong to another machine of the same name.
    status = entry.lstat()
    is_on_disk = os.major(status.st_dev) != 0
    if is_on_disk and _is_from_before_restart(mark):
        return True

    max_age = FOLDER_SECONDS if stat.S_ISDIR(status.st_mode) else FILE_SECONDS
    return time.time() - status.st_mtime > max_age


def _is_from_before_restart(mark: str) -> bool:
    """Return whether a mark was made by this machine, but before its last restart."""
    machine = mark.partition("-")[0]
    this_machine = _machine()
    if len(machine) != len(this_machine) or mark.count("-") != 2:
        return False  # It is not a mark.
    host = slice(0, _DIGEST_DIGITS)
    boot = slice(_DIGEST_DIGITS, 2 * _DIGEST_DIGITS)
    return machine[host] == this_machine[host] and machine[boot] != this_machine[boot]


@contextlib.contextmanager
def alone_in(folder: Path, *, waits: bool = True) -> Iterator[bool]:
    """Hold the exclusive lock of a folder, which is created if it does not exist.

    If the file system has no locks, nothing keeps other processes out.

    Args:
        folder: The folder.
        waits: Whether to wait for a process that holds the lock.

    Yields:
        Whether the lock is held; False only if another process holds it and `waits` is not set.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)

    def try_lock() -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    is_locked = True
    try:
        try:
            if waits:
                wait_for_lock(handle, try_lock, folder)
            else:
                try_lock()
        except BlockingIOError:
            is_locked = False
        except OSError:
            pass  # The file system has no locks.
        yield is_locked
    finally:
        # It is not enough to close the folder: a worker process may have inherited the handle.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def withdrawn(folder: Path, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
    """Rename the folder of an output, so that every reader loses it at once.

    Args:
        folder: The folder.
        is_wanted: Returns whether the output is needed by now, and has to stay. It is called after
            the rename, so that nobody can begin to use the output between check and rename.

    Returns:
        The renamed folder, to be removed; None if the output stays.
    """
    renamed = unfinished_name(folder)
    folder.rename(renamed)
    if not is_wanted():
        return (renamed,)

    # Rename it back, unless another process has made the output again: then that one stays.
    with contextlib.suppress(OSError):
        renamed.rename(folder)
        return None
    shutil.rmtree(renamed, ignore_errors=True)
    return None
