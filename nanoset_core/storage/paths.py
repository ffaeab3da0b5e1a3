"""Checks of file names that were read from files or listings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from nanoset_core.errors import ConfigError

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_NO_PATH = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""Characters that no path has; U+DC80 to U+DCFF stand for bytes that are not UTF-8."""
UTF_8_LOCALE = "set PYTHONUTF8=1, or a locale of UTF-8 such as LC_ALL=C.UTF-8"
_MOST_PART_BYTES, _MOST_LENGTH = 255, 4096


def is_inside(name: object) -> bool:
    """Return whether a name is a path that stays below the folder that it is joined to.

    Parts between forward slashes, none of them empty, `.` or `..`; no NUL, nothing that UTF-8
    cannot carry, and nothing longer than file systems take.
    """
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        parts = name.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    return (
        not {b"", b".", b".."} & set(parts)
        and max(map(len, parts)) <= _MOST_PART_BYTES
        and len(name) < _MOST_LENGTH
    )


def has_control_characters(name: str) -> bool:
    """Return whether a name would control a terminal that it is shown on, or take more than one
    line there.
    """
    return _CONTROL.search(name) is not None


def expanded(path: str | os.PathLike[str], where: object) -> Path:
    """Return a path with `~` and `~user` as the folder that they stand for.

    Raises:
        ConfigError: there is no such user, or no file system can hold such a name; it says `where`.
    """
    text = os.fspath(path)
    if _NO_PATH.search(text) is not None:
        expected = "a path without NUL and without halves of surrogate pairs"
        raise ConfigError(
            "this cannot be a path",
            where=where,
            found=ascii(text),
            expected=expected,
            remedy="correct it",
        )
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        remedy = "write the folder's whole path, or put ./ before a name that begins with ~"
        raise ConfigError(
            "the home folder is not known", where=where, found=text, remedy=remedy
        ) from error


def is_utf_8(path: str | os.PathLike[str]) -> bool:
    """Return whether a path that the system gave is the same in UTF-8, in which it is kept in
    files.
    """
    name = os.fspath(path)
    try:
        return name.encode() == os.fsencode(name)
    except UnicodeEncodeError:
        return False


def check_utf_8(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for a path that is to be kept in files, and cannot be."""
    if not is_utf_8(path):
        what, found = (
            "this path is not UTF-8, and would be written wrongly into other files",
            repr(os.fsencode(path)),
        )
        remedy = "rename it, or the folder in it that is not" if is_locale_utf_8() else UTF_8_LOCALE
        raise ConfigError(what, where=path, found=found, remedy=remedy)


def is_locale_utf_8() -> bool:
    """Return whether the system's encoding of paths is UTF-8."""
    return sys.getfilesystemencoding() == "utf-8"
