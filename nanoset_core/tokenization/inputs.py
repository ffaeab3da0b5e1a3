"""Files, folders and patterns of a command line → files, in document order."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from nanoset_core.errors import InputError, MissingError
from nanoset_core.raw.contents import contents_of
from nanoset_core.raw.endings import suffix_of
from nanoset_core.raw.listing import FileStat, natural_key, stat_file
from nanoset_core.raw.survey import no_text
from nanoset_core.storage.location import Location, RawFolder, RemoteFolder, is_remote, remote_location
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files below one folder, in document order."""

    folder: RawFolder
    """Absolute, or in a bucket; all of them lie below it."""
    files: tuple[FileStat, ...]
    """Paths relative to `folder`."""
    notices: tuple[str, ...] = ()
    """What else is there, and is not read."""

    @property
    def paths(self) -> list[Location]:
        """Of all files."""
        return [self.folder / file.path for file in self.files]


def _none(_path: Location) -> bool:
    return False


def resolve_inputs(
    inputs: Sequence[str | os.PathLike[str]], *, leave_out: Callable[[Location], bool] = _none
) -> InputFiles:
    """Return the files that `inputs` name: in the order given, and in natural order within a folder or pattern.

    Args:
        inputs: Files, folders and patterns, all of this machine or all of one bucket (s3://bucket/path).
        leave_out: Which files of folders and patterns are not read, such as lines rejected by an earlier call.

    Raises:
        MissingError: An input names nothing.
        InputError: A folder or pattern holds no file that could be read, a file is named twice, or files lie in
            several buckets.
        StorageError: A bucket cannot be reached, or refuses.
    """
    found: list[_Found] = []
    notices: list[str] = []
    for given in inputs:
        text = os.fspath(given)
        files, told = (_resolve_remote if is_remote(text) else _resolve)(text, leave_out)
        found += files
        notices += (f"{text}: {one}" for one in told)
    return InputFiles(*_below_one_folder(found), tuple(notices))


_Found = tuple[Location, FileStat | None]
"""A file that an input names, and its size and times where a listing gave them."""


def files_of(paths: Iterable[Location]) -> InputFiles:
    """Return files by their paths; raises as `resolve_inputs`."""
    return InputFiles(*_below_one_folder([(path, None) for path in paths]))


def _below_one_folder(found: Sequence[_Found]) -> tuple[RawFolder, tuple[FileStat, ...]]:
    """Return a folder above all files, and the files."""
    paths = [path for path, _ in found]
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError("a file is named twice", where=twice, remedy="name it once")
    folder = _common_folder(paths)

    def relative(one: _Found) -> FileStat:
        path, stat = one
        name = str(path).removeprefix(str(folder)).lstrip("/")
        return stat_file(folder, name) if stat is None else replace(stat, path=name)

    return folder, tuple(in_parallel(relative, found, CONNECTIONS if isinstance(folder, RemoteFolder) else 1))


def _common_folder(paths: Sequence[Location]) -> RawFolder:
    places = [getattr(path, "place", None) for path in paths]
    if other := next((path for path, place in zip(paths, places, strict=True) if place != places[0]), None):
        raise InputError(
            "the input lies in several places",
            found=f"{paths[0]} and {other}",
            expected="files of this machine, or files of one bucket",
            remedy="take the files of each place in a call of its own",
        )
    folders = [path.parent for path in paths]
    if folders and isinstance(first := folders[0], RemoteFolder):
        remote = [f"/{folder.path}" for folder in folders if isinstance(folder, RemoteFolder)]
        return replace(first, path=os.path.commonpath(remote).strip("/"))
    return Path(os.path.commonpath(list(map(str, folders)))) if folders else Path.cwd()


def by_file(inputs: InputFiles, output_prefix: Location) -> list[tuple[InputFiles, Location]]:
    """Return each file on its own, with the prefix of its pair: <output_prefix>_<path without its ending, / as _>."""
    jobs = []
    for file in inputs.files:
        stem = file.path[: len(file.path) - len(suffix_of(file.path) or "")]
        prefix = output_prefix.with_name(f"{output_prefix.name}_{stem.replace('/', '_')}")
        jobs.append((InputFiles(inputs.folder, (file,)), prefix))
    if len({prefix for _, prefix in jobs}) != len(jobs):
        raise InputError("two files would give pairs of the same name", where=inputs.folder, remedy="rename one")
    return jobs


def _resolve(given: str, leave_out: Callable[[Location], bool]) -> tuple[list[_Found], list[str]]:
    """Return the files and notices of one input."""
    path = Path(given).expanduser()
    if path.is_file():
        return [(path.absolute(), None)], []
    if path.is_dir():
        return _files_below(path.absolute(), path, leave_out)
    matches = sorted(glob.glob(str(path), recursive=True), key=natural_key)
    files = [Path(match).absolute() for match in matches if Path(match).is_file()]
    files = [file for file in files if not leave_out(file)]
    if not files:
        raise _no_match(given)
    others = [match for match in matches if not Path(match).is_file()] if "**" not in given else []
    return [(file, None) for file in files], [
        f"{match} is not read, since it is no file (a folder can be an input of its own)" for match in others
    ]


def _resolve_remote(given: str, leave_out: Callable[[Location], bool]) -> tuple[list[_Found], list[str]]:
    """Do the same for an input in a bucket."""
    path = remote_location(given, where="--input")
    if not given.endswith("/") and path.path and path.is_file():
        return [(path, None)], []
    parts = path.path.split("/")
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), None)
    if fixed is None:
        if not path.is_dir():
            raise _no_match(given)
        return _files_below(path, path, leave_out)
    folder = replace(path, path="/".join(parts[:fixed]))
    stats = sorted((FileStat(*found) for found in folder.files()), key=lambda file: natural_key(file.path))
    chosen = [stat for stat in stats if _matches(stat.path.split("/"), parts[fixed:])]
    matches: list[_Found] = [(folder / stat.path, stat) for stat in chosen if not leave_out(folder / stat.path)]
    if not matches:
        raise _no_match(given)
    return matches, []


def _files_below(
    folder: Location, shown: Location, leave_out: Callable[[Location], bool]
) -> tuple[list[_Found], list[str]]:
    contents = contents_of(shown)
    contents = replace(contents, texts=tuple(file for file in contents.texts if not leave_out(folder / file.path)))
    if not contents.texts:
        raise no_text(shown, contents, "no file to read")
    is_listed = isinstance(folder, RemoteFolder)
    return [(folder / file.path, file if is_listed else None) for file in contents.ordered], [
        one.text for one in contents.notices()
    ]


def _matches(parts: Sequence[str], pattern: Sequence[str]) -> bool:
    """Tell whether the parts of a path match those of a pattern, in which `**` stands for any number of folders."""
    if not pattern:
        return not parts
    if pattern[0] == "**":
        return any(_matches(parts[skipped:], pattern[1:]) for skipped in range(len(parts) + 1)) or not pattern[1:]
    return bool(parts) and fnmatchcase(parts[0], pattern[0]) and _matches(parts[1:], pattern[1:])


def _no_match(given: str) -> MissingError:
    remedy = "name a file or folder that is there, or quote a pattern that matches files"
    return MissingError("no such file, and no pattern that matches one", where=given, remedy=remedy)
