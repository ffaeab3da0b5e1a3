"""Text that is in a project's folder but not in its raw folder, where no build would read it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nanoset_core.text.endings import is_text

RAW = "raw"
_OUTPUTS = "data"
_MOST_ENTRIES = 10_000
"""Entries of the project's folder that are looked at."""
_DEPTH = 2
"""Levels of folders that are looked into."""
_SETTINGS = re.compile(
    r".*(token|vocab|merges|config|schema|special|package|template).*\.json", re.IGNORECASE
)
"""JSON files that are no text: those of tokenizers, models and editors."""


def text_beside(folder: Path) -> list[str]:
    """Return the text files in a project's folder that are outside of `raw`, sorted.

    Paths are relative to the project's folder.

    Only names are looked at, in up to two levels of folders. Of `data`, which is for outputs, only
    the files right in it count: tables below it may be outputs.
    """
    files = []
    waiting = [(folder, 0)]
    n_entries = 0
    while waiting and n_entries < _MOST_ENTRIES:
        current, depth = waiting.pop()
        try:
            entries = list(os.scandir(current))
        except OSError:  # another user's folder: nothing in it was meant for this project
            continue
        n_entries += len(entries)
        for entry in entries:
            is_raw = depth == 0 and entry.name == RAW
            if entry.name.startswith(".") or is_raw:
                continue
            path = Path(entry.path)
            if not entry.is_dir(follow_symlinks=False):
                if _is_meant_as_text(entry.name):
                    files.append(path.relative_to(folder).as_posix())
            elif depth < _DEPTH and current != folder / _OUTPUTS:
                waiting.append((path, depth + 1))
    return sorted(files)


def _is_meant_as_text(name: str) -> bool:
    """Return whether a file looks like text to build from, rather than like a settings file."""
    return is_text(name) and not _SETTINGS.fullmatch(name)
