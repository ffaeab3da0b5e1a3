"""Sort rows into files that each fit into memory: the engine `buckets`.

One sweep over the sources appends each row to the file of its run, which is some neighbouring
shards. Later each file is read into memory, and its rows are put into the order of the shards. So
every token is read twice and written once, from start to end, whatever memory there is.

The order of all contexts is that of their keys (see `order.py`), so a run is an interval of keys,
and a row belongs to the file whose interval contains its key. A bucket file has the rows in the
order of the sources, as records:

    context: int64 | tokens: sequence_length numbers of the plan's dtype
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import FormatError, StorageError
from nanoset_core.stages.webdataset.gathering import sweep
from nanoset_core.stages.webdataset.order import context_keys, keys_at
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sizing import NUMBER_BYTES, ROW_BYTES
from nanoset_core.stages.webdataset.sources import TokenSource
from nanoset_core.stages.webdataset.write_options import WriteOptions


class BucketRows(NamedTuple):
    """The rows of a bucket file."""

    contexts: NDArray[np.int64]
    """Number of each row's context; shape (n_rows,)."""
    tokens: NDArray[np.integer[Any]]
    """Shape (n_rows, sequence_length)."""


def write_buckets(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    shards_by_file: Mapping[Path, range],
    memory_bytes: int,
    options: WriteOptions,
) -> None:
    """Sort the rows of tokens of a plan into files, one for some neighbouring shards (tars).

    Each source is read once, from start to end, and each row is appended to the file of its shard.

    Args:
        plan: Says which context (sample) goes into which tar.
        sources: The tokens of each source of the plan, such as a corpus.
        shards_by_file: Path of a bucket file → its run of neighbouring shards. The runs are in
            ascending order, and may leave out shards, which are then not written.
        memory_bytes: Memory for the rows that are sorted at once.
        options: How the tars are written, such as the number of processes.

    Raises:
        StorageError: The disk has too little room.
    """
    paths = list(shards_by_file)
    ranks = [run_ranks(plan, shards) for shards in shards_by_file.values()]
    record_bytes = _record_bytes(plan)  # the number of a context, and its tokens
    _check_room(paths[0].parent, sum(map(len, ranks)) * record_bytes)
    intervals = _key_intervals(plan, ranks)

    # Go through all contexts in the order of the sources, as many at a time as memory holds.
    contexts = plan.table.contexts
    rows_in_memory = max(1, min(memory_bytes // (record_bytes + ROW_BYTES), contexts))
    buffer = np.empty((rows_in_memory, record_bytes), dtype=np.uint8)
    bucket_work = options.progress.work("buckets", options.name, contexts * plan.row_bytes)
    for start in range(0, contexts, rows_in_memory):
        stop = min(start + rows_in_memory, contexts)
        keys = context_keys(start, stop, plan.settings.seed)
        rows = _rows_by_bucket(intervals, start, keys)
        records = buffer[: len(rows.contexts)]
        _gather_records(plan, sources, rows.contexts, records)
        _append_records(paths, rows.buckets, records)
        bucket_work.advance((stop - start) * plan.row_bytes)


class _SortedContexts(NamedTuple):
    """Contexts that are written to bucket files, sorted by bucket."""

    contexts: NDArray[np.int64]
    """Numbers of the contexts, shape (n_rows,)."""
    buckets: NDArray[np.int64]
    """Number of each context's bucket, ascending, shape (n_rows,)."""


def _rows_by_bucket(
    intervals: _KeyIntervals, first_context: int, keys: NDArray[np.uint64]
) -> _SortedContexts:
    """Find the bucket of each of some consecutive contexts, and sort the contexts by it.

    If the contexts 100 to 103 belong to the buckets 1, none, 0 and 1, the result has the contexts
    102, 100 and 103 with the buckets 0, 1 and 1.

    Args:
        intervals: Which keys belong to which bucket.
        first_context: Number of the first context.
        keys: Key of each context, shape (n_contexts,).
    """
    buckets = intervals.buckets_of(keys)  # (n_contexts,) -1 for a context in no bucket
    in_a_bucket = np.flatnonzero(buckets >= 0)
    order = in_a_bucket[np.argsort(buckets[in_a_bucket], kind="stable")]  # (n_rows,)
    return _SortedContexts(contexts=first_context + order, buckets=buckets[order])


def _gather_records(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    contexts: NDArray[np.int64],
    records: NDArray[np.uint8],
) -> None:
    """Fill an array with a record for each context (sample): its number, then its tokens.

    Args:
        plan: Says which context (sample) goes into which tar.
        sources: The tokens of each source of the plan, such as a corpus.
        contexts: Numbers of the contexts, shape (n_rows,).
        records: The array, shape (n_rows, record_bytes).
    """
    rows = _as_rows(records, plan)  # a view of `records`
    rows.contexts[:] = contexts
    sweep(plan, sources, contexts, rows.tokens)


def _append_records(
    paths: Sequence[Path],
    buckets: NDArray[np.int64],
    records: NDArray[np.uint8],
) -> None:
    """Append records to the files of their buckets.

    Of records with the buckets 0, 0 and 2, the first two go to file 0, and the third to file 2.

    Args:
        paths: File of each bucket.
        buckets: Bucket of each record, ascending, shape (n_rows,).
        records: Shape (n_rows, record_bytes).
    """
    # (n_buckets + 1,) index of the first record of each bucket
    bounds = np.searchsorted(buckets, np.arange(len(paths) + 1))
    buckets_with_records = np.flatnonzero(np.diff(bounds)).tolist()
    for bucket in buckets_with_records:
        with paths[bucket].open("ab") as file:
            file.write(records[bounds[bucket] : bounds[bucket + 1]].data)


class _KeyIntervals(NamedTuple):
    """The keys of the rows of each bucket; a row belongs to the bucket that contains its key."""

    first_keys: NDArray[np.uint64]
    """Lowest key of each bucket, ascending, shape (n_buckets,)."""
    last_keys: NDArray[np.uint64]
    """Highest key of each bucket, shape (n_buckets,)."""

    def buckets_of(self, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the bucket of each key, or -1 for keys of shards that are not written.

        If bucket 0 has the keys 10 to 20, and bucket 1 those from 40 to 50, then the keys 15, 30
        and 40 give 0, -1 and 1.

        Args:
            keys: Shape (n_keys,).

        Returns:
            Shape (n_keys,).
        """
        # The last bucket that begins at or before the key, if it does not end before.
        buckets = np.searchsorted(self.first_keys, keys, side="right") - 1
        buckets[keys > self.last_keys[buckets]] = -1
        return buckets


def _key_intervals(plan: ShufflePlan, ranks: Sequence[range]) -> _KeyIntervals:
    """Return which keys belong to which bucket file.

    The tars have the contexts in the order of their keys, and a bucket file has the contexts of
    some neighbouring tars. So it has all contexts whose keys are in an interval.

    Args:
        plan: Says which context (sample) goes into which tar.
        ranks: For each file, the positions of its contexts in this order. No range is empty.
    """
    # The ends of an interval are the keys at the first and the last rank of the bucket.
    first_ranks = [bucket_ranks[0] for bucket_ranks in ranks]
    last_ranks = [bucket_ranks[-1] for bucket_ranks in ranks]

    # `keys_at` goes through the keys of all contexts, so it is called only once.
    keys = keys_at(plan.table.contexts, plan.settings.seed, np.array([*first_ranks, *last_ranks]))
    n_buckets = len(ranks)
    return _KeyIntervals(first_keys=keys[:n_buckets], last_keys=keys[n_buckets:])


def read_bucket(plan: ShufflePlan, shards: range, path: Path) -> BucketRows:
    """Read a bucket file: the rows of a run of neighbouring shards.

    The rows of a few neighbouring tars were sorted into this file, so that memory can hold them
    when the tars are written.

    Args:
        plan: Says which context (sample) goes into which tar.
        shards: The run.
        path: The bucket file, to which `write_buckets` has appended the rows.

    Returns:
        The tokens of each row and the number of its context, in the order of the sources.

    Raises:
        FormatError: The file has another size than was written to it.
    """
    # The file is a list of records of one size, each with the number of a context and its tokens.
    data = np.fromfile(path, dtype=np.uint8)
    record_bytes = _record_bytes(plan)
    expected_bytes = len(run_ranks(plan, shards)) * record_bytes
    if data.size != expected_bytes:
        raise FormatError(
            "a spill file does not hold the rows that were written to it",
            where=path,
            found=f"{data.size:,} bytes",
            expected=f"{expected_bytes:,} bytes",
            remedy="run again; nothing else may write to the scratch folder",
        )
    records = data.reshape(-1, record_bytes)  # (n_rows, record_bytes)
    return _as_rows(records, plan)


def run_ranks(plan: ShufflePlan, shards: range) -> range:
    """Return which part of the shuffled order neighbouring shards contain.

    A shard is a tar, and the shuffled order is that of all rows of tokens (contexts) in all tars.

    Args:
        plan: Says which context (sample) goes into which tar.
        shards: Numbers of the shards, at least one.

    Returns:
        Positions in the order of all contexts: with 100 contexts in a shard, shards 2 and 3 have
        those from 200 to 400.
    """
    start, _ = plan.shard_ranks(shards[0])
    _, stop = plan.shard_ranks(shards[-1])
    return range(start, stop)


def _record_bytes(plan: ShufflePlan) -> int:
    """Return the size of a record: the number of a context, and its tokens."""
    return NUMBER_BYTES + plan.row_bytes


def _as_rows(records: NDArray[np.uint8], plan: ShufflePlan) -> BucketRows:
    """Return the two fields of records, without copying: writing to them changes the records.

    Args:
        records: Shape (n_rows, record_bytes).
        plan: Plan of the rows. It has the dtype of the tokens.
    """
    contexts = records[:, :NUMBER_BYTES].view(np.int64)[:, 0]
    tokens = records[:, NUMBER_BYTES:].view(plan.dtype)
    return BucketRows(contexts, tokens)


def _check_room(folder: Path, needed_bytes: int) -> None:
    """Check that the disk has room for the bucket files.

    Args:
        folder: Folder of the files.
        needed_bytes: Size of all files.

    Raises:
        StorageError: The disk has too little room.
    """
    free_bytes = shutil.disk_usage(folder).free
    if free_bytes < needed_bytes:
        raise StorageError(
            "too little room for the buckets",
            where=folder.parent,
            found=f"{free_bytes:,} bytes free",
            expected=f"{needed_bytes:,} bytes",
            remedy=(
                "name a scratch folder on a larger disk, give more memory, "
                "or take the engine mmap (no scratch)"
            ),
        )
