"""Measure how well a plan shuffles: how much of the sources' order and of their blocks remains."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from nanoset_core.sampling.splits import plain_sum
from nanoset_core.stages.webdataset.contexts import SourceContexts
from nanoset_core.stages.webdataset.order import WINDOW, keys_of, ranks
from nanoset_core.stages.webdataset.plan import ShufflePlan

SAMPLE = 1_000_000
"""Most contexts that are looked at."""
_MIN_VARIANCE = 5.0
"""Variance of a count from which on a standard error is meaningful."""
_MAX_COUNTS = 4_000_000
"""Most counts of a source in a shard."""
_MAX_ERRORS = 4
"""Standard errors within which a measure of an even shuffle is."""
_MIX_MARGIN = 1.5
"""Standard errors by which the largest of many deviations may exceed the one expected."""


class _Neighbours(NamedTuple):
    """Pairs of neighbours in the shards."""

    pairs: int
    same_source: int
    """Pairs that come from one source."""
    touching: int
    """Of these, pairs that touch, or are the same, in their source."""


class _Correlation(NamedTuple):
    """Spearman's rank correlation of the places in the sources and in the shards."""

    value: float
    standard_error: float


def shuffle_quality(plan: ShufflePlan) -> dict[str, Any]:
    """Measure a plan's order. Reads no tokens, and needs at most some 100 MB and a second for a
    million contexts.

    Plans of more are sampled: evenly spread contexts for the correlation, the first shards for the
    rest, which are taken whole so that neighbours are neighbours.

    Returns:
        JSON values. All measures except the counts have no unit, and are next to what an even
        shuffle gives:

        - `same_source`, `neighbours`: shares of neighbours in the shards that come from one source, and that touch, or
          are the same, in their source.
        - `rank_correlation`: Spearman's, of the places in the sources and in the shards, with its standard error.
        - `mix_mean`, `mix_max`: deviations of a source's count in a shard from its share, in standard errors.
        - `even`: whether every measure is within four standard errors of chance, the largest deviation within some
          more.
    """
    # Contexts of the shards that are looked at, in the order of each shard.
    shards = _sampled_shards(plan)
    contexts_of_shards: list[NDArray[np.int64]] = []
    for shard in shards.tolist():
        start, stop = plan.shard_ranks(shard)
        contexts_of_shards.append(ranks(plan.table.contexts, plan.settings.seed, start, stop))
    sampled = sum(map(len, contexts_of_shards))

    neighbours = _neighbours(plan, contexts_of_shards)
    n_pairs = max(neighbours.pairs, 1)
    deviations = np.concatenate([_deviations(plan, contexts) for contexts in contexts_of_shards])
    correlation = _rank_correlation(plan)

    # What chance gives, by the ordered pairs of different contexts.
    sources = plan.table.sources
    possible_pairs = max(plan.table.contexts * (plan.table.contexts - 1), 1)
    same_source_pairs = sum(source.contexts * (source.contexts - 1) for source in sources)
    mix_mean = 0.0
    mix_max_expected = 0.0
    if len(deviations):
        mix_mean = float(deviations.mean())
        mix_max_expected = math.sqrt(2 * math.log(2 * len(deviations)))

    measures: dict[str, Any] = {
        "contexts": plan.contexts,
        "sampled": sampled,
        "same_source": neighbours.same_source / n_pairs,
        "same_source_expected": same_source_pairs / possible_pairs,
        "neighbours": neighbours.touching / n_pairs,
        "neighbours_expected": plain_sum(map(_expected_touching, sources)) / possible_pairs,
        "rank_correlation": correlation.value,
        "rank_correlation_error": correlation.standard_error,
        "shards": len(shards),
        "mix_mean": mix_mean,
        "mix_max": float(deviations.max(initial=0.0)),
        "mix_max_expected": mix_max_expected,
    }
    measures["even"] = _is_even(measures)
    return measures


def _is_even(measures: dict[str, Any]) -> bool:
    """Return whether all measures are as chance gives them."""
    n_pairs = max(measures["sampled"] - 1, 1)
    return bool(
        abs(measures["rank_correlation"]) <= _MAX_ERRORS * measures["rank_correlation_error"]
        and _is_by_chance(measures["same_source"], measures["same_source_expected"], n_pairs)
        and _is_by_chance(measures["neighbours"], measures["neighbours_expected"], n_pairs)
        and measures["mix_max"] <= measures["mix_max_expected"] + _MIX_MARGIN
    )


def _is_by_chance(share: float, expected: float, n_pairs: int) -> bool:
    """Return whether a share of pairs is within four standard errors, and two pairs, of what is
    expected.
    """
    standard_error = math.sqrt(expected * (1 - expected) / n_pairs)
    return abs(share - expected) <= _MAX_ERRORS * standard_error + 2 / n_pairs


def _sampled_shards(plan: ShufflePlan) -> NDArray[np.int64]:
    """Return the numbers of the shards that are looked at, int64, shape (shards,)."""
    n_sources = max(len(plan.table.sources), 1)
    count = max(1, min(plan.shards, SAMPLE // plan.shard_size, _MAX_COUNTS // n_sources))
    numbers = np.arange(count)
    if plan.contexts > WINDOW:
        return numbers  # the first ones: each window of the order takes seconds
    return numbers * plan.shards // count


def _neighbours(plan: ShufflePlan, contexts_of_shards: list[NDArray[np.int64]]) -> _Neighbours:
    """Count the neighbours in shards that come from one source, and those that touch in it."""
    pairs = 0
    same_source = 0
    touching = 0
    for contexts in contexts_of_shards:
        places = plan.table.locate(contexts)
        is_same = places.sources[1:] == places.sources[:-1]
        is_near = np.abs(np.diff(places.starts)) <= plan.settings.row_tokens
        pairs += len(is_same)
        same_source += int(is_same.sum())
        touching += int((is_same & is_near).sum())
    return _Neighbours(pairs, same_source, touching)


def _deviations(plan: ShufflePlan, contexts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return by how many standard errors the counts of sources in a shard differ from their shares.

    A count has the hypergeometric distribution. Sources whose count has too little variance are
    left out.
    """
    source_contexts = np.array([source.contexts for source in plan.table.sources], dtype=np.float64)
    total = source_contexts.sum()
    drawn = len(contexts)
    share = source_contexts / total
    variance = drawn * share * (1 - share) * (total - drawn) / max(total - 1, 1)

    source = np.searchsorted(plan.table.first_contexts, contexts, side="right") - 1
    counts = np.bincount(source, minlength=len(source_contexts))
    difference = np.abs(counts - drawn * share)
    has_variance = variance >= _MIN_VARIANCE
    deviations: NDArray[np.float64] = difference[has_variance] / np.sqrt(variance[has_variance])
    return deviations


def _rank_correlation(plan: ShufflePlan) -> _Correlation:
    """Return how far the position of a context in its source predicts its position in the shards."""
    total = plan.table.contexts
    count = min(total, SAMPLE)
    if count < 2:
        return _Correlation(0.0, 1.0)

    # The order is that of the keys, so ranks within the sample need no order of all contexts.
    numbers = np.arange(count) * total // count
    keys = keys_of(numbers.astype(np.uint64), plan.settings.seed)
    sample_ranks = np.argsort(np.argsort(keys))

    # Spearman's rho without ties: 1 - 6 sum(d^2) / (n (n^2 - 1)). The sum needs more than float32.
    distances = (sample_ranks - np.arange(count)).astype(np.float64)
    sum_of_squares = float((distances**2).sum())
    rho = 1 - 6 * sum_of_squares / (count * (count**2 - 1.0))
    return _Correlation(rho, 1 / math.sqrt(count - 1))


def _expected_touching(source: SourceContexts) -> float:
    """Return how many ordered pairs of a source's contexts hold the same row, or rows that touch."""
    rows = source.rows
    if not rows:
        return 0.0
    repeats = source.repeats
    chosen_share = source.chosen / rows
    # Chosen rows occur once more than the others.
    pairs_of_a_row = (1 - chosen_share) * repeats * (repeats - 1) + chosen_share * (
        repeats + 1
    ) * repeats
    return rows * pairs_of_a_row + 2 * (rows - 1) * (source.contexts / rows) ** 2
