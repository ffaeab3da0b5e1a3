"""Find what a command line names as input of a shuffle (raw text, .bin/.idx pairs or tars), and prepare its tokens.

DCLM's data-set file says which source a file belongs to, and how often it is sampled (the rule of OpenLM's
`tokenize_shuffle.py`, `--default_dataset_yaml`)::

    sources:
    - {source: CC, markers: [commoncrawl, cc-main]}
    - {source: CODE, markers: [stack]}
    sampling_frequencies: {CC: 0.5, CODE: 2.0}

A file belongs to the first source of which a marker is part of its path; files of no source, and sources without a
frequency, are left out.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from nanoset_core.errors import ConfigError, InputError, MissingError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.formats.indexed.identity import check_different_datasets
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.formats.tars.tar_input import TarInput, flatten_tars, passed_over_text, survey_tars
from nanoset_core.outputs.names import check_corpus_name
from nanoset_core.outputs.recorded import real_path
from nanoset_core.records.parsing import FrozenDict, parse, read_yaml
from nanoset_core.records.settings import Range
from nanoset_core.stages.shards.inputs import check_different, files_of
from nanoset_core.stages.shards.preprocess import Preprocessed, preprocess
from nanoset_core.stages.webdataset.lists import LISTS
from nanoset_core.stages.webdataset.options import InputKind, ShuffleOptions, text_options
from nanoset_core.stages.webdataset.plan_settings import greatest_in_tars
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.storage.location import Location, location, on_this_machine
from nanoset_core.storage.s3_requests import CONNECTIONS
from nanoset_core.storage.store import in_parallel
from nanoset_core.storage.working_copies import any_remote, copies_in
from nanoset_core.text.contents import Contents, contents_of, natural_key
from nanoset_core.text.endings import ACCEPTED, is_text, suffix_of
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

TAR = ".tar"
_BESIDE_TARS = (*LISTS, "rejects.jsonl")


@dataclass(frozen=True, slots=True)
class Source:
    """One source of DCLM's file."""

    source: str
    markers: tuple[str, ...]
    """A file whose path holds one of them belongs to the source."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """All of DCLM's file."""

    sources: tuple[Source, ...]
    """In order: a file belongs to the first that fits."""
    sampling_frequencies: Mapping[str, Annotated[float, Range(0, 1e6)]] = field(default_factory=FrozenDict)
    """Source → how often each of its contexts occurs."""

    def source_of(self, path: Location) -> str | None:
        """Return the first source of which a marker is in the path; None where it has none, or one of frequency 0."""
        fitting = (one.source for one in self.sources if any(marker in str(path) for marker in one.markers))
        name = next(fitting, None)
        return name if self.sampling_frequencies.get(name or "") else None

    def frequency_of(self, path: Location) -> float:
        """Return how often each context of a file occurs; 0 where it is left out."""
        return self.sampling_frequencies.get(self.source_of(path) or "", 0.0)


def load_sampling(path: Path) -> Sampling:
    """Read DCLM's file; raise MissingError or ConfigError where it is not there, or not such a file."""
    try:
        value, _ = read_yaml(path, remedy="write YAML as in the example of DCLM's --default_dataset_yaml")
        sampling: Sampling = parse(Sampling, value, "", path)
    except OSError as error:
        remedy = "correct the path of --sampling"
        raise MissingError("no such file of sources", where=path, found=error.strerror, remedy=remedy) from error
    names = [source.source for source in sampling.sources]
    for name in names:
        check_corpus_name(name, f"{path}: sources")
    unknown = [name for name in sampling.sampling_frequencies if name not in names]
    if unknown or len(set(names)) != len(names):
        found = f"frequency of {', '.join(unknown)}" if unknown else f"sources {', '.join(names)}"
        what, remedy = "sources and frequencies do not go together", "name each source once, and give these frequencies"
        raise ConfigError(what, where=path, found=found, remedy=remedy)
    return sampling


@dataclass(frozen=True, slots=True)
class ShuffleInput:
    """One source of a shuffle."""

    name: str
    files: tuple[Location, ...]
    """Absolute or in a bucket, and in order; of a pair the .bin and the .idx."""
    frequency: float = 1.0
    """How often each of its contexts occurs."""


@dataclass(frozen=True, slots=True)
class ShuffleInputs:
    """All sources, of one kind."""

    kind: InputKind
    """What the paths are."""
    sources: tuple[ShuffleInput, ...]
    left_out: int = 0
    """Files that belong to no source, or to one of frequency 0."""
    notices: tuple[str, ...] = ()
    """What else is in folders of text, and is not read."""

    @property
    def files(self) -> list[Location]:
        """All files, in order."""
        return [file for source in self.sources for file in source.files]

    @property
    def frequencies(self) -> dict[str, float]:
        """Source → how often each of its contexts occurs."""
        return {source.name: source.frequency for source in self.sources}

    def state(self) -> list[list[object]]:
        """Return what changes when an input changes: of each file its path, size, and time of change or ETag."""
        files = [(source, file) for source in self.sources for file in source.files]
        stats = in_parallel(lambda one: one[1].stat(), files, CONNECTIONS if any_remote(self.files) else 1)
        return [
            [source.name, source.frequency, str(file), stat.st_size, getattr(stat, mark)]
            for (source, file), stat in zip(files, stats, strict=True)
            for mark in ["st_mtime_ns" if isinstance(file, Path) else "st_ino"]
        ]

    def here(self, folder: Path) -> ShuffleInputs:
        """Return the same on this machine: pairs and tars of a bucket as copies in a folder, text where it is."""
        if self.kind == "text" or not any_remote(self.files):
            return self
        copies = iter(copies_in(folder, self.files))
        sources = (replace(source, files=tuple(next(copies) for _ in source.files)) for source in self.sources)
        return replace(self, sources=tuple(sources))


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
        given: prefixes, files and folders, read in natural order; a folder that holds tars is one of tars.
        extension: take the files of folders that end so; default: texts, or `.tar`.
        shuffle_only: the input is tars.
        sampling: groups files into sources, with their frequencies; without it all files are one source, `input`,
            and each pair is one.
        output: a folder below one of these, of which no file is an input.
    """
    paths = [location(one).absolute() for one in given]
    pairs = [all(file.is_file() for file in pair_files(path)) for path in paths]
    if any(pairs) and not all(pairs):
        remedy = "shuffle them apart, or tokenize the text first"
        raise ConfigError("pairs and files are mixed", found=", ".join(map(str, paths)), remedy=remedy)
    if any(pairs):
        inputs = _pairs(paths, sampling)
    else:
        found = [_files(path, extension, shuffle_only, output) for path in paths]
        files, notices = ([one for part in parts for one in part] for parts in zip(*found, strict=True))
        inputs = _texts_or_tars(files, shuffle_only, sampling, notices)
    if not inputs.sources:
        what, number = "no input belongs to a source that is used", f"{inputs.left_out} inputs"
        remedy = "add a marker that a path holds, or raise a frequency above 0"
        raise InputError(what, where="--sampling", found=number, remedy=remedy)
    return inputs


def _pairs(prefixes: Sequence[Location], sampling: Sampling | None) -> ShuffleInputs:
    check_different_datasets(prefixes, "--input", "name it once; --sampling says how often a dataset is read")
    is_clear = len({prefix.name for prefix in prefixes}) == len(prefixes)
    found = tuple(
        ShuffleInput(prefix.name if is_clear else str(prefix), pair_files(prefix), frequency)
        for prefix in prefixes
        if (frequency := 1.0 if sampling is None else sampling.frequency_of(prefix))
    )
    return ShuffleInputs("datasets", found, len(prefixes) - len(found))


def _texts_or_tars(
    files: list[Location], are_tars: bool, sampling: Sampling | None, notices: Sequence[str]
) -> ShuffleInputs:
    check_different(files)
    tars = sum(are_tars or file.name.endswith(TAR) for file in files)
    if 0 < tars < len(files):
        counts = f"{tars} tars and {len(files) - tars} other files"
        raise ConfigError("tars and text are mixed", found=counts, remedy="shuffle them apart")
    sampling = sampling or Sampling((Source("input", ("",)),), {"input": 1.0})
    owned: dict[str | None, list[Location]] = {source.source: [] for source in sampling.sources} | {None: []}
    for file in files:
        owned[sampling.source_of(file)].append(file)
    left_out = len(owned.pop(None))
    sources = tuple(
        ShuffleInput(name, tuple(own), sampling.sampling_frequencies[name])
        for name, own in owned.items()
        if name and own
    )
    return ShuffleInputs("tars" if tars else "text", sources, left_out, tuple(notices))


def _files(
    path: Location, extension: str | None, shuffle_only: bool, output: Location | None
) -> tuple[list[Location], list[str]]:
    if path.is_file():
        return [path], []
    if not path.is_dir():
        expected, remedy = "a file, a folder, or a prefix with its .bin and .idx", "name an existing one with --input"
        raise MissingError("no such file, folder or pair", where=path, expected=expected, remedy=remedy)
    contents = _contents(path, output)
    listed = sorted([*(file.path for file in contents.texts), *contents.others], key=natural_key)
    ending = extension or (TAR if shuffle_only or any(name.endswith(TAR) for name in listed) else None)
    if ending == TAR and not shuffle_only and extension is None:
        _check_no_text(path, listed)
    found = [path / name for name in listed if (is_text(name) if ending is None else name.endswith(ending))]
    if not found:
        expected = f"files ending in {ending or f'{ACCEPTED}, or {TAR}'}"
        raise InputError("no file to read", where=path, expected=expected, remedy="name their ending with --ext")
    told = [notice.text for notice in contents.notices() if not notice.is_as_asked]
    return found, [f"{path}: {text}" for text in told] if ending is None else []


def _contents(folder: Location, output: Location | None) -> Contents:
    """Return what is in a folder, without what is in the output, where that lies below it."""
    contents = contents_of(folder)
    if output is None or isinstance(output, Path) is not isinstance(folder, Path):
        return contents
    own = Path(os.path.relpath(real_path(output), real_path(folder))).as_posix()
    if own == "." or own.startswith(".."):
        return contents

    def is_other(path: str) -> bool:
        return not f"{path}/".startswith(f"{own}/")

    texts = tuple(file for file in contents.texts if is_other(file.path))
    return Contents(texts, tuple(filter(is_other, contents.others)))


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
    streams: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Source → tokens of each of its files, where files are cut on their own."""
    texts: tuple[Preprocessed, ...] = ()
    """Of each source of text: what was read, written and lost."""
    sequence_length: int | None = None
    """Tokens in contexts that come ready-made from tars."""
    passed_over: str | None = None
    """How many members of tars hold no tokens, with an example; None if all do."""


def prepare(
    inputs: ShuffleInputs, options: ShuffleOptions, folder: Path, *, listener: ProgressCallback = silent
) -> Prepared:
    """Return the token sources of inputs; text and tars become token files in `folder`, unless they are there."""
    folder.mkdir(parents=True, exist_ok=True)
    inputs = inputs.here(folder / "copies")
    if inputs.kind == "text":
        return _tokenized(inputs, options, folder, listener)
    if inputs.kind == "datasets":
        greatest_id = None if options.tokenizer is None else tokenizer_facts(options.tokenizer).max_id
        pairs: list[TokenSource] = []
        for one in inputs.sources:
            prefix = on_this_machine(one.files[0]).with_suffix("")
            pairs.append(TokenSource.of_dataset(one.name, prefix, greatest_id=greatest_id))
        return Prepared(tuple(pairs))
    surveys = survey_sources(inputs, options)
    sources: list[TokenSource] = []
    for source, survey in zip(inputs.sources, surveys, strict=True):
        path = flatten_tars(survey, folder / source.name, workers=options.processes, listener=listener)
        sources.append(TokenSource.of_file(source.name, path, survey.dtype))
    return Prepared(tuple(sources), sequence_length=surveys[0].sequence_length, passed_over=passed_over_text(surveys))


def _tokenized(inputs: ShuffleInputs, options: ShuffleOptions, folder: Path, listener: ProgressCallback) -> Prepared:
    """Tokenize the text of each source into a pair; with the preset tokshuf each file is a stream of its own."""
    settings = text_options(options)
    texts = {
        source.name: preprocess(files_of(source.files), folder / source.name, settings, listener=listener)[0]
        for source in inputs.sources
    }
    sources = (TokenSource.of_dataset(name, on_this_machine(done.prefix)) for name, done in texts.items())
    streams = {
        name: tuple(done.tokens_by_file.values()) for name, done in texts.items() if done.tokens_by_file is not None
    }
    return Prepared(tuple(sources), streams, tuple(texts.values()))


def survey_sources(inputs: ShuffleInputs, options: ShuffleOptions) -> list[TarInput]:
    """Return what the tars of each source hold; all contexts must have the length and dtype of the first."""
    found: list[TarInput] = []
    length, dtype = None, None if options.tokenizer is None else tokenizer_facts(options.tokenizer).dtype.name
    greatest_id = None if options.tokenizer is None else greatest_in_tars(options.tokenizer)
    for source in inputs.sources:
        tars = [on_this_machine(path) for path in source.files]
        survey = survey_tars(tars, data_key=options.data_key, dtype=dtype, sequence_length=length)
        found.append(replace(survey, greatest_id=greatest_id))
        length, dtype = found[-1].sequence_length, found[-1].dtype
    if options.sequence_length not in (None, length):
        what, expected = "the contexts of tars stay as they are", f"{length}, which they have"
        remedy = "leave --seqlen out, or cut other contexts from the text"
        raise ConfigError(what, where="--seqlen", found=options.sequence_length, expected=expected, remedy=remedy)
    return found
