"""Which files of a corpus's folder are its own: patterns of paths, and names by which some are held
out.
"""

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
        """Return whether a file of the folder is taken; `path` is relative to the folder, with
        forward slashes.
        """
        wanted = self.files is None or is_matched(path, self.files)
        return wanted and not is_matched(path, self.exclude)

    def unmatched(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the patterns that fit none of the paths."""
        return tuple(
            one for one in self.patterns if not any(is_matched(path, [one]) for path in paths)
        )


def is_matched(path: str, patterns: Iterable[str]) -> bool:
    """Return whether a path, or a folder that it lies in, matches one of the patterns.

    A pattern without a slash is compared with names in every folder, any other one with the path
    from its beginning.
    """
    parts = path.split("/")
    return any(_is_matched(parts, pattern.rstrip("/")) for pattern in patterns)


def _is_matched(parts: Sequence[str], pattern: str) -> bool:
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in parts)
    return matches(parts, [*(part for part in pattern.split("/") if part not in ("", ".")), "**"])


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, in which `**` stands for any
    number of folders.
    """
    positions = first_positions(pattern)
    for name in parts:
        positions = next_positions(positions, name, pattern)
    return len(pattern) in positions


def first_positions(pattern: Sequence[str]) -> frozenset[int]:
    """Return where in a pattern the first part of a path is compared; see `next_positions`."""
    return _with_skipped_folders({0}, pattern)


def next_positions(positions: Iterable[int], name: str, pattern: Sequence[str]) -> frozenset[int]:
    """Go down a path by one part, and return where in a pattern the part below it is compared.

    Keeping all positions at once takes time in proportion to the parts of path and pattern. Trying
    out how many folders each `**` stands for would take time that grows exponentially with the
    number of `**`.

    Args:
        positions: of the parts of the pattern that `name` may match. None is left once a path
            cannot match any more.
        name: the next part of the path. Like in a shell, one that begins with a dot is not matched
            by a wildcard.
        pattern: its parts.

    Returns:
        The positions below `name`. The path so far matches all of the pattern if `len(pattern)` is
        one of them.
    """
    is_hidden = name.startswith(".")
    following = set()
    for position in positions:
        if position == len(pattern):
            continue
        part = pattern[position]
        if is_hidden and not part.startswith("."):
            continue
        if part == "**":
            following.add(position)
        elif fnmatchcase(name, part):
            following.add(position + 1)
    return _with_skipped_folders(following, pattern)


def _with_skipped_folders(positions: set[int], pattern: Sequence[str]) -> frozenset[int]:
    """Return some positions in a pattern, and those that follow if a `**` there stands for no
    folder.
    """
    reached = set(positions)
    for position in positions:
        while position < len(pattern) and pattern[position] == "**":
            position += 1
            reached.add(position)
    return frozenset(reached)


def held_out(path: str) -> tuple[str, str] | None:
    """Return (valid or test, a pattern of such files) where a file's name, or a folder's, says that
    it is held out.

    Source: datasets, `data_files.py`, SPLIT_KEYWORDS and NON_WORDS_CHARS, by which a folder's files
        become splits.
    """
    *folders, name = path.split("/")
    for part, end in [(name, "*"), *((folder, "/") for folder in folders)]:
        for split, pattern in _HELD_OUT.items():
            if (found := pattern.match(part)) is not None:
                start = found[0] if end == "*" else part
                return split, f"{re.sub(r'[0-9]+', '*', escape(start))}{end}".replace("**", "*")
    return None
