"""All that lies in a folder of text: the files that are read, and notices of the others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from nanoset_core.errors import MissingError
from nanoset_core.raw.endings import ending_of, is_companion, is_text, is_unfinished, suffix_of
from nanoset_core.raw.listing import FileStat, natural_key, walk
from nanoset_core.storage.location import RawFolder, RemoteFolder

NoticeKind = Literal["not_read", "unfinished", "no_file", "empty", "shrunk", "gone", "awaited"]
_RESTORE = "restore what was lost; nothing is to be done if that was meant"
_WORDS: Mapping[NoticeKind, tuple[str, str, str]] = {
    "not_read": (
        "file is not read",
        "files are not read",
        "convert or rename them to an ending that is read, or move them out of the raw folder",
    ),
    "unfinished": (
        "file is still being uploaded, by its name",
        "files are still being uploaded, by their names",
        "let the upload end, or remove what is left of it",
    ),
    "no_file": (
        "entry is named as a file that is read, and is none",
        "entries are named as files that are read, and are none",
        "remove it; a folder of that name may hold files that are read",
    ),
    "empty": ("file is empty", "files are empty", "fill or remove it"),
    "shrunk": (
        "file is smaller than in the version before",
        "files are smaller than in the version before",
        _RESTORE,
    ),
    "gone": (
        "file of the version before is gone or renamed",
        "files of the version before are gone or renamed",
        _RESTORE,
    ),
    "awaited": (
        "file that something writes to is taken once it is left alone",
        "files that something writes to are taken once they are left alone",
        "nothing is to be done",
    ),
}
_NAMES_SHOWN = 3


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
        one, several, _ = _WORDS[self.kind]
        return f"{self.files:,} {one if self.files == 1 else several}: {self.names}"

    @property
    def remedy(self) -> str:
        """What to do."""
        return _WORDS[self.kind][2]

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return {"kind": self.kind, "files": self.files, "text": self.text}


@dataclass(frozen=True, slots=True)
class Contents:
    """What lies in a folder and the folders in it; hidden names are left out."""

    texts: tuple[FileStat, ...] = ()
    """Files that are read, in the order in which the file system gave them."""
    others: tuple[str, ...] = ()
    """Files that are not, in natural order."""
    no_files: tuple[str, ...] = ()
    """Pipes, devices, and folders without a file that is read, that are named as files that are; in natural order."""

    @property
    def ordered(self) -> list[FileStat]:
        """The files that are read, in natural order."""
        return sorted(self.texts, key=lambda file: natural_key(file.path))

    @property
    def size(self) -> int:
        """Stored bytes of the files that are read."""
        return sum(file.size for file in self.texts)

    def notices(self, before: Mapping[str, int] | None = None) -> list[Notice]:
        """Return what the owner of the folder should know.

        Args:
            before: path → bytes of each file as an earlier build read it.
        """
        told = [path for path in self.others if not is_companion(path)]
        was, texts = before or {}, self.ordered
        found: dict[NoticeKind, Sequence[str]] = {
            "unfinished": [path for path in told if is_unfinished(path)],
            "no_file": self.no_files,
            "empty": [file.path for file in texts if not file.size],
            "shrunk": [
                f"{file.path} ({was[file.path]:,} → {file.size:,} bytes)"
                for file in texts
                if file.size < was.get(file.path, 0)
            ],
            "gone": sorted(was.keys() - {file.path for file in texts}, key=natural_key),
        }
        named = [notice for kind, names in found.items() for notice in _notices(kind, names)]
        return [*not_read(path for path in told if not is_unfinished(path)), *named]


def contents_of(folder: RawFolder, within: RawFolder | None = None) -> Contents:
    """List everything below a folder.

    Raises:
        MissingError, InputError: see list_files.
    """
    is_listed = isinstance(folder, RemoteFolder)  # which is there where anything lies below it
    texts: list[FileStat] = []
    others: list[str] = []
    no_files: dict[str, bool] = {}
    if is_listed or folder.is_dir():
        for found in walk(folder, within):
            if not isinstance(found, FileStat):
                no_files |= {found.path: found.is_folder} if suffix_of(found.path) else {}
            elif is_text(found.path):
                texts.append(found)
            else:
                others.append(found.path)
    if not texts and not others and not folder.is_dir():
        raise MissingError("the folder does not exist", where=folder, remedy="create it, or name another")
    if any(no_files.values()):
        for file in texts:
            parts = file.path.split("/")
            for depth in range(1, len(parts)):
                no_files.pop("/".join(parts[:depth]), None)
    return Contents(tuple(texts), tuple(sorted(others, key=natural_key)), tuple(sorted(no_files, key=natural_key)))


def awaited(paths: Sequence[str]) -> list[Notice]:
    """Return the notice of files that a build left as they were before; none where there are none."""
    return _notices("awaited", paths)


def not_read(paths: Iterable[str]) -> list[Notice]:
    """Return the notice of files that are not read, by their endings; none where there are none."""
    by_ending: dict[str, list[str]] = {}
    for path in paths:
        by_ending.setdefault(ending_of(path), []).append(path)
    kinds = sorted(by_ending.items(), key=lambda kind: -len(kind[1]))
    names = ", ".join(f"{len(some):,} {ending} ({_some(some)})" for ending, some in kinds)
    return [Notice("not_read", sum(map(len, by_ending.values())), names)] if kinds else []


def _notices(kind: NoticeKind, names: Sequence[str]) -> list[Notice]:
    return [Notice(kind, len(names), _some(names))] if names else []


def _some(names: Sequence[str]) -> str:
    more = len(names) - _NAMES_SHOWN
    return ", ".join(names[:_NAMES_SHOWN]) + (f" and {more:,} more" if more > 0 else "")
