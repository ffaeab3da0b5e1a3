"""Gather the tokens of contexts from the sources, reading each file from start to end."""

from __future__ import annotations

import operator
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.stages.webdataset.contexts import ContextTable
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES
from nanoset_core.stages.webdataset.sources import STORED_ROW_BYTES, TokenSource, common_dtype

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
    starts = located.starts[order]
    lengths = located.lengths[order]
    targets = order if places is None else places[order]
    # (n_sources + 1,) the contexts of source i are [bounds[i], bounds[i + 1]) in this order
    bounds = np.searchsorted(located.sources[order], np.arange(len(sources) + 1))

    # The BOS, if contexts have one, is their first token.
    if settings.bos_id is not None:
        out[targets, 0] = settings.bos_id
    rows = out[:, settings.sequence_length - settings.row_tokens :]  # all columns but the BOS

    # Copy the rows of each source that has some.
    for number in np.flatnonzero(np.diff(bounds)).tolist():
        of_source = slice(bounds[number], bounds[number + 1])
        _gather_source(
            sources[number:],
            pad_id=settings.pad_id or 0,
            starts=starts[of_source],
            lengths=lengths[of_source],
            targets=targets[of_source],
            rows=rows,
        )
    return out


def _gather_source(
    sources: Sequence[TokenSource],
    pad_id: int,
    starts: NDArray[np.int64],
    lengths: NDArray[np.int64],
    targets: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Copy the rows that begin in the first of some sources to their places in an array.

    A row consists of `row_tokens` consecutive tokens, or fewer, which are padded. It may continue
    in the next sources.

    Args:
        sources: The source, and those after it, in which rows continue with the tail `carry`.
        pad_id: Id that rows are padded with.
        starts: First token of each row within the source, ascending, shape (n_contexts,).
        lengths: Tokens of each row without padding, shape (n_contexts,).
        targets: Index in `rows` of each row, shape (n_contexts,).
        rows: Where the rows are written, shape (any, row_tokens).
    """
    source = sources[0]
    row_tokens = rows.shape[1]
    # (n_contexts,) tokens of each row that are in this source
    counts = np.clip(source.count - starts, 0, lengths)
    remaining = np.arange(len(starts))  # indices of the rows that are not copied yet

    # Whole rows are contiguous in the file, except if the source is a view. They are copied faster.
    if source.stream is None:
        source.prefetch(starts, starts + counts)
        is_whole = counts == row_tokens
        _copy_whole_rows(source, starts[is_whole], targets[is_whole], rows)
        remaining = np.flatnonzero(~is_whole)

    # Copy the other rows in chunks that stay in the processor's cache.
    rows_per_chunk = max(1, _COPY_BYTES // (row_tokens * rows.itemsize))
    for chunk_start in range(0, len(remaining), rows_per_chunk):
        chunk = remaining[chunk_start : chunk_start + rows_per_chunk]
        _copy_ranges(source, pad_id, starts[chunk], counts[chunk], targets[chunk], rows)

    # A row that continues in the next sources was padded above: overwrite it. There is at most one,
    # since all later rows begin in those sources.
    is_carried = (lengths == row_tokens) & (counts < lengths)
    for index in np.flatnonzero(is_carried):
        rows[targets[index]] = _carried_row(sources, int(starts[index]), row_tokens)


def _copy_ranges(
    source: TokenSource,
    pad_id: int,
    starts: NDArray[np.int64],
    counts: NDArray[np.int64],
    targets: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Copy rows of tokens, some of which may be short, from a source into an array.

    Short rows are filled up with padding.

    Args:
        source: The source.
        pad_id: Id that rows are padded with.
        starts: First token of each row within the source, shape (n_copied,).
        counts: Tokens of each row in the source, shape (n_copied,).
        targets: Index in `rows` of each row, shape (n_copied,).
        rows: Where the rows are written, shape (n_rows, row_tokens).
    """
    row_tokens = rows.shape[1]
    tokens = source.read(starts, counts)  # of all rows, concatenated: (n_tokens,)
    # An error about a wrong id names its position in the source.
    source.check(tokens, position_of=partial(_position_in_ranges, starts, counts))

    if (counts == row_tokens).all():
        rows[targets] = tokens.reshape(-1, row_tokens)
        return

    # The row and the column of each token. For example, two rows of 2 and 3 tokens:
    #     rows     r0 r0 r1 r1 r1
    #     columns  0  1  0  1  2
    row_of_token = np.repeat(targets, counts)  # (n_tokens,)
    first_tokens = np.cumsum(counts) - counts  # (n_copied,) index in `tokens`: 0 2
    columns = np.arange(len(tokens)) - np.repeat(first_tokens, counts)  # (n_tokens,)

    # Fill the rows with padding, and overwrite it with the tokens.
    rows[targets] = pad_id
    rows[row_of_token, columns] = tokens


def _copy_whole_rows(
    source: TokenSource,
    starts: NDArray[np.int64],
    targets: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Copy rows that are completely in one file of tokens, in which they are consecutive.

    Args:
        source: The source, which is that file.
        starts: First token of each row in the file, ascending, shape (n_copied,).
        targets: Index in `rows` of each row, shape (n_copied,).
        rows: Where the rows are written, shape (n_rows, row_tokens).
    """
    if not len(starts):
        return
    row_tokens = rows.shape[1]
    rows_per_chunk = max(1, _COPY_BYTES // (row_tokens * source.tokens.itemsize))

    # The chunks have the rows in the order of `starts`: each continues where the last one ended.
    chunk_start = 0
    for chunk in _chunks_of_rows(source.tokens, starts, row_tokens, rows_per_chunk):
        chunk_stop = chunk_start + len(chunk)
        # An error about a wrong id names its position in the file.
        position_of = partial(_position_in_rows, starts[chunk_start:chunk_stop], row_tokens)
        source.check(chunk, position_of=position_of)
        rows[targets[chunk_start:chunk_stop]] = chunk
        chunk_start = chunk_stop


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
    # The rows of one stream form a grid: they begin at `offset`, `offset + row_tokens`, and so on.
    offset = int(starts[0]) % row_tokens
    is_grid = bool((starts % row_tokens == offset).all())
    if not is_grid:
        # (n_tokens - row_tokens + 1, row_tokens) a view with a row for each possible first token
        windows = np.lib.stride_tricks.sliding_window_view(tokens, row_tokens)
        for chunk_start in range(0, len(starts), rows_per_chunk):
            yield windows[starts[chunk_start : chunk_start + rows_per_chunk]]
        return

    # View the tokens as the rows of this grid, without copying: (n_tokens,) -> (n_grid_rows,
    # row_tokens). To copy rows of a matrix is faster than to copy windows.
    n_grid_rows = (len(tokens) - offset) // row_tokens
    grid = tokens[offset : offset + n_grid_rows * row_tokens].reshape(n_grid_rows, row_tokens)
    grid_rows = (starts - offset) // row_tokens  # (n_rows,) index of each row in the grid

    buffer = np.empty((min(rows_per_chunk, len(starts)), row_tokens), dtype=tokens.dtype)
    for chunk_start in range(0, len(starts), rows_per_chunk):
        chunk_rows = grid_rows[chunk_start : chunk_start + rows_per_chunk]
        chunk = buffer[: len(chunk_rows)]
        # All indices are valid. With mode="raise", numpy would copy through a second buffer.
        np.take(grid, chunk_rows, axis=0, out=chunk, mode="clip")
        yield chunk


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
    """Gather many contexts while reading the sources once, from start to end.

    A context is a row of consecutive tokens of a source. At most 8 MiB of the sources are in memory
    at once; 64 MiB if they are in a store.

    Args:
        plan: Plan of the contexts.
        sources: Sources of the plan.
        contexts: Numbers of the contexts, in any order, shape (n_contexts,).
        rows: Where their rows are written, in the same order, shape (n_contexts, sequence_length).
    """
    rows_per_chunk = CHUNK_BYTES // plan.row_bytes
    keeps_tokens = False  # whether fetched tokens stay on this machine's disk

    # Blocks that are fetched from a store take disk space, which may be bounded. They may use a
    # quarter of it: tars and other files need the rest.
    stored_access = [source.access for source in sources if source.access is not None]
    if stored_access:
        rows_per_chunk = STORED_BYTES // plan.row_bytes
        disk_bytes = STORED_BYTES
        capacities = [access.capacity for access in stored_access if access.capacity is not None]
        if capacities:
            disk_bytes = min(capacities) // 4
            bytes_per_row = STORED_ROW_BYTES + plan.row_bytes
            rows_per_chunk = min(rows_per_chunk, disk_bytes // bytes_per_row)
        # Keep small sources, so that the next run of this process need not fetch them again.
        keeps_tokens = sum(source.bytes for source in sources) <= disk_bytes
    rows_per_chunk = max(1, rows_per_chunk)

    # In the order of their numbers, contexts are read from the start to the end of each source.
    order = np.argsort(contexts)  # (n_contexts,) index in `contexts` and `rows`
    for chunk_start in range(0, len(contexts), rows_per_chunk):
        chunk = order[chunk_start : chunk_start + rows_per_chunk]
        gather(sources, plan.table, contexts[chunk], out=rows, places=chunk)
        if not keeps_tokens:
            for source in sources:
                source.evict()
