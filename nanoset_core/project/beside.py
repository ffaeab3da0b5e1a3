"""Find text in a project's folder that no build would read, because it is outside of `raw`."""

from __future__ import annotations

import os
import re
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

    Files such as .txt and .csv are only mentioned if `raw` has no text at all, and if they are in
    subfolders: a project's folder may have a requirements.txt.

    Args:
        folder: The project's folder.
        has_corpora: Whether `raw` has text.

    Returns:
        Paths relative to the project's folder, sorted.
    """
    files = []
    # Folders that were not searched yet, each with its number of levels below the project's folder.
    unsearched = [(folder, 0)]
    n_entries = 0
    while unsearched and n_entries < _MOST_ENTRIES:
        current, depth = unsearched.pop()
        try:
            entries = list(os.scandir(current))
        except OSError:
            # A folder that cannot be read is another user's, and not meant for this project.
            continue
        n_entries += len(entries)
        for entry in entries:
            is_hidden = entry.name.startswith(".")
            is_raw_folder = depth == 0 and entry.name == RAW
            if is_hidden or is_raw_folder:
                continue
            path = Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                # Tables below the folder for outputs may be outputs themselves.
                if depth < _DEPTH and current != folder / _OUTPUTS:
                    unsearched.append((path, depth + 1))
            elif _is_meant_as_text(entry.name, may_be_txt=depth > 0 and not has_corpora):
                files.append(path.relative_to(folder).as_posix())
    return sorted(files)


def _is_meant_as_text(name: str, *, may_be_txt: bool) -> bool:
    """Return whether a file looks like text to build from, rather than like a settings file.

    Args:
        name: Name of the file.
        may_be_txt: Whether .txt and .csv files count as text.
    """
    if is_text(name):
        return not _SETTINGS.fullmatch(name)
    return may_be_txt and is_txt_or_csv(name) and name != _MERGES
