"""Files that nanoset.yaml names in addition to the raw text, such as lists of ids and tables of
attributes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from nanoset_core.errors import InputError, MissingError
from nanoset_core.outputs.manifest import digest_of
from nanoset_core.project.project import Project
from nanoset_core.storage.location import RawFolder, RemoteFolder, is_remote, remote_location
from nanoset_core.text.choice import matches
from nanoset_core.text.fingerprint_memory import FingerprintMemory
from nanoset_core.text.fingerprints import fingerprint
from nanoset_core.text.listing import FileStat, folders_of, list_below, natural_key, stat_file

_MEMORY_FOLDER = ".given"
"""Below `views` in the root: digests of local files, so that a file is read again only if it
changed.
"""


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """Files of one folder, as they were listed."""

    folder: RawFolder
    """Local, or in a bucket."""
    stats: tuple[FileStat, ...]
    """In natural order of their names."""
    digest: str
    """Digest of their content: of the bytes of files, and of the ETags of objects."""

    @property
    def names(self) -> tuple[str, ...]:
        """Paths below the folder."""
        return tuple(stat.path for stat in self.stats)


def given_files(project: Project, pattern: str, key: str) -> GivenFiles:
    """Return the files that a key of nanoset.yaml names: one file, all files of a folder, or those
    that fit a pattern.

    Only new and changed local files are read, to hash them. Objects are known by their ETags.

    Args:
        project: The project.
        pattern: The value of the key.
        key: The key, for messages.

    Raises:
        ConfigError: The pattern is not a valid place.
        MissingError: It names no file.
        InputError: The folder cannot be read, or a folder in it is named like a file that is read.
        StorageError: The bucket cannot be read.
    """
    folder, parts = _split_pattern(project, pattern, key)
    path = "/".join(parts)
    stats: list[FileStat] = []
    folders: set[str] = set()
    if _has_wildcard(path):
        if folder.is_dir():
            all_stats, all_folders = list_below(folder)
            stats = [stat for stat in all_stats if matches(stat.path.split("/"), parts)]
            folders = {name for name in all_folders if matches(name.split("/"), parts)}
    elif (folder / path).is_file():
        stats = [stat_file(folder, path)]
    else:
        if path:
            folder = folder / path
        if folder.is_dir():
            stats, folders = list_below(folder)

    _check_folders(folder, folders, stats, parts)
    if not stats:
        raise MissingError(
            "no file of this name",
            where=f"{project.config.file}: {key}",
            found=pattern,
            remedy=f"correct {key}, or put the files there",
        )
    ordered_stats = tuple(sorted(stats, key=lambda stat: natural_key(stat.path)))
    return GivenFiles(
        folder, ordered_stats, digest_of(_content_digests(project, folder, ordered_stats))
    )


def _check_folders(
    folder: RawFolder, folders: Iterable[str], stats: Sequence[FileStat], parts: Sequence[str]
) -> None:
    """Check that no folder has the ending of the files that are read, unless files in it are read,
    too.

    An archive that was unpacked wrongly leaves such folders, and Spark writes them:
    ids.parquet/part-0.parquet.

    Args:
        folder: The folder that was listed.
        folders: Folders below it.
        stats: Files below it that are read.
        parts: Parts of the pattern.

    Raises:
        InputError: There is such a folder.
    """
    paths = [stat.path for stat in stats]
    endings = {PurePosixPath(path).suffix for path in [*parts[-1:], *paths]}
    endings.discard("")
    unread_folders = set(folders) - folders_of(paths)
    for path in sorted(unread_folders, key=natural_key):
        if PurePosixPath(path).suffix in endings:
            raise InputError(
                "a folder has the name of a file, and nothing in it is read",
                where=folder / path,
                expected="a file",
                remedy=f"move the folder away, or name the files in it: {path}/*",
            )


def _split_pattern(project: Project, pattern: str, key: str) -> tuple[RawFolder, list[str]]:
    """Split a pattern at its first part with a wildcard, or at its last part; return (folder,
    remaining parts).
    """
    scheme = ""
    path = pattern
    if is_remote(pattern):
        scheme, _, path = pattern.partition("://")
    parts = path.rstrip("/").split("/")
    n_folder_parts = _first_wildcard(parts)
    if not scheme:
        folder = "/".join(parts[:n_folder_parts])
        if not folder:
            folder = "/" if path.startswith("/") else "."
        return project.config.local(folder, key), parts[n_folder_parts:]

    n_folder_parts = max(1, n_folder_parts)  # the bucket
    location = remote_location(
        f"{scheme}://{'/'.join(parts[:n_folder_parts])}",
        where=f"{project.config.file}: {key}",
        storage=project.config.storage,
        only_read=True,
    )
    return RemoteFolder(location.store, location.path, by_etag=True), parts[n_folder_parts:]


def _first_wildcard(parts: Sequence[str]) -> int:
    """Return the number of the first part with a wildcard, or of the last part if none has one."""
    for number, part in enumerate(parts):
        if _has_wildcard(part):
            return number
    return len(parts) - 1


def _has_wildcard(text: str) -> bool:
    return any(character in text for character in "*?[")


def _content_digests(
    project: Project, folder: RawFolder, stats: Sequence[FileStat]
) -> list[list[str]]:
    """Return the digests of the pieces of each file; what is computed is remembered for local
    files.
    """
    memory_folder = project.outputs.folder / "views" / _MEMORY_FOLDER / digest_of(str(folder))
    memory = FingerprintMemory(memory_folder / ".fingerprints.json")
    digests = []
    for stat in stats:
        pieces = memory.recall(stat)
        if pieces is None:
            pieces = fingerprint(folder, stat)
            memory.note(stat, pieces)
        digests.append([piece.digest for piece in pieces])
    if not isinstance(folder, RemoteFolder):
        memory.save({stat.path for stat in stats})
    return digests
