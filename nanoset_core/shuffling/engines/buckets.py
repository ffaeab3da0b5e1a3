"""The bucket engine: one sweep over the sources spreads rows over scratch files, each of which becomes its shards.

A bucket is a run of neighbouring shards, and so an interval of the keys that define the global order. Its file holds
records of one row each: the key, uint64, then the tokens. Sorting a bucket's records by key puts them in order.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError
from nanoset_core.shuffling.contexts import TokenSource
from nanoset_core.shuffling.engines.choice import KEY_BYTES, row_bytes
from nanoset_core.shuffling.engines.gather_engines import sweep, write_run
from nanoset_core.shuffling.order import context_keys, keys_at, keys_of, numbers_of
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import TarFacts

_NUMBERS = 1 << 16  # contexts whose keys are made at once


@dataclass(frozen=True, slots=True)
class Bucket:
    """A run of shards, and the scratch file of its rows."""

    shards: range
    """Neighbouring shards."""
    begin: int
    """Rank of the first row."""
    end: int
    """Rank after that of the last row."""
    path: Path
    """The scratch file."""


def make_buckets(plan: ShufflePlan, runs: Sequence[range], scratch: Path) -> list[Bucket]:
    """A bucket for each run of shards."""
    return [
        Bucket(run, plan.shard_ranks(run[0])[0], plan.shard_ranks(run[-1])[1], scratch / f"bucket-{number:06d}")
        for number, run in enumerate(runs)
    ]


def scratch_bytes(plan: ShufflePlan, buckets: Sequence[Bucket]) -> int:
    """Bytes of all scratch files."""
    return sum(bucket.end - bucket.begin for bucket in buckets) * (KEY_BYTES + row_bytes(plan))


def distribute(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    buckets: Sequence[Bucket],
    chunk_bytes: int,
    progress: Callable[[int], None],
) -> None:
    """Sweep the sources once and append every row to its bucket's file; tells `progress` how many contexts are read.

    `chunk_bytes` of records are held at once: the more, the longer the single writes.
    """
    step = max(1, min(chunk_bytes // (KEY_BYTES + row_bytes(plan)), plan.table.contexts))
    records, keys, rows = _records(step, plan)
    for number, bucket in _placed(plan, buckets, step, progress):
        order = np.argsort(bucket, kind="stable")
        count = len(number)
        keys[:count, 0] = keys_of(number[order].astype(np.uint64), plan.seed)
        sweep(plan, sources, number[order], rows[:count])
        bounds = np.searchsorted(bucket[order], np.arange(len(buckets) + 1))
        for i in np.flatnonzero(np.diff(bounds)):
            with buckets[int(i)].path.open("ab", buffering=0) as file:
                _write_all(file, records[bounds[i] : bounds[i + 1]])


def write_bucket(plan: ShufflePlan, bucket: Bucket, folder: Path) -> Generator[TarFacts]:
    """Write the shards of a bucket, in order, and remove its file.

    Raises:
        FormatError: the file does not hold the rows that were written to it.
    """
    keys, rows = _read(plan, bucket)
    order = np.argsort(keys[:, 0])
    contexts = numbers_of(keys[order, 0], plan.seed)

    def fill(begin: int, end: int, out: NDArray[np.integer[Any]]) -> None:
        out[:] = rows[order[begin:end]]

    yield from write_run(plan, bucket.shards, contexts, folder, fill)
    bucket.path.unlink(missing_ok=True)


def _records(count: int, plan: ShufflePlan) -> tuple[NDArray[np.uint8], NDArray[np.uint64], NDArray[np.integer[Any]]]:
    """Room for records, uint8, shape (count, record), and views of its keys (count, 1) and rows (count, length)."""
    records = np.empty((count, KEY_BYTES + row_bytes(plan)), dtype=np.uint8)
    return records, records[:, :KEY_BYTES].view(np.uint64), records[:, KEY_BYTES:].view(plan.dtype)


def _placed(
    plan: ShufflePlan, buckets: Sequence[Bucket], step: int, progress: Callable[[int], None]
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Contexts that belong to a bucket, ascending, and the number of each's bucket, int64, at most `step` at once."""
    contexts = plan.table.contexts
    bounds = keys_at(contexts, plan.seed, np.array([[bucket.begin, bucket.end - 1] for bucket in buckets]).ravel())
    low, high = bounds[::2], bounds[1::2]
    held: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    count = 0
    for begin in range(0, contexts, _NUMBERS):
        keys = context_keys(begin, min(begin + _NUMBERS, contexts), plan.seed)
        bucket = np.searchsorted(low, keys, side="right") - 1
        chosen = np.flatnonzero((bucket >= 0) & (keys <= high[bucket]))
        held.append((chosen + begin, bucket[chosen]))
        count += len(chosen)
        while count >= step:
            number, place = (np.concatenate(parts) for parts in zip(*held, strict=True))
            yield number[:step], place[:step]
            progress(int(number[step - 1]) + 1)
            held, count = [(number[step:], place[step:])], count - step
    if count:
        number, place = (np.concatenate(parts) for parts in zip(*held, strict=True))
        yield number, place
    progress(contexts)


def _read(plan: ShufflePlan, bucket: Bucket) -> tuple[NDArray[np.uint64], NDArray[np.integer[Any]]]:
    records, keys, rows = _records(bucket.end - bucket.begin, plan)
    with bucket.path.open("rb", buffering=0) as file:
        view = records.reshape(-1).data
        read = 0
        while read < len(view) and (count := file.readinto(view[read:])):
            read += count
        if read < len(view) or file.read(1):
            raise FormatError(
                "a bucket does not hold the rows that were written to it",
                where=bucket.path,
                found=f"{bucket.path.stat().st_size:,} bytes",
                expected=f"{len(view):,} bytes",
                remedy="run again; nothing else may write to the scratch folder",
            )
    return keys, rows


def _write_all(file: FileIO, records: NDArray[np.uint8]) -> None:
    view = records.reshape(-1).data
    while len(view):
        view = view[file.write(view) :]
