"""Scratch folders: owned by a living process, and swept once it is gone."""

from __future__ import annotations

import contextlib
import errno
import fcntl
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
LOCK = ".lock"
FILE_SECONDS = 3600
LINK_SECONDS = 60
FOREIGN_SECONDS = 7 * 24 * 3600
_NOT_OURS_TO_SWEEP = (errno.EACCES, errno.EPERM, errno.EROFS)
"""It is another user's, or the disk takes nothing: whoever wants to write there hears of it soon enough."""


@contextlib.contextmanager
def claim_scratch(final: Path) -> Iterator[Path]:
    """A new folder beside `final` that only this process writes to; gone afterwards, unless it was renamed.

    A lock file stands beside the folder, made before it and removed after it, and held locked by the process that
    owns it. (The folder itself cannot be locked on NFS, which wants a descriptor open for writing.)
    """
    scratch, lock = _lock_new_name(final)
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        Path(lock.name).unlink(missing_ok=True)
        lock.close()


def detour(target: Path, name: str, scratch: Path | None) -> Path:
    """Where unfinished work on `target` lies: folder `name` beside it, or one of the target's own within `scratch`.

    There the name holds a mark of the target's whole path, since targets of one name may share a scratch folder.
    """
    if scratch is None:
        return target.parent / name
    mark = hashlib.sha256(os.fsencode(target.absolute())).hexdigest()[:8]
    stem, _, ending = name.rpartition(".")
    return scratch.absolute() / f"{stem}-{mark}.{ending}"


def open_unfinished(target: Path) -> BinaryIO:
    """A new file beside `target`, open for writing and reading, to be renamed when it is whole; `.name` is its path.

    It is locked while its owner has it open, so that a sweep can tell it from what a killed process left.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    while True:
        path = target.with_name(f"{UNFINISHED}{target.name}-{_host_mark()}-{secrets.token_hex(4)}")
        file = path.open("x+b")
        _try_lock(file, wait=True)
        # A sweep may have come between opening and locking: then this file is gone.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(file.fileno()).st_ino:
                return file
        file.close()


def unfinished_link(link: Path) -> Path:
    """A name beside `link` for a symbolic link that this process is about to rename to it."""
    return link.with_name(f"{UNFINISHED}{link.name}-{_host_mark()}-{os.getpid()}-{secrets.token_hex(4)}")


def sweep_abandoned(folder: Path, name: str | None = None) -> None:
    """Remove the scratch of processes that are gone from `folder`.

    With `name`, only what was to become the file or folder of that name: others may keep things of theirs beside it.

    A folder goes when its lock is free, or missing. Where locks tell nothing (the owner ran on another machine, or the
    file system has none) it goes after a week. A single file of this machine goes when nobody holds it locked; of
    another, or where there are no locks, when nothing was written to it for an hour.
    """
    begin = UNFINISHED if name is None else f"{UNFINISHED}{name}-"
    for entry in sorted(folder.glob(f"{glob.escape(begin)}*")):
        try:
            _sweep(entry)
        except OSError as error:
            if error.errno not in _NOT_OURS_TO_SWEEP:
                raise


def _sweep(entry: Path) -> None:
    if entry.name.endswith(LOCK):
        _sweep_locked(entry)
    elif entry.is_dir() and not entry.is_symlink():
        if not _lock_of(entry).exists():
            shutil.rmtree(entry, ignore_errors=True)
    else:
        _sweep_file(entry)


def _lock_of(scratch: Path) -> Path:
    return scratch.with_name(scratch.name + LOCK)


def _lock_new_name(final: Path) -> tuple[Path, BinaryIO]:
    while True:
        # The name tells the owner's machine: what is written into a file may be lost to a kill, or a full disk.
        scratch = final.with_name(f"{UNFINISHED}{final.name}-{_host_mark()}-{secrets.token_hex(4)}")
        path = _lock_of(scratch)
        lock = path.open("xb")
        _try_lock(lock, wait=True)
        # A sweep may have come between opening and locking: then this is the lock of a file that is gone.
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_ino == os.fstat(lock.fileno()).st_ino:
                return scratch, lock
        lock.close()


def _sweep_locked(path: Path) -> None:
    try:
        lock = path.open("r+b")
    except FileNotFoundError:
        return  # finished a moment ago
    with lock:
        free = _try_lock(lock) if _is_of_this_machine(path) else None
        if free or (free is None and _idle_seconds(path) > FOREIGN_SECONDS):
            shutil.rmtree(path.with_name(path.name.removesuffix(LOCK)), ignore_errors=True)
            path.unlink(missing_ok=True)


def _sweep_file(path: Path) -> None:
    if path.is_symlink():
        if _is_orphan(path) or _idle_seconds(path) > LINK_SECONDS:  # its owner renames it within a moment
            path.unlink(missing_ok=True)
        return
    try:
        file = path.open("r+b")
    except FileNotFoundError:
        return  # finished a moment ago
    with file:
        free = _try_lock(file) if _is_of_this_machine(path) else None
        if free or (free is None and _idle_seconds(path) > FILE_SECONDS):
            path.unlink(missing_ok=True)


def _is_orphan(link: Path) -> bool:
    """Whether the process of this machine that made an unfinished link is gone."""
    *_, mark, pid, _ = ["", "", "", *link.name.split("-")]
    return mark == _host_mark() and pid.isdigit() and not Path("/proc", pid).exists() and Path("/proc/self").exists()


def _try_lock(lock: BinaryIO, *, wait: bool = False) -> bool | None:
    """Whether the lock could be had; None where the file system knows no locks."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    except OSError:
        return None
    return True


def _is_of_this_machine(path: Path) -> bool:
    return f"-{_host_mark()}-" in path.name


def _host_mark() -> str:
    return hashlib.sha256(platform.node().encode()).hexdigest()[:8]


def _idle_seconds(path: Path) -> float:
    try:
        return time.time() - path.lstat().st_mtime
    except FileNotFoundError:
        return 0.0
