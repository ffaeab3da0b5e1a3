"""The most frequent values are found, and their counts are exact or bounded from both sides."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nanoset_core.statistics import frequent
from nanoset_core.statistics.frequent import FrequentValues
from nanoset_core.statistics.hashing import hash_texts

TOKENS = 3
"""Tokens of each document."""


def count(values: Sequence[str], batch_size: int, n_values: int = 5) -> FrequentValues:
    """Count values of documents, which are added in batches."""
    result = FrequentValues(n_values)
    for start in range(0, len(values), batch_size):
        counts = Counter(values[start : start + batch_size])
        texts = list(counts)
        documents = np.array([counts[text] for text in texts])
        hashes = hash_texts(pa.array(texts, pa.string()))
        result.add(hashes, documents, TOKENS * documents, texts.__getitem__)
    return result


@given(
    values=st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60),
    batch_size=st.integers(1, 9),
)
def test_few_distinct_values_are_counted_exactly(values, batch_size):
    counts = Counter(values)

    result = count(values, batch_size)

    assert result.error == 0
    most_frequent = result.most_frequent()
    expected = sorted(counts.values(), reverse=True)[:5]
    assert [value.documents for value in most_frequent] == expected
    for value in most_frequent:
        assert value.documents == value.max_documents == counts[value.value]
        assert value.tokens == TOKENS * counts[value.value]


@pytest.fixture
def few_counters(monkeypatch: pytest.MonkeyPatch) -> int:
    """Count only a few values at the same time."""
    monkeypatch.setattr(frequent, "MAX_COUNTERS", 6)
    return 6


@pytest.mark.parametrize("seed", range(20))
def test_counts_are_bounded_if_there_are_too_many_distinct_values(few_counters, seed):
    generator = np.random.default_rng(seed)
    values = [f"v{number}" for number in generator.zipf(1.5, 500)]
    counts = Counter(values)

    result = count(values, 20)

    most_frequent = result.most_frequent()
    assert 0 < result.error <= 500 / few_counters
    for value in most_frequent:
        assert value.documents <= counts[value.value] <= value.max_documents
    # Nothing is left out that is more frequent than the error.
    named = {value.value for value in most_frequent}
    frequent_texts = {text for text, n in counts.items() if n > 2 * result.error}
    assert frequent_texts <= named or len(named) == 5
