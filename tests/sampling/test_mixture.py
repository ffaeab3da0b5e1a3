"""Mixtures: the weights of random trees beside a slow twin, and what they come to in a blend."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from nanoset_core.errors import InputError, NanosetError
from nanoset_core.records.parsing import parse
from nanoset_core.sampling.config import NanosetConfig, Order
from nanoset_core.sampling.coverage import coverage
from nanoset_core.sampling.mix_tree import MixPart
from nanoset_core.sampling.mixture import mixture_of
from nanoset_core.sampling.plan import plan_split
from nanoset_core.sampling.split_data import LengthReader
from nanoset_core.stages.mappings.mix_settings import DataKeys, mix_errors, unweighted

LENGTH, SAMPLES = 16, 100_000


class Known(LengthReader):
    """Datasets of so many tokens, in documents of 50."""

    def __init__(self, tokens):
        self.lengths = {name: np.full(count // 50, 50, np.int32) for name, count in tokens.items()}

    def read(self, prefix):
        return self.lengths[prefix], "0" * 64


def part(**keys):
    return parse(MixPart, keys, "mix", "f")


def configured(corpora, samples=SAMPLES, **more):
    weights = dict.fromkeys(corpora, 1.0)
    return NanosetConfig(
        weights, sequence_length=LENGTH, split="1,0,0", train_split_samples=samples, **more
    )


def compiled(tree, tokens, **more):
    mix = part(mix=tree)
    return mixture_of(mix, configured(mix.corpora, **more), Known(tokens))


def mistakes(mix, samples=9):
    return [*mix_errors("f: n", [DataKeys("", None, mix)], None, has_samples=bool(samples))]


class Impossible(Exception):
    pass


def slowly(tree, tokens):
    """Corpus → part of train, by trying levels."""
    run = SAMPLES * LENGTH

    def parts(keys):
        return {
            name: {"share": one} if isinstance(one, float) else one
            for name, one in keys["mix"].items()
        }

    def corpora(name, keys):
        return (
            [name]
            if "mix" not in keys
            else [c for n, k in parts(keys).items() for c in corpora(n, k)]
        )

    def passes(corpus, times):
        return int((int(tokens[corpus] * times) - 1) // LENGTH) * LENGTH / run

    def most(name, keys, limit):
        limit = keys.get("max_epochs", limit)
        if "mix" in keys:
            found = min(1, sum(most(n, k, limit) for n, k in parts(keys).items()))
        else:
            found = 1 if limit is None else passes(name, limit)
        target = fixed(name, keys)
        if target is not None and not least(name, keys) - 1e-9 <= target <= found + 1e-9:
            raise Impossible
        return found if target is None else target

    def fixed(name, keys):
        if "tokens" in keys:
            return keys["tokens"] / run
        if "epochs" in keys:
            return sum(passes(corpus, keys["epochs"]) for corpus in corpora(name, keys))
        if "mix" in keys and not {"share", "min_share", "max_share"} & set(keys):
            within = [fixed(n, k) for n, k in parts(keys).items()]
            return None if None in within else sum(within)
        return None

    def least(name, keys):
        own = fixed(name, keys) if "mix" not in keys else None
        if "mix" in keys:
            return sum(
                fixed(n, k) if fixed(n, k) is not None else least(n, k)
                for n, k in parts(keys).items()
            )
        return own or 0

    def divide(name, keys, amount, limit):
        limit = keys.get("max_epochs", limit)
        if "mix" not in keys:
            return {name: amount}
        targets = {n: fixed(n, k) for n, k in parts(keys).items()}
        free = {n: k for n, k in parts(keys).items() if targets[n] is None}
        rest = amount - sum(one for one in targets.values() if one is not None)
        low = {n: max(k.get("min_share", 0) * amount, least(n, k)) for n, k in free.items()}
        high = {n: min(k.get("max_share", 1) * amount, most(n, k, limit)) for n, k in free.items()}
        weight = {n: k.get("share", sum(tokens[c] for c in corpora(n, k))) for n, k in free.items()}
        if not sum(low.values()) - 1e-9 <= rest <= sum(high.values()) + 1e-9:
            raise Impossible
        if any(low[n] > high[n] + 1e-9 for n in free):
            raise Impossible
        lower, upper = 0.0, 1e12
        for _ in range(90):
            level = (lower + upper) / 2
            got = {n: min(max(level * weight[n], low[n]), high[n]) for n in free}
            lower, upper = (level, upper) if sum(got.values()) < rest else (lower, level)
        got = {n: one for n, one in targets.items() if one is not None} | (got if free else {})
        assume(not any(1e-10 < one < 1e-8 for one in got.values()))  # nothing, but for rounding
        if min(got.values()) <= 1e-9:
            raise Impossible
        return {
            c: one for n, k in parts(keys).items() for c, one in divide(n, k, got[n], limit).items()
        }

    most("", {"mix": tree}, None)
    return divide("", {"mix": tree}, 1.0, None)


@st.composite
def trees(draw, names, depth=2):
    """A group of parts that nanoset.yaml would not be refused for."""
    with_shares, found = draw(st.booleans()), {}
    for number in range(draw(st.integers(1, 4))):
        is_group = depth > 0 and draw(st.integers(0, 2)) == 0
        keys = {"mix": draw(trees(names, depth - 1))} if is_group else {}
        kind = draw(st.sampled_from(["share"] * 4 + ["tokens", "epochs"]))
        if kind == "tokens":
            keys["tokens"] = draw(st.integers(1, SAMPLES * LENGTH // 3))
        elif kind == "epochs":
            keys["epochs"] = draw(st.floats(0.1, 2))
        else:
            if with_shares:
                keys["share"] = draw(st.floats(0.1, 10))
            if draw(st.integers(0, 2)) == 0:
                keys["min_share"] = draw(st.floats(0, 0.3))
            if draw(st.integers(0, 2)) == 0:
                keys["max_share"] = draw(st.floats(0.3, 1))
        if kind != "epochs" and draw(st.integers(0, 3)) == 0:
            keys["max_epochs"] = draw(st.floats(0.5, 9))
        found[f"group-{number}" if is_group else next(names)] = keys
    return found


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_random_trees_are_as_the_slow_twin(data):
    names = (f"c{number}" for number in range(1000))
    tree = data.draw(trees(names))
    mix = part(mix=tree)
    tokens = {corpus: data.draw(st.integers(40, 40_000)) * 50 for corpus in mix.corpora}
    assume(not mistakes(mix.mix))
    try:
        expected = slowly(tree, tokens)
    except Impossible:
        with pytest.raises(InputError, match=r"mixture|part of the mixture"):
            compiled(tree, tokens)
        return
    found = compiled(tree, tokens)
    assert list(expected) == list(mix.corpora)
    assert np.allclose(found.weights, list(expected.values()), rtol=1e-4, atol=1e-7)
    assert abs(sum(found.weights) - 1) < 1e-12
    given = {row.name: row.given for row in found.rows if row.depth == 0}
    assert np.isclose(sum(given.values()), 1)


def rows_of(tree, tokens, **more):
    return {row.name: row for row in compiled(tree, tokens, **more).rows}


def test_a_plan_says_what_each_part_gets_and_why():
    tokens = {"web": 900_000, "books": 100_000, "python": 30_000, "rust": 270_000, "math": 50_000}
    tree = {
        "english": {"share": 0.6, "mix": {"web": 3, "books": {"share": 1, "max_epochs": 2}}},
        "code": {"share": 0.3, "mix": {"python": {"min_share": 0.2}, "rust": {}}},
        "math": {"tokens": 160_000},
    }
    rows = rows_of(tree, tokens)
    assert [(row.name, row.depth, row.decided_by) for row in rows.values()] == [
        *(("english", 0, "share"), ("web", 1, "share"), ("books", 1, "max_epochs")),
        *(
            ("code", 0, "share"),
            ("python", 1, "min_share"),
            ("rust", 1, "size"),
            ("math", 0, "tokens"),
        ),
    ]
    assert rows["math"].given == 0.1
    assert (rows["math"].tokens, rows["math"].epochs, rows["math"].asked) == (160_000, 3.2, None)
    assert np.isclose(rows["english"].given, 0.9 * 2 / 3)
    assert np.isclose(rows["books"].asked, 0.15)
    assert np.isclose(rows["books"].epochs, 2, atol=1e-3)
    assert np.isclose(rows["web"].given + rows["books"].given, 0.6)
    assert np.isclose(rows["python"].given, 0.2 * 0.3)
    assert np.isclose(rows["python"].asked, 0.1 * 0.3)


@pytest.mark.parametrize("preset", ["megatron", "megatron-0.10", "nemo", "nanotron-000"])
def test_targets_and_caps_are_kept_within_a_sample(preset):
    tokens = {"a": 400_000, "b": 100_000, "c": 7_000_000, "d": 90_050}
    tree = {
        "a": {"epochs": 1},
        "b": {"tokens": 123_456},
        "rest": {"mix": {"c": 1, "d": {"share": 9, "max_epochs": 2}}},
    }
    mix, reader = part(mix=tree), Known(tokens)
    config = configured(mix.corpora, preset=preset)
    weights = dict(zip(mix.corpora, mixture_of(mix, config, reader).weights, strict=True))
    planned = NanosetConfig.from_json(config.to_json() | {"data_path": weights})
    a, b, _, d = coverage(plan_split(planned, "train", reader), planned)
    spare = 1.005 if preset != "megatron" else 1  # the others make the blend longer by the surplus
    assert abs(a.samples_given - config.samples_in(400_000) * spare) <= 2
    assert abs(b.samples_given - 123_456 / LENGTH * spare) <= 2
    assert abs(d.samples_given - config.samples_in(2 * 90_050) * spare) <= 2


def test_a_run_that_goes_on_has_read_a_part_of_what_is_allowed():
    tokens = {"a": 160_016, "b": 9_000_000}
    tree, orders = (
        {"a": {"share": 1, "max_epochs": 2}, "b": 1},
        {"a": Order(15_000, (0, 3200), 2, separate_last_epoch=False)},
    )
    rows = rows_of(tree, tokens, orders=orders, consumed_samples=50_000)
    assert rows["a"].decided_by == "max_epochs"
    assert np.isclose(rows["a"].given * 50_000, 2 * 10_000 - 15_000, atol=3)
    with pytest.raises(InputError, match="nothing is left"):
        rows_of(tree, tokens, orders={"a": Order(20_005, (0, 3200), 2, separate_last_epoch=False)})


@pytest.mark.parametrize(
    ("tree", "where", "found"),
    [
        ({"a": {"tokens": 1e9}, "b": 1}, "mix.a", "6.25e+04% of train"),
        (
            {"a": {"tokens": 1e6}, "b": {"epochs": 0.1}},
            "mix",
            "no part is left for 36.25% of train",
        ),
        (
            {"a": {"share": 1, "max_epochs": 1}, "b": {"share": 1, "max_epochs": 1}},
            "mix",
            "share 100% of train",
        ),
        (
            {"g": {"share": 1, "mix": {"a": {"tokens": 1e6}, "c": 1}}, "b": 9},
            "mix.g.c",
            "mix.g has 62.5%",
        ),
        (
            {"g": {"share": 1, "mix": {"a": {"min_share": 0.9, "max_epochs": 1}, "c": {}}}, "b": 1},
            "mix.g.a",
            "floors",
        ),
        ({"a": {"tokens": 8e5}, "c": {"tokens": 8e5}, "b": 1}, "mix.b", "has 100"),
        ({"empty": 1, "b": 1}, "mix", "empty"),
    ],
)
def test_impossible_mixtures_are_refused_with_the_part_and_its_bounds(tree, where, found):
    tokens = {"a": 100_000, "b": 200_000, "c": 300_000, "empty": 0}
    with pytest.raises(NanosetError) as caught:
        compiled(tree, tokens)
    assert caught.value.where == where
    assert found in str(caught.value)
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("tree", "where", "what"),
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
        ({"g": {"mix": {}}, "b": {}}, ".g", "without parts"),
        ({}, "", "without parts"),
    ],
)
def test_mistakes_are_named_before_anything_is_read(tree, where, what):
    assert (f"f: n.mix{where}", True) in [
        (error.where, what in error.what) for error in mistakes(part(mix=tree).mix)
    ]


def test_limits_and_targets_need_the_number_of_samples_and_shares_do_not():
    for keys in ({"tokens": 5}, {"epochs": 1}, {"max_epochs": 1}):
        mix = part(mix={"a": keys, "b": {}}).mix
        (error,) = mistakes(mix, None)
        assert error.where == f"f: n.mix.a.{next(iter(keys))}"
    found = compiled({"a": {"min_share": 0.5}, "b": {}}, {"a": 50, "b": 9950}, samples=None)
    assert found.weights == (0.5, 0.5)
    assert [row.tokens for row in found.rows] == [None, None]


def test_the_order_written_is_that_of_the_blend():
    mix = part(mix={"z": 1, "g": {"share": 2, "mix": {"b": {}, "a": {}}}})
    assert list(unweighted(mix.mix)) == ["z", "b", "a"]
    assert mix.to_json() == {
        "mix": {"z": {"share": 1.0}, "g": {"share": 2.0, "mix": {"b": {}, "a": {}}}}
    }
