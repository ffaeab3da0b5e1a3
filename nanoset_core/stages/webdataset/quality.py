"""Measure how well a plan shuffles, by how much of the order of the sources is left.

Three kinds of traces are measured, and compared with what chance alone gives: contexts that were
neighbours in a source and still are, a correlation of the places before and after, and tars in
which a source has more or fewer contexts than its share.
"""

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
"""At most this many contexts are measured."""
_MIN_VARIANCE = 5.0
"""Counts with a lower variance have no meaningful standard error, and are not measured."""
_MAX_COUNTS = 4_000_000
"""At most this many counts, of a source in a shard, are measured."""
_MAX_ERRORS = 4
"""The measures of an even shuffle are within this many standard errors of their expectation."""
_MIX_MARGIN = 1.5
"""The largest of many deviations may exceed its expectation by this many standard errors."""


class _Neighbours(NamedTuple):
    """Counts of contexts that follow one another in a shard."""

    pairs: int
    """All pairs of neighbours."""
    same_source: int
    """Pairs of contexts from the same source."""
    near_in_source: float
    """Pairs of contexts that are neighbours in their source, too, or are the same row.

    It is no integer if it is an average.
    """


class _Correlation(NamedTuple):
    """Spearman's rank correlation of the places in the sources and in the shards."""

    value: float
    standard_error: float


def shuffle_quality(plan: ShufflePlan) -> dict[str, Any]:
    """Measure how evenly a plan is shuffled, without reading tokens.

    A plan divides contexts, which are rows of tokens of several sources, among shards. It takes
    about 100 MB and a second to measure a million contexts. Larger plans are sampled: contexts that
    are spread evenly are used for the correlation, and complete shards for the other measures,
    which depend on neighbours.

    Args:
        plan: Says which context (sample) goes into which tar.

    Returns:
        JSON values. Next to each measure is its expectation for an even shuffle.

        - `same_source`: share of neighbours in shards that are from the same source.
        - `neighbours`: share of neighbours in shards that are neighbours in their source, too, or
          are the same row.
        - `rank_correlation`: Spearman's correlation of the places in the sources and in the shards,
          with its standard error.
        - `mix_mean`, `mix_max`: mean and largest deviation of the number of a source's contexts in
          a shard from its share, in standard errors.
        - `even`: whether all measures are within four standard errors of their expectation; the
          largest deviation may be slightly larger.
    """
    contexts_of_shards = [_contexts_of_shard(plan, shard) for shard in _sampled_shards(plan)]
    correlation = _rank_correlation(plan)
    measures: dict[str, Any] = {
        "contexts": plan.contexts,
        "sampled": sum(map(len, contexts_of_shards)),
        **_neighbour_measures(plan, contexts_of_shards),
        "rank_correlation": correlation.value,
        "rank_correlation_error": correlation.standard_error,
        "shards": len(contexts_of_shards),
        **_mix_measures(plan, contexts_of_shards),
    }
    measures["even"] = _is_even(measures)
    return measures


def _neighbour_measures(
    plan: ShufflePlan, contexts_of_shards: list[NDArray[np.int64]]
) -> dict[str, float]:
    """Return which shares of neighbours in shards are related, and what chance would give.

    For example, 30 % of neighbours are from the same source, and 31 % would be by chance.

    Args:
        plan: The plan.
        contexts_of_shards: Numbers of the contexts of each shard that is measured, in its order.
    """
    neighbours = _neighbours(plan, contexts_of_shards)
    n_pairs = max(neighbours.pairs, 1)
    expected = _expected_neighbours(plan)
    return {
        "same_source": neighbours.same_source / n_pairs,
        "same_source_expected": expected.same_source / expected.pairs,
        "neighbours": neighbours.near_in_source / n_pairs,
        "neighbours_expected": expected.near_in_source / expected.pairs,
    }


def _mix_measures(
    plan: ShufflePlan, contexts_of_shards: list[NDArray[np.int64]]
) -> dict[str, float]:
    """Return how far shards are from having each source's share of contexts, in standard errors.

    Args:
        plan: The plan.
        contexts_of_shards: Numbers of the contexts of each shard that is measured.

    Returns:
        The mean and the largest deviation, and the largest one that chance would give.
    """
    deviations = np.concatenate([_deviations(plan, contexts) for contexts in contexts_of_shards])
    return {
        "mix_mean": float(deviations.mean()) if len(deviations) else 0.0,
        "mix_max": float(deviations.max(initial=0.0)),
        "mix_max_expected": _expected_maximum(len(deviations)),
    }


def _contexts_of_shard(plan: ShufflePlan, shard: int) -> NDArray[np.int64]:
    """Return the numbers of the contexts of a shard, in its order, shape (n_contexts,)."""
    start, stop = plan.shard_ranks(shard)
    return ranks(plan.table.contexts, plan.settings.seed, start, stop)


def _expected_neighbours(plan: ShufflePlan) -> _Neighbours:
    """Count all ordered pairs of different contexts of a plan, and how many are related.

    After an even shuffle, any of these pairs are neighbours in a shard with the same chance.
    """
    sources = plan.table.sources
    return _Neighbours(
        pairs=max(plan.table.contexts * (plan.table.contexts - 1), 1),
        same_source=sum(source.contexts * (source.contexts - 1) for source in sources),
        near_in_source=plain_sum(map(_pairs_near_in_source, sources)),
    )


def _expected_maximum(count: int) -> float:
    """Return how large the largest of some deviations with a normal distribution is on average.

    Of n deviations, that is about sqrt(2 ln(2 n)) standard errors.
    """
    if not count:
        return 0.0
    return math.sqrt(2 * math.log(2 * count))


def _is_even(measures: dict[str, Any]) -> bool:
    """Return whether all measures are as expected for an even shuffle."""
    n_pairs = max(measures["sampled"] - 1, 1)
    return bool(
        abs(measures["rank_correlation"]) <= _MAX_ERRORS * measures["rank_correlation_error"]
        and _is_by_chance(measures["same_source"], measures["same_source_expected"], n_pairs)
        and _is_by_chance(measures["neighbours"], measures["neighbours_expected"], n_pairs)
        and measures["mix_max"] <= measures["mix_max_expected"] + _MIX_MARGIN
    )


def _is_by_chance(share: float, expected: float, n_pairs: int) -> bool:
    """Return whether a share of pairs differs from its expectation by no more than chance explains.

    The limit is four standard errors and two pairs.

    Args:
        share: Measured share.
        expected: Expected share.
        n_pairs: Number of pairs that the share was measured with.
    """
    standard_error = math.sqrt(expected * (1 - expected) / n_pairs)
    return abs(share - expected) <= _MAX_ERRORS * standard_error + 2 / n_pairs


def _sampled_shards(plan: ShufflePlan) -> list[int]:
    """Return the numbers of the shards that are measured."""
    n_sources = max(len(plan.table.sources), 1)
    count = max(1, min(plan.shards, SAMPLE // plan.shard_size, _MAX_COUNTS // n_sources))
    numbers = np.arange(count)
    if plan.contexts > WINDOW:
        # Take the first shards, since each window of the order takes seconds to compute.
        return numbers.tolist()
    return (numbers * plan.shards // count).tolist()


def _neighbours(plan: ShufflePlan, contexts_of_shards: list[NDArray[np.int64]]) -> _Neighbours:
    """Count the pairs of contexts that follow each other in shards, and how many are related.

    Two contexts are related if they are from the same source. They are near if they also follow
    each other there, or are the same row of tokens.

    Args:
        plan: Says which context (sample) goes into which tar.
        contexts_of_shards: Numbers of the contexts of each shard that is measured, in its order.
    """
    n_pairs = 0
    n_same_source = 0
    n_near = 0
    for contexts in contexts_of_shards:
        # (n_contexts - 1,) each: whether a context and the next one are related
        places = plan.table.locate(contexts)
        is_same_source = places.sources[1:] == places.sources[:-1]
        distances = np.abs(np.diff(places.starts))  # tokens between their starts
        is_near = is_same_source & (distances <= plan.settings.row_tokens)
        n_pairs += len(is_same_source)
        n_same_source += int(is_same_source.sum())
        n_near += int(is_near.sum())
    return _Neighbours(pairs=n_pairs, same_source=n_same_source, near_in_source=n_near)


def _deviations(plan: ShufflePlan, contexts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how far the number of contexts that a shard has of each source is from chance.

    By chance, this number has the hypergeometric distribution. A deviation of 2 means that it is
    two standard errors above or below the mean. For example, if 10 of the 100 contexts of a shard
    should be from a source, the standard error is about 3, and 16 contexts are a deviation of 2.

    Args:
        plan: Says which context (sample) goes into which tar.
        contexts: Numbers of the contexts of the shard, shape (n_contexts,).

    Returns:
        A deviation, 0 or more, for each source. Sources of which a shard has hardly any context are
        left out: such a count has no meaningful standard error.
    """
    source_sizes = np.array([source.contexts for source in plan.table.sources], dtype=np.float64)
    expected = _count_distributions(source_sizes, n_drawn=len(contexts))

    source_of_context = np.searchsorted(plan.table.first_contexts, contexts, side="right") - 1
    counts = np.bincount(source_of_context, minlength=len(source_sizes))  # (n_sources,)
    distance = np.abs(counts - expected.mean)
    has_variance = expected.variance >= _MIN_VARIANCE
    deviations: NDArray[np.float64] = distance[has_variance] / np.sqrt(
        expected.variance[has_variance]
    )
    return deviations


class _CountDistributions(NamedTuple):
    """The distribution of the count of each source. Arrays have the shape (n_sources,)."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


def _count_distributions(source_sizes: NDArray[np.float64], n_drawn: int) -> _CountDistributions:
    """Return how many contexts of each source are in a random sample without replacement.

    If half of 1,000 contexts are from source 0, then 100 random ones have 50 of it on average.

    The counts have the hypergeometric distribution.

    Args:
        source_sizes: Contexts of each source, shape (n_sources,).
        n_drawn: Contexts in the sample.
    """
    total = source_sizes.sum()
    share = source_sizes / total
    return _CountDistributions(
        mean=n_drawn * share,
        variance=n_drawn * share * (1 - share) * (total - n_drawn) / max(total - 1, 1),
    )


def _rank_correlation(plan: ShufflePlan) -> _Correlation:
    """Return how well the place of a context in its source predicts its place in the shards.

    The measure is Spearman's rank correlation, of a sample of contexts that are spread evenly over
    all. After a good shuffle it is 0, up to chance.

    Args:
        plan: The plan, which gives each context its place.
    """
    total = plan.table.contexts
    n_sampled = min(total, SAMPLE)
    if n_sampled < 2:
        # A correlation needs two contexts. An error of 1 says that nothing is known.
        return _Correlation(value=0.0, standard_error=1.0)

    # Contexts are numbered in the order of the sources, so the sample is in this order.
    sampled_contexts = np.arange(n_sampled) * total // n_sampled
    shard_ranks = _ranks_in_shards(sampled_contexts, plan.settings.seed)
    # Of two independent orders, rho has the standard deviation 1 / sqrt(n - 1).
    return _Correlation(
        value=_spearmans_rho(shard_ranks),
        standard_error=1 / math.sqrt(n_sampled - 1),
    )


def _ranks_in_shards(contexts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return the rank of each context among these, in the order of the shards, from 0.

    Args:
        contexts: Numbers of the contexts, shape (n_contexts,).
        seed: Seed of the order.

    Returns:
        Shape (n_contexts,).
    """
    # Shards have the contexts in the order of their keys. Sorting gives the context at each rank;
    # sorting once more inverts this to the rank of each context.
    keys = keys_of(contexts.astype(np.uint64), seed)
    return np.argsort(np.argsort(keys))


def _spearmans_rho(ranks_of_items: NDArray[np.int64]) -> float:
    """Return the rank correlation of an order of items with the order 0, 1, 2, ...

    It is 1 for the same order, -1 for the reverse one, and about 0 for a random one.

    Args:
        ranks_of_items: Rank of each item from 0 on, without ties, shape (n,), n > 1.
    """
    # 1 - 6 sum(d^2) / (n (n^2 - 1)). The sum needs more than float32.
    n = len(ranks_of_items)
    distances = (ranks_of_items - np.arange(n)).astype(np.float64)
    sum_of_squares = float((distances**2).sum())
    return 1 - 6 * sum_of_squares / (n * (n**2 - 1.0))


def _pairs_near_in_source(source: SourceContexts) -> float:
    """Return how many pairs of contexts of a source are of the same row, or of neighbouring rows.

    A context is one occurrence of a row: all rows occur n times, and a chosen share of them once
    more. The contexts (a, b) and (b, a) count as two pairs.

    Args:
        source: Counts of the source.
    """
    n_rows = source.rows
    if not n_rows:
        return 0.0
    pairs_per_row = _pairs_of_one_row(source.repeats, chosen_share=source.chosen / n_rows)

    # Two neighbouring rows that each occur c times have c * c pairs, which count in both orders.
    contexts_per_row = source.contexts / n_rows  # c, on average
    pairs_of_neighbours = 2 * (n_rows - 1) * contexts_per_row**2
    return n_rows * pairs_per_row + pairs_of_neighbours


def _pairs_of_one_row(repeats: int, chosen_share: float) -> float:
    """Return how many ordered pairs of its own occurrences a row has on average.

    A row that occurs n times has n * (n - 1) pairs.

    Args:
        repeats: How often every row occurs.
        chosen_share: Share of the rows that occur once more.
    """
    # The order of the factors decides how the result is rounded, and the result is recorded.
    pairs = (1 - chosen_share) * repeats * (repeats - 1)
    return pairs + chosen_share * (repeats + 1) * repeats
