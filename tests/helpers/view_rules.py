"""Random rules of views over random documents, and a slow twin that chooses document by document."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.document_tables.relation import DocumentRelation, TableSource, value_type
from nanoset_core.document_tables.scan import DocumentScan
from nanoset_core.sampling.hashing import hash_bytes, salted
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.rules import (
    Budget,
    DocumentValues,
    HashSplit,
    Listed,
    Repeat,
    Rule,
    ViewOrder,
    Where,
    Without,
)

ROWS = 1000
"""Documents of a table, unless a test asks for more."""


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


def documents_table(rows: int = ROWS, seed: int = 0) -> pa.Table:
    """Return a table of random documents, with ids and columns of every type."""
    random.seed(seed)
    ids = [None if number % 7 == 3 else f"doc-{number}" for number in range(rows)]
    return pa.table(
        {
            "file": pa.array(["a.jsonl"] * rows).dictionary_encode(),
            "line": pa.array(range(1, rows + 1), pa.int64()),
            "byte_offset": pa.array(range(0, 10 * rows, 10), pa.int64()),
            "id": pa.array(ids),
            "tokens": pa.array([random.randrange(20) for _ in range(rows)], pa.int32()),
            "quality": pa.array(
                [None if random.random() < 0.1 else random.randrange(5) for _ in range(rows)]
            ),
            "lang": pa.array([random.choice(["en", "de", "fr"]) for _ in range(rows)]),
            "topic": pa.array(
                [random.choice(["a", "b", None]) for _ in range(rows)]
            ).dictionary_encode(),
            "score": pa.array(
                [random.choice([None, random.gauss(0, 9)]) for _ in range(rows)], pa.float64()
            ),
            "seen": pa.array([random.choice([True, False, None]) for _ in range(rows)]),
        }
    )


def shards_of(table: pa.Table, size: int) -> list[TableShard]:
    """Cut a table into shards of some documents each."""
    return [TableShard(table.slice(begin, size), begin) for begin in range(0, table.num_rows, size)]


def keys_of(table: pa.Table) -> np.ndarray:
    """Return the hash that each document is drawn by: of its id, or of its place."""
    names = [
        (row["id"] or "\n".join((row["file"], str(row["line"]), str(row["byte_offset"])))).encode()
        for row in table.to_pylist()
    ]
    return hash_bytes(names)


def choose_slowly(table: pa.Table, rule: Rule) -> list[int]:
    """Return the documents that a rule chooses, found document by document."""
    rows, keys = table.to_pylist(), keys_of(table)
    times = dict.fromkeys(range(len(rows)), 1)
    for step in rule.steps:
        if isinstance(step, Repeat):
            whole, part = int(step.times), Fraction(step.times) - int(step.times)
            again = salted(keys, f"repeat {step.view}")
            times = {
                n: count * (whole + (int(again[n]) < int(part * 2**64)))
                for n, count in times.items()
            }
        elif isinstance(step, Budget):
            left, kept = step.limit, {}
            ranks = salted(keys, "budget").tolist()
            for n in sorted(times, key=ranks.__getitem__):
                left -= times[n] * (rows[n]["tokens"] if step.unit == "tokens" else 1)
                if left < 0:
                    break
                kept[n] = times[n]
            times = kept
        else:
            times = {
                n: count
                for n, count in times.items()
                if KEEPS_DOCUMENT[type(step)](step, rows[n], n, keys)
            }
    given = [
        n
        for round_ in range(max(times.values(), default=0))
        for n in sorted(times)
        if times[n] > round_
    ]
    if rule.order is not None and rule.order.by is not None:
        sign = -1 if rule.order.descending else 1
        given.sort(
            key=lambda n: (rows[n][rule.order.by] is None, sign * (rows[n][rule.order.by] or 0))
        )
    return given


KEEPS_DOCUMENT = {
    Where: lambda step, row, n, keys: eval(
        step.condition.text.replace("=", "==").replace("true", "True").replace("false", "False"),
        {name: float("nan") if value is None else value for name, value in row.items()},
    ),
    Listed: lambda step, row, n, keys: (row["id"] in step.ids.texts.to_pylist()) == step.keep,
    Without: lambda step, row, n, keys: n not in step.documents,
    HashSplit: lambda step, row, n, keys: (
        step.start <= int(salted(keys[n : n + 1], "split")[0]) / 2**64 < step.stop
    ),
}


def random_rule(seed: int) -> Rule:
    """Return a rule of random steps and a random order."""
    pick = random.Random(seed)
    ids = pa.array(
        [f"doc-{pick.randrange(ROWS + 100)}" for _ in range(pick.choice([0, 5, 400]))],
        pa.large_string(),
    )
    where = [
        "quality > 2",
        "lang = 'en'",
        "quality < 1 or lang = 'de'",
        "quality > 9",
        "not lang = 'en'",
        "seen = true",
    ]
    where += [
        "topic = 'b' and score > -2.5",
        "score < 1 or topic = 'a'",
        "line < 700 and seen = false",
    ]
    steps = [
        Where("v", parse_condition(pick.choice(where), "v")),
        Listed("v", Ids(ids), bool(pick.randrange(2)), "ids"),
        Without("v", np.array(sorted(pick.sample(range(ROWS), 50))), "without"),
        HashSplit("v", "id", *pick.choice([(0.0, 0.5), (0.25, 1.0), (0.0, 1.0), (0.9, 0.9)])),
        Budget("v", "tokens", pick.choice([0, 1, 500, 10**6])),
        Budget("w", "documents", pick.choice([0, 3, 200, 10**6])),
        Repeat("v", pick.choice([0.5, 1, 2, 2.5])),
        Repeat("w", pick.choice([0.3, 3.25])),
    ]
    orders = [None, ViewOrder("quality"), ViewOrder("tokens", descending=True)]
    return Rule(tuple(pick.sample(steps, pick.randrange(5))), pick.choice(orders))
