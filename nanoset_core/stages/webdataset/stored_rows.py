"""Store the rows of a plan in a bucket, shuffled, so that each run of shards can read its own.

If the tokens are in a bucket and memory holds only a few shards, every run would sweep over all
tokens again. Instead, the tokens are read once and their rows are stored in parts. A part is an
object with the rows of some neighbouring contexts, in the global (shuffled) order. The rows that a
run of shards needs of a part are therefore neighbours, and one range request reads them.

A part holds nothing but rows. Which contexts they are follows from the part's name and the seed, so
that parts can be used for any division of the shards into runs and groups.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Amount, RunningWork
from nanoset_core.stages.webdataset.gathering import MAX_KEPT_BYTES, sweep
from nanoset_core.stages.webdataset.order import context_keys, keys_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import ShuffleEngine
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES, ROW_BYTES
from nanoset_core.stages.webdataset.sources import TokenSource, opened_once
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.requests import in_parallel
from nanoset_core.storage.store import Store
from nanoset_core.storage.stores.s3.parts import MULTIPART_BYTES

ROWS = ".rows"
"""Folder of the parts, within the folder of the tars."""
_PART = re.compile(rf"{re.escape(UNFINISHED)}([1-9]\d*)-from-(\d+)")
"""Name of a part's object: contexts of a full part, and the first context of this one.

It begins like the names of unfinished files: a part is removed with them.
"""
_READS_AT_ONCE = 4
"""Requests for ranges of parts that are sent at the same time."""
_MAX_SWEEPS = 3
"""Up to this many sweeps over the tokens are cheaper than storing their rows and reading these."""
_SENDING_BYTES = 5 * MULTIPART_BYTES
"""Memory that an object takes while it is sent."""


class _RowRange(NamedTuple):
    """Neighbouring rows of a part, which one request reads."""

    part: range
    """The contexts of the part."""
    first_row: int
    """Number of the first row within the part."""
    indices: NDArray[np.int64]
    """For this row and each one after it, its index in the result; shape (n_rows,)."""

    def divided(self, max_rows: int) -> Iterator[_RowRange]:
        """Yield ranges of at most so many rows, which together are this one."""
        for start in range(0, len(self.indices), max_rows):
            stop = start + max_rows
            yield _RowRange(self.part, self.first_row + start, self.indices[start:stop])


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The stored rows of one plan, in parts of one size."""

    store: Store
    """Store of the parts. It may also have parts of another size, from builds with other memory."""
    contexts: int
    """Number of contexts in all parts."""
    size: int
    """Number of contexts in each part except the last one."""
    existing_parts: frozenset[int] = frozenset()
    """First context of each part that earlier builds have stored."""

    @classmethod
    def of(cls, store: Store, contexts: int, max_contexts: int) -> StoredRows:
        """Find which shuffled tokens earlier builds have stored in a bucket.

        Every training sample (context) has a row of tokens. The rows are stored in parts, each with
        the rows of as many consecutive samples. A build that was killed leaves some of the parts,
        and the next build adds the others. For 250 samples in parts of 100:

            part          0-99     100-199    200-249
            is stored     yes      no         no

        So `size` is 100, and `existing_parts` is {0}.

        Args:
            store: Store of the parts, such as a folder in a bucket.
            contexts: Number of samples, 250 in the example.
            max_contexts: How many samples of a part this build can hold in memory at most. Parts of
                earlier builds may have another size, which is then used if possible.
        """
        first_contexts_by_size = _stored_parts(store)  # {100: {0}}
        size = _size_of_parts(first_contexts_by_size, contexts, max_contexts)  # 100
        existing_parts = frozenset(first_contexts_by_size.get(size, ()))  # {0}
        return cls(store, contexts, size, existing_parts)

    def missing_parts(self) -> list[range]:
        """Return the training samples of each part that was not stored by an earlier build.

        For 250 samples in parts of 100, of which the first one is stored: [range(100, 200),
        range(200, 250)].
        """
        missing_parts: list[range] = []
        for first_context in range(0, self.contexts, self.size):  # 0, 100, 200
            if first_context not in self.existing_parts:
                missing_parts.append(self.part(first_context))
        return missing_parts

    def part(self, context: int) -> range:
        """Return which training samples (contexts) are stored in one object together with this one.

        With 100 samples in an object, sample 250 is stored with 200 to 299.

        Args:
            context: Number of the sample.
        """
        start = context - context % self.size
        return range(start, min(start + self.size, self.contexts))

    def name(self, part: range) -> str:
        """Return the name of the object in which the tokens of some training samples are stored.

        It has the number of samples in a full object, and the first sample of this one, such as
        "100-from-200". Before that is the prefix that all unfinished files have, so that the object
        is deleted with them.

        Args:
            part: Numbers of the samples, such as range(200, 300).
        """
        return f"{UNFINISHED}{self.size}-from-{part.start}"

    def has(self, part: range) -> bool:
        """Return whether the store has a part; it takes a request.

        Args:
            part: The contexts of the part.
        """
        return self.store.stat(self.name(part)) is not None

    def put(self, part: range, rows: NDArray[np.integer[Any]]) -> None:
        """Store the tokens of some consecutive training samples as one object in the bucket.

        The object has the tokens and nothing else, row after row. It is sent in blocks of some
        rows, so that no copy of all bytes is needed.

        Args:
            part: Numbers of the samples (contexts), such as range(100, 200). They are in the name
                of the object.
            rows: Their tokens, shape (n_contexts, sequence_length), at least one row. The rows are
                in the order in which the samples will be after the shuffle.

        Raises:
            StorageError: The object cannot be written.
        """
        rows_per_block = max(1, CHUNK_BYTES // rows[0].nbytes)
        starts = range(0, len(rows), rows_per_block)
        blocks = (rows[start : start + rows_per_block].tobytes() for start in starts)
        self.store.put_parts(self.name(part), blocks)

    def read(
        self,
        plan: ShufflePlan,
        contexts: NDArray[np.int64],
        rows: NDArray[np.integer[Any]],
    ) -> None:
        """Read the tokens of some training samples from a bucket, with as few requests as possible.

        The tokens are stored in several objects (parts), one row for each sample. An object has the
        samples of a range of numbers, in their shuffled order. The requested samples, here 2, 5, 0
        and 7, follow each other in this order. So they are neighbours in each object, too, and one
        request reads them:

            shuffled order              3  6  1  4 [2  5  0  7]
            object of samples 0 to 3    3     1    [2     0   ]
            object of samples 4 to 7       6     4 [   5     7]

        Args:
            plan: Says which sample (context) goes into which tar.
            contexts: Numbers of the samples, in the shuffled order, shape (n_contexts,).
            rows: Where the tokens are written, in the same order, shape (n_contexts,
                sequence_length).
        """

        read_into_rows = partial(self._read_row_range, plan, rows)
        # Send _READS_AT_ONCE (4) requests at the same time.
        in_parallel(read_into_rows, self._row_ranges(plan, contexts), _READS_AT_ONCE)

    def _read_row_range(
        self, plan: ShufflePlan, rows: NDArray[np.integer[Any]], row_range: _RowRange
    ) -> None:
        """Read neighbouring rows of an object with one request, and put each into its place.

        For example, rows 2 and 3 of an object are those of the first and the third of four samples:
        they become rows 0 and 2 of the result.

        Args:
            plan: Says how many bytes a row has, and the type of tokens.
            rows: The result, shape (n_contexts, sequence_length).
            row_range: Which rows of which object, and their indices in the result: [0, 2].
        """
        n_rows = len(row_range.indices)
        start_byte = row_range.first_row * plan.row_bytes
        stop_byte = start_byte + n_rows * plan.row_bytes
        data = self.store.read_range(self.name(row_range.part), start_byte, stop_byte)
        tokens = np.frombuffer(data, dtype=plan.dtype)  # of all these rows
        rows[row_range.indices] = tokens.reshape(n_rows, -1)

    def _row_ranges(self, plan: ShufflePlan, contexts: NDArray[np.int64]) -> Iterator[_RowRange]:
        """Yield which rows each request has to read to get some training samples from a bucket.

        Each sample (context) has a key, a pseudo-random number. The shuffled order of the samples
        is the order of their keys. They are stored in objects (parts), each with the samples of a
        range of numbers, also in the order of their keys. For example, 2, 5, 0 and 7 are requested:

            samples in shuffled order       3   6   1   4  [2   5   0   7]
            their keys                      12  20  38  51  71  80  95  99
            row in object "samples 0-3"     0       1      [2       3    ]
            row in object "samples 4-7"         0       1  [    2       3]

        The requested samples follow each other in the shuffled order, so they do so in each object,
        too: rows 2 and 3. The first of these is found by counting the samples of the object with
        lower keys, which are stored before it.

        Args:
            plan: Says which sample goes into which tar.
            contexts: Numbers of the samples, in the shuffled order, shape (n_contexts,).
        """
        seed = plan.settings.seed
        [lowest_key] = keys_of(contexts[:1].astype(np.uint64), seed)  # 71, of sample 2
        rows_per_request = max(1, CHUNK_BYTES // plan.row_bytes)

        # For each object, the indices of its samples in `contexts`: [0, 2] for samples 2 and 0.
        for indices in self._indices_by_part(contexts):
            part = self.part(int(contexts[indices[0]]))  # range(0, 4)
            first_row = _n_lower_keys(part, lowest_key, seed)  # 2, since 3 and 1 have lower keys
            yield from _RowRange(part, first_row, indices).divided(rows_per_request)

    def _indices_by_part(self, contexts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Group training samples by the stored object (part) that has their tokens.

        With 4 samples (contexts) in each object, the samples [2, 5, 0, 7] give two groups of
        indices: [0, 2] for the object with the samples 0 to 3, and [1, 3] for that with 4 to 7.

        Args:
            contexts: Numbers of the samples, shape (n_contexts,), at least one. Their order is kept
                within a group.
        """
        part_of_context = contexts // self.size  # (n_contexts,) [0, 1, 0, 1]
        order = np.argsort(part_of_context, kind="stable")  # [0, 2, 1, 3]

        # Cut where the part changes: the sorted parts are [0, 0, 1, 1], so before index 2.
        group_starts = np.flatnonzero(np.diff(part_of_context[order])) + 1  # [2]
        return np.split(order, group_starts)


def _n_lower_keys(part: range, key: np.uint64, seed: int) -> int:
    """Return how many of some consecutive training samples have a lower key than the given one.

    A key is a pseudo-random number of a sample. The tokens of these samples are stored in a bucket
    in the order of their keys. So the result is the first stored row with the given key or a higher
    one. For the key 80:

        sample        3     1     2     0
        its key       12    38    71    95        3 keys are lower than 80
        stored row    0     1     2     3         so row 3 is the first one

    Args:
        part: Numbers of the samples (contexts), such as range(0, 4).
        key: The key.
        seed: Seed of the keys.
    """
    keys_of_part = context_keys(part.start, part.stop, seed)
    return int(np.count_nonzero(keys_of_part < key))


def _stored_parts(store: Store) -> dict[int, set[int]]:
    """Return which objects with tokens of training samples earlier builds have stored.

    Each object (part) has the tokens of some consecutive samples, and its name says of which:
    one whose name ends with "100-from-200" has 100 samples, from number 200 on. Builds with more
    memory store larger parts, so there may be several sizes.

    Args:
        store: A folder in a bucket.

    Returns:
        Samples in a full part → number of the first sample of each stored part, such as
        {100: {0, 200}, 500: {0}}.
    """
    first_contexts_by_size: dict[int, set[int]] = defaultdict(set)
    for entry in store.list():
        match = _PART.fullmatch(entry.name)
        if match is not None:
            part_size = int(match[1])
            first_context = int(match[2])
            first_contexts_by_size[part_size].add(first_context)
    return dict(first_contexts_by_size)


def _size_of_parts(
    first_contexts_by_size: Mapping[int, set[int]], contexts: int, max_contexts: int
) -> int:
    """Choose how many training samples are stored together, so that most stored ones can be used.

    Samples are stored in parts of one size, each an object with the tokens of some consecutive
    samples. Builds that were killed may have left parts of several sizes, depending on their
    memory. For 1,000 samples, of which memory holds 200 at once:

        size of a part    first sample of the stored parts    stored    can this size be used?
        100               0, 200, 700                         300       yes: missing parts can be
                                                                        added, since they fit
        400               0, 400, 800                         1,200     yes: no part is missing
        500               0                                   500       no

    Of these, 400 is chosen, since it has the most stored samples.

    Args:
        first_contexts_by_size: Size of the stored parts → the first sample of each.
        contexts: Number of all samples.
        max_contexts: Most samples of a part that memory holds. This is the size if no stored part
            can be used.
    """
    n_stored_by_size: dict[int, int] = {}
    for size, first_contexts in first_contexts_by_size.items():
        needed_first_contexts = range(0, contexts, size)  # such as 0 and 500
        is_complete = first_contexts.issuperset(needed_first_contexts)
        fits_into_memory = size <= max_contexts
        if is_complete or fits_into_memory:
            # The last part may have fewer samples, but counts as a full one: that is close enough.
            n_stored_by_size[size] = size * len(first_contexts)
    if not n_stored_by_size:
        return max_contexts
    return max(n_stored_by_size, key=n_stored_by_size.__getitem__)


def is_worth_storing(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    max_shards: int,
    engine: ShuffleEngine,
) -> bool:
    """Decide whether to store the samples of tar files in a bucket first, in shuffled order.

    The samples of each tar (shard) are spread over all tokens, and memory holds the samples of a
    few tars only. For 100 tars, of which memory holds 5:

        samples are stored first    all tokens are read once, and then each tar reads its own
        they are not                all tokens are read 20 times, once for each 5 tars (a sweep)

    Args:
        plan: Says which sample goes into which tar.
        sources: The tokens, in a store such as a bucket.
        max_shards: Tars whose samples memory holds at once.
        engine: The engine that the user requested. `buckets` asks for storing.
    """
    if engine == "buckets":
        return True
    # Storing costs about as much as _MAX_SWEEPS (3) sweeps.
    needs_many_sweeps = plan.shards > _MAX_SWEEPS * max_shards
    # Few tokens stay on this machine's disk after the first sweep, so that others cost nothing.
    source_bytes = sum(source.bytes for source in sources)
    return needs_many_sweeps and source_bytes > MAX_KEPT_BYTES


def store_rows(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    store: Store,
    memory_bytes: int,
    options: WriteOptions,
) -> StoredRows:
    """Store the tokens of all training samples in a bucket, in shuffled order.

    Afterwards tar files with the shuffled samples can be written, without reading all tokens for
    every tar. The samples are stored in parts, each of as many as a worker process can hold in
    memory, and each part is a task of its own.

    Args:
        plan: Says which sample (context) goes into which tar.
        sources: The tokens of each source of text, such as web and code.
        store: Where the samples go.
        memory_bytes: Memory of each worker.
        options: How the tars are written, such as the number of processes.

    Returns:
        The stored samples.
    """
    # Parts that an interrupted build has stored are kept.
    max_contexts = _contexts_in_memory(plan, memory_bytes)
    stored_rows = StoredRows.of(store, plan.table.contexts, max_contexts)
    missing_parts = stored_rows.missing_parts()

    progress = _begin_progress(plan, missing_parts, options)
    store_part = partial(_store_part, plan, sources, stored_rows)
    for index, _ in run_tasks(store_part, missing_parts, options.workers, options.executor):
        n_stored = len(missing_parts[index])
        progress.advance(n_stored * plan.row_bytes)
    return stored_rows


def _begin_progress(
    plan: ShufflePlan, missing_parts: Sequence[range], options: WriteOptions
) -> RunningWork:
    """Begin to show the progress of storing the tokens of all training samples, in bytes.

    If an interrupted build has stored some of them, the progress does not start at 0. With 250
    samples of 4 kB, of which 150 are missing, it starts at 400 of 1,000 kB.

    Args:
        plan: Says how many samples there are.
        missing_parts: Numbers of the missing samples, [range(100, 200), range(200, 250)] here.
        options: Say where the progress is shown.
    """
    total_bytes = plan.table.contexts * plan.row_bytes
    missing_bytes = sum(map(len, missing_parts)) * plan.row_bytes
    progress = options.progress.work("buckets", options.name, total_bytes)
    progress.add_existing(Amount(total_bytes - missing_bytes))
    return progress


def _contexts_in_memory(plan: ShufflePlan, memory_bytes: int) -> int:
    """Return how many training samples (contexts) a worker process may hold in memory.

    The worker collects the tokens of these samples, and then sends them to a bucket as one object.

    Args:
        plan: Says how many bytes a sample has.
        memory_bytes: Memory of the worker.

    Returns:
        At least 1.
    """
    # The blocks that are being sent need _SENDING_BYTES. If little remains, take a quarter of the
    # memory for the samples all the same.
    memory_for_samples = max(memory_bytes - _SENDING_BYTES, memory_bytes // 4)
    bytes_per_sample = plan.row_bytes + ROW_BYTES  # its tokens, and what is noted about it
    return max(1, memory_for_samples // bytes_per_sample)


def _store_part(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    stored: StoredRows,
    part: range,
) -> None:
    """Collect the tokens of some consecutive training samples, and store them in shuffled order.

    The shuffled order sorts samples (contexts) by keys, which are pseudo-random numbers. For the
    samples 100 to 103:

        sample      100    101    102    103
        key         71     12     95     38       →  stored in the order 101, 103, 100, 102

    This runs in a worker process.

    Args:
        plan: Says which tokens each sample has.
        sources: The tokens of each source of text, such as web and code.
        stored: The bucket, and which samples are stored together.
        part: Numbers of the samples, such as range(100, 104).
    """
    if stored.has(part):  # another build has just stored it
        return
    keys = context_keys(part.start, part.stop, plan.settings.seed)
    contexts = part.start + np.argsort(keys)  # 100 + [1, 3, 0, 2]

    # `sweep` reads the sources once, and writes the tokens of each sample into its row.
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    sweep(plan, opened_once(sources), contexts, rows)
    stored.put(part, rows)
