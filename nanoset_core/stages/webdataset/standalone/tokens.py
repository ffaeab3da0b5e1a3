"""Prepare the tokens of a shuffle's inputs: tokenize text, decode tars, or open pairs.

Whatever the input is, the result is a list of sources: files of tokens, ready to be cut into
contexts. Text and tars are written to such files first, in the scratch folder of the call.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nanoset_core.errors import ConfigError
from nanoset_core.execution.progress import SILENT, Progress
from nanoset_core.formats.tars.tar_input import (
    TarInput,
    flatten_tars,
    passed_over_text,
    survey_tars,
)
from nanoset_core.stages.shards.inputs import files_of
from nanoset_core.stages.shards.preprocess_options import Preprocessed
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.standalone.inputs import ShuffleInputs
from nanoset_core.stages.webdataset.standalone.options import ShuffleOptions, text_options
from nanoset_core.stages.webdataset.tokshuf import greatest_in_tars
from nanoset_core.storage.location import on_this_machine
from nanoset_core.tokenizers.tokenizer import tokenizer_facts


@dataclass(frozen=True, slots=True)
class PreparedTokens:
    """The tokens of all sources, ready to be cut into contexts."""

    sources: tuple[TokenSource, ...]
    tokens_by_file: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """Source → number of tokens of each of its files; empty unless files are cut separately."""
    texts: tuple[Preprocessed, ...] = ()
    """What was read, written and lost of each source of text."""
    sequence_length: int | None = None
    """Tokens in each context, if the input is tars."""
    passed_over: str | None = None
    """Message about members of tars that have no tokens, or None if all have some."""


def prepare(
    inputs: ShuffleInputs,
    options: ShuffleOptions,
    folder: Path,
    *,
    progress: Progress = SILENT,
) -> PreparedTokens:
    """Return the tokens of inputs, which are written to files if the inputs are text or tars.

    Args:
        inputs: Text, .bin/.idx pairs of tokens, or tars.
        options: The settings of the call.
        folder: Where the token files go. Those that an earlier call has written are used again.
        progress: Shows how far the work has come.

    Returns:
        The tokens of each source, and what was lost of text, such as lines that were rejected.

    Raises:
        ConfigError: The options request another length of contexts than that of tars.
        FormatError: A tar or a pair is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    inputs = inputs.with_local_copies(folder / "copies")
    if inputs.kind == "text":
        return _tokenize(inputs, options, folder, progress)
    if inputs.kind == "datasets":
        return _open_pairs(inputs, options)
    return _decode_tars(inputs, options, folder, progress)


def _tokenize(
    inputs: ShuffleInputs,
    options: ShuffleOptions,
    folder: Path,
    progress: Progress,
) -> PreparedTokens:
    """Tokenize the text of each source into a .bin/.idx pair.

    With the preset tokshuf, the tokens of each file are counted, because it cuts files separately.

    Args:
        inputs: Text.
        options: The settings of the call.
        folder: Where the pairs go. Those that an earlier call has written are used again.
        progress: Shows how far the work has come.
    """
    from nanoset_core.stages.shards.preprocess import preprocess  # not needed for other inputs

    settings = text_options(options)
    sources: list[TokenSource] = []
    tokens_by_file: dict[str, Sequence[int]] = {}  # name of the source → tokens of its files
    texts: list[Preprocessed] = []
    for source in inputs.sources:
        files = files_of(source.files)
        # `preprocess` returns a pair for each key of text, and there is only one key.
        text = preprocess(files, folder / source.name, settings, progress=progress)[0]
        texts.append(text)
        sources.append(TokenSource.of_dataset(source.name, on_this_machine(text.prefix)))
        if text.tokens_by_file is not None:
            tokens_by_file[source.name] = tuple(text.tokens_by_file.values())
    return PreparedTokens(sources=tuple(sources), tokens_by_file=tokens_by_file, texts=tuple(texts))


def _open_pairs(inputs: ShuffleInputs, options: ShuffleOptions) -> PreparedTokens:
    """Open each pair as a source. With a tokenizer, its tokens are checked when they are read."""
    greatest_id = None if options.tokenizer is None else tokenizer_facts(options.tokenizer).max_id
    sources: list[TokenSource] = []
    for source in inputs.sources:
        prefix = on_this_machine(source.files[0]).with_suffix("")
        sources.append(TokenSource.of_dataset(source.name, prefix, greatest_id=greatest_id))
    return PreparedTokens(tuple(sources))


def _decode_tars(
    inputs: ShuffleInputs,
    options: ShuffleOptions,
    folder: Path,
    progress: Progress,
) -> PreparedTokens:
    """Decode the tars of each source into a file of tokens.

    The samples of the tars are concatenated in the file, and shuffled again later.

    Args:
        inputs: Tars.
        options: The settings of the call.
        folder: Where the files go. Those that an earlier call has written are used again.
        progress: Shows how far the work has come.
    """
    # Read all headers first, so that an unsuitable tar is reported before the decoding starts.
    surveys = survey_sources(inputs, options)
    sources: list[TokenSource] = []
    for source, survey in zip(inputs.sources, surveys, strict=True):
        path = flatten_tars(
            survey, folder / source.name, workers=options.processes, progress=progress
        )
        sources.append(TokenSource.of_file(source.name, path, survey.dtype))
    return PreparedTokens(
        tuple(sources),
        sequence_length=surveys[0].sequence_length,
        passed_over=passed_over_text(surveys),
    )


def survey_sources(inputs: ShuffleInputs, options: ShuffleOptions) -> list[TarInput]:
    """Read the headers of the tars of each source, and count their contexts.

    The contexts of all tars must have one length, and their tokens are decoded to one dtype.

    Args:
        inputs: Tars.
        options: The settings of the call.

    Returns:
        The number, length and dtype of the contexts in the tars of each source.

    Raises:
        ConfigError: The options request another length than the contexts have.
        FormatError: A tar is damaged, or has no tokens.
    """
    dtype: str | None = None
    greatest_id: int | None = None
    if options.tokenizer is not None:
        dtype = tokenizer_facts(options.tokenizer).dtype.name
        greatest_id = greatest_in_tars(options.tokenizer)

    # The first tar of the first source decides the length for all sources. Without a tokenizer, it
    # also decides the dtype. Both are passed on to the surveys of the other sources.
    length: int | None = None
    surveys: list[TarInput] = []
    for source in inputs.sources:
        tars = [on_this_machine(path) for path in source.files]
        survey = survey_tars(tars, data_key=options.data_key, dtype=dtype, sequence_length=length)
        surveys.append(replace(survey, greatest_id=greatest_id))
        length = survey.sequence_length
        dtype = survey.dtype

    _check_length(options, length)
    return surveys


def _check_length(options: ShuffleOptions, length: int | None) -> None:
    """Check that a call does not request contexts of another length than those of its tars.

    Args:
        options: The settings of the call.
        length: Tokens of each context in the tars.

    Raises:
        ConfigError: It does.
    """
    if options.sequence_length not in (None, length):
        raise ConfigError(
            "the contexts of tars cannot be changed",
            where="--seqlen",
            found=options.sequence_length,
            expected=f"{length}, which they have",
            remedy="leave --seqlen out, or cut other contexts from the text",
        )
