"""Search the index arrays for the samples that hold a sequence.

What is found are *spans*, int64 arrays of shape (spans, 4): the sample (a row of the sample index, or a position), the
token of the sample at which the span begins, and its first token and the end (excl) within the sequence. Memory-mapped
arrays are read by chunks; nothing is as large as an index.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.loading.blended import BlendedNanoset
from nanoset_core.loading.nanoset import Nanoset

CHUNK = 1 << 20


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
    extra, sequence = int(nanoset.config.add_extra_token), int(nanoset.document_index[place])
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


def shuffled(nanoset: Nanoset, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return spans under the positions at which their samples are drawn, which may be several or none."""
    return _renumbered(spans, nanoset.shuffle_index, len(nanoset))


def blended(loaded: BlendedNanoset, number: int, spans: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return spans of dataset `number`, which are under its own positions, under positions in the blend."""
    wraps = len(loaded.datasets[number]) if loaded.config.rules.wraps == "read" else None
    return _renumbered(spans, loaded.dataset_sample_index, len(loaded), loaded.dataset_index, number, wraps)


def _renumbered(
    spans: NDArray[np.int64],
    numbers: NDArray[np.integer[Any]],
    count: int,
    members: NDArray[np.integer[Any]] | None = None,
    member: int = 0,
    wraps: int | None = None,
) -> NDArray[np.int64]:
    """Return spans for each position at which `numbers` (of a member, where given) names one of their samples."""
    samples, counts = np.unique(spans[:, 0], return_counts=True)
    order = np.argsort(spans[:, 0], kind="stable")
    begins = np.cumsum(counts) - counts
    found = [np.empty((0, 4), np.int64)]
    for begin in range(0, count if len(samples) else 0, CHUNK):
        chunk = numbers[begin : begin + CHUNK].astype(np.int64)
        if wraps is not None:
            chunk %= wraps
        at = np.minimum(np.searchsorted(samples, chunk), len(samples) - 1)
        hit = samples[at] == chunk
        if members is not None:
            hit &= members[begin : begin + CHUNK] == member
        for position in np.flatnonzero(hit).tolist():
            own = spans[order[begins[at[position]] : begins[at[position]] + counts[at[position]]]]
            own[:, 0] = begin + position
            found.append(own)
    return np.concatenate(found)
