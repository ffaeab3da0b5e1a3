"""Which files of a corpus's folder are its own: patterns of paths, and names by which some are held out."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape

_KEYWORDS = {"valid": "validation|valid|dev|val", "test": "testing|test|evaluation|eval"}
_HELD_OUT = {
    split: re.compile(rf"(?:|.*?[-._ 0-9])(?:{words})(?:[-._ 0-9]|$)", re.IGNORECASE)
    for split, words in _KEYWORDS.items()
}
"""Split → names of its files and folders, as far as they tell."""


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Patterns of the files that a corpus is made of; by default all of its folder."""

    files: tuple[str, ...] | None = None
    """Those that are taken; None = all."""
    exclude: tuple[str, ...] = ()
    """Those that are not, even so."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """All patterns, those of `files` first."""
        return (*(self.files or ()), *self.exclude)

    def takes(self, path: str) -> bool:
        """Return whether a file of the folder is taken; `path` is relative to the folder, with forward slashes."""
        wanted = self.files is None or is_matched(path, self.files)
        return wanted and not is_matched(path, self.exclude)

    def unmatched(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the patterns that fit none of the paths."""
        return tuple(one for one in self.patterns if not any(is_matched(path, [one]) for path in paths))


def is_matched(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path, or a folder that it lies in, matches one of the patterns.

    A pattern without a slash is compared with names in every folder, any other one with the path from its beginning.
    """
    parts = path.split("/")
    return any(_is_matched(parts, pattern.rstrip("/")) for pattern in patterns)


def _is_matched(parts: Sequence[str], pattern: str) -> bool:
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in parts)
    return matches(parts, [*(part for part in pattern.split("/") if part not in ("", ".")), "**"])


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, in which `**` stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1)) or not pattern[1:]
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and matches(parts[1:], pattern[1:])


def held_out(path: str) -> tuple[str, str] | None:
    """Return (valid or test, a pattern of such files) where a file's name, or a folder's, says that it is held out.

    Source: datasets, `data_files.py`, SPLIT_KEYWORDS and NON_WORDS_CHARS, by which a folder's files become splits.
    """
    *folders, name = path.split("/")
    for part, end in [(name, "*"), *((folder, "/") for folder in folders)]:
        for split, pattern in _HELD_OUT.items():
            if (found := pattern.match(part)) is not None:
                start = found[0] if end == "*" else part
                return split, f"{re.sub(r'[0-9]+', '*', escape(start))}{end}".replace("**", "*")
    return None
