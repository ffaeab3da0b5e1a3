"""Files that nanoset.yaml names beside the raw text, such as lists of ids and tables of attributes."""

from __future__ import annotations

from dataclasses import dataclass

from nanoset_core.errors import MissingError
from nanoset_core.outputs.manifest import digest_of
from nanoset_core.pipeline.project import Project
from nanoset_core.raw.choice import matches
from nanoset_core.raw.contents import FileStat, natural_key, stat_file, walk
from nanoset_core.raw.fingerprints import FingerprintMemory, fingerprint
from nanoset_core.storage.location import RawFolder, RemoteFolder, is_remote, remote_location

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
        InputError, StorageError: the folder cannot be read.
    """
    folder, parts = _divided(project, pattern, key)
    if not parts or _is_pattern("/".join(parts)):
        listed = walk(folder) if folder.is_dir() else ()
        found = [stat for stat in listed if not parts or matches(stat.path.split("/"), parts)]
    else:
        path = "/".join(parts)
        if (folder / path).is_dir():
            folder, found = folder / path, list(walk(folder / path))
        else:
            found = [stat_file(folder, path)] if (folder / path).is_file() else []
    if not found:
        remedy = f"correct {key}, or put the files there"
        raise MissingError("no file of this name", where=f"{project.config.file}: {key}", found=pattern, remedy=remedy)
    stats = tuple(sorted(found, key=lambda stat: natural_key(stat.path)))
    return GivenFiles(folder, stats, digest_of(_contents(project, folder, stats)))


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
