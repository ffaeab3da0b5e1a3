"""Spill files: one sweep over the sources writes each row to the scratch file of its run of shards.

The shards of a run are neighbours, and so an interval of the keys that define the global order. A spill file holds
records of one row each, the context number, int64, then the tokens. Sorting them by key puts the rows in order.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Sequence
from dataclasses import dataclass
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


@dataclass(frozen=True, slots=True)
class SpillFile:
    """The scratch file of a run of shards."""

    shards: range
    """Neighbouring shards."""
    begin: int
    """Rank of the first row."""
    end: int
    """Rank after that of the last row."""
    path: Path
    """Where it is."""


def make_spill_files(plan: ShufflePlan, runs: Sequence[range], scratch: Path) -> list[SpillFile]:
    """Name a spill file for each run of shards.

    Raises:
        StorageError: the disk has too little room for them.
    """
    files = [
        SpillFile(run, plan.shard_ranks(run[0])[0], plan.shard_ranks(run[-1])[1], scratch / f"bucket-{number:06d}")
        for number, run in enumerate(runs)
    ]
    needed = sum(file.end - file.begin for file in files) * (NUMBER_BYTES + plan.row_bytes)
    free = shutil.disk_usage(scratch).free
    if free < needed:
        remedy = "name a scratch folder on a larger disk, give more memory, or take the engine tiled (no scratch)"
        found, expected = f"{free:,} bytes free", f"{needed:,} bytes"
        raise StorageError(
            "too little room for the buckets", where=scratch.parent, found=found, expected=expected, remedy=remedy
        )
    return files


def spill_rows(
    plan: ShufflePlan, files: Sequence[SpillFile], memory_bytes: int, sweep: Sweep, progress: Callable[[int], None]
) -> None:
    """Append every row to the spill file of its shard, in one sweep over the sources.

    Args:
        plan: says where each context goes.
        files: ascending.
        memory_bytes: for records that are held at once: the more, the longer the single writes.
        sweep: reads rows.
        progress: is called with the number of contexts that are read.
    """
    contexts, seed = plan.table.contexts, plan.settings.seed
    step = max(1, min(memory_bytes // (NUMBER_BYTES + plan.row_bytes + ROW_BYTES), contexts))
    records, numbers, rows = _records(step, plan)
    bounds = keys_at(contexts, seed, np.array([[file.begin, file.end - 1] for file in files]).ravel())
    low, high = bounds[::2], bounds[1::2]
    for begin in range(0, contexts, step):
        end = min(begin + step, contexts)
        keys = context_keys(begin, end, seed)
        place = np.searchsorted(low, keys, side="right") - 1
        chosen = np.flatnonzero((place >= 0) & (keys <= high[place]))
        order = chosen[np.argsort(place[chosen], kind="stable")]
        numbers[: len(order), 0] = order + begin
        sweep(numbers[: len(order), 0], rows[: len(order)])
        ends = np.searchsorted(place[order], np.arange(len(files) + 1))
        for i in np.flatnonzero(np.diff(ends)):
            with files[int(i)].path.open("ab", buffering=0) as file:
                _write_all(file, records[ends[i] : ends[i + 1]])
        progress(end)


def read_spill(plan: ShufflePlan, file: SpillFile) -> tuple[NDArray[np.int64], NDArray[np.integer[Any]], NDArray[Any]]:
    """Read a spill file.

    Returns:
        (context numbers in the global order, int64, shape (rows,); the rows as they lie in the file, shape
        (rows, sequence_length); for each place in the order, which of these rows, int64, shape (rows,)).

    Raises:
        FormatError: the file does not hold the rows that were written to it.
    """
    records, numbers, rows = _records(file.end - file.begin, plan)
    with file.path.open("rb", buffering=0) as opened:
        view = records.reshape(-1).data
        read = 0
        while read < len(view) and (count := opened.readinto(view[read:])):
            read += count
        if read < len(view) or opened.read(1):
            found, expected = f"{file.path.stat().st_size:,} bytes", f"{len(view):,} bytes"
            what = "a spill file does not hold the rows that were written to it"
            remedy = "run again; nothing else may write to the scratch folder"
            raise FormatError(what, where=file.path, found=found, expected=expected, remedy=remedy)
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
