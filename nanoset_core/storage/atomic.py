"""Local files and folders that appear whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from nanoset_core.errors import ConfigError
from nanoset_core.storage.regular_files import open_regular
from nanoset_core.storage.scratch import UNFINISHED, claim_scratch, open_unfinished, sweep_abandoned, unfinished_name

__all__ = [
    "UNFINISHED",
    "atomic_file",
    "discard",
    "fsync_folder",
    "local_path",
    "point_to",
    "published_folder",
    "put_in_place",
    "sha256_file",
    "sweep_abandoned",
    "write_atomic",
]

_NO_LINKS = (errno.EPERM, errno.ENOTSUP, errno.ENOSYS)
_NO_FSYNC = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS, errno.EBADF, errno.EISDIR, errno.EACCES, errno.EPERM)
"""Answers of file systems in user space, and SMB, for folders; fsync of a file must not fail."""
_swept: set[Path] = set()


def local_path(url: str, *, base: Path, where: str) -> Path:
    """Turn a configured location into an absolute local path; relative ones start at `base`."""
    if "://" in url and not url.startswith("file://"):
        is_s3 = url.startswith("s3://")
        raise ConfigError(
            "only local files can be used here" if is_s3 else "only local folders and S3 can be used here",
            where=where,
            found=url,
            expected="a path on a local or mounted file system" + ("" if is_s3 else ", or s3://bucket/prefix"),
            remedy=("" if is_s3 else "mount the bucket, or ") + "copy it to a local folder first",
        )
    return (base / Path(url.removeprefix("file://")).expanduser()).resolve()


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
    """Yield a file to write; `target` holds all of it afterwards, or stays as it was where the block fails.

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


def point_to(link: Path, target: str) -> bool:
    """Point a symbolic link to a new target in one rename; return False where the file system has no links."""
    temporary = unfinished_name(link)
    try:
        temporary.symlink_to(target)
    except OSError as error:
        if error.errno in _NO_LINKS:
            return False
        raise
    try:
        temporary.rename(link)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return True


@contextlib.contextmanager
def published_folder(final: Path, *, keep: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield a scratch folder that becomes `final` by one rename when the block ends well, and is removed when it fails.

    What killed processes left beside `final` is swept first. A folder that stands at `final` when the block ends (a
    damaged one, or one that another process published meanwhile) is replaced, unless `keep()` says that it may stay.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    if final.parent not in _swept:  # listing a folder of many outputs before each of them would be quadratic
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
        _move_into_place(scratch, final, keep)


def _move_into_place(scratch: Path, final: Path, keep: Callable[[], bool]) -> None:
    replaced: list[Path] = []
    try:
        while True:
            try:
                scratch.rename(final)
                break
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
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
