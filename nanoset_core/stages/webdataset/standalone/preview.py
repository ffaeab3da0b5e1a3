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

from nanoset_core.formats.tars.tar_input import TarInput, passed_over_text
from nanoset_core.stages.dataset.named_pair import open_pair
from nanoset_core.stages.shards.standalone.inputs import InputFiles, files_of
from nanoset_core.stages.shards.standalone.options import PreprocessOptions
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
from nanoset_core.storage.copies.temporary import any_remote, temporary_folder
from nanoset_core.storage.file_stats import FileStat
from nanoset_core.storage.location import Location
from nanoset_core.text.document_batch import DocumentBatch
from nanoset_core.text.documents import read_documents
from nanoset_core.text.files.endings import is_cuttable
from nanoset_core.text.inventory.pieces import SourceRange, unchecked_piece
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
    """Compute what `nanoset shuffle` would write, and what it needs, without writing anything.

    The command shuffles text, or tokens, into tar files of training samples. A user may want to
    know first how many tars that gives, and how much disk and memory it takes.

    Args:
        inputs: The input: text, .bin/.idx pairs of tokens, or tars.
        options: The settings of the command.

    Raises:
        ConfigError: Options exclude each other, or do not fit the input.
        InputError: The input does not fill a single sample.
    """
    options.check(inputs.kind)

    # Everything follows from the number of tokens. That of text is estimated by tokenizing a part.
    tokens = _tokens_of(inputs, options)
    is_estimated = inputs.kind == "text"
    plan = _plan_of(inputs, options, tokens)
    size_of_tars, is_exact = output_bytes(plan)
    engine = choose_engine(
        plan,
        engine=options.engine,
        memory_bytes=options.memory_bytes,
        workers=options.processes,
    )
    return Preview(
        plan=plan,
        estimated=is_estimated,
        output_bytes=size_of_tars,
        output_exact=is_exact and not is_estimated,
        token_bytes=_temporary_bytes(inputs, tokens),
        engine=engine,
        passed_over=tokens.passed_over,
    )


def _temporary_bytes(inputs: ShuffleInputs, tokens: _Tokens) -> int:
    """Return the size of the temporary files in which tokens are stored before they are shuffled.

    Args:
        inputs: The input. Text and tars need such files.
        tokens: Numbers and type of the tokens.
    """
    token_bytes = np.dtype(tokens.dtype).itemsize
    return _TOKEN_COPIES[inputs.kind] * sum(tokens.counts) * token_bytes


def _tokens_of(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    """Count the tokens of pairs or tars, or estimate those of text."""
    if inputs.kind == "datasets":
        return _tokens_of_pairs(inputs)
    if inputs.kind == "tars":
        return _tokens_of_tars(inputs, options)
    return _estimated_tokens(inputs, options)


def _plan_of(inputs: ShuffleInputs, options: ShuffleOptions, tokens: _Tokens) -> ShufflePlan:
    """Plan which training sample goes into which tar file, as the shuffle itself would.

    For this, the numbers of tokens are enough. Those of text are estimated here, so the plan of the
    real shuffle will differ slightly.

    Args:
        inputs: The sources of the shuffle, such as web and code.
        options: The settings of the shuffle.
        tokens: Number of tokens of each source, in the same order. For some settings, also that of
            each file.
    """
    settings = plan_settings(
        options, inputs.frequencies, tokens.tokens_by_file, tokens.sequence_length
    )
    tokens_of_sources: list[tuple[str, int]] = []  # such as ("web", 10_000)
    for source, count in zip(inputs.sources, tokens.counts, strict=True):
        tokens_of_sources.append((source.name, count))
    return plan_lengths(tokens_of_sources, tokens.dtype, settings)


def _tokens_of_pairs(inputs: ShuffleInputs) -> _Tokens:
    """Count the tokens of datasets that are pairs of files, such as web.bin and web.idx.

    The .idx has the length of each sequence in the .bin, so the tokens need not be read: sequences
    of 3, 5 and 2 tokens are 10.

    Args:
        inputs: The pairs, one for each source.
    """
    counts: list[int] = []
    dtypes: list[np.dtype[np.integer]] = []
    for source in inputs.sources:
        pair = open_pair(source.pair_prefix, validate=False)
        counts.append(int(pair.sequence_lengths.sum(dtype=np.int64)))
        dtypes.append(pair.dtype)
    # The type that holds the tokens of all: int32 for uint16 and int32.
    return _Tokens(counts, np.result_type(*dtypes).name)


def _tokens_of_tars(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    """Count the tokens in tar files of training samples, which are to be shuffled again.

    The tars are grouped into sources, such as web and code. For each source, `survey_sources` reads
    the headers of its tars and returns what is in them, such as 10 samples of 1,000 tokens each.
    Tars in a bucket are downloaded for this.

    Args:
        inputs: The tars.
        options: The settings of the shuffle.
    """
    surveys = _surveys(inputs, options)
    any_survey = surveys[0]  # all tars have samples of one length, and tokens of one type
    return _Tokens(
        counts=[survey.tokens for survey in surveys],
        dtype=any_survey.dtype,
        sequence_length=any_survey.sequence_length,
        passed_over=passed_over_text(surveys),  # about files in the tars that have no tokens
    )


def _surveys(inputs: ShuffleInputs, options: ShuffleOptions) -> list[TarInput]:
    """Return what is in the tars of each source. Tars in a bucket are downloaded for this.

    Args:
        inputs: The tars.
        options: The settings of the shuffle.
    """
    if not any_remote(inputs.files):
        return survey_sources(inputs, options)
    with temporary_folder("tars") as folder:
        return survey_sources(inputs.with_local_copies(folder), options)


def _estimated_tokens(inputs: ShuffleInputs, options: ShuffleOptions) -> _Tokens:
    """Estimate how many tokens the text files of each source have, without tokenizing all of them.

    For example, web has two files with about 6 and 4 million tokens, so 10 million in all.

    Args:
        inputs: The text files.
        options: The settings of the shuffle, such as the tokenizer.
    """
    settings = text_options(options)
    tokens_of_files = {source.name: _estimate(source, settings) for source in inputs.sources}
    tokens_of_sources = [sum(tokens) for tokens in tokens_of_files.values()]

    # The numbers of single files are needed if each file is cut into samples separately.
    tokens_by_file = tokens_of_files if settings.count_by_file else {}
    return _Tokens(
        counts=tokens_of_sources,
        dtype=tokenizer_facts(settings.tokenizer).dtype.name,
        tokens_by_file=tokens_by_file,
    )


def _estimate(source: ShuffleInput, settings: PreprocessOptions) -> list[int]:
    """Estimate how many tokens each of some text files has, by tokenizing parts of a few of them.

    For example, 1 MB of text from 8 files gives 250,000 tokens. Then a file of 4 MB is assumed to
    have a million.

    Args:
        source: The text files.
        settings: How they are tokenized.

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

    # All sizes are those of the files, which may be compressed.
    n_bytes = max(n_bytes, 1)  # all files may be empty
    return [round(file.size * n_tokens / n_bytes) for file in inputs.files]


def _sampled_files(files: Sequence[FileStat]) -> list[FileStat]:
    """Choose a few text files of all sizes, from which the number of tokens is estimated.

    Sort the files by size, and choose the smallest one, the largest one, and others at equal steps
    between them. To choose 8 of 15 files:

        number              0    1    2    3    4    5    6    7
        index by size       0    2    4    6    8    10   12   14

    Of fewer than 8 files, some get several numbers. They are returned once.

    Args:
        files: The files, at least one.

    Returns:
        The chosen files, in the order of their paths.
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
    """Tokenize the beginning of a text file, to estimate how many tokens it has.

    A plain text file can be read up to any byte, so about 1 MiB is enough. A compressed file or a
    table is tokenized completely: how many bytes of the file some of its documents take is not
    known.

    Args:
        inputs: Has the folder of the file.
        file: The file.
        settings: How its text is tokenized.

    Returns:
        Bytes of the file that were tokenized, and their number of tokens.
    """
    batches = _batches_of(inputs, file, settings)
    reads_completely = not is_cuttable(file.path)
    if not reads_completely:
        batches = islice(batches, 1)

    engine = make_engine(settings.tokenizer, "tokenizers")
    special_per_document = _count_special_tokens(settings)
    n_tokens = 0
    n_bytes_read = 0  # after decompression
    for batch in batches:
        n_tokens += _count_tokens(engine, batch, inputs.folder / file.path)
        n_tokens += special_per_document * len(batch.texts)
        n_bytes_read += batch.read_bytes
    stored_bytes = file.size if reads_completely else n_bytes_read
    return _TextSample(stored_bytes=stored_bytes, tokens=n_tokens)


def _count_special_tokens(settings: PreprocessOptions) -> int:
    """Return how many special tokens each document gets: one at its end, one at its start, or none.

    Args:
        settings: How text is tokenized.
    """
    return int(settings.eod is not None) + int(settings.bos is not None)


def _count_tokens(engine: Engine, batch: DocumentBatch, path: Location) -> int:
    """Return how many tokens some documents of a text file have, without special tokens.

    If a document cannot be tokenized, the error says where it is, such as "data/web.jsonl:17".

    Args:
        engine: The tokenizer.
        batch: The documents, with the number of each one's line.
        path: Their file.

    Raises:
        EncodingError: A document cannot be tokenized.
    """
    try:
        return len(engine.encode(batch.texts).ids)
    except EncodingError as error:
        raise error.at(f"{path}:{batch.lines[error.document]}") from error


def _batches_of(
    inputs: InputFiles, file: FileStat, settings: PreprocessOptions
) -> Iterator[DocumentBatch]:
    """Read the documents of a text file, about 1 MiB at a time.

    A document is a line such as {"text": "The cat sat."}. The reader that is used here can read any
    range of several files. Here the range is the whole of a single file.

    Args:
        inputs: Has the folder of the file, and whether its lines are JSON.
        file: The file, with its size.
        settings: Name the key of the text, such as "text".

    Yields:
        Some documents.
    """
    whole_file = unchecked_piece(file.path, file.size)
    return read_documents(
        inputs.folder,
        SourceRange((whole_file,), json_lines=inputs.json_lines),
        text_key=settings.keys[0],  # here there is only one key
        id_key="id",
        batch_bytes=_SAMPLE_BYTES,
        verify=False,
    )
