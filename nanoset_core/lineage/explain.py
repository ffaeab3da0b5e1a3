"""Find the documents that a sample's tokens come from, in order."""

from __future__ import annotations

import operator
import os
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.indexed.dataset import MMapIndexedDataset
from nanoset_core.indexed.stream import token_starts
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.texts import Excerpts, SourceExcerpt
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.pipeline.project import Project


@dataclass(frozen=True, slots=True)
class PieceOrigin:
    """Consecutive tokens of a sample that come from one document."""

    origin: DocumentOrigin
    sample_tokens: tuple[int, int]
    """(begin, end excl) within the sample."""
    document_tokens: tuple[int, int]
    """(begin, end excl) within the document."""
    text: str | None
    """The first of these tokens, decoded; None without the tokenizer that made them."""
    source: SourceExcerpt | None
    """The same place in the raw file; None without the raw folder."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where the tokens of one sample come from."""

    name: str
    """Of the nanoset."""
    split: str
    """Train, valid or test."""
    sample: int
    """Its number, from 0."""
    corpus: str
    """Whose tokens it holds."""
    corpus_sample: int
    """Its number among that corpus's own samples, before they are blended."""
    tokens: int
    """Tokens of the corpus in it."""
    pad_tokens: int
    """Tokens that fill it up."""
    pieces: tuple[PieceOrigin, ...]
    """In order; documents without tokens have none."""


def explain_sample(project_or_root: Project | str | os.PathLike[str], name: str, split: str, k: int) -> SampleOrigin:
    """Return the documents that the tokens of sample k come from.

    Only the shards that hold these documents are opened, and of their tables only the row groups with their rows.

    Args:
        project_or_root: a project, or its output root alone; then no raw text is read, and nothing decoded.
        name: of a nanoset.
        split: train, valid or test.
        k: the sample; negative ones count from the end.

    Raises:
        MissingError, StaleError: see load_nanoset; or the shards are gone.
        SampleIndexError: there is no such sample.
        FormatError: a shard's table cannot be read.
    """
    context = InspectionContext.of(project_or_root)
    loaded = load_nanoset(context.outputs, name, split)
    if isinstance(loaded, Nanoset):
        nanoset, sample, pieces = loaded, operator.index(k), loaded.sources(k)
    else:
        member, pieces = loaded.sources(k)
        nanoset, sample = loaded.datasets[member], int(loaded.dataset_sample_index[operator.index(k)])
    origins = piece_origins(context, nanoset.dataset, pieces[pieces[:, 2] > pieces[:, 1]])
    filled = sum(piece.sample_tokens[1] - piece.sample_tokens[0] for piece in origins)
    return SampleOrigin(
        name=name,
        split=split,
        sample=operator.index(k) % len(loaded),
        corpus=context.dataset_at(nanoset.member.prefix).name,
        corpus_sample=sample % len(nanoset),
        tokens=filled,
        pad_tokens=nanoset.config.sample_tokens - filled,
        pieces=origins,
    )


def piece_origins(
    context: InspectionContext, dataset: MMapIndexedDataset, spans: NDArray[np.int64], position: int = 0
) -> tuple[PieceOrigin, ...]:
    """Return the origins of consecutive spans of a dataset's sequences, the first at `position` of the sample.

    Spans are (sequence, first token, end excl), int64, shape (pieces, 3), none of them empty.
    """
    manifest = context.dataset_at(dataset.prefix)
    bounds = dataset.document_indices
    documents = [bisect_right(bounds, sequence) - 1 for sequence in spans[:, 0].tolist()]
    lineage = Lineage(context.outputs, manifest)
    origins, excerpts = lineage.origins(documents), Excerpts(context, lineage.dataset)
    # A document's first sequence is where its tokens begin.
    shifts = token_starts(dataset, spans[:, 0]) - token_starts(dataset, bounds[documents])
    found = []
    for (sequence, begin, end), origin, shift in zip(spans.tolist(), origins, shifts.tolist(), strict=True):
        span = (begin + shift, end + shift)
        whole = dataset.get(sequence) if shift == 0 else None
        text = excerpts.decoded(dataset.get(sequence, begin, end - begin))
        source, sample_tokens = excerpts.source(origin, whole, span), (position, position + end - begin)
        found.append(PieceOrigin(origin, sample_tokens, span, text, source))
        position += end - begin
    return tuple(found)
