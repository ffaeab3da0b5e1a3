"""Cut the token streams of several sources into contexts: rows of one length, numbered in source order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.shuffling.sampling import Choice, choice_seed, sampled_contexts
from nanoset_core.shuffling.settings import PlanSettings


def _none() -> NDArray[np.int64]:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SourceContexts:
    """Counts of one source. One pass over it gives `rows` rows; the table holds `frequency` times as many contexts."""

    name: str
    """Name of the source."""
    tokens: int
    """Tokens in the source."""
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


@dataclass(frozen=True, slots=True, eq=False)
class _Cut:
    """The rows of one source, stream by stream; tokens are numbered within the source."""

    rows: NDArray[np.int64]
    """Rows of each stream, shape (streams,)."""
    begins: NDArray[np.int64]
    """First token of each stream's first row, shape (streams,)."""
    ends: NDArray[np.int64]
    """Token after the last in each stream's rows, shape (streams,); past the source's end for a carried row."""
    dropped: int
    """Tokens in no row."""
    carried: int = 0
    """Tokens in rows that began in an earlier source."""
    short_rows: NDArray[np.int64] = field(default_factory=_none)
    """Rows with padding, numbered over all streams of the source, shape (short,)."""
    short_pads: NDArray[np.int64] = field(default_factory=_none)
    """Pad tokens in each of them, shape (short,)."""


def _cut(tokens: NDArray[np.int64], row_tokens: int, tail: str) -> _Cut:
    """Cut the streams of one source, int64, shape (streams,)."""
    begins = np.cumsum(tokens) - tokens
    full, rest = tokens // row_tokens, tokens % row_tokens
    if tail == "drop":
        return _Cut(full, begins, begins + full * row_tokens, int(rest.sum()))
    short = np.ones(len(tokens), dtype=bool) if tail == "pad_always" else rest > 0
    rows = full + short
    return _Cut(rows, begins, begins + tokens, 0, 0, (np.cumsum(rows) - 1)[short], (row_tokens - rest)[short])


def _carry(tokens: NDArray[np.int64], row_tokens: int) -> list[_Cut]:
    """Cut all sources, int64, shape (sources,), as one stream; a row belongs to the source of its first token."""
    bounds = np.concatenate([np.zeros(1, np.int64), np.cumsum(tokens)])
    total_rows = bounds[-1] // row_tokens
    # number of the first row that begins in or after each source
    first = np.minimum(-(-bounds // row_tokens), total_rows)
    end = total_rows * row_tokens
    cuts = []
    for i in range(len(tokens)):
        begin = first[i] * row_tokens - bounds[i]
        rows = first[i + 1] - first[i]
        used = min(end, bounds[i + 1]) - min(end, bounds[i])
        carried = max(0, min(begin, used))  # `begin` is far off where no row begins
        places = (np.array([rows]), np.array([begin]), np.array([begin + rows * row_tokens]))
        cuts.append(_Cut(*places, int(tokens[i] - used), int(carried)))
    return cuts


@dataclass(frozen=True, slots=True, eq=False)
class ContextTable:
    """Contexts of all sources, numbered in source order; rows are computed, never stored.

    A source's contexts are its rows in order, `repeats` times, and then its chosen rows in order. Row `j` of a
    stream holds its tokens `[j * row_tokens, (j + 1) * row_tokens)`, behind a BOS token where there is one.
    """

    settings: PlanSettings
    """Length, tail, pad and BOS token, streams, frequencies and seed."""
    sources: tuple[SourceContexts, ...]
    """Counts per source, in the order that numbers the contexts."""
    first_contexts: NDArray[np.int64]
    """Number of the first context of each source, int64, shape (sources + 1,); the last is the total."""
    rows: NDArray[np.int64]
    """Rows of one pass, at least 1 so that one can divide by it, int64, shape (sources,)."""
    repeated: NDArray[np.int64]
    """Contexts before the chosen ones, int64, shape (sources,)."""
    choices: tuple[Choice, ...]
    """For each source, which rows occur once more."""
    first_streams: NDArray[np.int64]
    """Number of the first stream of each source, int64, shape (sources + 1,)."""
    first_rows: NDArray[np.int64]
    """Rows of all streams before this one, of all sources, int64, shape (streams,)."""
    begins: NDArray[np.int64]
    """First token of each stream within its source, int64, shape (streams,)."""
    ends: NDArray[np.int64]
    """Token within the source after the last in the stream's rows, int64, shape (streams,)."""

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return int(self.first_contexts[-1])

    def locate(self, contexts: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        """Return the place of each context.

        Args:
            contexts: context numbers, int64, shape (contexts,).

        Returns:
            (number of the source, its first token within the source, its tokens of the source), each int64, shape
            (contexts,). The last is `row_tokens` except in padded rows, where it can be 0. Under the tail `carry` a row
            can run over the end of its source: its tokens go on with the first of the next ones.

        Raises:
            SampleIndexError: a context number outside the table.
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
        """Return rows of contexts, given by source and by number within it, each int64, shape (contexts,)."""
        chosen = number - self.repeated[source]
        row = number % self.rows[source]
        partly = np.flatnonzero(chosen >= 0)
        for i in np.unique(source[partly]):
            own = partly[source[partly] == i]
            row[own] = self.choices[i].row(chosen[own])
        return row

    def holding(self, source: int, begin: int, end: int) -> NDArray[np.int64]:
        """Return contexts that hold any of a source's tokens [begin, end excl), int64, shape (contexts,)."""
        found = [_none()]
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
        """Return rows of a source that hold any of its tokens [begin, end excl), int64, shape (rows,).

        Past the source's end tokens count on into the next sources, as carried rows do.
        """
        first, after = self.first_streams[source : source + 2].tolist()
        begins, ends, width = self.begins[first:after], self.ends[first:after], self.settings.row_tokens
        parts = [_none()]
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


def cut_contexts(sources: Sequence[tuple[str, int]], settings: PlanSettings) -> ContextTable:
    """Cut each source, one stream across its documents, into rows of one length.

    Args:
        sources: name and tokens of each source, in the order that numbers the contexts. One without tokens has no
            context, except under the tail `pad_always`.
        settings: length, tail, pad and BOS token, streams, frequencies and seed are used.

    Raises:
        ConfigError: two sources have one name, or the streams of a source are not all of it.
    """
    names = [name for name, _ in sources]
    if len(set(names)) != len(names):
        raise ConfigError("two sources have the same name", found=names, remedy="name each source once")
    streams = _streams(dict(sources), settings)
    if settings.tail == "carry":
        cuts = _carry(np.array([tokens for _, tokens in sources], dtype=np.int64), settings.row_tokens)
    else:
        lengths = (np.array(streams.get(name, (tokens,)), dtype=np.int64) for name, tokens in sources)
        cuts = [_cut(each, settings.row_tokens, settings.tail) for each in lengths]
    counts, choices = [], []
    for (name, tokens), cut in zip(sources, cuts, strict=True):
        frequency = (settings.frequencies or {}).get(name, 1.0)
        rows = int(cut.rows.sum())
        repeats, chosen = sampled_contexts(rows, frequency)
        choice = Choice(rows, chosen, choice_seed(settings.seed, name))
        pads = int((cut.short_pads * (repeats + choice.holds(cut.short_rows))).sum())
        contexts = repeats * rows + chosen
        used = contexts * settings.row_tokens - pads
        own = streams.get(name)
        counts.append(
            SourceContexts(name, tokens, contexts, used, cut.dropped, pads, rows, frequency, cut.carried, own)
        )
        choices.append(choice)
    stream_rows = np.concatenate([_none(), *(cut.rows for cut in cuts)])
    repeated = np.array([count.contexts - choice.chosen for count, choice in zip(counts, choices, strict=True)])
    return ContextTable(
        settings=settings,
        sources=tuple(counts),
        first_contexts=_running_sum([count.contexts for count in counts]),
        rows=np.maximum(np.array([count.rows for count in counts], dtype=np.int64), 1),
        repeated=repeated.astype(np.int64),
        choices=tuple(choices),
        first_streams=_running_sum([len(cut.rows) for cut in cuts]),
        first_rows=np.cumsum(stream_rows) - stream_rows,
        begins=np.concatenate([_none(), *(cut.begins for cut in cuts)]),
        ends=np.concatenate([_none(), *(cut.ends for cut in cuts)]),
    )


def _running_sum(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the sum of the counts before each one, and of all: int64, shape (counts + 1,)."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _streams(sources: dict[str, int], settings: PlanSettings) -> dict[str, tuple[int, ...]]:
    """Return the tokens of each stream of those sources that consist of several; raise ConfigError where some miss."""
    streams = {name: tuple(map(int, lengths)) for name, lengths in (settings.streams or {}).items()}
    for name, lengths in streams.items():
        if sources.get(name) != sum(lengths) or any(length < 0 for length in lengths):
            found = f"{len(lengths)} streams, {sum(lengths)} tokens"
            expected = f"{sources.get(name)} tokens"
            where = f"source {name!r}"
            raise ConfigError("the streams are not all of their source", where=where, found=found, expected=expected)
    return streams
