"""What a split reads of a corpus through several datasets, and limits on the epochs of its
documents.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from helpers.sample_pairs import write_pair
from helpers.slow_corpora import SlowCorpora, slow_coverage, write_view
from nanoset_core.errors import InputError
from nanoset_core.loading.builder import NanosetBuilder
from nanoset_core.sampling.config import NanosetConfig
from nanoset_core.sampling.corpora import MemberReads, corpus_coverage
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.epoch_policies import apply_epoch_limits
from nanoset_core.sampling.plan import plan_split

LENGTHS = [20 + document % 7 for document in range(160)]
HALF = range(80)


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> str:
    return write_pair(tmp_path_factory.mktemp("data") / "whole", LENGTHS)


@pytest.fixture(scope="module")
def half(whole) -> str:
    return write_view(Path(whole).parent, "half", whole, HALF)


@pytest.fixture(scope="module")
def other(whole) -> str:
    return write_pair(Path(whole).parent / "other", LENGTHS)


def config_of(weights, samples, **options):
    return NanosetConfig(
        weights, sequence_length=10, split="1,0,0", train_split_samples=samples, **options
    )


def covered(config, corpora):
    """Return what train reads of the one corpus of all members."""
    plan = plan_split(config, "train")
    rows = coverage(plan, config)
    reads = {
        member.prefix: MemberReads.of(plan, config, member, row.samples_given)
        for member, row in zip(plan.members, rows, strict=True)
    }
    (found,) = corpus_coverage(
        corpora.parts({member.prefix: member.rows for member in plan.members}), reads, config
    )
    return plan, rows, found


def most_built(config, corpora):
    """Return how often the documents that are read most often may be read, the margin included: by
    a look at each.
    """
    members = plan_split(config, "train").members
    counts = np.zeros(len(corpora.lengths))
    for member in members:
        needed = (
            (member.samples_requested * 10 + 1) / member.tokens if member.samples_requested else 0.0
        )
        for document in corpora.documents(member.prefix, member.rows):
            counts[document] += needed
    return counts.max()


views_of_30 = st.lists(st.integers(0, 29), min_size=12, max_size=50)


@settings(max_examples=30, deadline=None)
@given(
    views=st.lists(views_of_30, min_size=1, max_size=3),
    has_whole=st.booleans(),
    samples=st.integers(5, 400),
    weights=st.lists(st.floats(0.05, 1), min_size=4, max_size=4),
)
def test_a_corpus_is_counted_as_by_a_look_at_each_token(views, has_whole, samples, weights):
    lengths = [12 + document % 5 for document in range(30)]
    with tempfile.TemporaryDirectory() as folder:
        base = write_pair(Path(folder) / "whole", lengths)
        documents = {base: range(30)} if has_whole else {}
        for number, chosen in enumerate(views):
            documents[write_view(Path(folder), f"view-{number}", base, chosen)] = chosen
        corpora = SlowCorpora(lengths, documents)
        config = config_of(dict(zip(documents, weights, strict=False)), samples)
        plan, rows, found = covered(config, corpora)
    copies_by_token = [
        [list(chosen).count(document) for chosen in documents.values()]
        for document, length in enumerate(lengths)
        for _ in range(length)
    ]
    members = [
        (member.tokens, row.samples_given, member.epochs, member.separate_last_epoch)
        for member, row in zip(plan.members, rows, strict=True)
    ]
    slow = slow_coverage(copies_by_token, members, config)
    assert found.tokens_available == slow["available"]
    assert found.tokens == round(slow["tokens"]) == sum(row.tokens_taken for row in rows)
    assert found.unique_tokens == pytest.approx(slow["unique"], abs=0.51)
    assert found.unique_tokens + found.repeated_tokens == found.tokens
    assert found.epochs == pytest.approx(slow["epochs"])
    assert found.most_epochs == pytest.approx(slow["most_epochs"])


@pytest.mark.parametrize("samples", [150, 330, 500, 700, 1100])
def test_unique_tokens_are_those_of_the_samples_that_trainers_read(whole, half, samples):
    corpora = SlowCorpora(LENGTHS, {whole: range(160), half: HALF})
    starts = np.concatenate([[0], np.cumsum(LENGTHS)])
    unique = []
    for seed in range(12):
        config = config_of({whole: 0.67, half: 0.33}, samples, random_seed=seed)
        plan, _, found = covered(config, corpora)
        (train, _, _) = NanosetBuilder(config).build()
        is_read = np.zeros(starts[-1], bool)
        for sample in range(plan.samples):
            _, pieces = train.sources(sample)
            tokens = np.concatenate(
                [
                    np.arange(starts[sequence] + begin, starts[sequence] + end)
                    for sequence, begin, end in pieces
                ]
            )
            is_read[tokens[:10]] = True  # the last token of a sample is a label alone
        unique.append(is_read.sum())
    assert found.unique_tokens == pytest.approx(np.mean(unique), rel=0.02)


def test_documents_in_two_members_have_the_epochs_of_both(whole, half):
    corpora = SlowCorpora(LENGTHS, {whole: range(160), half: HALF})
    _, rows, found = covered(config_of({whole: 0.67, half: 0.33}, 400), corpora)
    assert found.most_epochs == pytest.approx(rows[0].epochs + rows[1].epochs)
    assert rows[0].epochs < found.epochs < found.most_epochs


def test_a_corpus_alone_has_the_epochs_of_its_dataset(whole):
    config = NanosetConfig(whole, sequence_length=10, split="1,0,0", train_split_samples=500)
    _, rows, found = covered(config, SlowCorpora(LENGTHS, {whole: range(160)}))
    assert found.epochs == found.most_epochs == rows[0].epochs
    assert found.tokens == 5000
    assert found.unique_tokens == rows[0].tokens == sum(LENGTHS)


def test_a_limit_counts_the_readings_of_all_members(whole, half):
    corpora = SlowCorpora(LENGTHS, {whole: range(160), half: HALF})
    config = config_of({whole: 0.67, half: 0.33}, 350)
    limits = {whole: 1.0, half: 1.0}
    assert not apply_epoch_limits(config, limits, "raise").exceeded, (
        "neither member alone is read more than once"
    )
    with pytest.raises(InputError) as caught:
        apply_epoch_limits(config, limits, "raise", corpora=corpora)
    assert (
        caught.value.found == "documents that whole and half share 1.27 times in train (at most 1)"
    )


def test_a_limit_of_one_member_holds_for_all_its_documents(whole, half):
    corpora = SlowCorpora(LENGTHS, {whole: range(160), half: HALF})
    config = config_of({whole: 0.67, half: 0.33}, 350)
    for limited in (whole, half):
        exceeded = apply_epoch_limits(config, {limited: 1.0}, "repeat", corpora=corpora).exceeded
        assert [(one.prefix, one.holders) for one in exceeded] == [(limited, ("whole", "half"))]


def test_members_without_common_documents_are_limited_each_by_itself(whole, half):
    rest = write_view(Path(whole).parent, "rest", whole, range(80, 160))
    corpora = SlowCorpora(LENGTHS, {half: HALF, rest: range(80, 160)})
    config = config_of({half: 0.5, rest: 0.5}, 350)
    limits = {half: 1.0, rest: 1.0}
    for policy in ("raise", "stop", "redistribute"):
        alone = apply_epoch_limits(config, limits, policy)
        assert apply_epoch_limits(config, limits, policy, corpora=corpora) == alone


def test_copies_that_a_view_repeats_count(whole):
    twice = write_view(Path(whole).parent, "twice", whole, [*HALF, *HALF])
    corpora = SlowCorpora(LENGTHS, {twice: [*HALF, *HALF]})
    config = NanosetConfig(twice, sequence_length=10, split="1,0,0", train_split_samples=300)
    with pytest.raises(InputError, match=r"documents that twice repeats 1\.64 times in train"):
        apply_epoch_limits(config, {twice: 1.0}, "raise", corpora=corpora)


def test_stop_asks_for_the_most_samples_that_the_limits_allow(whole, half):
    corpora = SlowCorpora(LENGTHS, {whole: range(160), half: HALF})
    config = config_of({whole: 0.67, half: 0.33}, 700)
    limited = apply_epoch_limits(config, {whole: 1.0, half: 1.0}, "stop", corpora=corpora).config
    samples = limited.train_split_samples
    assert most_built(limited, corpora) <= 1
    assert most_built(config.with_samples({"train": samples + 1}), corpora) > 1


@settings(max_examples=15, deadline=None)
@given(
    weights=st.tuples(*[st.floats(0.02, 1)] * 3),
    limits=st.tuples(*[st.one_of(st.none(), st.floats(1, 4))] * 3),
    samples=st.integers(50, 900),
    preset=st.sampled_from(["megatron", "megatron-0.10", "nemo"]),
)
def test_redistribute_keeps_limits_of_documents(
    whole, half, other, weights, limits, samples, preset
):
    shared = SlowCorpora(LENGTHS, {whole: range(160), half: HALF})
    alone = SlowCorpora(LENGTHS, {other: range(160)})

    class Both:
        def parts(self, rows):
            inside = {
                prefix: own for prefix, own in rows.items() if prefix in shared.documents_by_prefix
            }
            return [*shared.parts(inside), *alone.parts({other: rows[other]})]

    prefixes = (whole, half, other)
    config = config_of(dict(zip(prefixes, weights, strict=True)), samples, preset=preset)
    most = {
        prefix: limit for prefix, limit in zip(prefixes, limits, strict=True) if limit is not None
    }
    try:
        limited = apply_epoch_limits(config, most, "redistribute", corpora=Both())
    except InputError:
        return  # the limits leave too few samples, whatever the shares
    assert limited.config.train_split_samples == samples
    assert not apply_epoch_limits(limited.config, most, "repeat", corpora=Both()).exceeded
    if not limited.exceeded:
        assert limited.config == config
