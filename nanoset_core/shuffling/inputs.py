"""Find what a command line names as input of a shuffle (raw text, .bin/.idx pairs or tars), and prepare its tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.indexed.layout import pair_files, prefix_of
from nanoset_core.outputs.recorded import real_path
from nanoset_core.raw.contents import Contents, contents_of, natural_key
from nanoset_core.raw.endings import ACCEPTED, is_text, suffix_of
from nanoset_core.shuffling.dclm import Sampling
from nanoset_core.shuffling.options import InputKind, ShuffleOptions, text_options
from nanoset_core.shuffling.sources import TokenSource
from nanoset_core.shuffling.tar_input import TarInput, flatten_tars, survey_tars
from nanoset_core.shuffling.webdataset import LISTS
from nanoset_core.storage.location import Location, location, on_this_machine
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel
from nanoset_core.storage.working_copies import any_remote, copies_in
from nanoset_core.tokenization.inputs import files_of
from nanoset_core.tokenization.preprocess import Preprocessed, preprocess
from nanoset_core.tokenization.tokenizer import tokenizer_facts

TAR = ".tar"
_BESIDE_TARS = (*LISTS, "rejects.jsonl")


@dataclass(frozen=True, slots=True)
class ShuffleInput:
    """One source of a shuffle."""

    name: str
    """Name of the source."""
    paths: tuple[Location, ...]
    """Files, or one prefix of a pair, absolute or in a bucket, and in order."""
    frequency: float = 1.0
    """How often each of its contexts occurs."""


@dataclass(frozen=True, slots=True)
class ShuffleInputs:
    """All sources, of one kind."""

    kind: InputKind
    """What the paths are."""
    sources: tuple[ShuffleInput, ...]
    """In the order that numbers the contexts."""
    left_out: int = 0
    """Files that belong to no source, or to one of frequency 0."""
    notices: tuple[str, ...] = ()
    """What else is in folders of text, and is not read."""

    @property
    def files(self) -> list[Location]:
        """All files, in order."""
        return [path for source in self.sources for path in self._files(source)]

    def _files(self, source: ShuffleInput) -> list[Location]:
        if self.kind != "datasets":
            return list(source.paths)
        return [file for prefix in source.paths for file in pair_files(prefix)]

    def state(self) -> list[list[object]]:
        """Return what changes when an input changes: of each file its path, size, and time of change or ETag."""
        files = [(source, file) for source in self.sources for file in self._files(source)]
        return in_parallel(_state, files, CONNECTIONS if any_remote(self.files) else 1)

    def here(self, folder: Path) -> ShuffleInputs:
        """Return the same on this machine: pairs and tars of a bucket as copies in a folder, text where it is."""
        if self.kind == "text" or not any_remote(self.files):
            return self
        files = self.files
        copies = dict(zip(files, copies_in(folder, files), strict=True))
        if self.kind == "datasets":
            prefixes = [prefix for source in self.sources for prefix in source.paths]
            copies = {prefix: prefix_of(copies[pair_files(prefix)[0]]) for prefix in prefixes}
        sources = (replace(source, paths=tuple(copies[path] for path in source.paths)) for source in self.sources)
        return replace(self, sources=tuple(sources))


def _state(given: tuple[ShuffleInput, Location]) -> list[object]:
    source, file = given
    stat = file.stat()
    mark = stat.st_mtime_ns if isinstance(file, Path) else stat.st_ino
    return [source.name, source.frequency, str(file), stat.st_size, mark]


def find_inputs(
    given: Sequence[str | os.PathLike[str]],
    *,
    extension: str | None = None,
    shuffle_only: bool = False,
    sampling: Sampling | None = None,
    output: Location | None = None,
) -> ShuffleInputs:
    """Find the sources that paths name: prefixes of .bin/.idx pairs, or files and folders of text, or of tars.

    Each may be in a bucket, as s3://bucket/path; all text must be in one bucket, or on this machine.

    Args:
        given: prefixes, files and folders; folders are read in natural order; one that holds tars
            is a folder of tars.
        extension: take the files of folders that end so; default: texts, or `.tar`.
        shuffle_only: the input is tars.
        sampling: groups files into sources, with their frequencies; without it all files are one source, `input`,
            and each pair is one.
        output: a folder below one of these, of which no file is an input.

    Raises:
        MissingError: a path that names nothing.
        InputError: an empty folder, a file named twice, or no file of a source with a frequency above 0.
        ConfigError: pairs, text and tars are mixed.
    """
    paths = [path.absolute() if isinstance(path, Path) else path for path in map(location, given)]
    pairs = [all(file.is_file() for file in pair_files(path)) for path in paths]
    if all(pairs) and paths:
        return _pairs(paths, sampling)
    if any(pairs):
        remedy = "shuffle them apart, or tokenize the text first"
        raise ConfigError("pairs and files are mixed", found=", ".join(map(str, paths)), remedy=remedy)
    found = [_files(path, extension, shuffle_only, output) for path in paths]
    files = [file for listed, _ in found for file in listed]
    notices = tuple(notice for _, about in found for notice in about)
    if len(set(files)) != len(files):
        twice = next(file for file in files if files.count(file) > 1)
        raise InputError("a file is named twice", where=twice, remedy="name it once")
    tars = sum(file.name.endswith(TAR) or shuffle_only for file in files)
    if 0 < tars < len(files):
        counts = f"{tars} tars and {len(files) - tars} other files"
        raise ConfigError("tars and text are mixed", found=counts, remedy="shuffle them apart")
    kind: InputKind = "tars" if tars else "text"
    if sampling is None:
        return ShuffleInputs(kind, (ShuffleInput("input", tuple(files)),), notices=notices)
    groups = sampling.group([str(file) for file in files])
    sources = tuple(
        ShuffleInput(name, tuple(files[number] for number in numbers), sampling.sampling_frequencies[name])
        for name, numbers in groups.items()
    )
    return _checked(ShuffleInputs(kind, sources, len(files) - sum(map(len, groups.values())), notices))


def _pairs(prefixes: Sequence[Location], sampling: Sampling | None) -> ShuffleInputs:
    names = [prefix.name for prefix in prefixes]
    names = names if len(set(names)) == len(names) else [str(prefix) for prefix in prefixes]
    found = [
        ShuffleInput(name, (prefix,), frequency)
        for name, prefix in zip(names, prefixes, strict=True)
        if (frequency := 1.0 if sampling is None else sampling.frequency_of(str(prefix)))
    ]
    return _checked(ShuffleInputs("datasets", tuple(found), len(prefixes) - len(found)))


def _checked(inputs: ShuffleInputs) -> ShuffleInputs:
    if not inputs.sources:
        raise InputError(
            "no input belongs to a source that is used",
            where="--sampling",
            found=f"{inputs.left_out} inputs",
            expected="a marker that is part of a path, and a frequency above 0",
            remedy="add a marker that a path holds, or raise a frequency above 0",
        )
    return inputs


def _files(
    path: Location, extension: str | None, shuffle_only: bool, output: Location | None
) -> tuple[list[Location], list[str]]:
    """Return the files of one input, and notices."""
    if path.is_file():
        return [path], []
    if not path.is_dir():
        expected, remedy = "a file, a folder, or a prefix with its .bin and .idx", "name an existing one with --input"
        raise MissingError("no such file, folder or pair", where=path, expected=expected, remedy=remedy)
    contents = _without(contents_of(path), _below(path, output))
    listed = sorted([*(file.path for file in contents.texts), *contents.others], key=natural_key)
    notices: list[str] = []
    ending = extension or (TAR if shuffle_only or any(name.endswith(TAR) for name in listed) else None)
    if ending is None:
        notices = [f"{path}: {notice.text}" for notice in contents.notices()]
    elif not extension and not shuffle_only:
        _check_no_text(path, listed)
    found = [path / name for name in listed if (is_text(name) if ending is None else name.endswith(ending))]
    if not found:
        expected = f"files ending in {ending or f'{ACCEPTED}, or {TAR}'}"
        raise InputError("no file to read", where=path, expected=expected, remedy="name their ending with --ext")
    return found, notices


def _without(contents: Contents, own: str | None) -> Contents:
    """Return what is in a folder, without what is in the output."""
    if own is None:
        return contents
    return Contents(
        tuple(file for file in contents.texts if not file.path.startswith(own)),
        tuple(path for path in contents.others if not path.startswith(own)),
        tuple(path for path in contents.no_files if not f"{path}/".startswith(own)),
    )


def _below(folder: Location, output: Location | None) -> str | None:
    """Return how paths of the output's files begin, seen from a folder; None where it is not below that folder."""
    if output is None or isinstance(output, Path) is not isinstance(folder, Path):
        return None
    path = os.path.relpath(real_path(output), real_path(folder))
    return None if path == "." or path.split(os.sep)[0] == ".." else f"{Path(path).as_posix()}/"


def _check_no_text(folder: Location, names: Sequence[str]) -> None:
    """Raise ConfigError where text is among tars, besides the lists and indexes that tools leave beside them."""
    texts = [name for name in names if is_text(name) and suffix_of(name) != ".json"]
    texts = [name for name in texts if name.rpartition("/")[2] not in _BESIDE_TARS]
    if texts:
        tars = sum(name.endswith(TAR) for name in names)
        found = f"{tars} tars and {len(texts)} texts, such as {texts[0]}"
        remedy = "name one kind: --shuffle-only takes the tars, --ext .jsonl the texts that end so"
        raise ConfigError("tars and text are mixed", where=folder, found=found, remedy=remedy)


@dataclass(frozen=True, slots=True)
class Prepared:
    """Token sources, ready to be cut."""

    sources: tuple[TokenSource, ...]
    """In the order that numbers the contexts."""
    streams: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Source → tokens of each of its files, where files are cut on their own."""
    texts: tuple[Preprocessed, ...] = ()
    """Of each source of text: what was read, written and lost."""
    sequence_length: int | None = None
    """Tokens in contexts that come ready-made from tars."""


def prepare(
    inputs: ShuffleInputs, options: ShuffleOptions, folder: Path, *, listener: ProgressCallback = silent
) -> Prepared:
    """Return the token sources of inputs; text and tars become token files in `folder`, unless they are there already.

    Raises:
        ConfigError: the contexts of tars have another length than the one that is asked for.
        NanosetError: as `preprocess`, `survey_tars` and `flatten_tars`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = inputs.here(folder / "copies")
    if inputs.kind == "text":
        return _tokenized(inputs, options, folder, listener)
    if inputs.kind == "datasets":
        pairs = (TokenSource.of_dataset(source.name, on_this_machine(source.paths[0])) for source in inputs.sources)
        return Prepared(tuple(pairs))
    surveys = survey_sources(inputs, options)
    length = surveys[0].sequence_length
    if options.sequence_length not in (None, length):
        what, expected = "the contexts of tars stay as they are", f"{length}, which they have"
        remedy = "leave --seqlen out, or cut other contexts from the text"
        raise ConfigError(what, where="--seqlen", found=options.sequence_length, expected=expected, remedy=remedy)
    sources = []
    for source, survey in zip(inputs.sources, surveys, strict=True):
        path = flatten_tars(survey, folder / source.name, workers=options.processes, listener=listener)
        sources.append(TokenSource.of_file(source.name, path, survey.dtype))
    return Prepared(tuple(sources), sequence_length=length)


def _tokenized(inputs: ShuffleInputs, options: ShuffleOptions, folder: Path, listener: ProgressCallback) -> Prepared:
    """Tokenize the text of each source into a pair; with the preset tokshuf each file is a stream of its own."""
    settings = text_options(options)
    texts = {
        source.name: preprocess(files_of(source.paths), folder / source.name, settings, listener=listener)[0]
        for source in inputs.sources
    }
    sources = (TokenSource.of_dataset(name, on_this_machine(done.prefix)) for name, done in texts.items())
    streams = {
        name: tuple(done.tokens_by_file.values()) for name, done in texts.items() if done.tokens_by_file is not None
    }
    return Prepared(tuple(sources), streams, tuple(texts.values()))


def survey_sources(inputs: ShuffleInputs, options: ShuffleOptions) -> list[TarInput]:
    """Return what the tars of each source hold; all contexts must have the length and dtype of the first.

    Raises:
        ConfigError, FormatError: as `survey_tars`.
    """
    found: list[TarInput] = []
    length, dtype = None, None if options.tokenizer is None else tokenizer_facts(options.tokenizer).dtype.name
    for source in inputs.sources:
        tars = [on_this_machine(path) for path in source.paths]
        found.append(survey_tars(tars, data_key=options.data_key, dtype=dtype, sequence_length=length))
        length, dtype = found[-1].sequence_length, found[-1].dtype
    return found
