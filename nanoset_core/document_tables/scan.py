"""Read the documents of a corpus, or those for which conditions are true, shard by shard.

A scan is one query for each shard. It returns the values of some columns, and for which documents
conditions are true. If only documents that meet a condition are needed, DuckDB leaves the others
out, so that most of their values are never decompressed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition
from nanoset_core.document_tables.connection import open_locked
from nanoset_core.document_tables.relation import ROW_NUMBER, DocumentRelation, column_reference
from nanoset_core.errors import FormatError

LOCATION_COLUMNS = ("file", "line", "byte_offset")
"""Columns that identify a document without an id."""
TOKENS_COLUMN = "tokens"
"""Column with the number of tokens of each document, which is never null."""


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Some documents of a shard, as a scan returns them."""

    rows: NDArray[np.int64]
    """Numbers of the documents in the shard, ascending, shape (n_documents,)."""
    columns: Mapping[str, Any]
    """Name of each column → its values, an Arrow array of shape (n_documents,)."""
    condition_masks: Mapping[Condition, NDArray[np.bool_]]
    """Condition → the documents that it is true of, shape (n_documents,)."""


class DocumentScan:
    """Reads columns of documents, and evaluates conditions; a context manager.

    For the ids and tokens of the German documents:

        german = parse_condition("lang = 'de'", "views.german.where")
        with DocumentScan(["id", "tokens"], only=[german]) as scan:
            for rows in scan.batches(relation):
                print(rows.rows, rows.columns["id"], rows.columns["tokens"])
    """

    def __init__(
        self,
        columns: Collection[str],
        *,
        identifying: Collection[str] = (),
        conditions: Sequence[Condition] = (),
        only: Sequence[Condition] = (),
    ) -> None:
        """Prepare a scan.

        Args:
            columns: Columns to read.
            identifying: Further columns to read. If documents of a shard may lack a value of one of
                them, LOCATION_COLUMNS of this shard are read, too.
            conditions: Conditions to evaluate for each document; each of them once.
            only: If there are any, only documents for which at least one of these conditions is
                true are returned.
        """
        self._columns = frozenset(columns).union(identifying)
        self._identifying = identifying
        self._conditions = conditions
        self._only = only
        self._columns_of_conditions = frozenset[str]().union(
            *(condition.columns for condition in (*conditions, *only))
        )
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

    def batches(self, relation: DocumentRelation) -> Iterator[ScannedRows]:
        """Yield the documents of a shard in order, up to BATCH_DOCUMENTS at a time.

        Args:
            relation: The tables of the shard.

        Raises:
            ConfigError: A condition names a column that is missing, or compares it with a value of
                another type.
            FormatError: A file is damaged.
        """
        # Columns in alphabetical order.
        schema = relation.schema
        columns = self._columns
        if any(relation.may_be_null(column) for column in self._identifying):
            columns = columns.union(LOCATION_COLUMNS)
        names = sorted(columns)

        # A condition that all returned documents meet need not be evaluated for each of them.
        is_met_by_all = len(self._only) == 1 and list(self._conditions) == list(self._only)
        evaluated = [] if is_met_by_all else self._conditions

        expressions = [ROW_NUMBER]
        expressions += [column_reference(schema, name) for name in names]
        expressions += [f"coalesce({condition.sql(schema)}, false)" for condition in evaluated]
        where = " OR ".join(condition.sql(schema) for condition in self._only)

        used_columns = columns | self._columns_of_conditions
        connection = self._open(relation.folders)
        for batch in relation.batches(connection, used_columns, expressions, where):
            if batch.num_rows == 0:
                continue
            # The arrays have the order of the expressions.
            rows, *arrays = batch.columns
            values = dict(zip(names, arrays[: len(names)], strict=True))
            _check_tokens(values, relation)

            masks = {}
            for condition, outcomes in zip(evaluated, arrays[len(names) :], strict=True):
                masks[condition] = outcomes.to_numpy(zero_copy_only=False)
            if is_met_by_all:
                [condition] = self._only
                masks[condition] = np.ones(len(rows), np.bool_)
            yield ScannedRows(rows.to_numpy(), values, masks)

    def _open(self, folders: frozenset[Path]) -> Any:
        """Return a connection that can read some folders.

        The shards of a corpus are in one folder, so that one connection serves them all.
        """
        if self._connection is None or not folders <= self._folders:
            if self._connection is not None:
                self._connection.close()
            self._folders |= folders
            self._connection = open_locked(self._folders)
        return self._connection


def _check_tokens(values: Mapping[str, Any], relation: DocumentRelation) -> None:
    """Check that each document has a number of tokens, if that column was read.

    Args:
        values: Name of each column that was read → its values.
        relation: The tables that were read.

    Raises:
        FormatError: A document has none.
    """
    tokens = values.get(TOKENS_COLUMN)
    if tokens is not None and tokens.null_count:
        raise FormatError(
            "a document has no number of tokens",
            where=relation.paths,
            found=f"{tokens.null_count:,} nulls in the column {TOKENS_COLUMN}",
            remedy="delete the folder of the damaged file, and run `nanoset build`",
        )
