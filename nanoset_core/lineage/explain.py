"""Find the documents that a sample's tokens come from, in order."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import SampleIndexError
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.excerpts import Excerpts, SourceExcerpt
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import Dataset


@dataclass(frozen=True, slots=True)
class PieceOrigin:
    """Consecutive tokens of a sample that come from one document."""

    origin: DocumentOrigin
    """The document."""
    sample_tokens: tuple[int, int]
    """(start, stop) within the sample."""
    document_tokens: tuple[int, int]
    """(start, stop) within the document."""
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


class MemberSample(NamedTuple):
    """A sample of a split, by the dataset of the blend that it is from."""

    row: int
    """Position in the request."""
    number: int
    """Number among the dataset's own samples."""
    spans: NDArray[np.int64]
    """Sequence, first token in it and stop of each of its pieces, int64, shape (n_pieces, 3)."""


def explain_sample(
    project_or_root: Project | str | os.PathLike[str], name: str, split: str, k: int
) -> SampleOrigin:
    """Return the documents that the tokens of a sample come from.

    Only the shards that hold these documents are opened, and of their tables only the row groups
    with their rows.

    Args:
        project_or_root: A project, or its output root alone; then no raw text is read, and nothing
            decoded.
        name: Name of a nanoset.
        split: `train`, `valid` or `test`.
        k: Number of the sample; negative ones count from the end.

    Raises:
        MissingError: The nanoset or its shards are gone; see also `load_nanoset`.
        StaleError: See `load_nanoset`.
        SampleIndexError: There is no such sample, or it was consumed by the run that the nanoset
            continues.
        FormatError: A shard's table cannot be read.
    """
    context = InspectionContext.of(project_or_root)
    loaded = load_nanoset(context.outputs, name, split)
    first_sample = loaded.config.consumed_samples if split == "train" else 0
    if 0 <= operator.index(k) < first_sample:
        raise SampleIndexError(
            "the run had consumed this sample before it went on with this nanoset",
            where=f"{name} {split}",
            found=k,
            expected=f"{first_sample} or more",
            remedy="look in the nanoset that it was started with: `continue_from` in nanoset.yaml names its handoff",
        )
    return explain_samples(context, loaded, name, split, [k])[0]


def explain_samples(
    context: InspectionContext,
    loaded: Nanoset | BlendedNanoset,
    name: str,
    split: str,
    samples: Sequence[int],
) -> list[SampleOrigin]:
    """Return the documents in many samples of a split; the table of each shard is opened once.

    Args:
        context: The project or output root.
        loaded: The split.
        name: Name of the nanoset.
        split: `train`, `valid` or `test`.
        samples: Numbers of the samples; negative ones count from the end.

    Returns:
        The origins, in the order of the request. Errors are those of `explain_sample`.
    """
    numbers = [operator.index(sample) for sample in samples]
    origin_by_row: dict[int, SampleOrigin] = {}
    for nanoset, members in _samples_by_member(loaded, numbers).items():
        # Look up the pieces of all samples of a dataset together.
        dataset = context.datasets.at(nanoset.member.prefix, nanoset.dataset)
        spans = [_filled(member.spans) for member in members]
        offsets = [_offsets_in_sample(sample_spans) for sample_spans in spans]
        origins = piece_origins(context, dataset, np.concatenate(spans), np.concatenate(offsets))

        start = 0
        for member, sample_spans in zip(members, spans, strict=True):
            stop = start + len(sample_spans)
            pieces = tuple(chain.from_iterable(origins[start:stop]))
            tokens = n_tokens(pieces)
            origin_by_row[member.row] = SampleOrigin(
                name=name,
                split=split,
                sample=numbers[member.row] % len(loaded),
                corpus=dataset.name,
                corpus_sample=member.number,
                tokens=tokens,
                pad_tokens=nanoset.config.sample_tokens - tokens,
                pieces=pieces,
            )
            start = stop
    return [origin_by_row[row] for row in range(len(numbers))]


def n_tokens(pieces: Sequence[PieceOrigin]) -> int:
    """Return how many tokens some pieces have."""
    total = 0
    for piece in pieces:
        start, stop = piece.sample_tokens
        total += stop - start
    return total


def _samples_by_member(
    loaded: Nanoset | BlendedNanoset, samples: Sequence[int]
) -> dict[Nanoset, list[MemberSample]]:
    """Return dataset of the blend → the samples that are from it."""
    members: dict[Nanoset, list[MemberSample]] = {}
    for row, sample in enumerate(samples):
        if isinstance(loaded, Nanoset):
            nanoset = loaded
            number = sample
            spans = loaded.sources(sample)
        else:
            member, spans = loaded.sources(sample)
            nanoset = loaded.datasets[member]
            number = int(loaded.dataset_sample_index[sample])
        members.setdefault(nanoset, []).append(MemberSample(row, number % len(nanoset), spans))
    return members


def _filled(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the spans that have tokens."""
    return spans[spans[:, 2] > spans[:, 1]]


def _offsets_in_sample(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position in the sample at which each of its spans begins, int64, shape (n_spans,)."""
    lengths = spans[:, 2] - spans[:, 1]
    offsets: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return offsets


def piece_origins(
    context: InspectionContext,
    dataset: Dataset,
    spans: NDArray[np.int64],
    offsets: NDArray[np.int64] | int = 0,
) -> list[tuple[PieceOrigin, ...]]:
    """Return the documents that tokens of a dataset's sequences come from.

    Args:
        context: Without settings no raw text is read.
        dataset: That has the sequences.
        spans: Sequence, first token in it and stop, int64, shape (n_spans, 3), none of them empty.
        offsets: Position in its sample at which each span begins, int64, shape (n_spans,); or that
            of the first span, if all spans are of one sample.

    Returns:
        The origins of each span. A span of a packed dataset may hold pieces of several documents.
    """
    sequences = dataset.sequences
    if isinstance(offsets, int):
        offsets = offsets + _offsets_in_sample(spans)

    # Fetch the tokens of all spans together: in a bucket, that takes few requests.
    itemsize = sequences.dtype.itemsize
    starts = sequences.sequence_pointers[spans[:, 0]] + spans[:, 1] * itemsize
    stops = starts + (spans[:, 2] - spans[:, 1]) * itemsize
    sequences.tokens_for(starts, stops)

    # Look up the documents of all spans together: each row group is read once.
    pieces_by_span = dataset.pieces_in(spans)
    lineage = Lineage(dataset)
    documents = [piece.document for piece in chain.from_iterable(pieces_by_span)]
    document_origins = iter(lineage.origins(documents))

    excerpts = Excerpts(context, lineage.dataset)
    origins: list[tuple[PieceOrigin, ...]] = []
    for (sequence, span_start, span_stop), pieces, offset in zip(
        spans.tolist(), pieces_by_span, offsets.tolist(), strict=True
    ):
        span_origins: list[PieceOrigin] = []
        for piece in pieces:
            origin = next(document_origins)

            # All tokens of the document, if they are in this sequence, to compare them with the raw
            # text.
            all_tokens = None
            is_whole = piece.first == 0 and piece.stop - piece.start == origin.tokens
            if is_whole and context.config is not None:
                all_tokens = sequences.get(sequence, piece.start, origin.tokens)

            # The part of the piece in the span, by its position in the sequence, the document and
            # the sample.
            start = max(span_start, piece.start)
            stop = min(span_stop, piece.stop)
            to_document = piece.first - piece.start
            to_sample = offset - span_start
            document_tokens = (start + to_document, stop + to_document)
            span_origins.append(
                PieceOrigin(
                    origin=origin,
                    sample_tokens=(start + to_sample, stop + to_sample),
                    document_tokens=document_tokens,
                    text=excerpts.decoded(sequences.get(sequence, start, stop - start)),
                    source=excerpts.source(origin, all_tokens, document_tokens),
                )
            )
        origins.append(tuple(span_origins))
    return origins
