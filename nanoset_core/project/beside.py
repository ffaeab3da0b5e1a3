"""Find text in a project's folder that no build would read, because it is outside of `raw`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from nanoset_core.text.endings import is_text, is_txt_or_csv

_MERGES = "merges.txt"
"""A file of a tokenizer."""
RAW = "raw"
"""The default folder of raw text."""
_OUTPUTS = "data"
"""The default folder of outputs."""
_MOST_ENTRIES = 10_000
"""The search ends after about this many files and folders."""
_DEPTH = 2
"""How many levels of folders below the project's folder are searched."""
_SETTINGS = re.compile(
    r".*(token|vocab|merges|config|schema|special|package|template).*\.json", re.IGNORECASE
)
"""JSON files that are no text: those of tokenizers, models and editors."""


def text_beside(folder: Path, *, has_corpora: bool) -> list[str]:
    """Return the text files in a project's folder that are outside of its subfolder `raw`.

    `nanoset init` mentions them, since a user who put text there may expect that it is read.

    Args:
        folder: The project's folder.
        has_corpora: Whether `raw` has text. Otherwise files such as .txt and .csv are mentioned as
            well, if they are in subfolders: the folder itself may have a requirements.txt.

    Returns:
        Paths relative to the project's folder, sorted.
    """
    files = []
    for file in _files_outside_raw(folder):
        is_in_subfolder = file.parent != folder
        may_be_txt = is_in_subfolder and not has_corpora
        if _is_meant_as_text(file.name, may_be_txt=may_be_txt):
            files.append(file.relative_to(folder).as_posix())
    return sorted(files)


def _files_outside_raw(folder: Path) -> Iterator[Path]:
    """Yield the files in a project's folder and two levels below, without raw text and outputs.

    Hidden files and folders are left out. The search ends after about 10,000 entries.

    Args:
        folder: The project's folder.
    """
    unsearched = [folder]
    n_entries = 0
    while unsearched and n_entries < _MOST_ENTRIES:
        current = unsearched.pop()
        try:
            entries = list(os.scandir(current))
        except OSError:
            # A folder that cannot be read is another user's, and not meant for this project.
            continue
        n_entries += len(entries)
        for entry in entries:
            path = Path(entry.path)
            if entry.name.startswith(".") or path == folder / RAW:
                continue
            if not entry.is_dir(follow_symlinks=False):
                yield path
                continue
            # Tables below the folder for outputs may be outputs themselves.
            depth = len(path.relative_to(folder).parts)
            if depth <= _DEPTH and current != folder / _OUTPUTS:
                unsearched.append(path)


def _is_meant_as_text(name: str, *, may_be_txt: bool) -> bool:
    """Return whether a file looks like text to build from, rather than like a settings file.

    Args:
        name: Name of the file.
        may_be_txt: Whether .txt and .csv files count as text.
    """
    if is_text(name):
        return not _SETTINGS.fullmatch(name)
    return may_be_txt and is_txt_or_csv(name) and name != _MERGES
