"""What a call of `nanoset shuffle` would write, and what it takes: `--plan`."""

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
"""Files of text that are read for an estimate."""
_SAMPLE_BYTES = 1 << 20
"""Bytes read of each of them."""
_TOKEN_COPIES = {"datasets": 0, "tars": 1, "text": 2}
"""How often the tokens of an input are in the scratch: text is tokenized into parts that are then
joined.
"""


@dataclass(frozen=True, slots=True)
class Preview:
    """A plan and what it takes."""

    plan: ShufflePlan
    """Of sources as they are, or as they are estimated."""
    estimated: bool
    """Whether tokens are those of a sample of the text."""
    output_bytes: int
    output_exact: bool
    token_bytes: int
    """Most bytes of scratch for tokens of text or tars."""
    engine: EngineChoice
    passed_over: str | None = None
    """How many members of tars hold no tokens, with an example; None if all do."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """The tokens of all sources, counted or estimated."""

    counts: list[int]
    """Of each source."""
    dtype: str
    """That holds all of them."""
    streams: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Source → tokens of each of its files, if files are cut on their own."""
    sequence_length: int | None = None
    """Tokens in contexts that come ready-made from tars."""
    passed_over: str | None = None
    """How many members of tars hold no tokens."""


def preview(inputs: ShuffleInputs, options: ShuffleOptions) -> Preview:
    """Plan a call: exactly for pairs and tars, by a sample for text.

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

    # Plan by these numbers, as the call itself would.
    names = [source.name for source in inputs.sources]
    lengths = list(zip(names, tokens.counts, strict=True))
    settings = plan_settings(options, inputs.frequencies, tokens.streams, tokens.sequence_length)
    plan = plan_lengths(lengths, tokens.dtype, settings)

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
    counts: list[int] = []
    dtypes: list[np.dtype[np.integer]] = []
    for source in inputs.sources:
        prefix = str(source.files[0]).removesuffix(".bin")
        pair = MMapIndexedDataset(prefix, validate=False)
        counts.append(int(pair.sequence_lengths.sum(dtype=np.int64)))
        dtypes.append(pair.dtype)
    return _Tokens(counts, np.result_type(*dtypes).name)


def _tokens_of_tars(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    with contextlib.ExitStack() as stack:
        copies = Path()  # local tars are read in place
        if any_remote(inputs.files):
            copies = stack.enter_context(temporary_folder("tars"))
        surveys = survey_sources(inputs.here(copies), options)
    return _Tokens(
        counts=[survey.tokens for survey in surveys],
        dtype=surveys[-1].dtype,
        sequence_length=surveys[-1].sequence_length,
        passed_over=passed_over_text(surveys),
    )


def _estimated_tokens(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    settings = text_options(options)
    tokens_of_files = {source.name: _estimate(source, settings) for source in inputs.sources}
    return _Tokens(
        counts=[sum(tokens) for tokens in tokens_of_files.values()],
        dtype=tokenizer_facts(settings.tokenizer).dtype.name,
        streams=tokens_of_files if settings.count_by_file else {},
    )


def _estimate(source: ShuffleInput, settings: PreprocessOptions) -> list[int]:
    """Estimate the tokens of each file of text by the tokens per byte of a few."""
    inputs = files_of(source.files)

    # Take files of all sizes, from the smallest to the largest.
    by_size = sorted(inputs.files, key=lambda file: file.size)
    last = len(by_size) - 1
    sampled = {by_size[number * last // (_SAMPLE_FILES - 1)] for number in range(_SAMPLE_FILES)}

    n_bytes = 0
    n_tokens = 0
    for file in sorted(sampled, key=lambda file: file.path):
        sample = _sample(inputs.folder, file, settings)
        n_bytes += sample.stored_bytes
        n_tokens += sample.tokens
    return [round(file.size * n_tokens / max(n_bytes, 1)) for file in inputs.files]


@dataclass(frozen=True, slots=True)
class _TextSample:
    """What was read of a file of text."""

    stored_bytes: int
    tokens: int


def _sample(folder: RawFolder, file: FileStat, settings: PreprocessOptions) -> _TextSample:
    """Tokenize the first documents of a file; all of it if it is compressed or a table, which
    cannot be cut.
    """
    is_whole = not is_cuttable(file.path)
    batches = read_documents(
        folder,
        SourceRange((Piece(file.path, 0, file.size, 1, ""),)),
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
