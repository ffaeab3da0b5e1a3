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
from nanoset_core.stages.webdataset.gathering import STORED_BYTES, sweep
from nanoset_core.stages.webdataset.order import context_keys, keys_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import ShuffleEngine
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES, ROW_BYTES
from nanoset_core.stages.webdataset.sources import TokenSource, opened_once
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.s3_parts import MULTIPART_BYTES
from nanoset_core.storage.store import Store, in_parallel

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
    targets: NDArray[np.int64]
    """Index in the result of this row and each one after it; shape (n_rows,)."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The stored rows of one plan, in parts of one size."""

    store: Store
    """Store of the parts. It may also have parts of another size, from builds with other memory."""
    contexts: int
    """Number of contexts in all parts."""
    size: int
    """Number of contexts in each part except the last one."""

    @classmethod
    def of(cls, store: Store, contexts: int, max_contexts: int) -> tuple[StoredRows, list[range]]:
        """Find which shuffled rows of tokens a bucket has already, and list those that are missing.

        Every context (sample) of a plan has a row of tokens. A part is an object with the rows of a
        fixed number of consecutive contexts. A build that was killed leaves some of the parts, and
        the next build adds the missing ones. If 250 contexts are stored in parts of 100, and only
        that of 0 to 100 exists, the parts 100 to 200 and 200 to 250 are missing.

        Args:
            store: Store of the parts.
            contexts: Number of contexts of the plan.
            max_contexts: Most contexts of a part that this build holds in memory.

        Returns:
            (The stored rows, the contexts of each missing part).
        """
        first_contexts_by_size = _stored_parts(store)
        size = _size_of_parts(first_contexts_by_size, contexts, max_contexts)
        stored_rows = cls(store, contexts, size)

        stored_first_contexts = first_contexts_by_size.get(size, set())
        missing_parts: list[range] = []
        for first_context in range(0, contexts, size):
            if first_context not in stored_first_contexts:
                missing_parts.append(stored_rows.part(first_context))
        return stored_rows, missing_parts

    def part(self, context: int) -> range:
        """Return which rows (contexts) are stored together with the row of a context.

        Args:
            context: Number of the context.

        Returns:
            Numbers of contexts: with parts of 100, context 250 is in that of 200 to 300.
        """
        start = context - context % self.size
        return range(start, min(start + self.size, self.contexts))

    def name(self, part: range) -> str:
        """Return the name of a part's object in the store.

        Args:
            part: The contexts of the part.

        Returns:
            The prefix of unfinished files, the size of a full part, and the first context.
        """
        return f"{UNFINISHED}{self.size}-from-{part.start}"

    def has(self, part: range) -> bool:
        """Return whether the store has a part; it takes a request.

        Args:
            part: The contexts of the part.
        """
        return self.store.stat(self.name(part)) is not None

    def put(self, part: range, rows: NDArray[np.integer[Any]]) -> None:
        """Store the rows of a part as one object.

        A part has the rows of some consecutive contexts (samples), such as 0 to 1,000.

        Args:
            part: The contexts of the part.
            rows: Their tokens, shape (n_contexts, sequence_length), at least one row, in the
                shuffled order of the contexts.

        Raises:
            StorageError: The object cannot be written.
        """
        step = max(1, CHUNK_BYTES // rows[0].nbytes)
        starts = range(0, len(rows), step)
        blocks = (rows[start : start + step].tobytes() for start in starts)
        self.store.put_parts(self.name(part), blocks)

    def read(
        self,
        plan: ShufflePlan,
        contexts: NDArray[np.int64],
        rows: NDArray[np.integer[Any]],
    ) -> None:
        """Read the stored rows of contexts that are neighbours in the shuffled order.

        A row is the tokens of a context. One request reads at most CHUNK_BYTES, and
        `_READS_AT_ONCE` requests are sent at the same time.

        Args:
            plan: Plan of the rows.
            contexts: Numbers of the contexts, in the shuffled order, shape (n_contexts,).
            rows: Where the rows are written, in the same order, shape
                (n_contexts, sequence_length).
        """

        def read_range(row_range: _RowRange) -> None:
            """Read neighbouring rows of a part with one request, and put each in its place."""
            n_rows = len(row_range.targets)
            start_byte = row_range.first_row * plan.row_bytes
            stop_byte = start_byte + n_rows * plan.row_bytes
            data = self.store.read_range(self.name(row_range.part), start_byte, stop_byte)
            tokens = np.frombuffer(data, dtype=plan.dtype)
            rows[row_range.targets] = tokens.reshape(n_rows, -1)

        in_parallel(read_range, self._row_ranges(plan, contexts), _READS_AT_ONCE)

    def _row_ranges(self, plan: ShufflePlan, contexts: NDArray[np.int64]) -> Iterator[_RowRange]:
        """Yield the ranges of stored rows that contain the rows of some contexts, one per request.

        A part is a stored file with the rows of a range of contexts. In the file they are sorted by
        their keys, which are pseudo-random numbers that define the shuffled order. The requested
        contexts are neighbours in this order, so their rows are consecutive in each part.

        Args:
            plan: Says which context (sample) goes into which tar.
            contexts: Numbers of the contexts, in the shuffled order, shape (n_contexts,).
        """
        rows_per_request = max(1, CHUNK_BYTES // plan.row_bytes)
        lowest_key = keys_of(contexts[:1].astype(np.uint64), plan.settings.seed)
        for indices in self._indices_by_part(contexts):  # of the contexts of one part
            part = self.part(int(contexts[indices[0]]))
            first_row = _n_lower_keys(part, lowest_key, plan.settings.seed)
            for start in range(0, len(indices), rows_per_request):
                targets = indices[start : start + rows_per_request]
                yield _RowRange(part, first_row + start, targets)

    def _indices_by_part(self, contexts: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Return the indices of the contexts of each part that holds some of them.

        Args:
            contexts: Numbers of contexts, shape (n_contexts,), at least one. Within a group, their
                order is kept.
        """
        part_of_context = contexts // self.size  # (n_contexts,)
        order = np.argsort(part_of_context, kind="stable")
        group_starts = np.flatnonzero(np.diff(part_of_context[order])) + 1
        return np.split(order, group_starts)


def _n_lower_keys(part: range, key: NDArray[np.uint64], seed: int) -> int:
    """Return how many contexts of a part have lower keys than a given one.

    A part stores the rows of its contexts in the order of their keys. So this is the number of the
    first row whose context has the given key or a higher one.

    Args:
        part: Numbers of the contexts of the part.
        key: The key, shape (1,).
        seed: Seed of the keys.
    """
    part_keys = context_keys(part.start, part.stop, seed)
    return int(np.count_nonzero(part_keys < key))


def _stored_parts(store: Store) -> dict[int, set[int]]:
    """Return which parts of a plan's rows a store has.

    A part has the rows of a fixed number of consecutive contexts. The store may have parts of
    several sizes, from builds with different memory.

    Returns:
        Number of contexts in a full part → number of the first context of each stored part.
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
    """Return the size of the parts that a build uses: the one of which most rows are stored.

    Missing parts are gathered in memory. So parts that are too large for it can be used only if
    none of them is missing.

    Args:
        first_contexts_by_size: The stored parts: number of contexts in a full part → the first
            context of each, such as `{100: {0, 200}}`.
        contexts: Number of contexts of the plan.
        max_contexts: Most contexts of a part that memory holds.

    Returns:
        Number of contexts in a part; `max_contexts` if no stored part can be used.
    """
    size = max_contexts
    most_stored = 0
    for part_size, first_contexts in first_contexts_by_size.items():
        is_complete = first_contexts.issuperset(range(0, contexts, part_size))
        is_usable = is_complete or part_size <= max_contexts
        n_stored = part_size * len(first_contexts)
        if is_usable and n_stored > most_stored:
            size = part_size
            most_stored = n_stored
    return size


def is_worth_storing(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    max_shards: int,
    engine: ShuffleEngine,
) -> bool:
    """Return whether tars are written faster if all rows are stored in shuffled order first.

    A row is the tokens of one sample, and a shard is a tar of samples. Without stored rows, all
    sources are read again for each group of shards that memory holds.

    Args:
        plan: Says which context (sample) goes into which tar.
        sources: Sources of the plan, in a store.
        max_shards: Shards whose rows memory holds at once.
        engine: Engine that the user requested; `buckets` requests stored rows.

    Returns:
        False for few tokens or few tars, which are written without storing rows.
    """
    if engine == "buckets":
        return True
    # Storing the rows costs about as much as reading all tokens a few times. If there are few
    # tokens, they stay on this machine's disk, and reading them again costs nothing.
    needs_many_sweeps = plan.shards > _MAX_SWEEPS * max_shards
    source_bytes = sum(source.bytes for source in sources)
    return needs_many_sweeps and source_bytes > STORED_BYTES


def store_rows(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    store: Store,
    memory_bytes: int,
    options: WriteOptions,
) -> StoredRows:
    """Store the rows of all contexts in shuffled order, so that tars can be written from them.

    A context is a sample, and its row is its tokens. The rows are stored in parts, each of as many
    rows as a worker can hold. Parts that an interrupted build has stored are kept.

    Args:
        plan: Says which context (sample) goes into which tar.
        sources: The tokens of each source of the plan, such as a corpus.
        store: Where the rows go.
        memory_bytes: Memory of each worker.
        options: How the tars are written, such as the number of processes.

    Returns:
        The stored rows, from which tars can be written.
    """
    max_contexts = _contexts_in_memory(plan, memory_bytes)
    stored_rows, missing_parts = StoredRows.of(store, plan.table.contexts, max_contexts)

    # Store the missing parts in several processes. Tasks are numbered like `missing_parts`.
    progress = _begin_progress(plan, missing_parts, options)
    store_part = partial(_store_part, plan, sources, stored_rows)
    for task, _ in run_tasks(store_part, missing_parts, options.workers, options.executor):
        progress.advance(len(missing_parts[task]) * plan.row_bytes)
    return stored_rows


def _begin_progress(
    plan: ShufflePlan, missing_parts: Sequence[range], options: WriteOptions
) -> RunningWork:
    """Begin to report how many bytes of rows are stored; the parts that exist count as done.

    Args:
        plan: Says which context (sample) goes into which tar.
        missing_parts: The contexts of each part that is not stored yet.
        options: They have the receiver of the progress.
    """
    total_bytes = plan.table.contexts * plan.row_bytes
    missing_bytes = sum(map(len, missing_parts)) * plan.row_bytes
    progress = options.progress.work("buckets", options.name, total_bytes)
    progress.add_existing(Amount(total_bytes - missing_bytes))
    return progress


def _contexts_in_memory(plan: ShufflePlan, memory_bytes: int) -> int:
    """Return how many contexts a part may have, at least one, so that a worker can store it.

    The worker holds the rows of one part, and the blocks of it that are being sent. If memory is so
    small that these blocks take nearly all of it, a quarter is used for the rows.

    Args:
        plan: Says which context (sample) goes into which tar.
        memory_bytes: Memory of each worker.
    """
    memory_for_rows = max(memory_bytes // 4, memory_bytes - _SENDING_BYTES)
    return max(1, memory_for_rows // (plan.row_bytes + ROW_BYTES))


def _store_part(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    stored: StoredRows,
    part: range,
) -> None:
    """Gather the rows of one part, and store them in shuffled order; runs in a worker process.

    A part has the rows of some neighbouring contexts. A row is the tokens of one context.

    Args:
        plan: Says which context (sample) goes into which tar.
        sources: The tokens of each source of the plan, such as a corpus.
        stored: Where the parts are stored.
        part: Numbers of the contexts of the part.
    """
    if stored.has(part):  # another build has just stored it
        return
    # The shuffled order is that of the contexts' keys.
    keys = context_keys(part.start, part.stop, plan.settings.seed)
    contexts = part.start + np.argsort(keys)

    # `sweep` reads the sources once, and writes the tokens of each context into its row.
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    sweep(plan, opened_once(sources), contexts, rows)
    stored.put(part, rows)
