"""Unfinished files and folders: named after the process that makes them, and swept once that process has ended."""

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
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

UNFINISHED = ".tmp-"
"""Names of everything unfinished begin so: hidden, and never taken for an output."""
FILE_SECONDS = 3600
FOLDER_SECONDS = 7 * 24 * 3600
"""Age after which an unfinished file or folder is swept where its process cannot be asked for."""
_PART = 4
"""Hex digits of each digest in a mark."""
_NOT_OURS_TO_SWEEP = (errno.EACCES, errno.EPERM, errno.EROFS)


def new_mark() -> str:
    """Return a name that no other process uses: `machine-pid.start-random`."""
    pid = os.getpid()
    return f"{_machine()}-{pid}.{_start_of(pid) or ''}-{secrets.token_hex(3)}"


def is_owner_alive(mark: str) -> bool | None:
    """Return whether the process that made a mark is running.

    None where that is not known: for one of another machine, one whose start is not known, or no mark at all.
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


def _start_of(pid: int) -> str | None:
    """Return when a process was started, in clock ticks; "" for one that has ended, None where that is not known."""
    try:
        fields = Path("/proc", str(pid), "stat").read_text(encoding="latin1").rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]


@functools.cache
def _machine() -> str:
    """Return digests of the host, of its restart, and of all that tells where process ids mean something else."""
    host = platform.node()
    with contextlib.suppress(OSError):
        host += Path("/etc/machine-id").read_text(encoding="utf-8")
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        parts = [host, boot, "\n".join([host, boot, os.readlink("/proc/self/ns/pid")])]
    except OSError:
        return f"{secrets.token_hex(_PART // 2)}none{secrets.token_hex(_PART // 2)}"
    return "".join(hashlib.sha256(part.encode()).hexdigest()[:_PART] for part in parts)


def _is_of_earlier_boot(mark: str) -> bool:
    """Return whether a mark is of this host, as its name and machine-id tell, before it was restarted."""
    here, machine = _machine(), mark.partition("-")[0]
    is_mark = len(machine) == len(here) and mark.count("-") == 2
    return is_mark and machine[:_PART] == here[:_PART] and machine[_PART : 2 * _PART] != here[_PART : 2 * _PART]


def _is_on_disk(entry: Path) -> bool:
    """Return whether a path lies on a disk, which other machines of the same name cannot write to."""
    return os.major(entry.lstat().st_dev) != 0


def unfinished_name(target: Path) -> Path:
    """Return a new name beside `target` for what this process is about to rename to it, or to remove."""
    return target.with_name(f"{UNFINISHED}{target.name}-{new_mark()}")


def open_unfinished(target: Path) -> BinaryIO:
    """Open a new file beside `target` for writing and reading, to be renamed when it is whole; `.name` is its path."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:  # at this moment another process removed the folder above, which was empty
        target.parent.mkdir(parents=True, exist_ok=True)
    return unfinished_name(target).open("x+b")


@contextlib.contextmanager
def claim_scratch(final: Path) -> Iterator[Path]:
    """Make a folder beside `final` for this process alone; remove it at the end, unless it was renamed."""
    scratch = unfinished_name(final)
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove what processes that have ended left unfinished in a folder.

    Of this machine before its restart, that is all, on disks. What processes of other machines and containers, and
    older versions, left goes by its age: files after an hour, folders after a week.

    Args:
        folder: to look in.
        name: sweep only what was to become a file or folder of this name.
    """
    begin = UNFINISHED if name is None else f"{UNFINISHED}{name}-"
    for entry in sorted(folder.glob(f"{glob.escape(begin)}*")):
        try:
            if not _is_abandoned(entry):
                continue
            if entry.is_dir() and not entry.is_symlink():
                shutil.rmtree(entry, ignore_errors=True)
            else:
                entry.unlink(missing_ok=True)
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_SWEEP:
                raise


def _is_abandoned(entry: Path) -> bool:
    mark = "-".join(entry.name.rsplit("-", 3)[1:])
    alive = is_owner_alive(mark)
    if alive is not None:
        return not alive
    try:
        if _is_of_earlier_boot(mark) and _is_on_disk(entry):
            return True
        age = time.time() - entry.lstat().st_mtime
    except FileNotFoundError:
        return False
    is_folder = entry.is_dir() and not entry.is_symlink()
    return age > (FOLDER_SECONDS if is_folder else FILE_SECONDS)


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder, and hold its exclusive lock; without effect where the file system has no locks."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def held_alone(path: Path) -> Iterator[bool]:
    """Try to hold the exclusive lock of a file; yield False where another process holds it."""
    with path.open("ab") as file:
        is_ours = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_ours = False
        except OSError:
            pass  # a file system without locks
        try:
            yield is_ours
        finally:
            with contextlib.suppress(OSError):
                fcntl.flock(file, fcntl.LOCK_UN)  # closing is not enough: a worker process may have inherited the file
