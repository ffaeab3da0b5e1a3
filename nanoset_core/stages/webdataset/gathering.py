"""Gather the tokens of contexts from the sources, reading each file from start to end.

A context is a row of consecutive tokens of a source, such as a corpus. Contexts are requested in
shuffled order, in which reading them would jump through the files. So they are sorted by source and
position first, and each row is then written to its place in an array:

    requested    context 7      context 0      context 5
    read         context 0      context 5      context 7
    written to   row 1          row 2          row 0

Rows at the end of a source may be padded, or continue in the next source.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.webdataset.contexts import ContextTable
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES
from nanoset_core.stages.webdataset.sources import STORED_ROW_BYTES, TokenSource, common_dtype
from nanoset_core.storage.access import FileAccess

MAX_KEPT_BYTES = 64 << 20
"""Bytes of downloaded tokens that stay on the disk for the next tars, if the user sets no limit."""
_GATHERED_BYTES = 64 << 20
"""Bytes of rows gathered at once from a store, enough for several requests at the same time."""
_COPY_BYTES = 1 << 20
"""Bytes of rows copied at once, few enough to stay in the processor's cache."""


def gather(
    sources: Sequence[TokenSource],
    table: ContextTable,
    contexts: NDArray[np.int64],
    out: NDArray[np.integer[Any]] | None = None,
    places: NDArray[np.int64] | None = None,
) -> NDArray[np.integer[Any]]:
    """Return the tokens of some training samples, one sample a row.

    The tokens of each sample (context) are somewhere in a source of text, such as web. They are
    requested in shuffled order, but read in the order in which they are in the sources, which is
    faster:

        context      web, token 8    code, token 0    web, token 4
        is read      second          third            first
        row          0               1                2

    A row may also begin with a BOS token, and end with padding. In addition to the result, this
    needs 60 bytes of memory for each context.

    Args:
        sources: The tokens of each source.
        table: Says where the tokens of each context are.
        contexts: Numbers of the contexts, shape (n_contexts,).
        out: Where to write the tokens: an array of shape (n_contexts, sequence_length) whose type
            holds the tokens of all sources. None: a new array.
        places: Row of `out` for each context, all different, shape (n_contexts,); `out` may then
            have more rows than there are contexts. None: rows are in the order of the contexts.

    Returns:
        `out`.

    Raises:
        InputError: A token is not in the vocabulary.
    """
    settings = table.settings
    if out is None:
        out = np.empty((len(contexts), settings.sequence_length), dtype=common_dtype(sources))

    # Sort by source, and by the first token within it.
    located = table.locate(contexts)
    order = np.lexsort((located.starts, located.sources))  # (n_contexts,) [2, 0, 1]
    if places is None:
        targets = order
    else:
        targets = places[order]

    if settings.bos_id is not None:
        out[targets, 0] = settings.bos_id
    rows = out[:, settings.sequence_length - settings.row_tokens :]  # all columns but the BOS
    for number, run in _runs_of_sources(located.sources[order], len(sources)):
        copier = _RowCopier(sources[number:], settings.pad_id or 0, rows)
        copier.copy(
            starts=located.starts[order[run]],
            lengths=located.lengths[order[run]],
            targets=targets[run],
        )
    return out


def _runs_of_sources(sources: NDArray[np.int64], n_sources: int) -> list[tuple[int, slice]]:
    """Return where each number is in a sorted array: for [0, 0, 2], 0 is in 0:2, and 2 in 2:3.

    Here these are the sources of text from which rows of tokens are read, so that all rows of one
    source can be read together.

    Args:
        sources: Numbers of sources, ascending, shape (n_contexts,).
        n_sources: Number of all sources.

    Returns:
        (number, slice) for each number that occurs.
    """
    # The index of the first entry of each source, and at the end the number of all entries.
    bounds = np.searchsorted(sources, np.arange(n_sources + 1))  # (n_sources + 1,) [0, 2, 2, 3]
    occurring = np.flatnonzero(np.diff(bounds)).tolist()  # [0, 2]
    return [(number, slice(bounds[number], bounds[number + 1])) for number in occurring]


class _RowParts(NamedTuple):
    """Parts of rows in one source, and where they are written. Arrays have the shape (n_rows,)."""

    starts: NDArray[np.int64]
    """First token of each row within the source."""
    counts: NDArray[np.int64]
    """Tokens of each row that are in the source."""
    targets: NDArray[np.int64]
    """Row of the array into which each row is copied."""

    def select(self, selection: slice | NDArray[np.bool_]) -> _RowParts:
        """Return some of the rows."""
        return _RowParts(
            starts=self.starts[selection],
            counts=self.counts[selection],
            targets=self.targets[selection],
        )


@dataclass(frozen=True, slots=True)
class _RowCopier:
    """Copies the rows that begin in one source to their places in an array.

    A row consists of `row_tokens` consecutive tokens, or fewer, which are padded. It may continue
    in the next sources.
    """

    sources: Sequence[TokenSource]
    """The source, and those after it, in which rows continue with the tail `carry`."""
    pad_id: int
    """Id that rows are padded with."""
    rows: NDArray[np.integer[Any]]
    """Array into which the rows are copied, shape (any, row_tokens)."""

    @property
    def source(self) -> TokenSource:
        """The source in which the rows begin."""
        return self.sources[0]

    @property
    def row_tokens(self) -> int:
        """Tokens of a row, with padding."""
        return int(self.rows.shape[1])

    def copy(
        self,
        starts: NDArray[np.int64],
        lengths: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> None:
        """Copy rows of tokens from a source of text into an array. There are three kinds of rows.

        Suppose that the source has 10 tokens, and a row of the array 4:

            kind                       whole      padded               continued in the next source
            starts at token            0          6                    8
            tokens without padding     4          3                    4
            tokens in this source      4          3                    2
            content of the row         0 1 2 3    6 7 8 and padding    8 9, and 2 of the next source

        All arguments have the shape (n_rows,).

        Args:
            starts: First token of each row within the source, ascending.
            lengths: Tokens of each row without padding: 4, 3 and 4.
            targets: Row of the array into which each row is copied.
        """
        # How many tokens of each row are in this source: 4, 3 and 2.
        tokens_after_start = self.source.count - starts  # [10, 4, 2]
        counts = np.minimum(tokens_after_start, lengths)
        parts = _RowParts(starts, counts, targets)

        # There is faster code for whole rows, if the source is a file whose tokens are read in
        # their order. (Or it is a view, which is a selection of sequences of a file.)
        if self.source.stream is None:
            self.source.prefetch(starts, starts + counts)
            is_whole = counts == self.row_tokens
            self._copy_whole_rows(starts[is_whole], targets[is_whole])
            parts = parts.select(~is_whole)

        # The other rows: copy the tokens of this source, and fill the rows up with padding.
        self._copy_in_chunks(parts)

        # That was wrong for the third kind, which needs the tokens of the next source instead of
        # the padding. There are few such rows, so they are simply copied again.
        continues = counts < lengths
        self._copy_carried_rows(starts[continues], targets[continues])

    def _copy_carried_rows(self, starts: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows that begin in one text (source) and continue in the next ones, into an array.

        With rows of 4 tokens, and 10 tokens in this source, a row that starts at token 8 has its
        tokens 8 and 9, and the tokens 0 and 1 of the next source. There are few such rows, so they
        are copied one by one.

        Args:
            starts: First token of each row within this source, shape (n_rows,).
            targets: Row of the array into which each row is copied, shape (n_rows,).
        """
        for start, target in zip(starts.tolist(), targets.tolist(), strict=True):
            self.rows[target] = _carried_row(self.sources, start, self.row_tokens)

    def _copy_whole_rows(self, starts: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows of consecutive tokens from a file into an array.

        With rows of 4 tokens, the starts [0, 8] and the targets [5, 2], the tokens 0 to 3 go to row
        5 of the array, and the tokens 8 to 11 to row 2. The tokens are checked on the way, since a
        damaged file must not become training data.

        Args:
            starts: First token of each row in the file, ascending, shape (n_rows,).
            targets: Row of the array into which each row is copied, shape (n_rows,).
        """
        if len(starts) == 0:
            return
        # A chunk has a few rows, which stay in the processor's cache.
        rows_per_chunk = _rows_to_copy_at_once(self.row_tokens, self.source.tokens.itemsize)
        n_copied = 0
        for chunk in _chunks_of_rows(self.source.tokens, starts, self.row_tokens, rows_per_chunk):
            chunk_starts = starts[n_copied : n_copied + len(chunk)]
            chunk_targets = targets[n_copied : n_copied + len(chunk)]

            # `position_of(7)` returns where token 7 of the chunk is in the file, for an error.
            position_of = partial(_position_in_rows, chunk_starts, self.row_tokens)
            self.source.check(chunk, position_of=position_of)
            self.rows[chunk_targets] = chunk
            n_copied += len(chunk)

    def _copy_in_chunks(self, parts: _RowParts) -> None:
        """Copy rows of tokens into an array, a few at a time, and fill short rows up with padding.

        A few rows stay in the processor's cache while they are read, checked and written.

        Args:
            parts: Where the tokens of each row are in the source, and where they are written.
        """
        rows_per_chunk = _rows_to_copy_at_once(self.row_tokens, self.rows.itemsize)
        for chunk_start in range(0, len(parts.starts), rows_per_chunk):
            chunk = slice(chunk_start, chunk_start + rows_per_chunk)
            self._copy_parts(parts.select(chunk))

    def _copy_parts(self, parts: _RowParts) -> None:
        """Copy rows of tokens from a source into an array, and fill short rows up with padding.

        If rows have 4 tokens, one of 3 tokens becomes `[5, 9, 2, pad]`. The tokens are checked on
        the way, since a damaged file must not become training data.

        Args:
            parts: Where the tokens of each row are in the source, how many there are, and which row
                of the array they are copied into.
        """
        starts = parts.starts
        counts = parts.counts
        tokens = self.source.read(starts, counts)  # of all rows, concatenated: (n_tokens,)

        # `position_of(7)` returns where the 7th of these tokens is in the source, for an error.
        position_of = partial(_position_in_ranges, starts, counts)
        self.source.check(tokens, position_of=position_of)

        if (counts == self.row_tokens).all():
            self.rows[parts.targets] = tokens.reshape(-1, self.row_tokens)
        else:
            self._write_padded(tokens, counts, parts.targets)

    def _write_padded(
        self,
        tokens: NDArray[np.integer[Any]],
        counts: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> None:
        """Write rows of different lengths into an array, and fill them up with padding.

        For example, rows of the array have 4 tokens. Two rows of 3 and 1 tokens:

            tokens             5  9  2  7            row 0:  5  9  2  pad
            their row          0  0  0  1            row 1:  7  pad  pad  pad
            their column       0  1  2  0

        Args:
            tokens: Tokens of all rows, concatenated, shape (n_tokens,): [5, 9, 2, 7].
            counts: How many of them each row has, shape (n_rows,): [3, 1].
            targets: Row of the array into which each row is written, shape (n_rows,): [0, 1].
        """
        # Fill the rows with padding, and overwrite it with the tokens.
        self.rows[targets] = self.pad_id
        row_of_token = np.repeat(targets, counts)  # (n_tokens,) [0, 0, 0, 1]
        column_of_token = _numbers_within_groups(counts)  # (n_tokens,) [0, 1, 2, 0]
        self.rows[row_of_token, column_of_token] = tokens


def _rows_to_copy_at_once(row_tokens: int, itemsize: int) -> int:
    """Return how many rows of tokens, at least one, stay in the processor's cache of _COPY_BYTES.

    In 1 MiB, that are 255 rows of 2,049 tokens of 2 bytes.

    Args:
        row_tokens: Tokens of a row.
        itemsize: Bytes of a token.
    """
    return max(1, _COPY_BYTES // (row_tokens * itemsize))


def _numbers_within_groups(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the members of each group from 0: groups of 2 and 3 members give 0 1, 0 1 2.

    Args:
        counts: Members of each group, shape (n_groups,).

    Returns:
        Shape (n_members,).
    """
    group_stops = np.cumsum(counts)  # (n_groups,) [2, 5]
    group_starts = group_stops - counts  # (n_groups,) [0, 2]
    n_members = int(counts.sum())

    # Number all members from 0 to 4, and subtract the start of their group: 0 0, 2 2 2.
    return np.arange(n_members) - np.repeat(group_starts, counts)


def _chunks_of_rows(
    tokens: NDArray[np.integer[Any]],
    starts: NDArray[np.int64],
    row_tokens: int,
    rows_per_chunk: int,
) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield rows of consecutive tokens of a file, a few at a time.

    Usually, a file is cut into rows from some token on. Then all tokens from there on are a matrix,
    whose rows are copied faster than rows that start anywhere. For rows of 4 tokens:

        requested rows start at    rows of the matrix start at    requested rows of the matrix
        2, 6, 14                   2, 6, 10, 14, ...              0, 1 and 3
        0, 6                       (there is no such matrix, since 6 - 0 is no multiple of 4)

    The second case can occur if a row continues in another file.

    Args:
        tokens: All tokens of the file, shape (n_tokens,).
        starts: First token of each row, ascending, at least one, shape (n_rows,).
        row_tokens: Tokens of a row.
        rows_per_chunk: Greatest number of rows in a chunk.

    Returns:
        Chunks of shape (at most rows_per_chunk, row_tokens). Use each before the next one is
        requested, which may overwrite it.
    """
    offset = int(starts[0]) % row_tokens  # first token of the matrix, 2
    are_of_one_matrix = bool((starts % row_tokens == offset).all())
    if not are_of_one_matrix:
        return _chunks_of_windows(tokens, starts, row_tokens, rows_per_chunk)

    # The tokens at the end that do not fill a row are not in the matrix.
    n_rows = (len(tokens) - offset) // row_tokens
    matrix = tokens[offset : offset + n_rows * row_tokens].reshape(n_rows, row_tokens)
    numbers = (starts - offset) // row_tokens  # (n_rows,) [0, 1, 3]
    return _chunks_of_matrix(matrix, numbers, rows_per_chunk)


def _chunks_of_matrix(
    matrix: NDArray[np.integer[Any]],
    numbers: NDArray[np.int64],
    rows_per_chunk: int,
) -> Iterator[NDArray[np.integer[Any]]]:
    """Copy some rows of a large matrix, a few at a time, into a small buffer that is used again.

    The buffer stays in the processor's cache, so that the caller can work on each chunk quickly.
    With at most 2 rows in a chunk, the numbers [0, 1, 3] give the rows 0 and 1, then row 3.

    Args:
        matrix: Shape (n, row_tokens).
        numbers: Numbers of the rows, all valid, shape (n_rows,).
        rows_per_chunk: Greatest number of rows in a chunk.

    Yields:
        Chunks of rows. Each is overwritten when the next one is requested.
    """
    buffer_rows = min(rows_per_chunk, len(numbers))
    buffer = np.empty((buffer_rows, matrix.shape[1]), dtype=matrix.dtype)
    for chunk_start in range(0, len(numbers), rows_per_chunk):
        chunk_numbers = numbers[chunk_start : chunk_start + rows_per_chunk]
        chunk = buffer[: len(chunk_numbers)]
        # "clip" would change numbers outside the matrix, of which there are none. With the default
        # mode, numpy would copy through a second buffer.
        np.take(matrix, chunk_numbers, axis=0, out=chunk, mode="clip")
        yield chunk


def _chunks_of_windows(
    tokens: NDArray[np.integer[Any]],
    starts: NDArray[np.int64],
    row_tokens: int,
    rows_per_chunk: int,
) -> Iterator[NDArray[np.integer[Any]]]:
    """Copy rows of consecutive tokens, which may start at any token, a few at a time.

    For the tokens 5 9 2 7 1 and rows of 3 tokens, the starts [0, 2] give the rows 5 9 2 and 2 7 1.

    Args:
        tokens: Shape (n_tokens,).
        starts: First token of each row, shape (n_rows,).
        row_tokens: Tokens of a row.
        rows_per_chunk: Greatest number of rows in a chunk.

    Yields:
        Chunks of shape (at most rows_per_chunk, row_tokens).
    """
    # All possible rows, without copying them: row k starts at token k. (n_starts, row_tokens)
    windows = np.lib.stride_tricks.sliding_window_view(tokens, row_tokens)
    for chunk_start in range(0, len(starts), rows_per_chunk):
        chunk_starts = starts[chunk_start : chunk_start + rows_per_chunk]
        yield windows[chunk_starts]


def _position_in_ranges(starts: NDArray[np.int64], counts: NDArray[np.int64], number: int) -> int:
    """Return which position of a text the n-th of some tokens comes from.

    The tokens were copied from several ranges of the text. For the ranges [10, 12) and [50, 53):

        number of the token        0     1     2     3     4
        its position in the text   10    11    50    51    52

    If token 3 is wrong, an error can say that it is at position 51.

    Args:
        starts: First position of each range, shape (n_ranges,): [10, 50].
        counts: Tokens of each range, shape (n_ranges,): [2, 3].
        number: Number of the token, from 0.
    """
    stops = np.cumsum(counts)  # (n_ranges,) [2, 5]: how many tokens there are up to each end
    # The token is in the first range that ends after it. Its index is how many ranges end before.
    index = int(np.searchsorted(stops, number, side="right"))  # 1 for number 3
    first_number = stops[index] - counts[index]  # 5 - 3 = 2
    return int(starts[index] + number - first_number)  # 50 + 3 - 2


def _position_in_rows(starts: NDArray[np.int64], row_tokens: int, number: int) -> int:
    """Return which position of a text the n-th token of some rows comes from.

    Rows of 4 tokens were copied from the positions 8 and 20 of the text. Their tokens are numbered
    0 to 7. Token 5 is token 1 of the second row, so it is at position 21.

    Args:
        starts: Position of the first token of each row, shape (n_rows,): [8, 20].
        row_tokens: Tokens of a row: 4.
        number: Number of the token: 5.
    """
    row = number // row_tokens  # 1
    number_in_row = number % row_tokens  # 1
    return int(starts[row]) + number_in_row


def _carried_row(
    sources: Sequence[TokenSource],
    start: int,
    row_tokens: int,
) -> NDArray[np.integer[Any]]:
    """Return the tokens of a training sample that begins in one text and continues in others.

    For example, a sample of 8 tokens starts at token 7 of web, which has 10 tokens:

        text (source)        web         news        code
        its tokens           0-9         0-1         0-99
        in the sample        7-9         0-1         0-2

    Args:
        sources: The texts, in order, from the one in which the sample begins.
        start: First token of the sample within the first text.
        row_tokens: Tokens of the sample.
    """
    tokens_by_source: list[NDArray[np.integer[Any]]] = []
    n_missing = row_tokens  # 8, then 5, then 3
    for source in sources:
        length = min(n_missing, source.count - start)  # 3, 2 and 3
        tokens = source.read(np.array([start]), np.array([length]))
        # Check that the tokens are in the vocabulary. An error names the position in the text.
        source.check(tokens, position_of=partial(operator.add, start))
        tokens_by_source.append(tokens)
        n_missing -= len(tokens)
        if n_missing == 0:
            break
        start = 0  # the sample continues with the first token of the next text
    return np.concatenate(tokens_by_source)


def sweep(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    contexts: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Collect the tokens of many training samples, reading the sources of text once.

    The samples (contexts) are requested in any order, but read in the order of the sources:

        requested    5  0  3
        read         0  3  5      each into its row: 1, 2 and 0

    Args:
        plan: Says which tokens each sample has.
        sources: The tokens of each source, such as web and code.
        contexts: Numbers of the samples, in any order, shape (n_contexts,).
        rows: Where their tokens are written, in the same order, shape
            (n_contexts, sequence_length).
    """
    # The numbers of samples ascend from the start to the end of each source.
    order = np.argsort(contexts)  # (n_contexts,) [1, 2, 0]
    rows_per_chunk = _rows_to_gather_at_once(sources, plan.row_bytes)
    keeps_tokens = _can_keep_tokens(sources)
    for chunk_start in range(0, len(contexts), rows_per_chunk):
        row_numbers = order[chunk_start : chunk_start + rows_per_chunk]
        gather(sources, plan.table, contexts[row_numbers], out=rows, places=row_numbers)
        if not keeps_tokens:
            for source in sources:
                source.evict()  # release the memory of the tokens, and delete downloads


def _rows_to_gather_at_once(sources: Sequence[TokenSource], row_bytes: int) -> int:
    """Return how many training samples are read at once, at least one.

        the sources are on this machine    as many as 8 MiB hold
        some of them are in a bucket       as many as 64 MiB hold, and as the disk has room for

    Tokens of a bucket are downloaded to the disk in blocks, by several requests at the same time.

    Args:
        sources: The sources of text, of which some may be in a bucket.
        row_bytes: Bytes of the tokens of a sample.
    """
    is_in_bucket = len(_accesses_to_buckets(sources)) > 0
    if not is_in_bucket:
        return max(1, CHUNK_BYTES // row_bytes)
    n_rows = _GATHERED_BYTES // row_bytes
    disk_limit = _disk_limit(sources)
    if disk_limit is not None:
        # Each sample may take its own bytes, and the rest of the blocks that these are in.
        disk_bytes_of_row = row_bytes + STORED_ROW_BYTES
        n_rows = min(n_rows, disk_limit // disk_bytes_of_row)
    return max(1, n_rows)


def _can_keep_tokens(sources: Sequence[TokenSource]) -> bool:
    """Return whether tokens that are fetched from a bucket can stay on this machine's disk.

    They are read again for the next tar files, so it is best to keep them, if all fit.

    Args:
        sources: The tokens of each source of text.
    """
    is_in_bucket = len(_accesses_to_buckets(sources)) > 0
    if not is_in_bucket:
        return False  # nothing is fetched

    disk_limit = _disk_limit(sources)
    if disk_limit is None:
        # The user has set no limit. Keep at most 64 MiB, since more might fill the disk.
        disk_limit = MAX_KEPT_BYTES
    all_bytes = sum(source.bytes for source in sources)
    return all_bytes <= disk_limit


def _disk_limit(sources: Sequence[TokenSource]) -> int | None:
    """Return how many bytes of disk the downloads from a bucket may take, or None without a limit.

    Args:
        sources: The tokens of each source of text. Some may be in buckets, each with a limit for
            its downloads, or without one. The smallest limit counts.
    """
    limits: list[int] = []
    for access in _accesses_to_buckets(sources):
        limit = access.room_for_blocks
        if limit is not None:
            limits.append(limit)
    return min(limits, default=None)


def _accesses_to_buckets(sources: Sequence[TokenSource]) -> list[FileAccess]:
    """Return the access to those sources that are in a store."""
    return [source.access for source in sources if source.access is not None]
