"""Choose the files of a corpus: by patterns of paths, and by names of validation and test data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from glob import escape
from typing import NamedTuple

_KEYWORDS = {
    "valid": "validations?|valid|dev|val",
    "test": "testing|tests?|evaluations?|evals?",
}
_HELD_OUT = {
    split: re.compile(rf"(?:|.*?[-._ 0-9])(?:{words})(?:[-._ 0-9]|$)", re.IGNORECASE)
    for split, words in _KEYWORDS.items()
}
"""Split → regular expression that matches a name up to the end of the word for the split.

The word must be between separators: `web-test.jsonl` matches, `latest.jsonl` does not. Words and
separators are those by which Hugging Face `datasets` assigns files to splits (data_files.py,
SPLIT_KEYWORDS and NON_WORDS_CHARS), and plurals such as `tests` and `evals`.
"""
_DIGITS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class FileChoice:
    """Patterns of the files that a corpus is made of; by default, all files of its folder."""

    files: tuple[str, ...] | None = None
    """Patterns of files that are taken; None for all files."""
    exclude: tuple[str, ...] = ()
    """Patterns of files that are left out, even if `files` takes them."""

    @property
    def patterns(self) -> tuple[str, ...]:
        """All patterns, those of `files` first."""
        files = self.files or ()
        return files + self.exclude

    def takes(self, path: str) -> bool:
        """Return whether a file is part of the corpus.

        Args:
            path: The file, relative to the folder of the corpus, with forward slashes.

        Returns:
            True if `files` is not set or matches the path, and `exclude` does not match it.
        """
        if self.files is not None and not is_matched(path, self.files):
            return False
        return not is_matched(path, self.exclude)

    def unmatched(self, paths: Sequence[str]) -> tuple[str, ...]:
        """Return the patterns that match none of the files, since they may be misspelled.

        A user chooses files of a corpus by patterns, such as `files: ["*.jsonl", "*.parqet"]`. If
        the folder has a.jsonl and b.parquet, the second pattern matches neither.

        Args:
            paths: All files, relative to the folder of the corpus, with forward slashes.

        Returns:
            Patterns of the setting `files`, then those of `exclude`.
        """
        unmatched = []
        for pattern in self.patterns:
            if not any(is_matched(path, [pattern]) for path in paths):
                unmatched.append(pattern)
        return tuple(unmatched)


def is_matched(path: str, patterns: Iterable[str]) -> bool:
    """Return whether one of some patterns matches a file, or a folder that contains it.

        pattern       matches
        dev_*         dev_1/a.jsonl and web/dev_2.jsonl: the name of a folder, or of the file
        web/*/a*      web/2024/a.jsonl, but not other/web/2024/a.jsonl: the path from its start
        web/**/a*     web/a.jsonl and web/2024/12/a.jsonl: `**` is any number of folders

    Args:
        path: The file, relative to the folder of the corpus, with forward slashes.
        patterns: The patterns. A slash at their end is ignored.
    """
    parts = path.split("/")
    return any(_matches_below(parts, pattern.rstrip("/")) for pattern in patterns)


def _matches_below(parts: Sequence[str], pattern: str) -> bool:
    """Return whether a path matches one pattern; see `is_matched`."""
    if "/" not in pattern:
        return any(fnmatchcase(part, pattern) for part in parts)
    pattern_parts = [part for part in pattern.split("/") if part not in ("", ".")]
    # If the pattern matches a folder, everything in the folder matches, too.
    return matches(parts, [*pattern_parts, "**"])


def matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Return whether a path matches a pattern, in which `**` stands for any number of folders.

        path               pattern              result
        web/2024/a.jsonl   web/*/*.jsonl        True
        web/a.jsonl        web/**/*.jsonl       True: `**` stands for no folder
        web/a.jsonl        web/*/*.jsonl        False: `*` stands for exactly one

    Args:
        parts: The names in the path: `["web", "2024", "a.jsonl"]`.
        pattern: The parts of the pattern: `["web", "**", "*.jsonl"]`.
    """
    match = PartialMatch.start(pattern)
    for name in parts:
        match = match.after(name)
    return match.is_complete


class PartialMatch(NamedTuple):
    """How the first names of a path match a pattern; `**` in it stands for any number of folders.

    The pattern a/**/b has the parts 0: a, 1: ** and 2: b. Because of `**`, a name may have to match
    one of several parts. For the path a/x/b:

        names so far    parts that the next name may match
        none            0
        a               1, or 2 if ** stands for no folder
        a/x             1, 2
        a/x/b           1, 2; or 3, which is the end of the pattern: the match is complete
    """

    pattern: Sequence[str]
    """The parts of the pattern, such as `["a", "**", "b"]`."""
    next_parts: frozenset[int]
    """Numbers of the parts that the next name may match; `len(pattern)` stands for the end."""

    @staticmethod
    def start(pattern: Sequence[str]) -> PartialMatch:
        """Return the match of no names with a pattern.

        Args:
            pattern: The parts of the pattern, such as `["a", "**", "b"]`.
        """
        return PartialMatch(pattern, _with_skipped_folders({0}, pattern))

    def after(self, name: str) -> PartialMatch:
        """Return how the names match together with one more name.

        Args:
            name: Name of a folder or file, such as "a".
        """
        pattern = self.pattern
        next_parts = set()
        for number in self.next_parts:
            is_end = number == len(pattern)  # nothing may follow
            if is_end or not _matches_name(pattern[number], name):
                continue
            if pattern[number] == "**":
                next_parts.add(number)  # it may stand for further folders
            else:
                next_parts.add(number + 1)
        return PartialMatch(pattern, _with_skipped_folders(next_parts, pattern))

    @property
    def is_complete(self) -> bool:
        """Whether the names match the whole pattern."""
        return len(self.pattern) in self.next_parts

    @property
    def may_continue(self) -> bool:
        """Whether a path that starts with these names, and has more, may match the pattern."""
        return any(number < len(self.pattern) for number in self.next_parts)


def _matches_name(part: str, name: str) -> bool:
    """Return whether one part of a pattern matches a name; `**` is a wildcard for any name.

    As in a shell, a wildcard does not match a hidden file or folder.
    """
    if name.startswith(".") and not part.startswith("."):
        return False
    return fnmatchcase(name, part)


def _with_skipped_folders(parts: set[int], pattern: Sequence[str]) -> frozenset[int]:
    """Add the parts of a pattern that a name may match if a `**` before them stands for no folder.

    In the pattern a/**/b, a name that may match part 1, which is `**`, may also match part 2.

    Args:
        parts: Numbers of the parts that the name may match: {1}.
        pattern: The parts of the pattern: ["a", "**", "b"].

    Returns:
        Such as {1, 2}.
    """
    all_parts = set(parts)
    for number in parts:
        # There may be several `**` after each other.
        while number < len(pattern) and pattern[number] == "**":
            number += 1
            all_parts.add(number)
    return frozenset(all_parts)


class HeldOutName(NamedTuple):
    """What the name of a file or folder says about its split."""

    split: str
    """`valid` or `test`."""
    pattern: str
    """A pattern of files and folders with such names: that of `test-0001.jsonl` is `test-*`."""


def held_out(path: str) -> HeldOutName | None:
    """Recognize a file of validation or test data by its name, or by the name of a folder.

    Users should not train on such data by accident. So they are warned of it, with a pattern that
    they can put into their settings to leave out all files of this kind:

        path                        split    pattern
        web/test-00017.jsonl        test     test-*
        web/dev_2024/a.jsonl        valid    dev_*/
        web/train.jsonl             none, so the result is None

    Args:
        path: Path of the file, with forward slashes. If several of its names say that the file is
            held out, the name of the file itself counts, otherwise that of the outermost folder.

    Returns:
        The split and the pattern; None if no name says that the file is held out.
    """
    *folders, file_name = path.split("/")
    keyword = _keyword_in(file_name)  # "test-" for test-00017.jsonl
    if keyword is not None:
        pattern = f"{escape(keyword.text)}*"  # test-*
        return HeldOutName(keyword.split, _with_wildcards_for_numbers(pattern))
    for folder in folders:
        keyword = _keyword_in(folder)
        if keyword is not None:
            pattern = f"{escape(folder)}/"  # dev_2024/, which becomes dev_*/
            return HeldOutName(keyword.split, _with_wildcards_for_numbers(pattern))
    return None


def held_out_split_of_folder(name: str) -> str | None:
    """Return whether a whole folder is for validation or test, and for which, by its name.

    It is if the last word of the name says so:

        web2_valid         "valid"
        test               "test"
        web                None: its files may be for several purposes
        valid_sentences    None: it is not the last word, so it may mean something else

    Args:
        name: Name of the folder.

    Returns:
        `valid`, `test` or None.
    """
    keyword = _keyword_in(name)
    if keyword is None or keyword.text != name:
        return None
    return keyword.split


class _Keyword(NamedTuple):
    """A word at the start of a name that says that the data are held out."""

    split: str
    """`valid` or `test`."""
    text: str
    """The start of the name up to the end of the word, such as `test-`."""


def _keyword_in(name: str) -> _Keyword | None:
    """Return the word at the start of a file's or folder's name, if it names a held-out split."""
    for split, expression in _HELD_OUT.items():
        match = expression.match(name)
        if match is not None:
            return _Keyword(split, match[0])
    return None


def _with_wildcards_for_numbers(pattern: str) -> str:
    """Return a pattern with `*` for each number, so that it fits files with other numbers, too.

    For example, `dev_2024/` becomes `dev_*/`.
    """
    return _DIGITS.sub("*", pattern).replace("**", "*")
