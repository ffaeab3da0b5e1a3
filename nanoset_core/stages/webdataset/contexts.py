"""Cut the tokens of several sources into contexts of one length.

Each source is one stream of tokens, its documents concatenated, or consists of several streams,
such as its files. A stream is cut into rows. A context is one occurrence of a row: it is numbered,
and shuffled with all others. For example, with rows of 4 tokens:

    source  tokens  frequency  rows            contexts
    web     10      1          [0,4) [4,8)     0 1
    code     8      2.5        [0,4) [4,8)     2 3  4 5  6

The last two tokens of `web` are dropped, or padded to a third row. Contexts 2 and 3, and again 4
and 5, are the rows of `code`; context 6 is the one row that was chosen to occur a third time.

Contexts are numbered in the order of the sources, and computed from a few counts of each source:
there is no table of all of them in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.stages.webdataset.order import Choice, choice_seed, sampled_contexts
from nanoset_core.stages.webdataset.plan_settings import PlanSettings, PlanTail

_NO_CONTEXTS = np.empty(0, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class SourceContexts:
    """The counts of one source.

    One pass over the source gives `rows` rows, and the plan has `frequency` times as many contexts.
    """

    name: str
    tokens: int
    contexts: int
    """Contexts that begin in the source, repetitions counted."""
    tokens_used: int
    """Tokens in these contexts, repetitions counted, without BOS and padding."""
    tokens_dropped: int
    """Tokens at the ends of streams that fill no row; 0 if they are padded."""
    pad_tokens: int
    """Pad tokens in these contexts."""
    rows: int
    """Rows that one pass gives."""
    frequency: float = 1.0
    """How often each row occurs."""
    tokens_carried: int = 0
    """Tokens of the source in rows that begin in an earlier source (tail `carry`)."""
    streams: tuple[int, ...] | None = None
    """Tokens of each stream that is cut separately, such as a file. None: there is one stream."""

    @property
    def repeats(self) -> int:
        """How often every row occurs."""
        return sampled_contexts(self.rows, self.frequency).repeats

    @property
    def chosen(self) -> int:
        """How many of the rows occur once more than that."""
        return sampled_contexts(self.rows, self.frequency).n_chosen


class ContextPlaces(NamedTuple):
    """Where the tokens of contexts are. All arrays have the shape (n_contexts,)."""

    sources: NDArray[np.int64]
    """Number of the source in which each context begins."""
    starts: NDArray[np.int64]
    """First token of each context within that source."""
    lengths: NDArray[np.int64]
    """Tokens of each context without BOS and padding.

    That is `row_tokens`, except for padded rows; a row of padding alone has 0.
    """


class _CutStreams(NamedTuple):
    """The rows into which all streams are cut. All arrays have the shape (n_streams,).

    With the tail `carry`, a row may begin in one stream and end in the next one. Otherwise
    `tokens_in_rows` and `tokens_used` are the same.
    """

    row_counts: NDArray[np.int64]
    """Number of rows that begin in each stream."""
    starts: NDArray[np.int64]
    """First token of each stream's first row, counted within its source."""
    tokens_in_rows: NDArray[np.int64]
    """Tokens in the rows that begin in each stream, without padding."""
    tokens_used: NDArray[np.int64]
    """Tokens of each stream that are in a row, also in one that begins in an earlier stream."""

    def part(self, start: int, stop: int) -> _CutStreams:
        """Return the streams [start, stop)."""
        return _CutStreams(
            row_counts=self.row_counts[start:stop],
            starts=self.starts[start:stop],
            tokens_in_rows=self.tokens_in_rows[start:stop],
            tokens_used=self.tokens_used[start:stop],
        )


class ContextTable:
    """The contexts of all sources, which are computed rather than stored.

    The contexts of a source are its rows in order, `repeats` times, and then its chosen rows in
    order. Row j of a stream holds the tokens [j * row_tokens, (j + 1) * row_tokens) of the stream,
    after a BOS token if the settings name one.
    """

    def __init__(self, sources: Sequence[tuple[str, int]], settings: PlanSettings) -> None:
        """Cut sources into rows, and number their contexts.

        A row is a number of consecutive tokens. A context is one occurrence of a row: the frequency
        of a source says how often its rows occur, and how many chosen rows occur once more. A
        source may consist of several streams, such as its files, which are cut separately.

        Args:
            sources: Name and token count of each source, in the order that numbers the contexts.
            settings: Settings of the plan, such as the length of contexts.

        Raises:
            ConfigError: Two sources have one name, or the streams of a source have more or fewer
                tokens than the source.
        """
        self.settings = settings
        lengths_by_source = _stream_lengths(sources, settings)
        cut = _cut_streams(lengths_by_source, settings)  # the rows of all streams

        # Where the rows of each stream are.
        streams_per_source = [len(lengths) for lengths in lengths_by_source]
        self.first_streams = _running_sum(streams_per_source)
        """Number of the first stream of each source; shape (n_sources + 1,)."""
        self.starts = cut.starts
        """First token of each stream's first row, within its source; shape (n_streams,)."""
        self.stops = cut.starts + cut.tokens_in_rows
        """Token within the source after the last one in the stream's rows; shape (n_streams,)."""
        self.first_rows = np.cumsum(cut.row_counts) - cut.row_counts
        """Number of each stream's first row, counted over all sources; shape (n_streams,)."""

        self.sources = self._count_sources(sources, cut)
        """The counts of each source, in the order that numbers the contexts."""
        self.choices = [_choice_of(counts, settings.seed) for counts in self.sources]
        """For each source, which rows occur once more."""

        # The same counts as arrays, to look up many contexts at once.
        self.first_contexts = _running_sum([counts.contexts for counts in self.sources])
        """Number of each source's first context, and at the end all; shape (n_sources + 1,)."""
        rows_per_pass = [max(counts.rows, 1) for counts in self.sources]
        self.rows_per_pass = np.array(rows_per_pass, dtype=np.int64)
        """Rows of each source; at least 1, since it is a divisor; shape (n_sources,)."""
        contexts_in_passes = [counts.contexts - counts.chosen for counts in self.sources]
        self.contexts_in_passes = np.array(contexts_in_passes, dtype=np.int64)
        """Contexts of each source that are whole passes over its rows; shape (n_sources,).

        Those of its chosen rows follow.
        """

    def _count_sources(
        self,
        sources: Sequence[tuple[str, int]],
        cut: _CutStreams,
    ) -> tuple[SourceContexts, ...]:
        """Count the rows and contexts of each source.

        A source of 10 rows that is read 2.3 times has 23 contexts.

        Args:
            sources: Name and token count of each source.
            cut: The rows of all streams of all sources.
        """
        counts: list[SourceContexts] = []
        for number, (name, n_tokens) in enumerate(sources):
            streams = self._streams_of(number)
            rows_of_source = cut.part(streams.start, streams.stop)
            counts.append(_counts_of(name, n_tokens, rows_of_source, self.settings))
        return tuple(counts)

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return int(self.first_contexts[-1])

    def _streams_of(self, source: int) -> range:
        """Return the numbers of the streams of a source."""
        return range(int(self.first_streams[source]), int(self.first_streams[source + 1]))

    def locate(self, contexts: NDArray[np.int64]) -> ContextPlaces:
        """Return where the tokens of contexts, which are rows of one length, are in the sources.

        A context is one occurrence of a row of consecutive tokens. If source 0 has 2 rows of 4
        tokens, and source 1 has 2 such rows twice, then context 5 is the second row of source 1: it
        starts at token 4 of this source, and has 4 tokens.

        Args:
            contexts: Numbers of the contexts, shape (n_contexts,).

        Returns:
            The source, the first token and the number of tokens of each context. If rows may
            continue in the next source (tail `carry`), this is the source of the first token.

        Raises:
            SampleIndexError: A number is outside the table.
        """
        contexts = np.asarray(contexts, dtype=np.int64)
        self._check_numbers(contexts)

        # Context → source → row → the stream (such as a file) that the row is cut from; all of
        # these arrays have the shape (n_contexts,).
        row_tokens = self.settings.row_tokens
        sources = np.searchsorted(self.first_contexts, contexts, side="right") - 1
        rows = self._rows_over_all_sources(contexts, sources)
        streams = np.searchsorted(self.first_rows, rows, side="right") - 1
        rows_in_stream = rows - self.first_rows[streams]
        starts = self.starts[streams] + rows_in_stream * row_tokens

        # The last row of a stream may be shorter than the others.
        lengths = np.clip(self.stops[streams] - starts, 0, row_tokens)
        return ContextPlaces(sources=sources, starts=starts, lengths=lengths)

    def _check_numbers(self, contexts: NDArray[np.int64]) -> None:
        """Raise SampleIndexError if one of these contexts does not exist."""
        if contexts.size and (contexts.min() < 0 or contexts.max() >= self.contexts):
            raise SampleIndexError(
                "context number outside the table",
                found=f"[{contexts.min()}, {contexts.max()}]",
                expected=f"[0, {self.contexts})",
            )

    def _rows_over_all_sources(
        self,
        contexts: NDArray[np.int64],
        sources: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return the row of each context, numbered through the rows of all sources.

        If source 0 has 2 rows, then row 1 of source 1 has the number 3.

        Args:
            contexts: Numbers of the contexts over all sources, shape (n_contexts,).
            sources: Source of each context, shape (n_contexts,).
        """
        numbers_in_source = contexts - self.first_contexts[sources]
        rows = self._rows_of(sources, numbers_in_source)  # counted within each source

        # The first row of a source is the first row of its first stream.
        rows += self.first_rows[self.first_streams[sources]]
        return rows

    def _rows_of(self, sources: NDArray[np.int64], numbers: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the row of each context, counted within its source.

        A context is one occurrence of a row. A source of 10 rows at frequency 2.3 has 23 contexts:
        0 to 9 are its rows in order, and so are 10 to 19; 20, 21 and 22 are the 3 rows that were
        chosen to occur once more.

        Args:
            sources: Source of each context, shape (n_contexts,).
            numbers: Number of each context within its source, shape (n_contexts,).

        Returns:
            Shape (n_contexts,).
        """
        # The contexts 0 to 19 of the example are two passes over all rows. Treat all contexts like
        # these first.
        rows = numbers % self.rows_per_pass[sources]  # (n_contexts,)

        # Then correct those after the passes, 20 to 22. Their rows were chosen source by source.
        choice_numbers = numbers - self.contexts_in_passes[sources]  # 0, 1 and 2
        after_passes = np.flatnonzero(choice_numbers >= 0)  # indices of these contexts
        for source in np.unique(sources[after_passes]):
            is_of_source = sources[after_passes] == source
            indices = after_passes[is_of_source]
            rows[indices] = self.choices[source].rows_of(choice_numbers[indices])
        return rows

    def containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the numbers of all contexts that contain at least one of the tokens [start, stop).

        A context is one occurrence of a row, which is a number of consecutive tokens of a source.
        With rows of 4 tokens, token 5 is in row 1, and in all contexts that repeat it.

        Args:
            source: Number of the source of the tokens.
            start: First token, counted within the source.
            stop: Token after the last one, counted within the source.

        Returns:
            Shape (n_contexts,), in no particular order.
        """
        contexts = [self._contexts_beginning_in(source, start, stop)]
        # With this setting, rows of earlier sources may continue in this one.
        if self.settings.tail == "carry":
            contexts.extend(self._carried_contexts(source, start, stop))
        return np.concatenate(contexts)

    def _carried_contexts(
        self,
        source: int,
        start: int,
        stop: int,
    ) -> Iterator[NDArray[np.int64]]:
        """Yield, for each earlier source, its contexts that extend to the tokens [start, stop).

        All earlier sources are searched, since a context may extend over several short sources.

        Args:
            source: Number of the source of the tokens.
            start: First token, counted within the source.
            stop: Token after the last one, counted within the source.
        """
        # Count the tokens from the start of the earlier source. If the source before this one has
        # 100 tokens, then token 5 of this source is its token 105.
        tokens_before = 0  # from the start of the earlier source to the start of this one
        for earlier in reversed(range(source)):
            tokens_before += self.sources[earlier].tokens
            yield self._contexts_beginning_in(earlier, tokens_before + start, tokens_before + stop)

    def _contexts_beginning_in(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the contexts that begin in a source and contain one of the tokens [start, stop).

        The tokens are counted from the start of this source, and may be in a later one.
        """
        return self._contexts_of(source, self._rows_containing(source, start, stop))

    def _contexts_of(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contexts in which some rows of a source occur.

        A source of 10 rows at frequency 2.3 has 23 contexts: two passes over all rows, and 3 chosen
        rows once more. Row 4 is then in the contexts 4 and 14, and in one of 20 to 22 if it was
        chosen.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, shape (n_rows,).

        Returns:
            Numbers of the contexts over all sources, shape (n_contexts,).
        """
        in_passes = self._contexts_in_passes(source, rows)
        after_passes = self._contexts_after_passes(source, rows)
        first_context = int(self.first_contexts[source])
        return first_context + np.concatenate([in_passes, after_passes])

    def _contexts_in_passes(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contexts of rows in the whole passes over their source: one in each pass.

        If a source of 10 rows is read 2.3 times, there are two passes over all rows. Row 4 is in
        the contexts 4 and 14.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, shape (n_rows,).

        Returns:
            Numbers of the contexts within the source, shape (n_passes * n_rows,).
        """
        # (n_passes,) the first context of each pass
        pass_starts = np.arange(0, self.contexts_in_passes[source], self.rows_per_pass[source])
        return (pass_starts[:, None] + rows).ravel()

    def _contexts_after_passes(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the contexts of those rows that were chosen to occur once more than the others.

        If a source of 10 rows is read 2.3 times, the contexts 0 to 19 are two passes over all rows.
        The contexts 20, 21 and 22 are three chosen rows, such as 1, 4 and 9. Row 4 gives 21 then,
        and row 5 nothing.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, shape (n_rows,).

        Returns:
            Numbers of the contexts within the source, shape (n_chosen,).
        """
        choice = self.choices[source]
        chosen_rows = rows[choice.is_chosen(rows)]
        numbers = choice.numbers_of(chosen_rows)  # counted among the chosen rows of the source
        contexts: NDArray[np.int64] = self.contexts_in_passes[source] + numbers
        return contexts

    def _rows_containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of a source that hold one of the tokens [start, stop).

        With rows of 4 tokens, the tokens [5, 9) are in the rows 1 and 2.

        Args:
            source: Number of the source.
            start: First token, counted within the source.
            stop: Token after the last one. Tokens beyond the end of the source are those of the
                next sources: with the tail `carry`, the source's last row may contain them.

        Returns:
            Numbers of the rows within the source, shape (n_rows,).
        """
        if start >= stop:
            return _NO_CONTEXTS
        first_row = self.first_rows[self.first_streams[source]]  # first row of the source
        rows_by_stream = [_NO_CONTEXTS]
        for stream in self._streams_containing(source, start, stop):
            rows = self._rows_in_stream(stream, start, stop)
            rows_by_stream.append(rows - first_row)
        return np.concatenate(rows_by_stream)

    def _streams_containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the streams of a source whose rows hold one of the tokens [start, stop).

        The tokens are counted within the source.
        """
        streams = self._streams_of(source)
        starts_before_stop = self.starts[streams.start : streams.stop] < stop
        stops_after_start = self.stops[streams.start : streams.stop] > start
        return streams.start + np.flatnonzero(starts_before_stop & stops_after_start)

    def _rows_in_stream(self, stream: np.int64, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of a stream that hold one of the tokens [start, stop) of its source.

        With rows of 4 tokens, the tokens [5, 9) of the stream are in its rows 1 and 2.

        Args:
            stream: Number of the stream, which has some of these tokens.
            start: First token, counted within the source.
            stop: Token after the last one.

        Returns:
            Numbers of the rows over all sources, shape (n_rows,).
        """
        # Count the tokens that the stream has of these from the start of the stream.
        stream_start = self.starts[stream]
        first_token = max(start, stream_start) - stream_start
        stop_token = min(stop, self.stops[stream]) - stream_start

        # The stop is rounded up, since the last token may be anywhere in its row.
        row_tokens = self.settings.row_tokens
        first_row = first_token // row_tokens
        stop_row = -(-stop_token // row_tokens)
        rows_in_stream = np.arange(first_row, stop_row, dtype=np.int64)
        return rows_in_stream + int(self.first_rows[stream])

    def pad_tokens(self, contexts: NDArray[np.int64]) -> int:
        """Return how many tokens of some contexts, which are rows of one length, are padding.

        Args:
            contexts: Numbers of the contexts, int64, shape (n_contexts,).

        Returns:
            The number in all of them together.

        Raises:
            SampleIndexError: A number is outside the table.
        """
        lengths = self.locate(contexts).lengths
        return int(lengths.size * self.settings.row_tokens - lengths.sum())


def _cut_streams(lengths_by_source: Sequence[Sequence[int]], settings: PlanSettings) -> _CutStreams:
    """Cut the streams of all sources into rows.

    Args:
        lengths_by_source: Tokens of each stream of each source.
        settings: Settings of the plan, such as the length of contexts.
    """
    if settings.tail == "carry":
        source_tokens = [sum(lengths) for lengths in lengths_by_source]
        return _cut_carrying(source_tokens, settings.row_tokens)
    return _cut_separately(lengths_by_source, settings.row_tokens, settings.tail)


def _cut_carrying(source_tokens: Sequence[int], row_tokens: int) -> _CutStreams:
    """Cut all sources as one stream; a row belongs to the source of its first token.

    With rows of 4 tokens, sources of 6 and 7 tokens give the rows [0, 4), [4, 8) and [8, 12). The
    first source has two of them. The second one has one, which begins at its token 2. The last
    token is in no row. Comments show the values of this example.

    Args:
        source_tokens: Tokens of each source.
        row_tokens: Tokens of a row.
    """
    bounds = _running_sum(source_tokens)  # (n_sources + 1,) start of each source: [0, 6, 13]
    first_rows = _first_rows_from(bounds, row_tokens)  # (n_sources + 1,) [0, 2, 3]
    row_counts = np.diff(first_rows)  # (n_sources,) [2, 1]
    row_bounds = first_rows * row_tokens  # (n_sources + 1,) first tokens of these rows: [0, 8, 12]
    return _CutStreams(
        row_counts=row_counts,
        starts=row_bounds[:-1] - bounds[:-1],  # [0, 2]
        tokens_in_rows=row_counts * row_tokens,  # [8, 4]
        tokens_used=np.diff(np.minimum(bounds, row_bounds[-1])),  # [6, 6]
    )


def _first_rows_from(bounds: NDArray[np.int64], row_tokens: int) -> NDArray[np.int64]:
    """Return the number of the first row of a stream that begins at or after each position.

    In a stream of 13 tokens, rows of 4 tokens begin at 0, 4 and 8. So these are the rows 0, 2 and 3
    for the positions 0, 6 and 13, where 3 stands for the end of the rows.

    Args:
        bounds: Ascending positions, the last of which is the end of the stream, shape (n,).
        row_tokens: Tokens of a row.

    Returns:
        Shape (n,).
    """
    n_rows = bounds[-1] // row_tokens
    rounded_up = -(-bounds // row_tokens)
    first_rows: NDArray[np.int64] = np.minimum(rounded_up, n_rows)
    return first_rows


def _cut_separately(
    lengths_by_source: Sequence[Sequence[int]],
    row_tokens: int,
    tail: PlanTail,
) -> _CutStreams:
    """Cut each stream of each source separately, so that no row has tokens of two streams.

    With rows of 4 tokens, streams of 10 and 8 tokens give 2 rows each; if the rest is padded, the
    first stream gives 3.

    Args:
        lengths_by_source: Tokens of each stream of each source.
        row_tokens: Tokens of a row.
        tail: What happens to the tokens after the last full row of a stream. `drop` leaves them
            out, and `pad` fills their row up with padding. So does `pad_always`, which adds a row
            of nothing but padding to a stream that has no such tokens.
    """
    stream_tokens = np.fromiter(chain.from_iterable(lengths_by_source), dtype=np.int64)
    row_counts = stream_tokens // row_tokens  # full rows, (n_streams,)
    if tail == "drop":
        tokens_used = row_counts * row_tokens
    else:
        tokens_used = stream_tokens
        has_padded_row = _has_padded_row(stream_tokens, row_tokens, tail)
        row_counts = row_counts + has_padded_row  # one more for each True

    # No row continues in another stream, so all tokens in the rows of a stream are its own.
    return _CutStreams(
        row_counts=row_counts,
        starts=_starts_in_sources(lengths_by_source),
        tokens_in_rows=tokens_used,
        tokens_used=tokens_used,
    )


def _has_padded_row(
    stream_tokens: NDArray[np.int64],
    row_tokens: int,
    tail: PlanTail,
) -> NDArray[np.bool_]:
    """Return, for each stream, whether it has a padded row after its full ones.

    Args:
        stream_tokens: Tokens of each stream, shape (n_streams,).
        row_tokens: Tokens of a row.
        tail: With `pad_always`, every stream has one. With `pad`, only a stream with tokens that
            remain after its full rows.
    """
    if tail == "pad_always":
        return np.ones(len(stream_tokens), dtype=np.bool_)
    return stream_tokens % row_tokens > 0


def _starts_in_sources(lengths_by_source: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return the first token of each stream, counted within its source, shape (n_streams,).

    Args:
        lengths_by_source: Tokens of each stream of each source.
    """
    starts: list[int] = []
    for stream_lengths in lengths_by_source:
        starts.extend(_running_sum(stream_lengths)[:-1].tolist())
    return np.array(starts, dtype=np.int64)


def _counts_of(
    name: str,
    tokens: int,
    streams: _CutStreams,
    settings: PlanSettings,
) -> SourceContexts:
    """Count the rows, contexts and tokens of one source.

    The tokens of a source are divided into streams, and each stream is cut into rows. A context is
    one occurrence of a row. With a frequency of 2.5, every row occurs twice, and half of the rows,
    which are chosen at random, once more.

    Args:
        name: Name of the source.
        tokens: Its tokens.
        streams: The rows of its streams.
        settings: Settings of the plan, such as the length of contexts.
    """
    # Every row occurs `repeats` times, and `n_chosen` of them once more.
    frequency = (settings.frequencies or {}).get(name, 1.0)
    rows = int(streams.row_counts.sum())
    occurrences = sampled_contexts(rows, frequency)
    contexts = occurrences.repeats * rows + occurrences.n_chosen

    # Rows at the end of a stream may be padded.
    choice = Choice(rows, occurrences.n_chosen, choice_seed(settings.seed, name))
    pad_tokens = _pad_tokens_of(streams, settings.row_tokens, occurrences.repeats, choice)
    return SourceContexts(
        name=name,
        tokens=tokens,
        contexts=contexts,
        tokens_used=contexts * settings.row_tokens - pad_tokens,
        tokens_dropped=tokens - int(streams.tokens_used.sum()),
        pad_tokens=pad_tokens,
        rows=rows,
        frequency=frequency,
        tokens_carried=_tokens_carried(streams, settings.tail),
        streams=_configured_streams(name, settings),
    )


def _choice_of(counts: SourceContexts, seed: int) -> Choice:
    """Return which rows of a source occur once more than the others.

    Args:
        counts: Counts of the source: 3 of 10 rows are chosen if the frequency is 2.3.
        seed: Seed of the plan.
    """
    return Choice(counts.rows, counts.chosen, choice_seed(seed, counts.name))


def _pad_tokens_of(streams: _CutStreams, row_tokens: int, repeats: int, choice: Choice) -> int:
    """Return the number of pad tokens in all occurrences of the rows of a source.

    Padding fills up the last row of a stream. With rows of 4 tokens, a stream of 10 tokens has 2
    pad tokens; if its last row occurs 3 times, these are 6.

    Args:
        streams: The rows of the streams of the source.
        row_tokens: Tokens of a row, with padding.
        repeats: How often every row occurs.
        choice: Which rows were chosen to occur once more.
    """
    pad_tokens = streams.row_counts * row_tokens - streams.tokens_in_rows  # (n_streams,)
    padded_streams = np.flatnonzero(pad_tokens)

    # All padding of a stream is in its last row, which may be a chosen one. Rows are numbered
    # through all streams, so it is the row before the sum of the row counts up to its stream.
    last_rows = np.cumsum(streams.row_counts)[padded_streams] - 1
    occurrences = repeats + choice.is_chosen(last_rows)  # (n_padded_streams,)
    return int((pad_tokens[padded_streams] * occurrences).sum())


def _tokens_carried(streams: _CutStreams, tail: PlanTail) -> int:
    """Return how many tokens of a source are in rows that begin in earlier sources.

    If a row begins 3 tokens before the end of web, and has 8 tokens, 5 of code are in it.

    These are the tokens before its first row, except those that are in no row.

    Args:
        streams: The rows of the streams of the source.
        tail: Only with `carry`, a row may begin in one source and end in the next.
    """
    if tail != "carry":
        return 0
    tokens_used = int(streams.tokens_used.sum())
    return max(0, min(int(streams.starts[0]), tokens_used))


def _configured_streams(name: str, settings: PlanSettings) -> tuple[int, ...] | None:
    """Return the tokens of each stream of a source, or None if the settings name no streams."""
    stream_lengths = (settings.streams or {}).get(name)
    if stream_lengths is None:
        return None
    return tuple(map(int, stream_lengths))


def _running_sum(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the sum of the counts before each one, and at the end of all: (n_counts + 1,)."""
    return np.cumsum([0, *counts], dtype=np.int64)


def _stream_lengths(
    sources: Sequence[tuple[str, int]],
    settings: PlanSettings,
) -> list[tuple[int, ...]]:
    """Return how many tokens each stream of each source has.

    A source consists of one or more streams, such as its files.

    Args:
        sources: Name and number of tokens of each source.
        settings: Settings of the plan, with the streams of sources that have several.

    Returns:
        For each source, the number of tokens of each stream.

    Raises:
        ConfigError: Two sources have one name, or the streams of a source have more or fewer tokens
            than the source.
    """
    _check_names_differ([name for name, _ in sources])
    configured_streams = settings.streams or {}
    _check_streams(configured_streams, dict(sources))

    lengths_by_source: list[tuple[int, ...]] = []
    for name, n_tokens in sources:
        stream_lengths = configured_streams.get(name, [n_tokens])
        lengths_by_source.append(tuple(int(length) for length in stream_lengths))
    return lengths_by_source


def _check_names_differ(names: list[str]) -> None:
    """Check that no two sources have the same name.

    Raises:
        ConfigError: Two of them have.
    """
    if len(set(names)) < len(names):
        raise ConfigError(
            "two sources have the same name",
            found=names,
            remedy="name each source once",
        )


def _check_streams(
    streams: Mapping[str, Sequence[int]],
    tokens_by_source: Mapping[str, int],
) -> None:
    """Check that the streams of each source have as many tokens as the source.

    For example, files of 6 and 4 tokens are the streams of a source of 10 tokens.

    Args:
        streams: Source → tokens of each of its streams, such as its files.
        tokens_by_source: Source → its tokens.

    Raises:
        ConfigError: The streams of a source have more or fewer tokens.
    """
    for name, lengths in streams.items():
        expected = tokens_by_source.get(name)
        if expected != sum(lengths):
            raise ConfigError(
                "the streams are not all of their source",
                where=f"source {name!r}",
                found=f"{len(lengths)} streams, {sum(lengths)} tokens",
                expected=f"{expected} tokens",
            )
