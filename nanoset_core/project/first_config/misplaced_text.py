"""Find text in a project's folder that no build would read, because it is outside of `raw`."""

from __future__ import annotations

import os
import re
from pathlib import Path

from nanoset_core.text.files.endings import is_text, is_txt_or_csv

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
    r".*(token|tekken|vocab|merges|config|schema|special|package|template).*\.json", re.IGNORECASE
)
"""JSON files that are no text: those of tokenizers, models and editors."""


def text_beside(folder: Path, *, has_corpora: bool, tokenizer: Path | None = None) -> list[str]:
    """Return the text files that the user may have put at the wrong place in a new project.

    Text is read from the subfolder `raw`. `nanoset init` mentions text at other places:

        raw/web/a.jsonl      at the right place
        texts/b.jsonl        mentioned
        texts/c.txt          mentioned only if `raw` has no text at all
        requirements.txt     not mentioned: a .txt or .csv file here is often something else
        bpe.json             not mentioned if it is the tokenizer

    Args:
        folder: The project's folder.
        has_corpora: Whether `raw` has text.
        tokenizer: The file of the project's tokenizer, which may have any name.

    Returns:
        Paths relative to the project's folder, sorted, such as ["texts/b.jsonl"].
    """
    files = []
    for file in _files_outside_raw(folder):
        is_in_subfolder = file.parent != folder
        may_be_txt = is_in_subfolder and not has_corpora  # whether .txt and .csv files count
        is_meant_as_text = _is_meant_as_text(file.name, may_be_txt=may_be_txt)
        if is_meant_as_text and not _is_same_file(file, tokenizer):
            files.append(file.relative_to(folder).as_posix())
    return sorted(files)


def _is_same_file(file: Path, tokenizer: Path | None) -> bool:
    """Return whether a file is the tokenizer, which may be given by another path or a link.

    Args:
        file: The file. If it is a link, the target may be missing, or the link itself.
        tokenizer: The file of the tokenizer, if there is one.
    """
    if tokenizer is None:
        return False
    # `Path.resolve` would raise an error for a link that leads back to itself.
    return os.path.realpath(file) == os.path.realpath(tokenizer)


def _files_outside_raw(folder: Path) -> list[Path]:
    """Return the files in a project's folder, and up to two levels below, where text may be.

    Raw text, which is at the right place, and outputs are left out, and so are hidden files:

        notes.txt             returned
        texts/en/a.jsonl      returned
        raw/web/a.jsonl       left out
        .git/config           left out

    A folder may contain millions of files, so the search ends after about 10,000.

    Args:
        folder: The project's folder.
    """
    files = []
    folders_to_search = [folder]
    n_entries = 0
    while folders_to_search and n_entries < _MOST_ENTRIES:
        entries = _entries_of(folders_to_search.pop())
        n_entries += len(entries)
        for entry in entries:
            if entry.name.startswith("."):
                continue
            path = Path(entry.path)
            is_folder = entry.is_dir(follow_symlinks=False)
            if not is_folder:
                files.append(path)
            elif _is_searched(path, folder):
                folders_to_search.append(path)
    return files


def _entries_of(folder: Path) -> list[os.DirEntry[str]]:
    """Return the files and folders in a folder; none if it is another user's and not readable."""
    try:
        return list(os.scandir(folder))
    except OSError:
        return []


def _is_searched(path: Path, project_folder: Path) -> bool:
    """Return whether to look for misplaced text in a folder of a project. For example:

        texts, texts/en      yes
        texts/en/old         no: three levels deep
        raw                  no: text is at the right place there
        data                 yes: the folder of outputs itself
        data/datasets        no: it contains outputs

    Args:
        path: The folder, in the project's folder or below it.
        project_folder: The project's folder.
    """
    depth = len(path.relative_to(project_folder).parts)  # 2 for texts/en
    is_raw = path == project_folder / RAW
    has_outputs = path.parent == project_folder / _OUTPUTS
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
