"""The first filters of several views, applied together."""

import numpy as np
import pytest

from helpers.view_rules import documents_table, shards_of
from nanoset_core.stages.views.leading_filters import LeadingFilters
from nanoset_core.stages.views.rules import Budget, HashSplit, Rule

HALF = HashSplit("v", "id", 0.0, 0.5)
QUARTER = HashSplit("w", "id", 0.0, 0.25)
COLUMNS = ["id", "tokens", "file", "line", "byte_offset"]


class CountedSplit(HashSplit):
    """A filter that counts how often it is asked."""

    calls = 0

    def mask(self, reader):
        type(self).calls += 1
        return super().mask(reader)


def test_views_with_a_common_beginning_share_its_work(tmp_path):
    split = CountedSplit("v", "id", 0.0, 0.5)
    rules = [Rule((split,)), Rule((split, QUARTER)), Rule((split, Budget("w", "tokens", 9)))]
    filters = LeadingFilters(rules, tmp_path)

    shards = shards_of(documents_table(200), 50)
    for shard in shards:
        filters.add(shard.values(COLUMNS))

    assert CountedSplit.calls == len(shards)


def test_counts_after_each_filter_are_those_of_the_documents_that_are_kept(tmp_path):
    table = documents_table(200)
    filters = LeadingFilters([Rule((HALF, QUARTER))], tmp_path)
    for shard in shards_of(table, 64):
        filters.add_totals(shard.n_documents, shard.n_tokens)
        filters.add(shard.values(COLUMNS))

    kept = np.concatenate(list(filters.chunks(0)))
    tokens = np.array(table.column("tokens").to_pylist())
    counts = list(filters.counts(0))

    assert [count.documents for count in counts] == sorted(
        (count.documents for count in counts), reverse=True
    )
    assert counts[0] == (200, tokens.sum())
    assert counts[-1] == (len(kept), tokens[kept].sum())


@pytest.mark.parametrize("size", [1, 7, 8, 9, 64])
def test_documents_are_found_again_in_parts_of_any_size(size, tmp_path):
    filters = LeadingFilters([Rule((HALF,)), Rule(())], tmp_path)
    expected = []
    for shard in shards_of(documents_table(100), size):
        values = shard.values(COLUMNS)
        filters.add(values)
        expected += values.numbers[HALF.mask(values)].tolist()

    assert np.concatenate(list(filters.chunks(0))).tolist() == expected
    assert np.concatenate(list(filters.chunks(1))).tolist() == list(range(100))
