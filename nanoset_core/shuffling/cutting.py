"""Cutting streams of tokens into rows: where each stream's rows begin and end, and what is left over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from nanoset_core.shuffling.sampling import Choice


@dataclass(frozen=True, slots=True, eq=False)
class Cut:
    """The rows of one source, stream by stream; tokens are numbered within the source."""

    rows: np.ndarray
    """int64[streams]: rows of each stream."""
    begins: np.ndarray
    """int64[streams]: first token of its first row."""
    ends: np.ndarray
    """int64[streams]: token after the last that its rows hold; past the source's end where a row is carried over."""
    dropped: int
    """Tokens in no row."""
    carried: int
    """Tokens in rows that began in an earlier source."""
    short_rows: np.ndarray
    """int64[n]: rows with padding, counted over all streams of the source."""
    short_pads: np.ndarray
    """int64[n]: pad tokens in each."""


def cut_streams(sources: Sequence[Sequence[int]], row_tokens: int, tail: str) -> list[Cut]:
    """Cut the streams of each source, given as numbers of tokens, into rows of ``row_tokens``.

    ``tail`` as in `cut_contexts`; with ``carry`` each source is one stream.
    """
    lengths = [np.array(streams, dtype=np.int64) for streams in sources]
    if tail == "carry":
        return _carry(np.array([streams.sum() for streams in lengths], dtype=np.int64), row_tokens)
    return [_cut(streams, row_tokens, tail) for streams in lengths]


def _cut(tokens: np.ndarray, row_tokens: int, tail: str) -> Cut:
    begins = np.cumsum(tokens) - tokens
    full, rest = tokens // row_tokens, tokens % row_tokens
    if tail == "drop":
        none = np.empty(0, dtype=np.int64)
        return Cut(full, begins, begins + full * row_tokens, int(rest.sum()), 0, none, none)
    short = np.ones(len(tokens), dtype=bool) if tail == "pad_always" else rest > 0
    rows = full + short
    return Cut(rows, begins, begins + tokens, 0, 0, (np.cumsum(rows) - 1)[short], (row_tokens - rest)[short])


def _carry(tokens: np.ndarray, row_tokens: int) -> list[Cut]:
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

    first_contexts: np.ndarray
    """int64[sources + 1]: number of the first context of each source."""
    rows: np.ndarray
    """int64[sources]: rows of one pass, at least 1 so that it can be divided by."""
    repeated: np.ndarray
    """int64[sources]: contexts before the chosen ones."""
    choices: tuple[Choice, ...]
    """For each source, which rows occur once more."""
    first_streams: np.ndarray
    """int64[sources]: number of the first stream of each source."""
    first_rows: np.ndarray
    """int64[streams]: rows of all streams before this one, of all sources."""
    begins: np.ndarray
    """int64[streams]: first token within the source."""
    ends: np.ndarray
    """int64[streams]: token within the source after the last that its rows hold."""

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

    def rows_of(self, source: np.ndarray, number: np.ndarray) -> np.ndarray:
        """Rows, int64[C], of context numbers that count from each source's first."""
        chosen = number - self.repeated[source]
        row = number % self.rows[source]
        partly = np.flatnonzero(chosen >= 0)
        for i in np.unique(source[partly]):
            own = partly[source[partly] == i]
            row[own] = self.choices[i].row(chosen[own])
        return row

    def place(self, source: np.ndarray, row: np.ndarray, row_tokens: int) -> tuple[np.ndarray, np.ndarray]:
        """(first token within the source, real tokens) of rows, int64[C] each."""
        row = row + self.first_rows[self.first_streams[source]]
        stream = np.searchsorted(self.first_rows, row, side="right") - 1
        start = self.begins[stream] + (row - self.first_rows[stream]) * row_tokens
        return start, np.clip(self.ends[stream] - start, 0, row_tokens)
