"""Random rules of views over random documents, and a slow reference that looks at each document."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.relation import DocumentRelation, TableSource, value_type
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.rules import (
    Budget,
    DocumentValues,
    HashSplit,
    Listed,
    Repeat,
    Rule,
    Top,
    ViewOrder,
    Where,
    Without,
)
from nanoset_core.statistics.hashing import hash_bytes, salted

ROWS = 1000
"""Documents of a table, unless a test asks for more."""
Row = Mapping[str, Any]
"""Column → value of one document."""


class TableShard:
    """A shard whose documents are in a table in memory."""

    def __init__(self, table: pa.Table, first: int) -> None:
        self.table = table
        self.first = first
        self.n_documents = table.num_rows
        self.n_tokens = int(pc.sum(table.column("tokens")).as_py() or 0)

    @property
    def relation(self) -> DocumentRelation:
        """Return the table as DuckDB reads it."""
        return relation_of(self.table)

    def values(self, columns: Sequence[str]) -> DocumentValues:
        """Return the values of some columns of all documents."""
        scan = DocumentScan(columns)
        [scanned] = scan.batches(self.relation)
        return DocumentValues(self.first, scanned)


def relation_of(table: pa.Table) -> DocumentRelation:
    """Return a table in memory as DuckDB reads it."""
    types = {field.name: value_type(field.type) for field in table.schema}
    source = TableSource((Path("in-memory.parquet"),), table.schema, table)
    return DocumentRelation(pa.schema(types), (source,))


# Random documents


def documents_table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return a table of random documents, with ids and columns of every type."""
    generator = random.Random(seed)
    ids = [None if number % 7 == 3 else f"doc-{number}" for number in range(rows)]
    token_counts = [generator.randrange(20) for _ in range(rows)]
    qualities = [random_quality(generator) for _ in range(rows)]
    languages = [generator.choice(["en", "de", "fr"]) for _ in range(rows)]
    topics = [generator.choice(["a", "b", None]) for _ in range(rows)]
    scores = [generator.choice([None, generator.gauss(0, 9)]) for _ in range(rows)]
    seen = [generator.choice([True, False, None]) for _ in range(rows)]
    return pa.table(
        {
            "file": pa.array(["a.jsonl"] * rows).dictionary_encode(),
            "line": pa.array(range(1, rows + 1), pa.int64()),
            "byte_offset": pa.array(range(0, 10 * rows, 10), pa.int64()),
            "id": pa.array(ids),
            "tokens": pa.array(token_counts, pa.int32()),
            "quality": pa.array(qualities),
            "lang": pa.array(languages),
            "topic": pa.array(topics).dictionary_encode(),
            "score": pa.array(scores, pa.float64()),
            "seen": pa.array(seen),
        }
    )


def random_quality(generator: random.Random) -> int | None:
    """Return a number from 0 to 4, or in one of ten cases None."""
    if generator.random() < 0.1:
        return None
    return generator.randrange(5)


def shards_of(table: pa.Table, size: int) -> list[TableShard]:
    """Cut a table into shards of some documents each."""
    starts = range(0, table.num_rows, size)
    return [TableShard(table.slice(start, size), start) for start in starts]


# The slow reference


def choose_slowly(table: pa.Table, rule: Rule) -> list[int]:
    """Return the numbers of the documents that a rule chooses, found document by document.

    A document that the view repeats is returned several times.
    """
    rows = table.to_pylist()
    hashes = hashes_of(rows)
    copies_by_document = dict.fromkeys(range(len(rows)), 1)
    for step in rule.steps:
        if isinstance(step, Repeat):
            copies_by_document = repeat_documents(step, copies_by_document, hashes)
        elif isinstance(step, Top):
            copies_by_document = take_best(step, copies_by_document, hashes, rows)
        elif isinstance(step, Budget):
            copies_by_document = fill_budget(step, copies_by_document, hashes, rows)
        else:
            copies_by_document = {
                document: copies
                for document, copies in copies_by_document.items()
                if keeps_document(step, rows[document], document, hashes)
            }

    documents = list_copies(copies_by_document)
    if rule.order is not None and rule.order.by is not None:
        documents = sort_documents(documents, rule.order, rows)
    return documents


def hashes_of(rows: Sequence[Row]) -> np.ndarray:
    """Return the hash that each document is drawn by: of its id, or of its place."""
    names = []
    for row in rows:
        place = (row["file"], str(row["line"]), str(row["byte_offset"]))
        name = row["id"] or "\n".join(place)
        names.append(name.encode())
    return hash_bytes(names)


def repeat_documents(
    step: Repeat, copies_by_document: Mapping[int, int], hashes: np.ndarray
) -> dict[int, int]:
    """Return the copies of each document after a step that repeats documents.

    If documents are repeated 2.3 times, those with the lowest 30 % of hashes have three copies, and
    the others two.
    """
    n_copies = int(step.times)
    share_with_another = Fraction(step.times) - n_copies
    limit = int(share_with_another * 2**64)
    draws = salted(hashes, f"repeat {step.view}")

    repeated = {}
    for document, copies in copies_by_document.items():
        has_another = int(draws[document]) < limit
        repeated[document] = copies * (n_copies + has_another)
    return repeated


def fill_budget(
    step: Budget, copies_by_document: Mapping[int, int], hashes: np.ndarray, rows: Sequence[Row]
) -> dict[int, int]:
    """Return the copies of the documents that a budget takes, by the order of their hashes.

    The first document that does not fit ends the budget.
    """
    ranks = salted(hashes, "budget").tolist()
    remaining = step.limit
    chosen = {}
    for document in sorted(copies_by_document, key=lambda number: ranks[number]):
        copies = copies_by_document[document]
        size = rows[document]["tokens"] if step.unit == "tokens" else 1
        remaining -= copies * size
        if remaining < 0:
            break
        chosen[document] = copies
    return chosen


def take_best(
    step: Top, copies_by_document: Mapping[int, int], hashes: np.ndarray, rows: Sequence[Row]
) -> dict[int, int]:
    """Return the copies of the documents with the best values of a column, up to a budget.

    Documents with equal values are taken by hash. Those with equal values and hashes are taken
    together, or end the budget together.
    """
    ranks = salted(hashes, "budget").tolist()
    documents_by_place: dict[tuple[Any, int], list[int]] = {}
    for document, copies in copies_by_document.items():
        value = rows[document][step.by]
        if copies and value is not None and not math.isnan(value):
            place = (value if step.ascending else -value, ranks[document])
            documents_by_place.setdefault(place, []).append(document)

    remaining = step.limit
    if step.share is not None:
        n_documents = 0
        for documents in documents_by_place.values():
            n_documents += sum(copies_by_document[document] for document in documents)
        remaining = math.floor(Fraction(str(step.share)) * n_documents)

    chosen: dict[int, int] = {}
    for place in sorted(documents_by_place):
        for document in documents_by_place[place]:
            size = rows[document]["tokens"] if step.unit == "tokens" else 1
            remaining -= copies_by_document[document] * size
        if remaining < 0:
            break
        for document in documents_by_place[place]:
            chosen[document] = copies_by_document[document]
    return chosen


def keeps_document(
    step: Where | Listed | Without | HashSplit, row: Row, document: int, hashes: np.ndarray
) -> bool:
    """Return whether a step that filters documents keeps one of them."""
    if isinstance(step, Where):
        return is_true(step.condition.text, row)
    if isinstance(step, Listed):
        is_listed = any(row["id"] in ids.texts.to_pylist() for ids in step.id_sets)
        return is_listed == step.keep
    if isinstance(step, Without):
        return document not in step.documents
    draw = int(salted(hashes[document : document + 1], "split")[0]) / 2**64
    return step.start <= draw < step.stop


def is_true(condition: str, row: Row) -> bool:
    """Return whether a condition is true of a document, by Python's own rules.

    A comparison with a missing value is false, as one with NaN is.
    """
    expression = condition.replace("=", "==")
    expression = expression.replace("true", "True").replace("false", "False")
    values = {}
    for name, value in row.items():
        values[name] = float("nan") if value is None else value
    return bool(eval(expression, values))


def list_copies(copies_by_document: Mapping[int, int]) -> list[int]:
    """Return all documents in order, then those with a second copy, and so on."""
    documents: list[int] = []
    for n_listed in range(max(copies_by_document.values(), default=0)):
        documents += [
            document
            for document in sorted(copies_by_document)
            if copies_by_document[document] > n_listed
        ]
    return documents


def sort_documents(documents: Sequence[int], order: ViewOrder, rows: Sequence[Row]) -> list[int]:
    """Return documents sorted by a column of numbers, those without a value last."""
    sign = -1 if order.descending else 1

    def sort_key(document: int) -> tuple[bool, float]:
        value = rows[document][order.by]
        return value is None, sign * (value or 0)

    return sorted(documents, key=sort_key)


# Random rules


def where_step(condition: str) -> Where:
    """Return the step that keeps the documents for which a condition is true."""
    return Where("v", parse_condition(condition, "v"))


CONDITIONS = [
    "quality > 2",
    "lang = 'en'",
    "quality < 1 or lang = 'de'",
    "quality > 9",
    "not lang = 'en'",
    "seen = true",
    "topic = 'b' and score > -2.5",
    "score < 1 or topic = 'a'",
    "line < 700 and seen = false",
]
SHARES = [(0.0, 0.5), (0.25, 1.0), (0.0, 1.0), (0.9, 0.9)]
"""Start and stop of the side of a split."""


def random_rule(seed: int) -> Rule:
    """Return a rule of random steps and a random order."""
    generator = random.Random(seed)
    # Some of the listed ids are those of no document.
    n_ids = generator.choice([0, 5, 400])
    listed_ids = [f"doc-{generator.randrange(ROWS + 100)}" for _ in range(n_ids)]
    id_sets = []
    for part in (listed_ids[::2], listed_ids[1::2]):
        id_sets.append(Ids(pa.array(part, pa.large_string())))
    condition_step = where_step(generator.choice(CONDITIONS))
    is_included = bool(generator.randrange(2))
    left_out = np.array(sorted(generator.sample(range(ROWS), 50)))
    start, stop = generator.choice(SHARES)
    steps = [
        condition_step,
        Listed("v", tuple(id_sets), is_included, "ids"),
        Without("v", left_out, "without"),
        HashSplit("v", "id", start, stop),
        Budget("v", "tokens", generator.choice([0, 1, 500, 10**6])),
        Budget("w", "documents", generator.choice([0, 3, 200, 10**6])),
        Top("v", "score", "tokens", limit=generator.choice([0, 900, 10**6])),
        Top("w", "quality", "documents", share=generator.choice([0.29, 1.0]), ascending=True),
        Repeat("v", generator.choice([0.5, 1, 2, 2.5])),
        Repeat("w", generator.choice([0.3, 3.25])),
    ]
    n_steps = generator.randrange(5)
    chosen_steps = generator.sample(steps, n_steps)
    orders = [None, ViewOrder("quality"), ViewOrder("tokens", descending=True)]
    return Rule(tuple(chosen_steps), generator.choice(orders))
