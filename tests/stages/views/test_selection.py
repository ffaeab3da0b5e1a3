"""Choosing documents, against a slow twin that looks at them one by one."""

import random
from fractions import Fraction
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from nanoset_core.sampling.hashing import hash_bytes, hash_texts, salted
from nanoset_core.stages.views.conditions import ColumnStatistics, parse_condition
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.rules import (
    Budget,
    Listed,
    Order,
    Repeat,
    Rule,
    Split,
    Where,
    Without,
)
from nanoset_core.stages.views.selection import select

ROWS = 1000


class Chunk:
    """A row group in memory."""

    def __init__(self, table: pa.Table, first: int) -> None:
        self.table, self.first, self.rows = table, first, table.num_rows

    def read(self, columns):
        return self.table.select(columns)

    def statistics(self):
        quality = [one for one in self.table.column("quality").to_pylist() if one is not None]
        nulls = self.rows - len(quality)
        return {
            "quality": ColumnStatistics(
                min(quality, default=None), max(quality, default=None), nulls, self.rows
            )
        }


def corpus(rows: int = ROWS, seed: int = 0) -> pa.Table:
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


def groups(table: pa.Table, size: int):
    return [Chunk(table.slice(begin, size), begin) for begin in range(0, table.num_rows, size)]


def chosen(selection) -> list[int]:
    return [int(number) for chunk in selection.chunks() for number in chunk]


def keys_of(table: pa.Table) -> np.ndarray:
    names = [
        (row["id"] or "\n".join((row["file"], str(row["line"]), str(row["byte_offset"])))).encode()
        for row in table.to_pylist()
    ]
    return hash_bytes(names)


def slowly(table: pa.Table, rule: Rule) -> list[int]:
    """The same, document by document."""
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
                n: count for n, count in times.items() if KEPT[type(step)](step, rows[n], n, keys)
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


KEPT = {
    Where: lambda step, row, n, keys: eval(
        step.condition.text.replace("=", "==").replace("true", "True").replace("false", "False"),
        {name: float("nan") if value is None else value for name, value in row.items()},
    ),
    Listed: lambda step, row, n, keys: (row["id"] in step.ids._texts.to_pylist()) == step.keep,
    Without: lambda step, row, n, keys: n not in step.documents,
    Split: lambda step, row, n, keys: (
        step.start <= int(salted(keys[n : n + 1], "split")[0]) / 2**64 < step.stop
    ),
}


def random_rule(seed: int) -> Rule:
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
        Split("v", "id", *pick.choice([(0.0, 0.5), (0.25, 1.0), (0.0, 1.0), (0.9, 0.9)])),
        Budget("v", "tokens", pick.choice([0, 1, 500, 10**6])),
        Budget("w", "documents", pick.choice([0, 3, 200, 10**6])),
        Repeat("v", pick.choice([0.5, 1, 2, 2.5])),
        Repeat("w", pick.choice([0.3, 3.25])),
    ]
    orders = [None, Order("quality"), Order("tokens", descending=True)]
    return Rule(tuple(pick.sample(steps, pick.randrange(5))), pick.choice(orders))


@pytest.mark.parametrize("seed", range(0, 200, 40))
def test_rules_choose_what_a_loop_over_documents_does(seed, tmp_path):
    table, rules = corpus(seed=seed), [random_rule(number) for number in range(seed, seed + 40)]
    found = select(groups(table, 64), rules, tmp_path)
    for rule, selection in zip(rules, found, strict=True):
        expected = slowly(table, rule)
        assert chosen(selection) == expected, rule
        tokens = table.column("tokens").to_pylist()
        assert (selection.documents, selection.tokens) == (
            len(expected),
            sum(tokens[n] for n in expected),
        )


@pytest.mark.parametrize("size", [1, 3, 64])
def test_values_that_a_row_group_lacks_are_found_in_the_next_one(size, tmp_path):
    texts = [
        f"topic = '{topic}' and quality {sign} {q}"
        for topic in "ab"
        for sign in "=<"
        for q in range(5)
    ]
    rules = [
        Rule((Where("v", parse_condition(text, "v")),))
        for text in [*texts, "not topic = 'a'", "quality is null"]
    ]
    table = corpus(300)
    found = select(groups(table, size), rules, tmp_path)
    assert [chosen(one) for one in found[:-2]] == [slowly(table, rule) for rule in rules[:-2]]
    columns = {name: table.column(name).to_pylist() for name in ("topic", "quality")}
    assert chosen(found[-2]) == [
        number for number, topic in enumerate(columns["topic"]) if topic == "b"
    ]
    assert chosen(found[-1]) == [
        number for number, quality in enumerate(columns["quality"]) if quality is None
    ]


def test_a_seeded_order_is_a_permutation_that_goes_with_the_documents(tmp_path):
    rule = Rule((Repeat("v", 2),), Order(seed=7))
    numbers = chosen(select(groups(corpus(), 64), [rule], tmp_path)[0])
    assert sorted(numbers) == sorted([*range(ROWS), *range(ROWS)])
    more = chosen(select(groups(corpus(ROWS + 100), 64), [rule], tmp_path)[0])
    assert [number for number in more if number < ROWS] == numbers


def test_a_smaller_budget_is_a_subset_and_no_document_changes_sides_by_an_append(tmp_path):
    rules = [Rule((Budget("a", "tokens", most),)) for most in (100, 1000, 5000)]
    rules += [Rule((Split("s", "id", *keep),)) for keep in ((0.0, 0.3), (0.3, 1.0))]
    before = [set(chosen(one)) for one in select(groups(corpus(), 64), rules, tmp_path)]
    assert before[0] < before[1] < before[2]
    assert before[3] | before[4] == set(range(ROWS))
    assert not before[3] & before[4]
    (tmp_path / "after").mkdir()
    after = [
        set(chosen(one))
        for one in select(groups(corpus(ROWS + 500), 64), rules, tmp_path / "after")
    ]
    for old, new in zip(before[:3], after[:3], strict=True):
        assert {number for number in new if number < ROWS} <= old
    assert [{number for number in new if number < ROWS} for new in after[3:]] == before[3:]


def appended(number: int, rows: int) -> pa.Table:
    """A file of documents, one in seven of them without an id; it lies among those that were there
    before.
    """
    lines = pa.array(range(1, rows + 1), pa.int64())
    ids = pc.binary_join_element_wise(f"{number}", lines.cast(pa.string()), "-")
    ids = pc.if_else(pa.array(np.arange(rows) % 7 == 3), None, ids)
    file = pa.array([f"{number * 7 % 11:02}.jsonl"]).dictionary_encode()
    file = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), file.dictionary)
    offsets, tokens = pc.multiply(lines, 10), pa.array(np.ones(rows, np.int32))
    return pa.table(
        {"file": file, "line": lines, "byte_offset": offsets, "id": ids, "tokens": tokens}
    )


def sides_of(tables: dict[int, pa.Table], scratch) -> dict[int, np.ndarray]:
    """Which of three parts each document is in, by its file."""
    order = sorted(tables, key=lambda number: tables[number].column("file")[0].as_py())
    parts, first = [], 0
    for number in order:
        table = tables[number]
        parts += [
            Chunk(table.slice(low, 1 << 16), first + low)
            for low in range(0, table.num_rows, 1 << 16)
        ]
        first += table.num_rows
    bounds = [0.0, 0.01, 0.5, 1.0]
    rules = [Rule((Split("s", "id", *keep),)) for keep in pairwise(bounds)]
    sides, times = np.zeros(first, np.uint8), np.zeros(first, np.uint8)
    for side, found in enumerate(select(parts, rules, scratch)):
        for some in found.chunks():
            sides[some], times[some] = side, times[some] + 1
    assert (times == 1).all()
    ends = np.cumsum([tables[number].num_rows for number in order])
    return dict(zip(order, np.split(sides, ends[:-1]), strict=True))


@pytest.mark.parametrize("documents", [200_000])
def test_ten_appends_move_no_document_between_splits(documents, tmp_path):
    tables, before = {}, {}
    for number in range(11):
        tables[number] = appended(number, documents // 11)
        (tmp_path / str(number)).mkdir()
        after = sides_of(tables, tmp_path / str(number))
        assert not sum(int((after[one] != sides).sum()) for one, sides in before.items())
        before = after
    shares = np.bincount(np.concatenate([*before.values()])) / (documents // 11 * 11)
    assert np.allclose(shares, [0.01, 0.49, 0.5], atol=0.01)


def test_ids_are_found_by_their_texts_and_those_missing_are_counted():
    ids = Ids(pa.array(["a", "b", "b", "c"], pa.large_string()))
    texts = pa.array(["x", "b", None, "a", ""], pa.large_string())
    assert ids.mask(texts, hash_texts(texts)).tolist() == [False, True, False, True, False]
    assert (len(ids), ids.missing) == (3, 1)


def test_statistics_never_hide_a_row(tmp_path):
    table = corpus().sort_by("quality")
    conditions = [
        "quality = 2",
        "not quality < 3",
        "quality is null",
        "quality is not null",
        "quality in (0, 4)",
    ]
    for text in [
        *conditions,
        "quality >= 4 and not quality is null",
        "not (quality = 1 or quality <> 3)",
    ]:
        condition = parse_condition(text, "where")
        for chunk in groups(table, 50):
            assert condition.mask(chunk.table).any() <= condition.may_hold(chunk.statistics())
