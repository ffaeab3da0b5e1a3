"""Spill files: one sweep over the sources writes each row to the scratch file of its run of shards.

The shards of a run are neighbours, and so an interval of the keys that define the global order. A spill file holds
records of one row each, the context number, int64, then the tokens. Sorting them by key puts the rows in order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.shuffling.order import context_keys, keys_at, keys_of
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.sizing import NUMBER_BYTES, ROW_BYTES

Sweep = Callable[[NDArray[np.int64], NDArray[np.integer[Any]]], None]
"""`sweep(contexts, rows)`: put contexts into `rows`, shape (contexts, sequence_length)."""


def run_ranks(plan: ShufflePlan, run: range) -> range:
    """Return the ranks that a run of shards holds."""
    return range(plan.shard_ranks(run[0])[0], plan.shard_ranks(run[-1])[1])


def spill_rows(
    plan: ShufflePlan,
    files: Mapping[Path, range],
    memory_bytes: int,
    sweep: Sweep,
    progress: Callable[[int], None],
) -> None:
    """Append every row to the spill file of its shard, in one sweep over the sources.

    Args:
        plan: says where each context goes.
        files: file → its run of shards; ascending, all in one folder.
        memory_bytes: for records that are held at once: the more, the longer the single writes.
        sweep: reads rows.
        progress: is called with the number of contexts that are read.

    Raises:
        StorageError: the disk has too little room for them.
    """
    ranks = [run_ranks(plan, run) for run in files.values()]
    paths, record = list(files), NUMBER_BYTES + plan.row_bytes
    needed, free = sum(map(len, ranks)) * record, shutil.disk_usage(paths[0].parent).free
    if free < needed:
        raise StorageError(
            "too little room for the buckets",
            where=paths[0].parent.parent,
            found=f"{free:,} bytes free",
            expected=f"{needed:,} bytes",
            remedy="name a scratch folder on a larger disk, give more memory, or take the engine tiled (no scratch)",
        )
    contexts, seed = plan.table.contexts, plan.settings.seed
    step = max(1, min(memory_bytes // (record + ROW_BYTES), contexts))
    records, numbers, rows = _records(step, plan)
    bounds = keys_at(contexts, seed, np.array([[own[0], own[-1]] for own in ranks]).ravel())
    low, high = bounds[::2], bounds[1::2]
    for begin in range(0, contexts, step):
        end = min(begin + step, contexts)
        keys = context_keys(begin, end, seed)
        place = np.searchsorted(low, keys, side="right") - 1
        chosen = np.flatnonzero((place >= 0) & (keys <= high[place]))
        order = chosen[np.argsort(place[chosen], kind="stable")]
        numbers[: len(order), 0] = order + begin
        sweep(numbers[: len(order), 0], rows[: len(order)])
        ends = np.searchsorted(place[order], np.arange(len(paths) + 1))
        for i in np.flatnonzero(np.diff(ends)):
            with paths[i].open("ab", buffering=0) as file:
                _write_all(file, records[ends[i] : ends[i + 1]])
        progress(end)


def read_spill(
    plan: ShufflePlan, path: Path, run: range
) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]], NDArray[Any]]:
    """Read the spill file of a run of shards.

    Returns:
        (context numbers in the global order, int64, shape (rows,); the rows as they lie in the file, shape
        (rows, sequence_length); for each place in the order, which of these rows, int64, shape (rows,)).

    Raises:
        FormatError: the file does not hold the rows that were written to it.
    """
    records, numbers, rows = _records(len(run_ranks(plan, run)), plan)
    view, read = records.reshape(-1).data, 0
    with path.open("rb", buffering=0) as file:
        while read < len(view) and (count := file.readinto(view[read:])):
            read += count
    if (size := path.stat().st_size) != len(view) or read < size:
        raise FormatError(
            "a spill file does not hold the rows that were written to it",
            where=path,
            found=f"{size:,} bytes",
            expected=f"{len(view):,} bytes",
            remedy="run again; nothing else may write to the scratch folder",
        )
    order = np.argsort(keys_of(numbers[:, 0].astype(np.uint64), plan.settings.seed))
    return numbers[order, 0], rows, order


def _records(count: int, plan: ShufflePlan) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.integer[Any]]]:
    """Return an array of records, uint8, shape (count, record), and views of its numbers (count, 1) and rows."""
    records = np.empty((count, NUMBER_BYTES + plan.row_bytes), dtype=np.uint8)
    return records, records[:, :NUMBER_BYTES].view(np.int64), records[:, NUMBER_BYTES:].view(plan.dtype)


def _write_all(file: FileIO, records: NDArray[np.uint8]) -> None:
    view = records.reshape(-1).data
    while len(view):
        view = view[file.write(view) :]
