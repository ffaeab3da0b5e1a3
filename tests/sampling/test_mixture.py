"""Mixtures: trees of corpora become the weights of a blend, or are refused."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from helpers.slow_mixture import ImpossibleMixtureError, SlowMixture
from nanoset_core.errors import InputError, NanosetError
from nanoset_core.records.parsing import parse
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.corpora import MemberReads
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.sampling.mixture import mixture_of
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.mappings.mix_settings import DataKeys, mix_errors, unweighted

LENGTH = 16
"""Tokens of a sample."""
N_SAMPLES = 100_000
"""Samples of train."""
DOCUMENT_TOKENS = 50
"""Tokens of each document."""


def part_of(**keys):
    """Return a part of a mixture with keys as in nanoset.yaml."""
    return parse(MixPart, keys, "mix", "f")


def reader_of(tokens_by_corpus):
    """Return a reader that knows datasets of some tokens, of which there are no files."""
    reader = LengthReader()
    for corpus, n_tokens in tokens_by_corpus.items():
        reader.suppose(corpus, np.full(n_tokens // DOCUMENT_TOKENS, DOCUMENT_TOKENS, np.int32))
    return reader


def config_of(corpora, samples=N_SAMPLES, **options):
    """Return the settings of a nanoset that only trains."""
    weights = dict.fromkeys(corpora, 1.0)
    return NanosetConfig(
        weights, sequence_length=LENGTH, split="1,0,0", train_split_samples=samples, **options
    )


def compute_mixture(tree, tokens_by_corpus, **options):
    """Return the mixture of a tree: its weights, and a row for each of its parts."""
    mix = part_of(mix=tree)
    return mixture_of(mix, config_of(mix.corpora, **options), reader_of(tokens_by_corpus))


def rows_by_name(tree, tokens_by_corpus, **options):
    """Return the row of each part of a mixture, by its name."""
    mixture = compute_mixture(tree, tokens_by_corpus, **options)
    return {row.name: row for row in mixture.rows}


def errors_of(tree, *, has_samples=True):
    """Return the errors of a tree that are found without its data."""
    keys = DataKeys("", None, part_of(mix=tree).mix)
    return list(mix_errors("f: n", [keys], None, has_samples=has_samples))


# Random trees


@st.composite
def groups(draw, depth=2, path=""):
    """Draw the parts of a group, with keys that do not contradict each other by themselves."""
    parts = {}
    has_shares = draw(st.booleans())  # all of the parts have them, or none has
    for number in range(draw(st.integers(1, 4))):
        inner_path = f"{path}-{number}"
        is_group = depth > 0 and draw(st.integers(0, 2)) == 0
        if is_group:
            name = f"group{inner_path}"
            keys = {"mix": draw(groups(depth - 1, inner_path))}
            if draw(st.booleans()):
                keys["temperature"] = draw(st.floats(0, 1))
        else:
            name = f"corpus{inner_path}"
            keys = {}

        amount_key = draw(st.sampled_from(["share", "share", "share", "share", "tokens", "epochs"]))
        if amount_key == "tokens":
            keys["tokens"] = draw(st.integers(1, N_SAMPLES * LENGTH // 3))
        elif amount_key == "epochs":
            keys["epochs"] = draw(st.floats(0.1, 2))
        else:
            if has_shares:
                keys["share"] = draw(st.floats(0.1, 10))
            if draw(st.integers(0, 2)) == 0:
                keys["min_share"] = draw(st.floats(0, 0.3))
            if draw(st.integers(0, 2)) == 0:
                keys["max_share"] = draw(st.floats(0.3, 1))
        if amount_key != "epochs" and draw(st.integers(0, 3)) == 0:
            keys["max_epochs"] = draw(st.floats(0.5, 9))
        parts[name] = keys
    return parts


@given(data=st.data())
def test_weights_are_those_of_the_slow_reference(data):
    tree = data.draw(groups())
    corpora = part_of(mix=tree).corpora
    assume(not errors_of(tree))
    tokens_by_corpus = {}
    for corpus in corpora:
        tokens_by_corpus[corpus] = data.draw(st.integers(40, 40_000)) * DOCUMENT_TOKENS
    try:
        expected = SlowMixture(tokens_by_corpus, N_SAMPLES, LENGTH).amounts(tree)
    except ImpossibleMixtureError:
        with pytest.raises(InputError, match=r"mixture|part of the mixture"):
            compute_mixture(tree, tokens_by_corpus)
        return

    mixture = compute_mixture(tree, tokens_by_corpus)

    assert tuple(expected) == corpora
    np.testing.assert_allclose(mixture.weights, list(expected.values()), rtol=1e-4, atol=1e-7)
    assert sum(mixture.weights) == pytest.approx(1, abs=1e-12)
    amounts_of_root = [row.given for row in mixture.rows if row.depth == 0]
    assert np.isclose(sum(amounts_of_root), 1)


# What each part gets, and why


@pytest.fixture(scope="module")
def example_rows():
    """The rows of a mixture with two groups and a target."""
    tokens_by_corpus = {
        "web": 900_000,
        "books": 100_000,
        "python": 30_000,
        "rust": 270_000,
        "math": 50_000,
    }
    tree = {
        "english": {"share": 0.6, "mix": {"web": 3, "books": {"share": 1, "max_epochs": 2}}},
        "code": {"share": 0.3, "mix": {"python": {"min_share": 0.2}, "rust": {}}},
        "math": {"tokens": 160_000},
    }
    return rows_by_name(tree, tokens_by_corpus)


def test_rows_are_in_the_order_written_and_say_what_decides(example_rows):
    rows = [(row.name, row.depth, row.decided_by) for row in example_rows.values()]

    assert rows == [
        ("english", 0, "share"),
        ("web", 1, "share"),
        ("books", 1, "max_epochs"),
        ("code", 0, "share"),
        ("python", 1, "min_share"),
        ("rust", 1, "size"),
        ("math", 0, "tokens"),
    ]


@pytest.mark.parametrize(
    ("temperature", "amounts"),
    [(1.0, [0.9, 0.09, 0.01]), (0.5, [0.703, 0.222, 0.074]), (0.0, [1 / 3, 1 / 3, 1 / 3])],
)
def test_a_temperature_reads_parts_in_proportion_to_a_power_of_their_tokens(temperature, amounts):
    tree = {"all": {"temperature": temperature, "mix": {"en": {}, "de": {}, "sw": {}}}}

    rows = rows_by_name(tree, {"en": 9_000_000, "de": 900_000, "sw": 100_000})

    np.testing.assert_allclose(
        [rows[name].given for name in ("en", "de", "sw")], amounts, atol=1e-3
    )
    assert rows["en"].decided_by == "temperature"


def test_temperature_0_with_limited_epochs_divides_the_rest_equally():
    tree = {"all": {"temperature": 0, "max_epochs": 4, "mix": {"en": {}, "de": {}, "sw": {}}}}

    rows = rows_by_name(tree, {"en": 9_000_000, "de": 900_000, "sw": 100_000})

    assert np.isclose(rows["sw"].epochs, 4, atol=1e-3)
    assert rows["sw"].decided_by == "max_epochs"
    assert rows["en"].given == rows["de"].given


def test_a_target_in_tokens_is_met(example_rows):
    math = example_rows["math"]

    assert math.given == 0.1
    assert math.tokens == 160_000
    assert math.epochs == 3.2
    assert math.asked is None


def test_a_group_gets_its_share_of_what_targets_leave(example_rows):
    left_by_math = 0.9

    assert np.isclose(example_rows["english"].given, left_by_math * 2 / 3)


def test_a_corpus_with_few_epochs_gets_less_and_its_sibling_more(example_rows):
    books = example_rows["books"]

    assert np.isclose(books.asked, 0.6 / 4)
    assert np.isclose(books.epochs, 2, atol=1e-3)
    assert np.isclose(example_rows["web"].given + books.given, 0.6)


def test_a_corpus_with_a_floor_gets_it(example_rows):
    python = example_rows["python"]

    assert np.isclose(python.given, 0.2 * 0.3)
    assert np.isclose(python.asked, 0.1 * 0.3)  # 30,000 of the 300,000 tokens of code


def test_the_requested_amounts_of_parts_are_without_the_limits_of_their_group():
    tree = {
        "small": {"share": 9, "max_epochs": 1, "mix": {"a": {}, "b": {}}},
        "large": {"share": 1, "mix": {"c": {}}},
    }

    rows = rows_by_name(tree, {"a": 30_000, "b": 10_000, "c": 9_000_000})

    assert rows["small"].given < 0.03
    assert np.isclose(rows["small"].asked, 0.9)
    assert np.isclose(rows["a"].asked, 0.9 * 3 / 4)
    assert np.isclose(rows["c"].asked, 0.1)


@pytest.mark.parametrize("preset", ["megatron", "megatron-0.10", "nemo", "nanotron-000"])
def test_blends_keep_targets_and_limits_within_two_samples(preset):
    tokens_by_corpus = {"a": 400_000, "b": 100_000, "c": 7_000_000, "d": 90_050}
    tree = {
        "a": {"epochs": 1},
        "b": {"tokens": 123_456},
        "rest": {"mix": {"c": 1, "d": {"share": 9, "max_epochs": 2}}},
    }
    reader = reader_of(tokens_by_corpus)
    mix = part_of(mix=tree)
    config = config_of(mix.corpora, preset=preset)

    weights = mixture_of(mix, config, reader).weights

    weight_by_corpus = dict(zip(mix.corpora, weights, strict=True))
    blend = NanosetConfig.from_json(config.to_json() | {"data_path": weight_by_corpus})
    a, b, _c, d = coverage(plan_split(blend, "train", reader), blend)
    # The other trainers make blends longer by a surplus.
    surplus = 1 if preset == "megatron" else 1.005
    assert a.samples_given == pytest.approx(config.samples_in(400_000) * surplus, abs=2)
    assert b.samples_given == pytest.approx(123_456 / LENGTH * surplus, abs=2)
    assert d.samples_given == pytest.approx(config.samples_in(2 * 90_050) * surplus, abs=2)


# `max_epochs` of corpora with few samples


def small_and_large(small_lengths):
    """Return a reader of two datasets: a large one, and one with documents of some lengths."""
    reader = reader_of({"large": 9_000_000})
    reader.suppose("small", np.array(small_lengths, np.int32))
    return reader


def small_and_large_mixture(max_epochs, small_lengths):
    """Return a mixture that reads the dataset small as often as its limit allows."""
    mix = part_of(mix={"large": 1, "small": {"share": 99, "max_epochs": max_epochs}})
    return mixture_of(mix, config_of(mix.corpora), small_and_large(small_lengths))


@pytest.mark.parametrize(
    ("n_documents", "max_epochs"),
    [
        pytest.param(2, 2, id="two samples an epoch"),
        pytest.param(2, 1.5, id="one and a half epochs"),
        pytest.param(2, 4, id="more epochs"),
        pytest.param(1, 4, id="one sample an epoch"),
        pytest.param(250, 300, id="as many epochs that the trainer's reserve is an epoch"),
    ],
)
def test_no_document_of_a_small_corpus_is_read_more_often_than_max_epochs(n_documents, max_epochs):
    small_lengths = [20] * n_documents
    weights = small_and_large_mixture(max_epochs, small_lengths).weights

    blend = dict(zip(("large", "small"), weights, strict=True))
    config = NanosetConfig.from_json(config_of(blend).to_json() | {"data_path": blend})
    plan = plan_split(config, "train", small_and_large(small_lengths))
    sample_counts = [member.samples_target for member in plan.members]
    reads = MemberReads.by_prefix(plan, config, sample_counts)["small"]
    assert reads.most_reads(config) <= math.ceil(max_epochs)
    assert reads.samples_taken > 0


def test_a_limit_stays_as_it_is_if_the_trainer_shuffles_few_enough_epochs_together():
    mixture = small_and_large_mixture(max_epochs=2, small_lengths=[50] * 200)

    samples_of_two_epochs = (2 * 200 * 50 - 1) // LENGTH
    assert np.isclose(mixture.weights[1] * N_SAMPLES, samples_of_two_epochs, atol=0.01)


def test_a_corpus_that_is_too_small_to_keep_its_limit_is_still_read():
    mixture = small_and_large_mixture(max_epochs=1, small_lengths=[20])

    assert np.isclose(mixture.weights[1] * N_SAMPLES, 1, atol=0.01)


def test_a_mixture_that_needs_each_sample_that_max_epochs_allows_is_accepted():
    mix = part_of(mix={"small": {"max_epochs": 4}, "large": {"max_epochs": 1}})
    samples_of_limits = (4 * 40 - 1) // LENGTH + (9_000_000 - 1) // LENGTH
    config = config_of(mix.corpora, samples_of_limits - 1)

    mixture = mixture_of(mix, config, small_and_large([20, 20]))

    assert np.isclose(sum(mixture.weights), 1)


TOKENS_OF_10_000_SAMPLES = 10_000 * LENGTH + LENGTH


def order_after(n_samples):
    """Return the order of a dataset of which earlier phases of the run have taken some samples."""
    n_documents = TOKENS_OF_10_000_SAMPLES // DOCUMENT_TOKENS
    return Order(n_samples, (0, n_documents), 2, separate_last_epoch=False)


def test_a_later_phase_may_read_what_earlier_phases_left():
    tokens_by_corpus = {"a": TOKENS_OF_10_000_SAMPLES, "b": 9_000_000}
    tree = {"a": {"share": 1, "max_epochs": 2}, "b": 1}
    n_samples_of_phase = 50_000

    rows = rows_by_name(
        tree,
        tokens_by_corpus,
        orders={"a": order_after(15_000)},
        consumed_samples=N_SAMPLES - n_samples_of_phase,
    )

    assert rows["a"].decided_by == "max_epochs"
    assert np.isclose(rows["a"].given * n_samples_of_phase, 2 * 10_000 - 15_000, atol=3)


def test_a_later_phase_with_a_corpus_that_is_used_up_is_refused():
    tokens_by_corpus = {"a": TOKENS_OF_10_000_SAMPLES, "b": 9_000_000}
    tree = {"a": {"share": 1, "max_epochs": 2}, "b": 1}

    with pytest.raises(InputError, match="nothing is left"):
        compute_mixture(tree, tokens_by_corpus, orders={"a": order_after(20_005)})


def test_shares_alone_need_no_number_of_samples():
    tree = {"a": {"min_share": 0.5}, "b": {}}

    mixture = compute_mixture(tree, {"a": 50, "b": 9950}, samples=None)

    assert mixture.weights == (0.5, 0.5)
    assert [row.tokens for row in mixture.rows] == [None, None]


# The order of the corpora


def test_corpora_have_the_order_in_which_they_are_written():
    mix = part_of(mix={"z": 1, "g": {"share": 2, "mix": {"b": {}, "a": {}}}})

    assert list(unweighted(mix.mix)) == ["z", "b", "a"]


def test_a_mixture_is_stored_with_all_its_keys():
    mix = part_of(mix={"z": 1, "g": {"share": 2, "mix": {"b": {}, "a": {}}}})

    assert mix.to_json() == {
        "mix": {"z": {"share": 1.0}, "g": {"share": 2.0, "mix": {"b": {}, "a": {}}}}
    }


# Mixtures that are refused


@pytest.mark.parametrize(
    ("tree", "where", "text"),
    [
        pytest.param(
            {"a": {"tokens": 1e9}, "b": 1},
            "mix.a",
            "62,500% of train",
            id="a target above train",
        ),
        pytest.param(
            {"a": {"tokens": 1e6}, "b": {"epochs": 0.1}},
            "mix",
            "which are 63.75% of train",
            id="targets below train",
        ),
        pytest.param(
            {"a": {"share": 1, "max_epochs": 1}, "b": {"share": 1, "max_epochs": 1}},
            "mix",
            "a, b would have 100% of train",
            id="all parts limited",
        ),
        pytest.param(
            {"g": {"share": 1, "mix": {"a": {"tokens": 1e6}, "c": 1}}, "b": 9},
            "mix.g.c",
            "mix.g need all of its 62.5%",
            id="a target above its group",
        ),
        pytest.param(
            {"g": {"share": 1, "mix": {"a": {"min_share": 0.9, "max_epochs": 1}, "c": {}}}, "b": 1},
            "mix.g.a",
            "it has to have at least",
            id="a floor above a limit",
        ),
        pytest.param(
            {"a": {"tokens": 8e5}, "c": {"tokens": 8e5}, "b": 1},
            "mix.b",
            "mix need all of its 100%",
            id="nothing left by targets",
        ),
        pytest.param({"empty": 1, "b": 1}, "mix", "no tokens in empty", id="a part without tokens"),
        pytest.param(
            {"empty": 1, "b": 1, "void": 1},
            "mix",
            "no tokens in empty, void",
            id="several parts without tokens",
        ),
    ],
)
def test_an_impossible_mixture_is_refused_with_the_part_and_its_bounds(tree, where, text):
    tokens_by_corpus = {"a": 100_000, "b": 200_000, "c": 300_000, "empty": 0, "void": 0}

    with pytest.raises(NanosetError) as caught:
        compute_mixture(tree, tokens_by_corpus)

    assert caught.value.where == where
    assert text in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("tree", "where", "text"),
    [
        ({"a": {"share": 1, "tokens": 5}}, ".a", "each say how much"),
        ({"a": {"tokens": 5, "min_share": 0.1}, "b": 1}, ".a.min_share", "no effect"),
        (
            {"a": {"min_share": 0.5, "max_share": 0.4}, "b": {}},
            ".a.min_share",
            "floor is above the cap",
        ),
        (
            {"g": {"max_epochs": 2, "mix": {"a": {"epochs": 3}}}, "b": 1},
            ".g.a.epochs",
            "more often",
        ),
        ({"a": 1, "b": {}}, "", "some of these parts"),
        ({"a": {"min_share": 0.6}, "b": {"min_share": 0.6}}, "", "more than 1"),
        ({"a": {"max_share": 0.4}, "b": {"max_share": 0.4}}, "", "less than 1"),
        ({"g": {"share": 1, "mix": {"a": {"tokens": 5}}}, "b": 1}, ".g.share", "no effect"),
        ({"a": {"temperature": 0.5}, "b": {}}, ".a.temperature", "this is a corpus"),
        (
            {"g": {"temperature": 0.5, "mix": {"a": 1, "c": 2}}},
            ".g.temperature",
            "a temperature has no effect",
        ),
        (
            {"g": {"temperature": 0.5, "mix": {"a": {"tokens": 5}}}, "b": {}},
            ".g.temperature",
            "a temperature has no effect",
        ),
        ({"g": {"mix": {}}, "b": {}}, ".g", "without parts"),
        ({}, "", "without parts"),
    ],
)
def test_a_contradiction_is_found_before_data_are_read(tree, where, text):
    errors = errors_of(tree)

    messages = [error.what for error in errors if error.where == f"f: n.mix{where}"]
    assert any(text in message for message in messages)


@pytest.mark.parametrize("key", ["tokens", "epochs", "max_epochs"])
def test_a_target_or_limit_without_a_number_of_samples_is_refused(key):
    (error,) = errors_of({"a": {key: 1}, "b": {}}, has_samples=False)

    assert error.where == f"f: n.mix.a.{key}"
