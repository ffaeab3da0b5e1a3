"""Engines that gather rows straight from the sources: `mmap` tile by tile, `tiled` by sweeps over a memoryful."""

from __future__ import annotations

import mmap
from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.shuffling.contexts import BLOCK_BYTES, TokenSource
from nanoset_core.shuffling.engines.choice import CHUNK_BYTES, row_bytes
from nanoset_core.shuffling.gather import gather
from nanoset_core.shuffling.plan import ShufflePlan
from nanoset_core.shuffling.shards import Fill, TarFacts, write_rows
from nanoset_core.storage.atomic import fsync_folder

_STORED_BYTES = 64 << 20  # so much at once takes several requests, which are on their way together
_AT_ONCE = 2  # while one shard goes to the disk, the next one is made


def write_mapped(plan: ShufflePlan, sources: Sequence[TokenSource], shards: range, folder: Path) -> Generator[TarFacts]:
    """Write neighbouring shards, in order; each tile of a shard is a gather of its own."""
    contexts = run_contexts(plan, shards)

    def fill(begin: int, end: int, out: NDArray[np.integer[Any]]) -> None:
        gather(sources, plan.table, contexts[begin:end], out=out)

    yield from write_run(plan, shards, contexts, folder, fill)


def write_tiled(plan: ShufflePlan, sources: Sequence[TokenSource], shards: range, folder: Path) -> Generator[TarFacts]:
    """Write neighbouring shards whose rows fit in memory at once, in order."""
    contexts = run_contexts(plan, shards)
    rows = np.empty((len(contexts), plan.sequence_length), dtype=plan.dtype)
    sweep(plan, sources, contexts, rows)

    def fill(begin: int, end: int, out: NDArray[np.integer[Any]]) -> None:
        out[:] = rows[begin:end]

    yield from write_run(plan, shards, contexts, folder, fill)


def sweep(
    plan: ShufflePlan, sources: Sequence[TokenSource], contexts: NDArray[np.int64], rows: NDArray[np.integer[Any]]
) -> None:
    """Put contexts into `rows`, shape (contexts, sequence_length), in that order, read in the order in which they lie.

    Of the sources' files no more than the pages of a chunk of 8 MiB are held; of those in a store, what chunks of
    64 MiB lie in.
    """
    step = max(1, _rows_at_once(sources, row_bytes(plan)))
    order = np.argsort(contexts)  # contexts are numbered in the order in which they lie
    for begin in range(0, len(contexts), step):
        places = order[begin : begin + step]
        gather(sources, plan.table, contexts[places], out=rows, places=places)
        drop_pages(sources)


def _rows_at_once(sources: Sequence[TokenSource], row: int) -> int:
    """How many rows of so many bytes are gathered together; from a store each may bring a block."""
    places = [source.access for source in sources if source.access is not None]
    if not places:
        return CHUNK_BYTES // row
    rooms = [place.room // 4 // (BLOCK_BYTES + row) for place in places if place.room is not None]
    return min([_STORED_BYTES // row, *rooms])


def run_contexts(plan: ShufflePlan, shards: range) -> NDArray[np.int64]:
    """Context numbers of neighbouring shards, in their order, int64, shape (samples,)."""
    return np.concatenate([plan.shard_contexts(shard) for shard in shards])


def write_run(
    plan: ShufflePlan, shards: range, contexts: NDArray[np.int64], folder: Path, fill: Fill
) -> Generator[TarFacts]:
    """Write the shards whose contexts these are; `fill` counts rows from the run's first. Facts come in order."""
    first = plan.shard_ranks(shards[0])[0]

    def write(shard: int) -> TarFacts:
        begin, end = (rank - first for rank in plan.shard_ranks(shard))

        def fill_shard(low: int, high: int, out: NDArray[np.integer[Any]]) -> None:
            fill(begin + low, begin + high, out)

        return write_rows(plan, shard, contexts[begin:end], folder, fill_shard, sync=False)

    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="shard") as pool:
        yield from pool.map(write, shards)
    fsync_folder(folder)


def drop_pages(sources: Sequence[TokenSource]) -> None:
    """Give memory and room of what was read so far back to the system, which may keep pages of files in its cache."""
    for source in sources:
        source.forget()
        if (mapped := _map_of(source.tokens)) is not None and not source.tokens.flags.writeable:
            mapped.madvise(mmap.MADV_DONTNEED)


def _map_of(tokens: NDArray[np.integer[Any]]) -> mmap.mmap | None:
    base: object = tokens
    while base is not None and not isinstance(base, mmap.mmap):
        base = base.obj if isinstance(base, memoryview) else getattr(base, "base", None)
    return base
