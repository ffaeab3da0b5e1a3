"""Search the index arrays of a split for the samples that hold a document.

A document's tokens are in sequences of a dataset. From a sequence, the search follows the arrays of
the split backwards:

    document index     entry → sequence              `positions_of`
    sample index       sample → entry, offset        `spans_of`
    shuffle index      position → sample             `renumbered`
    blend              position → dataset, position  `blended`

The arrays are memory-mapped and read in chunks, so that the memory stays small however many samples
a split has.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
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
"""Entries of an array that are read at once."""


@dataclass(frozen=True, slots=True)
class Appearance:
    """Tokens of a document in one sample."""

    sample: int
    """Position in the split."""
    sample_tokens: tuple[int, int]
    """(start, stop) within the sample."""
    document_tokens: tuple[int, int]
    """(start, stop) within the document."""


@dataclass(frozen=True, slots=True)
class DocumentPlaces:
    """Where a document is in a split or a webdataset."""

    origin: DocumentOrigin
    """The document."""
    appearances: tuple[Appearance, ...]
    """By sample; none if it is never seen."""
    tokens_seen: int
    """Different tokens of the document that are in a sample."""
    reason: str | None
    """Why it, or a part of it, is never seen; None if all of it is seen."""


class Spans(NamedTuple):
    """Tokens of one sequence in samples; each array is int64 of shape (n_spans,)."""

    samples: NDArray[np.int64]
    """The sample: a row of the sample index, or a position in a dataset or split."""
    offsets: NDArray[np.int64]
    """Position in the sample at which the span begins."""
    starts: NDArray[np.int64]
    """Position in the sequence at which it begins."""
    stops: NDArray[np.int64]
    """Position in the sequence at which it ends."""

    @staticmethod
    def concatenate(parts: Sequence[Spans]) -> Spans:
        """Return the spans of all parts, in order."""
        empty = np.empty(0, np.int64)
        columns = zip(Spans(empty, empty, empty, empty), *parts, strict=True)
        return Spans(*[np.concatenate(column) for column in columns])

    def select(self, rows: NDArray[Any]) -> Spans:
        """Return some of the spans, by a mask or by their indices."""
        return Spans(*[column[rows] for column in self])

    def rows(self) -> list[list[int]]:
        """Return (sample, offset, start, stop) of each span."""
        rows: list[list[int]] = np.stack(self, axis=1).tolist()
        return rows

    def clipped(self, start: int, stop: int) -> Spans:
        """Return what the spans hold of tokens [start, stop) of the sequence."""
        starts = np.maximum(self.starts, start)
        stops = np.minimum(self.stops, stop)
        clipped = Spans(self.samples, self.offsets + starts - self.starts, starts, stops)
        return clipped.select(stops > starts)

    def covered(self) -> int:
        """Return how many different tokens of the sequence the spans hold."""
        return covered_tokens(list(zip(self.starts.tolist(), self.stops.tolist(), strict=True)))


def covered_tokens(ranges: Sequence[tuple[int, int]]) -> int:
    """Return how many different tokens some ranges [start, stop) hold."""
    total = 0
    reached = 0
    for start, stop in sorted(ranges):
        total += max(stop - max(start, reached), 0)
        reached = max(reached, stop)
    return total


def unseen(seen: int, tokens: int) -> str:
    """Return a clause that says how much of a document with so many tokens is never seen."""
    if seen == 0:
        return "never seen"
    return f"{tokens - seen:,} of its {tokens:,} tokens are never seen"


class _PieceCounts(NamedTuple):
    """How many different tokens of a piece of a document get through each step to the samples of a
    split.
    """

    tokens: int
    """Of the piece."""
    document_tokens: int
    """Of the whole document, which the message is about."""
    in_sample_index: int
    drawn: int
    """In samples of the dataset that are drawn."""
    seen: int
    """In samples of the split."""


class Split(NamedTuple):
    """A split of a nanoset, with the datasets that its samples are of."""

    context: InspectionContext
    name: str
    """Of the nanoset."""
    loaded: Nanoset | BlendedNanoset
    members: tuple[Nanoset, ...]
    """One for each dataset."""
    datasets: tuple[Dataset, ...]
    """In the same order."""

    @staticmethod
    def of(
        context: InspectionContext,
        name: str,
        split: str,
        loaded: Nanoset | BlendedNanoset | None = None,
    ) -> Split:
        """Open a split, or take one that is loaded already; errors are those of `load_nanoset`."""
        if loaded is None:
            loaded = load_nanoset(context.outputs, name, split)
        member_by_prefix = {member.member.prefix: member for member in _members(loaded)}
        members = tuple(member_by_prefix.values())
        datasets = [context.datasets.at(member.member.prefix, member.dataset) for member in members]
        return Split(context, name, loaded, members, tuple(datasets))

    def places(self, number: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return where a document is in the split, and why a part of it is nowhere.

        Args:
            number: Number of the document's dataset in `datasets`.
            origin: The document.
        """
        member = self.members[number]
        pieces = self.datasets[number].pieces_of(origin.dataset_document)
        appearances: list[Appearance] = []
        reasons: list[str] = []
        for piece in pieces:
            in_sample_index = spans_of(member, piece.sequence).clipped(piece.start, piece.stop)
            drawn, seen = self._drawn(member, in_sample_index)
            to_document = piece.first - piece.start
            for sample, offset, start, stop in seen.rows():
                sample_tokens = (offset, offset + stop - start)
                document_tokens = (start + to_document, stop + to_document)
                appearances.append(Appearance(sample, sample_tokens, document_tokens))

            tokens = piece.stop - piece.start
            counts = _PieceCounts(
                tokens=tokens,
                document_tokens=tokens if len(pieces) == 1 else origin.tokens,
                in_sample_index=in_sample_index.covered(),
                drawn=drawn.covered(),
                seen=seen.covered(),
            )
            if counts.seen < tokens or not tokens:
                reasons.append(self._reason(member, piece, counts))

        n_held = sum(piece.stop - piece.start for piece in pieces)
        if not pieces:
            reasons.append("never seen: it has no tokens, and so no sequence in the dataset")
        elif n_held < origin.tokens:
            reasons.append(
                f"packing left out {origin.tokens - n_held:,} of its {origin.tokens:,} tokens"
            )

        appearances.sort(key=lambda appearance: (appearance.sample, appearance.sample_tokens))
        tokens_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        reason = "; ".join(dict.fromkeys(reasons)) or None
        return DocumentPlaces(origin, tuple(appearances), tokens_seen, reason)

    def _drawn(self, member: Nanoset, spans: Spans) -> tuple[Spans, Spans]:
        """Return spans of rows of the sample index by positions in the dataset, and by positions in
        the split.
        """
        drawn = renumbered(spans, member.shuffle_index)

        # A run that continues another one does not read the samples before its first one again.
        drawn = drawn.select(drawn.samples >= member.member.begin)
        if isinstance(self.loaded, Nanoset):
            return drawn, drawn
        return drawn, blended(self.loaded, self.loaded.datasets.index(member), drawn)

    def _reason(self, member: Nanoset, piece: DocumentPiece, counts: _PieceCounts) -> str:
        """Return why some tokens of a piece of a document are not in samples of the split."""
        split = member.member.split
        if not counts.tokens:
            return f"never seen in {split}: it has no tokens"

        start, stop = member.member.rows
        is_continued = member.member.order is not None
        if not start <= piece.sequence < stop:
            subject = "it" if counts.tokens == counts.document_tokens else "that part"
            why = f"{subject} belongs to {self._other_split(member, piece.sequence)}"
        elif counts.in_sample_index < counts.tokens and counts.in_sample_index == counts.seen:
            why = "they lie in the tail, which does not fill a sample"
        elif counts.drawn < counts.in_sample_index and counts.drawn == counts.seen:
            why = "the samples that hold them are not drawn"
            if is_continued:
                why = "earlier phases of the run read the samples that hold them"
        else:
            why = "the blend takes fewer samples of this corpus than were built"
            if counts.drawn < counts.in_sample_index and is_continued:
                why += ", and earlier phases of the run read some"
            if counts.in_sample_index < counts.tokens:
                why += ", and some lie in the tail, which does not fill a sample"

        # The rest of the document is in other pieces, for which there may be other reasons.
        seen = counts.seen + counts.document_tokens - counts.tokens
        return f"{unseen(seen, counts.document_tokens)} in {split}, because {why}"

    def _other_split(self, member: Nanoset, sequence: int) -> str:
        """Return which split reads a sequence of a dataset."""
        for split in SPLITS:
            # Splits that are not built, or have no share of the dataset, are passed over.
            with suppress(NanosetError):
                loaded = load_nanoset(self.context.outputs, self.name, split)
                for nanoset in _members(loaded):
                    start, stop = nanoset.member.rows
                    if nanoset.member.prefix == member.member.prefix and start <= sequence < stop:
                        return f"the {split} split"
        return "no split that was built"


def _members(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    """Return the datasets of a split."""
    return (loaded,) if isinstance(loaded, Nanoset) else loaded.datasets


def positions_of(values: NDArray[np.integer[Any]], value: int) -> NDArray[np.int64]:
    """Return the positions at which an array has a value, int64, shape (n_positions,), ascending."""
    parts = [np.empty(0, np.int64)]
    for start in range(0, len(values), CHUNK):
        parts.append(np.flatnonzero(values[start : start + CHUNK] == value) + start)
    return np.concatenate(parts)


def spans_of(nanoset: Nanoset, sequence: int) -> Spans:
    """Return the spans of a sequence by rows of the sample index, in the order of the document
    index.
    """
    entries = positions_of(nanoset.document_index, sequence).tolist()
    return Spans.concatenate([_spans_of_entry(nanoset, entry) for entry in entries])


def _spans_of_entry(nanoset: Nanoset, entry: int) -> Spans:
    """Return the spans of one entry of the document index."""
    sample_index = nanoset.sample_index  # (n_samples + 1, 2): entry, offset
    lengths = nanoset.dataset.sequence_lengths

    # Row j is where sample j begins and, inclusively, where sample j - 1 ends: both may be in this
    # entry.
    first_row = max(bisect_left(sample_index[:, 0], entry) - 1, 0)
    last_row = min(bisect_right(sample_index[:, 0], entry), len(sample_index) - 1)
    # (n_samples + 1, 2), the last one is an end alone
    rows = sample_index[first_row : last_row + 1].astype(np.int64)
    if len(rows) < 2:
        return Spans.concatenate([])
    start_entries = rows[:-1, 0]  # (n_samples,)
    start_offsets = rows[:-1, 1]
    stop_entries = rows[1:, 0]
    stop_offsets = rows[1:, 1]

    # Within this entry, a sample starts at its offset, or at the first token if it begins in an
    # earlier entry. It stops at the next sample's offset, or at the last token if it ends in a
    # later entry.
    length = int(lengths[int(nanoset.document_index[entry])])
    starts = np.where(start_entries == entry, start_offsets, 0)
    stops = np.where(stop_entries == entry, stop_offsets + nanoset.config.overlap, length)
    is_here = (start_entries <= entry) & (stop_entries >= entry)
    has_tokens = is_here & (stops > starts)

    # Only the first sample may begin in an earlier entry: count its tokens up to this one.
    offsets = np.zeros(len(starts), np.int64)
    first_entry = int(start_entries[0])
    if first_entry < entry:
        earlier_sequences = nanoset.document_index[first_entry:entry]
        offsets[0] = lengths[earlier_sequences].sum(dtype=np.int64) - start_offsets[0]
    samples = np.arange(first_row, first_row + len(starts), dtype=np.int64)
    return Spans(samples, offsets, starts, stops).select(has_tokens)


def blended(loaded: BlendedNanoset, number: int, spans: Spans) -> Spans:
    """Return spans by positions in a blend.

    Args:
        loaded: The blend.
        number: Number of a dataset of the blend.
        spans: Spans by positions in this dataset.
    """
    # Some trainers read a dataset from its start again once all its samples are read.
    wraps = len(loaded.datasets[number]) if loaded.config.rules.wraps == "read" else None
    return renumbered(spans, loaded.dataset_sample_index, loaded.dataset_index, number, wraps)


def renumbered(
    spans: Spans,
    numbers: NDArray[np.integer[Any]],
    members: NDArray[np.integer[Any]] | None = None,
    member: int = 0,
    wraps: int | None = None,
) -> Spans:
    """Return the spans again for each position at which an array names their sample, by these
    positions.

    Args:
        spans: The spans, by sample.
        numbers: Sample at each position, shape (n_positions,).
        members: Dataset at each position, shape (n_positions,); only those of `member` count.
        member: Number of a dataset.
        wraps: Samples of the dataset, if numbers beyond them mean its first samples again.
    """
    # Spans of the same sample are neighbours: (n_samples,) each sample with its run of spans.
    order = np.argsort(spans.samples, kind="stable")
    samples, run_starts, run_lengths = np.unique(
        spans.samples[order], return_index=True, return_counts=True
    )
    parts: list[Spans] = []
    for start in range(0, len(numbers) if len(samples) else 0, CHUNK):
        stop = start + CHUNK
        chunk = numbers[start:stop].astype(np.int64)
        if wraps is not None:
            chunk %= wraps

        # Positions whose number is one of the samples.
        nearest = np.minimum(np.searchsorted(samples, chunk), len(samples) - 1)
        is_hit = samples[nearest] == chunk
        if members is not None:
            is_hit &= members[start:stop] == member
        hits = np.flatnonzero(is_hit)
        runs = nearest[hits]  # (n_hits,) position in `samples`

        # One copy of the sample's spans for each of these positions.
        copies = spans.select(order[positions_in(run_starts[runs], run_lengths[runs])])
        parts.append(copies._replace(samples=np.repeat(start + hits, run_lengths[runs])))
    return Spans.concatenate(parts)
