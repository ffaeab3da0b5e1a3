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

STORED_BYTES = 64 << 20
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
    """Return the tokens of contexts, reading each source from start to end.

    A context is a row of tokens of a source, perhaps after a BOS token, and perhaps padded. This
    needs 60 bytes of memory for each context, in addition to `out`.

    Args:
        sources: The sources of the table.
        table: Says where the tokens of each context are.
        contexts: Numbers of the contexts, shape (n_contexts,).
        out: Where to write the tokens: an array of shape (n_contexts, sequence_length) whose dtype
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

    # Sort by source and by token within it, so that each file is read from start to end.
    located = table.locate(contexts)
    order = np.lexsort((located.starts, located.sources))
    targets = order if places is None else places[order]

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
    """Return each source that occurs in a sorted array, and the range of its entries there.

    Args:
        sources: Numbers of sources, ascending, shape (n_contexts,).
        n_sources: Number of all sources.
    """
    bounds = np.searchsorted(sources, np.arange(n_sources + 1))  # (n_sources + 1,)
    occurring = np.flatnonzero(np.diff(bounds)).tolist()
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
        """Copy rows of tokens to their places. All arrays have the shape (n_rows,).

        Args:
            starts: First token of each row within the source, ascending.
            lengths: Tokens of each row without padding.
            targets: Row of the array into which each row is copied.
        """
        # How many tokens of each row are in this source. If the source has 10 tokens, a row of 4
        # tokens that starts at token 8 has 2 of them here, and the others in the next source.
        tokens_after_start = self.source.count - starts
        counts = np.minimum(tokens_after_start, lengths)
        parts = _RowParts(starts, counts, targets)

        # Whole rows of a file are contiguous and are copied faster. Those of a view are not.
        if self.source.stream is None:
            self.source.prefetch(starts, starts + counts)
            is_whole = counts == self.row_tokens
            self._copy_whole_rows(starts[is_whole], targets[is_whole])
            parts = parts.select(~is_whole)
        self._copy_in_chunks(parts)

        # The row that continues in later sources has been padded: overwrite it with all its tokens.
        continues = counts < lengths
        self._copy_carried_rows(starts[continues], targets[continues])

    def _copy_carried_rows(self, starts: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows that begin in this source and continue in the next ones.

        Args:
            starts: First token of each row within this source, shape (n_rows,).
            targets: Row of the array into which each row is copied, shape (n_rows,).
        """
        for start, target in zip(starts.tolist(), targets.tolist(), strict=True):
            self.rows[target] = _carried_row(self.sources, start, self.row_tokens)

    def _copy_whole_rows(self, starts: NDArray[np.int64], targets: NDArray[np.int64]) -> None:
        """Copy rows without padding from a source that is one file of consecutive tokens.

        The ids of the tokens are checked on the way.

        Args:
            starts: First token of each row in the file, ascending, shape (n_rows,).
            targets: Row of the array into which each row is copied, shape (n_rows,).
        """
        if not len(starts):
            return
        rows_per_chunk = _rows_to_copy_at_once(self.row_tokens, self.source.tokens.itemsize)
        chunk_start = 0
        for chunk in _chunks_of_rows(self.source.tokens, starts, self.row_tokens, rows_per_chunk):
            rows_of_chunk = slice(chunk_start, chunk_start + len(chunk))
            # An error about a wrong id names its position in the file.
            position_of = partial(_position_in_rows, starts[rows_of_chunk], self.row_tokens)
            self.source.check(chunk, position_of=position_of)
            self.rows[targets[rows_of_chunk]] = chunk
            chunk_start += len(chunk)

    def _copy_in_chunks(self, parts: _RowParts) -> None:
        """Copy parts of rows in chunks that stay in the processor's cache, and pad short ones."""
        rows_per_chunk = _rows_to_copy_at_once(self.row_tokens, self.rows.itemsize)
        for chunk_start in range(0, len(parts.starts), rows_per_chunk):
            self._copy_parts(parts.select(slice(chunk_start, chunk_start + rows_per_chunk)))

    def _copy_parts(self, parts: _RowParts) -> None:
        """Copy parts of rows, and fill short ones up with padding.

        For example, rows have 4 tokens. A part of 3 tokens becomes `[5, 9, 2, pad]`.

        Args:
            parts: Where these tokens are in the source, and which rows they are copied into.
        """
        starts, counts, targets = parts
        tokens = self.source.read(starts, counts)  # of all rows, concatenated: (n_tokens,)
        # An error about a wrong id names its position in the source.
        self.source.check(tokens, position_of=partial(_position_in_ranges, starts, counts))

        if (counts == self.row_tokens).all():
            self.rows[targets] = tokens.reshape(-1, self.row_tokens)
        else:
            self._write_padded(tokens, counts, targets)

    def _write_padded(
        self,
        tokens: NDArray[np.integer[Any]],
        counts: NDArray[np.int64],
        targets: NDArray[np.int64],
    ) -> None:
        """Write rows of different lengths, and fill them up with padding.

        For example, rows have 4 tokens. The tokens 5, 9, 2, 7 with the counts 3 and 1 become the
        rows `[5, 9, 2, pad]` and `[7, pad, pad, pad]`.

        Args:
            tokens: Tokens of all rows, concatenated, shape (n_tokens,).
            counts: How many of them each row has, shape (n_rows,).
            targets: Row of the array into which each row is written, shape (n_rows,).
        """
        # Fill the rows with padding, and overwrite it with the tokens.
        self.rows[targets] = self.pad_id
        row_of_token = np.repeat(targets, counts)  # (n_tokens,)
        self.rows[row_of_token, _numbers_within_groups(counts)] = tokens


def _rows_to_copy_at_once(row_tokens: int, itemsize: int) -> int:
    """Return how many rows, at least one, stay in the processor's cache."""
    return max(1, _COPY_BYTES // (row_tokens * itemsize))


def _numbers_within_groups(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Count the members of each group from 0: groups of 2 and 3 members give 0 1, 0 1 2.

    Args:
        counts: Members of each group, shape (n_groups,).

    Returns:
        Shape (n_members,).
    """
    stops = np.cumsum(counts)  # (n_groups,) members up to the end of each group: 2 5
    n_members = int(counts.sum())
    return np.arange(n_members) - np.repeat(stops - counts, counts)


def _chunks_of_rows(
    tokens: NDArray[np.integer[Any]],
    starts: NDArray[np.int64],
    row_tokens: int,
    rows_per_chunk: int,
) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield rows of consecutive tokens in chunks of shape (at most `rows_per_chunk`, row_tokens).

    A chunk is valid only until the next one is requested, which may overwrite it.

    Args:
        tokens: All tokens of the file, shape (n_tokens,).
        starts: First token of each row, ascending, at least one, shape (n_rows,).
        row_tokens: Tokens of a row.
        rows_per_chunk: Greatest number of rows in a chunk.
    """
    # Usually all rows are rows of one matrix, which are copied faster than windows.
    offset = int(starts[0]) % row_tokens
    are_of_one_matrix = bool((starts % row_tokens == offset).all())
    if are_of_one_matrix:
        n_rows = (len(tokens) - offset) // row_tokens
        matrix = tokens[offset : offset + n_rows * row_tokens].reshape(n_rows, row_tokens)
        return _chunks_of_matrix(matrix, (starts - offset) // row_tokens, rows_per_chunk)
    return _chunks_of_windows(tokens, starts, row_tokens, rows_per_chunk)


def _chunks_of_matrix(
    matrix: NDArray[np.integer[Any]],
    numbers: NDArray[np.int64],
    rows_per_chunk: int,
) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield rows of a matrix in chunks, each of which is overwritten by the next one.

    Copying a few rows at a time keeps them in the processor's cache.

    Args:
        matrix: Shape (n, row_tokens).
        numbers: Indices of the rows, all valid, shape (n_rows,).
        rows_per_chunk: Greatest number of rows in a chunk.
    """
    buffer_rows = min(rows_per_chunk, len(numbers))
    buffer = np.empty((buffer_rows, matrix.shape[1]), dtype=matrix.dtype)
    for chunk_start in range(0, len(numbers), rows_per_chunk):
        chunk_numbers = numbers[chunk_start : chunk_start + rows_per_chunk]
        chunk = buffer[: len(chunk_numbers)]
        # With mode="raise", numpy would copy through a second buffer. No index is clipped.
        np.take(matrix, chunk_numbers, axis=0, out=chunk, mode="clip")
        yield chunk


def _chunks_of_windows(
    tokens: NDArray[np.integer[Any]],
    starts: NDArray[np.int64],
    row_tokens: int,
    rows_per_chunk: int,
) -> Iterator[NDArray[np.integer[Any]]]:
    """Yield rows that may start at any token, in chunks.

    Args:
        tokens: Shape (n_tokens,).
        starts: First token of each row, shape (n_rows,).
        row_tokens: Tokens of a row.
        rows_per_chunk: Greatest number of rows in a chunk.
    """
    # (n_tokens - row_tokens + 1, row_tokens) a view with a row for each possible first token
    windows = np.lib.stride_tricks.sliding_window_view(tokens, row_tokens)
    for chunk_start in range(0, len(starts), rows_per_chunk):
        yield windows[starts[chunk_start : chunk_start + rows_per_chunk]]


def _position_in_ranges(starts: NDArray[np.int64], counts: NDArray[np.int64], number: int) -> int:
    """Return the position in a source of the n-th token of concatenated ranges.

    The tokens of the ranges [10, 12) and [50, 53) are at 10, 11, 50, 51 and 52. Number 3 is at 51.

    Args:
        starts: First token of each range, shape (n_ranges,).
        counts: Tokens of each range, shape (n_ranges,).
        number: Number of the token, from 0.
    """
    stops = np.cumsum(counts)  # number after each range's last token
    index = int(np.searchsorted(stops, number, side="right"))  # of the range with this token
    first_number = stops[index] - counts[index]
    return int(starts[index] + number - first_number)


def _position_in_rows(starts: NDArray[np.int64], row_tokens: int, number: int) -> int:
    """Return the position in a source of the n-th token of concatenated rows of one length."""
    return int(starts[number // row_tokens]) + number % row_tokens


def _carried_row(
    sources: Sequence[TokenSource],
    start: int,
    row_tokens: int,
) -> NDArray[np.integer[Any]]:
    """Return a row that begins in the first source and continues in the next ones.

    With rows of 8 tokens, a row that begins 3 tokens before the end of source 0 has these, and the
    first 5 tokens of source 1.

    Args:
        sources: Sources in order. Short ones may be in the row completely.
        start: First token of the row within the first source.
        row_tokens: Tokens of the row.
    """
    tokens_by_source: list[NDArray[np.integer[Any]]] = []
    n_missing = row_tokens
    for source in sources:
        length = min(n_missing, source.count - start)
        tokens = source.read(np.array([start]), np.array([length]))
        source.check(tokens, position_of=partial(operator.add, start))
        tokens_by_source.append(tokens)
        n_missing -= len(tokens)
        if not n_missing:
            break
        start = 0  # the row continues with the first token of the next source
    return np.concatenate(tokens_by_source)


def sweep(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    contexts: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Gather many rows of tokens while reading their sources once, from start to end.

    A context is a row of consecutive tokens of a source. At most 8 MiB of the sources are in memory
    at once; 64 MiB if they are in a store.

    Args:
        plan: Plan of the contexts.
        sources: The tokens of each source of the plan, such as a corpus.
        contexts: Numbers of the contexts, in any order, shape (n_contexts,).
        rows: Where their rows are written, in the same order, shape (n_contexts, sequence_length).
    """
    rows_per_chunk = _rows_to_gather_at_once(sources, plan.row_bytes)
    keeps_tokens = _can_keep_tokens(sources)

    # In the order of their numbers, contexts are read from the start to the end of each source.
    order = np.argsort(contexts)  # (n_contexts,) index in `contexts` and `rows`
    for chunk_start in range(0, len(contexts), rows_per_chunk):
        chunk = order[chunk_start : chunk_start + rows_per_chunk]
        gather(sources, plan.table, contexts[chunk], out=rows, places=chunk)
        if not keeps_tokens:
            for source in sources:
                source.evict()


def _rows_to_gather_at_once(sources: Sequence[TokenSource], row_bytes: int) -> int:
    """Return how many rows, at least one, are gathered at once.

    Args:
        sources: The sources, of which some may be in a store.
        row_bytes: Bytes of a row.
    """
    if not _stored_access(sources):
        return max(1, CHUNK_BYTES // row_bytes)
    n_rows = STORED_BYTES // row_bytes
    disk_bytes = _disk_bytes(sources)
    if disk_bytes is not None:
        n_rows = min(n_rows, disk_bytes // (STORED_ROW_BYTES + row_bytes))
    return max(1, n_rows)


def _can_keep_tokens(sources: Sequence[TokenSource]) -> bool:
    """Return whether the disk has room for all tokens that are fetched from a store.

    The next run of this process then need not fetch them again.
    """
    if not _stored_access(sources):
        return False
    disk_bytes = _disk_bytes(sources)
    if disk_bytes is None:
        disk_bytes = STORED_BYTES
    return sum(source.bytes for source in sources) <= disk_bytes


def _disk_bytes(sources: Sequence[TokenSource]) -> int | None:
    """Return how many bytes of disk fetched blocks may take, or None if space is not limited."""
    rooms = [access.room_for_blocks for access in _stored_access(sources)]
    limits = [room for room in rooms if room is not None]
    return min(limits) if limits else None


def _stored_access(sources: Sequence[TokenSource]) -> list[FileAccess]:
    """Return the access to those sources that are in a store."""
    return [source.access for source in sources if source.access is not None]
