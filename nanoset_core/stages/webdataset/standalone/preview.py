"""Compute what a call of `nanoset shuffle` would write, and its memory and disk space: `--plan`.

The tokens of pairs and tars are counted. Those of text are estimated: a few of its files, from the
smallest to the largest, are tokenized in part, and all others are assumed to have as many tokens a
byte.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.tars.tar_input import passed_over_text
from nanoset_core.stages.shards.inputs import InputFiles, files_of
from nanoset_core.stages.shards.preprocess_options import PreprocessOptions
from nanoset_core.stages.webdataset.plan import ShufflePlan, plan_lengths
from nanoset_core.stages.webdataset.sizing import EngineChoice, choose_engine
from nanoset_core.stages.webdataset.standalone.inputs import ShuffleInput, ShuffleInputs
from nanoset_core.stages.webdataset.standalone.options import (
    ShuffleOptions,
    plan_settings,
    text_options,
)
from nanoset_core.stages.webdataset.standalone.tokens import survey_sources
from nanoset_core.stages.webdataset.tars import output_bytes
from nanoset_core.storage.location import Location
from nanoset_core.storage.working_copies import any_remote, temporary_folder
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.engine import EncodingError, Engine
from nanoset_core.tokenizers.tokenizer import tokenizer_facts

_SAMPLE_FILES = 8
"""Number of text files that are read for an estimate."""
_SAMPLE_BYTES = 1 << 20
"""Bytes read from each of these files."""
_TOKEN_COPIES = {"datasets": 0, "tars": 1, "text": 2}
"""Kind of input → copies of its tokens that are in the scratch folder at the same time.

Text has two, since it is tokenized into parts, which are then joined.
"""


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan, and the memory and disk space that it needs."""

    plan: ShufflePlan
    """Plan for the counted, or estimated, tokens of the sources."""
    estimated: bool
    """Whether the tokens are estimated by a sample of the text."""
    output_bytes: int
    """Size of all tars."""
    output_exact: bool
    """Whether this size is exact."""
    token_bytes: int
    """Scratch space for the tokens of text or tars."""
    engine: EngineChoice
    passed_over: str | None = None
    """Message about members of tars that have no tokens, or None if all have some."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of all sources, counted or estimated."""

    counts: list[int]
    """Number of tokens of each source."""
    dtype: str
    """Name of the dtype that holds the tokens of all sources."""
    tokens_by_file: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Source → tokens of each of its files, if files are cut separately."""
    sequence_length: int | None = None
    """Tokens in each context, if the input is tars."""
    passed_over: str | None = None
    """Message about members of tars that have no tokens."""


def preview(inputs: ShuffleInputs, options: ShuffleOptions) -> Preview:
    """Compute what a call of `nanoset shuffle` would write, without writing anything.

    The tokens of pairs and tars are counted. Those of text are estimated by a sample of its files.

    Args:
        inputs: Text, .bin/.idx pairs or tars.
        options: The settings of the call.

    Raises:
        ConfigError: Options exclude each other, or do not fit the input.
        InputError: The sources do not fill a single context.
    """
    options.check(inputs.kind)
    tokens = _tokens_of(inputs, options)
    plan = _plan_of(inputs, options, tokens)

    # The sizes of its output and of its temporary files.
    token_bytes = sum(tokens.counts) * np.dtype(tokens.dtype).itemsize
    is_estimated = inputs.kind == "text"
    size, is_exact = output_bytes(plan)
    engine = choose_engine(
        plan,
        engine=options.engine,
        memory_bytes=options.memory_bytes,
        workers=options.processes,
    )
    return Preview(
        plan=plan,
        estimated=is_estimated,
        output_bytes=size,
        output_exact=is_exact and not is_estimated,
        token_bytes=_TOKEN_COPIES[inputs.kind] * token_bytes,
        engine=engine,
        passed_over=tokens.passed_over,
    )


def _tokens_of(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    """Count the tokens of pairs or tars, or estimate those of text."""
    if inputs.kind == "datasets":
        return _tokens_of_pairs(inputs)
    if inputs.kind == "tars":
        return _tokens_of_tars(inputs, options)
    return _estimated_tokens(inputs, options)


def _plan_of(inputs: ShuffleInputs, options: ShuffleOptions, tokens: _Tokens) -> ShufflePlan:
    """Plan the tars by the number of tokens of each source, as the call itself would.

    Args:
        inputs: The sources.
        options: The settings of the call.
        tokens: The number of tokens of each source.
    """
    names = [source.name for source in inputs.sources]
    settings = plan_settings(
        options, inputs.frequencies, tokens.tokens_by_file, tokens.sequence_length
    )
    return plan_lengths(list(zip(names, tokens.counts, strict=True)), tokens.dtype, settings)


def _tokens_of_pairs(inputs: ShuffleInputs) -> _Tokens:
    """Count the tokens of pairs, by their .idx."""
    counts: list[int] = []
    dtypes: list[np.dtype[np.integer]] = []
    for source in inputs.sources:
        prefix = str(source.files[0]).removesuffix(".bin")
        pair = MMapIndexedDataset(prefix, validate=False)
        counts.append(int(pair.sequence_lengths.sum(dtype=np.int64)))
        dtypes.append(pair.dtype)
    return _Tokens(counts, np.result_type(*dtypes).name)


def _tokens_of_tars(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    """Count the tokens of tars, which are downloaded for this if they are in a bucket.

    Args:
        inputs: Tars.
        options: The settings of the call.
    """
    # A survey reads the headers of all tars of a source.
    if any_remote(inputs.files):
        with temporary_folder("tars") as folder:
            surveys = survey_sources(inputs.with_local_copies(folder), options)
    else:
        surveys = survey_sources(inputs, options)

    # There is at least one source, and all tars have the same length and dtype.
    return _Tokens(
        counts=[survey.tokens for survey in surveys],
        dtype=surveys[-1].dtype,
        sequence_length=surveys[-1].sequence_length,
        passed_over=passed_over_text(surveys),
    )


def _estimated_tokens(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    """Estimate the tokens of text."""
    settings = text_options(options)
    tokens_of_files = {source.name: _estimate(source, settings) for source in inputs.sources}
    return _Tokens(
        counts=[sum(tokens) for tokens in tokens_of_files.values()],
        dtype=tokenizer_facts(settings.tokenizer).dtype.name,
        tokens_by_file=tokens_of_files if settings.count_by_file else {},
    )


def _estimate(source: ShuffleInput, settings: PreprocessOptions) -> list[int]:
    """Estimate the tokens of each text file of a source, by the tokens per byte of a few files.

    If 1 MiB of a few files has 250,000 tokens, a file of 4 MiB is assumed to have a million.

    Args:
        source: The source.
        settings: How its text is tokenized.

    Returns:
        Estimated number of tokens of each file, in order.
    """
    inputs = files_of(source.files)
    n_bytes = 0
    n_tokens = 0
    for file in _sampled_files(inputs.files):
        sample = _sample(inputs, file, settings)
        n_bytes += sample.stored_bytes
        n_tokens += sample.tokens

    # Both sizes are those of stored bytes, which may be compressed.
    return [round(file.size * n_tokens / max(n_bytes, 1)) for file in inputs.files]


def _sampled_files(files: Sequence[FileStat]) -> list[FileStat]:
    """Return files of all sizes, from the smallest to the largest, in the order of their paths.

    For example, of 15 files these have the indices 0, 2, 4, …, 14 by size. If there are few files,
    an index occurs several times, but its file is returned once.
    """
    files_by_size = sorted(files, key=lambda file: file.size)
    largest = len(files_by_size) - 1
    sampled_files = set()
    for number in range(_SAMPLE_FILES):
        index = number * largest // (_SAMPLE_FILES - 1)
        sampled_files.add(files_by_size[index])
    return sorted(sampled_files, key=lambda file: file.path)


@dataclass(frozen=True, slots=True)
class _TextSample:
    """The part of a text file that was tokenized."""

    stored_bytes: int
    """Size of this part in the file, where it may be compressed."""
    tokens: int


def _sample(inputs: InputFiles, file: FileStat, settings: PreprocessOptions) -> _TextSample:
    """Tokenize the first documents of a file, to estimate how many tokens it has.

    A compressed file, or a table, is tokenized completely: how many stored bytes some of its
    documents take is unknown.

    Args:
        inputs: The file and others.
        file: The file, as it was listed.
        settings: How its text is tokenized.
    """
    batches = _batches_of(inputs, file, settings)
    reads_completely = not is_cuttable(file.path)
    if not reads_completely:
        batches = islice(batches, 1)  # the first one

    engine = make_engine(settings.tokenizer, "tokenizers")
    special_per_document = (settings.eod is not None) + (settings.bos is not None)
    n_bytes = 0
    n_tokens = 0
    for batch in batches:
        n_tokens += _count_tokens(engine, batch, inputs.folder / file.path)
        n_tokens += special_per_document * len(batch.texts)
        n_bytes += batch.read_bytes
    if reads_completely:
        n_bytes = file.size  # `read_bytes` counts what was read after decompression
    return _TextSample(stored_bytes=n_bytes, tokens=n_tokens)


def _count_tokens(engine: Engine, batch: DocumentBatch, path: Location) -> int:
    """Return the number of tokens of some documents, without special tokens.

    Args:
        engine: Encodes text as tokens.
        batch: The documents, with the line of each.
        path: Their file, for the error.

    Raises:
        EncodingError: A document cannot be encoded. The error names its line.
    """
    try:
        return len(engine.encode(batch.texts).ids)
    except EncodingError as error:
        raise error.at(f"{path}:{batch.lines[error.document]}") from error


def _batches_of(
    inputs: InputFiles, file: FileStat, settings: PreprocessOptions
) -> Iterator[DocumentBatch]:
    """Yield the documents of a file, about `_SAMPLE_BYTES` at a time.

    Args:
        inputs: The file and others.
        file: The file, as it was listed.
        settings: Names the key of the text.
    """
    # The digest is used only to verify the text, which is not done here.
    all_of_file = Piece(path=file.path, begin=0, end=file.size, first_line=1, digest="")
    return read_documents(
        inputs.folder,
        SourceRange((all_of_file,), json_lines=inputs.json_lines),
        text_key=settings.keys[0],  # a shuffle reads only one key of text
        id_key="id",
        batch_bytes=_SAMPLE_BYTES,
        verify=False,
    )
