"""Find the files that nanoset.yaml names in addition to raw text, such as lists of ids.

A name may be that of a file or folder, an address in a bucket, or a pattern. For example,
`lists/*/ids.txt` names lists/2023/ids.txt and lists/2024/ids.txt.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from nanoset_core.errors import InputError, MissingError
from nanoset_core.project.project import Project
from nanoset_core.records.digests import digest_of
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location, is_remote, remote_location
from nanoset_core.storage.places import is_here, takes_requests
from nanoset_core.storage.remote_path import RemotePath
from nanoset_core.text.files.choice import matches
from nanoset_core.text.files.listing import folders_of, list_below, natural_key, stat_file
from nanoset_core.text.inventory.fingerprint_memory import FingerprintMemory
from nanoset_core.text.inventory.fingerprints import fingerprint

_MEMORY_FOLDER = ".given"
"""Folder, below `views` in the output root, that remembers digests of local files.

A file is read again only if it has changed since.
"""


@dataclass(frozen=True)
class GivenFiles:
    """Files of one folder, with a digest of their content."""

    folder: Location
    """The folder, on a disk or in a bucket."""
    stats: tuple[FileStat, ...]
    """The files, in natural order of their names."""
    memory_path: Path
    """File that stores the digests of local files for later calls."""

    @cached_property
    def digest(self) -> str:
        """Digest of the bytes of all files; in a bucket, of the ETags of all objects.

        Its first use reads local files that have changed since an earlier call, and stores their
        digests. Before the first build, `nanoset status` only needs the names. So it reads and
        writes nothing.

        Raises:
            InputError: A file cannot be read.
        """
        return digest_of(_content_digests(self.folder, self.stats, self.memory_path))

    def check_readable(self) -> None:
        """Raise an error if a file cannot be read. This computes the digest."""
        _ = self.digest

    @property
    def names(self) -> tuple[str, ...]:
        """Paths below the folder."""
        return tuple(stat.path for stat in self.stats)


def given_files(project: Project, pattern: str, key: str) -> GivenFiles:
    """Return the files that a user has named in the settings.

    The user may have given the path of a file or folder, or a pattern: `lists/*.txt` stands for the
    files of the folder `lists` that end in `.txt`. Their digest changes with every byte in these
    files, and if there are more or fewer files. Then outputs that were made from them are built
    again.

    Args:
        project: The project.
        pattern: The path or pattern.
        key: The setting that has it, such as `views.best.include`, for messages.

    Raises:
        ConfigError: The pattern is not a valid path or address.
        MissingError: No file matches the pattern.
        InputError: The folder cannot be read, or a folder in it is named like a file that is read.
        StorageError: The bucket cannot be read.
    """
    divided_pattern = _divide_pattern(project, pattern, key)  # the folder lists, and ["*.txt"]
    listing = _list_matching(divided_pattern)
    _check_folders(listing, divided_pattern.names_below)  # a folder may be named like a file
    if not listing.stats:
        raise MissingError(
            "no file matches this path or pattern",
            where=f"{project.config.file}: {key}",
            found=pattern,
            remedy=f"correct {key}, or put the files there",
        )
    stats = tuple(sorted(listing.stats, key=lambda stat: natural_key(stat.path)))
    return GivenFiles(listing.folder, stats, _memory_path(project, listing.folder))


def is_given_file(project: Project, pattern: str, key: str, file: Path) -> bool:
    """Return whether a pattern in the settings stands for a file, which need not exist yet.

        pattern          file
        lists/*.txt      lists/new.txt        True
        lists            lists/new.txt        True: all files of the folder are read
        lists/old.txt    lists/new.txt        False
        lists/old.txt    link.txt             True if link.txt is a symbolic link to lists/old.txt

    Args:
        project: The project. A relative pattern starts in the folder of its settings.
        pattern: The path or pattern. The address of a bucket stands for no local file.
        key: The setting that has it, such as `views.best.exclude`, for messages.
        file: Absolute path of the file.

    Raises:
        ConfigError: The pattern is not a valid path or address.
    """
    if is_remote(pattern):
        return False
    # A folder may have several paths, by symbolic links. So compare paths without links. But keep
    # the name of the file, which may be a link itself: it is a file of this folder all the same.
    path = file.parent.resolve() / file.name

    if not has_wildcard(pattern):
        given_path = project.config.local(pattern, key)  # without links
        is_the_file = file.resolve() == given_path
        is_in_the_folder = path.is_relative_to(given_path)
        return is_the_file or is_in_the_folder

    divided_pattern = _divide_pattern(project, pattern, key)  # the folder lists, and ["*.txt"]
    folder = divided_pattern.folder
    if not is_here(folder) or not path.is_relative_to(folder):
        return False
    return matches(path.relative_to(folder).parts, divided_pattern.names_below)


class _DividedPattern(NamedTuple):
    """A pattern, divided into a folder that is listed and what must match below it."""

    folder: Location
    """The folder."""
    names_below: list[str]
    """The names below the folder, such as `["*", "ids.txt"]`; the last may be that of a folder.
    Empty if the pattern is the address of a bucket, whose objects are all meant.
    """


class _PatternListing(NamedTuple):
    """What a pattern matches in a folder."""

    folder: Location
    """The folder."""
    stats: list[FileStat]
    """The files that match."""
    folders: set[str]
    """Paths of the folders that match."""


def _list_matching(pattern: _DividedPattern) -> _PatternListing:
    """Return the files and folders that a pattern stands for; none if its folder does not exist.

    A pattern has been divided into a folder, here `data`, and what is below it:

        data and `*/ids.txt`    the files `ids.txt` in all folders of `data`
        data and `ids.txt`      this file
        data and `lists`        all files in this folder
        data and nothing        all files in `data`

    Args:
        pattern: The divided pattern.
    """
    path = "/".join(pattern.names_below)
    if has_wildcard(path):
        return _list_by_wildcards(pattern.folder, pattern.names_below)
    if not path:
        return _list_folder(pattern.folder)
    if (pattern.folder / path).is_file():
        stats = [stat_file(pattern.folder, path)]
        return _PatternListing(pattern.folder, stats, folders=set())
    return _list_folder(pattern.folder / path)


def _list_folder(folder: Location) -> _PatternListing:
    """Return all files and folders below a folder, none if it does not exist.

    Args:
        folder: The folder, on a disk or in a bucket.
    """
    if not folder.is_dir():
        return _PatternListing(folder, [], set())
    stats, folders = list_below(folder)
    return _PatternListing(folder, stats, folders)


def _list_by_wildcards(folder: Location, names: Sequence[str]) -> _PatternListing:
    """Return the files and folders below a folder whose paths match.

    Args:
        folder: The folder. If it does not exist, nothing matches.
        names: The names of a path, with wildcards, such as `["*", "ids.txt"]`.
    """
    listing = _list_folder(folder)
    stats = [stat for stat in listing.stats if matches(stat.path.split("/"), names)]
    folders = {path for path in listing.folders if matches(path.split("/"), names)}
    return _PatternListing(folder, stats, folders)


def _check_folders(listing: _PatternListing, names: Sequence[str]) -> None:
    """Refuse a folder that is named like a file, unless files in it are read.

    For example, a user wants all Parquet files in a folder, and writes `*.parquet`. Among them is a
    table that Spark has written, which is a folder with files in it:

        ids_1.parquet                     a file: read
        ids_2.parquet/part-00000.zstd     `ids_2.parquet` is a folder: not read

    Without an error, the second table would be left out, and nobody would notice.

    Args:
        listing: The files and folders that match the pattern.
        names: The names in the pattern, such as `["lists", "*.parquet"]`; empty for all files of a
            folder.

    Raises:
        InputError: There is such a folder.
    """
    # Endings of files: those that were found, and that of the pattern. Perhaps it matches only
    # folders.
    file_paths = [stat.path for stat in listing.stats]
    last_name = names[-1:]  # ["*.parquet"]
    endings = _file_endings([*file_paths, *last_name])

    folders_without_files = listing.folders - folders_of(file_paths)
    for path in sorted(folders_without_files, key=natural_key):
        if PurePosixPath(path).suffix in endings:
            raise InputError(
                "a folder has the name of a file, and nothing in it is read",
                where=listing.folder / path,
                expected="a file",
                remedy=f"move the folder away, or name the files in it: {path}/*",
            )


def _file_endings(paths: Iterable[str]) -> set[str]:
    """Return the endings of some paths: `["a.txt", "b/c.txt", "README"]` → `{".txt"}`."""
    endings = {PurePosixPath(path).suffix for path in paths}
    return endings - {""}


def _divide_pattern(project: Project, pattern: str, key: str) -> _DividedPattern:
    """Divide a pattern for files into a folder, which can be listed, and what has to match in it.

        data/*/ids.txt           folder `data`, below it `*/ids.txt`
        data/ids.txt             folder `data`, below it `ids.txt`
        s3://bucket/data/*.txt   folder `s3://bucket/data`, below it `*.txt`

    Args:
        project: The project. A local pattern is relative to the folder of its settings.
        pattern: A path or an address, in which `*`, `?` and `[` stand for any characters.
        key: The setting that has the pattern, for messages.

    Raises:
        ConfigError: The pattern is not a valid path or address.
    """
    if is_remote(pattern):
        return _divide_address(project, pattern, key)
    names = pattern.rstrip("/").split("/")
    n_folder_names = _folder_name_count(names)
    folder_path = "/".join(names[:n_folder_names])
    if not folder_path:  # as in "/ids.txt" and "ids.txt"
        folder_path = "/" if pattern.startswith("/") else "."
    folder = project.config.local(folder_path, key)
    return _DividedPattern(folder, names[n_folder_names:])


def _divide_address(project: Project, pattern: str, key: str) -> _DividedPattern:
    """Divide the address of objects in a bucket into a folder, which can be listed, and the rest.

        s3://bucket/data/*.txt    folder `s3://bucket/data`, below it `*.txt`
        s3://bucket/*/ids.txt     folder `s3://bucket`, below it `*/ids.txt`

    Args:
        project: The project. Its settings say how the bucket is reached.
        pattern: The address.
        key: The setting that has the address, for messages.

    Raises:
        ConfigError: The address is not valid.
    """
    scheme, _, path = pattern.partition("://")
    names = path.rstrip("/").split("/")
    # The first name is that of the bucket, which always belongs to the folder.
    n_folder_names = max(1, _folder_name_count(names))
    address = f"{scheme}://{'/'.join(names[:n_folder_names])}"
    folder = _remote_folder(project, address, key)
    return _DividedPattern(folder, names[n_folder_names:])


def _remote_folder(project: Project, address: str, key: str) -> RemotePath:
    """Return a folder in a bucket from which files are only read.

    Args:
        project: The project. Its settings say how the bucket is reached.
        address: Address of the folder, such as s3://bucket/data.
        key: The setting that has the address, for messages.

    Raises:
        ConfigError: The address is not valid.
    """
    location = remote_location(
        address,
        where=f"{project.config.file}: {key}",
        storage=project.config.storage,
        only_read=True,
    )
    # Whether the content of a file has changed is seen by its ETag, a digest that the bucket
    # reports. So files need not be read for that.
    return RemotePath(location.store, location.path, by_etag=True)


def _folder_name_count(names: Sequence[str]) -> int:
    """Return how many names of a path are those of the folder that is listed.

    They are the names before the first wildcard. Without any wildcard, they are all but the last.
    For example, `["data", "*", "ids.txt"]` → 1, and `["data", "lists", "ids.txt"]` → 2.
    """
    for index, name in enumerate(names):
        if has_wildcard(name):
            return index
    return len(names) - 1


def has_wildcard(text: str) -> bool:
    """Return whether a text contains a character that matches more than itself."""
    return any(character in text for character in "*?[")


def _content_digests(
    folder: Location, stats: Sequence[FileStat], memory_path: Path
) -> list[list[str]]:
    """Return digests of the content of files, without reading those that have not changed.

    Digests of earlier calls are stored together with the size and time of each file. If a file
    still has the same size and time, its stored digests are returned. All others are read and
    hashed.

    Args:
        folder: The folder of the files.
        stats: Path, size and time of each file.
        memory_path: The file that stores the digests of local files.

    Returns:
        For each file, the digests of its pieces. A large file is hashed in several pieces.
    """
    memory = FingerprintMemory(memory_path)  # of earlier calls
    digests = []
    for stat in stats:
        pieces = memory.recall(stat)
        if pieces is None:  # a new or changed file, or an object in a bucket
            pieces = fingerprint(folder, stat)
            memory.note(stat, pieces)
        digests.append([piece.digest for piece in pieces])

    # The digest of an object follows from its ETag, without reading it: nothing has to be saved.
    if not takes_requests(folder):
        memory.save({stat.path for stat in stats})
    return digests


def _memory_path(project: Project, folder: Location) -> Path:
    """Return the file that stores the digests of local files, of which each folder has its own.

    Args:
        project: The project, whose output root has the file.
        folder: The folder of the files.
    """
    memory_folder = project.outputs.folder / "views" / _MEMORY_FOLDER / digest_of(str(folder))
    return memory_folder / ".fingerprints.json"
