"""Compute what a call of `nanoset shuffle` would write, and its memory and disk space: `--plan`."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path

import numpy as np

from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.tars.tar_input import passed_over_text
from nanoset_core.stages.shards.inputs import files_of
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
from nanoset_core.storage.location import RawFolder
from nanoset_core.storage.working_copies import any_remote, temporary_folder
from nanoset_core.text.documents import read_documents
from nanoset_core.text.endings import is_cuttable
from nanoset_core.text.listing import FileStat
from nanoset_core.text.pieces import Piece, SourceRange
from nanoset_core.tokenizers.engines import make_engine
from nanoset_core.tokenizers.engines.engine import EncodingError
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
    streams: Mapping[str, Sequence[int]] = field(default_factory=dict)
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
    if inputs.kind == "datasets":
        tokens = _tokens_of_pairs(inputs)
    elif inputs.kind == "tars":
        tokens = _tokens_of_tars(inputs, options)
    else:
        tokens = _estimated_tokens(inputs, options)

    # Plan with these counts, as the call itself would.
    names = [source.name for source in inputs.sources]
    lengths = list(zip(names, tokens.counts, strict=True))
    settings = plan_settings(options, inputs.frequencies, tokens.streams, tokens.sequence_length)
    plan = plan_lengths(lengths, tokens.dtype, settings)

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
    with contextlib.ExitStack() as stack:
        copies = Path()  # local tars are read in place
        if any_remote(inputs.files):
            copies = stack.enter_context(temporary_folder("tars"))
        surveys = survey_sources(inputs.here(copies), options)
    # The dtype and the length are those of all tars.
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
        streams=tokens_of_files if settings.count_by_file else {},
    )


def _estimate(source: ShuffleInput, settings: PreprocessOptions) -> list[int]:
    """Estimate the tokens of each text file of a source, by the tokens per byte of a few files.

    Args:
        source: The source.
        settings: How its text is tokenized.

    Returns:
        Estimated number of tokens of each file, in order.
    """
    inputs = files_of(source.files)

    # Take files of all sizes, from the smallest to the largest. If there are few files, an index
    # occurs several times, but its file is taken once.
    by_size = sorted(inputs.files, key=lambda file: file.size)
    last_index = len(by_size) - 1
    indices = [number * last_index // (_SAMPLE_FILES - 1) for number in range(_SAMPLE_FILES)]
    sampled = {by_size[index] for index in indices}

    # Tokenize the start of each.
    n_bytes = 0
    n_tokens = 0
    for file in sorted(sampled, key=lambda file: file.path):
        sample = _sample(inputs.folder, file, settings)
        n_bytes += sample.stored_bytes
        n_tokens += sample.tokens
    return [round(file.size * n_tokens / max(n_bytes, 1)) for file in inputs.files]


@dataclass(frozen=True, slots=True)
class _TextSample:
    """The part of a text file that was tokenized."""

    stored_bytes: int
    """Size of this part in the file, where it may be compressed."""
    tokens: int


def _sample(folder: RawFolder, file: FileStat, settings: PreprocessOptions) -> _TextSample:
    """Tokenize the first documents of a file, to estimate how many tokens it has.

    A compressed file, or a table, is tokenized completely: how many stored bytes some of its
    documents take is unknown.

    Args:
        folder: Folder of the file.
        file: The file, as it was listed.
        settings: How its text is tokenized.
    """
    is_whole = not is_cuttable(file.path)
    # The sha256 of the file is not known, and is not compared below.
    whole_file = Piece(path=file.path, begin=0, end=file.size, first_line=1, digest="")
    batches = read_documents(
        folder,
        SourceRange((whole_file,)),
        text_key=settings.keys[0],
        id_key="id",
        batch_bytes=_SAMPLE_BYTES,
        verify=False,
    )
    if not is_whole:
        batches = islice(batches, 1)
    engine = make_engine(settings.tokenizer, "tokenizers")
    added_tokens = (settings.eod is not None) + (settings.bos is not None)  # to each document
    n_bytes = 0
    n_tokens = 0
    for batch in batches:
        try:
            encoded = engine.encode(batch.texts)
        except EncodingError as error:
            raise error.at(f"{folder / file.path}:{batch.lines[error.document]}") from error
        n_tokens += len(encoded.ids) + added_tokens * len(batch.texts)
        n_bytes += batch.read_bytes
    return _TextSample(file.size if is_whole else n_bytes, n_tokens)
