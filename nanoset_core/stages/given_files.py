"""Files that nanoset.yaml names beside the raw text, such as lists of ids and tables of attributes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from nanoset_core.errors import InputError, MissingError
from nanoset_core.outputs.manifest import digest_of
from nanoset_core.project.project import Project
from nanoset_core.storage.location import RawFolder, RemoteFolder, is_remote, remote_location
from nanoset_core.text.choice import matches
from nanoset_core.text.contents import FileStat, folders_of, list_below, natural_key, stat_file
from nanoset_core.text.fingerprints import FingerprintMemory, fingerprint

_MEMORY = ".given"


@dataclass(frozen=True, slots=True)
class GivenFiles:
    """Files of one folder, as they were listed."""

    folder: RawFolder
    """Local, or in a bucket."""
    stats: tuple[FileStat, ...]
    """In natural order of their names."""
    digest: str
    """Of their content: of their bytes, of objects of their ETags."""

    @property
    def names(self) -> tuple[str, ...]:
        """Paths below the folder."""
        return tuple(stat.path for stat in self.stats)


def given_files(project: Project, pattern: str, key: str) -> GivenFiles:
    """Return the files that a key of nanoset.yaml names: one, all of a folder, or those that fit a pattern.

    Only new and changed local files are read, to hash them; of objects the ETag is taken.

    Raises:
        ConfigError, MissingError: the pattern names no place, or no file.
        InputError: the folder cannot be read, or one in it is named like a file that is read.
        StorageError: the folder cannot be read.
    """
    folder, parts = _divided(project, pattern, key)
    path = "/".join(parts)
    folders: set[str] = set()
    if _is_pattern(path):
        listed, all_folders = list_below(folder) if folder.is_dir() else ([], set())
        found = [stat for stat in listed if matches(stat.path.split("/"), parts)]
        folders = {name for name in all_folders if matches(name.split("/"), parts)}
    elif (folder / path).is_file():
        found = [stat_file(folder, path)]
    else:
        folder = folder / path if path else folder
        found, folders = list_below(folder) if folder.is_dir() else ([], set())
    _check_folders(folder, folders, found, parts)
    if not found:
        remedy = f"correct {key}, or put the files there"
        raise MissingError("no file of this name", where=f"{project.config.file}: {key}", found=pattern, remedy=remedy)
    stats = tuple(sorted(found, key=lambda stat: natural_key(stat.path)))
    return GivenFiles(folder, stats, digest_of(_contents(project, folder, stats)))


def _check_folders(folder: RawFolder, folders: Iterable[str], files: Sequence[FileStat], parts: Sequence[str]) -> None:
    """Refuse a folder that is named like the files that are read, and from which none is.

    So ends an archive that was unpacked wrongly, and the output of Spark: ids.parquet/part-0.parquet.
    """
    endings = {PurePosixPath(path).suffix for path in [*parts[-1:], *(file.path for file in files)]} - {""}
    for path in sorted(set(folders) - folders_of(file.path for file in files), key=natural_key):
        if PurePosixPath(path).suffix in endings:
            raise InputError(
                "a folder has the name of a file, and nothing in it is read",
                where=folder / path,
                expected="a file",
                remedy=f"move the folder away, or name the files in it: {path}/*",
            )


def _divided(project: Project, pattern: str, key: str) -> tuple[RawFolder, list[str]]:
    """Return (the folder before the first part with a wildcard, or before the last part; the parts below it)."""
    head, separator, path = pattern.partition("://") if is_remote(pattern) else ("", "", pattern)
    parts = path.rstrip("/").split("/")
    first = next((number for number, part in enumerate(parts) if _is_pattern(part)), len(parts) - 1)
    if not separator:
        begin = "/".join(parts[:first]) or ("/" if path.startswith("/") else ".")
        return project.config.local(begin, key), parts[first:]
    begin = f"{head}://{'/'.join(parts[: max(1, first)])}"
    where, storage = f"{project.config.file}: {key}", project.config.storage
    place = remote_location(begin, where=where, storage=storage, only_read=True)
    return RemoteFolder(place.store, place.path, by_etag=True), parts[max(1, first) :]


def _is_pattern(part: str) -> bool:
    return any(character in part for character in "*?[")


def _contents(project: Project, folder: RawFolder, stats: tuple[FileStat, ...]) -> list[list[str]]:
    place = project.outputs.folder / "views" / _MEMORY / digest_of(str(folder))
    memory = FingerprintMemory(place / ".fingerprints.json")
    contents = []
    for stat in stats:
        pieces = memory.recall(stat)
        if pieces is None:
            memory.note(stat, pieces := fingerprint(folder, stat))
        contents.append([piece.digest for piece in pieces])
    if not isinstance(folder, RemoteFolder):
        memory.save({stat.path for stat in stats})
    return contents
