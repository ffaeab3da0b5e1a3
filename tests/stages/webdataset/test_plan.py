"""Shuffle plans: which contexts each tar has, how plans are stored, and what they are checked for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from helpers.records import plain
from nanoset_core.errors import ConfigError, FormatError, InputError, SampleIndexError, StaleError
from nanoset_core.records.json_records import canonical_json, dump, load
from nanoset_core.stages.webdataset.order import global_order
from nanoset_core.stages.webdataset.plan import ShufflePlan, StoredShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource


def source_of(name: str, n_tokens: int, dtype: Any = np.uint16) -> TokenSource:
    """Return a source whose tokens do not exist."""
    return TokenSource(name, Path(name), np.dtype(dtype).name, n_tokens)


WEB = source_of("web", 103)
CODE = source_of("code", 55)


def small_plan(**settings: Any) -> ShufflePlan:
    """Plan tars of two sources that fill 10 and 5 contexts, with other settings than the usual."""
    defaults: dict[str, Any] = {
        "sequence_length": 10,
        "samples_per_shard": 4,
        "seed": 1234,
        "member": "npy",
    }
    return plan_shuffle([WEB, CODE], PlanSettings(**(defaults | settings)))


def all_contexts(plan: ShufflePlan) -> np.ndarray:
    """Return the numbers of the contexts of all tars, in order."""
    return np.concatenate([plan.shard_contexts(shard) for shard in range(plan.shards)])


def contexts_by_source(plan: ShufflePlan) -> dict[str, int]:
    """Return how many contexts each source has in a plan."""
    return {source.name: source.contexts for source in plan.table.sources}


# Counts


@pytest.mark.parametrize(
    ("settings", "counts"),
    [
        pytest.param(
            {},
            {"contexts": 15, "shards": 4, "tokens": 150, "tokens_dropped": 8, "pad_tokens": 0},
            id="drop",
        ),
        pytest.param(
            {"tail": "pad", "pad_id": 1},
            {"contexts": 17, "shards": 5, "tokens": 158, "tokens_dropped": 0, "pad_tokens": 12},
            id="pad",
        ),
        pytest.param(
            {"bos_id": 7},
            {"contexts": 17, "shards": 5, "tokens": 153, "tokens_dropped": 5, "pad_tokens": 0},
            id="bos",
        ),
    ],
)
def test_a_plan_counts_contexts_and_tokens(settings, counts):
    plan = small_plan(**settings)

    assert {name: getattr(plan, name) for name in counts} == counts


def test_tokens_have_the_widest_type_of_the_sources():
    sources = [source_of("web", 30), source_of("code", 30, np.int32)]

    plan = plan_shuffle(sources, PlanSettings(sequence_length=10))

    assert plan.dtype == "int32"


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param([], id="no source"),
        pytest.param([source_of("web", 9)], id="one source"),
        pytest.param([source_of("web", 9), source_of("code", 0)], id="an empty source"),
    ],
)
def test_sources_that_do_not_fill_a_context_are_refused(sources):
    settings = PlanSettings(sequence_length=10, samples_per_shard=4, seed=1)

    with pytest.raises(InputError, match="do not fill a single context"):
        plan_shuffle(sources, settings)


# Contexts of tars


def test_tars_divide_the_global_order():
    plan = small_plan()

    ranges = [plan.shard_ranks(shard) for shard in range(4)]

    assert ranges == [(0, 4), (4, 8), (8, 12), (12, 15)]
    assert np.array_equal(all_contexts(plan), global_order(15, 1234))


@pytest.mark.parametrize("shard", [-1, 4])
def test_a_tar_that_is_not_planned_has_no_contexts(shard):
    with pytest.raises(SampleIndexError, match=r"\[0, 4\)"):
        small_plan().shard_ranks(shard)


@pytest.fixture(params=[1, 2, 4, 6, 7, 15, 17, 99])
def samples_per_shard(request) -> int:
    """How many contexts a tar may have."""
    return request.param


@pytest.fixture
def uneven_plan(samples_per_shard) -> ShufflePlan:
    """A plan of 17 contexts, some of them padded, whose last tar may be smaller."""
    return small_plan(samples_per_shard=samples_per_shard, tail="pad", pad_id=1)


@pytest.fixture
def even_plan(samples_per_shard) -> ShufflePlan:
    """A plan of the same contexts with tars of one size."""
    return small_plan(samples_per_shard=samples_per_shard, tail="pad", pad_id=1, even=True)


def test_even_tars_have_one_size(even_plan, uneven_plan, samples_per_shard):
    sizes = {len(even_plan.shard_contexts(shard)) for shard in range(even_plan.shards)}

    assert sizes == {even_plan.shard_size}
    assert even_plan.shard_size <= samples_per_shard
    assert even_plan.shards == uneven_plan.shards


def test_even_tars_leave_out_the_last_contexts_of_the_order(even_plan):
    contexts = all_contexts(even_plan)

    assert np.array_equal(contexts, global_order(17, 1234)[: len(contexts)])
    assert even_plan.contexts == len(contexts)
    assert even_plan.contexts_left_out == 17 - len(contexts)
    assert even_plan.contexts_left_out < even_plan.shards


def test_tokens_that_even_tars_leave_out_are_counted(even_plan, uneven_plan):
    contexts = all_contexts(even_plan)

    assert even_plan.pad_tokens == even_plan.table.pad_tokens(contexts)
    assert even_plan.tokens == len(contexts) * 10 - even_plan.pad_tokens
    assert even_plan.tokens + even_plan.tokens_left_out == uneven_plan.tokens


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        pytest.param(
            {"frequencies": {"web": 0.5, "code": 2.0}}, {"web": 5, "code": 10}, id="frequencies"
        ),
        pytest.param(
            {"weights": {"code": 1.0}, "contexts": 12},
            {"web": 0, "code": 12},
            id="weight of one source",
        ),
        pytest.param({"weights": {"web": 1, "code": 1}}, {"web": 5, "code": 5}, id="equal weights"),
    ],
)
def test_frequencies_and_weights_say_how_many_contexts_a_source_has(settings, expected):
    assert contexts_by_source(small_plan(**settings)) == expected


def test_frequencies_that_leave_no_context_are_refused():
    with pytest.raises(InputError, match="do not fill"):
        small_plan(frequencies={"web": 0.0, "code": 0.0})


# Stored plans


@pytest.fixture(
    params=[
        pytest.param({}, id="defaults"),
        pytest.param({"tail": "pad", "pad_id": 3, "eod": 0}, id="pad"),
        pytest.param({"seed": (1 << 64) - 1}, id="greatest seed"),
        pytest.param({"tail": "carry", "even": True, "samples_per_shard": 6}, id="carry"),
        pytest.param({"bos_id": 4, "frequencies": {"web": 1.75, "code": 0.3}}, id="frequencies"),
        pytest.param({"weights": {"web": 0.2, "code": 0.3}, "contexts": 9}, id="weights"),
        pytest.param(
            {
                "tail": "pad_always",
                "pad_id": 9,
                "streams": {"web": [100, 0, 3]},
                "preset": "tokshuf",
                "even": True,
            },
            id="tokshuf",
        ),
    ]
)
def settings(request) -> dict[str, Any]:
    """Settings of a plan, of every kind."""
    return request.param


@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_a_stored_plan_is_read_as_it_was_written(settings, member):
    stored_plan = StoredShufflePlan.of(small_plan(member=member, **settings))

    read_plan = load(StoredShufflePlan, dump(stored_plan), "plan.json")

    assert read_plan == stored_plan


@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_a_stored_plan_finds_the_tokens_of_every_context(settings, member):
    plan = small_plan(member=member, **settings)
    numbers = np.arange(plan.table.contexts)

    read_plan = load(StoredShufflePlan, dump(StoredShufflePlan.of(plan)), "plan.json").plan()

    assert np.array_equal(read_plan.table.locate(numbers), plan.table.locate(numbers))


WRONG_VALUES = {
    "contexts": 16,
    "shards": 3,
    "version": 1,
    "member": "txt",
    "samples_per_shard": "4",
    "sequence_length": 11,
    "tail": "carry",
    "even": True,
    "bos_id": 5,
    "left_out_pad_tokens": 3,
    "sources": [{"name": "web"}],
    "dtype": "float32",
    "compressor": "isal",
}
"""Values in a stored plan that do not go together with the others."""


@pytest.mark.parametrize(
    ("key", "value"), [*WRONG_VALUES.items(), ("samples_per_shard", 0), ("sources", None)]
)
def test_a_stored_plan_that_was_changed_is_refused(key, value):
    values = plain(StoredShufflePlan.of(small_plan()))
    assert values[key] != value

    with pytest.raises(FormatError, match="not a shuffle plan"):
        load(StoredShufflePlan, canonical_json(values | {key: value}), "plan.json")


@pytest.mark.parametrize("key", WRONG_VALUES)
def test_a_stored_plan_without_a_key_is_refused(key):
    values = dict(plain(StoredShufflePlan.of(small_plan())))
    del values[key]

    with pytest.raises(FormatError, match="not a shuffle plan"):
        load(StoredShufflePlan, canonical_json(values), "plan.json")


# Checks


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        pytest.param({"tail": "pad", "pad_id": 65536}, "pad_id", id="pad beyond uint16"),
        pytest.param({"tail": "pad", "pad_id": -1}, "pad_id", id="negative pad"),
        pytest.param({"bos_id": 65536}, "bos_id", id="bos beyond uint16"),
        pytest.param(
            {"tail": "pad", "pad_id": 50256, "vocab_size": 50254},
            "pad_id < 50254",
            id="pad beyond the vocabulary",
        ),
        pytest.param({"eod": 128258, "vocab_size": 128256}, "eod", id="eod beyond the vocabulary"),
        pytest.param({"samples_per_shard": 0}, "eight digits", id="empty tars"),
        pytest.param({"samples_per_shard": 10**8}, "eight digits", id="too large tars"),
    ],
)
def test_impossible_settings_are_refused(settings, message):
    with pytest.raises(ConfigError, match=message):
        small_plan(**settings)


@pytest.mark.parametrize(
    "sources",
    [
        pytest.param([], id="none"),
        pytest.param([WEB], id="one is missing"),
        pytest.param([CODE, WEB], id="another order"),
        pytest.param([source_of("web", 104), CODE], id="another number of tokens"),
        pytest.param([source_of("web", 103, np.int32), CODE], id="another type"),
    ],
)
def test_other_sources_than_those_of_the_plan_are_refused(sources):
    with pytest.raises(StaleError, match="not those of the plan"):
        small_plan().check_sources(sources)


def test_another_compressor_than_that_of_the_plan_is_refused():
    """Its bytes may differ."""
    stored_plan = StoredShufflePlan.of(small_plan(member="json.gz"))
    plan = replace(stored_plan, compressor="isal 0.0.1").plan()

    with pytest.raises(StaleError, match=r"isal 0\.0\.1"):
        plan.check_compressor()


def test_a_plan_without_compressed_members_needs_no_compressor():
    small_plan(member="npy").check_compressor()
