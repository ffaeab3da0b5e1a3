"""The choice of documents by the rules of views.

A slow twin looks at documents one by one. Some rules promise more: the choice of a seed, a budget
or a split stays the same when documents are appended to a corpus.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

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


def numbers_of(selection: Any) -> list[int]:
    """Return the numbers of the documents that were chosen, in the order of the view."""
    numbers: list[int] = []
    for chunk in selection.chunks():
        numbers += chunk.tolist()
    return numbers


def choose(table: pa.Table, rule: Rule, scratch: Path, shard_size: int = 64) -> list[int]:
    """Return the numbers of the documents of a table that one rule chooses."""
    [selection] = select(shards_of(table, shard_size), [rule], scratch)
    return numbers_of(selection)


def where(text: str) -> Rule:
    """Return the rule of a condition."""
    return Rule((Where("v", parse_condition(text, "v")),))


@pytest.mark.parametrize("seed", [0, 40, 80])
def test_rules_choose_the_documents_that_a_loop_over_documents_chooses(seed, tmp_path):
    table = documents_table(seed=seed)
    token_counts = table.column("tokens").to_pylist()
    rules = [random_rule(number) for number in range(seed, seed + 40)]

    selections = select(shards_of(table, 64), rules, tmp_path)

    for rule, selection in zip(rules, selections, strict=True):
        expected = choose_slowly(table, rule)
        assert numbers_of(selection) == expected, rule
        assert selection.documents == len(expected)
        assert selection.tokens == sum(token_counts[number] for number in expected)


# Conditions


@pytest.mark.parametrize("shard_size", [1, 3, 64])
def test_a_value_that_one_row_group_does_not_have_is_found_in_the_next(shard_size, tmp_path):
    """Shards are so small here that most of them lack some of the values."""
    table = documents_table(100)
    texts = []
    for topic in ["a", "b"]:
        for sign in ["=", "<"]:
            for quality in range(5):
                texts.append(f"topic = '{topic}' and quality {sign} {quality}")
    rules = [where(text) for text in texts]

    selections = select(shards_of(table, shard_size), rules, tmp_path)

    for rule, selection in zip(rules, selections, strict=True):
        assert numbers_of(selection) == choose_slowly(table, rule), rule


@pytest.mark.parametrize("shard_size", [1, 3, 64])
def test_a_negated_condition_chooses_no_document_without_a_value(shard_size, tmp_path):
    table = documents_table(60)
    topics = table.column("topic").to_pylist()

    numbers = choose(table, where("not topic = 'a'"), tmp_path, shard_size)

    assert numbers == [number for number, topic in enumerate(topics) if topic == "b"]


@pytest.mark.parametrize("shard_size", [1, 3, 64])
def test_documents_without_a_value_can_be_chosen(shard_size, tmp_path):
    table = documents_table(60)
    qualities = table.column("quality").to_pylist()

    numbers = choose(table, where("quality is null"), tmp_path, shard_size)

    assert numbers == [number for number, quality in enumerate(qualities) if quality is None]


# Orders, budgets and splits

SHUFFLED_TWICE = Rule((Repeat("v", 2),), ViewOrder(seed=7))


def test_a_seeded_order_has_every_document_as_often_as_the_view(tmp_path):
    numbers = choose(documents_table(), SHUFFLED_TWICE, tmp_path)

    assert sorted(numbers) == sorted([*range(ROWS), *range(ROWS)])


def test_a_seeded_order_of_documents_stays_the_same_when_others_are_appended(tmp_path):
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()

    before = choose(documents_table(), SHUFFLED_TWICE, tmp_path / "before")
    after = choose(documents_table(ROWS + 100), SHUFFLED_TWICE, tmp_path / "after")

    assert [number for number in after if number < ROWS] == before


def choose_sets(table: pa.Table, rules: Sequence[Rule], scratch: Path) -> list[set[int]]:
    """Return the documents that each rule chooses."""
    selections = select(shards_of(table, 64), rules, scratch)
    return [set(numbers_of(selection)) for selection in selections]


BUDGETS = [Rule((Budget("a", "tokens", limit),)) for limit in (100, 1000, 5000)]
SPLITS = [Rule((HashSplit("s", "id", 0.0, 0.3),)), Rule((HashSplit("s", "id", 0.3, 1.0),))]


def test_the_documents_of_a_smaller_budget_are_among_those_of_a_larger_one(tmp_path):
    [small, medium, large] = choose_sets(documents_table(), BUDGETS, tmp_path)

    assert small < medium < large


def test_each_document_is_on_one_side_of_a_split(tmp_path):
    [first, second] = choose_sets(documents_table(), SPLITS, tmp_path)

    assert first | second == set(range(ROWS))
    assert first.isdisjoint(second)


def test_appended_documents_bring_no_earlier_one_into_a_budget(tmp_path):
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()

    all_before = choose_sets(documents_table(), BUDGETS, tmp_path / "before")
    all_after = choose_sets(documents_table(ROWS + 500), BUDGETS, tmp_path / "after")

    for before, after in zip(all_before, all_after, strict=True):
        assert {number for number in after if number < ROWS} <= before


def test_appended_documents_do_not_change_the_side_of_earlier_ones(tmp_path):
    (tmp_path / "before").mkdir()
    (tmp_path / "after").mkdir()

    all_before = choose_sets(documents_table(), SPLITS, tmp_path / "before")
    all_after = choose_sets(documents_table(ROWS + 500), SPLITS, tmp_path / "after")

    for before, after in zip(all_before, all_after, strict=True):
        assert {number for number in after if number < ROWS} == before


# Many appends to a large corpus

N_DOCUMENTS = 200_000
N_FILES = 11
SHARES = [0.01, 0.49, 0.5]
SHARD_ROWS = 1 << 16


def file_table(file_number: int, n_rows: int) -> pa.Table:
    """Return the documents of a file, one in seven of them without an id.

    In the order of the corpus, the file comes between others whose numbers are smaller.
    """
    lines = pa.array(range(1, n_rows + 1), pa.int64())
    has_no_id = pa.array(np.arange(n_rows) % 7 == 3)
    ids = pc.binary_join_element_wise(f"{file_number}", lines.cast(pa.string()), "-")
    name = f"{file_number * 7 % N_FILES:02}.jsonl"
    return pa.table(
        {
            "file": pa.DictionaryArray.from_arrays(np.zeros(n_rows, np.int32), pa.array([name])),
            "line": lines,
            "byte_offset": pc.multiply(lines, 10),
            "id": pc.if_else(has_no_id, None, ids),
            "tokens": pa.array(np.ones(n_rows, np.int32)),
        }
    )


def sides_by_file(tables: dict[int, pa.Table], scratch: Path) -> dict[int, np.ndarray]:
    """Return which of three parts each document is in, by its file.

    Args:
        tables: The documents of each file, by its number.
        scratch: An empty folder.
    """
    # Cut the files into shards, in the order of the corpus.
    file_numbers = sorted(tables, key=lambda number: tables[number].column("file")[0].as_py())
    shards = []
    n_documents = 0
    for file_number in file_numbers:
        table = tables[file_number]
        for start in range(0, table.num_rows, SHARD_ROWS):
            shards.append(TableShard(table.slice(start, SHARD_ROWS), n_documents + start))
        n_documents += table.num_rows

    bounds = np.cumsum([0.0, *SHARES]).tolist()
    rules = [Rule((HashSplit("s", "id", start, stop),)) for start, stop in pairwise(bounds)]
    sides = np.zeros(n_documents, np.uint8)
    n_sides = np.zeros(n_documents, np.uint8)
    for side, selection in enumerate(select(shards, rules, scratch)):
        for numbers in selection.chunks():
            sides[numbers] = side
            n_sides[numbers] += 1
    assert (n_sides == 1).all()

    file_stops = np.cumsum([tables[number].num_rows for number in file_numbers])
    return dict(zip(file_numbers, np.split(sides, file_stops[:-1]), strict=True))


def test_ten_appends_move_no_document_between_splits(tmp_path):
    tables: dict[int, pa.Table] = {}
    sides_before: dict[int, np.ndarray] = {}
    for file_number in range(N_FILES):
        tables[file_number] = file_table(file_number, N_DOCUMENTS // N_FILES)
        scratch = tmp_path / str(file_number)
        scratch.mkdir()

        sides = sides_by_file(tables, scratch)

        for earlier_file, sides_of_file in sides_before.items():
            assert np.array_equal(sides[earlier_file], sides_of_file)
        sides_before = sides

    # After all of them, the parts have their shares.
    all_sides = np.concatenate(list(sides_before.values()))
    shares = np.bincount(all_sides) / len(all_sides)
    assert np.allclose(shares, SHARES, atol=0.01)


# Lists of ids


@pytest.fixture
def ids() -> Ids:
    """Ids of two documents, one of them listed twice, and one of no document."""
    return Ids(pa.array(["doc-1", "doc-2", "doc-2", "none"], pa.large_string()))


def test_listed_documents_are_chosen_once(ids, tmp_path):
    rule = Rule((Listed("v", (ids,), keep=True, text="include ids"),))

    assert choose(documents_table(), rule, tmp_path) == [1, 2]


def test_documents_are_kept_that_any_of_several_sets_lists(ids, tmp_path):
    other_ids = Ids(pa.array(["doc-2", "doc-4"], pa.large_string()))
    rule = Rule((Listed("v", (ids, other_ids), keep=True, text="include ids, other ids"),))

    assert choose(documents_table(), rule, tmp_path) == [1, 2, 4]


def test_ids_of_no_document_are_counted(ids, tmp_path):
    rule = Rule((Listed("v", (ids,), keep=True, text="include ids"),))

    choose(documents_table(), rule, tmp_path)

    assert len(ids) == 3
    assert ids.missing == 1
    assert ids.first_missing == "none"


def test_no_id_is_missing_if_documents_have_all(tmp_path):
    ids = Ids(pa.array(["doc-2", "doc-1"], pa.large_string()))
    rule = Rule((Listed("v", (ids,), keep=True, text="include ids"),))

    choose(documents_table(), rule, tmp_path)

    assert ids.first_missing is None
