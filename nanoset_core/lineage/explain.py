"""Find the documents that a sample's tokens come from, in order."""

from __future__ import annotations

import operator
import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import SampleIndexError
from nanoset_core.formats.indexed.dataset import MMapIndexedDataset
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.pieces import parts_in
from nanoset_core.lineage.texts import Excerpts, SourceExcerpt
from nanoset_core.loading.nanoset import BlendedNanoset, Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.project.project import Project


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
        SampleIndexError: there is no such sample, or the run that the nanoset goes on with has consumed it before.
        FormatError: a shard's table cannot be read.
    """
    context = InspectionContext.of(project_or_root)
    loaded = load_nanoset(context.outputs, name, split)
    begin = loaded.config.consumed_samples if split == "train" else 0
    if 0 <= operator.index(k) < begin:
        raise SampleIndexError(
            "the run had consumed this sample before it went on with this nanoset",
            where=f"{name} {split}",
            found=k,
            expected=f"{begin} or more",
            remedy="look in the nanoset that it was started with: `continue_from` in nanoset.yaml names its handoff",
        )
    (found,) = explain_samples(context, loaded, name, split, [k])
    return found


def explain_samples(
    context: InspectionContext, loaded: Nanoset | BlendedNanoset, name: str, split: str, samples: Sequence[int]
) -> list[SampleOrigin]:
    """Return the origins of many samples of a split as `explain_sample`; each shard's table is opened once."""
    asked = [operator.index(sample) for sample in samples]
    found: dict[int, SampleOrigin] = {}
    for nanoset, rows in sources_of(loaded, asked).items():
        spans = [pieces[pieces[:, 2] > pieces[:, 1]] for _, _, pieces in rows]
        begins = [np.cumsum(lengths) - lengths for lengths in (own[:, 2] - own[:, 1] for own in spans)]
        origins = piece_origins(context, nanoset.dataset, np.concatenate(spans), np.concatenate(begins))
        corpus, ends = context.dataset_at(nanoset.member.prefix).name, np.cumsum([len(own) for own in spans])
        for (row, own_sample, _), own, end in zip(rows, spans, ends.tolist(), strict=True):
            pieces = tuple(chain.from_iterable(origins[end - len(own) : end]))
            filled = sum(piece.sample_tokens[1] - piece.sample_tokens[0] for piece in pieces)
            found[row] = SampleOrigin(
                name=name,
                split=split,
                sample=asked[row] % len(loaded),
                corpus=corpus,
                corpus_sample=own_sample,
                tokens=filled,
                pad_tokens=nanoset.config.sample_tokens - filled,
                pieces=pieces,
            )
    return [found[row] for row in range(len(asked))]


def sources_of(
    loaded: Nanoset | BlendedNanoset, samples: Sequence[int]
) -> dict[Nanoset, list[tuple[int, int, NDArray[np.int64]]]]:
    """Return dataset → (row of `samples`, number of it among the dataset's own, its pieces) of each sample from it."""
    found: dict[Nanoset, list[tuple[int, int, NDArray[np.int64]]]] = {}
    for row, sample in enumerate(samples):
        if isinstance(loaded, Nanoset):
            nanoset, own, pieces = loaded, sample, loaded.sources(sample)
        else:
            member, pieces = loaded.sources(sample)
            nanoset, own = loaded.datasets[member], int(loaded.dataset_sample_index[sample])
        found.setdefault(nanoset, []).append((row, own % len(nanoset), pieces))
    return found


def piece_origins(
    context: InspectionContext,
    dataset: MMapIndexedDataset,
    spans: NDArray[np.int64],
    begins: NDArray[np.int64] | int = 0,
) -> list[tuple[PieceOrigin, ...]]:
    """Return for each of some spans of a dataset's sequences the origins of its tokens; of packs those of each piece.

    Args:
        context: without settings no raw text is read.
        dataset: of the sequences.
        spans: (sequence, first token, end excl), int64, shape (pieces, 3), none of them empty.
        begins: where each begins in its sample, int64, shape (pieces,); or where the first does, of one sample.
    """
    manifest = context.dataset_at(dataset.prefix)
    by_span = parts_in(manifest, dataset, spans)
    lineage = Lineage(context.outputs, manifest)
    lengths = spans[:, 2] - spans[:, 1]
    firsts = dataset.sequence_pointers[spans[:, 0]] + spans[:, 1] * dataset.dtype.itemsize
    dataset.tokens_for(firsts, firsts + lengths * dataset.dtype.itemsize)  # of a bucket many at once
    places = begins + np.cumsum(lengths) - lengths if isinstance(begins, int) else begins
    origins = iter(lineage.origins([part.document for parts in by_span for part in parts]))
    found, excerpts, has_text = (
        list[tuple[PieceOrigin, ...]](),
        Excerpts(context, lineage.dataset),
        context.config is not None,
    )
    for (sequence, begin, end), parts, place in zip(spans.tolist(), by_span, places.tolist(), strict=True):
        own = []
        for part in parts:
            origin, low, high = next(origins), max(begin, part.begin), min(end, part.end)
            is_whole = part.first == 0 and part.end - part.begin == origin.tokens
            whole = dataset.get(sequence, part.begin, origin.tokens) if has_text and is_whole else None
            span = low - part.begin + part.first, high - part.begin + part.first
            text, at = excerpts.decoded(dataset.get(sequence, low, high - low)), place + low - begin
            own.append(PieceOrigin(origin, (at, at + high - low), span, text, excerpts.source(origin, whole, span)))
        found.append(tuple(own))
    return found
