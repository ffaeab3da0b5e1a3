"""Rows of contexts out of token streams, in ascending place: the one way in which every engine reads tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.shuffling.contexts import ContextTable, TokenSource

_BLOCK_BYTES = 1 << 20  # rows copied at once: they stay in the processor's cache on their way


def gather(
    sources: Sequence[TokenSource],
    table: ContextTable,
    contexts: NDArray[np.int64],
    out: NDArray[np.integer[Any]] | None = None,
    places: NDArray[np.int64] | None = None,
) -> NDArray[np.integer[Any]]:
    """Gather the tokens of contexts; rows are read in ascending place, so that a tile sweeps each file once.

    Memory: 1 MiB and 60 bytes a row.

    Args:
        sources: the table's.
        table: says where each context lies.
        contexts: context numbers, int64, shape (contexts,).
        out: any view of shape (contexts, sequence_length) whose dtype holds every source's; None = a new array.
        places: where given, int64, shape (contexts,), all different: row k goes to `out[places[k]]`, and `out` may have
            more rows.

    Returns:
        `out`, filled.

    Raises:
        SampleIndexError: a context number outside the table.
    """
    if out is None:
        dtype = np.result_type(*(source.tokens.dtype for source in sources))
        out = np.empty((len(contexts), table.sequence_length), dtype=dtype)
    rows = out[:, table.sequence_length - table.row_tokens :]
    number, start, length = table.locate(contexts)
    order = np.lexsort((start, number))
    bounds = np.searchsorted(number[order], np.arange(len(sources) + 1))
    target = order if places is None else places[order]
    if table.bos_id is not None:
        out[target, 0] = table.bos_id
    for i in np.flatnonzero(np.diff(bounds)):
        part = slice(bounds[i], bounds[i + 1])
        own = order[part]
        _gather_source(sources, int(i), table, start[own], length[own], target[part], rows)
    return out


def _gather_source(
    sources: Sequence[TokenSource],
    number: int,
    table: ContextTable,
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    places: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    """Copy the rows of one source that begin at `start`, ascending, to `rows[places]`."""
    sources[number].bring(start, start + length)
    tokens = np.asarray(sources[number].tokens)
    whole = length == table.row_tokens
    within = start + table.row_tokens <= len(tokens)
    full = whole & within
    _copy_full(tokens, start[full], places[full], rows)
    short = ~whole
    if short.any():
        _copy_short(tokens, table.pad_id or 0, start[short], length[short], places[short], rows)
    for row in np.flatnonzero(whole & ~within):  # at most one for each source: it is carried over into the next ones
        rows[places[row]] = _carried(sources[number:], int(start[row]), table.row_tokens)


def _copy_full(
    tokens: NDArray[np.integer[Any]],
    start: NDArray[np.int64],
    places: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    if not len(start):
        return
    width = rows.shape[1]
    step = max(1, _BLOCK_BYTES // (width * tokens.itemsize))
    phase = int(start[0]) % width
    if (start % width == phase).all():
        # (tokens,) -> (rows, width): a view; one index copies a whole row
        matrix = tokens[phase : phase + (len(tokens) - phase) // width * width].reshape(-1, width)
        numbers = start // width
        block = np.empty((min(step, len(start)), width), dtype=tokens.dtype)
        for begin in range(0, len(start), step):
            part = numbers[begin : begin + step]
            # "clip" lets numpy write straight into the block; every number is within the matrix
            rows[places[begin : begin + step]] = np.take(matrix, part, axis=0, out=block[: len(part)], mode="clip")
        return
    windows = np.lib.stride_tricks.sliding_window_view(tokens, width)
    for begin in range(0, len(start), step):
        rows[places[begin : begin + step]] = windows[start[begin : begin + step]]


def _copy_short(
    tokens: NDArray[np.integer[Any]],
    pad_id: int,
    start: NDArray[np.int64],
    length: NDArray[np.int64],
    places: NDArray[np.int64],
    rows: NDArray[np.integer[Any]],
) -> None:
    rows[places] = pad_id
    first = np.cumsum(length) - length
    column = np.arange(int(length.sum())) - np.repeat(first, length)
    rows[np.repeat(places, length), column] = tokens[np.repeat(start, length) + column]


def _carried(sources: Sequence[TokenSource], start: int, width: int) -> NDArray[np.integer[Any]]:
    """A row that begins in the first source and goes on with the first tokens of those after it."""
    parts, missing = [], width
    for source in sources:
        source.bring(np.array([start]), np.array([start + missing]))
        part = source.tokens[start : start + missing]
        parts.append(part)
        start, missing = 0, missing - len(part)
        if not missing:
            break
    return np.concatenate(parts)
