"""Find the files that a pattern of a command line matches, on this machine or in a bucket.

In a pattern, `*`, `?` and `[…]` match within the name of a file or folder, and `**` matches any
number of folders. As in a shell, names that start with a dot have to be named.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.storage.places import takes_requests
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.text.files.choice import PartialMatch, matches
from nanoset_core.text.files.endings import is_text
from nanoset_core.text.files.listing import all_entries, check_no_loop, natural_key


class ListedFile(NamedTuple):
    """A file that an input names."""

    path: Location
    stat: FileStat | None
    """Its size and times, if a listing returned them."""


class PatternMatches(NamedTuple):
    """What a pattern matches."""

    files: list[ListedFile]
    """In natural order."""
    others: list[str]
    """Paths of what is not a file, and should be reported: the user may expect it to be read."""


def find_matches(pattern: Location) -> PatternMatches:
    """Find the files that a pattern such as `raw/**/*.jsonl` on a command line stands for.

        raw/*.jsonl             raw/a.jsonl, raw/b.jsonl, raw/c.jsonl (a folder: reported)
        s3://bucket/raw/**      every file below raw, in a bucket
        raw/a.jsonl             the file itself: it has no wildcards

    Args:
        pattern: A path, on this machine or in a bucket, in which `*`, `?`, `[…]` and `**` are
            wildcards.

    Returns:
        The files in natural order (a2 before a10), and other paths to report to the user, such as
        folders that are named like files.

    Raises:
        InputError: A folder cannot be read, or a link leads back to a folder above it.
        StorageError: A bucket cannot be reached, or refuses.
    """
    if takes_requests(pattern):
        return PatternMatches(_remote_matches(pattern), others=[])
    return _local_matches(pattern)


def _local_matches(pattern: Path) -> PatternMatches:
    """Find the files on this machine that a pattern of a command line stands for.

    A pattern may also match folders, which are not read. The user should know that, but only if
    this is probably a mistake:

        raw/*     matches the folder raw/old: reported
        raw/**    matches all folders below raw: only those that are named like files, such as
                  raw/web.jsonl, are reported

    Args:
        pattern: A path, in which `*`, `?`, `[…]` and `**` are wildcards.

    Returns:
        The files, and the paths to report.
    """
    paths = sorted(_matching_paths(pattern), key=lambda path: natural_key(str(path)))
    files: list[Path] = []
    others: list[Path] = []
    for path in paths:
        if path.is_file():
            files.append(path)
        else:
            others.append(path)

    matches_all_folders = "**" in pattern.parts
    if matches_all_folders:
        others = _unexpected_folders(others, files)
    return PatternMatches(
        files=[ListedFile(path.absolute(), stat=None) for path in files],
        others=[str(path) for path in others],
    )


def _unexpected_folders(folders: Sequence[Path], files: Sequence[Path]) -> list[Path]:
    """Return the folders that a user has probably taken for files of text.

    The pattern `raw/**` matches everything below `raw`. A folder that is named like a file, and
    below which no file was found, is suspicious:

        raw/old              a folder like others
        raw/web.jsonl        reported, unless it contains files that are read, such as
                             raw/web.jsonl/part-0.jsonl

    Args:
        folders: Folders that a pattern matches.
        files: Files that it matches.
    """
    folders_with_files: set[Path] = set()
    for file in files:
        folders_with_files.update(file.parents)

    unexpected: list[Path] = []
    for folder in folders:
        if is_text(folder.name) and folder not in folders_with_files:
            unexpected.append(folder)
    return unexpected


def _matching_paths(pattern: Path) -> list[Path]:
    """Return all paths that match a pattern such as `raw/**/*.jsonl` of a command line.

    Python's `glob.glob` could do this, too. But with several `**` it lists a folder once for each
    way in which they can match its path, which can take hours. Here each folder is listed once.

        raw/**/*.jsonl    → raw/a.jsonl, raw/web/b.jsonl, raw/web/2024/c.jsonl

    Args:
        pattern: A path, in which `*`, `?`, `[…]` and `**` are wildcards.

    Raises:
        InputError: A folder cannot be read, or a link leads back to a folder above it.
    """
    parts = _divide(pattern.parts)  # the folder raw, and below it ** and *.jsonl
    if not parts.wildcards:
        return [pattern] if os.path.lexists(pattern) else []
    folder = Path(*parts.folder)
    if not folder.is_dir():
        return []
    match = PartialMatch.start(parts.wildcards)  # no name has been compared with them yet
    return list(_matches_below(folder, match, ancestors=(folder.stat(),)))


def _matches_below(
    folder: Path, match_of_folder: PartialMatch, ancestors: tuple[os.stat_result, ...]
) -> Iterator[Path]:
    """Yield the paths in a folder, and in all folders below it, that match a pattern.

    For example, of the folder `raw` and the pattern `*/web/*.jsonl`:

        raw/2024                 matches the start of the pattern: look into it
        raw/2024/web             look into it
        raw/2024/web/a.jsonl     matches the whole pattern: it is a result
        raw/2024/code            does not match: nothing in it is looked at

    Args:
        folder: The folder.
        match_of_folder: How the path of the folder matches the start of the pattern.
        ancestors: Status of the folder and of the folders above it in which files are looked for,
            to notice links back to them.
    """
    for entry in all_entries(folder):
        path = folder / entry.name
        match = match_of_folder.after(entry.name)
        if match.is_complete:
            yield path
        if match.may_continue and entry.is_dir():
            stat = entry.stat()
            check_no_loop(entry.path, stat, ancestors)
            yield from _matches_below(path, match, (*ancestors, stat))


def _remote_matches(pattern: RemotePath) -> list[ListedFile]:
    """Return the files in a bucket that a pattern matches, in natural order.

    For s3://bucket/raw/web/*.jsonl, all files below raw/web are listed, and compared with
    `*.jsonl`.

    Args:
        pattern: The bucket, and a path in it. If it has no wildcards, nothing is looked for: the
            caller has found out that there is no file or folder of this name.
    """
    parts = _divide(pattern.path.split("/"))
    if not parts.wildcards:
        return []
    folder = replace(pattern, path="/".join(parts.folder))  # s3://bucket/raw/web

    matching: list[FileStat] = []
    for file in folder.files():  # such as the path a.jsonl, its size and its times
        if matches(file.path.split("/"), parts.wildcards):
            matching.append(file)
    matching.sort(key=lambda file: natural_key(file.path))
    return [ListedFile(folder / file.path, file) for file in matching]


class _PatternParts(NamedTuple):
    """The parts of a pattern between slashes."""

    folder: Sequence[str]
    """The parts before the first one with a wildcard."""
    wildcards: Sequence[str]
    """The parts from the first one with a wildcard on; none if there is no wildcard."""


def _divide(parts: Sequence[str]) -> _PatternParts:
    """Divide a pattern such as `raw/web/**/*.json` into `raw/web` and `**/*.json`.

    Args:
        parts: The parts of the pattern between slashes.
    """
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            return _PatternParts(parts[:number], parts[number:])
    return _PatternParts(parts, ())
