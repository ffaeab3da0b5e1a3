"""Search the index arrays of a split for the samples that hold a document.

What is found are *spans*, int64 arrays of shape (spans, 4): the sample (a row of the sample index, or a position), the
token of the sample at which the span begins, and its first token and the end (excl) within the sequence. Memory-mapped
arrays are read by chunks; nothing is as large as an index.
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
from nanoset_core.lineage.documents import DocumentOrigin, InspectionContext
from nanoset_core.lineage.pieces import parts_of
from nanoset_core.loading.nanoset import BlendedNanoset, Nanoset
from nanoset_core.loading.opening import load_nanoset
from nanoset_core.outputs.manifest import Manifest
from nanoset_core.sampling.splits import SPLITS

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Appearance:
    """Tokens of a document in one sample."""

    sample: int
    """Position in the split."""
    sample_tokens: tuple[int, int]
    """(begin, end excl) within the sample."""
    document_tokens: tuple[int, int]
    """(begin, end excl) within the document."""


@dataclass(frozen=True, slots=True)
class DocumentPlaces:
    """Where a document is in a split or a webdataset."""

    origin: DocumentOrigin
    appearances: tuple[Appearance, ...]
    """By sample; none where it is never seen."""
    tokens_seen: int
    """Different tokens of the document that are in a sample."""
    reason: str | None
    """Why it, or a part of it, is never seen; None where all of it is."""


def covered_tokens(spans: Sequence[tuple[int, int]]) -> int:
    """Return how many different tokens some spans (begin, end excl) hold."""
    total = reached = 0
    for begin, end in sorted(spans):
        total += max(end - max(begin, reached), 0)
        reached = max(reached, end)
    return total


def unseen(seen: int, tokens: int) -> str:
    """Return what to say of a document of which so many tokens are seen."""
    return "never seen" if seen == 0 else f"{tokens - seen:,} of its {tokens:,} tokens are never seen"


class Split(NamedTuple):
    """A split of a nanoset, with the datasets that its samples are of."""

    context: InspectionContext
    name: str
    """Of the nanoset."""
    loaded: Nanoset | BlendedNanoset
    members: tuple[Nanoset, ...]
    """One for each dataset."""
    datasets: tuple[Manifest, ...]
    """In the same order."""

    @staticmethod
    def of(context: InspectionContext, name: str, split: str, loaded: Nanoset | BlendedNanoset | None = None) -> Split:
        """Open a split, or take what is loaded of it; see load_nanoset for what it raises."""
        loaded = load_nanoset(context.outputs, name, split) if loaded is None else loaded
        members = tuple({member.member.prefix: member for member in _members(loaded)}.values())
        datasets = tuple(context.dataset_at(member.member.prefix) for member in members)
        return Split(context, name, loaded, members, datasets)

    def places(self, number: int, origin: DocumentOrigin) -> DocumentPlaces:
        """Return where a document of a dataset, by the dataset's number, is in the split, and why a part is nowhere."""
        member, appearances, reasons = self.members[number], list[Appearance](), dict[str, None]()
        parts = parts_of(self.datasets[number], member.dataset, origin.dataset_document)
        for part in parts:
            sequence, shift, tokens = part.sequence, part.first - part.begin, part.end - part.begin
            spans = clipped(spans_of(member, sequence), part.begin, part.end)
            drawn = renumbered(spans, member.shuffle_index)
            seen = drawn = drawn[drawn[:, 0] >= member.member.begin]  # what a run that goes on reads again
            if not isinstance(self.loaded, Nanoset):
                seen = blended(self.loaded, self.loaded.datasets.index(member), drawn)
            for sample, into, first, last in seen.tolist():
                appearances.append(Appearance(sample, (into, into + last - first), (first + shift, last + shift)))
            covered = [covered_tokens(found[:, 2:].tolist()) for found in (spans, drawn, seen)]
            if covered[2] < tokens or not tokens:
                whole = tokens if len(parts) == 1 else origin.tokens
                reasons[self._reason(member, sequence, (tokens, whole), *covered)] = None
        if not parts:
            reasons["never seen: it has no tokens, and so no sequence in the dataset"] = None
        elif (held := sum(part.end - part.begin for part in parts)) < origin.tokens:
            reasons[f"{origin.tokens - held:,} of its {origin.tokens:,} tokens are left out of packs"] = None
        appearances.sort(key=lambda appearance: (appearance.sample, appearance.sample_tokens))
        tokens_seen = covered_tokens([appearance.document_tokens for appearance in appearances])
        return DocumentPlaces(origin, tuple(appearances), tokens_seen, "; ".join(reasons) or None)

    def _reason(
        self, member: Nanoset, sequence: int, held: tuple[int, int], in_rows: int, drawn: int, seen: int
    ) -> str:
        """Return why some of its tokens are not in the sample index, in samples drawn, or in samples of the split.

        `held`: tokens of the part in question, and of the document where it has several.
        """
        tokens, whole = held
        if not tokens:
            return f"never seen in {member.member.split}: it has no tokens"
        begin, end = member.member.rows
        if not begin <= sequence < end:
            why = f"{'it' if tokens == whole else 'that part'} belongs to {self._other_split(member, sequence)}"
        elif in_rows < tokens and in_rows == seen:
            why = "they lie in the tail, which does not fill a sample"
        elif drawn < in_rows and drawn == seen and member.member.order is not None:
            why = "earlier phases of the run read the samples that hold them"
        elif drawn < in_rows and drawn == seen:
            why = "the samples that hold them are not drawn"
        else:
            tail = ", and some lie in the tail, which does not fill a sample" if in_rows < tokens else ""
            before = drawn < in_rows and member.member.order is not None
            earlier = ", and earlier phases of the run read some" if before else ""
            why = f"the blend takes fewer samples of this corpus than were built{earlier}{tail}"
        return f"{unseen(seen + whole - tokens, whole)} in {member.member.split}, because {why}"

    def _other_split(self, member: Nanoset, sequence: int) -> str:
        for split in SPLITS:
            with suppress(NanosetError):  # not built, or without a share
                for other in (one.member for one in _members(load_nanoset(self.context.outputs, self.name, split))):
                    begin, end = other.rows
                    if other.prefix == member.member.prefix and begin <= sequence < end:
                        return f"the {split} split"
        return "no split that was built"


def _members(loaded: Nanoset | BlendedNanoset) -> tuple[Nanoset, ...]:
    return (loaded,) if isinstance(loaded, Nanoset) else loaded.datasets


def places_of(values: NDArray[np.integer[Any]], wanted: int) -> NDArray[np.int64]:
    """Return the positions at which an array holds a value, int64, shape (n,), ascending."""
    parts = [np.empty(0, np.int64)]
    for begin in range(0, len(values), CHUNK):
        parts.append(np.flatnonzero(values[begin : begin + CHUNK] == wanted) + begin)
    return np.concatenate(parts)


def spans_of(nanoset: Nanoset, sequence: int) -> NDArray[np.int64]:
    """Return the spans of a sequence in rows of the sample index, in the order of the document index."""
    places = places_of(nanoset.document_index, sequence).tolist()
    return np.concatenate([np.empty((0, 4), np.int64), *(_spans_at(nanoset, place) for place in places)])


def _spans_at(nanoset: Nanoset, place: int) -> NDArray[np.int64]:
    """Return the spans of the entry `place` of the document index."""
    rows = nanoset.sample_index
    # Row j is where sample j begins and, inclusively, where sample j - 1 ends: both may lie in this entry.
    begin = max(bisect_left(rows[:, 0], place) - 1, 0)
    end = min(bisect_right(rows[:, 0], place), len(rows) - 1)
    extra, sequence = nanoset.config.overlap, int(nanoset.document_index[place])
    # [end - begin + 1, 2]: (place, offset), with the row after the last sample
    part = rows[begin : end + 1].astype(np.int64)
    if len(part) < 2:
        return np.empty((0, 4), np.int64)
    starts = np.where(part[:-1, 0] == place, part[:-1, 1], 0)
    whole = int(nanoset.dataset.sequence_lengths[sequence])
    stops = np.where(part[1:, 0] == place, part[1:, 1] + extra, whole)
    within = (part[:-1, 0] <= place) & (part[1:, 0] >= place) & (stops > starts)
    into = np.zeros(len(starts), np.int64)
    if part[0, 0] < place:  # the sample begins in an earlier entry; every later one begins in this one
        earlier = nanoset.document_index[part[0, 0] : place]
        into[0] = nanoset.dataset.sequence_lengths[earlier].sum(dtype=np.int64) - part[0, 1]
    samples = np.arange(begin, begin + len(starts), dtype=np.int64)
    return np.stack([samples, into, starts, stops], axis=1)[within]


def clipped(spans: NDArray[np.int64], begin: int, end: int) -> NDArray[np.int64]:
    """Return what spans have of tokens [begin, end) of their sequence."""
    low, high = np.maximum(spans[:, 2], begin), np.minimum(spans[:, 3], end)
    found = np.stack([spans[:, 0], spans[:, 1] + low - spans[:, 2], low, high], axis=1)
    return found[high > low]


def blended(loaded: BlendedNanoset, number: int, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return spans of dataset `number`, which are under its own positions, under positions in the blend."""
    wraps = len(loaded.datasets[number]) if loaded.config.rules.wraps == "read" else None
    return renumbered(spans, loaded.dataset_sample_index, loaded.dataset_index, number, wraps)


def renumbered(
    spans: NDArray[np.int64],
    numbers: NDArray[np.integer[Any]],
    members: NDArray[np.integer[Any]] | None = None,
    member: int = 0,
    wraps: int | None = None,
) -> NDArray[np.int64]:
    """Return spans for each position at which `numbers` (of a member, where given) names one of their samples."""
    samples, found = np.unique(spans[:, 0]), [np.empty((0, 4), np.int64)]
    for begin in range(0, len(numbers) if len(samples) else 0, CHUNK):
        chunk = numbers[begin : begin + CHUNK].astype(np.int64)
        if wraps is not None:
            chunk %= wraps
        hit = samples[np.minimum(np.searchsorted(samples, chunk), len(samples) - 1)] == chunk
        if members is not None:
            hit &= members[begin : begin + CHUNK] == member
        for position in np.flatnonzero(hit).tolist():
            own = spans[spans[:, 0] == chunk[position]]
            own[:, 0] = begin + position
            found.append(own)
    return np.concatenate(found)
