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

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import ConfigError, SampleIndexError
from nanoset_core.rounding import ceil_division
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
    tokens_carried: NDArray[np.int64]
    """Tokens of each stream that are in a row which begins in an earlier stream."""

    def of_streams(self, streams: NDArray[np.int64]) -> _CutStreams:
        """Return the rows of some of the streams, by the numbers of the streams."""
        return _CutStreams(
            row_counts=self.row_counts[streams],
            starts=self.starts[streams],
            tokens_in_rows=self.tokens_in_rows[streams],
            tokens_used=self.tokens_used[streams],
            tokens_carried=self.tokens_carried[streams],
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
        first_streams = _running_sum(streams_per_source)  # (n_sources + 1,)
        self.source_of_stream = np.repeat(np.arange(len(sources)), streams_per_source)
        """Number of the source of each stream; shape (n_streams,)."""
        self.starts = cut.starts
        """First token of each stream's first row, within its source; shape (n_streams,)."""
        self.stops = cut.starts + cut.tokens_in_rows
        """Token within the source after the last one in the stream's rows; shape (n_streams,)."""
        self.first_rows = np.cumsum(cut.row_counts) - cut.row_counts
        """Number of each stream's first row, counted over all sources; shape (n_streams,)."""
        rows_before_stream = _running_sum(cut.row_counts.tolist())  # (n_streams + 1,)
        self.first_row_of_source = rows_before_stream[first_streams[:-1]]
        """Number of each source's first row, counted over all sources; shape (n_sources,)."""
        tokens_before_source = _running_sum([sum(lengths) for lengths in lengths_by_source])
        tokens_before = np.repeat(tokens_before_source[:-1], streams_per_source)  # (n_streams,)
        self.row_starts = tokens_before + self.starts
        """The same as `starts`, counted over all sources; shape (n_streams,), ascending."""
        self.row_stops = tokens_before + self.stops
        """The same as `stops`, counted over all sources; shape (n_streams,), ascending."""
        self.tokens_before_source = tokens_before_source
        """Tokens of the sources before each one, and at the end of all; shape (n_sources + 1,)."""

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
        """Count the training samples and tokens of each source of text.

        The files of a source (or what else is a stream of tokens) are each cut into rows. How often
        the user wants the source to be read decides how many samples the rows become:

            source    its streams    their rows    is read    samples
            web       0 and 1        4 and 6       2.3        23
            code      2              5             1          5

        Args:
            sources: Name and token count of each source.
            cut: The rows of all streams: those of the streams 0, 1 and 2 in the example.
        """
        counts: list[SourceContexts] = []
        for number, (name, n_tokens) in enumerate(sources):
            streams = np.flatnonzero(self.source_of_stream == number)  # [0, 1] for web
            rows_of_source = cut.of_streams(streams)
            counts.append(_counts_of(name, n_tokens, rows_of_source, self.settings))
        return tuple(counts)

    @property
    def contexts(self) -> int:
        """Number of contexts of all sources."""
        return int(self.first_contexts[-1])

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

        # Comments show context 5. All arrays have the shape (n_contexts,).
        sources = self.sources_of(contexts)  # 1

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

    def sources_of(self, contexts: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the source of each training sample (context).

        Samples are numbered source by source. If the sources start with the samples 0 and 900, the
        samples 12 and 950 are from the sources 0 and 1.

        Args:
            contexts: Numbers of the contexts, which must exist, shape (n_contexts,).

        Returns:
            Shape (n_contexts,).
        """
        n_sources_begun: NDArray[np.int64] = np.searchsorted(
            self.first_contexts, contexts, side="right"
        )
        return n_sources_begun - 1

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
        """Return which row of text each training sample is.

        Text is cut into rows of some tokens. A sample (context) is one occurrence of a row. Suppose
        that web has 2 rows and is read once, and that code has 2 rows and is read twice:

            source of the sample      web      code
            sample                    0   1    2   3   4   5
            row, within the source    0   1    0   1   0   1
            row, in all               0   1    2   3   2   3      (the result)

        Args:
            contexts: Numbers of the samples, shape (n_contexts,).
            sources: Number of the source of each sample, shape (n_contexts,).

        Returns:
            Rows, numbered over all sources, shape (n_contexts,).
        """
        numbers_in_source = contexts - self.first_contexts[sources]  # [0, 1, 0, 1, 2, 3]
        rows_in_source = self._rows_in_source(sources, numbers_in_source)  # [0, 1, 0, 1, 0, 1]
        first_rows = self.first_row_of_source[sources]  # [0, 0, 2, 2, 2, 2]
        return first_rows + rows_in_source

    def _rows_in_source(
        self,
        sources: NDArray[np.int64],
        numbers: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Return which row of its source each training sample is.

        A source of text is cut into rows. If it has 10 rows and is to be read 2.3 times, it gives
        23 samples: all rows in order, all of them again, and 3 rows that are chosen at random.

            sample of the source    0 ... 9       10 ... 19      20  21  22
            its row                 0 ... 9       0 ... 9        1   4   9
                                    first pass    second pass    chosen rows

        Args:
            sources: Number of the source of each sample, shape (n_samples,).
            numbers: Number of each sample, counted within its source, shape (n_samples,).

        Returns:
            Rows, counted within their source, shape (n_samples,).
        """
        rows = numbers % self.rows_per_pass[sources]  # in order in each pass: sample 14 is row 4
        after_passes = np.flatnonzero(numbers >= self.contexts_in_passes[sources])  # indices
        rows[after_passes] = self._chosen_rows(sources[after_passes], numbers[after_passes])
        return rows

    def _chosen_rows(
        self, sources: NDArray[np.int64], numbers: NDArray[np.int64]
    ) -> NDArray[np.int64]:
        """Return the rows of training samples that follow the last pass over their source.

        These are rows that are chosen at random, by each source on its own. For example, if sample
        20 is the first one after the passes, sample 21 is chosen row 1.

        Args:
            sources: Number of the source of each sample, shape (n_samples,).
            numbers: Number of each sample, counted within its source, shape (n_samples,).

        Returns:
            Rows, counted within their source, shape (n_samples,).
        """
        rows = np.empty(len(numbers), dtype=np.int64)
        for source in np.unique(sources):
            is_in_source = sources == source
            choice_numbers = numbers[is_in_source] - self.contexts_in_passes[source]  # [21 - 20]
            rows[is_in_source] = self.choices[source].rows_of(choice_numbers)
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
        if start >= stop:
            return _NO_CONTEXTS

        # Count tokens over all sources, since a row of an earlier source may contain some of them.
        tokens_before = int(self.tokens_before_source[source])
        first_token = tokens_before + start
        stop_token = tokens_before + stop

        # A stream is a part of a source that is cut separately, such as a file. Some of the tokens
        # are in its rows if these stop after the first token, and start before the stop of them.
        streams = np.flatnonzero((self.row_stops > first_token) & (self.row_starts < stop_token))

        # Find these rows, and all samples of each row.
        contexts = [_NO_CONTEXTS]
        for stream in streams.tolist():
            rows = self._rows_with_tokens(stream, first_token, stop_token)
            source_of_rows = int(self.source_of_stream[stream])
            rows_in_source = rows - self.first_row_of_source[source_of_rows]
            contexts.append(self._contexts_of(source_of_rows, rows_in_source))
        return np.concatenate(contexts)

    def _rows_with_tokens(
        self, stream: int, first_token: int, stop_token: int
    ) -> NDArray[np.int64]:
        """Return which rows of a stream, such as a file, contain some tokens.

        Tokens and rows are counted over all streams. For example, with rows of 4 tokens:

            row of the stream    0       1        2
            row in all           6       7        8
            its tokens           8-11    12-15    16-19

        The tokens 5 to 12 are in the rows 6 and 7, and in an earlier stream.

        Args:
            stream: Number of the stream.
            first_token: The first token, 5.
            stop_token: The token after the last one, 13.

        Returns:
            Numbers of the rows, counted over all streams, shape (n_rows,).
        """
        # Leave out tokens of other streams: 8 to 12 remain. Count from the first row: 0 to 4.
        stream_start = int(self.row_starts[stream])  # 8
        stream_stop = int(self.row_stops[stream])  # 20
        start = max(first_token, stream_start) - stream_start  # 0
        stop = min(stop_token, stream_stop) - stream_start  # 5

        row_tokens = self.settings.row_tokens
        rows_of_stream = np.arange(start // row_tokens, ceil_division(stop, row_tokens))  # [0, 1]
        rows: NDArray[np.int64] = self.first_rows[stream] + rows_of_stream  # [6, 7]
        return rows

    def _contexts_of(self, source: int, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return all training samples that hold one of some rows of a source of text.

        A sample (context) is one occurrence of a row. A source of 10 rows that is read 2.3 times
        gives 23 samples: two passes over all rows, and then 3 rows that were chosen at random.

            samples of the source    0 ... 9    10 ... 19    20  21  22
            their rows               0 ... 9     0 ...  9     1   4   9

        Row 4 is in the samples 4, 14 and 21, and row 5 in 5 and 15.

        Args:
            source: Number of the source.
            rows: Numbers of the rows within the source, such as [4, 5]; shape (n_rows,).

        Returns:
            Numbers of the samples, counted over all sources, shape (n_contexts,).
        """
        contexts = []
        rows_per_pass = int(self.rows_per_pass[source])  # 10
        end_of_passes = int(self.contexts_in_passes[source])  # 20
        for start_of_pass in range(0, end_of_passes, rows_per_pass):  # 0 and 10
            contexts.append(start_of_pass + rows)  # [4, 5], and [14, 15]

        # Of the chosen rows 1, 4 and 9, row 4 is number 1. So it is sample 20 + 1.
        choice = self.choices[source]
        chosen_rows = rows[choice.is_chosen(rows)]  # [4], since 5 was not chosen
        contexts.append(end_of_passes + choice.numbers_of(chosen_rows))  # [21]
        return int(self.first_contexts[source]) + np.concatenate(contexts)

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
    """Cut the text of all sources into rows of one length, which become training samples.

    The setting `tail` says what happens to the tokens after the last full row. With `carry`, the
    row continues in the next source. Otherwise they are left out (`drop`), or padded (`pad`). Then
    each stream, which is a part of a source such as a file, is cut separately.

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

    The result, for the sources 0 and 1:

        row_counts        2    1     rows that begin in the source
        tokens_in_rows    8    4     tokens of these rows, also if they are of the next source
        starts            0    2     the source's own token with which its first row begins
        tokens_used       6    6     the source's own tokens that are in a row, whichever row it is
        tokens_carried    0    2     of these, tokens in a row of an earlier source: 6 and 7

    Args:
        source_tokens: Tokens of each source: [6, 7] in the example, and so on in the comments.
        row_tokens: Tokens of a row: 4.
    """
    # Where the sources start and stop, counted over all of them; (n_sources,) as all arrays here.
    lengths = np.array(source_tokens, dtype=np.int64)  # [6, 7]
    source_stops = np.cumsum(lengths)  # [6, 13]
    source_starts = source_stops - lengths  # [0, 6]

    # Rows begin at 0, 4, 8 and so on. Count those that begin before the start of each source, and
    # before its stop. A last row that would not be full does not count.
    n_rows = sum(source_tokens) // row_tokens  # 3 full rows in all
    rows_before_start = np.minimum(ceil_division(source_starts, row_tokens), n_rows)  # [0, 2]
    rows_before_stop = np.minimum(ceil_division(source_stops, row_tokens), n_rows)  # [2, 3]
    row_counts = rows_before_stop - rows_before_start  # [2, 1]

    # Where the first row of each source begins, counted from the start of the source.
    starts = rows_before_start * row_tokens - source_starts  # [0, 8] - [0, 6] = [0, 2]

    # The rows end at token 12. Of each source, the tokens before that are in a row. `clip` is for
    # sources that end before token 12 (all of their tokens are), or start after it (none is).
    end_of_rows = n_rows * row_tokens  # 12
    tokens_used = np.clip(end_of_rows - source_starts, 0, lengths)  # [6, 6]
    return _CutStreams(
        row_counts=row_counts,
        starts=starts,
        tokens_in_rows=row_counts * row_tokens,  # [8, 4]
        tokens_used=tokens_used,
        tokens_carried=np.clip(starts, 0, tokens_used),  # [0, 2]: those before its first row
    )


def _cut_separately(
    lengths_by_source: Sequence[Sequence[int]],
    row_tokens: int,
    tail: PlanTail,
) -> _CutStreams:
    """Cut each text for itself into rows of one length, so that no row has tokens of two texts.

    The texts are called streams; a source has one or more of them, such as its files. For example,
    a source of two streams, with 10 and 8 tokens, is cut into rows of 4:

        tail              drop      pad       pad_always
        row_counts        2    2    3    2    3    3
        tokens_in_rows    8    8    10   8    10   8     without padding
        starts            0    10   0    10   0    10    each stream begins with a row

    Args:
        lengths_by_source: Tokens of each stream of each source, such as [[10, 8]].
        row_tokens: Tokens of a row.
        tail: What to do with tokens that do not fill a row; see `_count_rows`.
    """
    # Put the streams of all sources into one array; (n_streams,) as all arrays here.
    stream_tokens = np.fromiter(chain.from_iterable(lengths_by_source), dtype=np.int64)  # [10, 8]
    row_counts = _count_rows(stream_tokens, row_tokens, tail)  # pad: [3, 2]
    tokens_in_rows = np.minimum(stream_tokens, row_counts * row_tokens)  # [10, 8], of [12, 8]
    return _CutStreams(
        row_counts=row_counts,
        starts=_starts_in_sources(lengths_by_source),
        tokens_in_rows=tokens_in_rows,
        # A row never continues in another stream, so the tokens in the rows are the stream's own.
        tokens_used=tokens_in_rows,
        tokens_carried=np.zeros_like(tokens_in_rows),
    )


def _count_rows(
    stream_tokens: NDArray[np.int64], row_tokens: int, tail: PlanTail
) -> NDArray[np.int64]:
    """Return into how many rows each text is cut, if no row has tokens of two texts.

    The last tokens of a text may not fill a row. With rows of 4 tokens:

        tail          a text of 10 tokens                  a text of 8 tokens
        drop          2 rows; 2 tokens are left out        2 rows
        pad           3 rows; the last one has 2 pads      2 rows
        pad_always    3 rows; the last one has 2 pads      3 rows; the last one has 4 pads

    Args:
        stream_tokens: Tokens of each text, shape (n_streams,).
        row_tokens: Tokens of a row.
        tail: One of the three.

    Returns:
        Shape (n_streams,).
    """
    full_rows = stream_tokens // row_tokens
    if tail == "drop":
        return full_rows
    if tail == "pad_always":
        return full_rows + 1
    return ceil_division(stream_tokens, row_tokens)


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
    pads_by_stream = streams.row_counts * settings.row_tokens - streams.tokens_in_rows
    last_rows = np.cumsum(streams.row_counts) - 1  # (n_streams,)
    is_padded = pads_by_stream > 0
    pad_tokens = _count_pads(
        pads_by_stream[is_padded], last_rows[is_padded], occurrences.repeats, choice
    )
    return SourceContexts(
        name=name,
        tokens=tokens,
        contexts=contexts,
        tokens_used=contexts * settings.row_tokens - pad_tokens,
        tokens_dropped=tokens - int(streams.tokens_used.sum()),
        pad_tokens=pad_tokens,
        rows=rows,
        frequency=frequency,
        tokens_carried=int(streams.tokens_carried.sum()),
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


def _count_pads(
    pads: NDArray[np.int64], padded_rows: NDArray[np.int64], repeats: int, choice: Choice
) -> int:
    """Return how many pad tokens there are in all training samples of a text.

    The text is cut into rows, some of which end in padding. A sample is one occurrence of a row.
    Every row occurs `repeats` times, and some rows that are chosen at random occur once more:

        padded row             2            14
        its pad tokens         3            1
        occurrences            2 + 1        2          (`repeats` is 2, and row 2 was chosen)
        pad tokens in all      9            2          the result is 11

    Args:
        pads: Pad tokens of each padded row, shape (n_padded_rows,).
        padded_rows: Numbers of these rows, shape (n_padded_rows,).
        repeats: How often every row occurs.
        choice: Which rows were chosen to occur once more.
    """
    occurrences = repeats + choice.is_chosen(padded_rows)  # (n_padded_rows,) [3, 2]
    return int((pads * occurrences).sum())


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
        ConfigError: Two sources have one name; or the streams of a source have more or fewer tokens
            than the source, or are several although the tail is `carry`.
    """
    _check_names_differ([name for name, _ in sources])
    configured_streams = settings.streams or {}
    _check_streams(configured_streams, dict(sources), settings.tail)

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
    tail: PlanTail,
) -> None:
    """Check that the streams of each source of text have as many tokens as the source.

    A stream is a text that is cut into samples for itself, such as a file. If web has 10 tokens:

        {"web": [6, 4]}      correct, unless the tail is `carry`, which cuts no text for itself
        {"web": [6, 3]}      an error: one token is missing

    Args:
        streams: Source → tokens of each of its streams.
        tokens_by_source: Source → its tokens.
        tail: What happens to the tokens at the end of a stream.

    Raises:
        ConfigError: The streams of a source have more or fewer tokens, or cannot be cut separately.
    """
    for name, lengths in streams.items():
        if tail == "carry" and len(lengths) > 1:
            raise ConfigError(
                "the streams of a source cannot be cut separately if rows continue in the next one",
                where=f"source {name!r}",
                found=f"{len(lengths)} streams, tail 'carry'",
                expected="a single stream, or another tail",
            )
        n_tokens = tokens_by_source.get(name)
        if n_tokens != sum(lengths):
            raise ConfigError(
                "the streams are not all of their source",
                where=f"source {name!r}",
                found=f"{len(lengths)} streams, {sum(lengths)} tokens",
                expected=f"{n_tokens} tokens",
            )
