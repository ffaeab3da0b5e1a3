"""Resolve the inputs of a command line, files, folders and patterns, to files in document order."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from nanoset_core.errors import InputError, MissingError
from nanoset_core.stages.shards.standalone.input_patterns import ListedFile, find_matches
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location, is_remote, remote_location, without_file_scheme
from nanoset_core.storage.paths import expanded
from nanoset_core.storage.places import (
    by_place,
    common_folder,
    is_here,
    may_be_file,
    requests_at_once,
    takes_requests,
)
from nanoset_core.storage.reading.identity import first_repeated, names_of_both
from nanoset_core.storage.regular_files import check_no_pipe
from nanoset_core.storage.requests import in_parallel
from nanoset_core.text.files.contents import Contents, contents_of
from nanoset_core.text.files.endings import format_of, suffix_of
from nanoset_core.text.files.listing import stat_file
from nanoset_core.text.files.survey import no_text
from nanoset_core.text.lines import begins_with_object


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files below one folder, in document order."""

    folder: Location
    """Absolute, or in a bucket; contains all of the files, directly or in folders."""
    files: tuple[FileStat, ...]
    """Paths relative to `folder`."""
    notices: tuple[str, ...] = ()
    """What the inputs contain that is not read."""
    json_lines: frozenset[str] = frozenset()
    """Files that are read as JSON lines, although their names end in .txt, .csv or .tsv. Versions
    that did not read these formats took every file with such a name for JSON lines.
    """

    @property
    def paths(self) -> list[Location]:
        """Paths of all files."""
        return [self.folder / file.path for file in self.files]

    @property
    def place(self) -> Location:
        """What error messages name: the file if there is only one, and otherwise the folder."""
        if len(self.files) == 1:
            return self.paths[0]
        return self.folder


class _ResolvedInput(NamedTuple):
    """What one input names."""

    files: list[ListedFile]
    notices: list[str]


def resolve_inputs(
    inputs: Sequence[str | os.PathLike[str]],
    *,
    leave_out: Callable[[Location], bool] = lambda _: False,
) -> InputFiles:
    """Return the files that inputs name, in the order of the inputs.

        code.jsonl web/ more/*.jsonl    →    code.jsonl, web/a.jsonl, web/b.jsonl, more/c.jsonl

    The files of a folder or pattern are in natural order: part-2 comes before part-10.

    Args:
        inputs: Files, folders and patterns: all of this machine, of one bucket (s3://bucket/path),
            or of one other place that fsspec reads (gs://, hf://, abfs://, https://).
        leave_out: Returns whether a file that was found in a folder or by a pattern is not read.
            Files that are named by their paths are always read.

    Returns:
        The folder that contains all files, their paths below it, and notices for the user.

    Raises:
        MissingError: An input names nothing.
        InputError: A folder or pattern contains no file that can be read, a file is named twice, or
            files are in several buckets.
        StorageError: A bucket cannot be reached, or refuses.
    """
    listed_files: list[ListedFile] = []
    notices: list[str] = []
    for path in inputs:
        name = os.fspath(path)
        resolved = _resolve(name, leave_out)
        listed_files += resolved.files
        notices += [f"{name}: {notice}" for notice in resolved.notices]

    input_files = _below_one_folder(listed_files)
    notices += _notices_on_all(input_files)
    return replace(input_files, notices=tuple(notices))


def _notices_on_all(input_files: InputFiles) -> list[str]:
    """Return what is unusual about the files that are read, such as empty ones, for the user."""
    contents = Contents(input_files.files)
    return [f"{input_files.folder}: {notice.text}" for notice in contents.notices()]


def files_of(paths: Iterable[Location]) -> InputFiles:
    """Look up the files that a user names one by one as the inputs of a command.

        /data/web/a.jsonl and /data/code/b.jsonl
        →  the folder /data, with web/a.jsonl and code/b.jsonl relative to it

    Args:
        paths: The files, in the order in which they are read; all on this machine, or all in one
            bucket.

    Returns:
        The folder that contains all of them, and each file relative to it, with its size and times.

    Raises:
        MissingError: A file does not exist.
        InputError: A file is named twice, or files are in several buckets.
        StorageError: A bucket cannot be reached, or refuses.
    """
    return _below_one_folder([ListedFile(path, None) for path in paths])


def check_different(paths: Sequence[Location]) -> None:
    """Check that no two paths lead to the same file, whose documents would be read twice.

    web/a.jsonl and latest/a.jsonl are the same file if `latest` is a link to `web`.

    Args:
        paths: Paths of files, some of which may be links.

    Raises:
        InputError: Two paths lead to the same file.
    """
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
    """Divide inputs into one job for each file, whose output is named after the file.

    With the output prefix out/all:

        input web/part1.jsonl.gz     output out/all_web_part1
        input code.jsonl             output out/all_code

    Args:
        inputs: The files.
        output_prefix: The start of the names of all outputs.

    Returns:
        (a single file as inputs, the prefix of its output) for each file, in order.

    Raises:
        InputError: Two files would have the same prefix.
    """
    jobs = []
    for file in inputs.files:
        json_lines = inputs.json_lines & {file.path}  # this file, or none
        inputs_of_file = InputFiles(inputs.folder, (file,), json_lines=json_lines)
        name = _name_without_ending(file.path, is_json_lines=bool(json_lines))
        prefix = output_prefix.with_name(f"{output_prefix.name}_{name}")
        jobs.append((inputs_of_file, prefix))
    _check_different_prefixes(jobs)
    return jobs


def _check_different_prefixes(jobs: Sequence[tuple[InputFiles, Location]]) -> None:
    """Check that no two files have the same prefix of their outputs.

    web.jsonl and web.jsonl.gz would have, and so would a/b.jsonl and a_b.jsonl.

    Args:
        jobs: (a single file as inputs, the prefix of its output) for each file.

    Raises:
        InputError: Two files have the same prefix.
    """
    path_by_prefix: dict[Location, str] = {}
    for inputs, prefix in jobs:
        path = inputs.files[0].path
        if prefix in path_by_prefix:
            raise InputError(
                "two files would give pairs of the same name",
                where=inputs.folder,
                found=f"{path_by_prefix[prefix]} and {path}, both for {prefix}",
                remedy="rename one of them, or tokenize them in two calls",
            )
        path_by_prefix[prefix] = path


def _name_without_ending(path: str, *, is_json_lines: bool) -> str:
    """Return the name of the output that is made from an input file.

        web/part1.jsonl.gz      → "web_part1"
        notes.txt               → "notes"
        notes.txt               → "notes.txt" if it contains JSON lines in spite of its name

    Args:
        path: Relative path of the file.
        is_json_lines: Whether the file contains JSON lines although its name ends with .txt or
            .csv.
    """
    name = path.replace("/", "_")
    if is_json_lines:
        # The first versions took every file for JSON lines, and knew no ending .txt. Their names
        # still apply, so that the outputs of earlier calls are found.
        return name
    ending = suffix_of(path)  # ".jsonl.gz", also of A.JSONL.GZ; None if the format is not known
    return name if ending is None else name[: -len(ending)]


def _resolve(name: str, leave_out: Callable[[Location], bool]) -> _ResolvedInput:
    """Return the files that one input of the command line names, and notices on them.

        web/a.jsonl      this file
        web              the files of text in this folder, and in the folders below it
        web/*.jsonl      the files that match

    Args:
        name: The path of a file or folder, or a pattern.
        leave_out: Returns whether a file of a folder or pattern is not read.

    Raises:
        MissingError: The input names nothing.
        InputError: A folder contains no file that can be read, or the input is a pipe.
        StorageError: A bucket cannot be reached, or refuses.
    """
    name = without_file_scheme(name)
    path = _location_of(name)
    # A pattern comes last, since names of files may contain its characters, too.
    if may_be_file(name, path) and path.is_file():
        file = ListedFile(path.absolute(), stat=None)
        return _ResolvedInput(files=[file], notices=[])
    if path.is_dir():
        return _files_below(path, leave_out)
    if is_here(path):
        check_no_pipe(path)
    return _files_that_match(name, path, leave_out)


def _location_of(name: str) -> Location:
    """Return the path that an input names, on this machine or in a bucket."""
    if is_remote(name):
        return remote_location(name, where="--input", only_read=True)
    return expanded(name, "--input")


def _files_that_match(
    name: str, pattern: Location, leave_out: Callable[[Location], bool]
) -> _ResolvedInput:
    """Return the files that match a pattern such as web/*.jsonl.

    Args:
        name: The pattern as the user has given it, for the error.
        pattern: The pattern as a path.
        leave_out: Returns whether a file is not read.

    Raises:
        MissingError: No file matches.
        StorageError: A bucket cannot be reached, or refuses.
    """
    matches = find_matches(pattern)
    files = [file for file in matches.files if not leave_out(file.path)]
    if not files:
        raise MissingError(
            "no such file, and no pattern that matches one",
            where=name,
            remedy="name an existing file or folder, or quote a pattern that matches files",
        )
    notices = []
    for other in matches.others:
        notices.append(f"{other} is not read, since it is no file (name a folder as an input)")
    return _ResolvedInput(files, notices)


def _files_below(folder: Location, leave_out: Callable[[Location], bool]) -> _ResolvedInput:
    """Return the files of text in a folder and the folders below it.

        web/a.jsonl, web/part/b.jsonl.gz      returned
        web/README.md, web/_SUCCESS           not returned: not text of a corpus

    Args:
        folder: The folder, of this machine or in a bucket.
        leave_out: Returns whether a file is not read.

    Raises:
        InputError: There is no file of text.
    """
    absolute_folder = folder.absolute()
    contents = contents_of(folder).without(lambda path: leave_out(absolute_folder / path))
    if not contents.texts:
        raise no_text(folder, contents, "no file to read")

    # The listing of a bucket has sizes and times, which need not be requested again.
    has_sizes_and_times = takes_requests(folder)
    files = []
    for file in contents.ordered:  # the files of text, in the order in which they are read
        stat = file if has_sizes_and_times else None
        files.append(ListedFile(absolute_folder / file.path, stat))
    return _ResolvedInput(files, _unexpected_files(contents))


def _unexpected_files(contents: Contents) -> list[str]:
    """Return notices on files of a folder that are not read, though the user may expect it.

    For example, a user gives a folder with texts as the input of a command. A file with an ending
    that is not known, such as `texts.jsnol`, gets a notice. Nobody expects a README to be read, so
    that it gets none. Empty files are reported by `resolve_inputs`, for all inputs together.

    Args:
        contents: The files of the folder, by what they are.
    """
    notices = []
    for notice in contents.notices():
        if not notice.is_expected and notice.kind != "empty":
            notices.append(notice.text)
    return notices


def _below_one_folder(listed: Sequence[ListedFile]) -> InputFiles:
    """Return files with paths relative to the folder that contains them all, and their sizes.

    The files /raw/web/a.jsonl and /raw/code/b.jsonl become web/a.jsonl and code/b.jsonl, below
    /raw.

    Args:
        listed: The files, with absolute paths.

    Raises:
        MissingError: A file does not exist.
        InputError: A file is named twice, or files are in several buckets.
    """
    paths = [file.path for file in listed]
    check_different(paths)
    folder = _common_folder(paths)

    def relative_stat(file: ListedFile) -> FileStat:
        """Return the relative path, size and times of a file."""
        name = str(file.path).removeprefix(str(folder)).lstrip("/")
        if file.stat is None:
            return stat_file(folder, name)
        return replace(file.stat, path=name)

    # Each file of a bucket may need a request, so several are sent at the same time.
    files = tuple(in_parallel(relative_stat, listed, requests_at_once([folder])))
    return InputFiles(folder, files, json_lines=_json_lines_among(folder, files))


def _json_lines_among(folder: Location, files: Sequence[FileStat]) -> frozenset[str]:
    """Return the files that contain JSON lines although their names end with .txt or .csv.

    A file web.txt whose first line is `{"text": "the cat"}` does. It would be wrong to take each
    line as a text.

    Args:
        folder: The folder of all files.
        files: The files, with paths relative to it. Files with other endings are not opened.

    Returns:
        The relative paths.
    """

    def is_json_lines(file: FileStat) -> bool:
        """Return whether a file begins like JSON lines."""
        return begins_with_object(folder, file.path)

    candidates = [file for file in files if format_of(file.path) in ("txt", "csv")]
    answers = in_parallel(is_json_lines, candidates, requests_at_once([folder]))
    json_lines = [file.path for file, is_json in zip(candidates, answers, strict=True) if is_json]
    return frozenset(json_lines)


def _common_folder(paths: Sequence[Location]) -> Location:
    """Return the folder that contains all files; without files, the current folder.

    For /raw/web/a.jsonl and /raw/code/b.jsonl, that is /raw.

    Args:
        paths: Absolute paths on this machine, or paths in a bucket.

    Raises:
        InputError: The files are in several buckets, or in a bucket and on this machine.
    """
    if not paths:
        return Path.cwd()

    groups = by_place(paths)
    if len(groups) > 1:
        raise InputError(
            "the inputs are in several places",
            found=" and ".join(str(group[-1]) for group in groups),
            expected="files of this machine, or files of one bucket",
            remedy="read the files of each place in a call of their own",
        )
    return common_folder(paths)
