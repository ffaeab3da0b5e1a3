"""The first filters of several views, applied together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from helpers.view_rules import documents_table, shards_of
from nanoset_core.stages.views.leading_filters import LeadingFilters
from nanoset_core.stages.views.rules import Budget, HashSplit, Rule

HALF = HashSplit("v", "id", 0.0, 0.5)
QUARTER = HashSplit("w", "id", 0.0, 0.25)
COLUMNS = ["id", "tokens", "file", "line", "byte_offset"]


@pytest.fixture
def masks_of_half(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """A list to which each mask is appended that the filter HALF computes."""
    masks = []
    compute_mask = HashSplit.mask

    def record(split, values):
        mask = compute_mask(split, values)
        if split is HALF:
            masks.append(mask)
        return mask

    monkeypatch.setattr(HashSplit, "mask", record)
    return masks


def test_a_filter_with_which_several_views_start_is_applied_once(tmp_path, masks_of_half):
    rules = [Rule((HALF,)), Rule((HALF, QUARTER)), Rule((HALF, Budget("w", "tokens", 9)))]
    shards = shards_of(documents_table(200), 50)
    filters = LeadingFilters(rules, tmp_path)

    for shard in shards:
        filters.add(shard.values(COLUMNS))

    assert len(masks_of_half) == len(shards)


def test_documents_and_tokens_after_each_filter_are_counted(tmp_path):
    table = documents_table(200)
    token_counts = np.array(table.column("tokens").to_pylist())
    filters = LeadingFilters([Rule((HALF, QUARTER))], tmp_path)
    for shard in shards_of(table, 64):
        filters.add_totals(shard.n_documents, shard.n_tokens)
        filters.add(shard.values(COLUMNS))

    numbers = np.concatenate(list(filters.chunks(0)))
    counts = list(filters.counts(0))

    document_counts = [count.documents for count in counts]
    assert document_counts == sorted(document_counts, reverse=True)
    assert counts[0] == (200, token_counts.sum())
    assert counts[-1] == (len(numbers), token_counts[numbers].sum())


@pytest.mark.parametrize("shard_size", [1, 7, 8, 9, 64])
def test_chosen_documents_are_those_of_all_shards_whatever_their_size(shard_size, tmp_path):
    """A bit is stored for each document, and shards need not consist of whole bytes."""
    filters = LeadingFilters([Rule((HALF,)), Rule(())], tmp_path)
    expected: list[int] = []
    for shard in shards_of(documents_table(100), shard_size):
        values = shard.values(COLUMNS)
        filters.add(values)
        expected += values.numbers[HALF.mask(values)].tolist()

    assert np.concatenate(list(filters.chunks(0))).tolist() == expected
    assert np.concatenate(list(filters.chunks(1))).tolist() == list(range(100))
