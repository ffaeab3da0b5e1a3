"""All that lies in a folder of text: the files that are read, in natural order, and notices of the
others.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from nanoset_core.errors import InputError, MissingError
from nanoset_core.storage.location import ObjectStat, RawFolder, RemoteFolder
from nanoset_core.storage.paths import (
    UTF_8_LOCALE,
    has_control_characters,
    is_locale_utf_8,
    is_utf_8,
)
from nanoset_core.text.choice import FileChoice
from nanoset_core.text.endings import ending_of, is_companion, is_text, is_unfinished

NoticeKind = Literal[
    "not_read",
    "misnamed",
    "unfinished",
    "empty",
    "unmatched",
    "shrunk",
    "gone",
    "awaited",
    "copies",
    "held_out",
    "left_out",
    "beside",
]
_RESTORE = "restore what was lost; nothing is to be done if that was meant"
_WORDS: Mapping[NoticeKind, tuple[str, str]] = {
    "not_read": (
        "{file is|files are} not read",
        "convert or rename them to an ending that is read, or move them out of the raw folder",
    ),
    "misnamed": (
        "{folder is|folders are} named like a file of text, and no text is read from {it|them}",
        "look for the file that should be there, and unpack or fetch it again; or rename the folder",
    ),
    "unfinished": (
        "{file is|files are} still being uploaded, by {its name|their names}",
        "let the upload end, or remove what is left of it",
    ),
    "empty": ("{file is|files are} empty", "fill or remove it"),
    "unmatched": (
        "{pattern|patterns} of the corpus's files and exclude {fits|fit} no file",
        "correct or remove it in nanoset.yaml; a pattern with a slash begins in the corpus's folder",
    ),
    "shrunk": ("{file is|files are} smaller than in the version before", _RESTORE),
    "gone": (
        "{file of the version before is|files of the version before are} gone or renamed",
        _RESTORE,
    ),
    "awaited": (
        "{file|files} that something writes to {is|are} taken once {it is|they are} left alone",
        "nothing is to be done",
    ),
    "copies": (
        "{file holds|files hold} the same bytes as {another|others}, so that {its|their} text is read again",
        "remove the copies, or leave them out by `exclude`",
    ),
    "held_out": (
        "{file is|files are} named as validation or test data, in a corpus that train reads",
        'make them corpora of their own, for blend_per_split or none; `files: ["*"]` says that they are meant',
    ),
    "left_out": (
        "{file is|files are} left out by the corpus's files and exclude",
        "nothing is to be done",
    ),
    "beside": (
        "{file lies|files lie} beside the text and {is|are} not read, by {its name|their names}",
        "nothing is to be done",
    ),
}
"""Kind → what it is, {of one file|of several}, and what to do."""
_TEN = "0123456789"
_DIGITS = re.compile(r"([0-9]+)")


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
        """Return whether another look found the same file, unchanged: of the same size and time,
        and not replaced.

        Some file systems number their inodes anew for each process, or each time that they are
        mounted.
        """
        same = (self.size, self.mtime_ns) == (other.size, other.mtime_ns)
        return same and (self.inode == other.inode or self.changed_ns == other.changed_ns != 0)


def file_stat(path: str, found: os.stat_result | ObjectStat) -> FileStat:
    """Return the stat result of the file at a path."""
    return FileStat(
        path, found.st_size, found.st_mtime_ns, found.st_ino, getattr(found, "st_ctime_ns", 0)
    )


def stat_file(folder: RawFolder, path: str) -> FileStat:
    """Look at one file below a folder; FileNotFoundError where it is not there."""
    return file_stat(path, (folder / path).stat())


def natural_key(path: str) -> tuple[object, ...]:
    """Return a sort key under which part-2 comes before part-10; ties are broken by the path
    itself.
    """
    names = ([run for run in _DIGITS.split(name) if run] for name in path.split("/"))
    return tuple(
        tuple((0, int(run), "") if run[0] in _TEN else (1, 0, run) for run in name)
        for name in names
    ), path


def walk(folder: RawFolder, within: RawFolder | None = None) -> Iterator[FileStat]:
    """Yield the files below `folder` as they are found.

    Hidden files and folders are left out. Symbolic links are followed, to files and to folders;
    with `within`, only to what lies in there, or in `folder` itself (wherever that is, should it be
    a link): delivered data does not choose what else of the disk is read.

    Raises:
        MissingError: a link leads nowhere.
        InputError: a folder cannot be read, a link leads out, or back to a folder above it, or a
            name is not UTF-8 or holds control characters.
    """
    for entry in _entries_below(folder, within):
        if not entry.is_folder:
            yield entry.stat


class _Entry(NamedTuple):
    """A file or folder below the folder that is listed."""

    stat: FileStat
    is_folder: bool


def _entries_below(folder: RawFolder, within: RawFolder | None) -> Iterator[_Entry]:
    """Yield the files below a folder as they are found, and the folders of a local one; see `walk`."""
    if isinstance(folder, RemoteFolder):
        for found in folder.files():
            yield _Entry(FileStat(*found), is_folder=False)
        return
    bounds = (
        (os.path.realpath(within), os.path.realpath(folder)) if isinstance(within, Path) else None
    )
    yield from _local_entries_below(folder, "", (folder.stat(),), bounds)


def _local_entries_below(
    folder: Path, prefix: str, above: tuple[os.stat_result, ...], bounds: tuple[str, ...] | None
) -> Iterator[_Entry]:
    """Walk through one folder and those below it; `above`: it and every folder that leads to it."""
    for entry in all_entries(folder):
        if entry.name.startswith("."):
            continue
        _check_name(folder, entry.name)
        path = prefix + entry.name
        stat = _stat(entry)
        if bounds is not None and entry.is_symlink():
            _check_link(entry, bounds)
        if entry.is_dir():
            check_no_loop(entry.path, stat, above)
            yield _Entry(file_stat(path, stat), is_folder=True)
            yield from _local_entries_below(Path(entry.path), path + "/", (*above, stat), bounds)
        elif entry.is_file():
            yield _Entry(file_stat(path, stat), is_folder=False)


def all_entries(folder: Path) -> list[os.DirEntry[str]]:
    """Return what is in a local folder, hidden names included; InputError if it cannot be read."""
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError as error:
        raise InputError(
            "a folder cannot be read",
            where=folder,
            found=error.strerror,
            remedy="give this user the right to read it",
        ) from error


def check_no_loop(path: str, stat: os.stat_result, above: Sequence[os.stat_result]) -> None:
    """Raise InputError if a folder is one of those that lead to it, which only a link can bring
    about.
    """
    if any(os.path.samestat(stat, other) for other in above):
        what = "a link leads back to a folder above it"
        raise InputError(what, where=path, found=os.path.realpath(path), remedy="remove the link")


def _stat(entry: os.DirEntry[str]) -> os.stat_result:
    try:
        return entry.stat()
    except OSError as error:
        raise MissingError(
            f"a file is not there: {error.strerror}",
            where=entry.path,
            found=f"a link to {os.readlink(entry.path)}" if entry.is_symlink() else None,
            remedy="mount or restore what it leads to, or remove the link",
        ) from error


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
            "a file's name is not UTF-8"
            if known
            else "this locale is not of UTF-8, and cannot tell a file's name",
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


@dataclass(frozen=True, slots=True)
class Notice:
    """Something about the files of a folder that their owner may not expect, and that is no error."""

    kind: NoticeKind
    """A fixed word."""
    files: int
    """How many it is about."""
    names: str
    """Some of them."""

    @property
    def text(self) -> str:
        """What it is, in one line."""
        words = re.sub(r"{(.*?)\|(.*?)}", r"\1" if self.files == 1 else r"\2", _WORDS[self.kind][0])
        return f"{self.files:,} {words}: {self.names}"

    @property
    def is_as_asked(self) -> bool:
        """Return whether it only tells what the settings ask for, or what is usual."""
        return self.kind in ("left_out", "beside")

    @property
    def remedy(self) -> str:
        """What to do."""
        return _WORDS[self.kind][1]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "files": self.files, "text": self.text}


@dataclass(frozen=True)
class Contents:
    """What lies in a folder and the folders in it; hidden names are left out."""

    texts: tuple[FileStat, ...] = ()
    """Files that are read, in the order in which the file system gave them."""
    others: tuple[str, ...] = ()
    """Files that are not, in natural order."""
    corpus: str = ""
    """What the folder is called, where it is a corpus's."""
    left_out: tuple[str, ...] = ()
    """Files that a choice does not take, in natural order."""
    unmatched: tuple[str, ...] = ()
    """Patterns of that choice that fit no file."""
    misnamed: tuple[str, ...] = ()
    """Folders that are named like a file of text, and hold none, in natural order."""

    @cached_property
    def signature(self) -> str:
        """Changes when a file that is read is added, removed, renamed, written to or replaced; with
        its rights, too.
        """
        # Some file systems number their inodes anew at each look.
        rows = (
            f"{file.path}\0{file.size}\0{file.mtime_ns}\0{file.changed_ns or file.inode}\n"
            for file in self.texts
        )
        return hashlib.blake2b("".join(sorted(rows)).encode(), digest_size=10).hexdigest()

    @property
    def ordered(self) -> list[FileStat]:
        """The files that are read, in natural order."""
        return sorted(self.texts, key=lambda file: natural_key(file.path))

    @property
    def size(self) -> int:
        """Stored bytes of the files that are read."""
        return sum(file.size for file in self.texts)

    def chosen(self, choice: FileChoice) -> Contents:
        """Return the same without the files that a choice does not take."""
        if not choice.patterns:
            return self
        paths = sorted([*(file.path for file in self.texts), *self.others], key=natural_key)
        taken = set(filter(choice.takes, paths))
        return replace(
            self,
            texts=tuple(file for file in self.texts if file.path in taken),
            others=tuple(path for path in self.others if path in taken),
            left_out=tuple(path for path in paths if path not in taken),
            unmatched=choice.unmatched(paths),
            misnamed=tuple(filter(choice.takes, self.misnamed)),
        )

    def notices(self, before: Mapping[str, int] | None = None) -> list[Notice]:
        """Return what the owner of the folder should know.

        Args:
            before: path → bytes of each file as an earlier build read it.
        """
        told = [path for path in self.others if not is_companion(path)]
        was, texts = before or {}, self.ordered
        by_ending: dict[str, list[str]] = {}
        for path in told:
            if not is_unfinished(path):
                by_ending.setdefault(ending_of(path), []).append(path)
        endings = sorted(by_ending.items(), key=lambda kind: -len(kind[1]))
        names = ", ".join(f"{len(paths):,} {ending} ({some(paths)})" for ending, paths in endings)
        found: dict[NoticeKind, Sequence[str]] = {
            "misnamed": [f"{path}/" for path in self.misnamed],
            "unfinished": [path for path in told if is_unfinished(path)],
            "empty": [file.path for file in texts if not file.size],
            "unmatched": self.unmatched,
            "shrunk": [
                f"{file.path} ({was[file.path]:,} → {file.size:,} bytes)"
                for file in texts
                if file.size < was.get(file.path, 0)
            ],
            "gone": sorted(
                was.keys() - {file.path for file in texts} - {*self.left_out}, key=natural_key
            ),
            "left_out": self.left_out,
            "beside": [path for path in self.others if is_companion(path)],
        }
        not_read = [Notice("not_read", sum(map(len, by_ending.values())), names)] if names else []
        return not_read + [
            Notice(kind, len(paths), some(paths)) for kind, paths in found.items() if paths
        ]


def contents_of(folder: RawFolder, within: RawFolder | None = None) -> Contents:
    """List everything below a folder. Raises as `walk`, and MissingError where it is no folder."""
    # In a bucket a folder is there where anything lies below it.
    is_listed = isinstance(folder, RemoteFolder) or folder.is_dir()
    files, folders = list_below(folder, within) if is_listed else ([], set())
    if not files and not folder.is_dir():
        raise MissingError(
            "the folder does not exist", where=folder, remedy="create it, or name another"
        )

    texts = [file for file in files if is_text(file.path)]
    others = sorted((file.path for file in files if not is_text(file.path)), key=natural_key)
    misnamed = {path for path in folders if is_text(path)} - folders_of(file.path for file in texts)
    return Contents(tuple(texts), tuple(others), misnamed=tuple(sorted(misnamed, key=natural_key)))


def list_below(
    folder: RawFolder, within: RawFolder | None = None
) -> tuple[list[FileStat], set[str]]:
    """Return the files below a folder, as they are found, and the paths of all folders below it.
    Raises as `walk`.
    """
    entries = list(_entries_below(folder, within))
    files = [entry.stat for entry in entries if not entry.is_folder]
    # A folder in a bucket is no more than a part of the keys of what is in it.
    folders = {entry.stat.path for entry in entries if entry.is_folder} | folders_of(
        file.path for file in files
    )
    return files, folders


def folders_of(paths: Iterable[str]) -> set[str]:
    """Return every folder in which one of some files is, at any depth."""
    folders: set[str] = set()
    for path in paths:
        folder = path.rpartition("/")[0]
        while folder and folder not in folders:
            folders.add(folder)
            folder = folder.rpartition("/")[0]
    return folders


def awaited(paths: Sequence[str]) -> list[Notice]:
    """Return the notice of files that a build left as they were before; none where there are none."""
    return [Notice("awaited", len(paths), some(paths))] if paths else []


def some(names: Sequence[str], most: int = 3) -> str:
    """Return the first of some names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more:,} more" if more > 0 else "")
