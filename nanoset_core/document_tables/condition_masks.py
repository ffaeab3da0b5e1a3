"""Find the documents of a corpus for which conditions are true: one query for each shard.

DuckDB yields the results in batches of its own size. The documents are read in row groups, so the
results are cut at the ends of these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition
from nanoset_core.document_tables.connection import open_locked
from nanoset_core.document_tables.relation import DocumentRelation
from nanoset_core.errors import FormatError


class ConditionMasks:
    """Evaluates some conditions for the documents of a corpus; a context manager."""

    def __init__(self, conditions: Sequence[Condition], scratch: Path) -> None:
        """Prepare to evaluate conditions.

        Args:
            conditions: The conditions; each of them once.
            scratch: A folder for what exceeds DuckDB's memory limit.
        """
        self._conditions = conditions
        self._columns = frozenset[str]().union(*(one.columns for one in conditions))
        self._scratch = scratch
        self._connection: Any = None
        """Opened when it is first needed."""
        self._folders: frozenset[Path] = frozenset()
        """Folders that the connection can read."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._connection is not None:
            self._connection.close()

    def of_shard(self, relation: DocumentRelation) -> ShardMasks:
        """Return the results for the documents of a shard.

        Raises:
            ConfigError: A condition names a column that is missing, or compares it with a value of
                another type.
        """
        if not self._conditions:
            return ShardMasks((), iter(()))
        expressions = [condition.sql(relation.schema) for condition in self._conditions]

        # The shards of a corpus are in one folder, so that one connection serves them all.
        if self._connection is None or not relation.folders <= self._folders:
            if self._connection is not None:
                self._connection.close()
            self._folders |= relation.folders
            self._connection = open_locked(self._folders, self._scratch)
        batches = relation.batches(self._connection, self._columns, expressions)
        return ShardMasks(self._conditions, batches)


class ShardMasks:
    """For which documents of a shard each condition is true, read from its start to its end."""

    def __init__(self, conditions: Sequence[Condition], batches: Iterator[Any]) -> None:
        """Prepare to read.

        Args:
            conditions: The conditions.
            batches: Arrow record batches with a column of booleans for each condition.
        """
        self._conditions = conditions
        self._batches = batches
        self._batch: Any = None
        """The current batch."""
        self._start = 0
        """First row of the current batch that has not been returned."""

    def take(self, n_documents: int) -> Mapping[Condition, NDArray[np.bool_]]:
        """Return the results for the next documents.

        Args:
            n_documents: Number of documents.

        Returns:
            Condition → whether it is true of each document, shape (n_documents,).

        Raises:
            FormatError: A table is damaged, or has too few rows.
        """
        masks = {condition: np.empty(n_documents, np.bool_) for condition in self._conditions}
        n_filled = 0 if masks else n_documents
        while n_filled < n_documents:
            if self._batch is None or self._start == self._batch.num_rows:
                self._batch = self._next_batch()
                self._start = 0
            rows = self._batch.slice(self._start, n_documents - n_filled)
            stop = n_filled + rows.num_rows
            for mask, column in zip(masks.values(), rows.columns, strict=True):
                mask[n_filled:stop] = column.to_numpy(zero_copy_only=False)
            self._start += rows.num_rows
            n_filled = stop
        return masks

    def _next_batch(self) -> Any:
        """Return the next batch."""
        batch = next(self._batches, None)
        if batch is None:
            raise FormatError(
                "a table of columns has fewer rows than its shard has documents",
                expected="a row for each document",
                remedy="run `nanoset verify`, delete what it reports, and run `nanoset build`",
            )
        return batch
