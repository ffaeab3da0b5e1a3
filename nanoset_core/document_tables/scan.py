"""Read the documents of a corpus, or those for which conditions are true.

A scan is one query for some shards of a corpus. It returns the values of some columns, and for
which documents conditions are true. If only documents that meet a condition are needed, DuckDB
leaves the others out, so that most of their values are never decompressed: it finds 1,000 ids among
10^7 in half a second.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nanoset_core.document_tables.conditions import Condition, SqlCondition
from nanoset_core.document_tables.connection import BATCH_DOCUMENTS, shared_connection
from nanoset_core.document_tables.relation import (
    FILE_NUMBER,
    LISTED_IDS,
    ROW_NUMBER,
    DocumentRelation,
    column_reference,
)
from nanoset_core.errors import FormatError
from nanoset_core.rounding import ceil_division

LOCATION_COLUMNS = ("file", "line", "byte_offset")
"""Columns that identify a document without an id."""
ID_COLUMN = "id"
"""Column with the id of each document; null if it has none."""
TOKENS_COLUMN = "tokens"
"""Column with the number of tokens of each document, which is never null."""

_MAX_LISTED_BYTES = 128 << 20
"""Ids that one query looks for. In DuckDB's hash table they take several times as much memory."""


@dataclass(frozen=True, slots=True)
class ScannedRows:
    """Some documents of a relation, as a scan returns them."""

    rows: NDArray[np.int64]
    """Numbers of the documents in the relation, ascending, shape (n_documents,)."""
    columns: Mapping[str, Any]
    """Name of each column → its values, an Arrow array of shape (n_documents,)."""
    condition_masks: Mapping[Condition, NDArray[np.bool_]]
    """Condition → the documents that it is true of, shape (n_documents,)."""

    def take(self, positions: NDArray[np.int64]) -> ScannedRows:
        """Return some of the documents.

        Args:
            positions: Positions of these documents in `rows`, shape (n_taken,).
        """
        import pyarrow as pa

        arrow_positions = pa.array(positions)
        columns = {name: values.take(arrow_positions) for name, values in self.columns.items()}
        masks = {condition: mask[positions] for condition, mask in self.condition_masks.items()}
        return ScannedRows(self.rows[positions], columns, masks)


class DocumentScan:
    """Reads columns of documents, and evaluates conditions.

    For the ids and tokens of the German documents:

        german = parse_condition("lang = 'de'", "views.german.where")
        scan = DocumentScan(["id", "tokens"], only=[german])
        for scanned in scan.batches(relation):
            print(scanned.rows, scanned.columns["id"], scanned.columns["tokens"])
    """

    def __init__(
        self,
        columns: Collection[str],
        *,
        identifying: Collection[str] = (),
        conditions: Sequence[Condition] = (),
        only: Sequence[Condition] = (),
        only_ids: Any = None,
    ) -> None:
        """Prepare a scan.

        Args:
            columns: Columns to read.
            identifying: Further columns to read. If documents of a relation may lack a value of
                one of them, LOCATION_COLUMNS of this relation are read, too.
            conditions: Conditions to evaluate for each document; each of them once.
            only: If there are any, only documents for which at least one of these conditions is
                true are returned.
            only_ids: An Arrow array of texts. Only documents with one of these ids are returned.
                None for any id.
        """
        self._columns = frozenset(columns).union(identifying)
        self._identifying = identifying
        self._conditions = conditions
        self._only = only
        self._only_ids = only_ids
        columns_of_conditions: set[str] = set()
        for condition in (*conditions, *only):
            columns_of_conditions |= condition.columns
        if only_ids is not None:
            columns_of_conditions.add(ID_COLUMN)
        self._columns_of_conditions = frozenset(columns_of_conditions)

    def batches(self, relation: DocumentRelation) -> Iterator[ScannedRows]:
        """Yield the documents that the scan looks for, in the order of the corpus, in batches.

        Args:
            relation: Tables with a row for each document of one or several parts of a corpus.

        Yields:
            Up to BATCH_DOCUMENTS documents: their numbers, the columns that were asked for, and for
            each condition a mask of the documents that meet it.

        Raises:
            ConfigError: A condition names a column that is missing, or compares it with a value of
                another type.
            FormatError: A file is damaged.
        """
        if self._only_ids is None:
            yield from self._query(relation, only_ids=None)
            return

        id_parts = _parts_in_memory(self._only_ids)
        if len(id_parts) == 1:
            yield from self._query(relation, only_ids=id_parts[0])
        else:
            yield from self._in_several_queries(relation, id_parts)

    def _in_several_queries(
        self, relation: DocumentRelation, id_parts: Sequence[Any]
    ) -> Iterator[ScannedRows]:
        """Look for documents with too many ids for one query, and yield them in order, in batches.

        All documents that the queries find in the relation are in memory at once. But the views
        read a corpus as relations of limited size.

        Args:
            relation: Tables with a row for each document.
            id_parts: The ids that each query looks for, an Arrow array of texts each.
        """
        results: list[ScannedRows] = []
        for ids in id_parts:
            results.extend(self._query(relation, only_ids=ids))
        yield from _in_order(results)

    def _query(self, relation: DocumentRelation, only_ids: Any) -> Iterator[ScannedRows]:
        """Let DuckDB look for the documents in one query, and yield them in batches, in order.

        The result also says for each document which conditions of the scan it meets. For example,
        of the documents 4, 7 and 9, the columns and masks (booleans) are

            rows                      4        7        9
            columns["tokens"]         120      80       300
            masks[tokens > 100]       True     False    True

        Args:
            relation: Tables with a row for each document.
            only_ids: An Arrow array of texts such as ["a7", "b2"]: only documents with one of these
                ids are returned. None for any id.
        """
        query = _ScanQuery(
            relation,
            columns=sorted(self._columns_to_read(relation)),
            conditions=self._evaluated_conditions(relation.schema),
        )
        where = self._where(relation.schema)

        last_row = -1
        for documents in query.run(where, self._columns_of_conditions, only_ids):
            _check_order(documents.rows, last_row)
            _check_tokens(documents.columns, relation)
            last_row = int(documents.rows[-1])
            yield self._with_all_masks(documents)

    def _with_all_masks(self, documents: ScannedRows) -> ScannedRows:
        """Add the masks of conditions that needed no evaluation: they are true of all documents.

        Args:
            documents: Documents, with masks of the conditions that were evaluated.
        """
        n_documents = len(documents.rows)
        masks = {condition: np.ones(n_documents, np.bool_) for condition in self._conditions}
        masks.update(documents.condition_masks)
        return replace(documents, condition_masks=masks)

    def _columns_to_read(self, relation: DocumentRelation) -> frozenset[str]:
        """Return the columns of the scan, with LOCATION_COLUMNS if a document may need them."""
        if any(relation.may_be_null(column) for column in self._identifying):
            return self._columns.union(LOCATION_COLUMNS)
        return self._columns

    def _evaluated_conditions(self, schema: Any) -> dict[Condition, SqlCondition]:
        """Return the conditions that must be evaluated for each document, and their SQL.

        If only documents that meet a single condition are returned, it is true of all of them, so
        it need not be evaluated for each.

        Args:
            schema: pyarrow.Schema of the documents.
        """
        returns_only_these = list(self._conditions) == list(self._only)
        if returns_only_these and len(self._only) == 1:
            return {}
        return {condition: condition.for_columns(schema) for condition in self._conditions}

    def _where(self, schema: Any) -> str:
        """Return the SQL that is true for the documents which the caller wants.

        If the caller wants documents that are German, or are short, and have one of some ids:

            (c0 = 'de' OR c1 < '100'::BIGINT) AND c2 IN (SELECT id FROM listed_ids)

        Columns have numbers here, and the ids are in a table that DuckDB gets with the query.

        Args:
            schema: pyarrow.Schema of the documents: the names and types of their columns.

        Returns:
            The SQL; "" if all documents are wanted.
        """
        requirements = []
        # A document must meet at least one of these conditions.
        if self._only:
            alternatives = [condition.for_columns(schema).sql for condition in self._only]
            requirements.append("(" + " OR ".join(alternatives) + ")")
        # It must have one of the ids. `batches` passes them to DuckDB as a table.
        if self._only_ids is not None:
            id_column = column_reference(schema, ID_COLUMN)
            requirements.append(f"{id_column} IN (SELECT id FROM {LISTED_IDS})")
        return " AND ".join(requirements)


class _ScanQuery:
    """What DuckDB computes for each document of a scan: its number, columns, and comparisons."""

    def __init__(
        self,
        relation: DocumentRelation,
        columns: Sequence[str],
        conditions: Mapping[Condition, SqlCondition],
    ) -> None:
        """Prepare a query.

        Args:
            relation: The tables.
            columns: Names of the columns to read.
            conditions: The conditions to evaluate → their SQL.
        """
        self._relation = relation
        self._first_rows = relation.first_rows  # (n_shards,)
        self._conditions = conditions
        # SQL names columns by their positions in the schema: {"tokens": "c2"}.
        self._sql_by_column: dict[str, str] = {}
        for column in columns:
            self._sql_by_column[column] = column_reference(relation.schema, column)
        # DuckDB computes a comparison once, even if several conditions have it.
        comparisons = chain.from_iterable(sql.comparisons for sql in conditions.values())
        self._comparisons = list(dict.fromkeys(comparisons))

    def run(
        self, where: str, columns_of_conditions: Collection[str], listed_ids: Any
    ) -> Iterator[ScannedRows]:
        """Run the query, and yield the documents in batches, each with at least one document.

        Args:
            where: SQL that is true for the documents to return; empty for all.
            columns_of_conditions: Names of the columns that the conditions and `where` use.
            listed_ids: Ids that `where` refers to, an Arrow array; or None.
        """
        batches = self._relation.batches(
            shared_connection(self._relation.folders),
            columns={*self._sql_by_column, *columns_of_conditions},
            expressions=self._expressions(),
            where=where,
            listed_ids=listed_ids,
        )
        for batch in batches:
            if batch.num_rows > 0:
                yield self._scanned_rows(batch)

    def _expressions(self) -> list[str]:
        """Return the SQL of all that is computed for each document.

        For the column `tokens`, and a condition `tokens > 100 and lang = 'de'`, these are the
        numbers of its file and row, c2 for the column, and the comparisons c2 > 100 and c0 = 'de'.
        """
        return [FILE_NUMBER, ROW_NUMBER, *self._sql_by_column.values(), *self._comparisons]

    def _scanned_rows(self, batch: Any) -> ScannedRows:
        """Convert a batch of results of DuckDB to documents.

        Args:
            batch: A pyarrow.RecordBatch with a row for each document, and a column for each of the
                `_expressions`.

        Returns:
            The numbers of the documents, their columns, and for each condition a mask of the
            documents that meet it.
        """
        # SQL → results, such as {"c2": [120, 80], "c2 > 100": [True, False], …}
        results = dict(zip(self._expressions(), batch.columns, strict=True))
        columns = {column: results[sql] for column, sql in self._sql_by_column.items()}
        return ScannedRows(self._row_numbers(results), columns, self._masks(results))

    def _row_numbers(self, results: Mapping[str, Any]) -> NDArray[np.int64]:
        """Return the number of each document of a batch, counted through all files.

        If the first file has 100 documents, row 0 of the second file is document 100.

        Args:
            results: SQL → its results, an Arrow array of shape (n_documents,). The results of
                FILE_NUMBER and ROW_NUMBER say in which file and row each document is.

        Returns:
            Shape (n_documents,).
        """
        file_numbers = results[FILE_NUMBER].to_numpy()
        rows_in_files = results[ROW_NUMBER].to_numpy()
        row_numbers: NDArray[np.int64] = self._first_rows[file_numbers] + rows_in_files
        return row_numbers

    def _masks(self, results: Mapping[str, Any]) -> dict[Condition, NDArray[np.bool_]]:
        """Return for each condition which documents of a batch meet it.

        A condition such as `a > 1 and b < 2` consists of two comparisons. DuckDB has computed each
        of them, and `outcome` joins their results.

        Args:
            results: SQL of each comparison → its results, an Arrow array of shape (n_documents,).
        """
        masks: dict[Condition, NDArray[np.bool_]] = {}
        for condition, sql_condition in self._conditions.items():
            masks[condition] = _as_mask(sql_condition.outcome(results))
        return masks


def _parts_in_memory(ids: Any) -> list[Any]:
    """Divide a list of document ids into parts, for each of which DuckDB has enough memory.

    Users may look for hundreds of millions of ids. DuckDB keeps the ids of a query in memory, so
    long lists take several queries.

    Args:
        ids: An Arrow array of texts.

    Returns:
        Consecutive parts of the array: 10 ids in three parts are 4, 4 and 2.
    """
    n_parts = max(1, ceil_division(ids.nbytes, _MAX_LISTED_BYTES))
    # With 10 ids and 3 parts, a part has 4 ids, and the last one has 2.
    part_length = max(1, ceil_division(len(ids), n_parts))
    starts = range(0, len(ids), part_length)
    return [ids.slice(start, part_length) for start in starts]


def _in_order(results: Sequence[ScannedRows]) -> Iterator[ScannedRows]:
    """Merge the results of several queries, and yield each document once, in order, in batches.

    A document may be in several results, with the same values in each:

        query 1 found the documents     2, 7
        query 2 found the documents     2, 5
        result                          2, 5, 7

    Args:
        results: The documents that each query found.
    """
    if not results:
        return
    documents = _concatenated(results)  # the documents 2, 7, 2, 5
    # Position of the first occurrence of each document: 0 for 2, 3 for 5, and 1 for 7.
    _rows, positions = np.unique(documents.rows, return_index=True)
    for start in range(0, len(positions), BATCH_DOCUMENTS):
        yield documents.take(positions[start : start + BATCH_DOCUMENTS])


def _concatenated(results: Sequence[ScannedRows]) -> ScannedRows:
    """Return the documents of several results, one result after another.

    Args:
        results: At least one result. All have the same columns and conditions.
    """
    import pyarrow as pa

    columns = {}
    for name in results[0].columns:
        columns[name] = pa.concat_arrays([result.columns[name] for result in results])
    masks = {}
    for condition in results[0].condition_masks:
        masks[condition] = np.concatenate([result.condition_masks[condition] for result in results])
    rows = np.concatenate([result.rows for result in results])
    return ScannedRows(rows, columns, masks)


def _check_order(numbers: NDArray[np.int64], last_number: int) -> None:
    """Check that DuckDB has returned documents in the order of the corpus.

    The order decides which documents a budget ("the first 10^9 tokens") takes, so another one would
    silently choose others. DuckDB keeps the order of rows with the settings of `open_locked`; this
    check notices if a later version does not.

    Args:
        numbers: Numbers of the documents of a batch, at least one, shape (n_documents,).
        last_number: Number of the last document of the batch before; -1 for the first batch.

    Raises:
        RuntimeError: The numbers do not increase.
    """
    if numbers[0] <= last_number or (numbers[1:] <= numbers[:-1]).any():
        raise RuntimeError("DuckDB returned documents out of order")


def _check_tokens(values: Mapping[str, Any], relation: DocumentRelation) -> None:
    """Check that each document has a number of tokens, if this column was read.

    Budgets add these numbers, so a missing one would silently count as none.

    Args:
        values: Name of each column that was read → its values.
        relation: The tables that were read, for the error.

    Raises:
        FormatError: A document has no number of tokens, so the file is damaged.
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
    _validity, values = outcome.buffers()
    # The array may be a part of a longer one, whose first values are not used.
    start = outcome.offset
    stop = start + len(outcome)
    bits = np.unpackbits(np.frombuffer(values, np.uint8), count=stop, bitorder="little")
    return bits[start:].view(np.bool_)
