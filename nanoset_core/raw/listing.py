"""Listing the files below a folder, in natural order."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from nanoset_core.errors import InputError, MissingError
from nanoset_core.storage.location import ObjectStat, RawFolder, RemoteFolder
from nanoset_core.storage.paths import UTF_8_LOCALE, has_control_characters, is_locale_utf_8, is_utf_8

_DIGITS = re.compile(r"([0-9]+)")
_MOST_FOLDERS = 100
"""One within the other."""


@dataclass(frozen=True, slots=True)
class FileStat:
    """What the file system says of one file."""

    path: str
    """Relative to the listed folder, with forward slashes."""
    size: int
    """Bytes."""
    mtime_ns: int
    """Last modification, nanoseconds since 1970."""
    inode: int
    """Tells a replaced file from the old one."""
    changed_ns: int = 0
    """Last change of the inode (ctime), which no user can set; 0 where that is not known."""

    def is_as(self, other: FileStat) -> bool:
        """Whether another look found the same file, unchanged: of the same size and time, and not replaced.

        Some file systems number their inodes anew for each process, or each time that they are mounted.
        """
        same = (self.size, self.mtime_ns) == (other.size, other.mtime_ns)
        return same and (self.inode == other.inode or self.changed_ns == other.changed_ns != 0)


@dataclass(frozen=True, slots=True)
class NotAFile:
    """A folder, or a pipe, socket or device."""

    path: str
    """Relative to the listed folder, with forward slashes."""
    is_folder: bool


def file_stat(path: str, found: os.stat_result | ObjectStat) -> FileStat:
    """Return the stat result of the file at a path."""
    return FileStat(path, found.st_size, found.st_mtime_ns, found.st_ino, getattr(found, "st_ctime_ns", 0))


def stat_file(folder: RawFolder, path: str) -> FileStat:
    """Look at one file below a folder; FileNotFoundError where it is not there."""
    return file_stat(path, (folder / path).stat())


def natural_key(path: str) -> tuple[object, ...]:
    """Return a sort key under which part-2 comes before part-10; ties are broken by the path itself."""
    return tuple(_name_key(name) for name in path.split("/")), path


def _name_key(name: str) -> tuple[tuple[int, int, str], ...]:
    pieces = (piece for piece in _DIGITS.split(name) if piece)
    return tuple((0, int(piece), "") if piece[0] in "0123456789" else (1, 0, piece) for piece in pieces)


def list_files(folder: RawFolder, within: RawFolder | None = None) -> list[FileStat]:
    """List all regular files below `folder` in natural order; hidden files and folders are left out.

    Symbolic links are followed, to files and to folders; with `within`, only to what lies in there, or in `folder`
    itself (wherever that is, should it be a link): delivered data does not choose what else of the disk is read.

    Raises:
        MissingError: `folder` does not exist or is not a folder, or a link leads nowhere.
        InputError: a folder cannot be read or lies too deep, a link leads out, or back to a folder above it, or a name
            is not UTF-8 or holds control characters.
    """
    if not folder.is_dir():
        raise MissingError("the folder does not exist", where=folder, remedy="create it, or name another")
    return sorted(walk_files(folder, within), key=lambda file: natural_key(file.path))


def walk_files(folder: RawFolder, within: RawFolder | None = None) -> Iterator[FileStat]:
    """Return the files of `list_files` as they are found, in no order."""
    return (found for found in walk(folder, within) if isinstance(found, FileStat))


def walk(folder: RawFolder, within: RawFolder | None = None) -> Iterator[FileStat | NotAFile]:
    """Yield the files of `list_files`, and whatever else lies there, as they are found; a bucket holds only files."""
    if isinstance(folder, RemoteFolder):
        yield from (FileStat(*found) for found in folder.files())
        return
    bounds = (os.path.realpath(within), os.path.realpath(folder)) if isinstance(within, Path) else None
    yield from _walk(folder, "", (_identity(folder.stat()),), bounds)


def _walk(
    folder: Path, prefix: str, above: tuple[tuple[int, int], ...], bounds: tuple[str, ...] | None
) -> Iterator[FileStat | NotAFile]:
    """Walk through one folder and those below it; `above` identifies it and every folder that leads to it."""
    try:
        entries = [entry for entry in os.scandir(folder) if not entry.name.startswith(".")]
    except OSError as error:
        raise InputError(
            "a folder cannot be read", where=folder, found=error.strerror, remedy="give this user the right to read it"
        ) from error
    for entry in entries:
        _check_name(folder, entry.name)
        path, stat = prefix + entry.name, _stat(entry)
        if bounds is not None and entry.is_symlink():
            _check_link(entry, bounds)
        if entry.is_dir():
            identity = _identity(stat)
            _check_place(entry, identity, above)
            yield NotAFile(path, is_folder=True)
            yield from _walk(Path(entry.path), path + "/", (*above, identity), bounds)
        else:
            yield file_stat(path, stat) if entry.is_file() else NotAFile(path, is_folder=False)


def _identity(stat: os.stat_result) -> tuple[int, int]:
    return stat.st_dev, stat.st_ino


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        raise MissingError(
            f"a file is not there: {error.strerror}",
            where=entry.path,
            found=f"a link to {os.readlink(entry.path)}" if entry.is_symlink() else None,
            expected="a file or a folder",
            remedy="mount or restore what it leads to, or remove the link",
        ) from error


def _check_place(entry: os.DirEntry[str], identity: tuple[int, int], above: tuple[tuple[int, int], ...]) -> None:
    if identity in above:
        raise InputError(
            "a link leads back to a folder above it",
            where=entry.path,
            found=os.path.realpath(entry.path),
            expected="each file below the folder once",
            remedy="remove the link",
        )
    if len(above) > _MOST_FOLDERS:
        raise InputError(
            "folders lie too deep in each other",
            where=os.path.dirname(entry.path),
            expected=f"at most {_MOST_FOLDERS} of them, one within the other",
            remedy="move what is in there further up",
        )


def _check_link(entry: os.DirEntry[str], bounds: tuple[str, ...]) -> None:
    target = os.path.realpath(entry.path)
    if not any(os.path.commonpath([target, bound]) == bound for bound in bounds):
        raise InputError(
            "a link leads out of the raw folder",
            where=entry.path,
            found=target,
            expected=f"a target in {bounds[0]}",
            remedy="move what it leads to there; or link the corpus's whole folder, whose own links may stay within it",
        )


def _check_name(folder: Path, name: str) -> None:
    if not is_utf_8(name):
        known = is_locale_utf_8()
        raise InputError(
            "a file's name is not UTF-8" if known else "this locale is not of UTF-8, and cannot tell a file's name",
            where=folder,
            found=repr(os.fsencode(name)),
            expected="a name that can be kept beside its documents",
            remedy="rename the file" if known else UTF_8_LOCALE,
        )
    if has_control_characters(name):
        raise InputError(
            "a file's name holds control characters",
            where=folder,
            found=ascii(name),
            expected="a name that can be shown on a terminal, in one line",
            remedy="rename the file",
        )
