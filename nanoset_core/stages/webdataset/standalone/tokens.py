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
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.tars.tar_input import (
    TarInput,
    flatten_tars,
    passed_over_text,
    survey_tars,
)
from nanoset_core.stages.dataset.named_pair import check_all_listed
from nanoset_core.stages.shards.standalone.inputs import files_of
from nanoset_core.stages.shards.standalone.options import Preprocessed
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
    """Return the tokens that are to be shuffled, whatever the input is.

        input                what is done with it
        text                 it is tokenized, and the tokens are written to files
        .bin/.idx pairs      they are tokens already
        tars                 their samples are decoded, and the tokens are written to files

    Tars and pairs in a bucket are copied to this machine before.

    Args:
        inputs: The input.
        options: The settings of `nanoset shuffle`.
        folder: Where the files go. Those that an earlier call has written are used again.
        progress: Shows how far the work has come.

    Returns:
        The tokens of each source, such as web, and what was lost of text, such as lines that could
        not be read.

    Raises:
        ConfigError: The options request another length of samples than that of tars.
        FormatError: A tar or a pair is damaged.
    """
    folder.mkdir(parents=True, exist_ok=True)
    local_inputs = inputs.with_local_copies(folder / "copies")
    if inputs.kind == "text":
        return _tokenize(local_inputs, options, folder, progress)
    if inputs.kind == "datasets":
        return _open_pairs(inputs, local_inputs, options)
    return _decode_tars(local_inputs, options, folder, progress)


def _tokenize(
    inputs: ShuffleInputs,
    options: ShuffleOptions,
    folder: Path,
    progress: Progress,
) -> PreparedTokens:
    """Tokenize text, so that its tokens can be shuffled.

    The text files are grouped into sources, such as web and code. The tokens of each source are
    written to a pair of files, such as web.bin (the tokens) and web.idx (where documents begin).

    Args:
        inputs: The text files.
        options: The settings of `nanoset shuffle`.
        folder: Where the pairs go. Those that an earlier call has written are used again.
        progress: Shows how far the work has come.

    Returns:
        The tokens of each source. If files are to be cut into samples separately, which the preset
        tokshuf does, also the number of tokens of each file.
    """
    from nanoset_core.stages.shards.standalone.preprocess import (
        preprocess,  # not needed for other inputs
    )

    # Write the pair of each source. `preprocess` returns a pair for each key of the JSON lines that
    # has text, and here there is only one key.
    settings = text_options(options)
    text_by_source: dict[str, Preprocessed] = {}
    for source in inputs.sources:
        files = files_of(source.files)
        pairs = preprocess(files, folder / source.name, settings, progress=progress)
        text_by_source[source.name] = pairs[0]

    # Open the pairs, and collect the counts.
    sources: list[TokenSource] = []
    tokens_by_file: dict[str, Sequence[int]] = {}  # name of the source → tokens of its files
    for name, text in text_by_source.items():
        sources.append(TokenSource.of_dataset(name, on_this_machine(text.prefix)))
        if text.tokens_by_file is not None:
            tokens_by_file[name] = tuple(text.tokens_by_file.values())
    return PreparedTokens(
        sources=tuple(sources),
        tokens_by_file=tokens_by_file,
        texts=tuple(text_by_source.values()),  # what was read and lost of each source
    )


def _open_pairs(
    inputs: ShuffleInputs, local_inputs: ShuffleInputs, options: ShuffleOptions
) -> PreparedTokens:
    """Open the token datasets that are to be shuffled.

    Each is a pair of files, such as web.bin (the tokens) and web.idx (where documents begin). If
    the user has named the tokenizer, each token is checked to be in its vocabulary when it is read.

    Args:
        inputs: The pairs, as the user named them.
        local_inputs: The same pairs, or their copies on this machine.
        options: The settings of `nanoset shuffle`.

    Raises:
        FormatError: A pair is damaged, or its files do not belong together.
    """
    greatest_id = None  # any token is accepted
    if options.tokenizer is not None:
        greatest_id = tokenizer_facts(options.tokenizer).max_id

    sources: list[TokenSource] = []
    for source, local_source in zip(inputs.sources, local_inputs.sources, strict=True):
        local_prefix = on_this_machine(local_source.pair_prefix)
        # An error names the pair as the user has.
        check_all_listed(MMapIndexedDataset(local_prefix, validate=False), source.pair_prefix)
        sources.append(TokenSource.of_dataset(source.name, local_prefix, greatest_id=greatest_id))
    return PreparedTokens(tuple(sources))


def _decode_tars(
    inputs: ShuffleInputs,
    options: ShuffleOptions,
    folder: Path,
    progress: Progress,
) -> PreparedTokens:
    """Decode tar files of training samples, so that the samples can be shuffled again.

    The tars are grouped into sources, such as web and code. For each source, the tokens of all
    samples are written to one file, one after another. Later, the shuffle cuts it into samples of
    the same length, so that they are the same samples again.

    Args:
        inputs: The tars.
        options: The settings of `nanoset shuffle`.
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
        sequence_length=surveys[0].sequence_length,  # the same for all
        passed_over=passed_over_text(surveys),  # a message about files without tokens, if any
    )


def survey_sources(inputs: ShuffleInputs, options: ShuffleOptions) -> list[TarInput]:
    """Look at the training samples in tar files: how many there are, how long, and of which type.

    The tars are grouped into sources, such as web and code. Only headers are read. The samples of
    all tars must have the same length:

        tars of          samples      length      type of the tokens
        web              100          2049        int32
        code             40           2049        int32

    Args:
        inputs: The tars.
        options: The settings of `nanoset shuffle`, perhaps with the tokenizer, which says what the
            type and the greatest id of the tokens are.

    Returns:
        For each source, what is in its tars.

    Raises:
        ConfigError: The options request another length than the samples have.
        FormatError: A tar is damaged, or has no tokens.
    """
    # The tokenizer, if there is one, says what type and greatest id the tokens have.
    dtype: str | None = None
    greatest_id: int | None = None
    if options.tokenizer is not None:
        dtype = tokenizer_facts(options.tokenizer).dtype.name
        greatest_id = greatest_in_tars(options.tokenizer)

    # Otherwise the first tar decides the type. It also decides the length of samples. Both are
    # passed on to the surveys of the other sources.
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
    """Check that the user does not request another length of samples than that in the input tars.

    Tars of training samples are only shuffled again; each sample keeps its tokens. If samples have
    2,049 tokens, `--seqlen 1025` is a mistake.

    Args:
        options: The settings of `nanoset shuffle`.
        length: Tokens of each sample in the tars.

    Raises:
        ConfigError: Another length is requested.
    """
    if options.sequence_length is None or options.sequence_length == length:
        return
    raise ConfigError(
        "the contexts of tars cannot be changed",
        where="--seqlen",
        found=options.sequence_length,
        expected=f"{length}, which they have",
        remedy="leave --seqlen out, or cut other contexts from the text",
    )
