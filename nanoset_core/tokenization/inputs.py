"""What a command line names as input: files, folders and patterns → files, in a stated order."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from nanoset_core.errors import InputError, MissingError
from nanoset_core.raw.contents import contents_of
from nanoset_core.raw.endings import suffix_of
from nanoset_core.raw.listing import FileStat, natural_key, stat_file
from nanoset_core.raw.survey import no_text


@dataclass(frozen=True, slots=True)
class InputFiles:
    """Files below one folder, in document order."""

    folder: Path
    """Absolute; all of them lie below it."""
    files: tuple[FileStat, ...]
    """Paths relative to `folder`."""
    notices: tuple[str, ...] = ()
    """What else lies there, and is not read."""


def _none(_path: Path) -> bool:
    return False


def resolve_inputs(
    inputs: Sequence[str | os.PathLike[str]], *, leave_out: Callable[[Path], bool] = _none
) -> InputFiles:
    """The files that `inputs` name: in the order given, and in natural order within a folder or pattern.

    Args:
        inputs: files, folders and patterns.
        leave_out: which files of folders and patterns are not meant, such as lines rejected by an earlier call.

    Raises:
        MissingError: an input names nothing.
        InputError: a folder or pattern holds no file that could be read, or a file is named twice.
    """
    paths: list[Path] = []
    notices: list[str] = []
    for given in inputs:
        found, told = _resolve(os.fspath(given), leave_out)
        paths += found
        notices += (f"{os.fspath(given)}: {one}" for one in told)
    if len(set(paths)) != len(paths):
        twice = next(path for path in paths if paths.count(path) > 1)
        raise InputError("a file is named twice", where=twice, remedy="name it once")
    folder = Path(os.path.commonpath([path.parent for path in paths])) if paths else Path.cwd()
    files = tuple(stat_file(folder, path.relative_to(folder).as_posix()) for path in paths)
    return InputFiles(folder, files, tuple(notices))


def by_file(inputs: InputFiles, output_prefix: Path) -> list[tuple[InputFiles, Path]]:
    """Each file on its own, with the prefix of its pair: <output_prefix>_<path without its ending, / as _>."""
    jobs = []
    for file in inputs.files:
        stem = file.path[: len(file.path) - len(suffix_of(file.path) or "")]
        prefix = output_prefix.with_name(f"{output_prefix.name}_{stem.replace('/', '_')}")
        jobs.append((InputFiles(inputs.folder, (file,)), prefix))
    if len({prefix for _, prefix in jobs}) != len(jobs):
        raise InputError("two files would give pairs of the same name", where=inputs.folder, remedy="rename one")
    return jobs


def _resolve(given: str, leave_out: Callable[[Path], bool]) -> tuple[list[Path], list[str]]:
    """(files, what is to be told) of one input."""
    path = Path(given).expanduser()
    if path.is_file():
        return [path.absolute()], []
    if path.is_dir():
        contents = contents_of(path)
        meant = tuple(file for file in contents.texts if not leave_out(path.absolute() / file.path))
        contents = replace(contents, texts=meant)
        if not contents.texts:
            raise no_text(path, contents, "no file to read")
        return [path.absolute() / file.path for file in contents.ordered], [one.text for one in contents.notices()]
    matches = sorted(glob.glob(str(path), recursive=True), key=natural_key)
    files = [Path(match).absolute() for match in matches if Path(match).is_file()]
    files = [file for file in files if not leave_out(file)]
    if not files:
        remedy = "name a file or folder that is there, or quote a pattern that matches files"
        raise MissingError("no such file, and no pattern that matches one", where=given, remedy=remedy)
    others = [match for match in matches if not Path(match).is_file()] if "**" not in given else []
    return files, [
        f"{match} is not read, since it is no file (a folder can be an input of its own)" for match in others
    ]
