"""Rows of all contexts of a plan in a store, in parts: of each, a run of shards takes one range.

A part holds the rows of neighbouring contexts in the global order, and nothing else: which rows
they are follows from its name and the seed. So parts serve every division into runs and groups,
whatever memory these are made with.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Progress
from nanoset_core.stages.webdataset.gathering import STORED_BYTES, sweep
from nanoset_core.stages.webdataset.order import context_keys, keys_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.settings import ShuffleEngine
from nanoset_core.stages.webdataset.sizing import CHUNK_BYTES, ROW_BYTES
from nanoset_core.stages.webdataset.sources import TokenSource, opened_once
from nanoset_core.stages.webdataset.write_options import WriteOptions
from nanoset_core.storage.atomic import UNFINISHED
from nanoset_core.storage.s3_requests import MULTIPART_BYTES
from nanoset_core.storage.store import Store, in_parallel

ROWS = ".rows"
"""Folder of the parts, within that of the tars; unfinished work by their names."""
_PART = re.compile(rf"{re.escape(UNFINISHED)}([1-9]\d*)-from-(\d+)")
_READS_AT_ONCE = 4
_MAX_SWEEPS = 3
"""Sweeps over tokens in a store that cost as much as reading them once, storing their rows and
reading these.
"""
_SENDING_BYTES = 5 * MULTIPART_BYTES
"""Memory of an object that is being sent."""


class _Piece(NamedTuple):
    """Rows that one request reads."""

    part: range
    first_row: int
    """Number of the first row within the part."""
    targets: NDArray[np.int64]
    """Where this row and those after it go, int64, shape (rows,)."""


@dataclass(frozen=True, slots=True)
class StoredRows:
    """The parts of one plan. Its methods raise what the store raises."""

    store: Store
    """Holds them, and those with other numbers of contexts, as builds with other memory leave them."""
    contexts: int
    """In all parts."""
    size: int
    """Contexts in each part but the last."""

    @classmethod
    def of(cls, store: Store, contexts: int, max_contexts: int) -> tuple[StoredRows, list[range]]:
        """Return rows in parts, and the parts that are missing.

        Parts have up to `max_contexts` contexts, or as many as those that another build stored.
        """
        # Size of parts → first contexts of those that are stored
        stored: dict[int, set[int]] = defaultdict(set)
        for entry in store.list():
            match = _PART.fullmatch(entry.name)
            if match is not None:
                stored[int(match[1])].add(int(match[2]))

        # Continue with the part size that has most contexts stored, if memory holds a part or none is
        # missing.
        size = max_contexts
        most_stored = 0
        for candidate, firsts in stored.items():
            is_complete = firsts.issuperset(range(0, contexts, candidate))
            stored_contexts = candidate * len(firsts)
            if (candidate <= max_contexts or is_complete) and stored_contexts > most_stored:
                size = candidate
                most_stored = stored_contexts
        rows = cls(store, contexts, size)
        firsts = stored[size]
        missing = [rows.part(first) for first in range(0, contexts, size) if first not in firsts]
        return rows, missing

    def part(self, context: int) -> range:
        """Return the contexts of the part that holds one of them."""
        start = context - context % self.size
        return range(start, min(start + self.size, self.contexts))

    def name(self, part: range) -> str:
        """Return the name of a part's object."""
        return f"{UNFINISHED}{self.size}-from-{part.start}"

    def has(self, part: range) -> bool:
        """Return whether the store has a part."""
        return self.store.stat(self.name(part)) is not None

    def put(self, part: range, rows: NDArray[np.integer[Any]]) -> None:
        """Store a part's rows, shape (contexts, sequence_length), which are in the global order."""
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
        """Read the rows of contexts that follow each other in the global order, by 32 MiB at once.

        Args:
            plan: Of the rows.
            contexts: Their numbers, int64, shape (contexts,).
            rows: Filled, shape (contexts, sequence_length).
        """

        def read(piece: _Piece) -> None:
            start = piece.first_row * plan.row_bytes
            stop = start + len(piece.targets) * plan.row_bytes
            data = self.store.read_range(self.name(piece.part), start, stop)
            tokens = np.frombuffer(data, dtype=plan.dtype)
            rows[piece.targets] = tokens.reshape(len(piece.targets), -1)

        in_parallel(read, self._pieces(plan, contexts), _READS_AT_ONCE)

    def _pieces(self, plan: ShufflePlan, contexts: NDArray[np.int64]) -> Iterator[_Piece]:
        """Yield the ranges of parts that hold these contexts."""
        step = max(1, CHUNK_BYTES // plan.row_bytes)
        seed = plan.settings.seed
        first_key = keys_of(contexts[:1].astype(np.uint64), seed)

        # Group the contexts by their part; within one they stay in the global order.
        part_of_context = contexts // self.size
        order = np.argsort(part_of_context, kind="stable")
        bounds = np.flatnonzero(np.diff(part_of_context[order])) + 1
        for targets in np.split(order, bounds):
            part = self.part(int(contexts[targets[0]]))
            # Rows of the part that come before all of these contexts.
            part_keys = context_keys(part.start, part.stop, seed)
            first_row = int(np.count_nonzero(part_keys < first_key))
            for start in range(0, len(targets), step):
                yield _Piece(part, first_row + start, targets[start : start + step])


def is_worth_storing(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    max_shards: int,
    engine: ShuffleEngine,
) -> bool:
    """Return whether rows are put into the store: on request, or if all tars would take more than
    three sweeps.

    Args:
        plan: Of the tars.
        sources: Of the plan, in a store.
        max_shards: Shards whose rows one sweep gathers.
        engine: As requested.
    """
    if engine == "buckets":
        return True
    source_bytes = sum(source.bytes for source in sources)
    return plan.shards > _MAX_SWEEPS * max_shards and source_bytes > STORED_BYTES


def store_rows(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    store: Store,
    memory_bytes: int,
    options: WriteOptions,
) -> StoredRows:
    """Put the rows of all contexts into a store, except those parts that it has already; reads each
    token once.

    Args:
        plan: Of the tars.
        sources: Of the plan.
        store: Where the rows go.
        memory_bytes: For each worker.
        options: How shards are written.
    """
    room = max(memory_bytes // 4, memory_bytes - _SENDING_BYTES)
    max_contexts = max(1, room // (plan.row_bytes + ROW_BYTES))
    contexts = plan.table.contexts
    rows, missing = StoredRows.of(store, contexts, max_contexts)

    stored_contexts = contexts - sum(map(len, missing))
    work = partial(_store_part, plan, sources, rows)
    for number, _ in run_tasks(work, missing, options.workers, options.executor):
        stored_contexts += len(missing[number])
        stored_bytes = stored_contexts * plan.row_bytes
        options.listener(Progress("buckets", options.name, stored_bytes, contexts * plan.row_bytes))
    return rows


def _store_part(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    stored: StoredRows,
    part: range,
) -> None:
    """Gather and store one part, in any process."""
    if stored.has(part):  # another build has stored it meanwhile
        return
    contexts = part.start + np.argsort(context_keys(part.start, part.stop, plan.settings.seed))
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    sweep(plan, opened_once(sources), contexts, rows)
    stored.put(part, rows)
