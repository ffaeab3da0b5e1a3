"""A corpus that is read through several datasets is counted, and limited, as one corpus."""

from __future__ import annotations

import math
import tempfile
from itertools import repeat
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.sample_pairs import GROWING, write_pair
from helpers.slow_corpora import SlowCorpora, SlowMember, slow_coverage, write_view
from nanoset_core.errors import InputError
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.corpora import (
    MANY_READS,
    CorpusCoverage,
    MemberReads,
    corpus_coverage,
    separate_corpora,
    tokens_by_reads,
)
from nanoset_core.sampling.coverage import MemberCoverage, coverage
from nanoset_core.sampling.epoch_policies import apply_epoch_limits
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.planned import SplitPlan

LENGTH = 10
"""Tokens of a sample."""
ALL_DOCUMENTS = range(160)
FIRST_HALF = range(80)
SECOND_HALF = range(80, 160)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The folder of all datasets."""
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def full(folder) -> str:
    """The prefix of the dataset of a corpus."""
    return write_pair(folder / "full", GROWING)


@pytest.fixture(scope="module")
def half(folder, full) -> str:
    """The prefix of a view with the first half of the corpus."""
    return write_view(folder, "half", full, FIRST_HALF)


@pytest.fixture(scope="module")
def rest(folder, full) -> str:
    """The prefix of a view with the second half of the corpus."""
    return write_view(folder, "rest", full, SECOND_HALF)


@pytest.fixture(scope="module")
def other(folder) -> str:
    """The prefix of the dataset of another corpus."""
    return write_pair(folder / "other", GROWING)


@pytest.fixture(scope="module")
def overlapping(full, half) -> SlowCorpora:
    """The corpus, which is read through its dataset and through the first half."""
    return SlowCorpora(GROWING, {full: ALL_DOCUMENTS, half: FIRST_HALF})


def config_of(data, samples, **options):
    """Return the settings of a nanoset that only trains."""
    return NanosetConfig(
        data, sequence_length=LENGTH, split="1,0,0", train_split_samples=samples, **options
    )


@pytest.fixture
def overlapping_blend(full, half):
    """A function: samples of train → the settings of a blend of the corpus and its first half."""

    def config(samples, **options):
        return config_of({full: 0.67, half: 0.33}, samples, **options)

    return config


class TrainCoverage(NamedTuple):
    """What train reads of a corpus."""

    plan: SplitPlan
    members: list[MemberCoverage]
    corpus: CorpusCoverage


def cover_train(config, corpora) -> TrainCoverage:
    """Return what train reads of the only corpus of all members."""
    plan = plan_split(config, "train")
    members = coverage(plan, config)
    sample_counts = [member.samples_given for member in members]
    reads = MemberReads.by_prefix(plan, config, sample_counts)
    rows = {member.prefix: member.rows for member in plan.members}
    (corpus,) = corpus_coverage(corpora.parts(rows), reads, config)
    return TrainCoverage(plan, members, corpus)


# Counts


@settings(max_examples=30, deadline=None)
@given(
    views=st.lists(st.lists(st.integers(0, 29), min_size=12, max_size=50), min_size=1, max_size=3),
    has_full=st.booleans(),
    samples=st.integers(5, 400),
    weights=st.lists(st.floats(0.05, 1), min_size=4, max_size=4),
)
def test_a_corpus_is_counted_as_by_a_look_at_each_token(views, has_full, samples, weights):
    lengths = [12 + document % 5 for document in range(30)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        base = write_pair(folder / "full", lengths)
        documents_by_prefix = {}
        if has_full:
            documents_by_prefix[base] = range(30)
        for number, documents in enumerate(views):
            view = write_view(folder, f"view-{number}", base, documents)
            documents_by_prefix[view] = documents
        config = config_of(dict(zip(documents_by_prefix, weights, strict=False)), samples)
        train = cover_train(config, SlowCorpora(lengths, documents_by_prefix))

    copies_by_token = []
    for document, length in enumerate(lengths):
        copies = [list(chosen).count(document) for chosen in documents_by_prefix.values()]
        copies_by_token.extend(repeat(copies, length))
    members = []
    for member, member_coverage in zip(train.plan.members, train.members, strict=True):
        members.append(
            SlowMember(
                tokens=member.tokens,
                samples=member_coverage.samples_given,
                epochs=member.epochs,
                has_separate_last_epoch=member.separate_last_epoch,
            )
        )
    expected = slow_coverage(copies_by_token, members, config)

    corpus = train.corpus
    assert corpus.tokens_available == expected.tokens_available
    assert corpus.tokens == round(expected.tokens)
    assert corpus.tokens == sum(member.tokens_taken for member in train.members)
    assert corpus.unique_tokens == pytest.approx(expected.unique_tokens, abs=0.51)  # rounded
    assert corpus.unique_tokens + corpus.repeated_tokens == corpus.tokens
    assert corpus.epochs == pytest.approx(expected.epochs)
    assert corpus.most_epochs == pytest.approx(expected.most_epochs)


def count_tokens_read(config, n_samples):
    """Return how many tokens of the corpus are in the samples that a trainer reads."""
    starts = np.concatenate([[0], np.cumsum(GROWING)])  # first token of each document
    train, _, _ = NanosetBuilder(config).build()
    is_read = np.zeros(starts[-1], bool)  # (n_tokens,)
    for sample in range(n_samples):
        _dataset, sources = train.sources(sample)
        tokens = []
        for document, first, stop in sources:
            tokens.extend(range(starts[document] + first, starts[document] + stop))
        is_read[tokens[:LENGTH]] = True  # the last token of a sample is only a label
    return is_read.sum()


@pytest.mark.parametrize("samples", [150, 330, 500, 700, 1100])
def test_unique_tokens_are_those_that_trainers_read_on_average(
    overlapping, overlapping_blend, samples
):
    # A document of the first half has the same number in the view as in the corpus, so that the
    # sources of both members can be counted together.
    counts = []
    for seed in range(4):
        config = overlapping_blend(samples, random_seed=seed)
        train = cover_train(config, overlapping)
        counts.append(count_tokens_read(config, train.plan.samples))

    assert train.corpus.unique_tokens == pytest.approx(np.mean(counts), rel=0.02)


def test_documents_in_two_members_have_the_epochs_of_both(overlapping, overlapping_blend):
    train = cover_train(overlapping_blend(400), overlapping)

    full_epochs, half_epochs = [member.epochs for member in train.members]
    assert train.corpus.most_epochs == pytest.approx(full_epochs + half_epochs)
    assert full_epochs < train.corpus.epochs < train.corpus.most_epochs


def test_a_corpus_alone_has_the_epochs_of_its_dataset(full):
    config = config_of(full, samples=500)

    train = cover_train(config, SlowCorpora(GROWING, {full: ALL_DOCUMENTS}))

    (member,) = train.members
    assert train.corpus.epochs == member.epochs
    assert train.corpus.most_epochs == member.epochs
    assert train.corpus.tokens == 500 * LENGTH
    assert train.corpus.unique_tokens == member.tokens
    assert train.corpus.unique_tokens == sum(GROWING)


# How often a document is read at most


def reads_of_each_token(config, n_samples):
    """Return how often the samples of a single dataset contain each token of the corpus."""
    starts = np.concatenate([[0], np.cumsum(GROWING)])  # first token of each document
    train, _, _ = NanosetBuilder(config).build()
    counts = np.zeros(starts[-1], np.int64)  # (n_tokens,)
    for sample in range(n_samples):
        _dataset, sources = train.sources(sample)
        tokens = []
        for document, first, stop in sources:
            tokens.extend(range(starts[document] + first, starts[document] + stop))
        np.add.at(counts, tokens[:LENGTH], 1)  # the last token of a sample is only a label
    return counts


@pytest.mark.parametrize("samples", [100, 300, 500, 800, 1100])
@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron", "nanotron-main"])
def test_no_token_is_read_more_often_than_the_bound(full, preset, samples):
    config = config_of({full: 1.0}, samples, preset=preset)
    train = cover_train(config, SlowCorpora(GROWING, {full: ALL_DOCUMENTS}))
    counts = [member.samples_given for member in train.members]
    (reads,) = MemberReads.by_prefix(train.plan, config, counts).values()

    # Numbers of samples are rounded up, by less than two samples, which do not count.
    highest_count = reads_of_each_token(config, reads.samples_taken - 2).max()

    assert highest_count <= reads.most_reads(config)
    assert reads.most_reads(config) <= highest_count + 1


# How many tokens are read 0, 1, 2, … times


def expected_reads(config, corpora):
    """Return how many tokens of the only corpus are expected to be read 0, 1, 2, … times."""
    train = cover_train(config, corpora)
    sample_counts = [member.samples_given for member in train.members]
    reads = MemberReads.by_prefix(train.plan, config, sample_counts)
    rows = {member.prefix: member.rows for member in train.plan.members}
    (counts,) = tokens_by_reads(corpora.parts(rows), reads, config).values()
    return counts


def mean_reads(config_of_seed, n_seeds=4):
    """Return how many tokens trainers read 0, 1, 2, … times, on average over some seeds."""
    counts = []
    for seed in range(n_seeds):
        config = config_of_seed(seed)
        n_samples = plan_split(config, "train").samples
        times_read = np.minimum(reads_of_each_token(config, n_samples), MANY_READS)
        counts.append(np.bincount(times_read, minlength=MANY_READS + 1))
    return np.mean(counts, axis=0)


@pytest.mark.parametrize("samples", [100, 300, 500, 700, 800, 1100, 1700, 3300])
@pytest.mark.parametrize("preset", ["megatron", "nemo", "nanotron"])
def test_tokens_are_counted_by_how_often_trainers_read_them(full, preset, samples):
    corpora = SlowCorpora(GROWING, {full: ALL_DOCUMENTS})

    expected = expected_reads(config_of({full: 1.0}, samples, preset=preset), corpora)
    mean = mean_reads(lambda seed: config_of({full: 1.0}, samples, preset=preset, random_seed=seed))

    assert expected == pytest.approx(mean, abs=0.03 * sum(GROWING))


@pytest.mark.parametrize("samples", [150, 330, 700, 1100])
def test_tokens_in_two_members_are_counted_by_the_reads_of_both(
    overlapping, overlapping_blend, samples
):
    expected = expected_reads(overlapping_blend(samples), overlapping)
    mean = mean_reads(lambda seed: overlapping_blend(samples, random_seed=seed))

    assert expected == pytest.approx(mean, abs=0.03 * sum(GROWING))


def test_tokens_by_reads_add_up_to_the_corpus_and_agree_with_the_unique_tokens(
    overlapping, overlapping_blend
):
    config = overlapping_blend(500)

    n_tokens = expected_reads(config, overlapping)

    corpus = cover_train(config, overlapping).corpus
    assert sum(n_tokens) == pytest.approx(corpus.tokens_available, abs=3)
    assert corpus.tokens_available - n_tokens[0] == pytest.approx(corpus.unique_tokens, abs=3)


def test_reads_of_a_tiny_dataset_that_is_read_a_million_times_are_counted_at_once():
    n_epochs = 1_000_000
    config = NanosetConfig("tiny", sequence_length=16, split="1,0,0")
    n_shuffled = config.samples_in(n_epochs * 1600)
    reads = MemberReads(
        tokens=1600,
        order=Order(taken=0, rows=(0, 100), epochs=n_epochs, separate_last_epoch=False),
        samples_taken=round(n_shuffled * 2 / n_epochs),
    )

    probabilities = reads.reads_of_copy(config)

    # Poisson's distribution with the mean 2.
    poisson = [math.exp(-2) * 2**k / math.factorial(k) for k in range(MANY_READS)]
    assert probabilities[:MANY_READS] == pytest.approx(poisson, abs=1e-5)
    assert probabilities.sum() == pytest.approx(1)


def test_tokens_are_not_counted_if_the_trainer_repeats_a_blend(full, other):
    config = config_of({full: 0.5, other: 0.5}, 900, preset="nanotron-main")
    plan = plan_split(config, "train")
    reads = MemberReads.by_prefix(plan, config, [450, 450])

    assert tokens_by_reads(separate_corpora(plan), reads, config) == {}


# Limits of epochs


def test_members_that_share_documents_may_exceed_a_limit_together(
    overlapping, overlapping_blend, full, half
):
    config = overlapping_blend(350)
    limits = {full: 1.0, half: 1.0}
    # Neither member alone is read more than once.
    assert not apply_epoch_limits(config, limits, "raise").exceeded

    with pytest.raises(InputError) as caught:
        apply_epoch_limits(config, limits, "raise", corpora=overlapping)

    assert (
        caught.value.found == "documents that full and half share 1.27 times in train (at most 1)"
    )


@pytest.mark.parametrize("limited", ["full", "half"])
def test_a_limit_of_one_member_is_one_of_all_its_documents(
    overlapping, overlapping_blend, full, half, limited
):
    prefix = {"full": full, "half": half}[limited]

    outcome = apply_epoch_limits(
        overlapping_blend(350), {prefix: 1.0}, "repeat", corpora=overlapping
    )

    (exceeded,) = outcome.exceeded
    assert exceeded.prefix == prefix
    assert exceeded.holders == ("full", "half")


@pytest.mark.parametrize("policy", ["raise", "stop", "redistribute"])
def test_members_without_common_documents_are_limited_separately(half, rest, policy):
    corpora = SlowCorpora(GROWING, {half: FIRST_HALF, rest: SECOND_HALF})
    config = config_of({half: 0.5, rest: 0.5}, 350)
    limits = {half: 1.0, rest: 1.0}

    outcome = apply_epoch_limits(config, limits, policy, corpora=corpora)

    assert outcome == apply_epoch_limits(config, limits, policy)


def test_the_copies_in_a_view_that_repeats_documents_count(folder, full):
    documents = [*FIRST_HALF, *FIRST_HALF]
    twice = write_view(folder, "twice", full, documents)
    config = config_of(twice, samples=300)

    with pytest.raises(InputError, match=r"documents that twice repeats 1\.64 times in train"):
        apply_epoch_limits(
            config, {twice: 1.0}, "raise", corpora=SlowCorpora(GROWING, {twice: documents})
        )


def most_epochs_built(config, corpora):
    """Return how many times the documents are read that are read most often, by a look at each.

    Counted are the samples that are built, which are slightly more than the samples taken.
    """
    epochs_of_documents = np.zeros(len(corpora.lengths))
    for member in plan_split(config, "train").members:
        n_tokens = 0
        if member.samples_requested > 0:
            n_tokens = member.samples_requested * LENGTH + 1
        for document in corpora.documents(member.prefix, member.rows):
            epochs_of_documents[document] += n_tokens / member.tokens
    return epochs_of_documents.max()


def test_stop_takes_the_most_samples_that_the_limits_of_documents_allow(
    overlapping, overlapping_blend, full, half
):
    config = overlapping_blend(700)

    limited = apply_epoch_limits(config, {full: 1.0, half: 1.0}, "stop", corpora=overlapping).config

    samples = limited.train_split_samples
    assert most_epochs_built(limited, overlapping) <= 1
    one_more = config.with_samples({"train": samples + 1})
    assert most_epochs_built(one_more, overlapping) > 1


class TwoCorpora:
    """Two corpora, the second of which has one member; a `CorpusReader`."""

    def __init__(self, first: SlowCorpora, second: SlowCorpora) -> None:
        """Remember the corpora."""
        self.first = first
        self.second = second

    def parts(self, rows_by_prefix):
        """Return both corpora."""
        parts = []
        for corpora in (self.first, self.second):
            rows = {prefix: rows_by_prefix[prefix] for prefix in corpora.documents_by_prefix}
            parts += corpora.parts(rows)
        return parts


three_weights = st.lists(st.floats(0.02, 1), min_size=3, max_size=3)
three_limits = st.lists(st.none() | st.floats(1, 4), min_size=3, max_size=3)


@settings(max_examples=15, deadline=None)
@given(
    weights=three_weights,
    limits=three_limits,
    samples=st.integers(50, 900),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo"]),
)
def test_redistribute_keeps_the_limits_of_documents(
    overlapping, full, half, other, weights, limits, samples, preset
):
    corpora = TwoCorpora(overlapping, SlowCorpora(GROWING, {other: ALL_DOCUMENTS}))
    prefixes = (full, half, other)
    config = config_of(dict(zip(prefixes, weights, strict=True)), samples, preset=preset)
    limit_by_prefix = {}
    for prefix, limit in zip(prefixes, limits, strict=True):
        if limit is not None:
            limit_by_prefix[prefix] = limit

    try:
        limited = apply_epoch_limits(config, limit_by_prefix, "redistribute", corpora=corpora)
    except InputError:
        return  # the limits leave too few samples, whatever the shares

    assert limited.config.train_split_samples == samples
    outcome = apply_epoch_limits(limited.config, limit_by_prefix, "repeat", corpora=corpora)
    assert not outcome.exceeded
    if not limited.exceeded:
        assert limited.config == config
