from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from helpers.records import plain
from nanoset_core.errors import ConfigError, FormatError, InputError, SampleIndexError, StaleError
from nanoset_core.records.json_records import canonical_json, dump, load
from nanoset_core.stages.webdataset.order import global_order
from nanoset_core.stages.webdataset.plan import StoredShufflePlan, plan_shuffle
from nanoset_core.stages.webdataset.plan_settings import PlanSettings
from nanoset_core.stages.webdataset.sources import TokenSource


def source(name, tokens, dtype=np.uint16):
    return TokenSource(name, Path(name), np.dtype(dtype).name, tokens)


def small_plan(**changes):
    options = {
        "sequence_length": 10,
        "samples_per_shard": 4,
        "seed": 1234,
        "member": "npy",
    } | changes
    return plan_shuffle([source("web", 103), source("code", 55)], PlanSettings(**options))


def test_counts_and_dtype_of_a_plan():
    counted = ("contexts", "shards", "tokens", "tokens_dropped", "pad_tokens")
    for changes, counts in (
        ({}, (15, 4, 150, 8, 0)),
        ({"tail": "pad", "pad_id": 1}, (17, 5, 158, 0, 12)),
        ({"bos_id": 7}, (17, 5, 153, 5, 0)),
    ):
        assert tuple(getattr(small_plan(**changes), name) for name in counted) == counts
    mixed = [source("web", 30), source("code", 30, np.int32)]
    assert plan_shuffle(mixed, PlanSettings(sequence_length=10)).dtype == "int32"


def test_shards_share_the_global_order():
    plan = small_plan()
    assert [plan.shard_ranks(shard) for shard in range(4)] == [(0, 4), (4, 8), (8, 12), (12, 15)]
    joined = np.concatenate([plan.shard_contexts(shard) for shard in range(4)])
    assert np.array_equal(joined, global_order(15, 1234))
    for shard in (-1, 4):
        with pytest.raises(SampleIndexError, match=r"\[0, 4\)"):
            plan.shard_ranks(shard)


@pytest.mark.parametrize("samples_per_shard", [1, 2, 4, 6, 7, 15, 17, 99])
def test_even_shards_are_equal_and_leave_out_the_last_of_the_order(samples_per_shard):
    uneven = small_plan(samples_per_shard=samples_per_shard, tail="pad", pad_id=1)
    plan = small_plan(samples_per_shard=samples_per_shard, tail="pad", pad_id=1, even=True)
    assert plan.shards == uneven.shards
    joined = np.concatenate([plan.shard_contexts(shard) for shard in range(plan.shards)])
    order = global_order(17, 1234)
    assert {len(plan.shard_contexts(shard)) for shard in range(plan.shards)} == {plan.shard_size}
    assert plan.shard_size <= samples_per_shard
    assert np.array_equal(joined, order[: len(joined)])
    assert plan.contexts == len(joined)
    assert plan.contexts_left_out == 17 - len(joined) < plan.shards
    assert plan.pad_tokens == plan.table.pad_tokens(joined)
    assert plan.tokens == len(joined) * 10 - plan.pad_tokens
    assert plan.tokens + plan.tokens_left_out == uneven.tokens


def test_frequencies_and_weights():
    plan = small_plan(frequencies={"web": 0.5, "code": 2.0})
    assert [source.contexts for source in plan.table.sources] == [5, 10]
    plan = small_plan(weights={"code": 1.0}, contexts=12)
    assert [source.contexts for source in plan.table.sources] == [0, 12]
    plan = small_plan(weights={"web": 1, "code": 1})
    assert [source.contexts for source in plan.table.sources] == [5, 5]
    with pytest.raises(InputError, match="do not fill"):
        small_plan(frequencies={"web": 0.0, "code": 0.0})


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"tail": "pad", "pad_id": 3, "eod": 0},
        {"seed": (1 << 64) - 1},
        {"tail": "carry", "even": True, "samples_per_shard": 6},
        {"bos_id": 4, "frequencies": {"web": 1.75, "code": 0.3}},
        {"weights": {"web": 0.2, "code": 0.3}, "contexts": 9},
        {
            "tail": "pad_always",
            "pad_id": 9,
            "streams": {"web": [100, 0, 3]},
            "preset": "tokshuf",
            "even": True,
        },
    ],
)
@pytest.mark.parametrize("member", ["npy", "json.gz"])
def test_a_plan_survives_json(changes, member):
    plan = small_plan(member=member, **changes)
    stored_plan = StoredShufflePlan.of(plan)
    read_plan = load(StoredShufflePlan, dump(stored_plan), "plan.json")
    assert read_plan == stored_plan
    found = read_plan.plan()
    everything = np.arange(plan.table.contexts)
    assert np.array_equal(found.table.locate(everything), plan.table.locate(everything))


@pytest.mark.parametrize(
    "change",
    [
        {"contexts": 16},
        {"shards": 3},
        {"version": 1},
        {"member": "txt"},
        {"samples_per_shard": 0},
        {"samples_per_shard": "4"},
        {"sequence_length": 11},
        {"tail": "carry"},
        {"even": True},
        {"bos_id": 5},
        {"left_out_pad_tokens": 3},
        {"sources": None},
        {"sources": [{"name": "web"}]},
        {"dtype": "float32"},
        {"compressor": "isal"},
    ],
)
def test_a_changed_plan_is_refused(change):
    values = plain(StoredShufflePlan.of(small_plan()))
    missing = {key: value for key, value in values.items() if key not in change}
    for wrong in (values | change, missing):
        with pytest.raises(FormatError, match="not a shuffle plan"):
            load(StoredShufflePlan, canonical_json(wrong), "plan.json")


@pytest.mark.parametrize("sources", [[], [("web", 9)], [("web", 9), ("code", 0)]])
def test_too_few_tokens_for_a_context(sources):
    with pytest.raises(InputError, match="do not fill a single context"):
        plan_shuffle(
            [source(*pair) for pair in sources],
            PlanSettings(sequence_length=10, samples_per_shard=4, seed=1),
        )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tail": "pad", "pad_id": 65536}, "pad_id"),
        ({"tail": "pad", "pad_id": -1}, "pad_id"),
        ({"bos_id": 65536}, "bos_id"),
        ({"tail": "pad", "pad_id": 50256, "vocab_size": 50254}, "pad_id < 50254"),
        ({"eod": 128258, "vocab_size": 128256}, "eod"),
        ({"samples_per_shard": 0}, "eight digits"),
        ({"samples_per_shard": 10**8}, "eight digits"),
    ],
)
def test_settings_that_cannot_be(changes, message):
    with pytest.raises(ConfigError, match=message):
        small_plan(**changes)


def test_other_sources_than_planned():
    web, code = ("web", 103), ("code", 55)
    for given in ([], [web], [code, web], [("web", 104), code], [(*web, np.int32), code]):
        with pytest.raises(StaleError, match="not those of the plan"):
            small_plan().check_sources([source(*arguments) for arguments in given])


def test_another_compressor_than_planned():
    stored_plan = StoredShufflePlan.of(small_plan(member="json.gz"))
    plan = replace(stored_plan, compressor="isal 0.0.1").plan()
    with pytest.raises(StaleError, match=r"isal 0\.0\.1"):
        plan.check_compressor()
    small_plan(member="npy").check_compressor()
