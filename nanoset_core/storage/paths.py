"""Names of files that another file tells: they must stay where that file may point."""

from __future__ import annotations

import re

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_MOST_PART_BYTES, _MOST_LENGTH = 255, 4096


def is_inside(name: object) -> bool:
    """Whether a name, taken from a file, is a path that stays below the folder that it is joined to.

    Parts between forward slashes, none of them empty, `.` or `..`; no NUL, nothing that UTF-8 cannot carry, and nothing
    longer than file systems take.
    """
    if not isinstance(name, str) or "\0" in name:
        return False
    try:
        parts = name.encode().split(b"/")
    except UnicodeEncodeError:
        return False
    return not {b"", b".", b".."} & set(parts) and max(map(len, parts)) <= _MOST_PART_BYTES and len(name) < _MOST_LENGTH


def has_control_characters(name: str) -> bool:
    """Whether a name would steer a terminal that it is shown on, or take more than one line there."""
    return _CONTROL.search(name) is not None
