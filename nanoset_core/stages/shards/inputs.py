"""Files, folders and patterns of a command line → files, in document order."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.errors import InputError, MissingError
from nanoset_core.storage.identity import first_repeated, names_of_both
from nanoset_core.storage.location import (
    Location,
    RawFolder,
    RemoteFolder,
    is_remote,
    remote_location,
    without_file_scheme,
)
from nanoset_core.storage.paths import expanded
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel
from nanoset_core.text.choice import first_positions, matches, next_positions
from nanoset_core.text.contents import (
    Contents,
    FileStat,
    all_entries,
    check_no_loop,
    contents_of,
    natural_key,
    stat_file,
)
from nanoset_core.text.endings import is_text, suffix_of
from nanoset_core.text.survey import no_text


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


_Found = tuple[Location, FileStat | None]
"""A file that an input names, and its size and times where a listing gave them."""


def resolve_inputs(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    leave_out: Callable[[Location], bool] = lambda _: False,
) -> InputFiles:
    """Return the files that `inputs` name: in the order given, and in natural order within a folder
    or pattern.

    Args:
        inputs: Files, folders and patterns, all of this machine, or all of one bucket
            (s3://bucket/path) or of one other place that fsspec reads (gs://, hf://, abfs://,
            https://).
        leave_out: Which files of folders and patterns are not read, such as lines rejected by an
            earlier call.

    Raises:
        MissingError: An input names nothing.
        InputError: A folder or pattern holds no file that could be read, a file is named twice, or
            files lie in several buckets.
        StorageError: A bucket cannot be reached, or refuses.
    """
    found: list[_Found] = []
    notices: list[str] = []
    for given in inputs:
        files, told = _resolve(os.fspath(given), leave_out)
        found += files
        notices += (f"{os.fspath(given)}: {one}" for one in told)
    made = _below_one_folder(found)
    # however they are named
    notices += [f"{made.folder}: {empty.text}" for empty in Contents(made.files).notices()]
    return replace(made, notices=tuple(notices))


def files_of(paths: Iterable[Location]) -> InputFiles:
    """Return files by their paths; raises as `resolve_inputs`."""
    return _below_one_folder([(path, None) for path in paths])


def _below_one_folder(found: Sequence[_Found]) -> InputFiles:
    paths = [path for path, _ in found]
    check_different(paths)
    folder = _common_folder(paths)

    def relative(one: _Found) -> FileStat:
        path, stat = one
        name = str(path).removeprefix(str(folder)).lstrip("/")
        return stat_file(folder, name) if stat is None else replace(stat, path=name)

    at_once = CONNECTIONS if isinstance(folder, RemoteFolder) else 1
    return InputFiles(folder, tuple(in_parallel(relative, found, at_once)))


def _common_folder(paths: Sequence[Location]) -> RawFolder:
    places = {getattr(path, "store", None): path for path in paths}
    if len(places) > 1:
        raise InputError(
            "the input lies in several places",
            found=" and ".join(map(str, places.values())),
            expected="files of this machine, or files of one bucket",
            remedy="take the files of each place in a call of its own",
        )
    if not paths:
        return Path.cwd()
    common = os.path.commonpath([f"/{getattr(path.parent, 'path', path.parent)}" for path in paths])
    first = paths[0]
    return (
        replace(first, path=common.strip("/"), kind=None)
        if isinstance(first, RemoteFolder)
        else Path(common)
    )


def check_different(paths: Sequence[Location]) -> None:
    """Raise InputError if two paths lead to the same file: its documents would be read twice."""
    repeated = first_repeated(paths)
    if repeated is not None:
        first, second = repeated
        raise InputError(
            "a file is named twice",
            where=second,
            found=names_of_both(first, second),
            expected="each file once, by whatever path or link",
            remedy="name it once, or remove the link",
        )


def by_file(inputs: InputFiles, output_prefix: Location) -> list[tuple[InputFiles, Location]]:
    """Return each file on its own, with the prefix of its pair: <output_prefix>_<path without its
    ending, / as _>.
    """
    jobs = []
    for file in inputs.files:
        stem = file.path[: len(file.path) - len(suffix_of(file.path) or "")]
        prefix = output_prefix.with_name(f"{output_prefix.name}_{stem.replace('/', '_')}")
        jobs.append((InputFiles(inputs.folder, (file,)), prefix))
    if len({prefix for _, prefix in jobs}) != len(jobs):
        raise InputError(
            "two files would give pairs of the same name", where=inputs.folder, remedy="rename one"
        )
    return jobs


def _resolve(given: str, leave_out: Callable[[Location], bool]) -> tuple[list[_Found], list[str]]:
    """Return the files and notices of one input."""
    given = without_file_scheme(given)
    path = (
        remote_location(given, where="--input", only_read=True)
        if is_remote(given)
        else expanded(given, "--input")
    )
    may_be_a_file = isinstance(path, Path) or (path.path != "" and not given.endswith("/"))
    if may_be_a_file and path.is_file():
        return [(path.absolute(), None)], []
    if path.is_dir():
        return _files_below(path, leave_out)
    found, others = (
        _remote_matches(path) if isinstance(path, RemoteFolder) else _local_matches(path)
    )
    files = [one for one in found if not leave_out(one[0])]
    if not files:
        remedy = "name a file or folder that is there, or quote a pattern that matches files"
        raise MissingError(
            "no such file, and no pattern that matches one", where=given, remedy=remedy
        )
    told = "is not read, since it is no file (a folder can be an input of its own)"
    return files, [f"{other} {told}" for other in others]


def _local_matches(path: Path) -> tuple[list[_Found], list[str]]:
    """Return the files that a pattern matches, and what else it does.

    A pattern that goes through all folders matches folders, too, which is expected of it: only
    those are returned that are named like a file of text, and in which nothing matches.
    """
    matching = sorted(_expanded(path), key=lambda match: natural_key(str(match)))
    files = [match for match in matching if match.is_file()]
    others = [match for match in matching if not match.is_file()]
    if "**" in path.parts:
        folders_with_files = {folder for file in files for folder in file.parents}
        others = [
            other for other in others if is_text(other.name) and other not in folders_with_files
        ]
    return [(file.absolute(), None) for file in files], list(map(str, others))


def _expanded(path: Path) -> list[Path]:
    """Return what is there whose path matches a pattern; each folder is listed once, however many
    `**` there are.

    Raises:
        InputError: a folder cannot be read, or a link leads back to a folder above it.
    """
    parts = path.parts
    first_wildcard = next(
        (number for number, part in enumerate(parts) if glob.has_magic(part)), None
    )
    if first_wildcard is None:
        return [path] if os.path.lexists(path) else []
    folder = Path(*parts[:first_wildcard])
    pattern = parts[first_wildcard:]
    if not folder.is_dir():
        return []
    return list(_matches_below(folder, pattern, first_positions(pattern), (folder.stat(),)))


def _matches_below(
    folder: Path,
    pattern: Sequence[str],
    positions: frozenset[int],
    above: tuple[os.stat_result, ...],
) -> Iterator[Path]:
    """Yield what matches a pattern in a folder and below it.

    Args:
        folder: the folder.
        pattern: parts of the pattern.
        positions: of the parts that names in the folder may match.
        above: the folder and every folder that leads to it.
    """
    for entry in all_entries(folder):
        following = next_positions(positions, entry.name, pattern)
        path = folder / entry.name
        if len(pattern) in following:
            yield path
        if following - {len(pattern)} and entry.is_dir():
            stat = entry.stat()
            check_no_loop(entry.path, stat, above)
            yield from _matches_below(path, pattern, following, (*above, stat))


def _remote_matches(path: RemoteFolder) -> tuple[list[_Found], list[str]]:
    """Return the same in a bucket, which holds nothing but files."""
    parts = path.path.split("/")
    fixed = next((number for number, part in enumerate(parts) if glob.has_magic(part)), len(parts))
    folder, pattern = replace(path, path="/".join(parts[:fixed])), parts[fixed:]
    stats = [FileStat(*found) for found in folder.files()] if pattern else []
    matching = [stat for stat in stats if matches(stat.path.split("/"), pattern)]
    return [
        (folder / stat.path, stat)
        for stat in sorted(matching, key=lambda stat: natural_key(stat.path))
    ], []


def _files_below(
    folder: Location, leave_out: Callable[[Location], bool]
) -> tuple[list[_Found], list[str]]:
    contents, base = contents_of(folder), folder.absolute()
    contents = replace(
        contents, texts=tuple(file for file in contents.texts if not leave_out(base / file.path))
    )
    if not contents.texts:
        raise no_text(folder, contents, "no file to read")
    is_listed = isinstance(folder, RemoteFolder)
    files: list[_Found] = [
        (base / file.path, file if is_listed else None) for file in contents.ordered
    ]
    return files, [
        one.text for one in contents.notices() if not (one.is_as_asked or one.kind == "empty")
    ]
