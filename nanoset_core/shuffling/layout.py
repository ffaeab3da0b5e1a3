"""Where each context of a table lies: its arrays, made once, and the arithmetic over them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from nanoset_core.shuffling.cutting import Cut
from nanoset_core.shuffling.sampling import Choice, choice_seed

if TYPE_CHECKING:
    from nanoset_core.shuffling.contexts import SourceContexts


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
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
    def of(sources: tuple[SourceContexts, ...], cuts: Sequence[Cut], seed: int) -> Layout:
        rows = np.array([source.rows for source in sources], dtype=np.int64)
        contexts = np.array([source.contexts for source in sources], dtype=np.int64)
        counts = np.array([len(cut.rows) for cut in cuts], dtype=np.int64)
        stream_rows = np.concatenate([cut.rows for cut in cuts]) if cuts else np.empty(0, np.int64)
        return Layout(
            first_contexts=np.concatenate([np.zeros(1, np.int64), np.cumsum(contexts)]),
            rows=np.maximum(rows, 1),
            repeated=np.array([source.repeats * source.rows for source in sources], dtype=np.int64),
            choices=tuple(Choice(source.rows, source.chosen, choice_seed(seed, source.name)) for source in sources),
            first_streams=np.cumsum(counts) - counts,
            first_rows=np.cumsum(stream_rows) - stream_rows,
            begins=np.concatenate([cut.begins for cut in cuts]) if cuts else np.empty(0, np.int64),
            ends=np.concatenate([cut.ends for cut in cuts]) if cuts else np.empty(0, np.int64),
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
