"""Find the documents that a sample's tokens come from.

A sample of a nanoset consists of parts of sequences, here called spans. The index arrays of the
nanoset say which: sequence, first token and stop. A sequence is a document of a corpus or view, or
contains several documents if it was packed. So the search follows

    sample → spans of sequences → pieces of documents → file and line

For example, sample 3 consists of the tokens [90, 100) of sequence 7 and the tokens [0, 22) of
sequence 2. These are documents that came from the lines 8 and 3 of a file.
"""

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
from nanoset_core.formats.indexed.layout import Tokens
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext, Lineage
from nanoset_core.lineage.excerpts import Excerpts, SourceExcerpt
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.project.project import Project
from nanoset_core.stages.dataset.dataset import Dataset, DocumentPiece


@dataclass(frozen=True, slots=True)
class PieceOrigin:
    """Consecutive tokens of a sample that come from one document."""

    origin: DocumentOrigin
    """The document."""
    sample_tokens: tuple[int, int]
    """Their range (start, stop) within the sample."""
    document_tokens: tuple[int, int]
    """Their range (start, stop) within the document."""
    text: str | None
    """The first of these tokens, decoded; None if their tokenizer is not known."""
    source: SourceExcerpt | None
    """The same text in the raw file now; None if the raw folder is not known."""


@dataclass(frozen=True, slots=True)
class SampleOrigin:
    """Where the tokens of one sample come from."""

    name: str
    """Name of the nanoset."""
    split: str
    """Train, valid or test."""
    sample: int
    """Number of the sample in the split, from 0."""
    corpus: str
    """Name of the dataset that its tokens are from."""
    corpus_sample: int
    """Its number among the samples of that dataset, before they are blended."""
    tokens: int
    """How many tokens of the dataset it has."""
    pad_tokens: int
    """How many tokens of padding it has."""
    pieces: tuple[PieceOrigin, ...]
    """The documents in it, in order; those without tokens are left out."""


class MemberSample(NamedTuple):
    """A requested sample of a split, as a sample of one dataset of its blend."""

    row: int
    """Position in the list of requested samples."""
    number: int
    """Number among the samples of the dataset."""
    spans: NDArray[np.int64]
    """The spans that it consists of: columns sequence, first token in it and stop, shape
    (n_spans, 3).
    """


def explain_sample(
    project_or_root: Project | str | os.PathLike[str], name: str, split: str, k: int
) -> SampleOrigin:
    """Return the documents that the tokens of a training sample come from.

    A sample is the sequence of tokens that training reads at once, with parts of some documents.
    For example, sample 7 has the tokens 20 to 90 of the document in line 12 of `a.jsonl`, and the
    start of another document. This is fast for data of any size.

    Args:
        project_or_root: A project; or its output root alone, to read no raw text and decode no
            tokens.
        name: Name of a nanoset.
        split: `train`, `valid` or `test`.
        k: Number of the sample; negative numbers count from the end.

    Returns:
        The documents, each with its file and line and the tokens of the sample that are from it.

    Raises:
        MissingError: The nanoset has not been built, or its shards were deleted.
        StaleError: The parts of the nanoset were not built from the same inputs.
        SampleIndexError: There is no such sample, or it was consumed by the run that the nanoset
            continues.
        FormatError: A shard's table cannot be read.
    """
    context = InspectionContext.of(project_or_root)
    loaded = load_nanoset(context.outputs, name, split)

    # A nanoset that continues a run begins with the first sample that the run has not read.
    first_sample = loaded.config.consumed_samples if split == "train" else 0
    if 0 <= operator.index(k) < first_sample:
        raise SampleIndexError(
            "the run had consumed this sample before it continued with this nanoset",
            where=f"{name} {split}",
            found=k,
            expected=f"{first_sample} or more",
            remedy=(
                "look in the nanoset that the run was started with: "
                "`continue_from` in nanoset.yaml names its handoff"
            ),
        )
    return explain_samples(context, loaded, name, split, [k])[0]


def explain_samples(
    context: InspectionContext,
    loaded: Nanoset | BlendedNanoset,
    name: str,
    split: str,
    samples: Sequence[int],
) -> list[SampleOrigin]:
    """Return the documents that the tokens of many training samples come from.

    For example, sample 7 has the tokens 20 to 90 of the document in line 12 of `a.jsonl`, and then
    the first 58 tokens of the one in line 3 of `b.jsonl`.

    Samples may be taken from several datasets in turn. So first find the dataset of each sample,
    and then look up all samples of a dataset together, which is faster than one by one.

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        loaded: The samples of a split (train, valid or test) of a nanoset, a mixture of data.
        name: Name of the nanoset.
        split: `train`, `valid` or `test`.
        samples: Numbers of the samples; negative numbers count from the end.

    Returns:
        The origins, in the order of the request.
    """
    requested = [operator.index(sample) for sample in samples]
    origin_by_row: dict[int, SampleOrigin] = {}  # position in `requested` → origin

    # The samples of one dataset are looked up together, which is faster than one by one.
    for nanoset, dataset_samples in _samples_by_dataset(loaded, requested).items():
        dataset = context.datasets.at(nanoset.member.prefix, nanoset.dataset)
        pieces_by_sample = _pieces_by_sample(context, dataset, dataset_samples)
        for dataset_sample, pieces in zip(dataset_samples, pieces_by_sample, strict=True):
            row = dataset_sample.row
            tokens = n_tokens(pieces)
            origin_by_row[row] = SampleOrigin(
                name=name,
                split=split,
                sample=requested[row] % len(loaded),  # -1 is the last sample of the split
                corpus=dataset.name,
                corpus_sample=dataset_sample.number,
                tokens=tokens,
                pad_tokens=nanoset.config.sample_tokens - tokens,
                pieces=pieces,
            )
    return [origin_by_row[row] for row in range(len(requested))]


def _pieces_by_sample(
    context: InspectionContext, dataset: Dataset, samples: Sequence[MemberSample]
) -> list[tuple[PieceOrigin, ...]]:
    """Return the documents that the tokens of some training samples come from.

    A sample consists of spans, each of which is a range of tokens of one sequence. All spans are
    looked up together, and the results are divided again:

        sample                    0       1
        spans                     a  b    c
        documents of each span    A  B,C  D      →    sample 0 has A, B, C; sample 1 has D

    Args:
        context: The opened outputs, and the settings of the project if they are known.
        dataset: The dataset that all samples are taken from.
        samples: The samples, with their spans.

    Returns:
        The pieces of documents in each sample, in order.
    """
    spans_by_sample = [_without_empty(sample.spans) for sample in samples]
    offsets_by_sample = [offsets_in_sample(spans) for spans in spans_by_sample]

    # Look up the spans of all samples together, which is faster than one sample at a time.
    pieces_by_span = piece_origins(
        context,
        dataset,
        spans=np.concatenate(spans_by_sample),  # (n_spans, 3)
        offsets=np.concatenate(offsets_by_sample),  # (n_spans,)
    )

    # Divide the result: if the first sample has 2 spans, its pieces are those of spans 0 and 1.
    span_counts = [len(spans) for spans in spans_by_sample]
    return _joined_by_sample(pieces_by_span, span_counts)


def _joined_by_sample(
    pieces_by_span: Sequence[tuple[PieceOrigin, ...]], span_counts: Sequence[int]
) -> list[tuple[PieceOrigin, ...]]:
    """Join the documents in the ranges of tokens (spans) of each training sample.

        documents of each span    A    B, C    D
        spans of each sample      2            1
        result                    A, B, C      D

    Args:
        pieces_by_span: The pieces of documents in each span: the spans of the first sample, of the
            second, and so on.
        span_counts: How many spans each sample has.
    """
    pieces_by_sample: list[tuple[PieceOrigin, ...]] = []
    start = 0
    for n_spans in span_counts:
        stop = start + n_spans
        pieces_by_sample.append(tuple(chain.from_iterable(pieces_by_span[start:stop])))
        start = stop
    return pieces_by_sample


def n_tokens(pieces: Sequence[PieceOrigin]) -> int:
    """Return how many tokens pieces of documents have together in their sample.

    Args:
        pieces: The pieces. None of their tokens is in two of them.
    """
    total = 0
    for piece in pieces:
        start, stop = piece.sample_tokens
        total += stop - start
    return total


def _samples_by_dataset(
    loaded: Nanoset | BlendedNanoset, samples: Sequence[int]
) -> dict[Nanoset, list[MemberSample]]:
    """Group training samples by the dataset that each of them is taken from.

    Args:
        loaded: All samples: those of one dataset (`Nanoset`), or those of several datasets in turn
            (`BlendedNanoset`).
        samples: Numbers of the samples to group.

    Returns:
        Dataset → the samples that are taken from it, with their numbers there.
    """
    samples_by_nanoset: dict[Nanoset, list[MemberSample]] = {}
    for row, sample in enumerate(samples):
        if isinstance(loaded, Nanoset):
            nanoset = loaded
            number = sample
            spans = loaded.sources(sample)  # ranges of sequences of the dataset
        else:
            dataset_number, spans = loaded.sources(sample)
            nanoset = loaded.datasets[dataset_number]
            number = int(loaded.dataset_sample_index[sample])
        member_sample = MemberSample(row, _number_in_dataset(nanoset, number), spans)
        samples_by_nanoset.setdefault(nanoset, []).append(member_sample)
    return samples_by_nanoset


def _number_in_dataset(nanoset: Nanoset, number: int) -> int:
    """Return which sample of a dataset a number stands for, from 0.

    Sample -1 is the last one. And if the dataset has 10 samples, and is read more than once, sample
    12 is sample 2 again.

    Args:
        nanoset: All samples of the dataset.
        number: The number.
    """
    return number % len(nanoset)


def _without_empty(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the spans that have tokens.

    Args:
        spans: Parts of sequences: sequence, first token in it and stop, shape (n_spans, 3).
    """
    has_tokens = spans[:, 2] > spans[:, 1]
    return spans[has_tokens]


def offsets_in_sample(spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return where each span of one sample begins in it, if the first one begins at token 0.

    For example, spans of 3, 2 and 4 tokens begin at the tokens 0, 3 and 5 of the sample.

    Args:
        spans: Sequence, first token in it and stop, shape (n_spans, 3), of one sample.

    Returns:
        Positions in the sample, shape (n_spans,).
    """
    lengths = spans[:, 2] - spans[:, 1]  # (n_spans,)
    offsets: NDArray[np.int64] = np.cumsum(lengths) - lengths
    return offsets


def piece_origins(
    context: InspectionContext,
    dataset: Dataset,
    spans: NDArray[np.int64],
    offsets: NDArray[np.int64] | None = None,
) -> list[tuple[PieceOrigin, ...]]:
    """Return the documents that some tokens of a dataset come from, with excerpts of their text.

    A dataset consists of sequences. Usually a sequence is a document. Packed sequences have several
    documents. For example:

        sequence    first token    stop        documents
        7           20             90          line 12 of a.jsonl, its tokens 20 to 90
        9           0              58          line 3 of b.jsonl, and line 4

    Args:
        context: The project or output root; without settings, no raw text is read.
        dataset: The dataset.
        spans: Number of a sequence, first token in it and stop, shape (n_spans, 3). No span is
            empty.
        offsets: Position in its training sample at which each span begins, shape (n_spans,). By
            default, the spans together are one sample.

    Returns:
        The documents of each span.
    """
    if offsets is None:
        offsets = offsets_in_sample(spans)

    # Download the tokens, and look up the documents, of all spans together, which is faster than
    # one by one.
    _fetch_tokens(dataset, spans)
    pieces_by_span = dataset.pieces_in(spans)
    lineage = Lineage(dataset)
    documents = [piece.document for piece in chain.from_iterable(pieces_by_span)]
    origin_by_document = dict(zip(documents, lineage.origins(documents), strict=True))

    # Describe the pieces of each span, with excerpts of their text.
    excerpts = Excerpts(context, lineage.dataset)
    origins_by_span: list[tuple[PieceOrigin, ...]] = []
    for span, pieces in zip(_sequence_spans(spans, offsets), pieces_by_span, strict=True):
        origins = [
            _piece_origin(dataset, span, piece, origin_by_document[piece.document], excerpts)
            for piece in pieces
        ]
        origins_by_span.append(tuple(origins))
    return origins_by_span


class _SequenceSpan(NamedTuple):
    """Consecutive tokens of a sequence that are in a sample."""

    start: int
    """Position of the first token in the sequence."""
    stop: int
    """Position after the last token in the sequence."""
    offset: int
    """Position of the first token in the sample."""

    def in_sample(self, start: int, stop: int) -> tuple[int, int]:
        """Convert positions in a sequence of tokens to positions in a training sample.

        For example, the tokens 20 to 90 of the sequence are the tokens 0 to 70 of the sample. Then
        the tokens 30 to 40 of the sequence are the tokens 10 to 20 of the sample.

        Args:
            start: Position of the first token in the sequence.
            stop: Position after the last token in the sequence.

        Returns:
            A range (start, stop) of tokens of the sample.
        """
        shift = self.offset - self.start
        return start + shift, stop + shift


def _sequence_spans(spans: NDArray[np.int64], offsets: NDArray[np.int64]) -> list[_SequenceSpan]:
    """Return the rows of an array of spans, which are parts of sequences, as records.

    Args:
        spans: Sequence, first token in it and stop, shape (n_spans, 3).
        offsets: Position in its sample at which each span begins, shape (n_spans,).
    """
    rows = np.column_stack([spans[:, 1], spans[:, 2], offsets])  # (n_spans, 3)
    return [_SequenceSpan(start, stop, offset) for start, stop, offset in rows.tolist()]


def _fetch_tokens(dataset: Dataset, spans: NDArray[np.int64]) -> None:
    """Download the tokens of all spans together, if the dataset is in a bucket.

    A span is a range of tokens of one sequence. Each one is read later. If the dataset is in a
    bucket, that would be a request for each span. Here all of them are requested at once, and the
    dataset keeps the tokens for the later reads.

    Args:
        dataset: The dataset.
        spans: Sequence, first token in it and stop, shape (n_spans, 3).
    """
    sequences = dataset.sequences
    itemsize = sequences.dtype.itemsize
    sequence_numbers, starts, stops = spans.T  # (n_spans,) each

    # (n_spans,) ranges of bytes of the .bin
    start_bytes = sequences.sequence_pointers[sequence_numbers] + starts * itemsize
    stop_bytes = start_bytes + (stops - starts) * itemsize
    sequences.tokens_for(start_bytes, stop_bytes)  # reads many ranges with few requests


def _piece_origin(
    dataset: Dataset,
    span: _SequenceSpan,
    piece: DocumentPiece,
    origin: DocumentOrigin,
    excerpts: Excerpts,
) -> PieceOrigin:
    """Describe the tokens that a training sample and a document have in common.

    Both are ranges of a sequence of a dataset's tokens. For example:

        tokens of the sequence that are in the sample          0 to 100
        tokens of the sequence that are from the document      60 to 150
        in common                                              60 to 100

    For people to read, the result has the text of these tokens in two forms: decoded from the
    tokens, and as it is in the raw file, if that is still there. To find it in the raw file, the
    raw text of the document is tokenized again, and compared with all of its tokens.

    Args:
        dataset: The dataset that has the sequence.
        span: The tokens of the sequence that are in the sample.
        piece: The tokens of the sequence that are from the document.
        origin: Where the document came from: its file and line.
        excerpts: Makes the excerpts of its text.

    Returns:
        Which tokens of the sample and of the document these are, and their text.
    """
    start = max(span.start, piece.start)
    stop = min(span.stop, piece.stop)
    common_tokens = dataset.sequences.get(piece.sequence, start, stop - start)
    document_tokens = _in_document(piece, start, stop)

    # The raw text is compared with all tokens of the document, if it is read.
    all_tokens = None
    if excerpts.has_raw_text:
        all_tokens = _all_tokens(dataset, piece, origin)
    return PieceOrigin(
        origin=origin,
        sample_tokens=span.in_sample(start, stop),
        document_tokens=document_tokens,
        text=excerpts.decoded(common_tokens),
        source=excerpts.source(origin, all_tokens, document_tokens),
    )


def _in_document(piece: DocumentPiece, start: int, stop: int) -> tuple[int, int]:
    """Convert positions in a sequence of tokens to positions in a document.

    For example, a document was divided, and its tokens from 100 on are in a sequence from token 30
    on. Then the tokens 40 to 50 of the sequence are the tokens 110 to 120 of the document.

    Args:
        piece: Which tokens of the sequence are from the document.
        start: Position of the first token in the sequence.
        stop: Position after the last token in the sequence.

    Returns:
        A range (start, stop) of tokens of the document.
    """
    # The piece begins at `piece.start` in the sequence, and at `piece.first` in the document.
    shift = piece.first - piece.start
    return start + shift, stop + shift


def _all_tokens(dataset: Dataset, piece: DocumentPiece, origin: DocumentOrigin) -> Tokens | None:
    """Return all tokens of a document, or None if its sequence has only a piece of it.

    Args:
        dataset: The dataset that has the sequence.
        piece: The tokens of the sequence that are from the document.
        origin: The document, with its number of tokens.
    """
    is_whole_document = piece.first == 0 and piece.stop - piece.start == origin.tokens
    if not is_whole_document:
        return None
    return dataset.sequences.get(piece.sequence, piece.start, origin.tokens)
