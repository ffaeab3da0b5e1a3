"""Count the documents and tokens of each file of a shard, by its table of documents.

The table has a row for each document, with the path of its file and the number of its tokens. For
two documents of a.jsonl with 5 and 7 tokens, the counts are {"a.jsonl": 2 documents, 12 tokens}.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nanoset_core.document_tables.row_groups import RowGroups
from nanoset_core.stages.shards.document_rows import explaining_errors


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """Documents and tokens of one file, or of several."""

    documents: int = 0
    tokens: int = 0
    """Special tokens included."""

    def __add__(self, other: DocumentCounts) -> DocumentCounts:
        return DocumentCounts(self.documents + other.documents, self.tokens + other.tokens)


def counts_by_file(path: Path) -> dict[str, DocumentCounts]:
    """Return the documents and tokens of each file of text, by the table of a shard's documents.

        row of the table      file       tokens
        0                     a.jsonl    50
        1                     a.jsonl    30
        2                     b.jsonl    20

    Here, a.jsonl has 2 documents with 80 tokens, and b.jsonl has 1 with 20.

    Args:
        path: Path of the shard's table of documents, a Parquet file with a row for each document.

    Returns:
        Path of the file of text → counts, in document order.

    Raises:
        MissingError: There is no such table.
        FormatError: The table of the shard cannot be read.
    """
    with explaining_errors(path), RowGroups(path) as file:  # raises errors as FormatError
        table = _read_files_and_tokens(file)
        # Without threads, groups keep the order in which they first occur.
        totals = table.group_by("file", use_threads=False).aggregate(
            [("tokens", "count"), ("tokens", "sum")]
        )
        counts: dict[str, DocumentCounts] = {}
        for total in totals.to_pylist():
            counts[total["file"]] = DocumentCounts(
                documents=total["tokens_count"],
                tokens=total["tokens_sum"],
            )
    return counts


def _read_files_and_tokens(file: RowGroups) -> Any:
    """Return the file and the number of tokens of each document in a table, as a pyarrow.Table.

        file       tokens
        a.jsonl    50
        a.jsonl    30

    Args:
        file: The table, a Parquet file.

    Raises:
        ValueError: Rows are missing, or have no values: the file was damaged.
    """
    import pyarrow as pa

    # Each row group has its own dictionary of paths, so the paths are decoded.
    schema = pa.schema({"file": pa.string(), "tokens": file.schema.field("tokens").type})
    groups = [schema.empty_table()]  # for a table without row groups
    for number in range(len(file.ranges)):
        groups.append(file.read(number, ["file", "tokens"]).cast(schema))
    table = pa.concat_tables(groups)
    _check_complete(table, n_rows=file.metadata.num_rows)
    return table


def _check_complete(table: Any, n_rows: int) -> None:
    """Check that all rows of a file were read, and that no value is missing.

    Args:
        table: A pyarrow.Table with the rows that were read.
        n_rows: Number of rows that the file should have.

    Raises:
        ValueError: Rows or values are missing.
    """
    n_nulls = sum(column.null_count for column in table.columns)
    if n_nulls > 0 or table.num_rows != n_rows:
        raise ValueError(f"{table.num_rows:,} of {n_rows:,} rows, with {n_nulls:,} nulls")


def tokens_by_file(
    files: Iterable[str], counts_of_shards: Iterable[Mapping[str, DocumentCounts]]
) -> dict[str, int]:
    """Add up the tokens of each file of raw text, over the parts in which the text was tokenized.

    Large collections of text are tokenized in parts, called shards. A file may be in several of
    them, and a shard may contain several files:

        shard 0                   a.jsonl: 1,000 tokens, b.jsonl: 200
        shard 1                   b.jsonl: 300
        result for a, b and c     {"a.jsonl": 1000, "b.jsonl": 500, "c.jsonl": 0}

    Args:
        files: Paths of all files, also of those without documents, such as c.jsonl.
        counts_of_shards: For each shard, path of a file → the documents and tokens that it has of
            it.
    """
    tokens = dict.fromkeys(files, 0)
    for counts in counts_of_shards:
        for path, count in counts.items():
            tokens[path] += count.tokens
    return tokens
