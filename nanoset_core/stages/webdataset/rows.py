"""Supply the rows of the tars that are written, in one of four ways.

A row is the tokens of one context. Tars are written in runs: a run is some neighbouring shards,
which one process writes. A supplier returns the rows of a run in the order in which the tars have
them. All suppliers return the same rows, and differ in speed, memory and disk space:

- `MappedRows` reads them at random places of the sources.
- `SweptRows` reads the sources once for each run, and holds the rows of the run in memory.
- `RowsFromBucket` reads a file of the run's rows, to which one sweep over the sources wrote them.
- `RowsFromStore` reads ranges of objects in a store, to which one sweep wrote all rows.

Suppliers can be pickled, so that any process can write a run.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.errors import MissingError
from nanoset_core.stages.webdataset.buckets import read_bucket
from nanoset_core.stages.webdataset.gathering import gather, sweep
from nanoset_core.stages.webdataset.order import keys_of
from nanoset_core.stages.webdataset.plan import ShufflePlan
from nanoset_core.stages.webdataset.sources import TokenSource, opened_once
from nanoset_core.stages.webdataset.stored_rows import StoredRows
from nanoset_core.stages.webdataset.tars import Fill


class RunRows(NamedTuple):
    """The rows of a run of shards."""

    contexts: NDArray[np.int64]
    """Number of each row's context, in the order of the shards; shape (n_rows,)."""
    fill: Fill
    """Writes the tokens of rows into an array; rows are counted in this order."""

    @classmethod
    def in_memory(cls, contexts: NDArray[np.int64], tokens: NDArray[np.integer[Any]]) -> RunRows:
        """Return rows whose tokens are in memory.

        Args:
            contexts: Number of each row's context, shape (n_rows,).
            tokens: Tokens of each row, in the same order, shape (n_rows, sequence_length).
        """

        def fill(start: int, stop: int, out: NDArray[np.integer[Any]]) -> None:
            """Write the tokens of the rows [start, stop) into an array."""
            np.copyto(out, tokens[start:stop])

        return cls(contexts, fill)


class RowSupplier(ABC):
    """Supplies the rows of runs of shards."""

    @abstractmethod
    def open(self, plan: ShufflePlan, shards: range) -> RunRows:
        """Prepare the training samples of some neighbouring tar files, to write these.

        For example, the shuffled order of all samples is [4, 1, 5, 0, 3, 2], and a tar has 2 of
        them. Then the tars 0 and 1 have the samples 4, 1, 5 and 0.

        Args:
            plan: Says which sample goes into which tar (shard).
            shards: Numbers of the tars, at least one, such as range(0, 2).

        Returns:
            The numbers of the samples, [4, 1, 5, 0], and a function that writes the tokens of some
            of them into an array.
        """

    def release(self) -> None:
        """Remove the files of a run after it was written."""
        return


@dataclass(frozen=True, slots=True)
class MappedRows(RowSupplier):
    """Gathers rows from the mapped sources a few at a time, while the tars are written."""

    sources: tuple[TokenSource, ...]

    def open(self, plan: ShufflePlan, shards: range) -> RunRows:
        """Return the training samples of some tar files, without reading their tokens yet.

        The tokens are read when the tars are written, a few samples at a time. They may be anywhere
        in the sources of text.

        Args:
            plan: Says which sample goes into which tar (shard), and which tokens it has.
            shards: Numbers of the tars.
        """
        sample_numbers = _contexts_of(plan, shards)  # in the order of the tars
        sources = opened_once(self.sources)

        def fill(start: int, stop: int, out: NDArray[np.integer[Any]]) -> None:
            """Read the tokens of the samples [start, stop) of these tars into an array."""
            gather(sources, plan.table, sample_numbers[start:stop], out=out)

        return RunRows(sample_numbers, fill)


@dataclass(frozen=True, slots=True)
class SweptRows(RowSupplier):
    """Gathers all rows of a run into memory, in one sweep over the sources."""

    sources: tuple[TokenSource, ...]

    def open(self, plan: ShufflePlan, shards: range) -> RunRows:
        """Read the training samples of some tar files into memory.

        The sources of text are read once, from start to end. Then the tars are written from memory.

        Args:
            plan: Says which sample goes into which tar (shard), and which tokens it has.
            shards: Numbers of the tars.
        """
        sample_numbers = _contexts_of(plan, shards)  # in the order of the tars
        tokens = _empty_rows(plan, len(sample_numbers))  # a row for each sample
        sources = opened_once(self.sources)
        sweep(plan, sources, sample_numbers, tokens)  # reads the tokens into the rows
        return RunRows.in_memory(sample_numbers, tokens)


@dataclass(frozen=True, slots=True)
class RowsFromStore(RowSupplier):
    """Reads the rows of a run from a store."""

    stored: StoredRows
    sources: tuple[TokenSource, ...]
    """Read instead if another build has finished the webdataset, and removed the stored rows."""

    def open(self, plan: ShufflePlan, shards: range) -> RunRows:
        """Read the training samples that go into some tar files, from the store.

        An earlier step has put all samples into the store, in the order of the tars. If another
        build has written all tars in the meantime, it has deleted the store. Then the samples are
        read from the datasets.

        Args:
            plan: Says which sample goes into which tar (shard), and which tokens it has.
            shards: Numbers of the tars.

        Returns:
            The samples, whose tokens are in memory.
        """
        sample_numbers = _contexts_of(plan, shards)  # in the order of the tars
        tokens = _empty_rows(plan, len(sample_numbers))  # a row for each sample
        try:
            self.stored.read(plan, sample_numbers, tokens)  # reads the tokens into the rows
        except MissingError:
            sweep(plan, opened_once(self.sources), sample_numbers, tokens)
        return RunRows.in_memory(sample_numbers, tokens)


@dataclass(frozen=True, slots=True)
class RowsFromBucket(RowSupplier):
    """Reads the rows of a run from its bucket file."""

    path: Path

    def open(self, plan: ShufflePlan, shards: range) -> RunRows:
        """Read the training samples of some tar files from a temporary file, and put them in order.

        An earlier step has read all tokens once, and has written the samples of these tars to the
        file (the bucket), in the order in which it came across them. In the tars, they are in the
        order of their keys, which are pseudo-random numbers:

            sample in the file     0     1     3
            its key                71    12    38     →  order of the tars: 1, 3, 0

        Args:
            plan: Says which sample goes into which tar (shard), and has the seed of the keys.
            shards: Numbers of the tars.
        """
        samples = read_bucket(plan, shards, self.path)  # their numbers and tokens
        keys = keys_of(samples.contexts.astype(np.uint64), plan.settings.seed)
        order = np.argsort(keys)  # (n_rows,) indices in the file: [1, 2, 0]

        # Sorting all tokens at once would take a second array of their size.
        def fill(start: int, stop: int, out: NDArray[np.integer[Any]]) -> None:
            """Write the tokens of the samples [start, stop) of these tars into an array."""
            np.copyto(out, samples.tokens[order[start:stop]])

        return RunRows(samples.contexts[order], fill)

    def release(self) -> None:
        self.path.unlink()


def _contexts_of(plan: ShufflePlan, shards: range) -> NDArray[np.int64]:
    """Return the context numbers of neighbouring shards, in order; shape (n_rows,)."""
    return np.concatenate([plan.shard_contexts(shard) for shard in shards])


def _empty_rows(plan: ShufflePlan, count: int) -> NDArray[np.integer[Any]]:
    """Return an array for the tokens of that many rows, shape (count, sequence_length)."""
    return np.empty((count, plan.sequence_length), dtype=plan.dtype)
