"""`nanoset export`: one .bin/.idx pair in the format of another reader, without a project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import MissingError
from nanoset_core.execution.progress import Meter, ProgressCallback, silent
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.formats.indexed.ids import check_all_ids
from nanoset_core.formats.indexed.layout import pair_files
from nanoset_core.formats.indexed.stream import Stream, stream_of
from nanoset_core.outputs.manifest import FileFact
from nanoset_core.outputs.recorded import Draft, RecordedOutput, check_apart, read_record, record_of, record_path
from nanoset_core.stages.exports.base import ExitFormat, Tokens
from nanoset_core.stages.exports.ends import check_end_tokens
from nanoset_core.stages.exports.formats import FORMATS
from nanoset_core.stages.exports.sample_files import SampleFiles
from nanoset_core.stages.exports.samples import INDEX, SampledFormat
from nanoset_core.stages.exports.writing import (
    COPIED,
    JOINED,
    WRITTEN,
    count_documents,
    put_tokens,
    token_blocks,
    write_beside,
)
from nanoset_core.storage.local import LocalStore
from nanoset_core.storage.location import Location, RemoteFolder, store_of
from nanoset_core.storage.store import Stored
from nanoset_core.tokenizers.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenizers.tokenizer import TokenizerFacts, special_ids, tokenizer_facts


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportOptions:
    """Settings of one call."""

    format: str
    """One of FORMATS."""
    name: str | None = None
    """Of the files; None = that of the pair."""
    tokenizer: TokenizerPath | None = None
    """Whose vocabulary decides the type of tokens, for a reader that goes by it; None: it is not checked."""
    tokenizer_name: str | None = None
    """What the files call the tokenizer."""
    sequence_length: int | None = None
    """Tokens of a sample, for the formats of samples."""


def export_pair(
    prefix: Location,
    folder: Location,
    options: ExportOptions,
    listener: ProgressCallback = silent,
    *,
    overwrite: bool = False,
) -> tuple[Mapping[str, Any], list[Location], bool]:
    """Write a .bin/.idx pair to a folder in the format of another reader, unless it was made of just this already.

    Tokens are linked where the disk can, or copied; within a bucket it copies them itself. Those of a view, whose
    sequences lie anywhere, and those of a format of samples are written in their order.

    Returns:
        (counts and how the tokens came there, the files, whether they were made)

    Raises:
        ConfigError: the reader cannot read tokens of this type, or looks for end tokens that documents lack; or
            something else is there.
        FormatError, MissingError: the pair is damaged, or not there.
    """
    exit_format, name, sources = FORMATS[options.format], options.name or prefix.name, pair_files(prefix)
    tokenizer = None if options.tokenizer is None else tokenizer_facts(tokenizer_path(options.tokenizer))
    if isinstance(exit_format, SampledFormat):
        return _export_samples(prefix, folder, options, exit_format, tokenizer, listener, overwrite=overwrite)
    files = [folder / file for file in exit_format.files(name)]
    output = _output(folder, files, sources, name, options, tokenizer)
    record = output.find(overwrite=overwrite)
    if record is not None:
        return record["facts"], files, False
    dataset = MMapIndexedDataset(str(prefix))
    stream = stream_of(dataset)
    tokens = _checked(dataset, exit_format, options, tokenizer)
    if exit_format.needs_end:
        check_end_tokens(exit_format, tokens, dataset, stream, _end_ids(options))
    _check_ids(dataset, stream, tokenizer)
    with output.making(overwrite=overwrite) as draft:
        ends = write_beside(exit_format, draft.folder, name, dataset, stream, tokens)
        if stream is not None:
            how = WRITTEN
            with (draft.folder / files[0].name).open("xb") as file:
                file.writelines(token_blocks(dataset, stream, name, listener))
        else:
            how = _share(sources[0], files[0], draft)
        counts = {"documents": ends.documents, "tokens": tokens.tokens, "left_out": ends.left_out}
        draft.facts = {**counts, "dtype": dataset.dtype.name, "made_by": how}
    return draft.facts, files, True


def _output(
    folder: Location,
    files: list[Location],
    sources: tuple[Location, Location],
    name: str,
    options: ExportOptions,
    tokenizer: TokenizerFacts | None,
) -> RecordedOutput:
    check_apart(files, sources)
    settings: dict[str, Any] = {
        "format": options.format,
        "name": name,
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
        "tokenizer_name": options.tokenizer_name,
    }
    if options.sequence_length is not None:
        settings["sequence_length"] = options.sequence_length
    return RecordedOutput(
        record=record_path(folder / f"{name}.{options.format}"),
        made_from=record_of("export", files[0], sources, settings),
        files=tuple(files),
    )


def _checked(
    dataset: MMapIndexedDataset, exit_format: ExitFormat, options: ExportOptions, tokenizer: TokenizerFacts | None
) -> Tokens:
    """Return what the format must know of a pair; ConfigError where the reader could not read it."""
    tokens = Tokens(
        where=dataset.prefix,
        dtype=dataset.dtype,
        tokens=int(dataset.sequence_lengths.sum(dtype=np.int64)),
        vocab_size=None if tokenizer is None else tokenizer.max_id + 1,
        tokenizer=options.tokenizer_name,
        sequence_length=options.sequence_length,
    )
    exit_format.check(tokens)
    return tokens


def _check_ids(dataset: MMapIndexedDataset, stream: Stream | None, tokenizer: TokenizerFacts | None) -> None:
    """Raise InputError if a token is not in the vocabulary. The tokens of a bucket do not pass through here."""
    if tokenizer is not None and dataset.is_here:
        check_all_ids(dataset, stream, tokenizer.max_id)


def _end_ids(options: ExportOptions) -> frozenset[int]:
    """Return the special tokens of the tokenizer; none without one, or if its files name none."""
    if options.tokenizer is None:
        return frozenset()
    return frozenset(special_ids(tokenizer_path(options.tokenizer)).values())


def _export_samples(
    prefix: Location,
    folder: Location,
    options: ExportOptions,
    exit_format: SampledFormat,
    tokenizer: TokenizerFacts | None,
    listener: ProgressCallback,
    *,
    overwrite: bool,
) -> tuple[Mapping[str, Any], list[Location], bool]:
    """Write a pair in samples: each file in its place, those that a killed call left there excepted."""
    dataset, name = MMapIndexedDataset(str(prefix)), options.name or prefix.name
    stream, tokens = stream_of(dataset), _checked(dataset, exit_format, options, tokenizer)
    _check_ids(dataset, stream, tokenizer)
    samples = SampleFiles(exit_format, exit_format.cut(tokens), *dataset.place, store_of(folder))
    files = [folder / file for file in exit_format.names(samples.cut)]
    output = _output(folder, files, pair_files(prefix), name, options, tokenizer)
    record = output.find(overwrite=overwrite)
    if record is not None:
        return record["facts"], files, False
    _remove_other_files(output)
    meter = Meter(listener, "export", name, tokens.tokens * tokens.dtype.itemsize)
    tasks, made = samples.tasks(stream), list[FileFact]()

    def write(file: str) -> Mapping[str, Any]:
        if file == INDEX:
            samples.target.put(file, samples.index(made))
        else:
            made.append(samples.complete(next(tasks)))
            meter.advance(made[-1].size)
        return _noted(folder / file)

    with output.making(overwrite=overwrite) as draft:
        draft.elsewhere |= {path.name: partial(write, path.name) for path in files}
        counts = {**count_documents(dataset, stream)._asdict(), "tokens": tokens.tokens}
        draft.facts = {**counts, "dtype": dataset.dtype.name, "made_by": WRITTEN, **exit_format.facts(samples.cut)}
    return draft.facts, files, True


def _remove_other_files(output: RecordedOutput) -> None:
    """Remove files, which may be replaced, unless a call of these very settings was killed as it wrote them."""
    record, store = read_record(output.record) or {}, output.place.store
    if "files" in record or any(record.get(key) != value for key, value in output.made_from.items()):
        for file in (INDEX, *record.get("files", ()), *(path.name for path in output.files)):
            store.delete(file)


def _share(source: Location, target: Location, draft: Draft) -> str:
    """Let the tokens of a pair be a file of the output."""
    if isinstance(source, Path):
        how = put_tokens(source, draft.folder / target.name)
        return how if isinstance(target, Path) else COPIED
    if isinstance(target, RemoteFolder) and source.store == target.store:
        draft.elsewhere[target.name] = partial(_join, source, target)
        return JOINED
    with (draft.folder / target.name).open("xb") as file:
        file.writelines(source.store.blocks(_stored(source)))
    return COPIED


def _join(source: RemoteFolder, target: RemoteFolder) -> Mapping[str, Any]:
    target.store.compose(target.path, [_stored(source)])
    return _noted(target)


def _noted(file: Location) -> Mapping[str, Any]:
    """Return what the record says of a file that was put in its place."""
    made = _stored(file)
    return {"bytes": made.size} | ({"mtime_ns": made.written_ns} if isinstance(file, Path) else {"etag": made.mark})


def _stored(file: Location) -> Stored:
    store, name = (LocalStore(file.parent), file.name) if isinstance(file, Path) else (file.store, file.path)
    if (found := store.stat(name)) is None:
        raise MissingError("no such object", where=file, remedy="run again once no other call writes it")
    return found
