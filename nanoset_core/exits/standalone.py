"""`nanoset export`: one .bin/.idx pair in the format of another reader, without a project."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from nanoset_core.errors import MissingError
from nanoset_core.execution.progress import ProgressCallback, silent
from nanoset_core.exits.formats import FORMATS, Tokens
from nanoset_core.exits.writing import COPIED, JOINED, WRITTEN, put_tokens, stream_of, token_blocks, write_beside
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import pair_files
from nanoset_core.outputs.recorded import Draft, RecordedOutput, check_apart, record_of, record_path
from nanoset_core.storage.location import Location, RemoteFolder
from nanoset_core.storage.store import Stored
from nanoset_core.tokenization.files import TokenizerPath, tokenizer_path
from nanoset_core.tokenization.tokenizer import tokenizer_facts


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
    sequences lie anywhere, are written in their order.

    Returns:
        (counts and how the tokens came there, the files, whether they were made)

    Raises:
        ConfigError: the reader cannot read tokens of this type; or something else is there.
        FormatError, MissingError: the pair is damaged, or not there.
    """
    exit_format, name = FORMATS[options.format], options.name or prefix.name
    sources = pair_files(prefix)
    tokenizer = None if options.tokenizer is None else tokenizer_facts(tokenizer_path(options.tokenizer))
    files = [folder / file for file in exit_format.files(name)]
    check_apart(files, sources)
    settings = {
        "format": options.format,
        "name": name,
        "tokenizer": None if tokenizer is None else tokenizer.fingerprint,
        "tokenizer_name": options.tokenizer_name,
    }
    output = RecordedOutput(
        record=record_path(folder / f"{name}.{options.format}"),
        made_from=record_of("export", files[0], sources, settings),
        files=tuple(files),
    )
    record = output.find(overwrite=overwrite)
    if record is not None:
        return record["facts"], files, False
    dataset = MMapIndexedDataset(str(prefix))
    stream = stream_of(dataset)
    tokens = Tokens(
        where=str(prefix),
        dtype=dataset.dtype,
        tokens=int(dataset.sequence_lengths.sum(dtype=np.int64)),
        vocab_size=None if tokenizer is None else tokenizer.max_id + 1,
        tokenizer=options.tokenizer_name,
    )
    exit_format.check(tokens)
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
    made = _stored(target)
    return {"bytes": made.size, "etag": made.mark}


def _stored(file: RemoteFolder) -> Stored:
    if (found := file.store.stat(file.path)) is None:
        raise MissingError("no such object", where=file, remedy="run again once no other call writes it")
    return found
