"""The mmap gather engine: rows of contexts out of memory maps, near each other first."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from nanoset_core.shuffling.contexts import ContextTable, TokenSource


def gather(
    sources: Sequence[TokenSource], table: ContextTable, contexts: np.ndarray, out: np.ndarray | None = None
) -> np.ndarray:
    """Tokens of the contexts int64[C], in that order, (C, sequence_length), written into ``out`` where given.

    Rows are read in ascending place, so that a tile sweeps each file once; ``out`` may be any view of that shape
    whose dtype holds every source's. Memory: the rows once more. Raises SampleIndexError outside the table.
    """
    if out is None:
        dtype = np.result_type(*(source.tokens.dtype for source in sources))
        out = np.empty((len(contexts), table.sequence_length), dtype=dtype)
    order = np.argsort(contexts, kind="stable")
    number, start, length = table.locate(np.asarray(contexts)[order])
    bounds = np.searchsorted(number, np.arange(len(sources) + 1))
    for i in np.flatnonzero(np.diff(bounds)):
        rows = slice(bounds[i], bounds[i + 1])
        _gather_source(sources[i].tokens, table, start[rows], length[rows], order[rows], out)
    return out


def _gather_source(
    tokens: np.ndarray,
    table: ContextTable,
    start: np.ndarray,
    length: np.ndarray,
    places: np.ndarray,
    out: np.ndarray,
) -> None:
    """Copy rows that begin at ``start`` int64[R], ascending, to ``out[places]``; only the last can be short."""
    width = table.sequence_length
    full = int(np.searchsorted(-length, -width, side="right"))
    if full:
        # (tokens,) -> (full contexts, sequence_length): a view, so that one index copies a whole row
        matrix = np.asarray(tokens)[: len(tokens) // width * width].reshape(-1, width)
        out[places[:full]] = matrix[start[:full] // width]
    for row in range(full, len(start)):
        out[places[row], : length[row]] = tokens[start[row] : start[row] + length[row]]
        out[places[row], length[row] :] = table.pad_id
