"""Read the documents of a corpus, or those for which conditions are true.

A scan is one query for some shards of a corpus. It returns the values of some columns, and for
which documents conditions are true. If only documents that meet a condition are needed, DuckDB
leaves the others out, so that most of their values are never decompressed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition, SqlCondition
from nanoset_core.document_tables.connection import open_locked
from nanoset_core.document_tables.relation import (
    FILE_NUMBER,
    ROW_NUMBER,
    DocumentRelation,
    column_reference,
)
from nanoset_core.errors import FormatError

LOCATION_COLUMNS = ("file", "line", "byte_offset")
"""Columns that identify a document without an id."""
TOKENS_COLUMN = "tokens"
"""Column with the number of tokens of each document, which is never null."""


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Some documents of a relation, as a scan returns them."""

    rows: NDArray[np.int64]
    """Numbers of the documents in the relation, ascending, shape (n_documents,)."""
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
            identifying: Further columns to read. If documents of a relation may lack a value of
                one of them, LOCATION_COLUMNS of this relation are read, too.
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
        """Yield the documents of a relation in order, up to BATCH_DOCUMENTS at a time.

        Args:
            relation: The tables of one or several shards.

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
        only = [condition.for_columns(schema) for condition in self._only]
        is_met_by_all = len(only) == 1 and list(self._conditions) == list(self._only)
        evaluated: dict[Condition, SqlCondition] = {}
        if not is_met_by_all:
            evaluated = {one: one.for_columns(schema) for one in self._conditions}

        # Comparisons that several conditions share are computed once.
        comparisons: dict[str, None] = {}
        for condition in evaluated.values():
            comparisons |= dict.fromkeys(condition.comparisons)

        expressions = [FILE_NUMBER, ROW_NUMBER]
        expressions += [column_reference(schema, name) for name in names]
        expressions += list(comparisons)
        where = " OR ".join(condition.sql for condition in only)

        used_columns = columns | self._columns_of_conditions
        first_rows = relation.first_rows  # (n_shards,)
        connection = self._open(relation.folders)
        for batch in relation.batches(connection, used_columns, expressions, where):
            if batch.num_rows == 0:
                continue
            # The arrays have the order of the expressions.
            file_numbers, rows_in_files, *arrays = batch.columns
            rows = first_rows[file_numbers.to_numpy()] + rows_in_files.to_numpy()
            values = dict(zip(names, arrays[: len(names)], strict=True))
            _check_tokens(values, relation)

            outcomes = dict(zip(comparisons, arrays[len(names) :], strict=True))
            masks = {}
            for parsed, condition in evaluated.items():
                masks[parsed] = _as_mask(condition.outcome(outcomes))
            if is_met_by_all:
                masks = dict.fromkeys(self._only, np.ones(len(rows), np.bool_))
            yield ScannedRows(rows, values, masks)

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
            where=", ".join(str(path) for path in relation.sources[0].paths),
            found=f"{tokens.null_count:,} nulls in the column {TOKENS_COLUMN}",
            remedy="delete the folder of the damaged file, and run `nanoset build`",
        )


def _as_mask(outcome: Any) -> NDArray[np.bool_]:
    """Return an Arrow array of booleans as a numpy array, in which null is False."""
    outcome = outcome.fill_null(False)
    # Arrow stores a bit for each value, lowest bit first. Its own conversion is ten times slower.
    _, values = outcome.buffers()
    stop = outcome.offset + len(outcome)
    bits = np.unpackbits(np.frombuffer(values, np.uint8), count=stop, bitorder="little")
    return bits[outcome.offset :].view(np.bool_)
