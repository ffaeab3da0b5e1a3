"""Check paths and file names that come from a user, from other files, or from listings."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from nanoset_core.errors import ConfigError

_CONTROL_CHARACTER = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_IMPOSSIBLE_CHARACTER = re.compile("[\0\ud800-\udc7f\udd00-\udfff]")
"""A character that no path contains.

The surrogates U+DC80 to U+DCFF are possible: Python represents bytes by them that are not UTF-8.
"""
UTF_8_LOCALE = "set PYTHONUTF8=1, or a locale of UTF-8 such as LC_ALL=C.UTF-8"
"""Remedy for a system whose encoding of paths is not UTF-8."""
_MAX_PART_BYTES = 255
"""Bytes of a file name that common file systems can store."""
_MAX_LENGTH = 4096
"""Characters that a path must not reach; a limit of Linux."""
_VARIABLE_IN_BRACES = re.compile(r"\$\{\w+\}")
_VARIABLE = re.compile(r"\$\{\w+\}|(?<![^/])\$[A-Za-z_]\w*(?![^/])")
"""A variable of a shell: ${DATA}, or $DATA as a whole part of a path."""
_NAMELESS_PARTS = {b"", b".", b".."}
"""Parts of a path that do not name a file or folder."""


def is_inside(name: object) -> bool:
    """Return whether a name is a relative path that stays below the folder that it is joined to.

    Names in a downloaded file may be forged, so that they lead to other files of the machine:

        web/a.bin        True
        ../keys          False: it leads out of the folder
        /etc/passwd      False: it is absolute
        web//a.bin       False: only single slashes, so that a file has one name

    The name must also be one that file systems can store.

    Args:
        name: The name; anything but a text is not a path.
    """
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        parts = name.encode().split(b"/")  # [b"web", b"a.bin"]
    except UnicodeEncodeError:
        return False  # half of a surrogate pair, which no path contains

    # An empty part comes from a slash at the start, which makes the path absolute, from one at the
    # end, or from two slashes in a row. "." and ".." lead to the folder itself, or out of it.
    has_nameless_part = not _NAMELESS_PARTS.isdisjoint(parts)
    if has_nameless_part:
        return False

    # File systems limit the bytes of each part, and Linux the length of the path.
    longest_part = max(parts, key=len)
    return len(longest_part) <= _MAX_PART_BYTES and len(name) < _MAX_LENGTH


def nearest_existing(path: Path) -> Path:
    """Return a path, or the nearest one above it that exists, in which it can be created.

    For /data/new/outputs, this is /data if there is no /data/new.

    Args:
        path: The path. A relative one begins at the working directory.
    """
    # `Path.exists` would raise an error below a folder that this user may not look into.
    while not os.path.exists(path):
        path = path.parent
    return path


def has_control_characters(name: str) -> bool:
    """Return whether a name contains characters that control a terminal, such as a line feed.

    If such a name is printed in a message, it can hide the rest of the message.

    Args:
        name: A path or file name. The characters U+0000 to U+001F and U+007F to U+009F are looked
            for.
    """
    return _CONTROL_CHARACTER.search(name) is not None


def expanded(path: str | os.PathLike[str], where: object) -> Path:
    """Return a path with `~` and `~user` replaced by a user's home folder.

    For example, `~/data` gives `/home/ada/data`.

    Args:
        path: The path.
        where: Place of the setting with the path, for the error.

    Raises:
        ConfigError: There is no such user, or no file system can store the path.
    """
    text = os.fspath(path)
    if _IMPOSSIBLE_CHARACTER.search(text) is not None:
        raise ConfigError(
            "this cannot be a path",
            where=where,
            found=ascii(text),
            expected="a path without NUL and without halves of surrogate pairs",
            remedy="correct it",
        )
    if not text.startswith("~"):
        return Path(text)  # in the path ./~a, which pathlib calls ~a, the name of a folder is ~a
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise ConfigError(
            "the home folder is not known",
            where=where,
            found=text,
            remedy="write the folder's whole path, or put ./ before a name that begins with ~",
        ) from error


def with_home(path: str | os.PathLike[str], where: object) -> Path:
    """Return a path with the home folder of this user in place of `~`, and of no other user.

        ~/data    /home/ada/data
        ~a        ~a, as it is

    This is for paths that may come from a user or from another part of the program. The latter has
    no `./` before names: a file ~a.bin in the working directory is named ~a.bin, and not ./~a.bin.

    Args:
        path: The path.
        where: Place of the setting with the path, for the error.

    Raises:
        ConfigError: No file system can store the path, or the home folder is not known.
    """
    text = os.fspath(path)
    is_in_home = text == "~" or text.startswith("~/")
    if text.startswith("~") and not is_in_home:
        text = f"./{text}"
    return expanded(text, where)


def user_cache_folder() -> Path | None:
    """Return the folder in which programs store what they can compute or download again.

    It is `$XDG_CACHE_HOME`; if this variable is not set, `~/.cache`.

    Returns:
        The folder, which may not exist; None if the user has no home folder.
    """
    configured = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    try:
        return Path(configured).expanduser()
    except RuntimeError:
        return None


def check_no_variable(path: str, where: object) -> None:
    """Check that a user does not expect a variable such as ${DATA} to be replaced in a path.

    A shell would do so, but settings are used as they are written. Without this check, a folder
    with the name ${DATA} would be created.

    Args:
        path: A path such as "${DATA}/outputs" or "$DATA/outputs", or an address. In addresses, only
            variables in braces are found, since Azure has containers with the name $web.
        where: Place of the setting, for the error.

    Raises:
        ConfigError: The path has a variable.
    """
    pattern = _VARIABLE_IN_BRACES if "://" in path else _VARIABLE
    variable = pattern.search(path)
    if variable is not None:
        raise ConfigError(
            "variables are not replaced in paths",
            where=where,
            found=variable.group(),
            expected="a path as it is, which may be relative or begin with ~",
            remedy="write the value of the variable",
        )


def is_utf_8(path: str | os.PathLike[str]) -> bool:
    r"""Return whether a path from the system can be written to files, which are in UTF-8.

    On Linux, a file name is a series of bytes. Python turns it into text by the encoding of the
    system:

        bytes b"caf\xc3\xa9" (UTF-8), encoding UTF-8      "café": True
        bytes b"caf\xe9" (Latin-1), encoding UTF-8        "caf\udce9": False, it is not a valid text
        bytes b"caf\xc3\xa9" (UTF-8), encoding Latin-1    "cafÃ©": False, it is another name

    Args:
        path: The path, as functions such as `os.listdir` return it.
    """
    name = os.fspath(path)
    try:
        bytes_on_disk = os.fsencode(name)
        return name.encode() == bytes_on_disk
    except UnicodeEncodeError:
        return False


def check_utf_8(path: str | os.PathLike[str]) -> None:
    """Check that a path can be written to other files, which are in UTF-8.

    If not, the error says what to do, which depends on the reason:

        the name of the file or a folder is not UTF-8    rename it
        Python uses another encoding than UTF-8          set PYTHONUTF8=1, or another locale

    Args:
        path: The path, as functions such as `os.listdir` return it.

    Raises:
        ConfigError: The path has bytes that are not UTF-8.
    """
    if is_utf_8(path):
        return
    if is_locale_utf_8():
        # Python has read the bytes of the path as UTF-8, so they are not.
        remedy = "rename it, or the folder above it whose name is not UTF-8"
    else:
        # The bytes may be UTF-8, and the locale makes Python read them as another encoding.
        remedy = UTF_8_LOCALE
    raise ConfigError(
        "this path is not UTF-8, and would be written wrongly into other files",
        where=path,
        found=repr(os.fsencode(path)),
        remedy=remedy,
    )


def is_locale_utf_8() -> bool:
    """Return whether Python encodes paths as UTF-8 in this process, as the locale decides."""
    return sys.getfilesystemencoding() == "utf-8"
