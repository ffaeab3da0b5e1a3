"""Cutting streams of tokens into rows: where each stream's rows begin and end, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from nanoset_core.shuffling.sampling import Choice


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The rows of one source, stream by stream; tokens are numbered within the source."""

    rows: NDArray[np.int64]
    """Rows of each stream, int64, shape (streams,)."""
    begins: NDArray[np.int64]
    """First token of its first row, int64, shape (streams,)."""
    ends: NDArray[np.int64]
    """Token after the last that its rows hold, int64, shape (streams,); past the source's end in a carried row."""
    dropped: int
    """Tokens in no row."""
    carried: int
    """Tokens in rows that began in an earlier source."""
    short_rows: NDArray[np.int64]
    """Rows with padding, counted over all streams of the source, int64, shape (short,)."""
    short_pads: NDArray[np.int64]
    """Pad tokens in each of them, int64, shape (short,)."""


def cut_streams(sources: Sequence[Sequence[int]], row_tokens: int, tail: str) -> list[Cut]:
    """Cut the streams of each source, given as numbers of tokens, into rows of `row_tokens`.

    `tail` as in `cut_contexts`; with `carry` each source is one stream.
    """
    lengths = [np.array(streams, dtype=np.int64) for streams in sources]
    if tail == "carry":
        return _carry(np.array([streams.sum() for streams in lengths], dtype=np.int64), row_tokens)
    return [_cut(streams, row_tokens, tail) for streams in lengths]


def _cut(tokens: NDArray[np.int64], row_tokens: int, tail: str) -> Cut:
    begins = np.cumsum(tokens) - tokens
    full, rest = tokens // row_tokens, tokens % row_tokens
    if tail == "drop":
        none = np.empty(0, dtype=np.int64)
        return Cut(full, begins, begins + full * row_tokens, int(rest.sum()), 0, none, none)
    short = np.ones(len(tokens), dtype=bool) if tail == "pad_always" else rest > 0
    rows = full + short
    return Cut(rows, begins, begins + tokens, 0, 0, (np.cumsum(rows) - 1)[short], (row_tokens - rest)[short])


def _carry(tokens: NDArray[np.int64], row_tokens: int) -> list[Cut]:
    """All sources as one stream; a row belongs to the source of its first token."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens)])
    total_rows = bounds[-1] // row_tokens
    # number of the first row that begins in or after each source
    first = np.minimum(-(-bounds // row_tokens), total_rows)
    end = total_rows * row_tokens
    none = np.empty(0, dtype=np.int64)
    cuts = []
    for i in range(len(tokens)):
        begin = first[i] * row_tokens - bounds[i]
        rows = first[i + 1] - first[i]
        used = min(end, bounds[i + 1]) - min(end, bounds[i])
        carried = max(0, min(begin, used))  # begin lies far off where no row begins
        places = (np.array([rows]), np.array([begin]), np.array([begin + rows * row_tokens]))
        cuts.append(Cut(*places, int(tokens[i] - used), int(carried), none, none))
    return cuts


@dataclass(frozen=True, slots=True, eq=False)
class RowLayout:
    """Arrays of a table's sources and streams."""

    first_contexts: NDArray[np.int64]
    """Number of the first context of each source, int64, shape (sources + 1,)."""
    rows: NDArray[np.int64]
    """Rows of one pass, at least 1 so that one can divide by it, int64, shape (sources,)."""
    repeated: NDArray[np.int64]
    """Contexts before the chosen ones, int64, shape (sources,)."""
    choices: tuple[Choice, ...]
    """For each source, which rows occur once more."""
    first_streams: NDArray[np.int64]
    """Number of the first stream of each source, int64, shape (sources,)."""
    first_rows: NDArray[np.int64]
    """Rows of all streams before this one, of all sources, int64, shape (streams,)."""
    begins: NDArray[np.int64]
    """First token within the source, int64, shape (streams,)."""
    ends: NDArray[np.int64]
    """Token within the source after the last that its rows hold, int64, shape (streams,)."""

    @staticmethod
    def of(cuts: Sequence[Cut], repeats: Sequence[int], choices: tuple[Choice, ...]) -> RowLayout:
        """The layout of sources whose rows all occur `repeats` times, and those of `choices` once more."""
        rows = np.array([choice.rows for choice in choices], dtype=np.int64)
        repeated = np.array(repeats, dtype=np.int64) * rows
        contexts = repeated + np.array([choice.chosen for choice in choices], dtype=np.int64)
        streams = np.array([len(cut.rows) for cut in cuts], dtype=np.int64)
        none = np.empty(0, dtype=np.int64)
        stream_rows = np.concatenate([none, *(cut.rows for cut in cuts)])
        return RowLayout(
            first_contexts=np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(contexts)]),
            rows=np.maximum(rows, 1),
            repeated=repeated,
            choices=choices,
            first_streams=np.cumsum(streams) - streams,
            first_rows=np.cumsum(stream_rows) - stream_rows,
            begins=np.concatenate([none, *(cut.begins for cut in cuts)]),
            ends=np.concatenate([none, *(cut.ends for cut in cuts)]),
        )

    def rows_of(self, source: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows of contexts, given by source and by number within it, each int64, shape (contexts,)."""
        chosen = number - self.repeated[source]
        row = number % self.rows[source]
        partly = np.flatnonzero(chosen >= 0)
        for i in np.unique(source[partly]):
            own = partly[source[partly] == i]
            row[own] = self.choices[i].row(chosen[own])
        return row

    def contexts_of(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Contexts that hold rows of a source, int64, shape (rows,) → (contexts,): repetitions, then chosen rows."""
        repeats = np.arange(0, self.repeated[source], self.rows[source])
        choice = self.choices[source]
        chosen = choice.number(rows[choice.holds(rows)]) + self.repeated[source]
        found: NDArray[np.int64] = np.concatenate([(repeats[:, None] + rows).ravel(), chosen])
        return found + int(self.first_contexts[source])

    def rows_holding(self, source: int, begin: int, end: int, row_tokens: int) -> NDArray[np.int64]:
        """Rows of a source that hold any of its tokens [begin, end excl), int64, shape (rows,).

        Past the source's end tokens count on into the next sources, as carried rows do.
        """
        first = int(self.first_streams[source])
        after = int(self.first_streams[source + 1]) if source + 1 < len(self.first_streams) else len(self.begins)
        begins, ends = self.begins[first:after], self.ends[first:after]
        own = np.flatnonzero((begins < end) & (ends > begin) & (begin < end))
        parts = [np.empty(0, dtype=np.int64)]
        for stream in own:
            low = (max(begin, begins[stream]) - begins[stream]) // row_tokens
            high = -((begins[stream] - min(end, ends[stream])) // row_tokens)
            row = self.first_rows[first + stream] - self.first_rows[first]
            parts.append(np.arange(low, high, dtype=np.int64) + row)
        return np.concatenate(parts)

    def place(
        self, source: NDArray[np.int64], row: NDArray[np.int64], row_tokens: int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """(first token within the source, tokens of the source) of rows, each int64, shape (contexts,)."""
        row = row + self.first_rows[self.first_streams[source]]
        stream = np.searchsorted(self.first_rows, row, side="right") - 1
        start = self.begins[stream] + (row - self.first_rows[stream]) * row_tokens
        return start, np.clip(self.ends[stream] - start, 0, row_tokens)
