"""Cut the token streams of several sources into contexts: rows of one length, numbered in source
order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.stages.webdataset.order import Choice, choice_seed, sampled_contexts
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, PlanTail

_NO_CONTEXTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SourceContexts:
    """Counts of one source. One pass over it gives `rows` rows; the table holds `frequency` times
    as many contexts.
    """

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
    """Tokens of each stream that is cut on its own, such as a file. None: the source is one stream."""

    @property
    def repeats(self) -> int:
        """How often every row occurs."""
        repeats, _ = sampled_contexts(self.rows, self.frequency)
        return repeats

    @property
    def chosen(self) -> int:
        """How many of the rows occur once more than that."""
        _, chosen = sampled_contexts(self.rows, self.frequency)
        return chosen

    def to_json(self) -> dict[str, Any]:
        """Return the counts as JSON values."""
        values = {name: getattr(self, name) for name in SourceContexts.__slots__}
        if self.streams is not None:
            values["streams"] = list(self.streams)
        return values


class ContextPlaces(NamedTuple):
    """Where the tokens of contexts are: three arrays, int64, shape (contexts,)."""

    sources: NDArray[np.int64]
    """Number of the source in which each begins."""
    starts: NDArray[np.int64]
    """Its first token within that source."""
    lengths: NDArray[np.int64]
    """Its tokens of the sources: `row_tokens`, except in padded rows, where it can be 0."""


class _CutStreams(NamedTuple):
    """The rows of all streams, in source order: arrays, int64, shape (streams,)."""

    rows: NDArray[np.int64]
    """Rows that begin in each stream."""
    starts: NDArray[np.int64]
    """First token of each stream's first row, within its source."""
    spans: NDArray[np.int64]
    """Tokens of the stream's rows, without padding."""
    used: NDArray[np.int64]
    """Tokens of the stream that are in some row, one of an earlier source included."""

    def part(self, start: int, stop: int) -> _CutStreams:
        """Return the streams [start, stop)."""
        return _CutStreams(
            rows=self.rows[start:stop],
            starts=self.starts[start:stop],
            spans=self.spans[start:stop],
            used=self.used[start:stop],
        )


class ContextTable:
    """Contexts of all sources, numbered in source order; rows are computed, never stored.

    Each source is cut, as one stream across its documents or stream by stream, into rows of one
    length. Its contexts are its rows in order, `repeats` times, and then its chosen rows in order.
    Row `j` of a stream holds its tokens `[j * row_tokens, (j + 1) * row_tokens)`, behind a BOS
    token if the settings name one.
    """

    def __init__(self, sources: Sequence[tuple[str, int]], settings: PlanSettings) -> None:
        """Cut the sources, each given by name and tokens, in the order that numbers the contexts.

        Raises:
            ConfigError: Two sources have one name, or streams are not all of their source.
        """
        self.settings = settings
        lengths_by_source = _stream_lengths(sources, settings)
        self.first_streams = _running_sum([len(lengths) for lengths in lengths_by_source])
        """Number of the first stream of each source, int64, shape (sources + 1,)."""

        source_tokens = [n_tokens for _, n_tokens in sources]
        if settings.tail == "carry":
            cut = _cut_carrying(source_tokens, settings.row_tokens)
        else:
            cut = _cut_apart(lengths_by_source, settings.row_tokens, settings.tail)
        self.starts = cut.starts
        """First token of each stream's first row, within its source, int64, shape (streams,)."""
        self.stops = cut.starts + cut.spans
        """Token within the source after the last in the stream's rows, int64, shape (streams,)."""
        self.first_rows = np.cumsum(cut.rows) - cut.rows
        """Rows of all streams before this one, of all sources, int64, shape (streams,)."""

        self.choices: list[Choice] = []
        """For each source, which rows occur once more."""
        counts: list[SourceContexts] = []
        for number, (name, n_tokens) in enumerate(sources):
            first_stream, stop_stream = self.first_streams[number : number + 2].tolist()
            streams = cut.part(first_stream, stop_stream)
            source_counts = _counts_of(name, n_tokens, streams, settings)
            counts.append(source_counts)
            self.choices.append(_choice_of(source_counts, settings.seed))
        self.sources = tuple(counts)
        """Counts per source, in the order that numbers the contexts."""

        # The same counts as arrays, to look up many contexts at once.
        self.first_contexts = _running_sum([source.contexts for source in counts])
        """Number of the first context of each source, int64, shape (sources + 1,); the last is the
        total.
        """
        self.rows = np.array([max(source.rows, 1) for source in counts], dtype=np.int64)
        """Rows of one pass, at least 1 so that one can divide by it, shape (sources,)."""
        repeated = [source.contexts - source.chosen for source in counts]
        self.repeated = np.array(repeated, dtype=np.int64)
        """Contexts before the chosen ones, shape (sources,)."""

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return int(self.first_contexts[-1])

    def locate(self, contexts: NDArray[np.int64]) -> ContextPlaces:
        """Return where the tokens of these context numbers are, int64, shape (contexts,).

        Under the tail `carry` a row can run over the end of its source: its tokens continue with
        the first ones of the next sources.

        Raises:
            SampleIndexError: A number is outside the table.
        """
        contexts = np.asarray(contexts, dtype=np.int64)
        if contexts.size and (contexts.min() < 0 or contexts.max() >= self.contexts):
            raise SampleIndexError(
                "context number outside the table",
                found=f"[{contexts.min()}, {contexts.max()}]",
                expected=f"[0, {self.contexts})",
            )
        # Context → source → row within all sources → stream → token
        source = np.searchsorted(self.first_contexts, contexts, side="right") - 1
        row = self._rows_of(source, contexts - self.first_contexts[source])
        row += self.first_rows[self.first_streams[source]]
        stream = np.searchsorted(self.first_rows, row, side="right") - 1
        row_tokens = self.settings.row_tokens
        start = self.starts[stream] + (row - self.first_rows[stream]) * row_tokens
        length = np.clip(self.stops[stream] - start, 0, row_tokens)
        return ContextPlaces(source, start, length)

    def _rows_of(self, source: NDArray[np.int64], number: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row within its source of each context, given by its number within the source."""
        # The contexts of a source begin with whole passes over its rows.
        row = number % self.rows[source]

        # After them, its chosen rows occur once more.
        chosen_number = number - self.repeated[source]
        is_chosen = np.flatnonzero(chosen_number >= 0)
        for source_number in np.unique(source[is_chosen]):
            of_source = is_chosen[source[is_chosen] == source_number]
            row[of_source] = self.choices[source_number].row(chosen_number[of_source])
        return row

    def containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the contexts that hold any of a source's tokens [start, stop), int64, shape
        (contexts,).
        """
        # With the tail `carry` alone, a row that begins in an earlier source can hold tokens of
        # this.
        first_source = 0 if self.settings.tail == "carry" else source
        parts = [_NO_CONTEXTS]
        distance = 0  # tokens from the start of `number` to the start of `source`
        for number in range(source, first_source - 1, -1):
            if number < source:
                distance += self.sources[number].tokens
            rows = self._rows_containing(number, start + distance, stop + distance)
            parts.append(self._contexts_of(number, rows))
        return np.concatenate(parts)

    def _contexts_of(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all contexts of some rows of a source, given by their numbers within it."""
        # (passes, rows) -> (passes * rows,)
        passes = np.arange(0, self.repeated[source], self.rows[source])
        repeated = (passes[:, None] + rows).ravel()

        choice = self.choices[source]
        chosen = choice.number(rows[choice.holds(rows)]) + self.repeated[source]
        return np.concatenate([repeated, chosen]) + int(self.first_contexts[source])

    def _rows_containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of a source that hold any of its tokens [start, stop), numbered within
        the source.

        Past the source's end, tokens are those of the next sources, as in carried rows.
        """
        first, after = self.first_streams[source : source + 2].tolist()
        starts = self.starts[first:after]
        stops = self.stops[first:after]
        row_tokens = self.settings.row_tokens
        parts = [_NO_CONTEXTS]
        if start >= stop:
            return _NO_CONTEXTS
        for stream in np.flatnonzero((starts < stop) & (stops > start)):
            stream_start = starts[stream]
            first_row = (max(start, stream_start) - stream_start) // row_tokens
            stop_row = -((stream_start - min(stop, stops[stream])) // row_tokens)
            rows_before = self.first_rows[first + stream] - self.first_rows[first]
            parts.append(np.arange(first_row, stop_row, dtype=np.int64) + rows_before)
        return np.concatenate(parts)

    def pad_tokens(self, contexts: NDArray[np.int64]) -> int:
        """Return the number of pad tokens within these contexts, int64, shape (contexts,)."""
        lengths = self.locate(contexts).lengths
        return int(lengths.size * self.settings.row_tokens - lengths.sum())


def _cut_carrying(source_tokens: Sequence[int], row_tokens: int) -> _CutStreams:
    """Cut all sources as one stream; a row belongs to the source of its first token."""
    # (sources + 1,) first token of each source within the stream
    bounds = _running_sum(source_tokens)
    n_rows = bounds[-1] // row_tokens

    # (sources + 1,) first row that begins in or after each source
    first_row = np.minimum(-(-bounds // row_tokens), n_rows)
    rows = np.diff(first_row)
    return _CutStreams(
        rows=rows,
        starts=first_row[:-1] * row_tokens - bounds[:-1],
        spans=rows * row_tokens,
        used=np.diff(np.minimum(bounds, n_rows * row_tokens)),
    )


def _cut_apart(
    lengths_by_source: Sequence[Sequence[int]],
    row_tokens: int,
    tail: PlanTail,
) -> _CutStreams:
    """Cut each stream of each source on its own."""
    lengths: list[int] = []
    first_tokens: list[int] = []  # of each stream, within its source
    for stream_lengths in lengths_by_source:
        lengths.extend(stream_lengths)
        first_tokens.extend(_running_sum(stream_lengths)[:-1].tolist())
    tokens = np.array(lengths, dtype=np.int64)
    starts = np.array(first_tokens, dtype=np.int64)

    full_rows = tokens // row_tokens
    if tail == "drop":
        spans = full_rows * row_tokens
        return _CutStreams(full_rows, starts, spans, used=spans)
    has_padded_row = tokens % row_tokens > 0
    if tail == "pad_always":
        has_padded_row[:] = True
    return _CutStreams(full_rows + has_padded_row, starts, spans=tokens, used=tokens)


def _counts_of(
    name: str,
    tokens: int,
    streams: _CutStreams,
    settings: PlanSettings,
) -> SourceContexts:
    """Count the rows, contexts and tokens of one source."""
    frequencies = settings.frequencies or {}
    frequency = frequencies.get(name, 1.0)
    rows = int(streams.rows.sum())
    repeats, chosen = sampled_contexts(rows, frequency)
    contexts = repeats * rows + chosen

    # All padding of a stream is in its last row, which may be a chosen one.
    pad_tokens = streams.rows * settings.row_tokens - streams.spans
    is_padded = np.flatnonzero(pad_tokens)
    last_rows = np.cumsum(streams.rows)[is_padded] - 1
    choice = Choice(rows, chosen, choice_seed(settings.seed, name))
    occurrences = repeats + choice.holds(last_rows)
    all_pad_tokens = int((pad_tokens[is_padded] * occurrences).sum())

    tokens_in_rows = int(streams.used.sum())
    carried = 0
    if settings.tail == "carry":
        carried = max(0, min(int(streams.starts[0]), tokens_in_rows))
    stream_lengths = (settings.streams or {}).get(name)
    return SourceContexts(
        name=name,
        tokens=tokens,
        contexts=contexts,
        tokens_used=contexts * settings.row_tokens - all_pad_tokens,
        tokens_dropped=tokens - tokens_in_rows,
        pad_tokens=all_pad_tokens,
        rows=rows,
        frequency=frequency,
        tokens_carried=carried,
        streams=None if stream_lengths is None else tuple(map(int, stream_lengths)),
    )


def _choice_of(source: SourceContexts, seed: int) -> Choice:
    return Choice(source.rows, source.chosen, choice_seed(seed, source.name))


def _running_sum(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the sum of the counts before each one, and of all: int64, shape (counts + 1,)."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _stream_lengths(
    sources: Sequence[tuple[str, int]],
    settings: PlanSettings,
) -> list[tuple[int, ...]]:
    """Return the tokens of each stream of each source; a source that is not cut by streams is one.

    Raises:
        ConfigError: Two sources have one name, or streams are not all of their source.
    """
    tokens_by_source = dict(sources)
    if len(tokens_by_source) != len(sources):
        raise ConfigError(
            "two sources have the same name",
            found=[name for name, _ in sources],
            remedy="name each source once",
        )
    _check_streams(settings.streams or {}, tokens_by_source)

    lengths_by_source: list[tuple[int, ...]] = []
    for name, n_tokens in sources:
        if settings.streams is not None and name in settings.streams:
            lengths_by_source.append(tuple(map(int, settings.streams[name])))
        else:
            lengths_by_source.append((n_tokens,))
    return lengths_by_source


def _check_streams(
    streams: Mapping[str, Sequence[int]],
    tokens_by_source: Mapping[str, int],
) -> None:
    """Check that the streams of each source have as many tokens as the source."""
    for name, lengths in streams.items():
        expected = tokens_by_source.get(name)
        if expected != sum(lengths):
            raise ConfigError(
                "the streams are not all of their source",
                where=f"source {name!r}",
                found=f"{len(lengths)} streams, {sum(lengths)} tokens",
                expected=f"{expected} tokens",
            )
