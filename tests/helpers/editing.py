"""Replace parts of texts and files, and fail if they are not there.

A plain `text.replace(old, new)` returns the same text if `old` is missing. After a setting was
renamed, for example, a test would silently use the settings that it meant to change.
"""

from __future__ import annotations

from pathlib import Path
from typing import AnyStr


def edit(file: Path, old: AnyStr, new: AnyStr, count: int = -1) -> None:
    """Replace a part of a file.

    For example, `edit(config_file, "seed: 7", "seed: 8")` changes a setting.

    Args:
        file: The file.
        old: What is replaced; text, or bytes for a file that is not text.
        new: What takes its place.
        count: How many occurrences are replaced; by default all.
    """
    if isinstance(old, bytes):
        file.write_bytes(edited(file.read_bytes(), old, new, count))
    else:
        file.write_text(edited(file.read_text(), old, new, count))


def edited(text: AnyStr, old: AnyStr, new: AnyStr, count: int = -1) -> AnyStr:
    """Return a text, or bytes, with one part replaced by another.

    Args:
        text: The text, which must contain `old`.
        old: What is replaced.
        new: What takes its place.
        count: How many occurrences are replaced; by default all.
    """
    assert old in text, f"there is no {old!r} to be replaced in {text!r}"
    return text.replace(old, new, count)
