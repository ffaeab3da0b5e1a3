"""Find the input files of `nanoset shuffle`: raw text, .bin/.idx pairs or tars.

Paths on the command line are files, folders, or prefixes of pairs: `--input text/` names all text
files in a folder, and `--input data/web` the pair data/web.bin and data/web.idx. All inputs must be
of one kind. They are divided into sources, which may be sampled with different frequencies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.formats.indexed.identity import check_different_datasets
from nanoset_core.formats.indexed.layout import is_pair, pair_files
from nanoset_core.stages.shards.inputs import check_different
from nanoset_core.stages.webdataset.lists import LISTS
from nanoset_core.stages.webdataset.standalone.options import InputKind
from nanoset_core.stages.webdataset.standalone.sampling import EVERYTHING, Sampling
from nanoset_core.storage.location import Location, location
from nanoset_core.storage.places import has_etags, path_below, requests_at_once
from nanoset_core.storage.store import in_parallel
from nanoset_core.storage.working_copies import any_remote, copies_in
from nanoset_core.text.contents import Contents, contents_of
from nanoset_core.text.endings import ACCEPTED, is_text, suffix_of
from nanoset_core.text.listing import natural_key

TAR = ".tar"
_NEXT_TO_TARS = (*LISTS, "rejects.jsonl")
"""Text files that a shuffle writes next to its tars, and that are not input of another shuffle."""


@dataclass(frozen=True, slots=True)
class ShuffleInput:
    """One source of a shuffle."""

    name: str
    files: tuple[Location, ...]
    """Files in order, with absolute paths or in a bucket; a pair has its .bin and its .idx."""
    frequency: float = 1.0
    """How often each of its contexts occurs."""


@dataclass(frozen=True, slots=True)
class ShuffleInputs:
    """All sources of a shuffle, which are of one kind."""

    kind: InputKind
    """Whether the files are text, pairs or tars."""
    sources: tuple[ShuffleInput, ...]
    left_out: int = 0
    """Number of files that belong to no source, or to a source of frequency 0."""
    notices: tuple[str, ...] = ()
    """Messages about other files in folders of text, which are not read."""

    @property
    def files(self) -> list[Location]:
        """All files of all sources, in order."""
        return [file for _, file in self._files_of_sources()]

    def _files_of_sources(self) -> Iterator[tuple[ShuffleInput, Location]]:
        """Yield every file with its source, in order."""
        for source in self.sources:
            for file in source.files:
                yield source, file

    @property
    def frequencies(self) -> dict[str, float]:
        """Source → how often each of its contexts occurs."""
        return {source.name: source.frequency for source in self.sources}

    def state(self) -> list[list[object]]:
        """Return a description of the files that changes if a file changes, as JSON values.

        By it, a later call knows whether its input is the same, and resumes or keeps the tars.

        Returns:
            For each file: name and frequency of its source, path, size and version. The version is
            the time of modification, or a number computed from the ETag in a bucket.
        """
        stats = in_parallel(lambda file: file.stat(), self.files, requests_at_once(self.files))
        state: list[list[object]] = []
        for (source, file), stat in zip(self._files_of_sources(), stats, strict=True):
            # The status of an object has a number that is computed from its ETag in `st_ino`.
            version = stat.st_ino if has_etags(file) else stat.st_mtime_ns
            state.append([source.name, source.frequency, str(file), stat.st_size, version])
        return state

    def with_local_copies(self, folder: Path) -> ShuffleInputs:
        """Return these inputs, with local copies of pairs and tars that are in a bucket.

        Text stays where it is, since it is read only once.

        Args:
            folder: Where the copies go.
        """
        if self.kind == "text" or not any_remote(self.files):
            return self
        # The copies are in the order of all files: divide them among the sources.
        copies = list(copies_in(folder, self.files))
        sources: list[ShuffleInput] = []
        start = 0
        for source in self.sources:
            stop = start + len(source.files)
            sources.append(replace(source, files=tuple(copies[start:stop])))
            start = stop
        return replace(self, sources=tuple(sources))


def find_inputs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    extension: str | None = None,
    shuffle_only: bool = False,
    sampling: Sampling | None = None,
    output: Location | None = None,
) -> ShuffleInputs:
    """Find the sources that paths on the command line name.

    Args:
        paths: Prefixes of .bin/.idx pairs, files, or folders, whose files are read in natural
            order. A folder that has tars is an input of tars. Each path may be in a bucket, as
            s3://bucket/path; all text must be in one bucket, or on this machine.
        extension: Ending of the files to take from folders. None: all endings of text, or `.tar`.
        shuffle_only: Whether the input is tars.
        sampling: Which files form a source, and its frequency. None: all files are one source,
            `input`; each pair is a source.
        output: Folder of the output. If it is in an input folder, its files are not read.

    Raises:
        MissingError: A path does not exist.
        ConfigError: Several kinds of input are mixed.
        InputError: There is nothing to read.
    """
    locations = [location(path).absolute() for path in paths]
    if _are_pairs(locations):
        inputs = _pairs(locations, sampling)
    else:
        listings = [_files_at(path, extension, shuffle_only, output) for path in locations]
        files = list(chain.from_iterable(listing.files for listing in listings))
        notices = list(chain.from_iterable(listing.notices for listing in listings))
        inputs = _texts_or_tars(files, shuffle_only, sampling or EVERYTHING, notices)
    if not inputs.sources:
        raise InputError(
            "no input belongs to a source that is used",
            where="--sampling",
            found=f"{inputs.left_out} inputs",
            remedy="add a marker that a path holds, or raise a frequency above 0",
        )
    return inputs


def _are_pairs(paths: Sequence[Location]) -> bool:
    """Return whether paths are prefixes of .bin/.idx pairs, rather than files or folders.

    Args:
        paths: The paths. One is the prefix of a pair if both files of the pair exist.

    Raises:
        ConfigError: Some are, and others are not.
    """
    are_pairs = [is_pair(path) for path in paths]
    if any(are_pairs) and not all(are_pairs):
        raise ConfigError(
            "pairs and files are mixed",
            found=", ".join(map(str, paths)),
            remedy="shuffle them separately, or tokenize the text first",
        )
    return any(are_pairs)


def _pairs(prefixes: Sequence[Location], sampling: Sampling | None) -> ShuffleInputs:
    """Return each .bin/.idx pair as a source of a shuffle, except those that `sampling` leaves out.

    Args:
        prefixes: Prefixes of the pairs: paths without .bin and .idx.
        sampling: How often each pair is used; None uses all of them once.
    """
    remedy = "name it once; --sampling says how often a dataset is read"
    check_different_datasets(prefixes, "--input", remedy)
    sources: list[ShuffleInput] = []
    for prefix, name in zip(prefixes, _names_of_pairs(prefixes), strict=True):
        frequency = 1.0 if sampling is None else sampling.frequency_of(prefix)
        if frequency:
            sources.append(ShuffleInput(name, pair_files(prefix), frequency))
    n_left_out = len(prefixes) - len(sources)
    return ShuffleInputs("datasets", tuple(sources), n_left_out)


def _names_of_pairs(prefixes: Sequence[Location]) -> list[str]:
    """Return a different name for each pair: the last part of its path, or else all of it.

    `a/web` and `a/code` are named `web` and `code`; `a/web` and `b/web` keep their paths.

    Args:
        prefixes: Paths of the pairs, without .bin and .idx.
    """
    names = [prefix.name for prefix in prefixes]
    if len(set(names)) == len(names):
        return names
    return [str(prefix) for prefix in prefixes]


def _texts_or_tars(
    files: list[Location],
    are_tars: bool,
    sampling: Sampling,
    notices: Sequence[str],
) -> ShuffleInputs:
    """Group files of text, or tars, into sources.

    For example, a file whose path contains "stack" belongs to the source CODE, by the rules of
    `sampling`.

    Args:
        files: The files, in order.
        are_tars: Whether all files are tars, whatever their names are.
        sampling: Says which files form a source, and how often its contexts occur.
        notices: Messages about other files, which are not read.

    Raises:
        ConfigError: There are both tars and other files, or a file is named twice.
    """
    check_different(files)
    kind = _kind_of(files, are_tars=are_tars)
    files_by_source = _files_by_source(files, sampling)
    sources: list[ShuffleInput] = []
    for name, source_files in files_by_source.items():
        if source_files:
            frequency = sampling.sampling_frequencies[name]
            sources.append(ShuffleInput(name, tuple(source_files), frequency))
    n_left_out = len(files) - sum(map(len, files_by_source.values()))
    return ShuffleInputs(kind, tuple(sources), n_left_out, tuple(notices))


def _kind_of(files: Sequence[Location], *, are_tars: bool) -> InputKind:
    """Return whether files are text or tars.

    A file is a tar if its name ends with .tar.

    Args:
        files: The files.
        are_tars: Whether all of them are tars, whatever their names are.

    Raises:
        ConfigError: There are both tars and other files.
    """
    n_tars = len(files) if are_tars else sum(file.name.endswith(TAR) for file in files)
    if 0 < n_tars < len(files):
        raise ConfigError(
            "tars and text are mixed",
            found=f"{n_tars} tars and {len(files) - n_tars} other files",
            remedy="shuffle them separately",
        )
    return "tars" if n_tars else "text"


def _files_by_source(files: Sequence[Location], sampling: Sampling) -> dict[str, list[Location]]:
    """Group files by their source; those that belong to no source are left out.

    Args:
        files: The files, in order.
        sampling: Says which source a file belongs to.

    Returns:
        Name of each source → its files, in the order of the sources, which numbers the contexts.
    """
    files_by_source: dict[str, list[Location]] = {source.source: [] for source in sampling.sources}
    for file in files:
        name = sampling.source_of(file)
        if name is not None:
            files_by_source[name].append(file)
    return files_by_source


@dataclass(frozen=True, slots=True)
class _Listing:
    """The files that a path on the command line names."""

    files: list[Location]
    notices: Sequence[str] = ()
    """Messages about other files in the folder, which are not read."""
    ending: str | None = None
    """Ending of these files, if only files of a folder with one ending are read."""


def _files_at(
    path: Location,
    extension: str | None,
    shuffle_only: bool,
    output: Location | None,
) -> _Listing:
    """Return the files that a path names: the file itself, or the files below a folder.

    Args:
        path: The path.
        extension: Ending of the files to take from a folder. None: `.tar` if it has tars, otherwise
            all endings of text.
        shuffle_only: Whether the input is tars.
        output: Folder of the output, whose files are not read.

    Raises:
        MissingError: The path does not exist.
        InputError: The folder has no file with the right ending.
        ConfigError: The folder has both tars and text.
    """
    if path.is_file():
        return _Listing([path])
    if not path.is_dir():
        raise MissingError(
            "no such file, folder or pair",
            where=path,
            expected="a file, a folder, or a prefix with its .bin and .idx",
            remedy="name an existing one with --input",
        )
    contents = _contents(path, output)
    listing = _files_in(path, contents, extension, shuffle_only)
    if not listing.files:
        raise InputError(
            "no file to read",
            where=path,
            expected=f"files ending in {listing.ending or f'{ACCEPTED}, or {TAR}'}",
            remedy="name their ending with --ext",
        )
    return listing


def _files_in(
    folder: Location, contents: Contents, extension: str | None, shuffle_only: bool
) -> _Listing:
    """Return the input files in a folder: those with one ending, its tars, or its text.

    For example, in a folder with a.jsonl, b.jsonl and notes.pdf, these are a.jsonl and b.jsonl.

    Args:
        folder: The folder.
        contents: Its files.
        extension: Ending that the user has named, or None.
        shuffle_only: Whether the input is tars.

    Raises:
        ConfigError: The folder has both tars and text.
    """
    texts = [file.path for file in contents.ordered]
    names = sorted([*texts, *contents.unread], key=natural_key)
    ending = extension
    if ending is None:
        ending = _ending_of_tars(folder, names, shuffle_only=shuffle_only)
    if ending is None:
        return _Listing([folder / text for text in texts], _notices(folder, contents))

    # The user knows that files with other endings are not read, and gets no notices.
    return _Listing([folder / name for name in names if name.endswith(ending)], ending=ending)


def _notices(folder: Location, contents: Contents) -> list[str]:
    """Return messages about files in a folder of text that are not read, and might be meant to be.

    Args:
        folder: The folder.
        contents: Its files.
    """
    notices = [notice.text for notice in contents.notices() if not notice.is_expected]
    return [f"{folder}: {notice}" for notice in notices]


def _ending_of_tars(folder: Location, names: Sequence[str], *, shuffle_only: bool) -> str | None:
    """Return `.tar` if a folder is an input of tars, and None if it is one of text.

    A folder that has tars is an input of tars. It must not have text, which would be ignored.

    Args:
        folder: The folder.
        names: Names of all its files.
        shuffle_only: Whether the input is tars in any case.

    Raises:
        ConfigError: The folder has both tars and text.
    """
    if shuffle_only:
        return TAR
    if not any(name.endswith(TAR) for name in names):
        return None
    _check_no_text(folder, names)
    return TAR


def _contents(folder: Location, output: Location | None) -> Contents:
    """Return the files in a folder, except those of the output if it is below the folder.

    Args:
        folder: A folder of the input.
        output: Folder of the output; None if there is none.
    """
    contents = contents_of(folder)
    if output is None:
        return contents
    output_path = path_below(output, folder)
    if output_path is None:
        return contents
    return contents.without(lambda path: f"{path}/".startswith(f"{output_path}/"))


def _check_no_text(folder: Location, names: Sequence[str]) -> None:
    """Check that a folder of tars has no text, which would be ignored.

    Lists and indexes that tools write next to tars, such as index.json, are allowed, although they
    have endings of text.

    Args:
        folder: The folder, for the error.
        names: Names of all its files.

    Raises:
        ConfigError: The folder has text.
    """
    texts = [name for name in names if is_text(name) and not _is_list_of_tars(name)]
    if not texts:
        return
    n_tars = sum(name.endswith(TAR) for name in names)
    raise ConfigError(
        "tars and text are mixed",
        where=folder,
        found=f"{n_tars} tars and {len(texts)} texts, such as {texts[0]}",
        remedy=(
            "choose one kind: --shuffle-only takes the tars, "
            "--ext .jsonl the texts with this ending"
        ),
    )


def _is_list_of_tars(path: str) -> bool:
    """Return whether a file may be a list or an index that a tool writes next to tars."""
    is_index = suffix_of(path) == ".json"  # of any tool
    is_list = path.rpartition("/")[2] in _NEXT_TO_TARS  # of `nanoset shuffle`
    return is_index or is_list
