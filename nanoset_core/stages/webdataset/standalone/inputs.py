"""Find the input files of `nanoset shuffle`: raw text, .bin/.idx pairs or tars.

Paths on the command line are files, folders, or prefixes of pairs: `--input text/` names all text
files in a folder, and `--input data/web` the pair data/web.bin and data/web.idx. All inputs must be
of one kind. They are divided into sources, which may be sampled with different frequencies.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.formats.indexed.identity import check_different_datasets
from nanoset_core.formats.indexed.layout import is_pair, pair_files
from nanoset_core.formats.indexed.pairs import prefix_of
from nanoset_core.outputs.recorded_tokenization import check_same_tokenizer
from nanoset_core.stages.shards.standalone.inputs import check_different
from nanoset_core.stages.webdataset.lists import LISTS
from nanoset_core.stages.webdataset.standalone.options import InputKind
from nanoset_core.stages.webdataset.standalone.sampling import EVERYTHING, Sampling
from nanoset_core.storage.copies.temporary import any_remote, copies_in
from nanoset_core.storage.location import Location, location
from nanoset_core.storage.places import is_here, path_below, requests_at_once, takes_requests
from nanoset_core.storage.regular_files import check_no_pipe
from nanoset_core.storage.requests import in_parallel
from nanoset_core.text.files.contents import Contents, contents_of
from nanoset_core.text.files.endings import ACCEPTED, is_text, suffix_of
from nanoset_core.text.files.listing import natural_key

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

    @property
    def pair_prefix(self) -> Location:
        """Path of its pair without .bin and .idx, if the source is a pair."""
        bin_file = self.files[0]
        return bin_file.with_name(bin_file.name.removesuffix(".bin"))


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
        """Describe the input files so that a later call can tell whether one of them has changed.

        A shuffle stores this description next to its output. If it is called again, and the
        description is the same, it keeps what it has written. For example, one entry of a file:

            ["web", 1.0, "/data/a.jsonl", 5120, 1764288000000000000]

        Returns:
            For each file: name of its source (a group of files), how often the source is read,
            path, size in bytes, and the time of the last modification. A file in a bucket has a
            number instead of the time, which is computed from its ETag, the version in the bucket.
        """
        stats = in_parallel(lambda file: file.stat(), self.files, requests_at_once(self.files))
        state: list[list[object]] = []
        for (source, file), stat in zip(self._files_of_sources(), stats, strict=True):
            if takes_requests(file):
                version = stat.st_ino  # computed from the ETag
            else:
                version = stat.st_mtime_ns
            state.append([source.name, source.frequency, str(file), stat.st_size, version])
        return state

    def with_local_copies(self, folder: Path) -> ShuffleInputs:
        """Return these inputs, with files that are in a bucket (such as S3) copied to this machine.

        Tars and .bin/.idx pairs are read at random places, which is slow in a bucket. Text is read
        only once, from start to end, so it is not copied.

        Args:
            folder: Where the copies go.
        """
        if self.kind == "text" or not any_remote(self.files):
            return self
        copies = iter(copies_in(folder, self.files))  # of the files of all sources, in order
        sources: list[ShuffleInput] = []
        for source in self.sources:
            copies_of_source = tuple(islice(copies, len(source.files)))
            sources.append(replace(source, files=copies_of_source))
        return replace(self, sources=tuple(sources))


def find_inputs(
    paths: Sequence[str | os.PathLike[str]],
    *,
    extension: str | None = None,
    shuffle_only: bool = False,
    sampling: Sampling | None = None,
    output: Location | None = None,
) -> ShuffleInputs:
    """Find the files that the user wants to shuffle, and group them into sources.

    A path on the command line can be:

        text/            a folder: all its text files, or all its tars if it has some
        text/a.jsonl     a file
        data/web         the pair data/web.bin and data/web.idx, a dataset of tokens
        data/web.bin     the same pair

    A source is a group of files that are read equally often. By default, all files are one source,
    named `input`, and each pair is a source.

    Args:
        paths: The paths. Each may be in a bucket, as s3://bucket/path; all text must be in one
            bucket, or on this machine. Files of a folder are read in natural order.
        extension: Ending of the files to take from folders, such as ".jsonl". None: all endings of
            text, or `.tar`.
        shuffle_only: Whether the input is tars.
        sampling: Which files form a source, and how often it is read, if the user wants it
            otherwise.
        output: Folder of the output. If it is in an input folder, its files are not read.

    Raises:
        MissingError: A path does not exist.
        ConfigError: Several kinds of input are mixed.
        InputError: There is nothing to read.
    """
    locations = [_pair_or_file(location(path).absolute()) for path in paths]
    if _are_pairs(locations):
        inputs = _pairs(locations, sampling)
    else:
        files: list[Location] = []
        notices: list[str] = []
        for path in locations:
            listing = _files_at(path, extension, shuffle_only, output)
            files.extend(listing.files)
            notices.extend(listing.notices)
        inputs = _grouped_by_source(files, shuffle_only, sampling or EVERYTHING, notices)

    if not inputs.sources:
        raise InputError(
            "no input belongs to a source that is used",
            where="--sampling",
            found=f"{inputs.left_out} inputs",
            remedy="add a marker that a path holds, or raise a frequency above 0",
        )
    return inputs


def _pair_or_file(path: Location) -> Location:
    """Return the prefix of a pair if a path is that of one of its two files, or the path itself.

        data/web.bin      data/web, if data/web.bin and data/web.idx exist
        text/a.jsonl      text/a.jsonl

    Args:
        path: A path on the command line.
    """
    prefix = prefix_of(path)
    if prefix != path and is_pair(prefix):
        return prefix
    return path


def _are_pairs(paths: Sequence[Location]) -> bool:
    """Return whether the paths on the command line name .bin/.idx pairs, and no other files.

    A pair is a dataset of tokens, which the user names without the endings:

        data/web         is a pair if data/web.bin and data/web.idx exist
        text/a.jsonl     is a file

    Args:
        paths: The paths.

    Raises:
        ConfigError: Some paths are pairs, and others are not. They cannot be shuffled together.
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
    """Return the token datasets that the user wants to shuffle, and how often each is to be read.

    A dataset is a pair of files, such as data/web.bin and data/web.idx. Each becomes a source of
    the shuffle with a frequency: with 2.5, all its samples occur twice, and half of them once more.
    With 0, the dataset is left out, and only counted.

    Args:
        prefixes: Paths of the pairs without their endings, such as data/web.
        sampling: Says how often each dataset is read. None: all are read once.

    Raises:
        ConfigError: A dataset is named twice.
        FormatError: Two datasets have different tokenizers.
    """
    remedy = "name it once; --sampling says how often a dataset is read"
    check_different_datasets(prefixes, "--input", remedy)
    check_same_tokenizer(prefixes)
    sources: list[ShuffleInput] = []
    for prefix, name in zip(prefixes, _names_of_pairs(prefixes), strict=True):
        if sampling is None:
            frequency = 1.0
        else:
            frequency = sampling.frequency_of(prefix)
        if frequency > 0:
            sources.append(ShuffleInput(name, pair_files(prefix), frequency))
    n_left_out = len(prefixes) - len(sources)
    return ShuffleInputs("datasets", tuple(sources), n_left_out)


def _names_of_pairs(prefixes: Sequence[Location]) -> list[str]:
    """Return a different name for each token dataset that the user names by its path.

        paths              names
        a/web, a/code      web, code
        a/web, b/web       a/web, b/web     (the last parts are the same)

    Args:
        prefixes: Paths of the .bin/.idx pairs, without their endings.
    """
    names = [prefix.name for prefix in prefixes]
    if len(set(names)) == len(names):
        return names
    return [str(prefix) for prefix in prefixes]


def _grouped_by_source(
    files: list[Location],
    are_tars: bool,
    sampling: Sampling,
    notices: Sequence[str],
) -> ShuffleInputs:
    """Group the files that the user wants to shuffle into sources.

    All files of a source are read equally often. The user may have named sources, and say which
    files belong to each, by a part of their paths. Otherwise, all files are one source. For
    example, with two sources:

        name    part of the paths    is read      files
        CODE    stack                once         in/stack/a.jsonl, in/stack/b.jsonl
        WEB     crawl                2.5 times    in/crawl/c.jsonl
        (none: left out, and counted)             in/readme.txt

    Args:
        files: The files, in order.
        are_tars: Whether all files are tars, whatever their names are.
        sampling: The sources: which files belong to them, and how often they are read.
        notices: Messages about other files, which are not read. They become part of the result.

    Raises:
        ConfigError: There are both tars and other files, or a file is named twice.
    """
    check_different(files)
    kind = _kind_of(files, are_tars=are_tars)  # "tars" or "text"
    sources: list[ShuffleInput] = []
    for name, files_of_source in _files_by_source(files, sampling).items():
        if files_of_source:
            frequency = sampling.sampling_frequencies[name]
            sources.append(ShuffleInput(name, tuple(files_of_source), frequency))

    # Files to which no rule applies are only counted.
    n_in_sources = sum(len(source.files) for source in sources)
    n_left_out = len(files) - n_in_sources
    return ShuffleInputs(kind, tuple(sources), n_left_out, tuple(notices))


def _kind_of(files: Sequence[Location], *, are_tars: bool) -> InputKind:
    """Return "tars" or "text": what kind of files the user wants to shuffle.

    The endings of their names decide. The kinds cannot be mixed, since text must be tokenized, and
    tars have tokens already:

        a.tar, b.tar          tars
        a.jsonl, b.txt        text
        a.tar, b.jsonl        an error

    Args:
        files: The files.
        are_tars: Whether the user says that all of them are tars, whatever their names are.

    Raises:
        ConfigError: There are both tars and other files.
    """
    if are_tars:
        n_tars = len(files)
    else:
        n_tars = sum(file.name.endswith(TAR) for file in files)
    n_others = len(files) - n_tars
    if n_tars > 0 and n_others > 0:
        raise ConfigError(
            "tars and text are mixed",
            found=f"{n_tars} tars and {n_others} other files",
            remedy="shuffle them separately",
        )
    return "tars" if n_tars > 0 else "text"


def _files_by_source(files: Sequence[Location], sampling: Sampling) -> dict[str, list[Location]]:
    """Group files by the source of text that they belong to; leave out files that belong to none.

    Rules say which source a file belongs to, by its path. If paths with "stack" belong to CODE,
    and paths with "crawl" to WEB:

        {"CODE": ["in/stack/a.jsonl", "in/stack/b.jsonl"], "WEB": ["in/crawl/c.jsonl"]}

    Args:
        files: The files, in order.
        sampling: The rules.

    Returns:
        Name of each source → its files. The order of the sources is that of the rules.
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
    """Return the files that a path on the command line means: a file, or those of a folder.

    Args:
        path: The path, such as text/ or text/a.jsonl.
        extension: Ending of the files to take from a folder, such as ".jsonl". None: ".tar" if the
            folder has tars, otherwise all endings of text.
        shuffle_only: Whether the user has set --shuffle-only, which takes only tars.
        output: Folder that the output is written to. Its files are not read.

    Raises:
        MissingError: The path does not exist.
        InputError: The folder has no file with the right ending, or the path is that of a pipe.
        ConfigError: The folder has both tars and text.
    """
    if path.is_file():
        return _Listing([path])
    if is_here(path):
        check_no_pipe(path)
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
        endings = listing.ending  # such as ".jsonl"
        if endings is None:
            endings = f"{ACCEPTED}, or {TAR}"  # all that can be read
        raise InputError(
            "no file to read",
            where=path,
            expected=f"files ending in {endings}",
            remedy="name their ending with --ext",
        )
    return listing


def _files_in(
    folder: Location, contents: Contents, extension: str | None, shuffle_only: bool
) -> _Listing:
    """Choose which files of a folder are shuffled, if the user names the folder as input.

        files of the folder              option          chosen
        a.jsonl, b.txt, notes.pdf                        a.jsonl, b.txt    (its text)
        a.tar, b.tar, index.json                         a.tar, b.tar      (its tars)
        a.jsonl, b.txt, notes.pdf        --ext .jsonl    a.jsonl

    Args:
        folder: The folder.
        contents: Its files.
        extension: Ending that the user has named, or None.
        shuffle_only: Whether the user has set --shuffle-only, which takes only tars.

    Raises:
        ConfigError: The folder has both tars and text.
    """
    texts = [file.path for file in contents.ordered]  # files of known kinds of text
    all_names = sorted([*texts, *contents.unread], key=natural_key)
    ending = extension
    if ending is None and _has_tars_to_shuffle(folder, all_names, shuffle_only=shuffle_only):
        ending = TAR
    if ending is None:
        files = [folder / text for text in texts]
        return _Listing(files, _notices(folder, contents))
    files = [folder / name for name in all_names if name.endswith(ending)]
    return _Listing(files, ending=ending)


def _notices(folder: Location, contents: Contents) -> list[str]:
    """Return messages about files of an input folder that are not read, but may have been meant.

    In a folder of text, notes.pdf is such a file. Files that are usually next to text, and are not
    text, give no message.

    Args:
        folder: The folder, which each message begins with.
        contents: Its files.
    """
    notices = [notice.text for notice in contents.notices() if not notice.is_expected]
    return [f"{folder}: {notice}" for notice in notices]


def _has_tars_to_shuffle(folder: Location, names: Sequence[str], *, shuffle_only: bool) -> bool:
    """Return whether the tars of an input folder are to be shuffled, rather than its text.

        names                    shuffle_only    result
        a.tar, b.tar             False           True
        a.jsonl, b.txt           False           False
        a.tar, b.jsonl           False           an error, since the text would be ignored
        a.tar, b.jsonl           True            True

    Args:
        folder: The folder, for the error.
        names: Names of all its files.
        shuffle_only: Whether the user has said that the input is tars.

    Raises:
        ConfigError: The folder has both tars and text.
    """
    if shuffle_only:
        return True
    has_tars = any(name.endswith(TAR) for name in names)
    if has_tars:
        _check_no_text(folder, names)
    return has_tars


def _contents(folder: Location, output: Location | None) -> Contents:
    """Return the files of an input folder, without those that an earlier run has written there.

    If the input is data/ and the output goes to data/shuffled/, the files in data/shuffled/ are not
    input.

    Args:
        folder: A folder of the input.
        output: Folder of the output. None: there is none, such as for a preview.
    """
    contents = contents_of(folder)
    if output is None:
        return contents
    output_path = path_below(output, folder)  # "shuffled"; None if it is not below the folder
    if output_path is None:
        return contents
    # The slashes keep data/shuffled-2/ from being taken for a part of data/shuffled/.
    return contents.without(lambda path: f"{path}/".startswith(f"{output_path}/"))


def _check_no_text(folder: Location, names: Sequence[str]) -> None:
    """Check that a folder of tars has no text files, which would be ignored.

    A user who names such a folder as input may want the text. Files that tools write next to tars,
    such as index.json, are allowed, although their names look like text:

        a.tar, b.tar, index.json        correct
        a.tar, b.tar, c.jsonl           an error

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
