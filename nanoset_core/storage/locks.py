"""Who is working on which outputs: so that `nanoset gc` takes nothing from under a running build.

Whoever makes outputs holds a shared lock on the names that it works on: those of its outputs, and of the corpora that
it reads. A collection closes the gate, by which everyone passes who begins; what nobody holds then, nobody can take up
until the gate opens again.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from nanoset_core.errors import StorageError
from nanoset_core.storage.os_errors import explained

FOLDER = ".in-use"
"""Below the output root; holds empty files, one a name."""
GATE = ".gate"


@contextlib.contextmanager
def in_use(root: Path, names: Iterable[str]) -> Iterator[None]:
    """Hold outputs against `nanoset gc`, by the first part of their names, until the block ends.

    It waits while a collection looks for what can go. Where the file system has no locks it holds nothing.

    Raises:
        StorageError: the file system took no more, here or in the block.
        NanosetError: memory ran out in the block.
    """
    folder = root / FOLDER
    with contextlib.ExitStack() as held:
        held.enter_context(explained(root))
        folder.mkdir(parents=True, exist_ok=True)
        with _locked(folder / GATE, fcntl.LOCK_SH):
            for name in sorted(set(names)):
                held.enter_context(_locked(folder / name, fcntl.LOCK_SH))
        yield


@contextlib.contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Make a folder, and keep others who call this out of it; where the file system has no locks, nobody waits."""
    folder.mkdir(parents=True, exist_ok=True)
    handle = os.open(folder, os.O_RDONLY)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def collecting(root: Path, *, locks: bool = True) -> Iterator[frozenset[str]]:
    """Close the gate until the block ends; → the names that somebody works on.

    locks: False where the file system has none, and the caller knows that nothing is built.

    Raises:
        StorageError: the file system has no locks.
    """
    folder = root / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / GATE, fcntl.LOCK_EX) as known:
        if locks and not known:
            raise StorageError(
                "this file system has no locks, so that a running build cannot be seen",
                where=folder,
                remedy="see to it that nothing is built meanwhile, and say so with --no-locks",
            )
        yield busy_names(root)


def busy_names(root: Path) -> frozenset[str]:
    """The names that somebody works on at this moment."""
    folder = root / FOLDER
    if not folder.is_dir():
        return frozenset()
    return frozenset(path.name for path in folder.iterdir() if path.name != GATE and _is_held(path))


def _is_held(path: Path) -> bool:
    with held_alone(path) as ours:
        return not ours


@contextlib.contextmanager
def held_alone(path: Path) -> Iterator[bool]:
    """Hold a lock file against everybody until the block ends, without waiting; → whether it could be had.

    Where the file system has no locks it could.
    """
    with _opened(path, write=True) as file:
        ours = known = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            ours = False
        except OSError:
            known = False
        try:
            yield ours
        finally:
            if ours and known:
                fcntl.flock(file, fcntl.LOCK_UN)  # not by closing alone, as in `_locked`


@contextlib.contextmanager
def _locked(path: Path, kind: int) -> Iterator[bool]:
    """Wait for a lock; → whether the file system knows locks."""
    with _opened(path, write=kind == fcntl.LOCK_EX) as file:
        try:
            fcntl.flock(file, kind)
            known = True
        except OSError:
            known = False
        try:
            yield known
        finally:
            if known:
                # Not by closing alone: a worker process may have inherited the file.
                fcntl.flock(file, fcntl.LOCK_UN)


@contextlib.contextmanager
def _opened(path: Path, *, write: bool) -> Iterator[int]:
    """A descriptor of a lock file, made where it is not there; for reading alone where it is another user's.

    NFS gives exclusive locks to descriptors for writing only, shared ones to any.
    """
    flags = os.O_CREAT | os.O_CLOEXEC
    try:
        file = os.open(path, flags | (os.O_RDWR if write else os.O_RDONLY), 0o666)
    except PermissionError:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        yield file
    finally:
        os.close(file)
