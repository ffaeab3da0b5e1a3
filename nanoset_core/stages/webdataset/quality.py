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


class _PairCounts(NamedTuple):
    """How many pairs of training samples there are, and how many are of related text."""

    pairs: int
    """All pairs."""
    same_source: int
    """Pairs of samples from the same source of text."""
    near_in_source: float
    """Pairs of samples that are neighbours in their source, or have the same text.

    It is no integer if it is an average.
    """


class _Correlation(NamedTuple):
    """Spearman's rank correlation of the places in the sources and in the shards."""

    value: float
    standard_error: float


_UNKNOWN_CORRELATION = _Correlation(value=0.0, standard_error=1.0)
"""That of fewer than two samples. An error of 1 says that nothing is known."""


def shuffle_quality(plan: ShufflePlan) -> dict[str, Any]:
    """Measure how evenly a dataset of training samples will be shuffled, without reading tokens.

    The samples (contexts) come from several sources of text, and are divided among tar files
    (shards). If the shuffle is even, one cannot tell from the tars how the sources were ordered.
    The result has, in this order:

        contexts, sampled     number of all samples, and of those that are measured
        same_source           share of successive samples that are from the same source
        neighbours            share of successive samples that were neighbours before
        rank_correlation      correlation of a sample's places before and after the shuffle
        shards                number of tars that are measured
        mix_mean, mix_max     differences of the mix of sources between the tars
        even                  whether all of these are close to what chance gives

    Some have a second key, with the value that chance gives, such as "same_source_expected".

    Of more than a million samples, only some are measured: samples that are spread evenly for the
    correlation, and some whole tars for the others. This takes a second and about 100 MB.

    Args:
        plan: Says which sample goes into which tar.

    Returns:
        JSON values.
    """
    # Which samples are in each of the tars that are measured, in the order of the tar.
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
    """Measure how often two successive training samples of a tar file are of related text.

    Two questions are asked about each pair of successive samples:

        same_source    Are both from the same source of text, such as web?
        neighbours     And were they neighbours there, before the samples were shuffled?

    If the shuffle is good, any two samples may be successive. So the share of such pairs should be
    the same as among all pairs of samples, which is given as "..._expected".

    Args:
        plan: Says which sample (context) goes into which tar (shard).
        contexts_of_shards: Numbers of the samples of each tar that is measured, in its order.

    Returns:
        Such as {"same_source": 0.30, "same_source_expected": 0.31, "neighbours": 0.0001, …}.
    """
    successive = _count_successive_pairs(plan, contexts_of_shards)
    n_successive = max(successive.pairs, 1)  # 1 only to divide by it, if there is no pair
    all_pairs = _count_all_pairs(plan)
    return {
        "same_source": successive.same_source / n_successive,
        "same_source_expected": all_pairs.same_source / all_pairs.pairs,
        "neighbours": successive.near_in_source / n_successive,
        "neighbours_expected": all_pairs.near_in_source / all_pairs.pairs,
    }


def _mix_measures(
    plan: ShufflePlan, contexts_of_shards: list[NDArray[np.int64]]
) -> dict[str, float]:
    """Measure whether every tar file has the same mix of sources as the whole dataset.

    If 10 % of all training samples are from code, a tar of 100 samples should have about 10 of
    them. How far it is from that is given in standard errors, here of 3 samples: chance typically
    moves the count by as much.

        samples of code in a tar        10    13    4
        distance from 10                0     3     6
        deviation in standard errors    0     1     2

    There is a deviation for each source in each tar. The result has their mean and their maximum,
    and the maximum that chance would give.

    Args:
        plan: Says which sample (context) goes into which tar (shard).
        contexts_of_shards: Numbers of the samples of each tar that is measured.

    Returns:
        For example {"mix_mean": 0.8, "mix_max": 3.1, "mix_max_expected": 3.3}.
    """
    deviations = np.concatenate([_deviations(plan, contexts) for contexts in contexts_of_shards])
    if len(deviations) > 0:
        mean = float(deviations.mean())
        largest = float(deviations.max())
    else:
        mean = 0.0
        largest = 0.0
    return {
        "mix_mean": mean,
        "mix_max": largest,
        "mix_max_expected": _expected_maximum(len(deviations)),
    }


def _contexts_of_shard(plan: ShufflePlan, shard: int) -> NDArray[np.int64]:
    """Return the numbers of the contexts of a shard, in its order, shape (n_contexts,)."""
    start, stop = plan.shard_ranks(shard)
    return ranks(plan.table.contexts, plan.settings.seed, start, stop)


def _count_all_pairs(plan: ShufflePlan) -> _PairCounts:
    """Count all pairs of training samples of a dataset, and how many of them are of related text.

    A pair counts twice, once in each order. For example, there are three samples: A and B are
    successive pieces of the source web, and C is from code.

        pairs             (A, B) (B, A) (A, C) (C, A) (B, C) (C, B)      3 * 2
        same_source       (A, B) (B, A)                                  2 * 1
        near_in_source    (A, B) (B, A)        of the same text, or of two successive pieces

    Args:
        plan: Has the number of samples (contexts) of each source.
    """
    n_samples = plan.table.contexts  # 3
    sources = plan.table.sources
    n_same_source = sum(source.contexts * (source.contexts - 1) for source in sources)
    n_near = plain_sum(_pairs_near_in_source(source) for source in sources)
    return _PairCounts(
        pairs=max(n_samples * (n_samples - 1), 1),  # not 0, since it is a divisor
        same_source=n_same_source,
        near_in_source=n_near,
    )


def _expected_maximum(count: int) -> float:
    """Return how large the largest of many random deviations is on average, in standard errors.

    One deviation is rarely larger than 2, but of many, some are. If they have the normal
    distribution, the largest of n is about sqrt(2 ln(2 n)) on average: 3.3 of 100, and 4.5 of
    10,000. If a shuffle is even, its largest deviation is about that.

    Args:
        count: Number of deviations.
    """
    if count == 0:
        return 0.0
    return math.sqrt(2 * math.log(2 * count))


def _is_even(measures: dict[str, Any]) -> bool:
    """Return whether a dataset is shuffled evenly: all measures are close to what chance gives.

        measure             what it is                                        by chance it is
        rank_correlation    correlation of the order before and after         0
        same_source         share of neighbours from the same source          same_source_expected
        neighbours          share of neighbours that were neighbours before   neighbours_expected
        mix_max             largest deviation of a tar from the whole mix     mix_max_expected

    How close is decided in standard errors, which are what chance typically adds: within 4 of them
    for the first three measures, and at most 1.5 above what is expected for `mix_max`.

    Args:
        measures: Name of each measure → value, as `shuffle_quality` returns them.
    """
    max_correlation = _MAX_ERRORS * measures["rank_correlation_error"]
    max_mix = measures["mix_max_expected"] + _MIX_MARGIN
    # The pairs of successive samples that were measured: one fewer than samples in each tar.
    n_pairs = max(measures["sampled"] - measures["shards"], 1)  # 1 only to divide by it
    return bool(
        abs(measures["rank_correlation"]) <= max_correlation
        and _is_by_chance(measures["same_source"], measures["same_source_expected"], n_pairs)
        and _is_by_chance(measures["neighbours"], measures["neighbours_expected"], n_pairs)
        and measures["mix_max"] <= max_mix
    )


def _is_by_chance(share: float, expected: float, n_pairs: int) -> bool:
    """Return whether chance explains that a share of pairs differs from the expected share.

    If 1/2 is expected, and 10,000 pairs were counted, the standard error is 0.005. By chance, a
    share is nearly always within _MAX_ERRORS (4) standard errors: from 0.48 to 0.52 here. If almost
    no pair is expected, the standard error is about 0, but one or two pairs still say nothing.

    Args:
        share: Measured share.
        expected: Expected share.
        n_pairs: Number of pairs that were counted.
    """
    standard_error = math.sqrt(expected * (1 - expected) / n_pairs)
    return abs(share - expected) <= _MAX_ERRORS * standard_error + 2 / n_pairs


def _sampled_shards(plan: ShufflePlan) -> list[int]:
    """Choose which tar files (shards) of a dataset are measured: so few that it takes seconds.

    They have at most SAMPLE (1,000,000) training samples together. For example, 4 of 10 tars:

        the dataset has up to WINDOW (4 million) samples    0, 2, 5, 7    spread evenly
        the dataset has more samples                        0, 1, 2, 3    the first ones

    The shuffled order of a larger dataset is computed in windows of WINDOW samples, and each takes
    a pass over all samples. The first tars are in the same window, so one pass is enough.

    Args:
        plan: Says which sample goes into which tar.
    """
    # How many tars: at most SAMPLE samples, and at most _MAX_COUNTS counts, since the samples of
    # each source are counted in each tar.
    max_by_samples = SAMPLE // plan.shard_size  # `shard_size` is the samples of a tar
    max_by_counts = _MAX_COUNTS // max(len(plan.table.sources), 1)
    n_tars = max(1, min(plan.shards, max_by_samples, max_by_counts))  # 4

    first_tars = np.arange(n_tars)  # [0, 1, 2, 3]
    if plan.contexts > WINDOW:
        return first_tars.tolist()
    spread_tars = first_tars * plan.shards // n_tars  # [0, 10, 20, 30] // 4
    return spread_tars.tolist()


def _count_successive_pairs(
    plan: ShufflePlan, contexts_of_shards: list[NDArray[np.int64]]
) -> _PairCounts:
    """Count the pairs of successive samples in tar files, and how many are of related text.

    A sample (context) holds some consecutive tokens of a source of text. With 4 tokens each:

        sample of the tar        0          1          2          3
        source                   web        web        web        code
        first token              8          4          40         0

        pair                     0, 1       1, 2       2, 3
        from the same source     yes        yes        no
        near in the source       yes        no         no      (at most 4 tokens apart)

    So there are 3 pairs, of which 2 are from the same source, and 1 is near.

    Args:
        plan: Says which sample goes into which tar.
        contexts_of_shards: Numbers of the samples of each tar that is measured, in its order.
    """
    n_pairs = 0
    n_same_source = 0
    n_near = 0
    for contexts in contexts_of_shards:
        # Compare each sample with the next one: all arrays have the shape (n_contexts - 1,).
        places = plan.table.locate(contexts)
        is_same_source = places.sources[1:] == places.sources[:-1]
        distances = np.abs(np.diff(places.starts))  # tokens between their starts
        is_near = is_same_source & (distances <= plan.settings.row_tokens)
        n_pairs += len(is_same_source)
        n_same_source += int(is_same_source.sum())
        n_near += int(is_near.sum())
    return _PairCounts(pairs=n_pairs, same_source=n_same_source, near_in_source=n_near)


def _deviations(plan: ShufflePlan, contexts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return how far a tar file is from having its share of samples of each source of text.

    For example, 10 % of all training samples are from code. Then a tar of 100 samples has 10 of
    code on average, if it is filled at random. The count varies from tar to tar, with a standard
    error of about 3:

        samples of code in the tar     10    13    16    4
        deviation                      0     1     2     2      (|count - 10| / 3)

    Args:
        plan: Says which sample (context) goes into which tar (shard).
        contexts: Numbers of the samples of the tar, shape (n_contexts,).

    Returns:
        The deviation of each source, shape (n_measured_sources,). Sources of which a tar has hardly
        any sample are left out, since a standard error says little about such counts.
    """
    source_sizes = np.array([source.contexts for source in plan.table.sources], dtype=np.float64)
    sources = plan.table.sources_of(contexts)  # (n_contexts,)
    counts = np.bincount(sources, minlength=len(source_sizes))  # (n_sources,)
    expected = _count_distributions(source_sizes, n_drawn=len(contexts))

    is_measured = expected.variance >= _MIN_VARIANCE
    distances = np.abs(counts - expected.mean)[is_measured]
    standard_errors = np.sqrt(expected.variance[is_measured])
    deviations: NDArray[np.float64] = distances / standard_errors
    return deviations


class _CountDistributions(NamedTuple):
    """The distribution of the count of each source. Arrays have the shape (n_sources,)."""

    mean: NDArray[np.float64]
    variance: NDArray[np.float64]


def _count_distributions(source_sizes: NDArray[np.float64], n_drawn: int) -> _CountDistributions:
    """Return the mean and variance of how many samples of each source a random selection has.

    Suppose that 500 of 1,000 training samples are from web, and 100 of all are drawn at random,
    each at most once. The number of samples from web then has the hypergeometric distribution:

        share of web     500 / 1000 = 1/2
        mean             100 * 1/2 = 50
        variance         100 * 1/2 * (1 - 1/2) * (1000 - 100) / (1000 - 1) = 22.5

    The last factor is what drawing each at most once changes: if all are drawn, the count is
    certain, and the variance 0.

    Args:
        source_sizes: Samples of each source, shape (n_sources,).
        n_drawn: Number of samples that are drawn.
    """
    total = source_sizes.sum()
    share = source_sizes / total
    return _CountDistributions(
        mean=n_drawn * share,
        variance=n_drawn * share * (1 - share) * (total - n_drawn) / max(total - 1, 1),
    )


def _rank_correlation(plan: ShufflePlan) -> _Correlation:
    """Measure whether the order of training samples after a shuffle is related to that before.

    This is Spearman's rank correlation. It is 1 if the order has not changed at all, -1 if it is
    reversed, and after a good shuffle it is 0, up to chance. Of many samples, a million are
    measured, spread evenly over all.

    Args:
        plan: Has the number of samples (contexts), and the seed of the shuffle.
    """
    total = plan.table.contexts
    n_sampled = min(total, SAMPLE)
    if n_sampled < 2:
        return _UNKNOWN_CORRELATION
    sampled_contexts = np.arange(n_sampled) * total // n_sampled  # in their order before
    shuffled_ranks = _ranks_after_shuffle(sampled_contexts, plan.settings.seed)
    return _Correlation(
        value=_spearmans_rho(shuffled_ranks),
        # The standard deviation of the correlation of two orders that are independent.
        standard_error=1 / math.sqrt(n_sampled - 1),
    )


def _ranks_after_shuffle(contexts: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """Return which of some training samples comes first after the shuffle, which second, and so on.

    The shuffle sorts the samples (contexts) by keys, which are pseudo-random numbers:

        context      0     1     2     3
        key          71    12    95    38
        rank         2     0     3     1     (the result)

    Args:
        contexts: Numbers of the samples, shape (n_contexts,).
        seed: Seed of the shuffle.

    Returns:
        Rank of each sample among these, from 0 on, shape (n_contexts,).
    """
    keys = keys_of(contexts.astype(np.uint64), seed)
    order = np.argsort(keys)  # [1, 3, 0, 2]: rank 0 is at index 1, rank 1 at index 3, ...
    # Sorting the indices says where each of them is in `order`: index 0 is at rank 2, ...
    return np.argsort(order)  # [2, 0, 3, 1]


def _spearmans_rho(ranks_of_items: NDArray[np.int64]) -> float:
    """Return Spearman's rank correlation of an order of items with the order 0, 1, 2, ...

        [0, 1, 2, 3]     1       the same order
        [3, 2, 1, 0]     -1      the reverse order
        [2, 0, 3, 1]     0       no relation

    A random order of many items gives about 0.

    Args:
        ranks_of_items: Rank of each item from 0 on, each once, shape (n,), n > 1.
    """
    # The formula is 1 - 6 sum(d^2) / (n (n^2 - 1)), where d is how far each item has moved. In
    # floats of 64 bits, since the sum needs more than 32 bits.
    n = len(ranks_of_items)
    distances = (ranks_of_items - np.arange(n)).astype(np.float64)  # d: [2, -1, 1, -2]
    sum_of_squares = float((distances**2).sum())  # 10
    return 1 - 6 * sum_of_squares / (n * (n**2 - 1.0))  # 1 - 60 / 60


def _pairs_near_in_source(source: SourceContexts) -> float:
    """Count the pairs of training samples of a source that have the same or neighbouring text.

    The text is cut into rows, and a sample is one occurrence of a row. If there are 10 rows, and
    each occurs in 2 samples, then with both orders of a pair:

        of the same row              2 pairs for each of 10 rows                       20
        of two neighbouring rows     2 * 2 pairs in 2 orders, for each of 9 borders    72

    Args:
        source: Counts of the source.

    Returns:
        92 in the example. It is an average if only some of the rows occur once more.
    """
    n_rows = source.rows
    if n_rows == 0:
        return 0.0
    chosen_share = source.chosen / n_rows  # of the rows that occur once more: 0
    pairs_of_same_row = n_rows * _pairs_of_one_row(source.repeats, chosen_share)  # 10 * 2

    samples_per_row = source.contexts / n_rows  # 2
    pairs_of_neighbours = 2 * (n_rows - 1) * samples_per_row**2  # 2 * 9 * 2 * 2
    return pairs_of_same_row + pairs_of_neighbours


def _pairs_of_one_row(repeats: int, chosen_share: float) -> float:
    """Return how many pairs of training samples have the same row of text, for a row on average.

    A row is a piece of a text. If it occurs in 2 samples a and b, there are 2 pairs: (a, b) and
    (b, a). If it occurs in 3, there are 3 * 2 = 6. If half of the rows occur in 2 samples, and half
    in 3, that is 1/2 * 2 + 1/2 * 6 = 4 on average.

    Args:
        repeats: How often every row occurs: 2.
        chosen_share: Share of the rows that occur once more: 1/2.
    """
    # The order of the factors decides how the result is rounded, and the result is recorded.
    pairs = (1 - chosen_share) * repeats * (repeats - 1)
    return pairs + chosen_share * (repeats + 1) * repeats
