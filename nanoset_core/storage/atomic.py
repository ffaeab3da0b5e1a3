"""Local files and folders that appear whole or not at all.

What is unfinished is named after the process that makes it, and swept once that process has ended.
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
"""Names of everything unfinished begin so: hidden, and never taken for an output."""
FILE_SECONDS = 3600
FOLDER_SECONDS = 7 * 24 * 3600
"""Age after which an unfinished file or folder is swept where its process cannot be asked for."""
_PART = 4
"""Hex digits of each digest in a mark."""
_NOT_SWEPT = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOENT)
_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_NO_FSYNC = (
    errno.EINVAL,
    errno.ENOTSUP,
    errno.ENOSYS,
    errno.EBADF,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
)
"""Answers of file systems in user space, and SMB, for folders; fsync of a file must not fail."""
_swept: set[Path] = set()


def sha256_file(path: Path) -> str:
    """Return the hex sha256 of a file's bytes."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_folder(folder: Path) -> None:
    """Make renames inside `folder` durable, where its file system can."""
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
    """Yield a file to write; `target` holds all of it afterwards, or stays as it was where the
    block fails.

    sync=False: the caller calls `fsync_folder`, once for several files.
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
    """Close and remove an unfinished file, if it is still there."""
    Path(file.name).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # on a full disk, buffered bytes cannot be written
        file.close()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old bytes or the new ones, never a part."""
    with atomic_file(path) as file:
        file.write(data)


def point_to(link: Path, target: str) -> None:
    """Point a symbolic link to a new target in one rename; nothing happens where the file system
    has no links.

    Raises:
        OSError: the link cannot be made; IsADirectoryError if a folder is in its place. Nothing is
            left behind.
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
    """Yield a scratch folder that becomes `final` by one rename when the block ends well, and is
    removed when it fails.

    What killed processes left beside `final` is swept first. A folder that stands at `final` when
    the block ends (a damaged one, or one that another process published meanwhile) is replaced,
    unless `keep()` says that it may stay.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    # listing a folder of many outputs before each of them would be quadratic
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
    """Rename a folder to `final`; one that stands there is replaced, unless `keep()` says that it
    may stay.
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
            replaced.append(unfinished_name(final))
            with contextlib.suppress(FileNotFoundError):  # another process was faster
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

    None where that is not known: for one of another machine, one whose start is not known, or no
    mark at all.
    """
    machine, process, _ = [*mark.split("-"), "", "", ""][:3]
    pid, _, start = process.partition(".")
    if machine != _machine() or not pid.isdigit():
        return None
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user, which may be a later one of the same number
    found = _start_of(int(pid))
    return None if found is None or (found and not start) else found == start != ""


def is_mark_of_this_machine(mark: str) -> bool:
    """Return whether a process of this machine made a mark, so that its process id can be looked
    up.
    """
    return mark.partition("-")[0] == _machine()


def _start_of(pid: int) -> str | None:
    """Return when a process was started, in clock ticks; "" for one that has ended, None where that
    is not known.
    """
    try:
        fields = (
            Path("/proc", str(pid), "stat").read_text(encoding="latin1").rpartition(")")[2].split()
        )
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


@functools.cache
def _machine() -> str:
    """Return digests of the host, of its restart, and of all that tells where process ids mean
    something else.
    """
    host = platform.node()
    with contextlib.suppress(OSError):
        host += Path("/etc/machine-id").read_text(encoding="utf-8")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        parts = [host, boot, "\n".join([host, boot, os.readlink("/proc/self/ns/pid")])]
    except OSError:
        return f"{secrets.token_hex(_PART // 2)}none{secrets.token_hex(_PART // 2)}"
    return "".join(hashlib.sha256(part.encode()).hexdigest()[:_PART] for part in parts)


def unfinished_name(target: Path) -> Path:
    """Return a new name beside `target` for what this process is about to rename to it, or to
    remove.
    """
    return target.with_name(f"{UNFINISHED}{target.name}-{new_mark()}")


def open_unfinished(target: Path) -> BinaryIO:
    """Open a new file beside `target` for writing and reading, to be renamed when it is whole;
    `.name` is its path.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except (
        FileNotFoundError
    ):  # at this moment another process removed the folder above, which was empty
        target.parent.mkdir(parents=True, exist_ok=True)
    return unfinished_name(target).open("x+b")


@contextlib.contextmanager
def claim_scratch(final: Path) -> Iterator[Path]:
    """Make a folder beside `final` for this process alone; remove it at the end, unless it was
    renamed.
    """
    scratch = unfinished_name(final)
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove what processes that have ended left unfinished in a folder.

    Of this machine before its restart, that is all, on disks. What processes of other machines and
    containers, and older versions, left goes by its age: files after an hour, folders after a week.

    Args:
        folder: to look in.
        name: sweep only what was to become a file or folder of this name.
    """
    begin = UNFINISHED if name is None else f"{UNFINISHED}{name}-"
    for entry in sorted(folder.glob(f"{glob.escape(begin)}*")):
        try:
            if _is_abandoned(entry):
                is_folder = entry.is_dir() and not entry.is_symlink()
                shutil.rmtree(entry, ignore_errors=True) if is_folder else entry.unlink()
        except OSError as error:
            if error.errno not in _NOT_SWEPT:
                raise


def _is_abandoned(entry: Path) -> bool:
    mark = "-".join(entry.name.rsplit("-", 3)[1:])
    alive = is_owner_alive(mark)
    if alive is not None:
        return not alive
    status, here, machine = entry.lstat(), _machine(), mark.partition("-")[0]
    is_mark = len(machine) == len(here) and mark.count("-") == 2
    is_restarted = (
        is_mark
        and machine[:_PART] == here[:_PART]
        and machine[_PART : 2 * _PART] != here[_PART : 2 * _PART]
    )
    # on a disk, which no other machine of this name can write to
    if is_restarted and os.major(status.st_dev) != 0:
        return True
    return time.time() - status.st_mtime > (
        FOLDER_SECONDS if stat.S_ISDIR(status.st_mode) else FILE_SECONDS
    )


@contextlib.contextmanager
def alone_in(folder: Path, *, waits: bool = True) -> Iterator[bool]:
    """Make a folder, and hold its exclusive lock; yield whether it is held.

    Where the file system has no locks, nothing keeps others out. waits=False: where another process
    has it, it is not waited for.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)

    def try_lock() -> None:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    is_ours = True
    try:
        try:
            if waits:
                wait_for_lock(handle, try_lock, folder)
            else:
                try_lock()
        except BlockingIOError:
            is_ours = False
        except OSError:  # a file system without locks
            pass
        yield is_ours
    finally:
        with contextlib.suppress(OSError):
            # closing is not enough: a worker process may have inherited it
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def withdrawn(folder: Path, is_wanted: Callable[[], bool]) -> tuple[Path, ...] | None:
    """Take an output from every reader at once; return its folder by another name, None where it is
    wanted by now.
    """
    aside = unfinished_name(folder)
    folder.rename(aside)
    if not is_wanted():
        return (aside,)
    with contextlib.suppress(OSError):  # it was made again: then that one stays
        aside.rename(folder)
        return None
    shutil.rmtree(aside, ignore_errors=True)
    return None
