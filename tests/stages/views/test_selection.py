"""Choosing documents, against a slow twin that looks at them one by one."""

from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from helpers.view_rules import (
    ROWS,
    TableShard,
    choose_slowly,
    documents_table,
    random_rule,
    shards_of,
)
from nanoset_core.document_tables.conditions import parse_condition
from nanoset_core.stages.views.ids import Ids
from nanoset_core.stages.views.rules import (
    Budget,
    HashSplit,
    Listed,
    Repeat,
    Rule,
    ViewOrder,
    Where,
)
from nanoset_core.stages.views.selection import select


def chosen(selection) -> list[int]:
    return [int(number) for chunk in selection.chunks() for number in chunk]


@pytest.mark.parametrize("seed", range(0, 200, 40))
def test_rules_choose_what_a_loop_over_documents_does(seed, tmp_path):
    table, rules = (
        documents_table(seed=seed),
        [random_rule(number) for number in range(seed, seed + 40)],
    )
    found = select(shards_of(table, 64), rules, tmp_path)
    for rule, selection in zip(rules, found, strict=True):
        expected = choose_slowly(table, rule)
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
    table = documents_table(300)
    found = select(shards_of(table, size), rules, tmp_path)
    assert [chosen(one) for one in found[:-2]] == [
        choose_slowly(table, rule) for rule in rules[:-2]
    ]
    columns = {name: table.column(name).to_pylist() for name in ("topic", "quality")}
    assert chosen(found[-2]) == [
        number for number, topic in enumerate(columns["topic"]) if topic == "b"
    ]
    assert chosen(found[-1]) == [
        number for number, quality in enumerate(columns["quality"]) if quality is None
    ]


def test_a_seeded_order_is_a_permutation_that_goes_with_the_documents(tmp_path):
    rule = Rule((Repeat("v", 2),), ViewOrder(seed=7))
    numbers = chosen(select(shards_of(documents_table(), 64), [rule], tmp_path)[0])
    assert sorted(numbers) == sorted([*range(ROWS), *range(ROWS)])
    more = chosen(select(shards_of(documents_table(ROWS + 100), 64), [rule], tmp_path)[0])
    assert [number for number in more if number < ROWS] == numbers


def test_a_smaller_budget_is_a_subset_and_no_document_changes_sides_by_an_append(tmp_path):
    rules = [Rule((Budget("a", "tokens", most),)) for most in (100, 1000, 5000)]
    rules += [Rule((HashSplit("s", "id", *keep),)) for keep in ((0.0, 0.3), (0.3, 1.0))]
    before = [set(chosen(one)) for one in select(shards_of(documents_table(), 64), rules, tmp_path)]
    assert before[0] < before[1] < before[2]
    assert before[3] | before[4] == set(range(ROWS))
    assert not before[3] & before[4]
    (tmp_path / "after").mkdir()
    after = [
        set(chosen(one))
        for one in select(shards_of(documents_table(ROWS + 500), 64), rules, tmp_path / "after")
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
            TableShard(table.slice(low, 1 << 16), first + low)
            for low in range(0, table.num_rows, 1 << 16)
        ]
        first += table.num_rows
    bounds = [0.0, 0.01, 0.5, 1.0]
    rules = [Rule((HashSplit("s", "id", *keep),)) for keep in pairwise(bounds)]
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


def test_ids_of_no_document_are_counted(tmp_path):
    ids = Ids(pa.array(["doc-1", "doc-2", "doc-2", "none"], pa.large_string()))
    rule = Rule((Listed("v", ids, keep=True, text="include ids"),))

    [selection] = select(shards_of(documents_table(), 64), [rule], tmp_path)

    assert chosen(selection) == [1, 2]
    assert (len(ids), ids.missing) == (3, 1)
