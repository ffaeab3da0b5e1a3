"""Write local files and folders so that each appears whole or not at all.

A file or folder is first written under a temporary name next to its final place, and then renamed.
The temporary name ends with a mark of the process that writes it (see `in_use/process_marks.py`):

    .tmp-tokens.bin-<machine>-<pid>.<start of the process>-<random>

So another process can tell whether the writer is still running. `sweep_abandoned` removes what
processes left behind that were killed.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import functools
import glob
import hashlib
import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from nanoset_core.errors import StorageError
from nanoset_core.storage.in_use.owners import wait_for_lock
from nanoset_core.storage.in_use.process_marks import (
    is_from_before_restart,
    is_owner_alive,
    new_mark,
)
from nanoset_core.storage.regular_files import open_regular

UNFINISHED = ".tmp-"
"""Prefix of the names of unfinished files and folders; the dot hides them."""
_UNFINISHED_NAME = re.compile(
    re.escape(UNFINISHED) + r"(?P<target>.+)-[0-9a-f]+-[0-9]+\.[0-9]*-[0-9a-f]+"
)
"""Such a name: `.tmp-tokens.bin-1f0c2a9e77d4-4711.89034412-a1b2c3`, with a mark of the process."""
FILE_SECONDS = 3600
"""Age at which an unfinished file is removed if nobody knows whether its process is running."""
FOLDER_SECONDS = 7 * 24 * 3600
"""The same for an unfinished folder, which may take days to fill."""
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
_swept: set[tuple[Path, bool]] = set()
"""Folders from which this process has already removed abandoned files and folders, and whether it
went by their age.
"""


def sha256_file(path: Path) -> str:
    """Read a file, and return the sha256 of its bytes as 64 hex digits.

    Args:
        path: Path of a local file.

    Raises:
        OSError: The file cannot be opened or read.
        FormatError: It is a named pipe or a device.
    """
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fsync_folder(folder: Path) -> None:
    """Make renames within a folder durable, so that a power failure does not undo them.

    After `os.replace("data/.tmp-a.bin", "data/a.bin")`, all programs see the new name, but the disk
    may not have it yet. To flush the file does not help, since its name belongs to the folder.

    Args:
        folder: The folder, such as `data`. If its file system cannot do that, nothing happens.

    Raises:
        OSError: The folder does not exist, or the disk reports an error.
    """
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
    """Yield a new file that replaces another one when the block ends without an error.

    Other programs never see a file that is half written:

        with atomic_file(Path("data/a.bin")) as file:   # creates data/.tmp-a.bin-...
            file.write(b"...")                          # data/a.bin still has the old bytes
        # The hidden file was renamed to data/a.bin, which now has the new bytes.

    Args:
        target: Path of the file that is created or replaced.
        sync: Whether to make the rename durable. A caller that writes several files passes False,
            and calls `fsync_folder` once for all of them.

    Yields:
        The file, open for writing and reading bytes. If the block fails, it is removed, and an
        earlier file stays.

    Raises:
        OSError: The file cannot be written or renamed.
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
    """Flush an unfinished file to the disk, rename it to its final path and close it.

    The order matters. If the file were renamed first, a power failure could leave a file under the
    final name whose bytes have not reached the disk.

    Args:
        file: A file from `open_unfinished`, such as `data/.tmp-a.bin-...`, with all bytes written.
        target: The final path on the same file system, such as `data/a.bin`. An earlier file at
            this path is replaced.

    Raises:
        OSError: The disk is full, or the file cannot be renamed.
    """
    flush_to_disk(file)
    os.replace(file.name, target)
    file.close()


def flush_to_disk(file: BinaryIO) -> None:
    """Wait until all bytes that were written to a file are on the disk.

    Args:
        file: A file that is open for writing.

    Raises:
        OSError: The disk is full, or reports an error.
    """
    file.flush()
    os.fsync(file.fileno())


def discard(file: BinaryIO) -> None:
    """Close and remove an unfinished file, because it could not be completed.

    It is not an error if the file was renamed or removed already, or if its last bytes cannot be
    written: nobody needs them any more.

    Args:
        file: A file from `open_unfinished`, such as `data/.tmp-a.bin-...`.
    """
    Path(file.name).unlink(missing_ok=True)
    # On a full disk, buffered bytes cannot be written.
    with contextlib.suppress(OSError):
        file.close()


def write_atomic(path: Path, data: bytes) -> None:
    """Write a small file so that readers see the old bytes or the new ones, never a part.

    Args:
        path: The file, which is created or replaced. Missing folders above it are created.
        data: All its bytes.

    Raises:
        OSError: The file cannot be written.
    """
    with atomic_file(path) as file:
        file.write(data)


def point_to(link: Path, target: str) -> None:
    """Create a symbolic link, or let an existing one lead to another target, without a gap.

    For example, `latest` leads to `run-7` and is to lead to `run-8`. To delete and create it again
    would leave a moment without a link. So a new link gets a temporary name, and is then renamed to
    `latest`, which replaces the old link in one step.

    If the file system has no links, nothing happens.

    Args:
        link: Path of the link, such as `data/latest`.
        target: Where it leads, such as `run-8`.

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


def can_make_links(folder: Path) -> bool:
    """Return whether symbolic links can be made in a folder, by making one and removing it.

    Some file systems have no links, and others do not say so before a program tries.

    Args:
        folder: The folder. If this user may not write to it, the result is False.
    """
    trial_link = unfinished_name(folder / "link")
    try:
        trial_link.symlink_to("nowhere")
        trial_link.unlink()
    except OSError:
        return False
    return True


@contextlib.contextmanager
def published_folder(final: Path, *, keep: Callable[[], bool] = lambda: False) -> Iterator[Path]:
    """Yield a new folder to be filled, which gets its final path when the block ends.

    Other programs see the folder with all its files, or not at all:

        with published_folder(Path("data/web")) as folder:   # data/.tmp-web-...
            (folder / "tokens.bin").write_bytes(...)
            (folder / "index.idx").write_bytes(...)
        # The hidden folder was renamed to data/web.

    If the block fails, the folder is removed.

    Args:
        final: Path of the finished folder.
        keep: Called if there is a folder at `final` when the block ends: a damaged one, or one that
            another process has published in the meantime. Returns whether that one stays; otherwise
            it is replaced. By default it is replaced.
    """
    final.parent.mkdir(parents=True, exist_ok=True)
    sweep_once(final.parent)

    with claim_scratch(final) as scratch:
        yield scratch
        _fsync_all(scratch)
        move_into_place(scratch, final, keep)


def _fsync_all(folder: Path) -> None:
    """Make all files and folders below a folder durable, so that a power failure loses none.

    The system writes files to the disk some time after a program has written them. This function
    returns when they are on the disk, so that the folder may then get its final name.
    """
    for path in [*folder.rglob("*"), folder]:
        if path.is_dir():
            fsync_folder(path)
        else:
            with open_regular(path) as file:
                os.fsync(file.fileno())


def move_into_place(scratch: Path, final: Path, keep: Callable[[], bool] = lambda: False) -> None:
    """Rename a folder to its final path, replacing the folder that may be there.

    A folder that has files in it cannot be replaced by one rename. So the old one is moved away
    first:

        data/web           →  data/.tmp-web-2     the old folder, which is deleted at the end
        data/.tmp-web-1    →  data/web            the new folder, `scratch`

    Args:
        scratch: The new folder, such as `data/.tmp-web-1`.
        final: Its new path, such as `data/web`.
        keep: Called if there is a folder at `final`. Returns whether that one stays; `scratch` is
            then not renamed. By default the old folder is replaced.
    """
    temporary_names: list[Path] = []  # of old folders
    try:
        # Usually the first or second rename succeeds. But another process may put a folder there
        # again at any time.
        while not _rename_if_free(scratch, final):
            if keep():
                return
            temporary_name = unfinished_name(final)  # data/.tmp-web-...
            temporary_names.append(temporary_name)
            with contextlib.suppress(FileNotFoundError):  # another process has moved it away
                final.rename(temporary_name)
        fsync_folder(final.parent)
    finally:
        for old_folder in temporary_names:
            shutil.rmtree(old_folder, ignore_errors=True)


def _rename_if_free(scratch: Path, final: Path) -> bool:
    """Rename a folder, unless there is a file or another folder with files at its new path.

    Returns:
        Whether it was renamed.
    """
    try:
        scratch.rename(final)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOTDIR):
            return False
        raise
    return True


def unfinished_name(target: Path) -> Path:
    """Return a new temporary path next to a path, with the mark of this process.

    Args:
        target: The final path of a file or folder that is written, or the former path of one that
            is going to be removed.

    Returns:
        A hidden path such as `data/.tmp-tokens.bin-<mark>` for `data/tokens.bin`. Nothing is
        created.
    """
    return target.with_name(f"{UNFINISHED}{target.name}-{new_mark()}")


def final_path(path: str) -> str:
    """Return where a file will be when it is finished, for a message about it.

        data/.tmp-tokens.bin-<mark>        data/tokens.bin
        data/.tmp-web-<mark>/tokens.bin    data/web/tokens.bin
        data/tokens.bin                    data/tokens.bin
        .tmp-anna/tokens.bin               .tmp-anna/tokens.bin    (a folder of the user)

    Args:
        path: Path of a file or folder, which may be unfinished.
    """
    names = []
    for name in path.split("/"):
        unfinished = _UNFINISHED_NAME.fullmatch(name)
        names.append(name if unfinished is None else unfinished["target"])
    return "/".join(names)


def open_unfinished(target: Path) -> BinaryIO:
    """Open a new file next to its final path, to which the caller renames it when it is complete.

    Args:
        target: The final path, such as `data/a.bin`. Missing folders above it are created.

    Returns:
        The file, open for writing and reading. Its path `.name` is hidden, such as
        `data/.tmp-a.bin-...`.

    Raises:
        OSError: The file cannot be created.
    """
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except FileNotFoundError:
        # At this moment another process has removed the folder above, which was empty.
        target.parent.mkdir(parents=True, exist_ok=True)
    return unfinished_name(target).open("x+b")


@contextlib.contextmanager
def claim_scratch(final: Path) -> Iterator[Path]:
    """Yield a new folder for unfinished work; it is removed at the end, unless it was renamed.

    Args:
        final: Path of the finished folder or file, such as `data/web`. The new folder is next to
            it, on the same disk, since files can only be renamed within a disk.

    Yields:
        The empty folder, with a hidden name such as `data/.tmp-web-...`.

    Raises:
        OSError: The folder cannot be created.
    """
    scratch = unfinished_name(final)
    try:
        scratch.mkdir()
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


def sweep_abandoned(folder: Path, name: str | None = None, *, by_age: bool = True) -> None:
    """Remove the unfinished files and folders that killed processes left behind.

    A file or folder that is being written has a hidden name, which ends with a mark of the process
    that writes it: `data/.tmp-a.bin-<mark>`. Usually the mark shows whether this process is
    running. If it does not, as for processes of other machines, a file is removed an hour after it
    was last written to, and a folder after a week.

    Args:
        folder: The folder that contains them, such as `data`. Folders within it are not searched.
        name: Final name of the files or folders to remove, such as `a.bin`; None for all.
        by_age: Whether to go by the age at all. In a folder that also has files of other programs,
            it does not show that one whose name begins with `.tmp-` was left behind.

    Raises:
        OSError: A file cannot be removed for another reason than lack of rights.
    """
    prefix = UNFINISHED if name is None else f"{UNFINISHED}{name}-"
    entries = sorted(folder.glob(f"{glob.escape(prefix)}*"))
    clock = _FolderClock(folder)
    for entry in entries:
        try:
            if _is_abandoned(entry, clock if by_age else None):
                _remove(entry)
        except OSError as error:
            if error.errno not in _NOT_SWEPT:
                raise


def sweep_once(folder: Path, *, by_age: bool = True) -> None:
    """Remove what killed processes left in a folder, unless this process has done so before.

    To list a folder of many outputs before each of them is written would take a time that grows
    with the square of their number.

    Args:
        folder: The folder, which may be missing. If it is unfinished itself, nothing is done: this
            process has just created it.
        by_age: As for `sweep_abandoned`.

    Raises:
        OSError: A file cannot be removed for another reason than lack of rights.
    """
    is_new = folder.name.startswith(UNFINISHED)
    if is_new or (folder, by_age) in _swept:
        return
    _swept.add((folder, by_age))
    sweep_abandoned(folder, by_age=by_age)


def _remove(entry: Path) -> None:
    """Remove a file, or a folder with all files in it."""
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink()


def _is_abandoned(entry: Path, clock: _FolderClock | None) -> bool:
    """Return whether the process that writes an unfinished file or folder has ended, or seems to.

    How this is found out depends on the machine of that process:

        this machine                      look whether the process is running
        this machine before a restart     the process has ended, as all processes did
        another machine, or not known     go by the age: an hour for a file, a week for a folder

    On a network file system, another machine with the name of this one may have written the file.
    So whether this machine was restarted is of interest only for files on a disk.

    Args:
        entry: The file or folder, such as `data/.tmp-a.bin-<mark>`. The mark at the end of its name
            says which machine and process has created it.
        clock: The clock of the folder that contains it. None: do not go by the age.
    """
    mark = _mark_in(entry.name)
    is_alive = is_owner_alive(mark)
    if is_alive is not None:  # None: it is not known
        return not is_alive

    status = entry.lstat()
    is_on_disk = os.major(status.st_dev) != 0  # network file systems have the major number 0
    if is_on_disk and is_from_before_restart(mark):
        return True
    return clock is not None and _is_old(status, clock)


def _is_old(status: os.stat_result, clock: _FolderClock) -> bool:
    """Return whether a file was last written to an hour ago, or a folder a week ago.

    The clock of this machine would not do: if it were ahead of that of a file server, what others
    are writing would seem to be old.

    Args:
        status: Result of `lstat` for the file or folder.
        clock: The clock of the folder that contains it.
    """
    max_age = FOLDER_SECONDS if stat.S_ISDIR(status.st_mode) else FILE_SECONDS
    age_ns = clock.time_ns - status.st_mtime_ns
    return age_ns > max_age * 10**9


class _FolderClock:
    """The clock that dates the files of a folder. It is asked for the time once, if at all.

    Each look at it creates a file, which takes a while on a file server, and a folder may have
    thousands of unfinished files.
    """

    def __init__(self, folder: Path) -> None:
        """Remember the folder."""
        self._folder = folder

    @functools.cached_property
    def time_ns(self) -> int:
        """The time when it was first needed, in nanoseconds since 1970."""
        return file_system_time_ns(self._folder)


def file_system_time_ns(folder: Path) -> int:
    """Return the time of the clock that dates the files of a folder.

    A folder on a file server has the clock of the server, from which that of this machine may
    differ. The only way to ask for it is to create a file.

    Args:
        folder: The folder. If no file can be created in it, the result is the time of this machine.

    Returns:
        Nanoseconds since 1970, to be compared with the times of files in the folder.
    """
    try:
        # If this process is killed, and the file system keeps the file, it is swept like others.
        with tempfile.TemporaryFile(dir=folder, prefix=UNFINISHED) as file:
            return os.fstat(file.fileno()).st_mtime_ns
    except OSError:
        return time.time_ns()


def _mark_in(name: str) -> str:
    """Return the mark of a process at the end of the name of an unfinished file.

    The mark consists of machine, process and random digits, with hyphens between them. The name of
    the file may contain hyphens, too, so the mark is looked for from the end:

        .tmp-my-text.bin-1f0c2a9e77d4-4711.89034412-a1b2c3  →  1f0c2a9e77d4-4711.89034412-a1b2c3
    """
    parts = name.rsplit("-", 3)  # [".tmp-my-text.bin", "1f0c2a9e77d4", "4711.89034412", "a1b2c3"]
    return "-".join(parts[1:])


@contextlib.contextmanager
def alone_in(folder: Path, *, waits: bool = True) -> Iterator[bool]:
    """Keep other processes that call this function out of a folder, until the end of the block.

    The folder itself is opened and locked, as a file can be, so that no separate lock file is
    needed. The lock holds until the end of the block. Some file systems have no locks: there,
    nothing keeps other processes out.

    Args:
        folder: The folder, which is created if it does not exist.
        waits: Whether to wait while another process holds the lock.

    Yields:
        Whether the block may use the folder: False if another process holds the lock and `waits` is
        False. The block is run in any case, and has to look at this value.
    """
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        yield _lock_folder(handle, folder, waits=waits)
    finally:
        # To close the folder would not be enough: a worker process that was forked in the block has
        # inherited the descriptor, and with it the lock.
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_UN)
        os.close(handle)


def _lock_folder(handle: int, folder: Path, *, waits: bool) -> bool:
    """Lock a folder for this process, as far as its file system has locks.

        the folder is free                     True: this process has the lock now
        another process has it, and `waits`    True, once that process has released it
        another process has it, not `waits`    False
        the file system has no locks           True, although nothing is locked

    Args:
        handle: Descriptor of the open folder, which is a number that `os.open` returns.
        folder: Its path, for the warning while this process waits.
        waits: Whether to wait while another process holds the lock.
    """

    def try_lock() -> None:
        """Lock the folder, or raise BlockingIOError if another process has locked it."""
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)

    try:
        if waits:
            wait_for_lock(handle, try_lock, folder)
        else:
            try_lock()
    except BlockingIOError:
        return False
    except OSError:
        pass  # The file system has no locks.
    return True


def withdrawn(folder: Path, is_in_use: Callable[[], bool]) -> Path | None:
    """Take an output away from all readers at once, by renaming its folder.

    An output is a folder of files that belong together. If the files were deleted one by one, a
    reader could find some of them. So `data/web` is first renamed to `data/.tmp-web-...`, which no
    reader looks for, and the caller then deletes the renamed folder at leisure.

    Args:
        folder: The folder of the output, such as `data/web`.
        is_in_use: Returns whether another process has begun to use the output meanwhile, so that it
            has to stay. It is called after the rename: if it were called before, a process could
            begin to use the output between the call and the rename.

    Returns:
        The renamed folder, which the caller deletes; None if the output stays.

    Raises:
        StorageError: The output has to stay, but its folder cannot be renamed back.
    """
    renamed = unfinished_name(folder)
    folder.rename(renamed)
    try:
        must_stay = is_in_use()
    except BaseException:
        # It is unknown whether the output is in use.
        _rename_back(renamed, folder)
        raise
    if not must_stay:
        return renamed
    _rename_back(renamed, folder)
    return None


def _rename_back(renamed: Path, folder: Path) -> None:
    """Give the folder of an output its name again, unless another process has made the output anew.

    Args:
        renamed: The folder, such as `data/.tmp-web-...`. It is deleted if `folder` has files again.
        folder: Its name before, such as `data/web`.

    Raises:
        StorageError: It cannot be renamed, for example since a network file system has failed.
    """
    try:
        renamed.rename(folder)
    except OSError as error:
        if error.errno in (errno.ENOTEMPTY, errno.EEXIST):
            shutil.rmtree(renamed, ignore_errors=True)
            return
        # Nobody has made the output again, so this is the only copy.
        raise StorageError(
            "the folder of an output that is in use was renamed, and cannot be renamed back",
            where=renamed,
            found=error.strerror,
            expected=folder,
            remedy=f"rename it to {folder.name} before the next command deletes it as unfinished",
        ) from error
