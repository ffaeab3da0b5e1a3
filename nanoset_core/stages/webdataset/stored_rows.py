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
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.execution.processes import run_tasks
from nanoset_core.execution.progress import Amount
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


class _Piece(NamedTuple):
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
        """Return the stored rows of a plan, and the parts that have not been stored yet.

        Every context of a plan has a row of tokens. The rows are stored in parts, each of a range
        of contexts. A build that was killed leaves some of them.

        Args:
            store: Store of the parts.
            contexts: Number of contexts of the plan.
            max_contexts: Size of a part that memory holds. Parts that another build has stored are
                used, too: smaller ones, and larger ones if none of them is missing.
        """
        first_contexts_by_size: dict[int, set[int]] = defaultdict(set)  # of the stored parts
        for entry in store.list():
            match = _PART.fullmatch(entry.name)
            if match is not None:
                part_size = int(match[1])
                first_context = int(match[2])
                first_contexts_by_size[part_size].add(first_context)

        # Parts of several sizes may be stored: resume with the size that covers most contexts.
        # Missing parts must be gathered in memory, so their size must not be too large.
        size = max_contexts
        most_stored = 0
        for part_size, first_contexts in first_contexts_by_size.items():
            is_complete = first_contexts.issuperset(range(0, contexts, part_size))
            is_usable = is_complete or part_size <= max_contexts
            n_stored = part_size * len(first_contexts)
            if is_usable and n_stored > most_stored:
                size = part_size
                most_stored = n_stored

        stored_rows = cls(store, contexts, size)
        missing_parts: list[range] = []
        for first_context in range(0, contexts, size):
            if first_context not in first_contexts_by_size[size]:
                missing_parts.append(stored_rows.part(first_context))
        return stored_rows, missing_parts

    def part(self, context: int) -> range:
        """Return the contexts of the part that holds a context."""
        start = context - context % self.size
        return range(start, min(start + self.size, self.contexts))

    def name(self, part: range) -> str:
        """Return the name of a part's object."""
        return f"{UNFINISHED}{self.size}-from-{part.start}"

    def has(self, part: range) -> bool:
        """Return whether the store has a part."""
        return self.store.stat(self.name(part)) is not None

    def put(self, part: range, rows: NDArray[np.integer[Any]]) -> None:
        """Store a part's rows, shape (n_contexts, sequence_length), in the global order."""
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
        """Read the rows of contexts that are neighbours in the global order.

        Up to 32 MiB are requested at the same time.

        Args:
            plan: Plan of the rows.
            contexts: Numbers of the contexts, in the global order, shape (n_contexts,).
            rows: Where the rows are written, shape (n_contexts, sequence_length).
        """

        def read_piece(piece: _Piece) -> None:
            """Read neighbouring rows of a part with one request."""
            n_rows = len(piece.targets)
            start_byte = piece.first_row * plan.row_bytes
            stop_byte = start_byte + n_rows * plan.row_bytes
            data = self.store.read_range(self.name(piece.part), start_byte, stop_byte)
            tokens = np.frombuffer(data, dtype=plan.dtype)
            rows[piece.targets] = tokens.reshape(n_rows, -1)

        in_parallel(read_piece, self._pieces(plan, contexts), _READS_AT_ONCE)

    def _pieces(self, plan: ShufflePlan, contexts: NDArray[np.int64]) -> Iterator[_Piece]:
        """Yield the ranges of stored parts that contain the rows of some contexts, one per request.

        A part has the rows of neighbouring contexts, in the order of their keys. The shuffled order
        is by the keys of all contexts, so its neighbours are scattered over all parts, but within
        each part their rows are neighbours, too.

        Args:
            plan: Plan of the tars.
            contexts: Numbers of the contexts, neighbours in the shuffled order, shape
                (n_contexts,).
        """
        rows_per_request = max(1, CHUNK_BYTES // plan.row_bytes)
        seed = plan.settings.seed
        lowest_key = keys_of(contexts[:1].astype(np.uint64), seed)  # of the first context

        # Group the contexts by their part; within one they stay in the shuffled order.
        part_of_context = contexts // self.size  # (n_contexts,)
        order = np.argsort(part_of_context, kind="stable")
        group_starts = np.flatnonzero(np.diff(part_of_context[order])) + 1
        for targets in np.split(order, group_starts):  # indices in `contexts`
            part = self.part(int(contexts[targets[0]]))
            # All rows of the part with lower keys precede those of these contexts.
            part_keys = context_keys(part.start, part.stop, seed)
            first_row = int(np.count_nonzero(part_keys < lowest_key))
            for n_before in range(0, len(targets), rows_per_request):
                piece_targets = targets[n_before : n_before + rows_per_request]
                yield _Piece(part, first_row + n_before, piece_targets)


def is_worth_storing(
    plan: ShufflePlan,
    sources: Sequence[TokenSource],
    max_shards: int,
    engine: ShuffleEngine,
) -> bool:
    """Return whether to store all rows in shuffled order before tars are written from them.

    Otherwise each run of shards sweeps over the tokens of all sources, and takes the rows that its
    tars need. That is cheaper if there are few runs, or few tokens.

    Args:
        plan: Plan of the tars.
        sources: Sources of the plan, in a store.
        max_shards: Shards whose rows one sweep gathers.
        engine: Engine that the user requested; `buckets` requests stored rows.
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
    """Store the rows of all contexts in shuffled order, except parts that are stored already.

    Each token is read once. A part has as many rows as a worker can hold.

    Args:
        plan: Plan of the tars.
        sources: Sources of the plan.
        store: Where the rows go.
        memory_bytes: Memory of each worker.
        options: How the tars are written.

    Returns:
        The stored rows, from which tars can be written.
    """
    # A worker holds the rows of one part, and the blocks of it that are being sent.
    room = max(memory_bytes // 4, memory_bytes - _SENDING_BYTES)
    max_contexts = max(1, room // (plan.row_bytes + ROW_BYTES))
    contexts = plan.table.contexts
    rows, missing = StoredRows.of(store, contexts, max_contexts)

    bucket_work = options.progress.work("buckets", options.name, contexts * plan.row_bytes)
    stored_contexts = contexts - sum(map(len, missing))
    bucket_work.add_existing(Amount(stored_contexts * plan.row_bytes))
    work = partial(_store_part, plan, sources, rows)
    for number, _ in run_tasks(work, missing, options.workers, options.executor):
        bucket_work.advance(len(missing[number]) * plan.row_bytes)
    return rows


def _store_part(
    plan: ShufflePlan,
    sources: tuple[TokenSource, ...],
    stored: StoredRows,
    part: range,
) -> None:
    """Gather the rows of one part, and store them in shuffled order; in any process.

    Args:
        plan: Plan of the tars.
        sources: Sources of the plan.
        stored: Where the parts are stored.
        part: Numbers of the contexts of the part.
    """
    if stored.has(part):  # another build has just stored it
        return
    contexts = part.start + np.argsort(context_keys(part.start, part.stop, plan.settings.seed))
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    sweep(plan, opened_once(sources), contexts, rows)
    stored.put(part, rows)
