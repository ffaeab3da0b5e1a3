"""Search the index arrays of a split for the samples that contain a document.

A document's tokens are in sequences of a dataset. From a sequence, the search follows the arrays of
the split backwards:

    document index     entry → sequence              `positions_of`
    sample index       sample → entry, offset        `spans_of`
    shuffle index      position → sample             `renumbered`
    blend              position → dataset, position  `blended`

For example, a document is sequence 1 of its dataset. Entry 2 of the document index is this
sequence, sample 1 begins in this entry, and the shuffle index has a 1 at position 0: so sample 0 of
the split contains the document. The arrays are memory-mapped and read in chunks, so that the memory
stays small however many samples a split has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import NanosetError
from nanoset_core.formats.indexed.layout import positions_in
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.loading.blended_nanoset import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.sampling.splits import SPLITS
from nanoset_core.stages.dataset.dataset import Dataset, DocumentPiece

CHUNK = 1 << 20
"""How many entries of an array are read at once."""


@dataclass(frozen=True, slots=True)
class Appearance:
    """Tokens of a document in one sample."""

    sample: int
    """Number of the sample in the split, from 0."""
    sample_tokens: tuple[int, int]
    """Their range (start, stop) within the sample."""
    document_tokens: tuple[int, int]
    """Their range (start, stop) within the document."""


@dataclass(frozen=True, slots=True)
class DocumentPlaces:
    """The samples of a split or webdataset that contain a document."""

    origin: DocumentOrigin
    """The document."""
    appearances: tuple[Appearance, ...]
    """Its tokens in samples, ordered by sample; none if it is never seen."""
    tokens_seen: int
    """How many of its tokens are in a sample; tokens that are in several samples count once."""
    reason: str | None
    """Why it, or a part of it, is never seen; None if all of it is seen."""


class Spans(NamedTuple):
    """Runs of tokens of one sequence in samples; each array is int64, shape (n_spans,)."""

    samples: NDArray[np.int64]
    """The sample of each span. Each step of the search numbers samples differently: as a row of the
    sample index, as a position in a dataset, or as a position in the split.
    """
    offsets: NDArray[np.int64]
    """Position in the sample at which the span begins."""
    starts: NDArray[np.int64]
    """Position in the sequence of its first token."""
    stops: NDArray[np.int64]
    """Position in the sequence after its last token."""

    @staticmethod
    def concatenate(parts: Sequence[Spans]) -> Spans:
        """Return the spans of all parts, in order; without parts, no spans.

        Args:
            parts: Spans of one sequence, or of one document.
        """
        empty = np.empty(0, np.int64)
        no_spans = Spans(empty, empty, empty, empty)  # sets the dtype if there are no parts
        columns = zip(no_spans, *parts, strict=True)  # `samples` of all parts, `offsets` of all …
        return Spans(*[np.concatenate(column) for column in columns])

    def select(self, rows: NDArray[Any]) -> Spans:
        """Return some of the spans.

        Args:
            rows: A mask, boolean of shape (n_spans,), or indices of spans.
        """
        return Spans(*[column[rows] for column in self])

    def rows(self) -> list[list[int]]:
        """Return the spans as Python numbers, a list [sample, offset, start, stop] for each."""
        rows: list[list[int]] = np.stack(self, axis=1).tolist()  # (n_spans, 4)
        return rows

    def clipped(self, start: int, stop: int) -> Spans:
        """Cut the spans to a range of tokens; spans that are outside it are left out.

        Args:
            start: Position in the sequence of the first token of the range.
            stop: Position after its last token.

        Returns:
            At most as many spans, each within the range. A span that loses tokens at its front
            begins later in its sample.
        """
        starts = np.maximum(self.starts, start)
        stops = np.minimum(self.stops, stop)
        offsets = self.offsets + starts - self.starts
        has_tokens = stops > starts
        return Spans(self.samples, offsets, starts, stops).select(has_tokens)

    def covered(self) -> int:
        """Return how many tokens of the sequence are in a span; those in several count once."""
        ranges = zip(self.starts.tolist(), self.stops.tolist(), strict=True)
        return covered_tokens(list(ranges))


def covered_tokens(ranges: Sequence[tuple[int, int]]) -> int:
    """Return how many tokens are in at least one of some ranges.

    Args:
        ranges: Pairs (start, stop) in any order. They may overlap.

    Returns:
        The number of tokens: 6 for the ranges (0, 4) and (2, 6).
    """
    total = 0
    covered_stop = 0  # all tokens of the ranges before this one have been counted
    for start, stop in sorted(ranges):
        total += max(stop - max(start, covered_stop), 0)
        covered_stop = max(covered_stop, stop)
    return total


def unseen(seen: int, tokens: int) -> str:
    """Return a clause that says how many tokens of a document training never sees.

    Args:
        seen: How many of its tokens are in samples.
        tokens: How many tokens it has.

    Returns:
        The clause, such as `never seen` or `7 of its 90 tokens are never seen`.
    """
    if seen == 0:
        return "never seen"
    return f"{tokens - seen:,} of its {tokens:,} tokens are never seen"


class _PieceCounts(NamedTuple):
    """How many tokens of a piece of a document remain after each step to the samples of a split.

    Tokens that are in several samples count once. For example, of a piece of 90 tokens, 83 are in
    the sample index, since the last 7 do not fill a sample. If all its samples are drawn and
    blended, `drawn` and `seen` are 83, too.
    """

    tokens: int
    """Tokens of the piece."""
    document_tokens: int
    """Tokens of the whole document, which the message is about."""
    in_sample_index: int
    """Tokens in rows of the sample index."""
    drawn: int
    """Tokens in samples that the dataset contributes."""
    seen: int
    """Tokens in samples of the split."""

    @property
    def unseen(self) -> int:
        """Tokens of the piece that are in no sample of the split."""
        return self.tokens - self.seen


class Split(NamedTuple):
    """An open split of a nanoset, with the datasets that its samples are taken from."""

    context: InspectionContext
    """The project or output root."""
    name: str
    """Name of the nanoset."""
    loaded: Nanoset | BlendedNanoset
    """The samples of the split."""
    members: tuple[Nanoset, ...]
    """The samples of each dataset of its blend."""
    datasets: tuple[Dataset, ...]
    """The datasets, in the same order."""

    @staticmethod
    def of(
        context: InspectionContext,
        name: str,
        split: str,
        loaded: Nanoset | BlendedNanoset | None = None,
    ) -> Split:
        """Open a split of a nanoset, together with the datasets that its samples are taken from.

        Args:
            context: The opened outputs, and the settings of the project if they are known.
            name: Name of the nanoset.
            split: `train`, `valid` or `test`.
            loaded: Its samples, if they are loaded already.

        Raises:
            NanosetError: There is no such nanoset, it has not been built, or a file is damaged.
        """
        if loaded is None:
            loaded = load_nanoset(context.outputs, name, split)
        members = _one_member_per_dataset(loaded)
        datasets = [
            context.datasets.at(nanoset.member.prefix, nanoset.dataset) for nanoset in members
        ]
        return Split(context, name, loaded, members, tuple(datasets))

    def places(self, number: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return which samples contain a document, and why a part of it is in none.

        A sample is the sequence of tokens that training reads at once.

        Args:
            number: Number of the document's dataset in `datasets`.
            origin: The document: its number, file and line.

        Returns:
            The samples; none if training never sees the document. `reason` then says why.
        """
        # The document is one piece, unless it was cut, or packed into sequences of fixed length.
        pieces = self.datasets[number].pieces_of(origin.dataset_document)
        document_tokens = _tokens_in_messages(pieces, origin)

        # Look for each piece in the samples, and collect the reasons for tokens that are in none.
        appearances: list[Appearance] = []
        reasons: list[str | None] = []
        for piece in pieces:
            placed = self._place_piece(self.members[number], piece, document_tokens)
            appearances += placed.appearances
            reasons.append(placed.reason)
        reasons.append(_why_not_in_dataset(pieces, origin.tokens))

        appearances.sort(key=lambda appearance: (appearance.sample, appearance.sample_tokens))
        tokens_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        return DocumentPlaces(origin, tuple(appearances), tokens_seen, _joined(reasons))

    def _place_piece(
        self, nanoset: Nanoset, piece: DocumentPiece, document_tokens: int
    ) -> _PlacedPiece:
        """Find the samples of the split that contain tokens of a piece of a document.

        Args:
            nanoset: The samples of the document's dataset.
            piece: The piece: consecutive tokens of the document in one sequence of the dataset.
            document_tokens: Tokens of the whole document.

        Returns:
            The samples, and the reason why some tokens are in none.
        """
        # Follow the tokens from the dataset through the sample index and the shuffle index to the
        # samples of the split.
        in_sample_index = spans_of(nanoset, piece.sequence).clipped(piece.start, piece.stop)
        drawn = _drawn_spans(nanoset, in_sample_index)
        seen = self._spans_in_split(nanoset, drawn)

        # Count how many of them remain after each step, which shows where the others were lost.
        counts = _PieceCounts(
            tokens=piece.stop - piece.start,
            document_tokens=document_tokens,
            in_sample_index=in_sample_index.covered(),
            drawn=drawn.covered(),
            seen=seen.covered(),
        )
        reason = self._reason(nanoset, piece, counts)
        return _PlacedPiece(list(_appearances(piece, seen)), reason)

    def _spans_in_split(self, nanoset: Nanoset, spans: Spans) -> Spans:
        """Replace the samples of spans: from numbers in a dataset to numbers in the whole split.

        Args:
            nanoset: The samples of one dataset of the split.
            spans: Runs of a document's tokens, each in one of these samples.

        Returns:
            The same tokens in samples of the split. There may be more spans than before, or fewer,
            since a blend may take a sample of a dataset once, several times, or never.
        """
        if isinstance(self.loaded, Nanoset):
            return spans  # the only dataset of the split: its samples are those of the split
        dataset_number = self.loaded.datasets.index(nanoset)
        return blended(self.loaded, dataset_number, spans)

    def _reason(self, nanoset: Nanoset, piece: DocumentPiece, counts: _PieceCounts) -> str | None:
        """Return the sentence that says why some tokens of a document are never seen.

        Args:
            nanoset: The samples of the document's dataset.
            piece: The piece of the document that these tokens are in.
            counts: How many tokens of the piece remain after each step to the samples of the split.

        Returns:
            A sentence without a full stop, such as `7 of its 90 tokens are never seen in train,
            because they lie in the tail, which does not fill a sample`. None if all are seen.
        """
        split = nanoset.member.split
        if counts.tokens == 0:
            return f"never seen in {split}: it has no tokens"
        if counts.unseen == 0:
            return None

        # Other pieces of the document have reasons of their own, so their tokens count as seen
        # here.
        n_seen = counts.document_tokens - counts.unseen
        why = self._why_unseen(nanoset, piece, counts)
        return f"{unseen(n_seen, counts.document_tokens)} in {split}, because {why}"

    def _why_unseen(self, nanoset: Nanoset, piece: DocumentPiece, counts: _PieceCounts) -> str:
        """Return why some tokens of a piece of a document are in no sample, to end a sentence.

        Either another split has the piece, or a step on the way to the samples lost tokens of it.

        Args:
            nanoset: The samples of the document's dataset.
            piece: Consecutive tokens of the document in one sequence of the dataset.
            counts: How many of its tokens remain after each step.
        """
        plan = nanoset.member  # which sequences and samples of the dataset the split reads
        start, stop = plan.rows
        if start <= piece.sequence < stop:
            # An order says how earlier phases of a run read the dataset.
            return _step_that_lost(counts, is_phase=plan.order is not None)

        is_whole_document = counts.tokens == counts.document_tokens
        subject = "it" if is_whole_document else "that part"
        return f"{subject} belongs to {self._split_with(plan.prefix, piece.sequence)}"

    def _split_with(self, prefix: str, sequence: int) -> str:
        """Return which split of the nanoset reads a sequence of a dataset, to end a sentence.

        For example, "the valid split".

        Args:
            prefix: Path of the dataset's files, without their ending.
            sequence: Number of the sequence in the dataset.
        """
        for split in SPLITS:
            # Skip splits that have not been built, or have no share of the dataset.
            with suppress(NanosetError):
                loaded = load_nanoset(self.context.outputs, self.name, split)
                if _reads_sequence(loaded, prefix, sequence):
                    return f"the {split} split"
        return "no split that was built"


class _PlacedPiece(NamedTuple):
    """Where the tokens of a piece of a document are in the samples of a split."""

    appearances: list[Appearance]
    reason: str | None
    """Why some of its tokens are in no sample; None if all are in samples."""


def _tokens_in_messages(pieces: Sequence[DocumentPiece], origin: DocumentOrigin) -> int:
    """Return how many tokens a document has, in messages about tokens that are in no sample.

    Packing may have left out some of its tokens, which a message of its own reports. If there is
    just one piece, messages about samples do not count these: of a document of 100 tokens, of which
    packing left out 10, they say "7 of its 90 tokens".

    Args:
        pieces: Its pieces in the dataset.
        origin: The document: its number, file and line.
    """
    if len(pieces) == 1:
        return pieces[0].stop - pieces[0].start
    return origin.tokens


def _joined(reasons: Sequence[str | None]) -> str | None:
    """Return different reasons as one text, such as `reason A; reason B`; None without reasons."""
    different_reasons = dict.fromkeys(reason for reason in reasons if reason is not None)
    return "; ".join(different_reasons) or None


def _why_not_in_dataset(pieces: Sequence[DocumentPiece], n_tokens: int) -> str | None:
    """Return why some tokens of a document are not even in the dataset; None if all are.

    Args:
        pieces: Its pieces in the dataset: a packed document may be cut, and lose its end.
        n_tokens: Tokens of the document.
    """
    if not pieces:
        return "never seen: it has no tokens, and so no sequence in the dataset"
    n_left_out = n_tokens - sum(piece.stop - piece.start for piece in pieces)
    if n_left_out > 0:
        return f"packing left out {n_left_out:,} of its {n_tokens:,} tokens"
    return None


def _step_that_lost(counts: _PieceCounts, *, is_phase: bool) -> str:
    """Return which step from the dataset to the split lost tokens of a document, as a reason.

    The last tokens of a dataset may fill no sample, not all samples may be drawn, and the blend of
    several datasets may not take all that are drawn.

    Args:
        counts: How many tokens of a piece of the document remain after each step.
        is_phase: Whether the split is a phase of a run, which draws no samples that earlier phases
            read.

    Returns:
        A clause that ends a sentence after "because".
    """
    is_lost_in_tail = counts.in_sample_index < counts.tokens
    is_lost_in_draw = counts.drawn < counts.in_sample_index
    is_lost_in_blend = counts.seen < counts.drawn
    if is_lost_in_blend:
        why = "the blend takes fewer samples of this corpus than were built"
        if is_lost_in_draw and is_phase:
            why += ", and earlier phases of the run read some"
        if is_lost_in_tail:
            why += ", and some lie in the tail, which does not fill a sample"
        return why

    if is_lost_in_draw and is_phase:
        return "earlier phases of the run read the samples that hold them"
    if is_lost_in_draw:
        return "the samples that hold them are not drawn"
    return "they lie in the tail, which does not fill a sample"


def _reads_sequence(loaded: Nanoset | BlendedNanoset, prefix: str, sequence: int) -> bool:
    """Return whether a split reads a sequence of a dataset.

    Args:
        loaded: The samples of the split.
        prefix: Path of the dataset's files, without their ending.
        sequence: Number of the sequence in the dataset.
    """
    for nanoset in _members(loaded):
        plan = nanoset.member  # which sequences of which dataset the split reads
        start, stop = plan.rows
        if plan.prefix == prefix and start <= sequence < stop:
            return True
    return False


def _members(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    """Return the samples of each dataset of a split; a split that is not a blend has one.

    Args:
        loaded: The samples of the split.
    """
    if isinstance(loaded, Nanoset):
        return (loaded,)
    return loaded.datasets


def _one_member_per_dataset(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    """Return the samples of each dataset of a split, once if it is blended several times.

    Args:
        loaded: The samples of the split.
    """
    nanoset_by_prefix: dict[str, Nanoset] = {}
    for nanoset in _members(loaded):
        prefix = nanoset.member.prefix  # path of the dataset's files, without their ending
        nanoset_by_prefix[prefix] = nanoset
    return tuple(nanoset_by_prefix.values())


def _drawn_spans(nanoset: Nanoset, spans: Spans) -> Spans:
    """Keep the spans whose samples are read, and number these samples as they are read.

    The samples of a dataset are cut first, and then shuffled: the shuffle index [2, 0] says that
    the first sample to be read is the one that was cut as number 2, and that number 1 is not read.

    Args:
        nanoset: The samples of the dataset.
        spans: Runs of a document's tokens. Their `samples` are numbers before the shuffle: rows of
            the sample index.

    Returns:
        The spans that are left. Their `samples` are positions in `nanoset`.
    """
    drawn = renumbered(spans, _chunks_of(nanoset.shuffle_index))

    # If a training run is divided into phases, earlier phases have read the samples before `begin`.
    first_sample = nanoset.member.begin
    return drawn.select(drawn.samples >= first_sample)


def _appearances(piece: DocumentPiece, spans: Spans) -> Iterator[Appearance]:
    """Yield which tokens of a document are in which samples of a split.

    Args:
        piece: A piece of the document: consecutive tokens of it that are in one sequence.
        spans: Runs of tokens of this piece. Their `samples` are numbers of samples in the split.

    Yields:
        One appearance for each span: for example, the tokens [0, 50) of sample 7 are the tokens
        [100, 150) of the document.
    """
    # Token i of the sequence is token i + shift of the document.
    shift = piece.first - piece.start
    for sample, sample_start, sequence_start, sequence_stop in spans.rows():
        n_tokens = sequence_stop - sequence_start
        yield Appearance(
            sample=sample,
            sample_tokens=(sample_start, sample_start + n_tokens),
            document_tokens=(sequence_start + shift, sequence_stop + shift),
        )


def positions_of(values: NDArray[np.integer[Any]], value: int) -> NDArray[np.int64]:
    """Return the positions at which an array has a value, for arrays that do not fit into memory.

    Args:
        values: The array, usually a memory-mapped file, shape (n_values,). It is read in chunks.
        value: The value to look for.

    Returns:
        Shape (n_positions,), ascending: [0, 2] for the value 7 in [7, 3, 7].
    """
    parts = [np.empty(0, np.int64)]  # the dtype of the result if the array is empty
    for start in range(0, len(values), CHUNK):
        chunk = values[start : start + CHUNK]
        parts.append(start + np.flatnonzero(chunk == value))
    return np.concatenate(parts)


def spans_of(nanoset: Nanoset, sequence: int) -> Spans:
    """Find the samples, before they are shuffled, that contain tokens of a sequence.

    A dataset consists of sequences, each usually a document. Samples of one length are cut from
    them, so that a sequence may be in several samples, and a sample may have several sequences.

    Args:
        nanoset: The samples of a dataset.
        sequence: Number of a sequence of the dataset.

    Returns:
        The tokens of the sequence in each of these samples, in the order of the document index. The
        `samples` of the spans are rows of the sample index.
    """
    # The document index lists a sequence once for each epoch that reads it.
    entries = positions_of(nanoset.document_index, sequence).tolist()
    return Spans.concatenate([_spans_of_entry(nanoset, entry) for entry in entries])


class _CandidateSamples(NamedTuple):
    """Consecutive samples before they are shuffled; arrays have the shape (n_samples,).

    A position is an entry of the document index, which is one reading of a sequence, and an offset
    in that sequence.
    """

    first: int
    """Number of the first sample: its row of the sample index."""
    start_entries: NDArray[np.int64]
    start_offsets: NDArray[np.int64]
    """The position at which each sample begins."""
    stop_entries: NDArray[np.int64]
    stop_offsets: NDArray[np.int64]
    """The position at which each sample ends, and the next one begins."""

    @property
    def numbers(self) -> NDArray[np.int64]:
        """Numbers of the samples, shape (n_samples,)."""
        return np.arange(self.first, self.first + len(self.start_entries), dtype=np.int64)

    def starts_in(self, entry: int) -> NDArray[np.int64]:
        """Return the first token that each sample has of an entry's sequence.

        A sample that begins in an earlier entry has the sequence from its first token on.

        Args:
            entry: Position in the document index.

        Returns:
            Positions in the sequence, shape (n_samples,).
        """
        return np.where(self.start_entries == entry, self.start_offsets, 0)

    def stops_in(self, entry: int, length: int, overlap: int) -> NDArray[np.int64]:
        """Return after which token of an entry's sequence each sample ends.

        A sample that ends in a later entry has the sequence up to its last token.

        Args:
            entry: Position in the document index.
            length: Tokens of the entry's sequence.
            overlap: How many tokens at its end a sample has in common with the next one.

        Returns:
            Positions in the sequence, shape (n_samples,).
        """
        return np.where(self.stop_entries == entry, self.stop_offsets + overlap, length)

    def have(self, entry: int) -> NDArray[np.bool_]:
        """Return which samples begin in an entry or before it, and end in it or after it.

        Args:
            entry: Position in the document index.

        Returns:
            A mask, shape (n_samples,).
        """
        return (self.start_entries <= entry) & (self.stop_entries >= entry)


def _candidates_for(sample_index: NDArray[Any], entry: int) -> _CandidateSamples:
    """Return the samples that may have tokens of an entry of the document index.

    Args:
        sample_index: Row j has the entry at which sample j begins, and the offset in its sequence;
            ascending, shape (n_samples + 1, 2). The last row says where the last sample ends.
        entry: Position in the document index.
    """
    # Take the samples that begin in the entry, and the last one that begins before it.
    start_entries = sample_index[:, 0]
    first = max(bisect_left(start_entries, entry) - 1, 0)
    stop = min(bisect_right(start_entries, entry), len(sample_index) - 1)

    # A sample ends where the next one begins, so one row more is needed.
    rows = sample_index[first : stop + 1].astype(np.int64)  # (n_candidates + 1, 2)
    begins = rows[:-1]
    ends = rows[1:]
    return _CandidateSamples(
        first=first,
        start_entries=begins[:, 0],
        start_offsets=begins[:, 1],
        stop_entries=ends[:, 0],
        stop_offsets=ends[:, 1],
    )


def _spans_of_entry(nanoset: Nanoset, entry: int) -> Spans:
    """Return which tokens of one entry of the document index are in which sample.

    An entry of the document index is one reading of a sequence, in one epoch. Row j of the sample
    index says at which entry sample j begins, and at which offset in the sequence there. Sample j
    ends where row j + 1 says. For example, with the rows

        entry   offset
            4        7    sample 0 begins in the sequence of entry 4, with its token 7
            6        2    sample 0 ends, and sample 1 begins, in the sequence of entry 6
            6        9    sample 1 ends

    the sequence of entry 5 has one span: all its tokens are in sample 0. The sequence of entry 6
    has two: tokens 0 and 1 are in sample 0, and tokens 2 to 8 in sample 1. If samples overlap by a
    token (the label of one is the first input of the next), each has one more at its end.

    Args:
        nanoset: The samples of a dataset.
        entry: Position in its document index.

    Returns:
        The spans. Their `samples` are rows of the sample index.
    """
    candidates = _candidates_for(nanoset.sample_index, entry)
    n_candidates = len(candidates.start_entries)
    if not n_candidates:
        return Spans.concatenate([])

    # Which tokens of this sequence each sample has.
    sequence = int(nanoset.document_index[entry])
    length = int(nanoset.dataset.sequence_lengths[sequence])
    starts = candidates.starts_in(entry)
    stops = candidates.stops_in(entry, length, nanoset.config.overlap)
    has_tokens = candidates.have(entry) & (stops > starts)

    # A span is at the start of its sample, unless the sample begins in an earlier sequence. Only
    # the first of consecutive samples can do so.
    offsets = np.zeros(n_candidates, np.int64)
    offsets[0] = _tokens_before_entry(nanoset, candidates, entry)
    return Spans(candidates.numbers, offsets, starts, stops).select(has_tokens)


def _tokens_before_entry(nanoset: Nanoset, candidates: _CandidateSamples, entry: int) -> int:
    """Return how many tokens of the first of some samples are before an entry's sequence.

    Args:
        nanoset: The samples of the dataset.
        candidates: Consecutive samples, the first of which may begin in an earlier entry.
        entry: Position in the document index.
    """
    first_entry = int(candidates.start_entries[0])
    if first_entry >= entry:
        return 0
    earlier_sequences = nanoset.document_index[first_entry:entry]
    lengths = nanoset.dataset.sequence_lengths[earlier_sequences]
    return int(lengths.sum(dtype=np.int64)) - int(candidates.start_offsets[0])


def blended(loaded: BlendedNanoset, number: int, spans: Spans) -> Spans:
    """Number spans of tokens by the samples of a blend instead of the samples of one dataset.

    A blend takes its samples from several datasets in turn.

    Args:
        loaded: The blend, which takes its samples from several datasets.
        number: Number of the dataset in the blend.
        spans: Runs of a document's tokens. Their `samples` are numbers of samples of this dataset.

    Returns:
        The spans, whose `samples` are now numbers of samples of the blend. If the blend takes a
        sample of the dataset twice, its span is returned twice.
    """
    return renumbered(spans, _samples_of_dataset(loaded, number))


def _samples_of_dataset(loaded: BlendedNanoset, number: int) -> Iterator[NDArray[np.int64]]:
    """Yield, for each sample of a blend, which sample of one dataset it is; -1 if it is of another.

    For example, if the samples of a blend are samples 0 and 1 of dataset 0, sample 0 of dataset 1
    and sample 2 of dataset 0, this yields [0, 1, -1, 2] for dataset 0.

    Args:
        loaded: The blend, which takes its samples from several datasets.
        number: Number of the dataset in the blend.

    Yields:
        Consecutive parts of this list, shape (n,).
    """
    n_samples = len(loaded.datasets[number])
    chunks_of_datasets = _chunks_of(loaded.dataset_index)
    chunks_of_samples = _chunks_of(loaded.dataset_sample_index)
    for datasets, samples in zip(chunks_of_datasets, chunks_of_samples, strict=True):
        # Some trainers read a dataset from its start again once all its samples are read: of 10
        # samples, number 12 is sample 2 again.
        if loaded.config.rules.wraps == "read":
            samples %= n_samples
        yield np.where(datasets == number, samples, -1)


def _chunks_of(values: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.int64]]:
    """Yield copies of consecutive parts of an array, which may be too large for memory.

    Args:
        values: The array, usually a memory-mapped file, shape (n_values,).
    """
    for start in range(0, len(values), CHUNK):
        yield values[start : start + CHUNK].astype(np.int64)


def renumbered(spans: Spans, samples_in_chunks: Iterable[NDArray[np.int64]]) -> Spans:
    """Replace the sample of each span by the positions at which a list has this sample.

    A span is a run of a document's tokens in one sample. For example, if the list is [7, 3, 7], a
    span of sample 7 becomes two spans, of samples 0 and 2, and a span of sample 5 is left out.

    Args:
        spans: The spans.
        samples_in_chunks: The list, in consecutive parts: numbers of samples, or -1 for none.

    Returns:
        The new spans, ordered by sample.
    """
    runs = _SampleRuns.of(spans)  # the spans of each sample
    if not len(runs.samples):
        return Spans.concatenate([])

    parts: list[Spans] = []
    chunk_start = 0  # position of the chunk in the list
    for chunk in samples_in_chunks:
        # Which entries of the chunk are samples that have spans, and which samples these are.
        nearest = runs.nearest(chunk)  # (n_entries,)
        hits = np.flatnonzero(runs.samples[nearest] == chunk)
        parts.append(runs.copied(nearest[hits], samples=chunk_start + hits))
        chunk_start += len(chunk)
    return Spans.concatenate(parts)


class _SampleRuns(NamedTuple):
    """Spans ordered by sample, so that those of one sample are neighbours: a run.

    For spans of the samples [7, 5, 7], `samples` is [5, 7]: their runs start at [0, 1] and have the
    lengths [1, 2].
    """

    spans: Spans
    """The spans, ordered by sample."""
    samples: NDArray[np.int64]
    """The samples that have spans, ascending, shape (n_samples,)."""
    starts: NDArray[np.int64]
    """Index of each sample's first span, shape (n_samples,)."""
    lengths: NDArray[np.int64]
    """Number of each sample's spans, shape (n_samples,)."""

    @staticmethod
    def of(spans: Spans) -> _SampleRuns:
        """Order spans by sample; those of one sample keep their order.

        Args:
            spans: The spans, in any order.
        """
        ordered = spans.select(np.argsort(spans.samples, kind="stable"))
        samples, starts, lengths = np.unique(ordered.samples, return_index=True, return_counts=True)
        return _SampleRuns(ordered, samples, starts, lengths)

    def nearest(self, numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in `samples` of each number, or of another sample if it has no spans.

        Args:
            numbers: Numbers of samples, int64, shape (n,).

        Returns:
            Indices, shape (n,): for the samples [5, 7], the numbers [7, 3] give [1, 0].
        """
        return np.minimum(np.searchsorted(self.samples, numbers), len(self.samples) - 1)

    def copied(self, runs: NDArray[np.int64], samples: NDArray[np.int64]) -> Spans:
        """Return the spans of some runs, as spans of other samples.

        Args:
            runs: Indices of the runs, shape (n,).
            samples: The sample that the spans of each run get, shape (n,).
        """
        lengths = self.lengths[runs]
        copies = self.spans.select(positions_in(self.starts[runs], lengths))
        return copies._replace(samples=np.repeat(samples, lengths))
