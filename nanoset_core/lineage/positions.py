"""The index arrays read backwards: from a sequence to the samples that hold it.

Everything goes by chunks of memory-mapped arrays; nothing is as large as an index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class Stretches:
    """Where tokens of one sequence lie in samples, one entry for each stretch."""

    samples: NDArray[np.int64]
    """[n], sample number: a row of the sample index, or a position in the nanoset."""
    sequence_begins: NDArray[np.int64]
    """[n], first token within the sequence."""
    sequence_ends: NDArray[np.int64]
    """[n], end excl."""
    sample_begins: NDArray[np.int64]
    """[n], first token within the sample."""

    def __len__(self) -> int:
        return len(self.samples)

    def take(self, rows: NDArray[np.int64], samples: NDArray[np.int64]) -> Stretches:
        """The entries `rows`, under other sample numbers."""
        return Stretches(samples, self.sequence_begins[rows], self.sequence_ends[rows], self.sample_begins[rows])


def places_of(values: NDArray[np.integer[Any]], wanted: int) -> NDArray[np.int64]:
    """Positions at which an array holds a value, int64[n], ascending."""
    parts = [np.empty(0, np.int64)]
    for begin in range(0, len(values), CHUNK):
        parts.append(np.flatnonzero(values[begin : begin + CHUNK] == wanted) + begin)
    return np.concatenate(parts)


def stretches_of(nanoset: Nanoset, sequence: int) -> Stretches:
    """Rows of the sample index that hold a sequence's tokens, in the order of the document index."""
    found = [_stretches_at(nanoset, int(place)) for place in places_of(nanoset.document_index, sequence)]
    return _joined(found)


def _stretches_at(nanoset: Nanoset, place: int) -> Stretches:
    """Rows that hold tokens of the entry `place` of the document index."""
    rows = nanoset.sample_index
    # Row j is where sample j begins and, inclusively, where sample j - 1 ends: both may lie in this entry.
    firsts = _Column(rows)
    begin = max(bisect_left(firsts, place) - 1, 0)
    end = min(bisect_right(firsts, place), len(rows) - 1)
    extra, sequence = int(nanoset.config.add_extra_token), int(nanoset.document_index[place])
    # [end - begin + 1, 2]: (place, offset), with the row after the last sample
    part = rows[begin : end + 1].astype(np.int64)
    if len(part) < 2:
        return _joined([])
    starts = np.where(part[:-1, 0] == place, part[:-1, 1], 0)
    whole = int(nanoset.dataset.sequence_lengths[sequence])
    stops = np.where(part[1:, 0] == place, part[1:, 1] + extra, whole)
    within = (part[:-1, 0] <= place) & (part[1:, 0] >= place) & (stops > starts)
    into = np.zeros(len(starts), np.int64)
    if part[0, 0] < place:  # the sample begins in an earlier entry; every later one begins in this one
        earlier = nanoset.document_index[part[0, 0] : place]
        into[0] = nanoset.dataset.sequence_lengths[earlier].sum(dtype=np.int64) - part[0, 1]
    rows_found = np.arange(begin, begin + len(starts), dtype=np.int64)
    return Stretches(rows_found[within], starts[within], stops[within], into[within])


class _Column:
    """The first column of the sample index, as bisect wants it."""

    def __init__(self, rows: NDArray[np.integer[Any]]) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, row: int) -> int:
        return int(self._rows[row, 0])


def shuffled(nanoset: Nanoset, stretches: Stretches) -> Stretches:
    """The same under the positions at which samples are drawn, which may be several or none."""
    return _renumbered(stretches, nanoset.shuffle_index, len(nanoset))


def blended(loaded: BlendedNanoset, number: int, stretches: Stretches) -> Stretches:
    """The same under positions in the blend; stretches: of dataset `number`, under its own positions."""
    wraps = len(loaded.datasets[number]) if loaded.config.rules.wraps == "read" else None
    return _renumbered(stretches, loaded.dataset_sample_index, len(loaded), loaded.dataset_index, number, wraps)


def _renumbered(
    stretches: Stretches,
    numbers: NDArray[np.integer[Any]],
    count: int,
    members: NDArray[np.integer[Any]] | None = None,
    member: int = 0,
    wraps: int | None = None,
) -> Stretches:
    """Entries for each position at which `numbers` (of a member, where given) names one of the samples."""
    samples, counts = np.unique(stretches.samples, return_counts=True)
    order = np.argsort(stretches.samples, kind="stable")
    begins = np.cumsum(counts) - counts
    rows, positions = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for begin in range(0, count if len(samples) else 0, CHUNK):
        chunk = numbers[begin : begin + CHUNK].astype(np.int64)
        if wraps is not None:
            chunk %= wraps
        at = np.minimum(np.searchsorted(samples, chunk), len(samples) - 1)
        hit = samples[at] == chunk
        if members is not None:
            hit &= members[begin : begin + CHUNK] == member
        for position in np.flatnonzero(hit):
            entry = at[position]
            mine = order[begins[entry] : begins[entry] + counts[entry]]
            rows.append(mine)
            positions.append(np.full(len(mine), begin + position, np.int64))
    return stretches.take(np.concatenate(rows), np.concatenate(positions))


def _joined(parts: list[Stretches]) -> Stretches:
    empty = np.empty(0, np.int64)
    return Stretches(
        np.concatenate([empty, *(part.samples for part in parts)]),
        np.concatenate([empty, *(part.sequence_begins for part in parts)]),
        np.concatenate([empty, *(part.sequence_ends for part in parts)]),
        np.concatenate([empty, *(part.sample_begins for part in parts)]),
    )
