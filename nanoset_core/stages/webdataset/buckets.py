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
    """Sort training samples into temporary files, so that memory can hold the samples of each.

    A dataset is shuffled into tar files (shards), but its tokens do not fit into memory. So the
    sources of text are read once, from start to end, and each sample is appended to the file of its
    tar. Such a file, called a bucket, is for some neighbouring tars:

        bucket-000000    tars 0 to 3
        bucket-000001    tars 4 to 7

    Args:
        plan: Says which sample (context) goes into which tar.
        sources: The tokens of each source, such as web and code.
        shards_by_file: Path of each bucket → its tars, in ascending order. Tars that are in no
            bucket are not written.
        memory_bytes: Memory for the samples that are sorted at once.
        options: How the tars are written, such as where the progress is shown.

    Raises:
        StorageError: The disk has too little room.
    """
    paths = list(shards_by_file)
    # The positions of the samples of each bucket in the shuffled order of all samples: range(0,
    # 400) for the tars 0 to 3, if each has 100 samples.
    ranks = [run_ranks(plan, shards) for shards in shards_by_file.values()]
    record_bytes = _record_bytes(plan)  # a record is the number of a sample, and its tokens
    _check_room(paths[0].parent, sum(map(len, ranks)) * record_bytes)
    intervals = _key_intervals(plan, ranks)

    # Go through all samples in the order of the sources, as many at a time as memory holds.
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
    """Sort some consecutive training samples by the temporary file that each is written to.

    Each sample (context) has a key, a pseudo-random number, and each file (bucket) takes the keys
    of one interval. For example, file 0 takes the keys 10 to 20, and file 1 the keys 40 to 50:

        sample      100    101    102    103          sorted by file:    102    100    103
        key         45     30     15     50
        file        1      none   0      1                               0      1      1

    Args:
        intervals: Which keys belong to which file.
        first_context: Number of the first sample: 100 in the example.
        keys: Key of each sample, shape (n_contexts,).

    Returns:
        The samples that belong to a file.
    """
    buckets = intervals.buckets_of(keys)  # (n_contexts,) [1, -1, 0, 1], where -1 is none
    indices = np.flatnonzero(buckets >= 0)  # [0, 2, 3]
    buckets = buckets[indices]  # [1, 0, 1]

    order = np.argsort(buckets, kind="stable")  # (n_rows,) [1, 0, 2]
    contexts = first_context + indices[order]  # 100 + [2, 0, 3]
    return _SortedContexts(contexts, buckets[order])  # [0, 1, 1]


def _gather_records(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    contexts: NDArray[np.int64],
    records: NDArray[np.uint8],
) -> None:
    """Fill an array with training samples, in the form in which they are written to a file.

    Each sample (context) is a record of bytes: its number, then its tokens. For sample 102 with
    three tokens of 2 bytes each:

        102 (8 bytes) | 5  9  2 (2 bytes each)

    Args:
        plan: Says which tokens each sample has.
        sources: The tokens of each source of text, such as web and code.
        contexts: Numbers of the samples, shape (n_rows,).
        records: The array that is filled, shape (n_rows, record_bytes).
    """
    # The numbers and the tokens of all records, as arrays that share the memory of `records`. So
    # what is written to them is written to the records.
    fields = _as_rows(records, plan)
    fields.contexts[:] = contexts

    # Read the tokens of these samples from the sources.
    sweep(plan, sources, contexts, fields.tokens)


def _append_records(
    paths: Sequence[Path],
    buckets: NDArray[np.int64],
    records: NDArray[np.uint8],
) -> None:
    """Append training samples to the files that they belong to.

    The samples are records of bytes, and are sorted by their file (bucket) already:

        record      0    1    2              file 0 gets the records 0 and 1,
        bucket      0    0    2              file 1 gets none, and file 2 gets record 2

    Args:
        paths: Path of each file.
        buckets: Number of the file of each record, ascending, shape (n_rows,).
        records: Shape (n_rows, record_bytes).
    """
    # The index of each file's first record, and at the end the number of all records.
    bounds = np.searchsorted(buckets, np.arange(len(paths) + 1))  # (n_buckets + 1,) [0, 2, 2, 3]
    buckets_with_records = np.flatnonzero(np.diff(bounds)).tolist()  # [0, 2]
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
        """Return the file (bucket) that each training sample is written to, given its key.

        A key is a pseudo-random number of a sample. Each file takes the samples whose keys are in
        an interval. If file 0 takes the keys 10 to 20, and file 1 those from 40 to 50:

            key      15    30    40
            file     0     -1    1      (-1: no file, since the sample is not to be written)

        Args:
            keys: Shape (n_keys,).

        Returns:
            Shape (n_keys,).
        """
        # A key can only be in the last interval that begins at or before it. If none does, try 0.
        n_intervals_begun = np.searchsorted(self.first_keys, keys, side="right")  # [1, 1, 2]
        files = np.maximum(n_intervals_begun - 1, 0)  # [0, 0, 1]

        # 30 is not in the interval 10 to 20.
        is_inside = (keys >= self.first_keys[files]) & (keys <= self.last_keys[files])
        return np.where(is_inside, files, -1)  # [0, -1, 1]


def _key_intervals(plan: ShufflePlan, ranks: Sequence[range]) -> _KeyIntervals:
    """Return which keys the training samples in each temporary file have.

    Training samples (contexts) have keys, pseudo-random numbers, and the shuffled order is by
    ascending keys. Each temporary file (bucket) gets the samples at some neighbouring positions of
    this order, so their keys are an interval. For two files, with the positions 0 and 1, and 2 and
    3:

        position      0     1     2     3
        key           12    38    71    95        file 0: keys 12 to 38; file 1: keys 71 to 95

    Args:
        plan: Has the number of samples, and the seed of the keys.
        ranks: For each file, the positions of its samples, at least one: [range(0, 2), range(2,
            4)].
    """
    first_positions = [positions[0] for positions in ranks]  # [0, 2]
    last_positions = [positions[-1] for positions in ranks]  # [1, 3]

    # `keys_at` goes through the keys of all samples, so call it only once, for both.
    positions = np.array([*first_positions, *last_positions])
    keys = keys_at(plan.table.contexts, plan.settings.seed, positions)  # [12, 71, 38, 95]
    n_files = len(ranks)
    return _KeyIntervals(first_keys=keys[:n_files], last_keys=keys[n_files:])


def read_bucket(plan: ShufflePlan, shards: range, path: Path) -> BucketRows:
    """Read a temporary file with the training samples of some neighbouring tar files.

    `write_buckets` has written the file. It is a list of records of one size, each with the number
    of a sample (context), and its tokens:

        102 | 5  9  2 ...
        100 | 7  7  1 ...

    Args:
        plan: Says how many samples there are in each tar (shard).
        shards: Numbers of the tars, such as range(4, 8).
        path: Path of the file.

    Returns:
        The number and the tokens of each sample, in the order of the file.

    Raises:
        FormatError: The file has another size than was written to it.
    """
    data = np.fromfile(path, dtype=np.uint8)
    record_bytes = _record_bytes(plan)
    n_samples = len(run_ranks(plan, shards))
    expected_bytes = n_samples * record_bytes
    if data.size != expected_bytes:
        raise FormatError(
            "a temporary file has another size than was written to it",
            where=path,
            found=f"{data.size:,} bytes",
            expected=f"{expected_bytes:,} bytes",
            remedy="run again; nothing else may write to the scratch folder",
        )
    records = data.reshape(-1, record_bytes)  # (n_rows, record_bytes)
    return _as_rows(records, plan)


def run_ranks(plan: ShufflePlan, shards: range) -> range:
    """Return which positions of the shuffled order some neighbouring tar files contain.

    All training samples are shuffled, and then divided among tars (shards) in this order. With 100
    samples in a tar:

        tar            0        1          2          3
        positions      0-99     100-199    200-299    300-399

    The tars 2 and 3 give range(200, 400).

    Args:
        plan: Says which sample goes into which tar.
        shards: Numbers of the tars, at least one, such as range(2, 4).
    """
    start, _ = plan.shard_ranks(shards[0])
    _, stop = plan.shard_ranks(shards[-1])
    return range(start, stop)


def _record_bytes(plan: ShufflePlan) -> int:
    """Return the size of a record: the number of a context, and its tokens."""
    return NUMBER_BYTES + plan.row_bytes


def _as_rows(records: NDArray[np.uint8], plan: ShufflePlan) -> BucketRows:
    """Return the numbers and the tokens of samples that are given as records of bytes.

    A record has 8 bytes for the number of a training sample, and then its tokens. The two arrays of
    the result are views: they share the memory of the records, and writing to them changes these.

    Args:
        records: Shape (n_rows, record_bytes).
        plan: Its dtype, such as uint16, says how the tokens are stored.
    """
    contexts = records[:, :NUMBER_BYTES].view(np.int64)[:, 0]  # (n_rows,)
    tokens = records[:, NUMBER_BYTES:].view(plan.dtype)  # (n_rows, sequence_length)
    return BucketRows(contexts, tokens)


def _check_room(folder: Path, needed_bytes: int) -> None:
    """Check that the disk has room for the temporary files into which samples are sorted.

    Without this check, a build of some hours may end with a full disk.

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
