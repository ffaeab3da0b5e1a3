"""Names of files that another file tells: they must stay where that file may point."""

from __future__ import annotations


def is_inside(name: object) -> bool:
    """Whether a name, taken from a file, is a path that stays below the folder that it is joined to.

    Parts between forward slashes, none of them empty, `.` or `..`; no NUL, and nothing that UTF-8 cannot carry.
    """
    if not isinstance(name, str) or "\0" in name or (not name.isascii() and not _is_utf8(name)):
        return False
    return not {"", ".", ".."} & set(name.split("/"))


def _is_utf8(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True
