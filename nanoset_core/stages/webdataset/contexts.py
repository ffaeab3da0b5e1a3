"""Cut the token streams of several sources into contexts: rows of one length, numbered in source order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.stages.webdataset.order import Choice, choice_seed, sampled_contexts
from nanoset_core.stages.webdataset.plan_settings import PlanSettings

_NONE = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SourceContexts:
    """Counts of one source. One pass over it gives `rows` rows; the table holds `frequency` times as many contexts."""

    name: str
    tokens: int
    contexts: int
    """Contexts of the table that begin in it, repetitions counted."""
    tokens_used: int
    """Tokens in these contexts, repetitions counted, without BOS and padding."""
    tokens_dropped: int
    """Tokens of the source in no row (below a row's length for each stream; 0 when padded)."""
    pad_tokens: int
    """Pad tokens in these contexts."""
    rows: int
    """Rows that one pass gives."""
    frequency: float = 1.0
    """How often each row occurs."""
    tokens_carried: int = 0
    """Tokens of the source in rows that began in an earlier one (tail `carry`)."""
    streams: tuple[int, ...] | None = None
    """Tokens of each stream that is cut on its own, such as a file; None = the source is one stream."""

    @property
    def repeats(self) -> int:
        """How often every row occurs."""
        return sampled_contexts(self.rows, self.frequency)[0]

    @property
    def chosen(self) -> int:
        """How many of the rows occur once more than that."""
        return sampled_contexts(self.rows, self.frequency)[1]

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        values = {name: getattr(self, name) for name in SourceContexts.__slots__}
        return values | {"streams": None if self.streams is None else list(self.streams)}


class ContextTable:
    """Contexts of all sources, numbered in source order; rows are computed, never stored.

    Each source is cut, as one stream across its documents or stream by stream, into rows of one length. Its contexts
    are its rows in order, `repeats` times, and then its chosen rows in order. Row `j` of a stream holds its tokens
    `[j * row_tokens, (j + 1) * row_tokens)`, behind a BOS token where there is one.
    """

    def __init__(self, sources: Sequence[tuple[str, int]], settings: PlanSettings) -> None:
        """Cut the sources, each given by name and tokens, in the order that numbers the contexts."""
        self.settings, width = settings, settings.row_tokens
        streams = _streams(sources, settings)
        self.first_streams = _running_sum([len(streams.get(name, "1")) for name, _ in sources])
        """Number of the first stream of each source, int64, shape (sources + 1,)."""
        tokens = np.array([n for name, size in sources for n in streams.get(name, (size,))], dtype=np.int64)
        bounds = _running_sum([size for _, size in sources])
        if settings.tail == "carry":  # one stream; a row belongs to the source of its first token
            total = bounds[-1] // width
            first = np.minimum(-(-bounds // width), total)  # the first row that begins in or after each source
            rows, self.begins = np.diff(first), first[:-1] * width - bounds[:-1]
            spans, used = rows * width, np.diff(np.minimum(bounds, total * width))
        else:
            rows, spans = _cut(tokens, width, settings.tail)
            used = spans
            self.begins = np.cumsum(tokens) - tokens - np.repeat(bounds[:-1], np.diff(self.first_streams))
            """First token of each stream's first row within its source, int64, shape (streams,)."""
        self.ends = self.begins + spans
        """Token within the source after the last in the stream's rows, int64, shape (streams,)."""
        self.first_rows = np.cumsum(rows) - rows
        """Rows of all streams before this one, of all sources, int64, shape (streams,)."""
        counts, self.choices = list[SourceContexts](), list[Choice]()
        """For each source, which rows occur once more."""
        for i, (name, size) in enumerate(sources):
            own = slice(*self.first_streams[i : i + 2])
            frequency, count = (settings.frequencies or {}).get(name, 1.0), int(rows[own].sum())
            repeats, chosen = sampled_contexts(count, frequency)
            choice = Choice(count, chosen, choice_seed(settings.seed, name))
            pads = rows[own] * width - spans[own]  # all in the last row of the stream
            padded = np.flatnonzero(pads)
            pad_tokens = int((pads[padded] * (repeats + choice.holds(np.cumsum(rows[own])[padded] - 1))).sum())
            contexts = repeats * count + chosen
            given = streams.get(name)
            held, used_tokens = int(used[own].sum()), contexts * width - pad_tokens
            carried = max(0, min(int(self.begins[i]), held)) if settings.tail == "carry" else 0
            numbers = (contexts, used_tokens, size - held, pad_tokens, count)
            counts.append(SourceContexts(name, size, *numbers, frequency, carried, given))
            self.choices.append(choice)
        self.sources = tuple(counts)
        """Counts per source, in the order that numbers the contexts."""
        self.first_contexts = _running_sum([count.contexts for count in counts])
        """Number of the first context of each source, int64, shape (sources + 1,); the last is the total."""
        self.rows = np.array([max(count.rows, 1) for count in counts], dtype=np.int64)
        """Rows of one pass, at least 1 so that one can divide by it, shape (sources,)."""
        self.repeated = np.array([count.contexts - count.chosen for count in counts], dtype=np.int64)
        """Contexts before the chosen ones, shape (sources,)."""

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return int(self.first_contexts[-1])

    def locate(self, contexts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the place of each of these context numbers, int64, shape (contexts,).

        Returns:
            (number of the source, its first token within the source, its tokens of the source), each int64, shape
            (contexts,). The last is `row_tokens` except in padded rows, where it can be 0. Under the tail `carry` a row
            can run over the end of its source: its tokens go on with the first of the next ones.
        """
        contexts = np.asarray(contexts, dtype=np.int64)
        if contexts.size and (contexts.min() < 0 or contexts.max() >= self.contexts):
            found = f"[{contexts.min()}, {contexts.max()}]"
            raise SampleIndexError("context number outside the table", found=found, expected=f"[0, {self.contexts})")
        source = np.searchsorted(self.first_contexts, contexts, side="right") - 1
        row = self._rows_of(source, contexts - self.first_contexts[source])
        row += self.first_rows[self.first_streams[source]]
        stream = np.searchsorted(self.first_rows, row, side="right") - 1
        width = self.settings.row_tokens
        start = self.begins[stream] + (row - self.first_rows[stream]) * width
        return source, start, np.clip(self.ends[stream] - start, 0, width)

    def _rows_of(self, source: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        chosen = number - self.repeated[source]
        row = number % self.rows[source]
        partly = np.flatnonzero(chosen >= 0)
        for i in np.unique(source[partly]):
            own = partly[source[partly] == i]
            row[own] = self.choices[i].row(chosen[own])
        return row

    def holding(self, source: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return contexts that hold any of a source's tokens [begin, end excl), int64, shape (contexts,)."""
        found = [_NONE]
        before = 0  # tokens from the beginning of `number` to that of `source`
        for number in range(source, -1 if self.settings.tail == "carry" else source - 1, -1):
            before += self.sources[number].tokens if number < source else 0
            rows = self._rows_holding(number, begin + before, end + before)
            choice = self.choices[number]
            chosen = choice.number(rows[choice.holds(rows)]) + self.repeated[number]
            repeats = np.arange(0, self.repeated[number], self.rows[number])
            own = np.concatenate([(repeats[:, None] + rows).ravel(), chosen])
            found.append(own + int(self.first_contexts[number]))
        return np.concatenate(found)

    def _rows_holding(self, source: int, begin: int, end: int) -> NDArray[np.int64]:
        # past the source's end tokens count on into the next sources, as carried rows do
        first, after = self.first_streams[source : source + 2].tolist()
        begins, ends, width = self.begins[first:after], self.ends[first:after], self.settings.row_tokens
        parts = [_NONE]
        for stream in np.flatnonzero((begins < end) & (ends > begin) & (begin < end)):
            low = (max(begin, begins[stream]) - begins[stream]) // width
            high = -((begins[stream] - min(end, ends[stream])) // width)
            row = self.first_rows[first + stream] - self.first_rows[first]
            parts.append(np.arange(low, high, dtype=np.int64) + row)
        return np.concatenate(parts)

    def pad_tokens(self, contexts: NDArray[np.int64]) -> int:
        """Return the number of pad tokens within these contexts, int64, shape (contexts,)."""
        _, _, length = self.locate(contexts)
        return int(length.size * self.settings.row_tokens - length.sum())


def _cut(tokens: NDArray[np.int64], width: int, tail: str) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    full = tokens // width
    if tail == "drop":
        return full, full * width
    return full + ((tokens % width > 0) | (tail == "pad_always")), tokens


def _running_sum(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the sum of the counts before each one, and of all: int64, shape (counts + 1,)."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _streams(sources: Sequence[tuple[str, int]], settings: PlanSettings) -> dict[str, tuple[int, ...]]:
    sizes = dict(sources)
    if len(sizes) != len(sources):
        names = [name for name, _ in sources]
        raise ConfigError("two sources have the same name", found=names, remedy="name each source once")
    streams = {name: tuple(map(int, lengths)) for name, lengths in (settings.streams or {}).items()}
    for name, lengths in streams.items():
        if sizes.get(name) != sum(lengths):
            what, found = "the streams are not all of their source", f"{len(lengths)} streams, {sum(lengths)} tokens"
            raise ConfigError(what, where=f"source {name!r}", found=found, expected=f"{sizes.get(name)} tokens")
    return streams
