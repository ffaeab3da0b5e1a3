"""From what a command line names to token sources: pairs as they are, text tokenized and tars decoded into scratch."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from nanoset_core.execution.progress import Listener, silent
from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.layout import bin_path
from nanoset_core.raw.listing import FileStat
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.inputs import ShuffleInput, ShuffleInputs
from nanoset_core.shuffling.tar_input import flatten_tars, survey_tars
from nanoset_core.tokenization.inputs import InputFiles
from nanoset_core.tokenization.preprocess import PreprocessOptions, preprocess


@dataclass(frozen=True, slots=True)
class Prepared:
    """Token sources, ready to be cut."""

    sources: tuple[TokenSource, ...]
    """in the order that numbers the contexts"""
    streams: Mapping[str, Sequence[int]] = field(default_factory=dict)
    """source → tokens of each of its files, where files are cut on their own"""
    documents: int = 0
    """documents tokenized on the way"""
    rejected: int = 0
    """lines that were no documents"""
    rejects: tuple[Path, ...] = ()
    """files that list them"""
    sequence_length: int | None = None
    """of contexts that come ready-made from tars"""


def open_pairs(inputs: ShuffleInputs) -> Prepared:
    """The sources of .bin/.idx pairs, mapped."""
    return Prepared(tuple(_pair(source.name, source.paths[0]) for source in inputs.sources))


def _pair(name: str, prefix: Path) -> TokenSource:
    return TokenSource(name, MMapIndexedDataset(prefix).tokens, bin_path(prefix))


def tokenize_sources(
    inputs: ShuffleInputs, options: PreprocessOptions, folder: Path, *, listener: Listener = silent
) -> Prepared:
    """Tokenize the text of each source into a pair in ``folder``; pairs that are finished are left alone.

    With ``options.count_by_file`` each file is a stream of its own. Raises as `preprocess`.
    """
    sources, streams = [], {}
    documents, rejected, rejects = 0, 0, []
    for source in inputs.sources:
        (done,) = preprocess(input_files(source), folder / source.name, options, listener=listener)
        sources.append(_pair(source.name, done.prefix))
        documents += done.facts.documents
        rejected += done.facts.rejected + done.facts.faults
        rejects += [done.rejects] if done.rejects is not None else []
        if done.tokens_by_file is not None:
            streams[source.name] = tuple(done.tokens_by_file.values())
    return Prepared(tuple(sources), streams, documents, rejected, tuple(rejects))


def input_files(source: ShuffleInput) -> InputFiles:
    """The files of a source of text, as the tokenizer's stage wants them."""
    folder = Path(os.path.commonpath([path.parent for path in source.paths]))
    stats = [(path.relative_to(folder).as_posix(), path.stat()) for path in source.paths]
    return InputFiles(
        folder, tuple(FileStat(name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)
    )


def decode_sources(
    inputs: ShuffleInputs,
    folder: Path,
    *,
    data_key: str | None,
    dtype: str | None,
    workers: int,
    listener: Listener = silent,
) -> Prepared:
    """Decode the tars of each source into a flat token file in ``folder``; raises as `survey_tars`, `flatten_tars`."""
    sources, length = [], None
    for source in inputs.sources:
        found = survey_tars(source.paths, data_key=data_key, dtype=dtype, sequence_length=length)
        length, dtype = found.sequence_length, found.dtype
        path = flatten_tars(found, folder / source.name, workers=workers, listener=listener)
        sources.append(TokenSource(source.name, np.memmap(path, found.dtype, mode="r"), path))
    return Prepared(tuple(sources), sequence_length=length)
