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
        has_corpora: Whether `raw` has text.

    Returns:
        Paths relative to the project's folder, sorted.
    """
    files = []
    for file in _files_outside_raw(folder):
        # Files such as .txt and .csv are often no training data, such as requirements.txt. Mention
        # them only if there is no other text, and if they are in a subfolder.
        is_in_subfolder = file.parent != folder
        counts_if_txt = is_in_subfolder and not has_corpora
        if _is_meant_as_text(file.name, may_be_txt=counts_if_txt):
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
        entries = _entries_of(unsearched.pop())
        n_entries += len(entries)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder:
                yield path
            elif _is_searched(path, folder):
                unsearched.append(path)


def _entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Return the files and folders in a folder; none if it is another user's and not readable."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _is_searched(path: Path, project_folder: Path) -> bool:
    """Return whether a folder may contain text that the user put at the wrong place.

    Args:
        path: The folder, in the project's folder or below it.
        project_folder: The project's folder.
    """
    # Raw text is at the right place. The folder of outputs itself is searched, but the folders in
    # it contain outputs.
    is_raw = path == project_folder / RAW
    has_outputs = path.parent == project_folder / _OUTPUTS
    depth = len(path.relative_to(project_folder).parts)  # 1 for a folder in the project's folder
    return depth <= _DEPTH and not is_raw and not has_outputs


def _is_meant_as_text(name: str, *, may_be_txt: bool) -> bool:
    """Return whether a file looks like text to build from, rather than like a settings file.

    Args:
        name: Name of the file.
        may_be_txt: Whether .txt and .csv files count as text.
    """
    if is_text(name):
        return not _SETTINGS.fullmatch(name)
    return may_be_txt and is_txt_or_csv(name) and name != _MERGES
