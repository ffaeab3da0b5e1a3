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

from nanoset_core.storage.location import Location, RemoteFolder
from nanoset_core.text.choice import first_positions, matches, next_positions
from nanoset_core.text.endings import is_text
from nanoset_core.text.listing import FileStat, all_entries, check_no_loop, natural_key


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
    """Paths of what is not a file, and was probably not meant."""


def find_matches(pattern: Location) -> PatternMatches:
    """Return what a pattern matches; a path without wildcards matches itself.

    Raises:
        InputError: A folder cannot be read, or a link leads back to a folder above it.
        StorageError: A bucket cannot be reached, or refuses.
    """
    if isinstance(pattern, RemoteFolder):
        return PatternMatches(_remote_matches(pattern), [])
    return _local_matches(pattern)


def _local_matches(pattern: Path) -> PatternMatches:
    """Return what a pattern of a command line matches on this machine.

    A pattern with `**` is expected to match folders as well as files. Of these it returns only
    folders that are named like a file of text, and contain no file that matches.

    Args:
        pattern: A path, in which `*`, `?`, `[…]` and `**` are wildcards.
    """
    paths = sorted(_matching_paths(pattern), key=lambda path: natural_key(str(path)))
    files = [path for path in paths if path.is_file()]
    others = [path for path in paths if not path.is_file()]
    if "**" in pattern.parts:
        folders_with_files: set[Path] = set()
        for file in files:
            folders_with_files.update(file.parents)
        others = [path for path in others if is_text(path.name) and path not in folders_with_files]
    return PatternMatches(
        files=[ListedFile(path.absolute(), None) for path in files],
        others=[str(path) for path in others],
    )


def _matching_paths(pattern: Path) -> list[Path]:
    """Return all paths that match a pattern of a command line.

    Each folder is listed once. `glob.glob` lists it once for each way in which several `**` can
    match its path, which can take hours.

    Args:
        pattern: A path, in which `*`, `?`, `[…]` and `**` are wildcards.

    Raises:
        InputError: A folder cannot be read, or a link leads back to a folder above it.
    """
    n_fixed = _count_fixed_parts(pattern.parts)
    if n_fixed == len(pattern.parts):
        return [pattern] if os.path.lexists(pattern) else []

    folder = Path(*pattern.parts[:n_fixed])
    wildcards = pattern.parts[n_fixed:]
    if not folder.is_dir():
        return []
    return list(_matches_below(folder, wildcards, first_positions(wildcards), (folder.stat(),)))


def _matches_below(
    folder: Path,
    pattern: Sequence[str],
    positions: frozenset[int],
    ancestors: tuple[os.stat_result, ...],
) -> Iterator[Path]:
    """Yield the paths in a folder, and in all folders below it, that match a pattern.

    Args:
        folder: The folder.
        pattern: The parts of the pattern between slashes, such as `("**", "*.jsonl")`.
        positions: Indices of the parts that a name in the folder may match. With `**`, which
            matches any number of folders, there can be several.
        ancestors: Status of the folder and of every folder that leads to it, by which a link back
            to one of them is found.
    """
    for entry in all_entries(folder):
        path = folder / entry.name
        positions_below = next_positions(positions, entry.name, pattern)
        if len(pattern) in positions_below:  # all parts have been matched
            yield path

        # There can be matches below a folder only if parts of the pattern remain.
        if positions_below - {len(pattern)} and entry.is_dir():
            stat = entry.stat()
            check_no_loop(entry.path, stat, ancestors)
            yield from _matches_below(path, pattern, positions_below, (*ancestors, stat))


def _remote_matches(pattern: RemoteFolder) -> list[ListedFile]:
    """Return the files in a bucket that a pattern matches, in natural order.

    Args:
        pattern: The bucket, and a path in it with wildcards.
    """
    # List the bucket below the folder before the first wildcard.
    parts = pattern.path.split("/")
    n_fixed = _count_fixed_parts(parts)
    wildcards = parts[n_fixed:]
    if not wildcards:
        return []  # a path without wildcards would have been found as a file or folder
    folder = replace(pattern, path="/".join(parts[:n_fixed]))
    stats = [FileStat(*stored) for stored in folder.files()]

    matching = [stat for stat in stats if matches(stat.path.split("/"), wildcards)]
    matching.sort(key=lambda stat: natural_key(stat.path))
    return [ListedFile(folder / stat.path, stat) for stat in matching]


def _count_fixed_parts(parts: Sequence[str]) -> int:
    """Return how many parts of a path precede the first one with a wildcard."""
    for number, part in enumerate(parts):
        if glob.has_magic(part):
            return number
    return len(parts)
