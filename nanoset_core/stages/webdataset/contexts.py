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
        """Count the training samples that each source of text gives.

        A source consists of one or more streams of tokens, such as its files. Each stream is cut
        into rows of one length. A source that is read 2.3 times and has 10 rows gives 23 samples:

            source    streams (files)    rows of each    read    samples
            web       2                  4, 6            2.3     23
            code      1                  5               1       5

        Args:
            sources: Name and token count of each source.
            cut: The rows of all streams: first those of the first source, then those of the next
                one.
        """
        counts: list[SourceContexts] = []
        for number, (name, n_tokens) in enumerate(sources):
            streams = self._streams_of(number)  # range(0, 2) for web, range(2, 3) for code
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
        """Return where the tokens of some training samples are in the text that they are cut from.

        A sample (here called a context) is one occurrence of a row, which is a number of
        consecutive tokens of a source. For example, with rows of 4 tokens:

            source                   web          code
            its tokens               8            8
            it is read               once         twice
            number of the context    0     1      2     3     4     5
            its tokens               0-3   4-7    0-3   4-7   0-3   4-7

        Tokens are counted within their source. So context 5 is in code (source 1), starts at its
        token 4, and has 4 tokens.

        Args:
            contexts: Numbers of the contexts, shape (n_contexts,).

        Returns:
            The source, the first token and the number of tokens of each context. A context that
            continues in the next source (which the setting `tail: carry` permits) is said to be in
            the source of its first token.

        Raises:
            SampleIndexError: There is no context with one of these numbers.
        """
        contexts = np.asarray(contexts, dtype=np.int64)
        self._check_numbers(contexts)

        # The source of a context is the last one whose first context has the same or a lower
        # number. Comments show context 5. All arrays have the shape (n_contexts,).
        n_sources_begun = np.searchsorted(self.first_contexts, contexts, side="right")
        sources = n_sources_begun - 1  # 1

        # A source consists of streams, such as its files. Find the row, and the stream of the row.
        rows = self._rows_over_all_sources(contexts, sources)  # 3, since web has the rows 0 and 1
        n_streams_begun = np.searchsorted(self.first_rows, rows, side="right")
        streams = n_streams_begun - 1  # 1, the only stream of code

        # All rows of a stream before this one have the full length.
        row_tokens = self.settings.row_tokens  # 4
        rows_in_stream = rows - self.first_rows[streams]  # 1
        starts = self.starts[streams] + rows_in_stream * row_tokens  # 4

        # The last row of a stream may be shorter than the others.
        lengths = np.clip(self.stops[streams] - starts, 0, row_tokens)  # 4
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
        """Return which row of text each training sample holds.

        Text is cut into rows of some tokens. A sample (context) is one occurrence of a row. Rows
        are numbered through all sources of text, and so are contexts. If web has 2 rows and is read
        once, and code has 2 rows and is read twice:

            source     web      code
            context    0   1    2   3   4   5
            row        0   1    2   3   2   3

        Args:
            contexts: Numbers of the contexts, shape (n_contexts,).
            sources: Number of the source of each context, shape (n_contexts,).

        Returns:
            Shape (n_contexts,).
        """
        # Count contexts and rows from the start of their source first.
        numbers_in_source = contexts - self.first_contexts[sources]  # [0, 1, 0, 1, 2, 3]
        rows_in_source = self._rows_in_source(sources, numbers_in_source)  # [0, 1, 0, 1, 0, 1]

        # The first row of a source is the first row of its first stream (such as a file).
        first_streams = self.first_streams[sources]
        first_rows_of_sources = self.first_rows[first_streams]  # [0, 0, 2, 2, 2, 2]
        return first_rows_of_sources + rows_in_source

    def _rows_in_source(
        self,
        sources: NDArray[np.int64],
        numbers: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return which row of its source each training sample holds.

        A source of text is cut into rows. If it is to be read 2.3 times and has 10 rows, it gives
        23 samples (contexts). 3 rows are chosen at random to occur a third time, such as 1, 4 and
        9:

            contexts of the source    0 ... 9    10 ... 19    20  21  22
            their rows                0 ... 9     0 ...  9     1   4   9
                                      first pass  second pass  chosen rows

        Args:
            sources: Number of the source of each context, shape (n_contexts,).
            numbers: Number of each context, counted within its source, shape (n_contexts,).

        Returns:
            Rows, counted within their source, shape (n_contexts,).
        """
        # In each pass, the rows occur in order: context 14 is row 4.
        rows = numbers % self.rows_per_pass[sources]

        # This is wrong for contexts after the passes, 20 to 22. They are number 0, 1 and 2 of the
        # chosen rows. Each source has made its own choice, so look them up source by source.
        choice_numbers = numbers - self.contexts_in_passes[sources]  # negative within the passes
        after_passes = np.flatnonzero(choice_numbers >= 0)  # indices of these contexts
        for source in np.unique(sources[after_passes]):
            is_of_source = sources[after_passes] == source
            indices = after_passes[is_of_source]
            rows[indices] = self.choices[source].rows_of(choice_numbers[indices])
        return rows

    def containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the training samples that contain at least one of the tokens [start, stop).

        For example, a document has to be erased, so one must know which samples were made from it.

        A source of text is cut into rows of consecutive tokens, and a sample (context) is one
        occurrence of a row. Suppose that source 0 has 12 tokens, and is read twice in rows of 4:

            row                      0      1      2
            its tokens               0-3    4-7    8-11
            contexts with this row   0, 3   1, 4   2, 5

        Then the tokens [5, 7) of source 0 are in the contexts 1 and 4.

        Args:
            source: Number of the source of the tokens.
            start: First token, counted within the source.
            stop: Token after the last one, counted within the source.

        Returns:
            Numbers of the contexts, in no particular order, shape (n_contexts,).
        """
        contexts = [self._contexts_beginning_in(source, start, stop)]
        # With this setting, the last row of a source is filled up with tokens of the next source.
        # So rows that begin in earlier sources may contain the tokens too.
        if self.settings.tail == "carry":
            contexts.extend(self._carried_contexts(source, start, stop))
        return np.concatenate(contexts)

    def _carried_contexts(
        self,
        source: int,
        start: int,
        stop: int,
    ) -> Iterator[NDArray[np.int64]]:
        """Find samples that contain tokens of a source of text, but begin in an earlier source.

        The sources are cut into samples (contexts) as if they were one long text. With samples of 6
        tokens, the first one contains all of web, all of news, and token 0 of code:

            source             web    news   code
            its tokens         0-2    0-1    0-6
            tokens of sample 0 0-2    0-1    0

        So all earlier sources are searched, and not only the last one.

        Args:
            source: Number of the source of the tokens: 2 for code.
            start: First token, counted within this source.
            stop: Token after the last one, counted within this source.

        Yields:
            For each earlier source, the contexts that begin in it and contain one of the tokens.
        """
        # Count the tokens from the start of the earlier source: token 0 of code is also token 2 as
        # counted from the start of news, and token 5 as counted from the start of web.
        tokens_between = 0  # from the start of the earlier source to the start of this one
        for earlier in reversed(range(source)):
            tokens_between += self.sources[earlier].tokens
            yield self._contexts_beginning_in(
                earlier, tokens_between + start, tokens_between + stop
            )

    def _contexts_beginning_in(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the training samples that begin in one source and contain any of the tokens
        [start, stop).

        A source of text is cut into rows of one length. A training sample (context) is one
        occurrence of a row: if the source is read twice, each row gives two samples. So first find
        the rows, and then their samples.

        With rows of 4 tokens, and a source web of 10 tokens, followed by code, the rows of web are

            row                      0       1       2
            tokens from web's start  0-3     4-7     8-11     (10 and 11 are in code)

        For the tokens [9, 11), the result is the samples of row 2.

        Args:
            source: Number of the source.
            start: First token, counted from the start of this source. It may be in a later one.
            stop: Token after the last one, counted in the same way.

        Returns:
            Numbers of the samples, counted over all sources, shape (n_contexts,).
        """
        rows = self._rows_containing(source, start, stop)  # row 2 in the example
        return self._contexts_of(source, rows)  # the samples that are occurrences of row 2

    def _contexts_of(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all training samples that hold one of some rows of a source of text.

        A sample (context) is one occurrence of a row. A source of 10 rows that is read 2.3 times
        gives 23 contexts; the rows 1, 4 and 9 may be those that occur a third time:

            contexts of the source    0 ... 9    10 ... 19    20  21  22
            their rows                0 ... 9     0 ...  9     1   4   9

        Row 4 is then in the contexts 4, 14 and 21, and row 5 in 5 and 15.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, shape (n_rows,).

        Returns:
            Numbers of the contexts, counted over all sources, shape (n_contexts,).
        """
        in_passes = self._contexts_in_passes(source, rows)  # [4, 14] for row 4
        after_passes = self._contexts_after_passes(source, rows)  # [21]
        first_context = int(self.first_contexts[source])
        return first_context + np.concatenate([in_passes, after_passes])

    def _contexts_in_passes(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the training samples of some rows, one for each time that all rows are read.

        A source of text that has 10 rows and is read 2.3 times gives 23 samples (contexts):

            contexts    0 ... 9      10 ... 19      20, 21, 22
            rows        all          all            3 chosen ones
                        first pass   second pass    (these are not returned here)

        Row 4 is in the contexts 4 and 14, and row 5 in 5 and 15.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, shape (n_rows,).

        Returns:
            Numbers of the contexts within the source, shape (n_passes * n_rows,).
        """
        # The first context of each pass, as a column: [[0], [10]]
        stop = self.contexts_in_passes[source]  # 20
        pass_starts = np.arange(0, stop, self.rows_per_pass[source])[:, None]  # (n_passes, 1)

        # Each pass has all rows in order: [[0], [10]] + [4, 5] is [[4, 5], [14, 15]].
        contexts = pass_starts + rows  # (n_passes, n_rows)
        return contexts.ravel()

    def _contexts_after_passes(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the training samples of those rows that occur once more than the other rows.

        A source of text that has 10 rows and is read 2.3 times gives 23 samples (contexts). The
        first 20 are two passes over all rows. For the last three, 3 rows are chosen at random:

            contexts of the source    20  21  22
            chosen rows                1   4   9

        Then row 4 gives context 21, and row 5 gives none, since it was not chosen.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, shape (n_rows,).

        Returns:
            Numbers of the contexts within the source, shape (n_chosen,).
        """
        choice = self.choices[source]  # which rows were chosen
        chosen_rows = rows[choice.is_chosen(rows)]  # [4] of [4, 5]
        numbers = choice.numbers_of(chosen_rows)  # [1]: 4 is number 1 of 1, 4 and 9
        contexts: NDArray[np.int64] = self.contexts_in_passes[source] + numbers  # [20 + 1]
        return contexts

    def _rows_containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the rows of a source of text that contain one of the tokens [start, stop).

        A source consists of streams, such as its files, and each stream is cut into rows. With two
        files of 8 tokens, and rows of 4 tokens, the tokens [5, 9) are in the rows 1 and 2:

            file                       first         second
            row                        0     1       2      3
            its tokens                 0-3   4-7     8-11   12-15
            tokens of these in it            5-7     8

        Args:
            source: Number of the source.
            start: First token, counted within the source.
            stop: Token after the last one. It may be beyond the end of the source, and then means
                tokens of the next source: the last row of a source may continue there.

        Returns:
            Numbers of the rows within the source, shape (n_rows,).
        """
        if start >= stop:
            return _NO_CONTEXTS
        first_row_of_source = self.first_rows[self.first_streams[source]]
        rows_by_stream = [_NO_CONTEXTS]
        for stream in self._streams_containing(source, start, stop):
            # Row 0 of the second file is row 2 of the source, since the first file has 2 rows.
            rows_in_earlier_streams = self.first_rows[stream] - first_row_of_source
            rows_in_stream = self._rows_in_stream(stream, start, stop)
            rows_by_stream.append(rows_in_earlier_streams + rows_in_stream)
        return np.concatenate(rows_by_stream)

    def _streams_containing(self, source: int, start: int, stop: int) -> NDArray[np.int64]:
        """Return the streams of a source, such as its files, with one of the tokens [start, stop).

        With two files of 8 tokens, the tokens [5, 9) are in both, and [5, 7) only in the first one.
        Tokens that are in no row, since they do not fill one, do not count.

        Args:
            source: Number of the source.
            start: First token, counted within the source.
            stop: Token after the last one, counted within the source.

        Returns:
            Numbers of the streams, counted over all sources, shape (n_streams,).
        """
        streams = self._streams_of(source)
        begins_before_stop = self.starts[streams.start : streams.stop] < stop
        ends_after_start = self.stops[streams.start : streams.stop] > start
        return streams.start + np.flatnonzero(begins_before_stop & ends_after_start)

    def _rows_in_stream(self, stream: np.int64, start: int, stop: int) -> NDArray[np.int64]:
        """Return which rows of a stream contain at least one of the tokens [start, stop).

        A source of text consists of streams, such as its files, and a stream is cut into rows.
        Suppose that a file has the tokens 8 to 19 of the source, in rows of 4. Then [5, 13) are in
        its rows 0 and 1:

            row of the stream          0       1        2
            its tokens                 8-11    12-15    16-19

        Args:
            stream: Number of the stream, which has at least one of the tokens.
            start: First token, counted within the source.
            stop: Token after the last one, counted within the source.

        Returns:
            Numbers of the rows, counted from the start of the stream, shape (n_rows,).
        """
        # Leave out the tokens of other streams, and count from the start of this one.
        stream_start = self.starts[stream]  # 8
        first_token = max(start, stream_start) - stream_start  # 0
        stop_token = min(stop, self.stops[stream]) - stream_start  # 5
        last_token = stop_token - 1  # 4

        row_tokens = self.settings.row_tokens
        first_row = first_token // row_tokens  # 0
        last_row = last_token // row_tokens  # 1
        return np.arange(first_row, last_row + 1, dtype=np.int64)

    def pad_tokens(self, contexts: NDArray[np.int64]) -> int:
        """Return how many tokens of some training samples are padding.

        All samples (contexts) have the same length. If a text ends before its last sample is full,
        this sample is filled up with pad tokens. For example, with 4 tokens each:

            context       0    1    2
            text tokens   4    4    3
            pad tokens    0    0    1     (1 in all)

        Args:
            contexts: Numbers of the contexts, int64, shape (n_contexts,).

        Raises:
            SampleIndexError: There is no context with one of these numbers.
        """
        text_tokens = self.locate(contexts).lengths  # (n_contexts,)
        all_tokens = text_tokens.size * self.settings.row_tokens
        return int(all_tokens - text_tokens.sum())


def _cut_streams(lengths_by_source: Sequence[Sequence[int]], settings: PlanSettings) -> _CutStreams:
    """Cut the text of all sources into rows, which are training samples of one length in tokens.

    The setting `tail` says what happens to the tokens that remain after the last full row of a
    stream, such as a file. With `carry`, the row continues in the next source. Otherwise, each
    stream is cut for itself, and the tokens are left out (`drop`) or padded (`pad`).

    Args:
        lengths_by_source: Tokens of each stream of each source, such as [[10, 8], [5]].
        settings: Settings with the length of rows, and the tail.
    """
    if settings.tail == "carry":
        source_tokens = [sum(lengths) for lengths in lengths_by_source]  # [18, 5]
        return _cut_carrying(source_tokens, settings.row_tokens)
    return _cut_separately(lengths_by_source, settings.row_tokens, settings.tail)


def _cut_carrying(source_tokens: Sequence[int], row_tokens: int) -> _CutStreams:
    """Cut several texts into rows of one length, as if they were one long text.

    A row belongs to the text, here called source, in which it begins. For example, sources of 6 and
    7 tokens are cut into rows of 4:

        tokens of both    0 1 2 3   4 5 6 7   8 9 10 11   12
        source            0 0 0 0   0 0 1 1   1 1 1  1    1
        row               0         1         2           (token 12 is in no row: it fills none)

                                                      source 0    source 1
        rows that begin in it (row_counts)            2           1
        its first row begins at its token (starts)    0           2      (token 8 of both)
        tokens of its rows (tokens_in_rows)           8           4
        its tokens that are in any row (tokens_used)  6           6      (all but token 12)

    Args:
        source_tokens: Tokens of each source: [6, 7] in the example, and so on in the comments.
        row_tokens: Tokens of a row: 4.
    """
    # Where the sources begin, and the last one ends, shape (n_sources + 1,).
    source_bounds = _running_sum(source_tokens)  # [0, 6, 13]

    # The first row that begins in each source, and at the end the number of all rows.
    first_rows = _first_rows_from(source_bounds, row_tokens)  # (n_sources + 1,) [0, 2, 3]
    row_counts = np.diff(first_rows)  # (n_sources,) [2, 1]

    # At which tokens these rows begin, and the last row ends.
    row_bounds = first_rows * row_tokens  # (n_sources + 1,) [0, 8, 12]
    end_of_rows = row_bounds[-1]  # 12
    return _CutStreams(
        row_counts=row_counts,
        starts=row_bounds[:-1] - source_bounds[:-1],  # [0, 8] - [0, 6] = [0, 2]
        tokens_in_rows=row_counts * row_tokens,  # [8, 4]
        tokens_used=np.diff(np.minimum(source_bounds, end_of_rows)),  # [6, 12 - 6] = [6, 6]
    )


def _first_rows_from(positions: NDArray[np.int64], row_tokens: int) -> NDArray[np.int64]:
    """Return the first row that begins at or after each of some positions in a text.

    The text is cut into full rows. For example, 13 tokens give three rows of 4 tokens, which begin
    at 0, 4 and 8; the last token is in no row:

        position                                0    6    8    13
        row that begins there or later          0    2    2    3     (3: there is no such row)

    Args:
        positions: Ascending positions, the last of which is the end of the text, shape (n,).
        row_tokens: Tokens of a row.

    Returns:
        Numbers of rows, or the number of all rows if none begins there or later, shape (n,).
    """
    # Row k begins at k * row_tokens. So divide by row_tokens and round up; position 6 gives 2.
    rounded_up = -(-positions // row_tokens)  # [0, 2, 2, 4]

    # 13 tokens would give 4, as if the last token began a row. But there are only 3 full rows.
    n_rows = positions[-1] // row_tokens  # 3
    first_rows: NDArray[np.int64] = np.minimum(rounded_up, n_rows)
    return first_rows


def _cut_separately(
    lengths_by_source: Sequence[Sequence[int]],
    row_tokens: int,
    tail: PlanTail,
) -> _CutStreams:
    """Cut each text for itself into rows of one length, so that no row has tokens of two texts.

    The texts are called streams; a source has one or more, such as its files. What happens to the
    tokens after the last full row depends on `tail`. For rows of 4 tokens:

        tail          a stream of 10 tokens                a stream of 8 tokens
        drop          2 rows; 2 tokens are left out        2 rows
        pad           3 rows; the last one has 2 pads      2 rows
        pad_always    3 rows; the last one has 2 pads      3 rows; the last one has 4 pads

    Args:
        lengths_by_source: Tokens of each stream of each source, such as [[10, 8]].
        row_tokens: Tokens of a row.
        tail: One of the three.
    """
    # Put the streams of all sources into one array, shape (n_streams,).
    stream_tokens = np.fromiter(chain.from_iterable(lengths_by_source), dtype=np.int64)  # [10, 8]
    full_rows = stream_tokens // row_tokens  # [2, 2]
    if tail == "drop":
        row_counts = full_rows
        tokens_used = full_rows * row_tokens  # [8, 8]
    else:
        has_padded_row = _has_padded_row(stream_tokens, row_tokens, tail)  # pad: [True, False]
        row_counts = full_rows + has_padded_row  # pad: [3, 2]
        tokens_used = stream_tokens  # [10, 8]

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
    """Return, for each text, whether padding is added to it when it is cut into rows.

    Rows have one length. With the setting `pad`, the last row is filled up if the text ends before
    the row is full. With `pad_always`, every text ends in padding: if its last row is full, a row
    of nothing but padding follows. For rows of 4 tokens:

        tokens of the text        10       8
        padded row, pad           yes      no
        padded row, pad_always    yes      yes

    Args:
        stream_tokens: Tokens of each text (stream), shape (n_streams,).
        row_tokens: Tokens of a row.
        tail: `pad` or `pad_always`.

    Returns:
        Shape (n_streams,).
    """
    if tail == "pad_always":
        return np.ones(len(stream_tokens), dtype=np.bool_)
    tokens_after_full_rows = stream_tokens % row_tokens  # [2, 0]
    return tokens_after_full_rows > 0


def _starts_in_sources(lengths_by_source: Sequence[Sequence[int]]) -> NDArray[np.int64]:
    """Return where each stream (such as a file) begins in its source, counted in tokens.

    For example, [[10, 8, 5], [7]] are a source of three files, and one of a single file. The result
    is [0, 10, 18, 0].

    Args:
        lengths_by_source: Tokens of each stream of each source.

    Returns:
        Shape (n_streams,), for the streams of all sources.
    """
    starts: list[int] = []
    for stream_lengths in lengths_by_source:
        starts_and_end = _running_sum(stream_lengths)  # [0, 10, 18, 23]
        starts.extend(starts_and_end[:-1].tolist())
    return np.array(starts, dtype=np.int64)


def _counts_of(
    name: str,
    tokens: int,
    streams: _CutStreams,
    settings: PlanSettings,
) -> SourceContexts:
    """Count the training samples and tokens that one source of text gives.

    The text is cut into rows of one length. A sample (context) is one occurrence of a row. The user
    sets how often the source is read. For example, a source of 10 rows that is read 2.3 times:

        repeats      2     every row occurs twice
        n_chosen     3     this many rows, which are chosen at random, occur once more
        contexts     23    = 2 * 10 + 3

    These are the counts of tokens:

        tokens            of the source itself
        tokens_used       in all samples, so that a row that occurs twice counts twice
        pad_tokens        padding in all samples
        tokens_dropped    of the source that are in no row
        tokens_carried    in rows that begin in an earlier source

    Args:
        name: Name of the source.
        tokens: Its tokens.
        streams: How it was cut. A stream is a part that was cut for itself, such as a file.
        settings: Settings with the frequency (2.3) of each source, the length of rows and the seed.
    """
    frequency = (settings.frequencies or {}).get(name, 1.0)  # 2.3
    rows = int(streams.row_counts.sum())  # 10
    occurrences = sampled_contexts(rows, frequency)
    contexts = occurrences.repeats * rows + occurrences.n_chosen  # 2 * 10 + 3

    # The last row of each stream may be padded. The padding occurs as often as the row, so it
    # matters whether this is one of the chosen rows.
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
    """Return which rows of a source of text occur in one more training sample than the others.

    If a source of 10 rows is read 2.3 times, all rows occur twice, and 3 rows, which are chosen at
    random, a third time. Every source makes its own choice.

    Args:
        counts: Counts of the source: 10 rows, of which 3 are chosen.
        seed: Seed of the whole shuffle.
    """
    return Choice(counts.rows, counts.chosen, choice_seed(seed, counts.name))


def _pad_tokens_of(streams: _CutStreams, row_tokens: int, repeats: int, choice: Choice) -> int:
    """Return how many pad tokens there are in all training samples of a source of text.

    The source consists of streams, such as its files. Each stream is cut into rows, and its last
    row is filled up with padding. A sample is one occurrence of a row. For rows of 4 tokens that
    occur twice, of which row 2 was chosen to occur once more:

        stream                            0          1
        its tokens                        10         8
        its rows                          0, 1, 2    3, 4
        pad tokens in the last row        2          0
        occurrences of the last row       3          2
        pad tokens in all                 6          0     (6 together)

    Args:
        streams: The rows of the streams of the source.
        row_tokens: Tokens of a row, with padding.
        repeats: How often every row occurs.
        choice: Which rows were chosen to occur once more.
    """
    pad_tokens = streams.row_counts * row_tokens - streams.tokens_in_rows  # (n_streams,) [2, 0]
    padded_streams = np.flatnonzero(pad_tokens)  # [0]

    # Rows are numbered through all streams. So if there are 3 rows up to the end of a stream, its
    # last row is row 2.
    rows_until_end = np.cumsum(streams.row_counts)[padded_streams]  # (n_padded_streams,) [3]
    last_rows = rows_until_end - 1  # [2]
    occurrences = repeats + choice.is_chosen(last_rows)  # [2 + True] = [3]
    return int((pad_tokens[padded_streams] * occurrences).sum())  # 2 * 3


def _tokens_carried(streams: _CutStreams, tail: PlanTail) -> int:
    """Return how many tokens of a source are in training samples that begin in an earlier source.

    This occurs only with the setting `tail: carry`, which cuts all sources as if they were one
    text. For example, with samples of 8 tokens:

        source     tokens     samples that begin in it
        web        11         tokens 0 to 7; tokens 8 to 10 with the first 5 tokens of code
        code       20         tokens 5 to 12; the other 7 tokens do not fill a sample

    The result is 0 for web and 5 for code: so many tokens are before its own first sample.

    Args:
        streams: How the source is cut into samples. With `carry`, it is a single stream.
        tail: The setting.
    """
    if tail != "carry":
        return 0
    # All tokens before the source's own first sample are in earlier samples: 5 for code.
    tokens_before_first_sample = int(streams.starts[0])

    # There is one exception: if code had only 3 tokens, and were the last source, the sample that
    # begins in web would not be filled, and not exist. Then none of code's tokens are used.
    tokens_used = int(streams.tokens_used.sum())
    return max(0, min(tokens_before_first_sample, tokens_used))


def _configured_streams(name: str, settings: PlanSettings) -> tuple[int, ...] | None:
    """Return how many tokens each stream of a source of text has, if the settings say so.

    A stream is a text that is cut into samples for itself, such as a file. For example, (6, 4) are
    two files of 6 and 4 tokens.

    Args:
        name: Name of the source.
        settings: The settings.

    Returns:
        None if the settings do not divide the source. It is a single stream then.
    """
    stream_lengths = (settings.streams or {}).get(name)
    if stream_lengths is None:
        return None
    return tuple(int(length) for length in stream_lengths)


def _running_sum(counts: Sequence[int]) -> NDArray[np.int64]:
    """Return the sum of the counts before each one, and at the end of all: [3, 2] gives [0, 3, 5].

    The result has the shape (n_counts + 1,).
    """
    return np.cumsum([0, *counts], dtype=np.int64)


def _stream_lengths(
    sources: Sequence[tuple[str, int]],
    settings: PlanSettings,
) -> list[tuple[int, ...]]:
    """Return how many tokens each stream of each source of text has.

    A stream is a text that is cut into training samples for itself, such as a file. A source has a
    single stream, with all its tokens, unless the settings divide it:

        source           tokens    streams in the settings    result
        web              10        6, 4                       (6, 4)
        code             8                                    (8,)

    Args:
        sources: Name and number of tokens of each source.
        settings: Settings with the streams of some of the sources.

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
    """Check that the streams of each source of text have as many tokens as the source.

    A stream is a text that is cut into samples for itself, such as a file. If web has 10 tokens:

        {"web": [6, 4]}      correct
        {"web": [6, 3]}      an error: one token is missing

    Args:
        streams: Source → tokens of each of its streams.
        tokens_by_source: Source → its tokens.

    Raises:
        ConfigError: The streams of a source have more or fewer tokens.
    """
    for name, lengths in streams.items():
        n_tokens = tokens_by_source.get(name)
        if n_tokens != sum(lengths):
            raise ConfigError(
                "the streams are not all of their source",
                where=f"source {name!r}",
                found=f"{len(lengths)} streams, {sum(lengths)} tokens",
                expected=f"{n_tokens} tokens",
            )
